"""One tube of a durable store: each critical section ends with a commit."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tubes.memory.shared_tube import SharedTube

if TYPE_CHECKING:
    from tubes.backend.clock import Clock
    from tubes.backend.waiters import Waiter
    from tubes.durable.engine import JournaledEngine
    from tubes.durable.journal import Journal
    from tubes.memory.lock import Lock


class DurableTube(SharedTube):
    """One tube of a durable store.

    It counts as watched, so that every critical section serves waiters at its end. There it commits, and only then are
    those woken who were served: nobody sees what may be lost.
    """

    engine: JournaledEngine  # type: ignore[misc]

    def __init__(self, clock: Clock, lock: Lock, engine: JournaledEngine, journal: Journal) -> None:
        super().__init__(clock, lock, engine)
        self.born = engine.born  # type: ignore[misc]
        self.journal: Final = journal
        # Those who were served since the last commit.
        self._served: Final[dict[Waiter, None]] = {}
        self.watched = True

    def serve_waiters(self, now: int) -> None:
        while True:
            super().serve_waiters(now)
            self.watched = True
            self.journal.commit(now)
            if not self._served or self._wake_served():
                return

    def rouse(self, waiter: Waiter) -> bool:
        if waiter.is_gone():
            return False
        self._served[waiter] = None
        return True

    def _wake_served(self) -> bool:
        """Wake those who were served; False if a task was given back, because a caller is gone."""
        kept = True
        while self._served:
            waiter = next(iter(self._served))
            with suppress(RuntimeError):  # It was woken before an interrupt.
                if not waiter.wake():
                    self.undo(waiter.answer, is_put=waiter.request is not None)
                    kept = False
            del self._served[waiter]
        return kept

    def repair_engine(self, error: BaseException, **facts: Any) -> bool:
        self.engine.note_repair()
        return super().repair_engine(error, **facts)

    def drop(self) -> None:
        """Remove all rows with the next commit. Under the lock."""
        self.engine.absolute = self.journal.dropped = True

    def close(self) -> None:
        """Write no more: the store is closed. Under the lock."""
        self._alarm.silence()
        self.watched = False
