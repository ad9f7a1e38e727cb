"""The pause of a tube: until when nothing is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tubes.drivers.timers import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable


class Pause:
    """Whether a tube pauses. While it does until some moment it stands in the timers, as a task does."""

    __slots__ = ("_changed", "_on", "due", "id", "queued")

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed: Final = changed
        #: Neither a task's nor a lane's: of what is due at one moment it comes first.
        self.id: Final = -NEVER
        self._on = False
        self.due = self.queued = NEVER

    @property
    def until(self) -> int | None:
        """When it ends; NEVER: when somebody ends it; None: there is none."""
        return self.due if self._on else None

    def begin(self, now: int, span: int | None) -> None:
        """Let nothing be taken for so long; None: until somebody ends it. All else goes on. Cost: O(1)."""
        if span == 0:
            self.end()
            return
        self.due = NEVER if span is None else now + span
        # After its end: one that is interrupted may be none, but never one that does not end.
        self._on = True
        self._changed()

    def end(self) -> None:
        """Let tasks be taken again."""
        self._on = False
        self.due = NEVER
        self._changed()
