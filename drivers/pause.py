"""The pause of a tube: until when nothing is taken."""

from __future__ import annotations

from typing import Final

from tubes.drivers.timers import NEVER


class Pause:
    """Whether a tube pauses. While it does until some moment it stands in the timers, as a task does."""

    __slots__ = ("due", "id", "on", "queued")

    def __init__(self) -> None:
        #: Neither a task's nor a lane's: of what is due at one moment it comes first.
        self.id: Final = -NEVER
        self.on = False
        #: When it ends; NEVER while it is on: with `resume`.
        self.due = self.queued = NEVER
