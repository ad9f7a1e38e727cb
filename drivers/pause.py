"""The pause of a tube, during which no task can be taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tubes.drivers.timers import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable


class Pause:
    """The pause of a tube. A pause with an end is an item of the timers, as a task is."""

    __slots__ = ("_changed", "_is_paused", "due", "id", "queued")

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed: Final = changed
        #: Smaller than the ids of tasks and lanes, so that the pause ends before them at the same moment.
        self.id: Final = -NEVER
        self._is_paused = False
        self.due = self.queued = NEVER

    @property
    def until(self) -> int | None:
        """The end of the pause; NEVER: at `resume`; None: the tube is not paused."""
        return self.due if self._is_paused else None

    def begin(self, now: int, span: int | None, *, extend: bool = False) -> None:
        """Stop takes for `span` microseconds, or until `resume` if None; `extend`: not shorter than now. Cost: O(1)."""
        due = NEVER if span is None else now + span
        if extend and due <= (now if self.until is None else self.until):
            return
        if span == 0:
            self.end()
            return
        self.due = due
        # Set the end first: an interrupt must not leave a pause without an end.
        self._is_paused = True
        self._changed()

    def end(self) -> None:
        """Allow takes again."""
        self._is_paused = False
        self.due = NEVER
        self._changed()
