"""The pause of a tube: until when nothing is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tubes.drivers.timers import NEVER

if TYPE_CHECKING:
    from tubes.drivers.engine import Engine


class Pause:
    """Whether a tube pauses. While it does until some moment it stands in the timers, as a task does."""

    __slots__ = ("_engine", "_on", "due", "id", "queued")

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        #: Neither a task's nor a lane's: of what is due at one moment it comes first.
        self.id: Final = -NEVER
        self._on = False
        self.due = self.queued = NEVER

    @property
    def until(self) -> int | None:
        """When it ends; NEVER: when somebody ends it; None: there is none."""
        return self.due if self._on else None

    def begin(self, now: int, span: int | None) -> None:
        """Nothing is taken for so long; None: until somebody ends it. All else goes on. Cost: O(1)."""
        if span == 0:
            self.end()
            return
        if span is not None:
            self._engine.ticking = True
        self.due = NEVER if span is None else now + span
        # After its end: one that is interrupted may be none, but never one that does not end.
        self._on = True
        self._watch()

    def end(self) -> None:
        """Tasks may be taken again."""
        self._on = False
        self.due = NEVER
        self._watch()

    def renew(self) -> None:
        """The indexes were made anew."""
        self.queued = NEVER
        self._watch()

    def _watch(self) -> None:
        timers = self._engine.timers
        if self.due < self.queued:
            timers.add(self, self.due)
        elif self.due == NEVER and self.queued != NEVER:
            timers.remove(self)
        # Where nothing pauses this costs a take nothing.
        self._engine._pop = _nothing if self._on else self._engine._offers.pop


def _nothing() -> None:
    """What there is to be taken meanwhile."""
