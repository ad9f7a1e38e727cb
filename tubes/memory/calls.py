"""The methods of one connection on one tube, except the ones for inner loops (`port.py`, `quick.py`)."""

from __future__ import annotations

import asyncio
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from heapq import heapify, heappop
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tubes.backend.listeners import check_listener
from tubes.backend.moving import item_of_done
from tubes.backend.port import check_reason, mark_finished
from tubes.backend.selecting import PART, Filters, Scan
from tubes.drivers import options as known
from tubes.drivers.done import Done
from tubes.drivers.engine import DUE_PART
from tubes.drivers.failures import NO_TRACE, Trace
from tubes.drivers.many import ack_many, take_many
from tubes.drivers.moves import State
from tubes.drivers.options import KEEP, Seconds, flag, integer, micros
from tubes.drivers.timers import NEVER
from tubes.drivers.tube_options import apply_changes
from tubes.errors import DuplicateKey, TaskNotFound, TaskNotTaken, TubeBusy, TubeNotFound, TubesError
from tubes.memory import selecting
from tubes.memory.port import MemoryPort, keep_data, run_parts
from tubes.values.batch import Batch, mark_all_finished, tasks_by_id
from tubes.values.codecs import encode
from tubes.values.lane import LaneInfo, check_lane_limits, lane_of
from tubes.values.lease import Lease
from tubes.values.reasons import kind_of
from tubes.values.task import F, TaskView, reserved_names, snapshot

if TYPE_CHECKING:
    from types import FrameType

    from tubes.backend.interface import Options, Wrap
    from tubes.backend.listeners import Listener
    from tubes.backend.selecting import Seen
    from tubes.drivers.entry import Entry, Loss
    from tubes.values.statistics import Statistics

T = TypeVar("T")

#: The maximum number of tasks that one call moves to another tube.
_RELAYED: Final = 250
_BURIED: Final = Filters(State.BURIED, None, None, None, None, None, None, 0, False, None)


