"""A clock that can be set, like the clock of a machine by an operator or a time server."""

from __future__ import annotations

from tubes.drivers.options import micros
from tubes.testing import ManualClock


class SteppingClock(ManualClock):
    """A manual clock that can also be set back."""

    def set_back(self, seconds: float) -> None:
        """Set the clock back by `seconds`."""
        self._now -= micros("seconds", seconds)
