"""The verbs of one connection on one tube."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from tubes.backend.interface import AnyConnection
from tubes.backend.listeners import check_listener
from tubes.backend.port import PortBase, check_reason, mark_finished
from tubes.backend.waiters import PENDING
from tubes.drivers import options as known
from tubes.drivers.entry import Entry
from tubes.drivers.many import ack_many, put_many, take_many
from tubes.drivers.options import SECOND, flag, micros, whole
from tubes.errors import TaskNotTaken, TubeBusy, TubeNotFound, TubesError
from tubes.memory.overview import count
from tubes.values.batch import Batch, tasks_by_id
from tubes.values.batch import mark_finished as finish_many
from tubes.values.lane import Utube, changes_of, lane_of
from tubes.values.task import FINISHED, F, TaskView, log_lost, snapshot

if TYPE_CHECKING:
    from types import FrameType

    from tubes.backend.interface import NewTask, Options, Wrap
    from tubes.backend.listeners import Listener
    from tubes.backend.waiters import Waiter
    from tubes.drivers.entry import Hold
    from tubes.memory.shared_tube import SharedTube
    from tubes.memory.store import MemoryStore
    from tubes.values.statistics import Statistics

T = TypeVar("T")


class Owner(AnyConnection, Protocol):
    """The connection of a port."""

    @property
    def store(self) -> MemoryStore: ...
    def forget(self, shared: SharedTube, /) -> None:
        """The tube was dropped. Under the lock."""
        ...


class Port(PortBase[F]):
    """What one connection can do with one tube. Every method is atomic."""

    #: Verbs answer at once, in an event loop too.
    awaited = False

    def __init__(self, connection: Owner, shared: SharedTube, hold: Hold) -> None:
        super().__init__(shared.driver, shared.options, connection.store.codec)
        self.connection: Final = connection
        self.shared: Final = shared
        #: What this connection's session holds of the tube.
        self.hold = hold
        #: Those of this port that wait.
        self.waiters: Final[set[Waiter]] = set()
        self.url: Final = connection.store.url
        self.clock: Final = connection.store.clock
        self._store: Final = connection.store
        self._micros: Final = connection.store.clock.micros
        self._engine: Final = shared.engine

    def show(self, entry: Entry) -> F:
        """The entry as the user sees it."""
        return snapshot(self.kind, self.tube, entry, self._engine.dated)

    # -- the verbs of every program's inner loop ---------------------------------------------------------------------
    # They are written out: through `_do` they take 1.3 to 1.8 times as long.
    # An interrupt may come at any moment. Under the lock `recover` puts in order what it has left half done; what was
    # done when it came, after the lock was released or by a listener, `_retract` undoes.

    def put(self, data: object, options: Options) -> F | None:
        """Add a task; None if there is no room."""
        shared = self.shared
        engine = self._engine
        store = self._store
        # The name of a lane and nothing else, as most puts of lanes have it, is in order if it is a plain string.
        is_plain = not options or (len(options) == 1 and options.get(engine.lane_option).__class__ is str)
        if not is_plain or self.codec is not None:
            data, options = self.prepare(data, options)
        task: F | None = None
        id = -1
        held = False
        try:
            for held in store.entering:
                break
            if self.gone is not None:
                raise self.gone()
            now = self._micros()
            if engine.ticking and engine.timers.soonest <= now:
                shared.serve_waiters(now)
            if not engine.capacity or engine.admits(now, options):
                id = engine.next_id
                task = snapshot(self.kind, self.tube, engine.put(now, data, options), engine.dated)
                if shared.watched:
                    shared.serve_waiters(now)
            held = False
            store.lock.release()
            if shared.events:
                shared.tell()
            return task
        except BaseException as error:
            if held:
                try:
                    shared.recover(error, id=id)
                finally:
                    store.lock.release()
            self._retract(task, is_put=True)
            raise

    def take(self) -> F | None:
        """The first task that may be taken; None if there is none."""
        shared = self.shared
        engine = self._engine
        store = self._store
        task: F | None = None
        turn = 0
        held = False
        try:
            for held in store.entering:
                break
            if self.gone is not None:
                raise self.gone()
            now = 0
            if engine.ticking:
                now = self._micros()
                if engine.timers.soonest <= now:
                    shared.serve_waiters(now)
            turn = engine.next_turn
            entry = engine.take(now, self.hold)
            if entry is not None:
                task = snapshot(self.kind, self.tube, entry, engine.dated)
                if shared.watched:
                    shared.serve_waiters(now or self._micros())
            held = False
            store.lock.release()
            if shared.events:
                shared.tell()
            return task
        except BaseException as error:
            if held:
                try:
                    shared.recover(error, turn=turn)
                finally:
                    store.lock.release()
            self._retract(task, is_put=False)
            raise

    def ack(self, task: Any) -> F:
        """A held task is done."""
        shared = self.shared
        engine = self._engine
        store = self._store
        held = False
        try:
            for held in store.entering:
                break
            if self.gone is not None:
                raise self.gone()
            now = 0
            if engine.ticking:
                now = self._micros()
                if engine.timers.soonest <= now:
                    shared.serve_waiters(now)
            entry: Any = task._record if task.__class__ is self.kind else None
            if entry is None or entry.hold is not self.hold or entry.turn != task._turn:
                entry = engine.held(self.hold, *self.refer(task)[:2])
            engine.ack(now, entry)
            done = snapshot(self.kind, self.tube, entry, engine.dated)
            if isinstance(task, TaskView):
                if task._record is not entry:
                    _keep_data(done, task, entry)
                task._turn = FINISHED
            if shared.watched:
                shared.serve_waiters(now or self._micros())
            held = False
            store.lock.release()
            return done
        except BaseException as error:
            if held:
                try:
                    shared.recover(error)
                finally:
                    store.lock.release()
            raise
        finally:
            if shared.events:
                shared.tell()

    def _retract(self, task: object, *, is_put: bool) -> None:
        """Undo puts or takes whose caller gets an error for an answer."""
        shared = self.shared
        if task is not None:
            with self._store.lock:
                shared.undo(task, is_put=is_put)
                shared.serve_waiters(self._micros())
        shared.tell()

    def next(self, task: object) -> F | None:
        """A held task is done, and the next one is taken; None if there is none. A task that was lost is logged."""
        try:
            self.ack(task)
        except TaskNotTaken as lost:
            log_lost(lost)
        return self.take()

    # -- batches -------------------------------------------------------------------------------------------------------

    def put_all(self, now: int, batch: Batch) -> list[F]:
        """Put a batch for which there is room. Under the lock."""
        engine = self._engine
        engine.check_ranks(now, batch)
        if batch.keyed:
            engine.count_new(now, batch)
            # Each as it was put, although a later one may replace it.
            return [self.show(engine.put(now, data, options)) for data, options in batch]
        kind, tube = self.kind, self.tube
        entries = [entry for options, data in batch.runs for entry in put_many(engine, now, data, options)]
        # One of them may be the first task of all that has a time to live.
        return [snapshot(kind, tube, entry, engine.dated) for entry in entries]

    def put_waiting(self, now: int, request: Batch | NewTask) -> F | list[F]:
        """Put what a caller waits with, who has room now. Under the lock."""
        if isinstance(request, Batch):
            return self.put_all(now, request)
        return self.show(self._engine.put(now, *request))

    def put_many(self, batch: Batch) -> list[F] | None:
        """Add tasks, all or none; None if there is no room."""
        return self._do(lambda now: self.put_all(now, batch) if self.shared.admits(now, batch) else None, is_put=True)

    def take_many(self, limit: int) -> list[F]:
        """The first tasks that may be taken, up to so many."""

        def act(now: int) -> list[F]:
            entries = take_many(self._engine, now, self.hold, limit)
            kind, tube, dated = self.kind, self.tube, self._engine.dated
            return [snapshot(kind, tube, entry, dated) for entry in entries]

        return self._do(act, is_put=False)

    def top_up(self, first: F, limit: int) -> list[F]:
        """What was waited for, and what else there is, up to so many."""
        try:
            return [first, *self.take_many(limit - 1)]
        except BaseException:
            self._retract(first, is_put=False)
            raise

    def ack_many(self, tasks: object) -> dict[int, bool]:
        """Held tasks are done."""
        return self._do_many(tasks, lambda now, entries: ack_many(self._engine, now, entries))

    def release_many(self, tasks: object, delay: float | None) -> dict[int, bool]:
        """Give held tasks back."""
        span = None if delay is None else micros("delay", delay)
        if span is not None:
            self.need("delay")

        def release(now: int, entries: list[Entry]) -> None:
            for entry in entries:
                self._engine.release(now, entry, span)

        return self._do_many(tasks, release)

    def renew_many(self, tasks: object, seconds: float) -> dict[int, bool]:
        """Let held tasks have at least so many seconds to run."""
        span = micros("seconds", seconds)
        self.need("ttr")

        def renew(now: int, entries: list[Entry]) -> None:
            for entry in entries:
                self._engine.renew(now, entry, span)

        return self._do_many(tasks, renew, finishes=False)

    def delete_many(self, tasks: object) -> dict[int, bool]:
        """Remove tasks."""

        def delete(now: int, entries: list[Entry]) -> None:
            for entry in entries:
                self._engine.delete(now, entry)

        return self._do_many(tasks, delete, anybody=True)

    def _do_many(
        self,
        tasks: object,
        verb: Callable[[int, list[Entry]], None],
        *,
        anybody: bool = False,
        finishes: bool = True,
    ) -> dict[int, bool]:
        """Do something with those of these tasks that this session has, or that `anybody` may; whether it was done."""
        those = tasks_by_id(tasks, self.refer)
        done = dict.fromkeys(those, False)

        def act(now: int) -> None:
            found: Mapping[int, Entry] = self._engine.tasks if anybody else self.hold
            entries: list[Entry] = []
            for id, ((meant, turn, _), _) in those.items():
                entry = found.get(meant)
                if entry is not None and (anybody or not turn or entry.turn == turn):
                    entries.append(entry)
                    done[id] = True
            verb(now, entries)

        self._do(act)
        return finish_many(those, done) if finishes else done

    # -- the other verbs -----------------------------------------------------------------------------------------------

    def _do(self, act: Callable[[int], T], *, is_put: bool | None = None) -> T:
        """Run a verb under the lock, after what is due; then whoever waits is served, and listeners are told.

        `is_put`: whether it puts tasks or takes some; None: neither. If the caller gets an error for an answer, the
        numbers of its puts or takes tell which are undone.
        """
        shared = self.shared
        engine = self._engine
        answer: T | None = None
        # Numbers of puts begin with 0, those of takes with 1.
        first = over = -1 if is_put else 0
        try:
            with self._store.lock:
                try:
                    if self.gone is not None:
                        raise self.gone()
                    now = self._micros()
                    if engine.timers.soonest <= now:
                        shared.serve_waiters(now)
                    if is_put is None:
                        answer = act(now)
                    else:
                        first = engine.next_id if is_put else engine.next_turn
                        answer = act(now)
                        over = engine.next_id if is_put else engine.next_turn
                    if shared.watched:
                        shared.serve_waiters(now)
                except BaseException as error:
                    if is_put is None:
                        shared.recover(error)
                    else:
                        count = (over if over > 0 else engine.next_id if is_put else engine.next_turn) - first
                        shared.recover(error, **{"id" if is_put else "turn": first}, count=count)
                    raise
            if shared.events:
                shared.tell()
            return answer
        except BaseException:
            if is_put is None:
                shared.tell()
            else:
                self._retract(answer, is_put=is_put)
            raise

    def _show_after(self, entry: Entry, now: int) -> F:
        """A task after a verb; one that came back after its ttl is gone."""
        if self._engine.dated and entry.dead <= now:
            self._engine.expire(now)
        return self.show(entry)

    def _do_held(self, task: object, act: Callable[[int, Entry], None], *, finishes: bool = True) -> F:
        """Do with a task what only its taker may do; `finishes`: that ends its take."""
        id, turn, view = self.refer(task)

        def do(now: int) -> F:
            entry = self._engine.held(self.hold, id, turn)
            act(now, entry)
            answer = self._show_after(entry, now)
            if view is not None and view._record is not entry:
                _keep_data(answer, view, entry)
            return answer

        answer = self._do(do)
        if finishes:
            mark_finished(task)
        return answer

    def release(self, task: object, delay: float | None, reason: str | None = None) -> F:
        """Give a held task back; without a delay after as long as the tube's backoff says."""
        reason = check_reason(reason)
        span = None if delay is None else micros("delay", delay)

        def act(now: int, entry: Entry) -> None:
            if span is not None:
                self.need("delay")
            self._engine.release(now, entry, span, reason=reason)

        return self._do_held(task, act)

    def release_unfailed(self, task: object) -> F:
        """Give a held task back at once: nothing has failed."""
        return self._do_held(task, self._engine.release)

    def touch(self, task: object, seconds: float) -> F:
        """Prolong the time to run of a held task."""
        span = micros("seconds", seconds)

        def act(now: int, entry: Entry) -> None:
            self.need("ttr")
            self._engine.touch(now, entry, span)

        return self._do_held(task, act, finishes=False)

    def bury(self, task: object, reason: str | None) -> F:
        """Put a task aside."""
        reason = check_reason(reason)
        return self._do_any(task, lambda now, entry: self._engine.bury(now, entry, reason), finishes=True)

    def delete(self, task: object) -> F:
        """Remove a task."""
        return self._do_any(task, self._engine.delete, finishes=True)

    def update(self, task: object, changes: Options) -> F:
        """Change a task."""
        checked = self.prepare_update(changes)
        return self._do_any(task, lambda now, entry: self._engine.update(now, entry, **checked) if checked else None)

    def peek(self, task: object) -> F:
        """Look at a task."""
        return self._do_any(task, lambda now, entry: None)

    def kick_task(self, task: object, attempts: int | None, ttl: float | None) -> F:
        """Make one buried task ready."""
        respawn = self._driver.check_kick(attempts, ttl)
        return self._do_any(task, lambda now, entry: self._engine.kick_task(now, entry, *respawn))

    def _do_any(self, task: object, act: Callable[[int, Entry], Entry | None], *, finishes: bool = False) -> F:
        """Do with a task what anybody may do; `finishes`: that ends its take."""
        id, _, _ = self.refer(task)

        def do(now: int) -> F:
            entry = self._engine.find(id)
            return self._show_after(act(now, entry) or entry, now)

        answer = self._do(do)
        if finishes:
            mark_finished(task)
        return answer

    def kick(self, count: int, attempts: int | None, ttl: float | None) -> int:
        """Make buried tasks ready."""
        most = whole("count", count)
        respawn = self._driver.check_kick(attempts, ttl)
        return self._do(lambda now: self._engine.kick(now, most, *respawn))

    def buried(self, limit: int) -> list[F]:
        """The oldest buried tasks."""
        most = whole("limit", limit)
        return self._do(lambda now: [self.show(entry) for entry in self._engine.buried(most)])

    def oldest_ready_age(self) -> float | None:
        """How long ago the oldest ready task was put."""

        def act(now: int) -> float | None:
            oldest = self._engine.oldest_ready()
            return None if oldest is None else max(now - oldest.created, 0) / SECOND

        return self._do(act)

    def due_histogram(self, edges: Iterable[float]) -> list[int]:
        """Count tasks by when they move by themselves."""
        spans = known.edges(edges)
        return self._do(lambda now: self._engine.due_histogram([now + span for span in spans]))

    def release_all(self) -> None:
        """Release whatever is taken."""
        self._do(lambda now: self._engine.release_all(now))

    def truncate(self) -> None:
        """Remove all tasks."""
        self._do(lambda now: self._engine.truncate())

    def pause(self, seconds: float | None) -> None:
        """Let nothing be taken for a while, or until `resume`."""
        span = None if seconds is None else micros("seconds", seconds)
        self._do(lambda now: self._engine.pause.begin(now, span))

    def resume(self) -> None:
        """Let tasks be taken again."""
        self._do(lambda now: self._engine.pause.end())

    def block(self, utube: object, seconds: object) -> None:
        """No task of a lane starts for so long."""
        name, span = lane_of(self._driver, utube), micros("seconds", seconds)
        self._do(lambda now: self._engine.block(now, name, span))

    def configure(self, utube: object, interval: object, max_in_flight: object) -> None:
        """A lane has limits of its own."""
        name, changes = lane_of(self._driver, utube), changes_of(interval, max_in_flight)
        self._do(lambda now: self._engine.configure(now, name, changes))

    def utubes(self, limit: int) -> list[Utube]:
        """Look at the lanes."""
        most = whole("limit", limit)
        return self._do(lambda now: [Utube(*seen) for seen in self._engine.lanes.see(most)])

    def statistics(self) -> Statistics:
        """Count."""
        return self._do(lambda now: count(self._engine, self.shared.count_waiting()))

    def tasks(self, start: int, limit: int) -> list[F]:
        """The tasks from an id on."""
        first, most = whole("start", start), whole("limit", limit)
        return self._do(lambda now: [self.show(entry) for entry in self._engine.tasks_from(first, most)])

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
            del self._store.shared_tubes[shared.name]
            for port in shared.ports:
                port.gone = gone
                port.connection.forget(shared)
            for session in self._store.sessions.values():
                session.holds.pop(shared, None)
            shared.dismiss({*shared.takers, *shared.putters}, gone)
            engine.truncate()

        self._do(act)

    def listen(self, callback: object, wrap: Wrap | None = None) -> Listener | None:
        """Set or remove this connection's listener; `wrap`: what makes the face's listener of the user's."""
        listener = check_listener(callback, wrap)
        return self._do(lambda now: self.shared.listen(self, listener))

    # -- waiting -------------------------------------------------------------------------------------------------------

    def enlist(self, waiter: Waiter) -> None:
        """Answer the waiter at once, if that is possible, else put it at the end of the line."""
        waiter.owner = self

        def act(now: int) -> None:
            if waiter.timeout is not None:
                waiter.deadline = now + waiter.timeout
            self.shared.enlist(waiter)

        self._do(act)

    def withdraw(self, waiter: Waiter, *, undo: bool) -> Any:
        """Take the waiter out of the line and answer None, or what it was given meanwhile; `undo`: give that back."""
        shared = self.shared
        with self._store.lock:
            try:
                shared.strike(waiter)
                answer = waiter.answer
                if undo:
                    shared.undo(answer, is_put=waiter.request is not None)
                if shared.watched:
                    shared.serve_waiters(self._micros())
            except BaseException as error:
                shared.recover(error)
                raise
        shared.tell()
        return None if answer is PENDING else answer

    def keeps(self, waiter: Waiter) -> bool:
        """All is done at once."""
        return False

    def abandon(self, waiter: Waiter) -> None:
        """Withdraw and undo, a moment later: for finalizers, which may come in the middle of a verb."""
        if not self._store.forked:  # The parent's waiter waits on.
            self.shared.later(lambda: self.withdraw(waiter, undo=True))

    def release_later(self, task: object) -> None:
        """Release a task that nobody works on any more; a moment later where a finalizer has come into a verb."""
        if self._store.forked:
            return  # The parent has it still.
        if _is_in_verb():
            self.shared.later(lambda: self._release_quietly(task))
        else:
            self._release_quietly(task)

    def _release_quietly(self, task: object) -> None:
        with suppress(TubesError):
            self.release_unfailed(task)


def _is_in_verb() -> bool:
    """Whether this thread was interrupted in the middle of a verb, and may hold the store's lock."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__package__") == __package__:
            return True
        frame = frame.f_back
    return False


def _keep_data(answer: TaskView, task: TaskView, entry: Entry) -> None:
    """It was updated meanwhile: its taker goes on with the data that it was given."""
    if task._record.data is not entry.data:
        record = entry.copy()
        record.hold = record.index = None  # Verbs are for the one that is in the tube.
        record.data = task._record.data
        answer._record = record
