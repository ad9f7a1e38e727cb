"""The methods of one connection on one tube: the critical section, the methods of inner loops, and waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from tubes.backend.interface import AnyConnection
from tubes.backend.port import PortBase
from tubes.backend.waiters import PENDING
from tubes.drivers.entry import Entry
from tubes.drivers.many import put_many
from tubes.drivers.options import MAX_PRI, MAX_SECONDS, SECOND, UNITS
from tubes.errors import TaskNotTaken
from tubes.values.batch import Batch
from tubes.values.codecs import encode
from tubes.values.lease import NO_TAKE, Lease
from tubes.values.options import put_options
from tubes.values.task import FINISHED, F, TaskView, log_lost_take, snapshot

if TYPE_CHECKING:
    from tubes.backend.interface import ApiKind, PreparedPut, Soon
    from tubes.backend.waiters import Waiter
    from tubes.drivers.done import Done
    from tubes.drivers.entry import Hold
    from tubes.memory.shared_tube import MemoryTube
    from tubes.memory.store import MemoryStore

T = TypeVar("T")


class PortConnection(AnyConnection, Protocol):
    """The part of a connection that its ports need."""

    api: ApiKind

    @property
    def store(self) -> MemoryStore: ...
    def forget(self, shared: MemoryTube, /) -> None:
        """Forget a dropped tube. Under the lock."""
        ...


class MemoryPort(PortBase[F]):
    """The methods of one connection on one tube. Each is atomic."""

    def __init__(self, connection: PortConnection, shared: MemoryTube, hold: Hold) -> None:
        super().__init__(shared.driver, connection.store.codec)
        self.connection: Final = connection
        self.shared: Final = shared
        self.born = shared.born
        #: The tasks of the tube that this connection's session holds.
        self.hold = hold
        #: The waiters of this port.
        self.waiters: Final[set[Waiter]] = set()
        self.url: Final = connection.store.url
        self.clock: Final = connection.store.clock
        self._store: Final = connection.store
        self._lock: Final = connection.store.lock
        self._micros: Final = connection.store.clock.micros
        self._engine: Final = shared.engine
        self._is_awaited: Final = connection.api.awaited
        self._has_usual: Final = shared.driver.options >= UNITS.keys()

    def forget(self) -> None:
        """Forget a dropped tube. Under the lock."""
        self.connection.forget(self.shared)

    def show(self, entry: Entry | Done) -> F:
        """Return the task that users see for an entry."""
        return snapshot(self.kind, self.tube, entry, self._engine.has_deadlines)

    def get_held(self, id: int, take: int, view: TaskView | Lease | None) -> Entry:
        """Find a task that the caller holds by its `Reference`, or raise `TaskNotTaken`. Under the lock."""
        if isinstance(view, Lease):
            return self._engine.get_leased(id, take)
        return self._engine.get_held(self.hold, id, take)

    def lease_of(self, task: TaskView) -> Lease:
        """Return the lease of a taken task. If this session does not hold the task, the lease is void."""
        entry = self.hold.get(task._record.id)
        take = NO_TAKE if entry is None or entry.take != task._take else task._take
        return Lease.of(self.shared.name, task._record.id, self.born, 0, self.shared.opening, take)

    def read_lease(self, text: str) -> tuple[int, int, Lease]:
        id, take, lease = super().read_lease(text)
        return id, take if lease.session == self.shared.opening else NO_TAKE, lease

    # -- the methods of inner loops ----------------------------------------------------------------------------------
    # They do not use `_do`, which would take 1.3 to 1.8 times as long.
    # An interrupt may come at any moment: see `MemoryTube.repair`.

    def put(
        self,
        data: object,
        options: Mapping[str, Any],
        utube: Any = None,
        pri: Any = None,
        ttl: Any = None,
        ttr: Any = None,
        delay: Any = None,
    ) -> F | None:
        """Add a task; return None if there is no room."""
        shared = self.shared
        engine = self._engine
        lock = self._lock
        checked: Mapping[str, Any] | None = None
        if utube is None and self._driver.lane is not None:
            self.check_lane(options)
        # Whole numbers, lanes and a key are checked here. All other options go through `check_put`.
        key: Any = options.get("key") if options else None
        if (
            (not options or (key.__class__ is str and key and len(options) == 1))
            and (utube is None or (utube.__class__ is str and engine.lane_option == "utube"))
            and (pri is None or (pri.__class__ is int and 0 <= pri <= MAX_PRI and self._has_usual))
            and (ttl is None or (ttl.__class__ is int and 0 <= ttl <= MAX_SECONDS and self._has_usual))
            and (ttr is None or (ttr.__class__ is int and 0 <= ttr <= MAX_SECONDS and self._has_usual))
            and (delay is None or (delay.__class__ is int and 0 <= delay <= MAX_SECONDS and self._has_usual))
        ):
            if ttl is not None:
                ttl *= SECOND
            if ttr is not None:
                ttr *= SECOND
            delay = 0 if delay is None else delay * SECOND
        else:
            options = put_options(options, utube, pri, ttl, ttr, delay)
            checked = self._driver.check_put(options)
        if self.codec is not None:
            data = encode(self.codec, data)
        task: F | None = None
        while True:
            if lock.waits:
                lock.let_in()
            for held in lock.attempts:
                if held:
                    break
                lock.wait()
            try:
                if engine.busy:
                    shared.repair()
                engine.busy = engine.next_take
                if self.closed_error is not None:
                    raise self.closed_error()
                now = self._micros()
                if engine.uses_time and engine.timers.soonest <= now and shared.serve(now):
                    engine.busy = 0
                    if self._is_awaited:
                        request = data, checked or put_options(options, utube, pri, ttl, ttr, delay or None)
                        return self._after_parts(partial(self._put_if_room, request))
                    continue
                if checked is None and key and (engine.is_bounded or engine.has_key(now, key)):
                    checked = put_options(options, utube, pri, ttl, ttr, delay or None)
                if not engine.is_bounded or engine.admits(now, checked or {engine.lane_option: utube}):
                    if checked is None:
                        extras = engine.extras_of(options) if key else None
                        entry = engine.add(now, data, pri, ttl, ttr, delay, utube, extras)
                    else:
                        entry = engine.put(now, data, checked)
                    task = snapshot(self.kind, self.tube, entry, engine.has_deadlines)
                    if (end_section := shared.end_section) is not None:
                        end_section(now)
                engine.busy = 0
                return task
            except BaseException as error:
                shared.recover(error)
                raise
            finally:
                lock.token[0] = True
                if shared.events:
                    shared.notify_listeners()

    def take(self) -> F | None:
        """Take the first available task; return None if there is none."""
        shared = self.shared
        engine = self._engine
        lock = self._lock
        task: F | None = None
        while True:
            if lock.waits:
                lock.let_in()
            for held in lock.attempts:
                if held:
                    break
                lock.wait()
            try:
                if engine.busy:
                    shared.repair()
                engine.busy = engine.next_take
                if self.closed_error is not None:
                    raise self.closed_error()
                now = 0
                if engine.uses_time:
                    now = self._micros()
                    if engine.timers.soonest <= now and shared.serve(now):
                        engine.busy = 0
                        if self._is_awaited:
                            return self._after_parts(self.take)
                        continue
                entry = engine.take(now, self.hold)
                if entry is not None:
                    task = snapshot(self.kind, self.tube, entry, engine.has_deadlines)
                    if (end_section := shared.end_section) is not None:
                        end_section(now or self._micros())
                engine.busy = 0
                return task
            except BaseException as error:
                shared.recover(error)
                raise
            finally:
                lock.token[0] = True
                if shared.events:
                    shared.notify_listeners()

    def ack(self, task: Any) -> F:
        """End a held task as done."""
        shared = self.shared
        engine = self._engine
        lock = self._lock
        while True:
            if lock.waits:
                lock.let_in()
            for held in lock.attempts:
                if held:
                    break
                lock.wait()
            try:
                if engine.busy:
                    shared.repair()
                engine.busy = engine.next_take
                if self.closed_error is not None:
                    raise self.closed_error()
                now = 0
                if engine.uses_time:
                    now = self._micros()
                    if engine.timers.soonest <= now and shared.serve(now):
                        engine.busy = 0
                        if self._is_awaited:
                            return self._after_parts(lambda: self.ack(task))
                        continue
                hold = self.hold
                is_task = task.__class__ is self.kind
                entry: Any = task._record if is_task else hold.get(task) if task.__class__ is int else None
                if entry is None or entry.hold is not hold or (is_task and entry.take != task._take):
                    entry = self.get_held(*self.resolve_task(task))
                if entry.extras is None and not engine.has_rate_limits:  # The body of `engine.ack`, to save a call.
                    engine._move(entry, engine._ack)
                else:
                    engine.ack(now, entry)
                done = snapshot(self.kind, self.tube, entry, engine.has_deadlines)
                is_task = is_task or isinstance(task, TaskView)
                if is_task and task._record is not entry:
                    keep_data(done, task, entry)  # pyright: ignore[reportUnknownArgumentType]
                if (end_section := shared.end_section) is not None:
                    end_section(now or self._micros())
                if is_task:
                    task._take = FINISHED
                engine.busy = 0
                return done
            except BaseException as error:
                shared.recover(error)
                raise
            finally:
                lock.token[0] = True
                if shared.events:
                    shared.notify_listeners()

    def next(self, task: object) -> F | None:
        """End a held task as done and take the next one; return None if there is none. A lost task is logged."""
        try:
            ended = self.ack(task)
        except TaskNotTaken as lost:
            log_lost_take(lost)
        else:
            if asyncio.iscoroutine(ended):
                return cast("F", self._take_after(ended))
        return self.take()

    async def _take_after(self, ended: Coroutine[Any, Any, F]) -> F | None:
        try:
            await ended
        except TaskNotTaken as lost:
            log_lost_take(lost)
        return await _result_of(self.take())

    def put_all(self, now: int, batch: Batch) -> list[F]:
        """Put a batch for which there is room. Under the lock."""
        engine = self._engine
        batch.check_size(engine.capacity)
        engine.check_ranks(now, batch)
        if batch.max_waiting is not None:
            engine.check_waiting(now, batch, batch.max_waiting)
        if batch.has_keys:
            engine.count_new(now, batch)
            # Take the snapshot at once: a later item may replace the task.
            return [self.show(engine.put(now, data, options)) for data, options in batch]
        kind, tube = self.kind, self.tube
        entries = put_many(engine, now, batch.runs)
        # Read `engine.has_deadlines` only now: the batch may have the first task with a ttl.
        return [snapshot(kind, tube, entry, engine.has_deadlines) for entry in entries]

    def put_waiting(self, now: int, request: Batch | PreparedPut) -> F | list[F]:
        """Run the put of a waiter, now that there is room. Under the lock."""
        if isinstance(request, Batch):
            return self.put_all(now, request)
        return self.show(self._engine.put(now, *request))

    def _put_if_room(self, request: PreparedPut) -> F | None:
        shared = self.shared
        return self._do(lambda now: self.show(self._engine.put(now, *request)) if shared.admits(now, request) else None)

    def _do(self, act: Callable[[int], T], then: Callable[[T], T] | None = None) -> T:
        """Move due tasks and call `act` under the lock; then serve waiters and call listeners.

        Returns the result, or what `then` returns for it. If many tasks are due, it returns a coroutine in the asyncio
        API: see `_after_parts`.
        """
        shared = self.shared
        engine = self._engine
        lock = self._lock
        while True:
            lock.acquire()
            try:
                if engine.busy:
                    shared.repair()
                engine.busy = engine.next_take
                if self.closed_error is not None:
                    raise self.closed_error()
                now = self._micros()
                if engine.timers.soonest <= now and shared.serve(now):
                    engine.busy = 0
                    if self._is_awaited:
                        return self._after_parts(lambda: self._do(act, then))
                    continue
                result = act(now)
                if (end_section := shared.end_section) is not None:
                    end_section(now)
                engine.busy = 0
                break
            except BaseException as error:
                shared.recover(error)
                raise
            finally:
                lock.token[0] = True
                if shared.events:
                    shared.notify_listeners()
        return result if then is None else then(result)

    def _after_parts(self, call: Callable[[], T]) -> T:
        """Return a coroutine that does all parts of the due work, and then makes a call.

        The event loop runs between two parts. The type is that of the API for threads, as for all methods of ports.
        """

        async def do_parts() -> T:
            has_more = True
            while has_more:
                await asyncio.sleep(0)
                has_more = self.shared.do_part()
            return await _result_of(call())

        return cast("T", do_parts())

    def _do_part(self, act: Callable[[int], bool]) -> bool:
        """Do a part of the due work, or call `act` if there is none; return True if there is more to do."""
        shared = self.shared

        def act_and_end(now: int) -> bool:
            if self.closed_error is not None:
                return False
            has_more = act(now)
            if shared.end_section is not None:
                shared.end_section(now)
            return has_more

        has_more = shared.do_part(act_and_end)
        if self.closed_error is not None:
            raise self.closed_error()
        return has_more

    # -- waiting -------------------------------------------------------------------------------------------------------

    def enlist(self, waiter: Waiter) -> None:
        """Serve the waiter at once if possible, else put it at the end of its line."""
        waiter.owner = self
        if waiter.span is not None:
            self.require_option("ttr")

        shared = self.shared

        def act(now: int) -> None:
            if waiter.timeout is not None:
                waiter.deadline = now + waiter.timeout
            shared.enlist(waiter)
            shared.serve(now)  # If more tasks are due, the alarm moves them.

        self._lock.acquire()
        try:
            if self.closed_error is not None:
                raise self.closed_error()
            shared.run(act, self._micros())
        finally:
            self._lock.token[0] = True
        shared.notify_listeners()

    def withdraw(self, waiter: Waiter, *, undo: bool) -> object:
        """Remove the waiter from its line and return its result, else None; with `undo`, undo the result."""
        shared = self.shared
        waiter.owner = self  # The call may have been interrupted before `enlist`.
        self._lock.acquire()
        try:
            shared.remove_waiter(waiter)  # First, so that a repair does not serve it.
            shared.run(lambda now: shared.withdraw(waiter, now, undo=undo), self._micros())
        finally:
            self._lock.token[0] = True
        shared.notify_listeners()
        return None if waiter.result is PENDING else waiter.result

    def must_keep_waiting(self, waiter: Waiter) -> bool:
        """Return False: in memory there is no disk to wait for."""
        return False

    def abandon(self, waiter: Waiter) -> None:
        """Withdraw and undo a moment later. For finalizers, which may run in the middle of a method."""
        if not self._store.forked:  # In a fork the waiter belongs to the parent.
            self.shared.later(lambda: self.withdraw(waiter, undo=True))


async def _result_of(reply: Soon[T]) -> T:
    return cast("T", await reply if asyncio.iscoroutine(reply) else reply)


def run_parts(parts: Iterator[object], finish: Callable[[], T], api: ApiKind) -> Any:
    """Do work in parts, one for each step of the iterator, and return what `finish` returns.

    In the asyncio API it returns a coroutine if there is more than one part: the event loop runs between two parts.
    """
    end = object()

    async def take_turns() -> T:
        while await asyncio.sleep(0, next(parts, end)) is not end:
            pass
        return finish()

    while next(parts, end) is not end:
        if api.awaited:
            return take_turns()
    return finish()


def keep_data(result: TaskView, task: TaskView, entry: Entry) -> None:
    """Give `result` the data that its holder has, if the task was updated since its take."""
    if task._record.data is not entry.data:
        record = entry.copy()
        record.hold = record.index = None  # Only the tube's own entry has a hold and an index.
        record.data = task._record.data
        result._record = record
