"""The pause of a tube: until it ends, no task is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tubes.drivers.timers import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable


class Pause:
    """Whether a tube is paused. A pause with an end is in the timers, like a task."""

    __slots__ = ("_changed", "_on", "due", "id", "queued")

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed: Final = changed
        #: Smaller than those of tasks and lanes: at one moment the pause ends first.
        self.id: Final = -NEVER
        self._on = False
        self.due = self.queued = NEVER

    @property
    def until(self) -> int | None:
        """When it ends; NEVER: at `resume`; None: there is no pause."""
        return self.due if self._on else None

    def begin(self, now: int, span: int | None) -> None:
        """Stop takes for so long; None: until `resume`. All else goes on. Cost: O(1)."""
        if span == 0:
            self.end()
            return
        self.due = NEVER if span is None else now + span
        # The end comes first: an interrupted call may leave no pause, but never one without an end.
        self._on = True
        self._changed()

    def end(self) -> None:
        """Let tasks be taken again."""
        self._on = False
        self.due = NEVER
        self._changed()
