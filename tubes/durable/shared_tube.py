"""A tube of a durable store: each critical section ends with a commit."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from typing_extensions import override

from tubes.backend.waiters import PENDING
from tubes.drivers.options import SECOND
from tubes.errors import StoreFailed, StoreFull
from tubes.memory.shared_tube import SharedTube

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.backend.clock import Clock
    from tubes.backend.listeners import Listener
    from tubes.backend.waiters import Waiter
    from tubes.durable.engine import JournaledEngine
    from tubes.durable.files import Files
    from tubes.durable.journal import Journal
    from tubes.memory.lock import Lock
    from tubes.values.task import TaskView

#: How many deferred tasks are written at a time: few, to need little room.
_LATE: Final = 500


class DurableTube(SharedTube):
    """A tube of a durable store.

    It is always `watched`, so that every critical section calls `serve` at its end. `serve` commits, and wakes the
    served waiters only after that, so that no caller gets a result that may be lost.
    """

    engine: JournaledEngine  # type: ignore[misc]

    def __init__(self, clock: Clock, lock: Lock, engine: JournaledEngine, journal: Journal, files: Files) -> None:
        super().__init__(clock, lock, engine)
        self.born = engine.born  # type: ignore[misc]
        # Distinguishes leases of different openings: a file that has lost its last commits reuses take numbers.
        self.opening = uuid4().int >> 64
        self.journal: Final = journal
        self._files: Final = files
        # Waiters that were served since the last commit.
        self._served: Final[dict[Waiter, None]] = {}
        # Served waiters whose results may not be on the disk yet, by commit.
        self._unsynced: Final[deque[dict[Waiter, None]]] = deque()
        # Events to send to listeners after the next commit.
        self._noted: Final[list[tuple[Listener, TaskView, str]]] = []
        # The error that `_undo` handles, so that it is repeated after an interrupt.
        self._undoing: StoreFull | None = None
        # When writing deferred changes last failed because the disk was full.
        self._refused = -SECOND
        self.watched = True

    @override
    def serve(self, now: int) -> None:
        files, engine = self._files, self.engine
        alone = bool(self.putters)  # Commit the call first, so that it is not undone with a waiting put.
        is_owed = True
        while files.is_open:
            waits = self.takers or self.putters or self.emptying or self.ending
            if (waits or engine.listener or engine.timers.soonest <= now) and not alone:
                is_owed = self.journal.is_owed
                super().serve(now)
            self.watched = True
            if files.reserve is not None and files.reserve.missing:
                self.journal.free_room()
            try:
                files.write(self.journal.commit, now)
            except StoreFull as error:
                if self._undo(error):
                    continue
                if is_owed:
                    raise
                return  # The served waiters wait again.
            if engine.late.tasks or engine.late.done:
                self._write_late(now)
            if self._noted:
                self.events.extend(self._noted)
                self._noted.clear()
            if alone:
                alone = False
                continue
            if not self._served:
                return
            if files.syncer is not None:
                self._unsynced.append(dict(self._served))
                self._served.clear()
                files.syncer.later(self._wake_synced)
                return
            if self._wake_served():
                return

    @override
    def commit_with(self, other: SharedTube, now: int) -> None:
        assert isinstance(other, DurableTube)
        journals = self.journal, other.journal
        try:
            self._files.write(lambda now: journals[0].commit_with(journals[1], now), now)
        except StoreFull as error:
            for each in (self, other):
                each._undo(error)
            raise

    def _write_late(self, now: int) -> None:
        """Write deferred changes, some tasks at a time; if there is no room, retry after a second."""
        if 0 <= now - self._refused < SECOND:
            return
        engine = self.engine
        ids = [*engine.late.tasks, *(engine.late.done - engine.late.tasks.keys())]
        ids.sort(key=lambda id: id in engine.tasks)  # Tasks that have gone make room.
        try:
            for start in range(0, len(ids), _LATE):
                self._files.write(partial(self.journal.commit_late, ids[start : start + _LATE]), now)
        except StoreFull:
            self._refused = now

    def _undo(self, error: StoreFull) -> bool:
        """Undo unwritten changes, and put the waiters that were served since the last commit back in line.

        Waiting puts get the error; return True if there were any: then the error is not the caller's.
        """
        self._undoing = error
        with self._files.reading():
            self.journal.undo(self._clock.micros())
        self._noted.clear()
        refused = False
        for waiter in reversed(self._served):
            line = self._waiters_like(waiter)
            if line is self.putters:
                refused = True
                waiter.answer = error
                with suppress(RuntimeError):  # The waiter was woken before an interrupt.
                    waiter.wake()
                continue
            waiter.answer = PENDING
            line[waiter] = None
            line.move_to_end(waiter, last=False)
            waiter.owner.waiters.add(waiter)
        self._served.clear()
        self._undoing = self.journal.before = None
        return refused

    @override
    def rouse(self, waiter: Waiter) -> bool:
        if waiter.is_gone():
            return False
        self._served[waiter] = None
        return True

    def _wake_synced(self) -> None:
        """Wake the waiters that were served before the last sync."""
        self._lock.acquire()
        try:
            if self._unsynced:
                self._served.update(self._unsynced.popleft())
                if not self._wake_served():
                    self.serve_waiters(self._clock.micros())
        finally:
            self._lock.token[0] = True
        self.tell()

    def hasten(self, waiter: Waiter) -> None:
        """Wake a served waiter that timed out without waiting for the sync. Call it under the lock."""
        for served in self._unsynced:
            if served.pop(waiter, self) is None and not waiter.wake():
                self.undo(waiter.answer, is_put=waiter.request is not None)

    def _wake_served(self) -> bool:
        """Wake the served waiters; return False if a task was given back because its caller has left."""
        kept = True
        while self._served:
            waiter = next(iter(self._served))
            with suppress(RuntimeError):  # The waiter was woken before an interrupt.
                if not waiter.wake():
                    self.undo(waiter.answer, is_put=waiter.request is not None)
                    kept = False
            del self._served[waiter]
        return kept

    @override
    def run(self, act: Callable[[], object]) -> None:
        if self._files.is_open:  # In a failed store the indexes may be wrong.
            super().run(act)

    @override
    def repair(self, now: int) -> None:
        if self._files.is_open:
            super().repair(now)

    @override
    def is_harmful(self, error: BaseException | None, is_put: bool | None, first: int) -> bool:
        if isinstance(error, StoreFull) and self.engine.touched:  # The error came in the middle of a batch.
            self._undoing = error
        return self._undoing is not None or super().is_harmful(error, is_put, first)

    @override
    def rebuild(self, now: int) -> None:
        if self._undoing is None:
            super().rebuild(now)
        else:
            self._undo(self._undoing)

    @override
    def note_event(self, listener: Listener, task: TaskView, event: str) -> None:
        self._noted.append((listener, task, event))

    def fail(self, error: StoreFailed) -> None:
        """Raise this error in all waiters and all later calls. Call it under the lock."""

        def gone() -> StoreFailed:
            return StoreFailed(**error.facts)

        for port in self.ports:
            port.gone = gone
        waiting = {*self._served, *chain(*self._unsynced), *self.waiters()}
        self._served.clear()
        self._unsynced.clear()
        self.dismiss(waiting, gone)
        self.close()

    def close(self) -> None:
        """Stop commits after the store was closed. Call it under the lock."""
        self._alarm.silence()
        self.watched = False
