"""One tube of a store: its tasks, its waiters and its listeners."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet

from tubes.backend.alarms import Alarm
from tubes.backend.clock import fire_soon
from tubes.backend.listeners import Listener, notify_listener
from tubes.backend.waiters import PENDING, TUBE_EMPTY, TaskEnd
from tubes.drivers.done import Done
from tubes.drivers.driver import RESERVED
from tubes.drivers.invariants import rebuild_indexes
from tubes.drivers.moves import State
from tubes.drivers.options import SECOND
from tubes.drivers.tube_options import as_arguments
from tubes.errors import DuplicateKey, TubeFull, TubeNotFound, TubesError
from tubes.values.batch import Batch, lanes_of
from tubes.values.overview import Overview
from tubes.values.statistics import Statistics, to_seconds
from tubes.values.task import TaskView, snapshot

T = TypeVar("T")

if TYPE_CHECKING:
    from tubes.backend.clock import Clock
    from tubes.backend.interface import PreparedPut
    from tubes.backend.waiters import Waiter
    from tubes.drivers.engine import Engine
    from tubes.drivers.entry import Entry
    from tubes.memory.lock import Lock


class ListeningPort(Protocol):
    """The part of a connection's port that the tube uses."""

    #: Makes the error for a dropped tube or a closed queue; None while the port works.
    closed_error: Callable[[], TubesError] | None
    listener: Listener | None

    def forget(self) -> None: ...
    def show(self, entry: Entry | Done, /) -> TaskView: ...