class CallPort(MemoryPort[F]):
    """A port with all methods. One class: each method is a short call of the API, and the engine does its work."""

    # -- batches -------------------------------------------------------------------------------------------------------

    def put_many(self, batch: Batch) -> list[F] | None:
        """Add tasks, all or none; return None if there is no room."""
        shared = self.shared

        def act(now: int) -> list[F] | None:
            if not shared.admits(now, batch):
                return None
            shared.putting = self._engine.next_id
            tasks = self.put_all(now, batch)
            shared.putting = -1
            return tasks

        return self._do(act)

    def take_many(self, limit: int, span: int | None = None) -> list[F]:
        """Take up to `limit` available tasks, each for `span` microseconds if given."""
        if span is not None:
            self.require_option("ttr")

        def act(now: int) -> list[F]:
            entries = take_many(self._engine, now, self.hold, limit, span)
            kind, tube, has_deadlines = self.kind, self.tube, self._engine.has_deadlines
            return [snapshot(kind, tube, entry, has_deadlines) for entry in entries]

        return self._do(act)

    def ack_many(self, tasks: object) -> dict[int, bool]:
        """End held tasks as done."""
        return self._do_many(tasks, lambda now, entries: ack_many(self._engine, now, entries))

    def release_many(self, tasks: object, delay: Seconds | None) -> dict[int, bool]:
        """Give held tasks back."""
        span = None if delay is None else micros("delay", delay)
        if span is not None:
            self.require_option("delay")

        def release(now: int, entries: list[Entry]) -> None:
            for entry in entries:
                self._engine.release(now, entry, span)

        return self._do_many(tasks, release)

    def renew_many(self, tasks: object, seconds: Seconds) -> dict[int, bool]:
        """Give held tasks at least `seconds` more to run."""
        span = micros("seconds", seconds)
        self.require_option("ttr")

        def renew(now: int, entries: list[Entry]) -> None:
            for entry in entries:
                self._engine.renew(now, entry, span)

        return self._do_many(tasks, renew, finishes=False)

    def delete_many(self, tasks: object, states: tuple[State, ...] = ()) -> dict[int, bool]:
        """Remove tasks; with `states`, only tasks in one of these states."""

        def delete(now: int, entries: list[Entry]) -> None:
            for entry in entries:
                self._engine.delete(now, entry, self.hold)

        return self._do_many(tasks, delete, any_holder=True, states=states)

    def evict(self, tasks: list[F]) -> list[bool]:
        """Remove tasks that have moved to another store, unless they have changed; return whether each was removed."""

        def act(now: int) -> list[bool]:
            done: list[bool] = []
            for task in tasks:
                is_same = self._is_as_seen(task)
                if is_same:
                    self._engine.move_out(now, self._engine.tasks[task._record.id])
                done.append(is_same)
            return done

        return self._do(act)

    def relay_limit(self, target: object) -> int:
        """Return the number of tasks that one call of `relay` moves to another tube; 0 if it is in another store."""
        return _RELAYED if isinstance(target, CallPort) and target.shared._lock is self._lock else 0

    def relay(self, target: CallPort[F], tasks: list[F], batch: Batch) -> list[bool] | None:
        """Move the tasks that have not changed to another tube, with the data and options of `batch`.

        Returns whether each task was moved, or None if there is no room.
        """
        source, destination = self.shared, target.shared

        def move(now: int) -> list[bool] | None:
            while destination.serve(now):
                pass
            unchanged = [self._is_as_seen(task) for task in tasks]
            runs = [
                (options, [data])
                for (data, options), is_unchanged in zip(batch, unchanged, strict=True)
                if is_unchanged
            ]
            moving = Batch(runs)
            if not destination.admits(now, moving):
                return None
            moved = [task._record.id for task, is_unchanged in zip(tasks, unchanged, strict=True) if is_unchanged]
            destination.putting = first = destination.engine.next_id
            source.pending_move = destination.pending_move = source, destination, first, moved
            try:
                target.put_all(now, moving)
                destination.putting = -1
                for id in moved:
                    source.engine.move_out(now, source.engine.tasks[id])
                destination.commit_both(source, now)
            except DuplicateKey as error:
                places = [place for place, is_unchanged in enumerate(unchanged) if is_unchanged]
                raise DuplicateKey(**error.facts | {"item": places[error.facts["item"]]}) from None
            source.pending_move = destination.pending_move = None
            destination.serve(now)
            return unchanged

        def act(now: int) -> list[bool] | None:
            if target.closed_error is not None:
                raise target.closed_error()
            return destination.run(move, now)

        def finish(moved: list[bool] | None) -> list[bool] | None:
            destination.notify_listeners()
            return moved

        def relay() -> list[bool] | None:
            return self._do(act, finish)

        if self._is_awaited:
            return target._after_parts(relay) if destination.do_part() else relay()
        while destination.do_part():
            pass
        return relay()

    def _is_as_seen(self, task: F) -> bool:
        entry = self._engine.tasks.get(task._record.id)
        return entry is not None and entry is task._record and entry.state is task._state

    def _do_many(
        self,
        tasks: object,
        act_on: Callable[[int, list[Entry]], None],
        *,
        any_holder: bool = False,
        finishes: bool = True,
        states: tuple[State, ...] = (),
    ) -> dict[int, bool]:
        """Call `act_on` with the tasks that this session holds; return for each task whether it was among them.

        `any_holder`: with all tasks. `states`: only with tasks in one of these states.
        """
        references = tasks_by_id(tasks, self.resolve_task)
        done = dict.fromkeys(references, True)

        def act(now: int) -> dict[int, bool]:
            found: Mapping[int, Entry] = self._engine.tasks if any_holder else self.hold
            entries: list[Entry] = []
            for id, (meant, take, view) in references.items():
                entry = found.get(meant)
                if entry is None or any_holder or (take and entry.take != take):
                    if view.__class__ is Lease:
                        entry = self._engine.find_leased(meant, take)
                    elif not any_holder:
                        entry = None
                    if entry is None:
                        forgets = any_holder and view.__class__ is not Lease and (not states or State.DONE in states)
                        if forgets:  # First delete the tasks before it: one of them may push it out of the kept tasks.
                            act_on(now, entries)
                            entries = []
                        done[id] = forgets and self._forget(now, meant)
                        continue
                    if states and entry.state not in states:
                        done[id] = False
                        continue
                entries.append(entry)
            act_on(now, entries)
            return done

        return self._do(act, partial(mark_all_finished, references) if finishes else None)

    def _forget(self, now: int, id: int) -> bool:
        """Forget a done task; return whether it was kept."""
        was_kept = self._engine.done.find(now, id) is not None
        self._engine.done.remove(id)
        return was_kept

    # -- one task or the tube ------------------------------------------------------------------------------------------

    def _show_after(self, entry: Entry, now: int) -> F:
        """Return a task after a call; expire it first if the call released it after the end of its ttl."""
        if self._engine.has_deadlines and entry.dead <= now:
            self._engine.expire(now)
        return self.show(entry)

    def _do_held(
        self, task: object, act: Callable[[int, Entry], Entry | None], *, finishes: bool = True, data: object = KEEP
    ) -> F:
        """Call `act` with a held task. `finishes`: the call ends its take; `data`: the new data of the task."""
        id, take, view = self.resolve_task(task)
        known: Any = None if view.__class__ is Lease else view

        def do(now: int) -> F:
            entry = self.get_held(id, take, view)
            entry = act(now, entry) or entry
            result = self._show_after(entry, now)
            if known is not None and known._record is not entry and data is KEEP:
                keep_data(result, known, entry)
            return result

        finish: Callable[[F], F] | None = partial(_finish, task) if finishes else None
        return self._do(do, finish)

    def ack_with(self, task: object, result: object) -> F:
        """End a held task as done, with a result."""
        if self.codec is not None:
            result = encode(self.codec, result)
        return self._do_held(task, lambda now, entry: self._engine.ack(now, entry, result))

    def release(
        self,
        task: object,
        delay: Seconds | None,
        reason: str | None = None,
        pri: int | None = None,
        data: object = KEEP,
        trace: Trace = NO_TRACE,
    ) -> F:
        """Give a held task back; without a delay, after the tube's backoff."""
        reason = check_reason(reason)
        span = None if delay is None else micros("delay", delay)
        checked = None if pri is None else self.check_pri(pri)
        if data is not KEEP and self.codec is not None:
            data = encode(self.codec, data)

        def act(now: int, entry: Entry) -> Entry:
            if span is not None:
                self.require_option("delay")
            if checked is not None or data is not KEEP:
                entry = self._engine.begin_move(entry, checked, data)
            self._engine.release(now, entry, span, reason=reason, trace=trace)
            self._engine.end_move()
            return entry

        return self._do_held(task, act, data=data)

    def release_unfailed(self, task: object) -> F:
        """Give a held task back at once, without a failed attempt."""
        return self._do_held(task, self._engine.release)

    def decline(self, task: object, delay: Seconds) -> F:
        """Give a held task back for another worker; the attempt does not count.

        If the driver has no delays, the task is ready at once.
        """
        span = micros("delay", delay) if "delay" in self._driver.options else 0
        return self._do_held(task, lambda now, entry: self._engine.decline(now, entry, span))

    def touch(self, task: object, seconds: Seconds) -> F:
        """Prolong the time to run of a held task."""
        span = micros("seconds", seconds)

        def act(now: int, entry: Entry) -> None:
            self.require_option("ttr")
            self._engine.touch(now, entry, span)

        return self._do_held(task, act, finishes=False)

    def set_ttr(self, task: object, span: int | None) -> F:
        """End the current take `span` microseconds from now."""

        def act(now: int, entry: Entry) -> None:
            self.require_option("ttr")
            self._engine.set_ttr(now, entry, span)

        return self._do_held(task, act, finishes=False)

    def checkpoint(self, task: object, changes: Mapping[str, str]) -> F:
        """Store facts in the context of a held task, and renew it."""
        facts, engine = reserved_names(changes), self._engine
        id, take, view = self.resolve_task(task)
        put: Any = view._record.created if isinstance(view, TaskView) else None

        def act(now: int) -> F:
            try:
                entry = self.get_held(id, take, view)
            except TaskNotTaken:
                engine.check_cancelled(now, id, put)
                raise
            engine.checkpoint(now, entry, facts)
            return self._show_after(entry, now)

        return self._do(act)

    def bury(self, task: object, reason: str | None, pri: int | None = None, trace: Trace = NO_TRACE) -> F:
        """Bury a task."""
        reason = check_reason(reason)
        checked = None if pri is None else self.check_pri(pri)

        def act(now: int, entry: Entry) -> Entry:
            if checked is not None:
                entry = self._engine.begin_move(entry, checked)
            self._engine.bury(now, entry, reason, self.hold, trace)
            self._engine.end_move()
            return entry

        return self._do_any(task, act, finishes=True)

    def delete(self, task: object, states: tuple[State, ...] = ()) -> F:
        """Remove a task; with `states`, only if it is in one of these states."""

        def act(now: int, task: Entry | Done) -> None:
            if states and task.state not in states:
                raise TaskNotFound(id=task.id, tube=self.shared.name, states=" or ".join(states))
            self._engine.delete(now, task, self.hold)

        return self._do_any(task, act, finishes=True, done=True)

    def cancel(self, task: object, reason: str | None) -> F:
        """End a task as cancelled."""
        checked = check_reason(reason)
        return self._do_any(task, lambda now, entry: self._engine.cancel(now, entry, checked), finishes=True)

    def on_loss(self, callback: Callable[[Loss | None], object] | None) -> None:
        """Call `callback` when this session loses a task of the tube."""
        self.hold.on_loss = callback
        if callback is not None:
            callback(None)

    def put_again(self, task: object, new: tuple[object, Options] | None = None) -> F | None:
        """Put a done task again, or `new` data with options instead of any task, and remove the old task, in one step.

        Return None if there is no room.
        """
        id, engine = self.resolve_untaken_task(task)[0], self._engine
        prepared = None if new is None else self.prepare(*new)

        def act(now: int) -> F | None:
            old: Any = engine.find_done(now, id) if id not in engine.tasks else engine.tasks[id]
            data, options = prepared or (old.data, item_of_done(self.show(old), self._driver).options)
            if prepared is None:
                options = self._driver.check_put(options)
            if not engine.admits(now, options):
                return None
            self.shared.pending_again = engine.next_id, id
            put = self.show(engine.put(now, data, options))
            engine.delete(now, old, self.hold)
            self.shared.pending_again = None
            return put

        return self._do(act)

    def take_task(self, task: object, span: int | None) -> F | None:
        """Take this task out of turn; return None if it may not be taken now."""
        id = self.resolve_untaken_task(task)[0]
        if span is not None:
            self.require_option("ttr")

        def act(now: int) -> F | None:
            entry = self._engine.find(id)
            return self.show(entry) if self._engine.take_task(now, self.hold, entry, span) else None

        return self._do(act)

    def update(self, task: object, changes: Options) -> F:
        """Change a task."""
        checked = self.prepare_update(changes)
        if not checked:
            return self.peek(task)
        return self._do_any(task, lambda now, entry: self._engine.update(now, entry, **checked))

    def peek(self, task: object) -> F:
        """Look at a task."""
        return self._do_any(task, lambda now, entry: None, done=True)

    def kick_task(self, task: object, attempts: int | None, ttl: Seconds | None) -> F:
        """Make one buried task ready."""
        attempts_left, span = self._driver.check_kick(attempts, ttl)
        return self._do_any(task, lambda now, entry: self._engine.kick_task(now, entry, attempts_left, span))

    def _do_any(self, task: object, act: Callable[[int, Any], Any], *, finishes: bool = False, done: bool = False) -> F:
        """Call `act` with a task, found by its id or lease.

        `finishes`: the call ends its take; `done`: the task may be a done task that is kept.
        """
        id, take, view = self.resolve_task(task)
        engine = self._engine

        def do(now: int) -> F:
            found: Any = engine.get_leased(id, take) if isinstance(view, Lease) else engine.tasks.get(id)
            if found is None:
                found = engine.find_done(now, id) if done else engine.find(id)
            return self._show_after(act(now, found) or found, now)

        finish: Callable[[F], F] | None = partial(_finish, task) if finishes else None
        return self._do(do, finish)

    def first(self) -> tuple[int, int] | None:
        """Return the priority and the id of the first available task."""

        def act(now: int) -> tuple[int, int] | None:
            entry = self._engine.first(now)
            return None if entry is None else (entry.pri, entry.id)

        return self._do(act)

    def reasons(self) -> Any:
        """Count buried tasks by the kind of their reason, in parts."""
        scan, found = Scan(_BURIED), Counter[str]()

        def act(now: int) -> bool:
            tasks = selecting.select(self._engine, now, _BURIED, scan, PART, self.codec)
            found.update(kind_of(None if task.extras is None else task.extras.reason) for task in tasks)
            return not scan.ended

        return self._in_parts(act, lambda: found)

    def _in_parts(self, act: Callable[[int], bool], finish: Callable[[], object]) -> Any:
        """Call `act` until it returns False, then return what `finish` returns, as `run_parts` does."""
        return run_parts(iter(lambda: self._do_part(act), False), finish, self.connection.api)

    def _read_then(self, read: Callable[[], T], prepare: Callable[[T], Callable[[int], bool]]) -> Iterator[bool]:
        """Call `read` under the lock, give its result to `prepare` without the lock, and do the parts of the work."""
        copies: list[T] = []

        def copy(now: int) -> bool:
            copies.append(read())
            return False

        yield from iter(lambda: self._do_part(copy), False)
        act = prepare(copies[0])
        yield from iter(lambda: self._do_part(act), False)

    def oldest_ready_age(self) -> Any:
        """Return the age of the oldest ready task in seconds, in parts."""
        ages: list[float] = []
        return self._in_parts(selecting.find_oldest(self._engine, ages), lambda: ages[0] if ages else None)

    def due_histogram(self, edges: Iterable[Seconds]) -> Any:
        """Count tasks by the time of their next move, in parts."""
        spans, engine = known.edges(edges), self._engine
        counts = [0] * (len(spans) + 1)

        def count(now: int, id: int) -> None:
            entry = engine.tasks.get(id)
            if entry is not None and entry.due != NEVER:
                counts[bisect_right(spans, entry.due - now)] += 1

        act = selecting.in_parts(lambda: engine.ids() if engine.has_times else (), count)
        return self._in_parts(act, lambda: counts)

    def is_empty(self) -> bool:
        """Return True if no task is ready, delayed or taken."""
        return self._do(lambda now: self._engine.is_empty)

    def release_all(self) -> Any:
        """Release all tasks that are taken now, in parts."""
        engine = self._engine

        def release(ids: list[int], end: int) -> Callable[[int], bool]:
            ids.sort()
            return selecting.in_parts(lambda: ids, lambda now, id: engine.release_taken(now, id, end, self.hold))

        parts = self._read_then(
            lambda: ([*chain.from_iterable(engine.holds)], engine.next_take), lambda read: release(*read)
        )
        return run_parts(parts, lambda: None, self.connection.api)

    def truncate(self) -> Any:
        """Remove all tasks."""
        # The last argument lets the removed tasks be freed without the lock.
        return self._do(lambda now: self.shared.truncate(), lambda removed: None)

    def forget_key(self, key: object) -> bool:
        """Forget a remembered key; return whether it was remembered."""
        name = known.text("key", key)
        return self._do(lambda now: self._engine.forget_key(now, name))

    def pause(self, seconds: Seconds | None, extend: bool) -> None:
        """Stop takes for some seconds; None: without an end, 0: end the pause. `extend`: keep one that ends later."""
        span = None if seconds is None else micros("seconds", seconds)
        extends = flag("extend", extend)
        return self._do(lambda now: self._engine.pause.begin(now, span, extend=extends))

    def block(self, lane: object, seconds: object, extend: object, reason: str | None) -> None:
        """Let no task of a lane start for `seconds`."""
        name, span, is_extension = lane_of(self._driver, lane), micros("seconds", seconds), flag("extend", extend)
        reason = check_reason(reason)
        return self._do(lambda now: self._engine.block(now, name, span, extend=is_extension, reason=reason))

    def configure(self, lane: object, limits: Options) -> None:
        """Set the limits of one lane."""
        name = lane_of(self._driver, lane)
        changes = check_lane_limits(limits, self._engine.options.get("order"))
        return self._do(lambda now: self._engine.configure(now, name, changes))

    def lanes(self, limit: int, should_stop: Callable[[], bool] = lambda: False) -> Any:
        """List the lanes in parts, or some of them if `should_stop` returns True after a part."""
        max_lanes = integer("limit", limit)
        found: list[LaneInfo] = []

        def list_some(names: list[str], now: int) -> bool:
            lanes = self._engine.lanes
            for _ in range(DUE_PART):
                if not names or len(found) >= max_lanes:
                    return False
                name = heappop(names)
                if lanes.is_listed(name) and (not found or found[-1].name != name):
                    found.append(LaneInfo(*lanes.show(now, name)))
            return not should_stop()

        def prepare(names: list[str]) -> Callable[[int], bool]:
            heapify(names)  # A sort would stop an event loop.
            return partial(list_some, names)

        return run_parts(self._read_then(self._engine.lanes.names, prepare), lambda: found, self.connection.api)

    def lane_info(self, lane: object) -> LaneInfo:
        """Return the counts, limits and block of one lane."""
        name = lane_of(self._driver, lane)
        return self._do(lambda now: LaneInfo(*self._engine.lanes.show(now, name)))

    def statistics(self) -> Statistics:
        """Count the tasks of the tube, its calls and the callers that wait on it."""
        return self._do(self.shared.statistics)

    def select(self, filters: Filters, scan: Scan, most: int, with_data: bool) -> list[Any]:
        """Return the next part of a selection: tasks, or the `Seen` of each without `with_data`."""

        def act(now: int) -> list[object]:
            found = selecting.select(self._engine, now, filters, scan, most, self.codec)
            return [self.show(task) for task in found] if with_data else [selecting.see(task) for task in found]

        return self._do(act)

    def change_seen(self, act: str, seen: list[Seen], arguments: tuple[object, ...]) -> list[bool]:
        """Change the selected tasks that are still as they were seen; return for each whether it was changed."""
        return self._do(lambda now: selecting.change(self._engine, now, act, seen, arguments, self.hold))

    def alter(self, changes: Options) -> Any:
        """Change options of the tube."""
        checked: Options | None = self._driver.check_alter(changes)
        engine = self._engine

        def act(now: int) -> bool:
            nonlocal checked
            if checked is not None:
                engine.alter(now, apply_changes(engine.options, checked))
                checked = None
                return True  # The next parts apply the limits to the lanes.
            return engine.trim_done()

        return self._in_parts(act, lambda: None)

    def drop(self, force: bool) -> None:
        """Remove the tube."""
        shared = self.shared
        flag("force", force)

        def closed_error() -> TubesError:
            return TubeNotFound(name=shared.name)

        def act(now: int) -> None:
            engine = self._engine
            waiting = sum(
                not waiter.has_left() for line in (shared.take_waiters, shared.put_waiters) for waiter in line
            )
            if (engine.taken or waiting) and not force:
                raise TubeBusy(name=shared.name, taken=engine.taken, waiting=waiting)
            self._store.remove_tube(shared)
            shared.closed_error = closed_error
            engine.tell_all_holders()
            shared.end()
            for session in self._store.sessions.values():
                session.holds.pop(shared, None)

        return self._do(act)

    def listen(self, callback: object, wrap: Wrap | None = None) -> Listener | None:
        """Set or remove this connection's listener; `wrap` adapts the user's function to the API."""
        listener = check_listener(callback, wrap)
        return self._do(lambda now: self.shared.listen(self, listener))

    def release_later(self, task: object) -> None:
        """Release an abandoned task; a moment later, if a finalizer runs in the middle of a call."""
        if self._store.forked:
            return  # The parent still holds the task.
        if _is_in_method():
            self.shared.later(lambda: self._release_quietly(task))
        else:
            self._release_quietly(task)

    def _release_quietly(self, task: object) -> None:
        with suppress(TubesError):
            reply: Any = self.release_unfailed(task)
            if asyncio.iscoroutine(reply):  # More tasks are due.
                reply.close()
                self.shared.later(lambda: self._release_quietly(task))


def _finish(task: object, result: F) -> F:
    mark_finished(task)
    return result


def _is_in_method() -> bool:
    """Return True if this thread was interrupted in the middle of a call, and may hold the store's lock."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__package__") == __package__:
            return True
        frame = frame.f_back
    return False
