"""A clock that can be set, as an operator or a time server sets that of a machine."""

from __future__ import annotations

from tubes.drivers.options import micros
from tubes.testing import ManualClock


class SteppingClock(ManualClock):
    """A clock in a test's hands that also goes back."""

    def set_back(self, seconds: float) -> None:
        """It is so much earlier from now on."""
        self._now -= micros("seconds", seconds)
