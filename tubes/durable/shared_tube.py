"""A tube of a durable store: each critical section ends with a commit."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar, cast
from uuid import uuid4

from typing_extensions import override

from tubes.backend.waiters import PENDING
from tubes.drivers.options import SECOND
from tubes.errors import StoreFailed, StoreFull
from tubes.memory.shared_tube import MemoryTube

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

T = TypeVar("T")

#: Deferred tasks per write: few, so as to need little disk space.
_DEFERRED_BATCH: Final = 500


class DurableTube(MemoryTube):
    """A tube of a durable store.

    Served waiters are woken only after the commit, so that no caller gets a result that may be lost.
    """

    engine: JournaledEngine  # type: ignore[misc]

    def __init__(self, clock: Clock, lock: Lock, engine: JournaledEngine, journal: Journal, files: Files) -> None:
        super().__init__(clock, lock, engine)
        self.born = engine.born  # type: ignore[misc]
        # Distinguishes leases from before and after a reopening: a file that lost its last commits reuses take numbers.
        self.opening = uuid4().int >> 64
        self.journal: Final = journal
        self._files: Final = files
        # Waiters that were served since the last commit.
        self._served: Final[dict[Waiter, None]] = {}
        # Served waiters whose results may not be on the disk yet, by commit.
        self._unsynced: Final[deque[dict[Waiter, None]]] = deque()
        # Events to send to listeners after the next commit.
        self._new_events: Final[list[tuple[Listener, TaskView, str]]] = []
        # The error that `_undo` handles, so that it is repeated after an interrupt.
        self._undo_error: StoreFull | None = None
        # When writing deferred changes last failed because the disk was full.
        self._last_failure = -SECOND
        self.end_section = self.idle_end_section = self.serve

    @override
    def serve(self, now: int) -> bool:
        """Serve waiters if there are any, commit, and wake the served ones. Every critical section ends with it."""
        files, engine = self._files, self.engine
        commit_first = bool(self.put_waiters)  # Commit the call first, so that it is not undone with a waiting put.
        has_call_changes, is_behind = True, False
        while files.is_open:
            has_waiters = self.take_waiters or self.put_waiters or self.empty_waiters or self.end_waiters
            if (has_waiters or engine.listener or engine.timers.soonest <= now) and not commit_first:
                has_call_changes = self.journal.has_changes
                is_behind = super().serve(now)
            try:
                self.commit(now)
            except StoreFull as error:
                if self._undo(error):
                    continue
                if has_call_changes:
                    raise
                return is_behind  # The served waiters wait again.
            if commit_first:
                commit_first = False
                continue
            if not self._served:
                return is_behind
            if files.syncer is not None:
                self._unsynced.append(dict(self._served))
                self._served.clear()
                files.syncer.call_after_sync(self._wake_synced)
                return is_behind
            if self._wake_served():
                return is_behind
        return False

    def commit(self, now: int) -> None:
        """Write the changes of the critical section, and release its events. Under the lock."""
        if self._files.reserve is not None and self._files.reserve.missing:
            self.journal.request_cleanup()
        self._files.write(self.journal.commit, now)
        if self.engine.deferred.tasks or self.engine.deferred.done:
            self._write_deferred(now)
        if self._new_events:
            self.events.extend(self._new_events)
            self._new_events.clear()

    @override
    def commit_both(self, other: MemoryTube, now: int) -> None:
        assert isinstance(other, DurableTube)
        journals = self.journal, other.journal
        try:
            self._files.write(lambda now: journals[0].commit_both(journals[1], now), now)
        except StoreFull as error:
            for tube in (self, other):
                tube._undo(error)
            raise

    def _write_deferred(self, now: int) -> None:
        """Write deferred changes, some tasks at a time; retry after a second if the disk is full."""
        if 0 <= now - self._last_failure < SECOND:
            return
        engine = self.engine
        ids = [*engine.deferred.tasks, *(engine.deferred.done - engine.deferred.tasks.keys())]
        ids.sort(key=lambda id: id in engine.tasks)  # Deleted rows free space for the others.
        try:
            for start in range(0, len(ids), _DEFERRED_BATCH):
                self._files.write(partial(self.journal.commit_deferred, ids[start : start + _DEFERRED_BATCH]), now)
        except StoreFull:
            self._last_failure = now

    def _undo(self, error: StoreFull) -> bool:
        """Undo unwritten changes, and put the waiters that were served since the last commit back in line.

        Waiting puts get the error; return True if there were any: then the error is not the caller's.
        """
        self._undo_error = error
        with self._files.reading():
            self.journal.undo(self._clock.micros())
        self._new_events.clear()
        has_failed_puts = False
        for waiter in reversed(self._served):
            line = self._waiters_like(waiter)
            if line is self.put_waiters:
                has_failed_puts = True
                waiter.result = error
                with suppress(RuntimeError):  # The waiter was woken before an interrupt.
                    waiter.wake()
                continue
            waiter.result = PENDING
            line[waiter] = None
            line.move_to_end(waiter, last=False)
            waiter.owner.waiters.add(waiter)
        self._served.clear()
        self._undo_error = self.journal.undo_state = None
        return has_failed_puts

    @override
    def wake_waiter(self, waiter: Waiter) -> bool:
        if waiter.has_left():
            return False
        self._served[waiter] = None
        return True

    def _wake_synced(self) -> None:
        """Wake the waiters that were served before the last sync."""
        self._lock.acquire()
        try:
            if self._unsynced:
                self._served.update(self._unsynced.popleft())
                self.run(lambda now: self._wake_served() or self.serve(now), self._clock.micros())
        finally:
            self._lock.token[0] = True
        self.notify_listeners()

    @override
    def withdraw(self, waiter: Waiter, now: int, *, undo: bool) -> None:
        for served in self._unsynced:  # A waiter that timed out does not wait for the sync.
            if served.pop(waiter, self) is None and not waiter.wake():
                self.undo(waiter.result, is_put=waiter.request is not None)
        super().withdraw(waiter, now, undo=undo)

    def _wake_served(self) -> bool:
        """Wake the served waiters; return False if a task was given back because its caller has left."""
        all_kept = True
        while self._served:
            waiter = next(iter(self._served))
            with suppress(RuntimeError):  # The waiter was woken before an interrupt.
                if not waiter.wake():
                    self.undo(waiter.result, is_put=waiter.request is not None)
                    all_kept = False
            del self._served[waiter]
        return all_kept

    @override
    def run(self, act: Callable[[int], T], now: int) -> T:
        if not self._files.is_open:  # In a failed store the indexes may be wrong.
            return cast("T", None)
        return super().run(act, now)

    @override
    def repair(self) -> None:
        if self._files.is_open:
            super().repair()

    @override
    def is_harmless(self, error: BaseException) -> bool:
        if isinstance(error, StoreFull) and self.engine.dirty:  # The error came in the middle of a batch.
            self._undo_error = error
        return self._undo_error is None and super().is_harmless(error)

    @override
    def rebuild(self, now: int) -> None:
        if self._undo_error is None:
            super().rebuild(now)
        else:
            self._undo(self._undo_error)

    @override
    def note_event(self, listener: Listener, task: TaskView, event: str) -> None:
        self._new_events.append((listener, task, event))

    def fail(self, error: StoreFailed) -> None:
        """Raise this error in all waiters and all later calls. Call it under the lock."""

        def make_error() -> StoreFailed:
            return StoreFailed(**error.facts)

        for port in self.ports:
            port.closed_error = make_error
        waiting = {*self._served, *chain(*self._unsynced), *self.waiters()}
        self._served.clear()
        self._unsynced.clear()
        self.dismiss(waiting, make_error)
        self.close()

    def close(self) -> None:
        """Stop commits after the store was closed. Call it under the lock."""
        self._alarm.cancel()
        self.end_section = self.idle_end_section = None
