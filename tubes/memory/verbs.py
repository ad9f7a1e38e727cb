"""The methods of one connection on one tube, except those of inner loops."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tubes.backend.listeners import check_listener
from tubes.backend.moving import item_again
from tubes.backend.port import check_reason, mark_finished
from tubes.drivers import options as known
from tubes.drivers.done import Done
from tubes.drivers.lists import Place, is_by_id, tasks_after
from tubes.drivers.many import ack_many, take_many
from tubes.drivers.moves import State
from tubes.drivers.options import KEEP, SECOND, Seconds, flag, micros, whole
from tubes.drivers.tube_options import altered
from tubes.errors import DuplicateKey, TaskNotFound, TaskNotTaken, TubeBusy, TubeNotFound, TubesError
from tubes.memory.port import Port, keep_data
from tubes.values.batch import Batch, mark_all_finished, tasks_by_id
from tubes.values.codecs import encode
from tubes.values.lane import Utube, changes_of, lane_of
from tubes.values.lease import Lease
from tubes.values.task import F, TaskView, snapshot

if TYPE_CHECKING:
    from types import FrameType

    from tubes.backend.interface import Options, Wrap
    from tubes.backend.listeners import Listener
    from tubes.drivers.entry import Entry
    from tubes.values.statistics import Statistics


#: How many tasks one call moves to another tube.
_RELAYED: Final = 250


class VerbPort(Port[F]):
    """A port with all methods."""

    # -- batches -------------------------------------------------------------------------------------------------------

    def put_many(self, batch: Batch) -> list[F] | None:
        """Add tasks, all or none; None if there is no room."""
        return self._do(lambda now: self.put_all(now, batch) if self.shared.admits(now, batch) else None, is_put=True)

    def take_many(self, limit: int, span: int | None = None) -> list[F]:
        """The first tasks that may be taken, up to so many; `span`: for so long each."""
        if span is not None:
            self.need("ttr")

        def act(now: int) -> list[F]:
            entries = take_many(self._engine, now, self.hold, limit, span)
            kind, tube, dated = self.kind, self.tube, self._engine.dated
            return [snapshot(kind, tube, entry, dated) for entry in entries]

        return self._do(act, is_put=False)

    def top_up(self, first: F, limit: int, span: int | None = None) -> list[F]:
        """The task that a waiter got, and others that are available, up to so many; `span`: for so long each."""
        if span is None:
            return [first, *self.take_many(limit - 1)]
        try:
            return [self.set_ttr(first, span, gives=True), *self.take_many(limit - 1, span)]
        except TaskNotTaken:  # Its own ttr was over before.
            return []

    def ack_many(self, tasks: object) -> dict[int, bool]:
        """Held tasks are done."""
        return self._do_many(tasks, lambda now, entries: ack_many(self._engine, now, entries))

    def release_many(self, tasks: object, delay: Seconds | None) -> dict[int, bool]:
        """Give held tasks back."""
        span = None if delay is None else micros("delay", delay)
        if span is not None:
            self.need("delay")

        def release(now: int, entries: list[Entry]) -> None:
            for entry in entries:
                self._engine.release(now, entry, span)

        return self._do_many(tasks, release)

    def renew_many(self, tasks: object, seconds: Seconds) -> dict[int, bool]:
        """Let held tasks have at least so many seconds to run."""
        span = micros("seconds", seconds)
        self.need("ttr")

        def renew(now: int, entries: list[Entry]) -> None:
            for entry in entries:
                self._engine.renew(now, entry, span)

        return self._do_many(tasks, renew, finishes=False)

    def delete_many(self, tasks: object, states: tuple[State, ...] = ()) -> dict[int, bool]:
        """Remove tasks; `states`: those that are in one of these."""

        def delete(now: int, entries: list[Entry]) -> None:
            for entry in entries:
                self._engine.delete(now, entry)

        return self._do_many(tasks, delete, anybody=True, states=states)

    def evict(self, tasks: list[F]) -> list[bool]:
        """Remove those of these tasks that are as they were seen, and live on elsewhere; whether each was."""

        def act(now: int) -> list[bool]:
            done: list[bool] = []
            for task in tasks:
                is_same = self._is_as_seen(task)
                if is_same:
                    self._engine.move_out(now, self._engine.tasks[task.id])
                done.append(is_same)
            return done

        return self._do(act)

    def near(self, target: object) -> int:
        """How many tasks one call of `relay` moves to another tube; 0: that is in another store."""
        return _RELAYED if isinstance(target, VerbPort) and target.shared._lock is self._lock else 0

    def relay(self, target: VerbPort[F], tasks: list[F], batch: Batch) -> list[bool] | None:
        """Move those of these tasks that are as they were seen to another tube, as this batch has them.

        Returns whether each was moved; None: there is no room.
        """
        here, there = self.shared, target.shared

        def act(now: int) -> list[bool] | None:
            if target.gone is not None:
                raise target.gone()
            there.serve_waiters(now)
            same = [self._is_as_seen(task) for task in tasks]
            runs = [(options, [data]) for (data, options), is_same in zip(batch, same, strict=True) if is_same]
            moving = Batch(runs)
            if not there.admits(now, moving):
                return None
            moved = [task.id for task, is_same in zip(tasks, same, strict=True) if is_same]
            here.moving = there.moving = here, there, there.engine.next_id, moved
            try:
                target.put_all(now, moving)
                for id in moved:
                    here.engine.move_out(now, here.engine.tasks[id])
                there.commit_with(here, now)
                here.moving = there.moving = None
            except TubesError as error:
                here.moving = there.moving = None
                if isinstance(error, DuplicateKey):
                    places = [place for place, is_same in enumerate(same) if is_same]
                    raise DuplicateKey(**error.facts | {"item": places[error.facts["item"]]}) from None
                raise
            except BaseException as error:
                there.owed += ((error, None, 0, 0, None, there.engine.ticking),)
                there.engine.ticking, there.engine.timers.soonest = True, -1
                raise
            finally:
                there.serve_waiters(now)
            return same

        moved = self._do(act)
        there.tell()
        return moved

    def _is_as_seen(self, task: F) -> bool:
        entry = self._engine.tasks.get(task.id)
        return entry is not None and entry is task._record and entry.state is task._state

    def _do_many(
        self,
        tasks: object,
        verb: Callable[[int, list[Entry]], None],
        *,
        anybody: bool = False,
        finishes: bool = True,
        states: tuple[State, ...] = (),
    ) -> dict[int, bool]:
        """Do something with those of these tasks that this session holds (`anybody`: all); whether it was done.

        `states`: only with those that are in one of these.
        """
        those = tasks_by_id(tasks, self.refer)
        done = dict.fromkeys(those, True)

        def act(now: int) -> None:
            found: Mapping[int, Entry] = self._engine.tasks if anybody else self.hold
            entries: list[Entry] = []
            for id, (meant, take, view) in those.items():
                entry = found.get(meant)
                if entry is None or anybody or (take and entry.take != take):
                    if view.__class__ is Lease:
                        entry = self._engine.find_leased(meant, take)
                    elif not anybody:
                        entry = None
                    if entry is None:
                        forgets = anybody and view.__class__ is not Lease and (not states or State.DONE in states)
                        if forgets:  # After those before it, of which one may take its place among those that are kept.
                            verb(now, entries)
                            entries = []
                        done[id] = forgets and self._forget(now, meant)
                        continue
                    if states and entry.state not in states:
                        done[id] = False
                        continue
                entries.append(entry)
            verb(now, entries)

        self._do(act)
        return mark_all_finished(those, done) if finishes else done

    def _forget(self, now: int, id: int) -> bool:
        """Forget a done task; whether it was kept."""
        kept = self._engine.done.find(now, id) is not None
        self._engine.done.remove(id)
        return kept

    # -- one task or the tube ------------------------------------------------------------------------------------------

    def _show_after(self, entry: Entry, now: int) -> F:
        """A task after a call; one that was released after its ttl is gone."""
        if self._engine.dated and entry.dead <= now:
            self._engine.expire(now)
        return self.show(entry)

    def _do_held(
        self, task: object, act: Callable[[int, Entry], Entry | None], *, finishes: bool = True, data: object = KEEP
    ) -> F:
        """Do something with a held task; `finishes`: that ends its take. `data`: the data that it gets."""
        id, take, view = self.refer(task)
        known: Any = None if view.__class__ is Lease else view

        def do(now: int) -> F:
            entry = self.held(id, take, view)
            entry = act(now, entry) or entry
            answer = self._show_after(entry, now)
            if known is not None and known._record is not entry and data is KEEP:
                keep_data(answer, known, entry)
            return answer

        answer = self._do(do)
        if finishes:
            mark_finished(task)
        return answer

    def ack_with(self, task: object, result: object) -> F:
        """A held task is done, with a result."""
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
    ) -> F:
        """Give a held task back; without a delay, after the tube's backoff."""
        reason = check_reason(reason)
        span = None if delay is None else micros("delay", delay)
        checked = None if pri is None else self.check_pri(pri)
        if data is not KEEP and self.codec is not None:
            data = encode(self.codec, data)

        def act(now: int, entry: Entry) -> Entry:
            if span is not None:
                self.need("delay")
            if checked is not None or data is not KEEP:
                entry = self._engine.begin_move(entry, checked, data)
            self._engine.release(now, entry, span, reason=reason)
            self._engine.end_move()
            return entry

        return self._do_held(task, act, data=data)

    def release_unfailed(self, task: object) -> F:
        """Give a held task back at once: nothing has failed."""
        return self._do_held(task, self._engine.release)

    def decline(self, task: object, delay: Seconds) -> F:
        """Give a held task back, for another taker: the attempt does not count. Without delays it is ready at once."""
        span = micros("delay", delay) if "delay" in self._driver.options else 0
        return self._do_held(task, lambda now, entry: self._engine.decline(now, entry, span))

    def touch(self, task: object, seconds: Seconds) -> F:
        """Prolong the time to run of a held task."""
        span = micros("seconds", seconds)

        def act(now: int, entry: Entry) -> None:
            self.need("ttr")
            self._engine.touch(now, entry, span)

        return self._do_held(task, act, finishes=False)

    def set_ttr(self, task: object, span: int | None, *, gives: bool = False) -> F:
        """Let a held task run for so long from now on; `gives`: one without a ttr gets this one."""

        def act(now: int, entry: Entry) -> None:
            self.need("ttr")
            self._engine.set_ttr(now, entry, span, gives=gives)

        return self._do_held(task, act, finishes=False)

    def bury(self, task: object, reason: str | None, pri: int | None = None) -> F:
        """Put a task aside."""
        reason = check_reason(reason)
        checked = None if pri is None else self.check_pri(pri)

        def act(now: int, entry: Entry) -> Entry:
            if checked is not None:
                entry = self._engine.begin_move(entry, checked)
            self._engine.bury(now, entry, reason)
            self._engine.end_move()
            return entry

        return self._do_any(task, act, finishes=True)

    def delete(self, task: object, states: tuple[State, ...] = ()) -> F:
        """Remove a task; `states`: if it is in one of these."""

        def act(now: int, task: Entry | Done) -> None:
            if states and task.state not in states:
                raise TaskNotFound(id=task.id, tube=self.shared.name, states=" or ".join(states))
            self._engine.delete(now, task)

        return self._do_any(task, act, finishes=True, done=True)

    def again(self, task: object) -> F | None:
        """Put a done task anew, and forget the old one; None if there is no room."""
        id, engine = self.refer_untaken(task)[0], self._engine
        forgotten: list[Done] = []

        def act(now: int) -> F | None:
            done: Any = engine.find_done(now, id) if id not in engine.tasks else engine.tasks[id]
            options = self._driver.check_put(item_again(self.show(done)).options)
            if not engine.admits(now, options):
                return None
            new = self.show(engine.put(now, done.data, options))
            forgotten.append(done)
            engine.done.remove(id)
            return new

        return self._do(act, is_put=True, forgotten=forgotten)

    def take_task(self, task: object, span: int | None) -> F | None:
        """Take a task, whatever stands before it; None if it may not be taken now."""
        id = self.refer_untaken(task)[0]
        if span is not None:
            self.need("ttr")

        def act(now: int) -> F | None:
            entry = self._engine.find(id)
            return self.show(entry) if self._engine.take_task(now, self.hold, entry, span) else None

        return self._do(act, is_put=False)

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
        most, span = self._driver.check_kick(attempts, ttl)
        return self._do_any(task, lambda now, entry: self._engine.kick_task(now, entry, most, span))

    def _do_any(
        self, task: object, act: Callable[[int, Any], Entry | None], *, finishes: bool = False, done: bool = False
    ) -> F:
        """Do something with any task, or with one that a lease holds.

        `finishes`: that ends its take; `done`: it may have ended, if it is kept.
        """
        id, take, view = self.refer(task)
        engine = self._engine

        def do(now: int) -> F:
            found: Any = engine.leased(id, take) if isinstance(view, Lease) else engine.tasks.get(id)
            if found is None:
                found = engine.find_done(now, id) if done else engine.find(id)
            return self._show_after(act(now, found) or found, now)

        answer = self._do(do)
        if finishes:
            mark_finished(task)
        return answer

    def kick(self, count: int, attempts: int | None, ttl: Seconds | None, state: State) -> int:
        """Make buried or delayed tasks ready."""
        most = whole("count", count)
        respawn = self._driver.check_kick(attempts, ttl)
        if state is State.BURIED:
            return self._do(lambda now: self._engine.kick(now, most, *respawn))
        self.need("delay")
        return self._do(lambda now: self._engine.kick_delayed(now, most, *respawn))

    def first(self) -> tuple[int, int] | None:
        """The priority and the id of the first task that may be taken."""

        def act(now: int) -> tuple[int, int] | None:
            entry = self._engine.first()
            return None if entry is None else (entry.pri, entry.id)

        return self._do(act)

    def reasons(self) -> dict[str | None, int]:
        """How many buried tasks there are by reason."""
        return self._do(lambda now: self._engine.reasons())

    def oldest_ready_age(self) -> float | None:
        """How long ago the oldest ready task was put."""

        def act(now: int) -> float | None:
            oldest = self._engine.oldest_ready()
            return None if oldest is None else max(now - oldest.created, 0) / SECOND

        return self._do(act)

    def due_histogram(self, edges: Iterable[Seconds]) -> list[int]:
        """Count tasks by when they move by themselves."""
        spans = known.edges(edges)
        return self._do(lambda now: self._engine.due_histogram([now + span for span in spans]))

    def is_empty(self) -> bool:
        """Whether no task is ready, delayed or taken."""
        return self._do(lambda now: self._engine.is_empty)

    def release_all(self) -> None:
        """Release whatever is taken."""
        self._do(lambda now: self._engine.release_all(now))

    def truncate(self, state: State | None = None) -> None:
        """Remove all tasks; `state`: those in this one."""
        engine = self._engine
        self._do(lambda now: engine.truncate() if state is None else engine.truncate_state(now, state))

    def forget_key(self, key: object) -> bool:
        """Forget a remembered key; return whether it was remembered."""
        name = known.text("key", key)
        return self._do(lambda now: self._engine.forget_key(now, name))

    def pause(self, seconds: Seconds | None) -> None:
        """Stop takes for a while, or until `resume`."""
        span = None if seconds is None else micros("seconds", seconds)
        self._do(lambda now: self._engine.pause.begin(now, span))

    def resume(self) -> None:
        """Let tasks be taken again."""
        self._do(lambda now: self._engine.pause.end())

    def block(self, utube: object, seconds: object, extend: object) -> None:
        """No task of a lane starts for so long."""
        name, span, keeps = lane_of(self._driver, utube), micros("seconds", seconds), flag("extend", extend)
        self._do(lambda now: self._engine.block(now, name, span, extend=keeps))

    def configure(self, utube: object, interval: object, max_in_flight: object, interval_from: object) -> None:
        """A lane has limits of its own."""
        name, changes = lane_of(self._driver, utube), changes_of(interval, max_in_flight, interval_from)
        self._do(lambda now: self._engine.configure(now, name, changes))

    def utubes(self, limit: int) -> list[Utube]:
        """Look at the lanes."""
        most = whole("limit", limit)
        return self._do(lambda now: [Utube(*seen) for seen in self._engine.lanes.see(most)])

    def statistics(self) -> Statistics:
        """Count the tasks of the tube, its calls and the callers that wait on it."""
        return self._do(self.shared.statistics)

    def tasks(self, after: object, limit: int, state: object, utube: object) -> list[F]:
        """The tasks in a state and in a lane, after one of them."""
        id, view, most, wanted, lane = self.check_list(after, limit, state, utube)
        if wanted is State.DONE:
            return self._do(lambda now: self._tasks_done(now, after, id, view, most, lane))

        def place() -> Place:
            if after is None or is_by_id(self._driver, wanted):
                return Place(id)
            entry: Any = self._engine.find(id) if view is None else view._record
            due = self.show(entry)._times[2] if view is None else view._times[2]
            is_delayed = (entry.state if view is None else view._state) is State.DELAYED
            return Place(id, entry.rank, (due or 0) if is_delayed else 0)

        def act(now: int) -> list[F]:
            return [self.show(entry) for entry in tasks_after(self._engine, place(), most, wanted, lane)]

        return self._do(act)

    def _tasks_done(
        self, now: int, after: object, id: int, view: TaskView | None, most: int, lane: str | None
    ) -> list[F]:
        """The done tasks that are kept, those first that are forgotten last."""
        last = None
        if after is not None:
            record = None if view is None else view._record
            last = (record if isinstance(record, Done) else self._engine.find_done(now, id)).until, id
        return [self.show(done) for done in self._engine.done.after(now, last, most, lane)]

    def alter(self, changes: Options) -> None:
        """Give the tube other options."""
        checked = self._driver.check_alter(changes)
        self._do(lambda now: self._engine.alter(now, altered(self._engine.options, checked)))
        while self._do(lambda now: self._engine.trim_done()):
            pass

    def drop(self, force: bool) -> None:
        """Remove the tube."""
        shared = self.shared
        flag("force", force)

        def gone() -> TubesError:
            return TubeNotFound(name=shared.name)

        def act(now: int) -> None:
            engine = self._engine
            waiting = sum(not waiter.is_gone() for line in (shared.takers, shared.putters) for waiter in line)
            if (engine.taken or waiting) and not force:
                raise TubeBusy(name=shared.name, taken=engine.taken, waiting=waiting)
            self._store.remove_tube(shared)
            shared.gone = gone
            shared.end()
            for session in self._store.sessions.values():
                session.holds.pop(shared, None)

        self._do(act)

    def listen(self, callback: object, wrap: Wrap | None = None) -> Listener | None:
        """Set or remove this connection's listener; `wrap`: what makes the API's listener of the user's."""
        listener = check_listener(callback, wrap)
        return self._do(lambda now: self.shared.listen(self, listener))

    def release_later(self, task: object) -> None:
        """Release a task that nobody works on any more; a moment later, if a finalizer runs within a call."""
        if self._store.forked:
            return  # The parent still holds it.
        if _is_in_verb():
            self.shared.later(lambda: self._release_quietly(task))
        else:
            self._release_quietly(task)

    def _release_quietly(self, task: object) -> None:
        with suppress(TubesError):
            self.release_unfailed(task)


def _is_in_verb() -> bool:
    """Whether this thread was interrupted in the middle of a call, and may hold the store's lock."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__package__") == __package__:
            return True
        frame = frame.f_back
    return False