class MemoryTube:
    """One tube of a store: its tasks, its waiters and its listeners."""

    def __init__(self, clock: Clock, lock: Lock, engine: Engine) -> None:
        self.name: Final = engine.name
        #: A random number in each lease, so that leases of an earlier tube with this name are refused.
        self.born: Final = uuid4().int >> 64
        #: A number in each lease of a folder: leases from before the folder was opened again are refused.
        self.opening = 0
        self.driver: Final = engine.driver
        self.engine: Final = engine
        self.take_waiters: Final[OrderedDict[Waiter, None]] = OrderedDict()
        self.put_waiters: Final[OrderedDict[Waiter, None]] = OrderedDict()
        #: Waiters for an empty tube.
        self.empty_waiters: Final[OrderedDict[Waiter, None]] = OrderedDict()
        #: Waiters for the end of a task, by its id; then the ids that may have ended, with their records if kept.
        self.end_waiters: Final[dict[int, OrderedDict[Waiter, None]]] = {}
        self._ended: Final[deque[tuple[int, Done | None]]] = deque()
        self.ports: Final[WeakSet[ListeningPort]] = WeakSet()
        #: Ports with a listener, in the order in which the listeners were set.
        self.listeners: Final[WeakKeyDictionary[ListeningPort, None]] = WeakKeyDictionary()
        self.events: Final[deque[tuple[Listener, TaskView, str]]] = deque()
        #: True if `queue.tubes()` lists the tube: it is not one of the library's own.
        #: True if a store in a folder does not keep it.
        self.temporary = False
        self.is_listed: Final = RESERVED.fullmatch(engine.name) is None
        #: True if a put without a lane was logged.
        self.has_warned = self.has_warned_of_buried = False
        #: Called at the end of each critical section, if not None. While there are waiters or listeners it serves them;
        #: otherwise it is `idle_end_section`, which commits if the store is kept in a folder.
        self.end_section: Callable[[int], object] | None = None
        self.idle_end_section: Callable[[int], object] | None = None
        #: While several tasks or a waiter's tasks are put: the first new id, otherwise -1. A repair undoes these puts.
        self.putting = -1
        #: While a done task is put again: the new id and the old one, which a repair forgets if the new task exists.
        self.pending_again: tuple[int, int] | None = None
        #: While tasks move to another tube: both tubes, the first new id, and the old ids.
        self.pending_move: tuple[MemoryTube, MemoryTube, int, list[int]] | None = None
        #: Makes the error for a dropped tube; None while the tube exists.
        self.closed_error: Callable[[], TubesError] | None = None
        self._is_dropped = False
        self._clock: Final = clock
        self._lock: Final = lock
        #: True if the clock ends waits (a test's clock), rather than real time.
        self.clock_wakes: Final = clock.patience(clock.micros()) is None
        self._notify_lock = threading.Lock()
        self._alarm: Final = Alarm(clock, self.fire)
        self._later: Final[deque[Callable[[], object]]] = deque()
        self._call: Final = Alarm(clock, self._do_later)

    @property
    def options(self) -> Mapping[str, Any]:
        """The checked options of the tube, in the units of the machine."""
        return self.engine.options

    def run(self, act: Callable[[int], T], now: int) -> T:
        """Call `act` as a critical section. Under the lock. The methods of ports inline this."""
        if self.engine.busy:
            self.repair()
        self.engine.busy = self.engine.next_take
        try:
            result = act(now)
            self.engine.busy = 0
        except BaseException as error:
            self.recover(error)
            raise
        return result

    def serve(self, now: int) -> bool:
        """Move due tasks, serve waiters by arrival, and set the alarm. True: more is due, so no call may act yet."""
        engine = self.engine
        take_waiters = self.take_waiters
        while not (is_behind := engine.timers.soonest <= now and engine.expire(now)):
            if self.put_waiters and self._serve_put_waiters(now):
                continue
            while take_waiters:
                waiter = next(iter(take_waiters))
                owner = waiter.owner
                if not self.is_late(waiter, now):
                    entry = engine.take(now, owner.hold, waiter.span)
                    if entry is None:
                        break
                    waiter.result = snapshot(owner.kind, owner.tube, entry, engine.has_deadlines)
                    self.engine.busy = engine.next_take  # A repair does not undo the take: the waiter has got it.
                    if not self.wake_waiter(waiter):
                        engine.undo_take(now, entry)
                del take_waiters[waiter]
                owner.waiters.discard(waiter)
            if engine.timers.soonest > now and not (self.put_waiters and self._next_putter(now)):
                break
        if self.empty_waiters and engine.is_empty:
            for waiter in list(self.empty_waiters):
                waiter.result = True
                self.wake_waiter(waiter)
                self.remove_waiter(waiter)
        if self.end_waiters:
            self._serve_end_waiters()
        if take_waiters or self.put_waiters or self.empty_waiters or self.end_waiters or engine.listener:
            self.end_section = self.serve
            self._alarm.set(max(engine.timers.soonest, now))
            if is_behind and self.clock_wakes:  # A test's clock fires the alarm only when it advances.
                self.later(partial(self.fire, now))
        else:  # The next call moves due tasks.
            self.end_section = self.idle_end_section
        return is_behind

    def do_part(self, act: Callable[[int], bool] = lambda now: False) -> bool:
        """Move due tasks, and call `act` unless more are due. Not under the lock.

        Returns True if more are due, or if `act` has returned True. A dropped tube has no parts.
        """
        self._lock.acquire()
        try:
            has_more = False
            if self.closed_error is None:
                has_more = bool(self.run(lambda now: self.serve(now) or act(now), self._clock.micros()))
        finally:
            self._lock.token[0] = True
        self.notify_listeners()
        return has_more

    def commit_both(self, other: MemoryTube, now: int) -> None:
        """Write the changes of both tubes, all or none, if the store is kept in a folder. Under the lock."""

    def _serve_end_waiters(self) -> None:
        """Give the waiters for the end of a task its kept record, even if the record has been forgotten since.

        If no record was kept, the waiters look up the task themselves.
        """
        while self._ended:
            id, done = self._ended.popleft()
            entry = self.engine.tasks.get(id)
            if entry is None or entry.state is State.BURIED:
                for waiter in list(self.end_waiters.get(id, ())):
                    waiter.result = True if done is None else waiter.owner.show(done)
                    self.wake_waiter(waiter)
                    self.remove_waiter(waiter)

    def _serve_put_waiters(self, now: int) -> bool:
        """Run waiting puts while there is room. A waiter gets the error of its own put. True: more tasks are due."""
        while (waiter := self._next_putter(now)) is not None:
            if not self.is_late(waiter, now):
                self.putting = self.engine.next_id
                try:
                    waiter.result = waiter.owner.put_waiting(now, waiter.request)
                except KeyboardInterrupt:  # The interrupt is not about this put: its caller keeps waiting.
                    raise
                except BaseException as error:
                    if not self.is_harmless(error):
                        self.rebuild(now)
                        self._undo_puts(now, self.putting, self.engine.next_id)
                    waiter.result = error
                self.putting = -1
                if not self.wake_waiter(waiter):
                    self.undo(waiter.result, is_put=True)
            self.remove_waiter(waiter)
        # A task with a ttl of 0 ends before it can be taken.
        return self.engine.expire(now)

    def wake_waiter(self, waiter: Waiter) -> bool:
        """Wake a waiter that has its result; return False if its caller has left. Under the lock."""
        return waiter.wake()

    def _next_putter(self, now: int) -> Waiter | None:
        """Find the first waiting put that has room or is late. A full lane does not hold up puts into other lanes."""
        full: set[object] = set()
        for waiter in self.put_waiters:
            if full and not full.isdisjoint(lanes_of(self.driver, waiter.request)):
                continue
            try:
                return waiter if self.is_late(waiter, now) or self.admits(now, waiter.request) else None
            except TubeFull as error:
                full.add(error.facts["utube"])
        return None

    def admits(self, now: int, request: Batch | PreparedPut) -> bool:
        """Return True if a put has room or needs none. Raises `TubeFull` if only its lane is full."""
        if not isinstance(request, Batch):
            return self.engine.admits(now, request[1])
        try:
            count = self.engine.count_new(now, request) if request.has_keys else request.size
        except DuplicateKey:  # The put raises it.
            return True
        # A batch that can never fit is admitted too: its put raises the error.
        if count and not self.engine.has_room(count) and not request.is_too_large(self.engine.capacity):
            return False
        self.engine.check_lanes(now, request)
        return True

    def is_late(self, waiter: Waiter, now: int) -> bool:
        """Return True if a waiter can no longer use a result, for example because its event loop was blocked."""
        # If the store's clock ends waits, `fire` does so, after moving all tasks that are due at the same moment.
        return waiter.is_done() or (waiter.deadline is not None and waiter.deadline < now and not self.clock_wakes)

    def recover(self, error: BaseException) -> None:
        """End a critical section that raised an error. Under the lock."""
        if self.is_harmless(error):
            self.putting, self.pending_again = -1, None
            self.engine.busy = 0
        elif self.engine.busy:
            with suppress(TubesError):  # The caller gets its own error.
                self.repair()

    def repair(self) -> None:
        """Repair the tube after a critical section was interrupted. Under the lock. Cost: O(n).

        The interrupted call then has had its full effect or none. A task that it moved stays moved, but takes and
        batches that have not reached their caller are undone. Calls that were interrupted later, on the way back to
        their caller, have had their full effect: a task that they took stays in the session until its ttr or the
        session ends, and only waiting calls give it back.

        If this method is interrupted itself, the next caller repeats it from the start.
        """
        now = self._clock.micros()
        try:
            is_drop = self.closed_error is not None and not self._is_dropped
            if is_drop:
                self.end()
            if self.pending_move is not None:
                self._end_move(now, *self.pending_move)
            self.rebuild(now)
            for entry in [entry for entry in self.engine.tasks.values() if abs(entry.take) >= self.engine.busy]:
                self.engine.undo_take(now, entry)
            self._undo_puts(now, self.putting, self.engine.next_id)
            if self.pending_again is not None and self.pending_again[0] in self.engine.tasks:
                old = self.pending_again[1]
                if old in self.engine.tasks:
                    self.engine.delete(now, self.engine.tasks[old])
                else:
                    self.engine.done.remove(old)
            self._repair_waiters()
            self.putting, self.pending_again = -1, None
            self.engine.busy = self.engine.next_take
            self.serve(now)
            self.engine.busy = 0
        except TubesError:
            self.engine.busy = 0
            raise
        except BaseException:
            if self.end_section is not None:  # The waiters must not depend on another call.
                self.later(partial(self.fire, now))
            raise
        if is_drop and self.closed_error is not None:
            raise self.closed_error()

    def is_harmless(self, error: BaseException) -> bool:
        """Return True if the call that raised this error has changed nothing."""
        return isinstance(error, TubesError)

    def rebuild(self, now: int) -> None:
        """Rebuild the indexes of the engine."""
        rebuild_indexes(self.engine, now)

    def _repair_waiters(self) -> None:
        """Wake waiters that may have missed their result."""
        self._ended.extend((id, None) for id in self.end_waiters)
        for waiter in [waiter for waiter in self.waiters() if waiter.result is not PENDING]:
            if not self.wake_waiter(waiter):
                self.undo(waiter.result, is_put=waiter.request is not None)
            self.remove_waiter(waiter)

    def _undo_puts(self, now: int, first: int, end: int) -> None:
        tasks = self.engine.tasks
        for entry in [tasks[id] for id in range(first, end) if id in tasks] if first >= 0 else ():
            if entry.take <= 0 and entry.state in (State.READY, State.DELAYED):
                self.engine.undo_put(now, entry)

    def _end_move(self, now: int, source: MemoryTube, destination: MemoryTube, first: int, moved: list[int]) -> None:
        """End an interrupted move: tasks that have reached the other tube leave this one, the others stay."""
        for shared in (source, destination):
            shared.rebuild(now)
        destination._undo_puts(now, destination.putting, destination.engine.next_id)
        for new, id in enumerate(moved, first):
            if new in destination.engine.tasks and id in source.engine.tasks:
                source.engine.move_out(now, source.engine.tasks[id])
        destination.commit_both(source, now)
        source.pending_move = destination.pending_move = None

    def fire(self, now: int) -> None:
        """Handle the alarm: move due tasks, and end waits whose deadline has come."""
        self._lock.acquire()
        try:
            self._alarm.cancel()
            if self.end_section is None:
                return
            try:
                is_behind = self.run(self.serve, now)
            except TubeNotFound:  # The repair has completed an interrupted drop.
                return
            if self.clock_wakes and not is_behind:
                for waiter in self.waiters():
                    if waiter.deadline is None:
                        continue
                    if waiter.deadline <= now:
                        waiter.wake()
                        self.remove_waiter(waiter)
                    else:
                        self._alarm.set(waiter.deadline)
                self.run(self.serve, now)
        finally:
            self._lock.token[0] = True
        self.notify_listeners()

    def listen(self, port: ListeningPort, callback: Listener | None) -> Listener | None:
        """Set or remove a port's listener; return the previous one. Under the lock."""
        before, port.listener = port.listener, callback
        self.listeners.pop(port, None)
        if callback is not None:
            self.listeners[port] = None
        self.engine.listener = self._note if self.listeners else None
        self.end_section = self.serve  # `serve` corrects this right after the call.
        return before

    def _note(self, entry: Entry, event: str) -> None:
        # If the ending task is kept, listeners get its kept record.
        ending = self.engine.pending_end
        subject = entry if ending is None or ending[0] is not entry else ending[1]
        for port in list(self.listeners):
            if port.listener is not None:
                self.note_event(port.listener, port.show(subject), event)
        if not self.listeners:  # Their queues were garbage-collected.
            self.engine.listener = None

    def note_event(self, listener: Listener, task: TaskView, event: str) -> None:
        """Queue a notification of a listener; `notify_listeners` delivers it after the call. Under the lock."""
        self.events.append((listener, task, event))

    def notify_listeners(self) -> None:
        """Call the listeners for all changes, in order, from one thread at a time. Not under the lock."""
        while self.events and self._notify_lock.acquire(blocking=False):
            try:
                while self.events:
                    notify_listener(*self.events.popleft())
            finally:
                self._notify_lock.release()

    def statistics(self, now: int) -> Statistics:
        """Count the tasks, the calls and the callers that wait. Under the lock."""
        engine = self.engine
        waiting = len(self.take_waiters) + len(self.put_waiters)
        kept = engine.done.count(now)
        return Statistics(engine.counts(), engine.calls(), waiting, to_seconds(engine.pause.until), kept)

    def overview(self, now: int, sessions: int) -> Overview:
        """Return the overview of the tube, without its lanes and the age. Under the lock, after `serve`."""
        statistics, options = self.statistics(now), as_arguments(self.engine.options)
        return Overview(self.engine.driver.name, statistics, now / SECOND, sessions, options)

    def waiters(self) -> list[Waiter]:
        """Return all waiters. Under the lock."""
        return [
            *self.take_waiters,
            *self.put_waiters,
            *self.empty_waiters,
            *chain.from_iterable(self.end_waiters.values()),
        ]

    def enlist(self, waiter: Waiter) -> None:
        """Put a waiter at the end of its line. Under the lock."""
        self._waiters_like(waiter)[waiter] = None
        if isinstance(waiter.request, TaskEnd):
            self.engine.on_end = self._note_end
            self._note_end(waiter.request.id, None)  # The task may have ended already.
        waiter.owner.waiters.add(waiter)
        self.end_section = self.serve
        if waiter.deadline is not None and self.clock_wakes:
            self._alarm.set(waiter.deadline)

    def _note_end(self, id: int, done: Done | None) -> None:
        if id in self.end_waiters:
            self._ended.append((id, done))

    def remove_waiter(self, waiter: Waiter) -> None:
        """Remove a waiter from its line. Under the lock."""
        self._waiters_like(waiter).pop(waiter, None)
        waiter.owner.waiters.discard(waiter)
        if isinstance(waiter.request, TaskEnd) and not self.end_waiters.get(waiter.request.id):
            self.end_waiters.pop(waiter.request.id, None)
            if not self.end_waiters:
                self.engine.on_end = None
                self._ended.clear()

    def _waiters_like(self, waiter: Waiter) -> OrderedDict[Waiter, None]:
        if waiter.request is TUBE_EMPTY:
            return self.empty_waiters
        if isinstance(waiter.request, TaskEnd):
            return self.end_waiters.setdefault(waiter.request.id, OrderedDict())
        return self.take_waiters if waiter.request is None else self.put_waiters

    def give_back(self, result: object, *, is_put: bool) -> None:
        """Undo a put or take whose caller has left. Not under the lock."""

        def act(now: int) -> None:
            self.undo(result, is_put=is_put)
            self.serve(now)

        self._lock.acquire()
        try:
            self.run(act, self._clock.micros())
        finally:
            self._lock.token[0] = True
        self.notify_listeners()

    def withdraw(self, waiter: Waiter, now: int, *, undo: bool) -> None:
        """Remove a waiter from its line; with `undo`, undo its result. Under the lock; the call may be repeated."""
        if undo and waiter.result is not PENDING:
            self.undo(waiter.result, is_put=waiter.request is not None)
        self.remove_waiter(waiter)
        if (end_section := self.end_section) is not None:
            end_section(now)

    def undo(self, task: object, *, is_put: bool) -> None:
        """Undo takes or puts whose caller did not get its tasks. Under the lock."""
        if isinstance(task, list):
            for each in reversed(cast("list[object]", task)):  # In reverse, so that each returns to its place.
                self.undo(each, is_put=is_put)
        if not isinstance(task, TaskView):  # The result is an error, or None.
            return
        entry = self.engine.tasks.get(task._record.id)
        if entry is not None and task.created_now:
            now = self._clock.micros()
            if is_put:
                self._undo_puts(now, task._record.id, task._record.id + 1)
            elif abs(entry.take) == task._take:
                self.engine.undo_take(now, entry)

    def dismiss(self, waiters: set[Waiter], error: Callable[[], TubesError]) -> None:
        """End the waits of these waiters with an error. Under the lock."""
        for waiter in waiters:
            waiter.result = error()
            waiter.wake()
            self.remove_waiter(waiter)

    def end(self) -> None:
        """Notify all ports and waiters that the tube was dropped. Under the lock; the call may be repeated."""
        assert self.closed_error is not None
        for port in list(self.ports):
            port.closed_error = self.closed_error
            port.forget()
        self.dismiss({*self.waiters()}, self.closed_error)
        self.truncate()
        self._is_dropped = True

    def truncate(self) -> object:
        """Remove all tasks; return them, as `Engine.truncate` does. Under the lock."""
        removed = self.engine.truncate()
        self._ended.extend((id, None) for id in self.end_waiters)
        return removed

    def later(self, act: Callable[[], object]) -> None:
        """Let the alarm thread call `act`. Acquires no lock, so finalizers may call it at any moment."""
        self._later.append(act)
        fire_soon(self._call)

    def _do_later(self, now: int) -> None:
        self._call.cancel()
        while self._later:
            self._later.popleft()()
