# Made of sync.py by .ci/make_aio.py (`make aio`): change that file, or its rules.
"""The API for asyncio: `connect`, `AsyncQueue`, `AsyncTube` and `AsyncTask`. The same names as for threads, awaited.

Waiting never blocks the event loop, and a cancelled take loses nothing. Threads and event loops may share one store:
each wakes the other.

>>> import asyncio, tubes.aio
>>> async def main():
...     async with tubes.aio.connect() as queue:
...         tube = await queue.create_tube("mail")
...         await tube.put("hello")
...         async with tube.taking(timeout=0) as task:
...             print(task.data)
>>> asyncio.run(main())
hello
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from types import CoroutineType, MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, overload
from uuid import UUID

from typing_extensions import Unpack

from tubes import calls, connecting
from tubes.backend.clock import Clock
from tubes.backend.interface import ApiKind, AsyncConnection, AsyncPort
from tubes.backend.listeners import LoopListener, callback_of
from tubes.backend.port import how_if_exists
from tubes.backend.take_any import AnyOf, in_turn, listed
from tubes.backend.url import DEFAULT_URL
from tubes.backend.waiters import EMPTY, LoopWaiter
from tubes.drivers.driver import Driver
from tubes.drivers.options import KEEP, Seconds, delay_of, micros, seconds
from tubes.drivers.tube_options import shown
from tubes.errors import NothingReady, QueueClosed, QueueForked, TubeExists, TubeNotFound, TubesError
from tubes.values.batch import Item, check_limit
from tubes.values.codecs import Codec
from tubes.values.lane import Utube
from tubes.values.options import PutOptions, TaskOptions, TubeOptions
from tubes.values.overview import Overview
from tubes.values.problem import Problem
from tubes.values.statistics import Statistics
from tubes.values.task import FINISHED, R, T, TaskView, log_lost
from tubes.values.task_data import TASKS, TASKS_OPTIONS, call_of
from tubes.values.worker_info import FORGOTTEN, WORKERS, WorkerInfo, info_of

if TYPE_CHECKING:
    import redis

    from tubes.sync import Queue

P = ParamSpec("P")


def connect(
    url: str | redis.Redis | redis.RedisCluster | AsyncQueue | Queue = DEFAULT_URL,
    *,
    codec: str | Codec | None = None,
    clock: Clock | None = None,
    session_ttl: Seconds | None = None,
    connect_timeout: Seconds | None = None,
) -> AsyncQueue:
    """Connect to a queue. The connection is a session, which owns the tasks that it takes.

    `url`: `memory://` is private to the returned AsyncQueue and the sessions made from it; `memory://name` is shared by
    name in the process and lives as long as it. `redis://`, `rediss://`, `unix://`, `redis+sentinel://` and
    `redis+cluster://` name servers, `?prefix=` a key space there; a client of redis-py does too. A queue, of threads or
    of asyncio: another session on the same, with its codec, clock and `session_ttl`. Without a URL that of the
    environment variable `TUBES_URL` is used, and `memory://` if it is not set.
    `codec`: `json`, `raw`, `msgpack` or a `Codec`. None: `memory://` keeps objects as they are, a server has JSON.
    `clock`: None for the machine's; a `tubes.testing.ManualClock` for tests.
    `session_ttl`: seconds for which a session outlives a connection that was lost without `close`; on a server at least
    0.1. None: 30.
    `connect_timeout`: seconds for which a server that does not answer is tried. None: 10.

    A URL may give `codec`, `session_ttl` and `connect_timeout` too, as in `redis://localhost?session_ttl=5`; an
    argument overrides it.

    Raises `InvalidOption` for a URL, codec or option that is not understood, `ConnectionLost` where no server answers.

    `tubes.connect` shows an example.
    """
    given = connecting.Arguments(codec, clock, session_ttl, connect_timeout)
    return AsyncQueue(connecting.connect(url, given, ApiKind(AsyncTask, AsyncTube, awaited=True)))


class AsyncQueue:
    """A session with a queue: its tubes, and what it has taken from them. Safe to share between event loops.

    `connect` and `session` make it. With `async with` it is closed at the end. Every method raises `QueueClosed` once
    it is closed, and `QueueForked` in a forked child.
    """

    def __init__(self, connection: AsyncConnection[AsyncTask]) -> None:
        self._connection = connection
        # The tubes of `enqueue`.
        self._task_tubes: dict[str, AsyncTube] = {}

    async def create_tube(
        self,
        name: str,
        driver: str | Driver = "fifo",
        *,
        if_not_exists: bool = False,
        if_exists: Literal["raise", "keep", "update"] | None = None,
        temporary: bool = False,
        **options: Unpack[TubeOptions],
    ) -> AsyncTube:
        """Create a tube. O(1).

        `name`: 1 to 255 letters, digits and any of `_ - . : + / ; $ ( )`, as in `mails:high`.
        `driver`: a registered name, or a `Driver`, which is registered with it.
        `if_exists`: what happens if the tube exists. "raise", the default, raises `TubeExists`. "keep" returns the tube
        with the options that it has. "update" gives it these options, as `AsyncTube.alter` does: those that are left
        out go back to their defaults, so the tube has what the program says. Both raise `TubeExists` if it has another
        driver.
        `if_not_exists`: True returns the tube if it has this driver and exactly these options, and else raises
        `TubeExists`. It cannot be given together with `if_exists`.
        `temporary`: it need not outlive a restart of the server; in memory nothing does.
        `options`: defaults for the tube's tasks, as far as the driver knows them: `ttl`, `ttr` (seconds; ttr is the
        tube's ttl if left out) and `pri`. And, for any driver: `capacity`, the number of tasks that have room (0: any
        number, the default, for `limfifottl` too), `max_attempts` and `key_ttl`, see `AsyncTube.put`. Where tasks can
        be delayed, `backoff`: a `Backoff`, or a list of seconds: how long a task rests after an attempt that failed.
        Where there are lanes: `max_in_flight`, how many tasks of one are taken at a time (1); `interval`, the seconds
        from one start in it to the next (0); `jitter`, by up to which fraction, 0 to 1, an interval is longer (0), also
        one that `configure` sets; `order` between lanes: "fifo", by their first tasks, or "round_robin", first the lane
        whose last start is longest ago.

        Raises `TubeExists`, `DriverNotFound`, `DriverExists`, `OptionNotSupported` and `InvalidOption`.

        `Queue.create_tube` shows an example.
        """
        answer = self._connection.create(name, driver, how_if_exists(if_not_exists, if_exists), temporary, options)
        port = await answer if type(answer) is CoroutineType else answer
        tube: AsyncTube = port.tube
        return tube

    async def tube(self, name: str) -> AsyncTube:
        """Return the tube of this name. Raises `TubeNotFound` if there is none. O(1)."""
        answer = self._connection.find(name)
        port = await answer if type(answer) is CoroutineType else answer
        tube: AsyncTube = port.tube
        return tube

    async def tubes(self) -> list[str]:
        """Return the names of all tubes, sorted."""
        answer = self._connection.names()
        return await answer if type(answer) is CoroutineType else answer

    @overload
    async def enqueue(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> AsyncTask: ...
    @overload
    async def enqueue(self, function: str, /, *args: Any, **kwargs: Any) -> AsyncTask: ...
    async def enqueue(self, function: Any, /, *args: Any, **kwargs: Any) -> AsyncTask:
        """Put a task that calls a function with these arguments: one that a worker has by `Worker.task`.

        `function`: the function, whose tube it is put into and whose signature the arguments are checked against; or
        its name, for programs that do not import it: then it is put into the tube `tasks`.
        `args`, `kwargs`: its arguments. On a server they are JSON, unless the queue has another codec.

        Where a delay, a key or another option is needed, or another tube: `tube.put(task_data(function, …), delay=60)`.
        The tube `tasks` is made if it is not there: a `fifottl` with `ttr=60`, `max_attempts=3` and a backoff of 1, 5,
        25, … seconds. Costs a `put`; the first one finds the tube.

        Raises `InvalidOption` for arguments that the function does not take, and what `put` raises.

        `Queue.enqueue` shows an example.
        """
        name, data = call_of(function, args, kwargs)
        tube = self._task_tubes.get(name) or await self._task_tube(name)
        try:
            return await tube.put(data)
        except TubeNotFound:  # It was dropped, and perhaps made anew.
            tube = await self._task_tube(name)
            return await tube.put(data)

    async def _task_tube(self, name: str) -> AsyncTube:
        """Find a tube of task functions; the one that needs no name is made where it is missing."""
        tube: AsyncTube | None = None
        while tube is None:
            try:
                tube = await self.tube(name)
            except TubeNotFound:
                if name != TASKS:
                    raise
                with suppress(TubeExists):  # Somebody else has made it since.
                    tube = await self.create_tube(name, "fifottl", **TASKS_OPTIONS)
        self._task_tubes[name] = tube
        return tube

    @overload
    async def statistics(self, name: str) -> Statistics: ...
    @overload
    async def statistics(self, name: None = None) -> dict[str, Statistics]: ...
    async def statistics(self, name: str | None = None) -> Statistics | dict[str, Statistics]:
        """Return the `Statistics` of one tube, or without a name those of all tubes by name. Raises `TubeNotFound`."""
        if name is not None:
            tube = await self.tube(name)
            return await tube.statistics()
        found: dict[str, Statistics] = {}
        for name in await self.tubes():
            with suppress(TubeNotFound):  # It was dropped meanwhile.
                found[name] = await self.statistics(name)
        return found

    async def overview(self, *, ages: bool = False) -> dict[str, Overview]:
        """Return an `Overview` of each tube, by name: for monitors.

        On a server one call of a script looks at 200 tubes, in a cluster at one. It opens no session in the tubes, and
        leaves what is due as it is: see `Overview.due_lag`. O(1) for each tube, in memory O(n) of the lanes and
        sessions.
        `ages`: include `oldest_ready_age`, which costs one more call for each tube that has a ready task. It is None
        also where this process does not know the tube's driver.

        `Queue.overview` shows an example.
        """
        answer = self._connection.overview(ages)
        return await answer if type(answer) is CoroutineType else answer

    async def workers(self) -> list[WorkerInfo]:
        """Return the workers that run on this queue, in whatever process, by host and process: see `WorkerInfo`.

        A `tubes.worker.Worker` describes itself when it begins to run (a burst: when it has run for five seconds), then
        every five seconds, and takes that away when it ends. One whose process has died is listed for up to fifteen
        seconds. In the memory of a process, its own workers. O(n) of the workers.

        `Queue.workers` shows an example.
        """
        tube = await self._workers_tube()
        found: list[WorkerInfo] = []
        start = 0
        while tasks := await tube.tasks(start):
            start = tasks[-1].id + 1
            found += [info for task in tasks if (info := info_of(task.data, task.created)) is not None]
        return sorted(found, key=lambda info: (info.host, info.pid, info.started))

    async def _workers_tube(self) -> AsyncTube:
        answer = self._connection.open_hidden(WORKERS, "fifottl", 2 * FORGOTTEN)
        port = await answer if type(answer) is CoroutineType else answer
        tube: AsyncTube = port.tube
        return tube

    async def check(self, name: str) -> list[Problem]:
        """Return what is wrong with a tube: what its keys on the server say that cannot be; [] if nothing is.

        It changes nothing, and others go on working meanwhile: what it finds was so at one moment. O(n), in scripts
        that look at a few hundred tasks each. In memory it looks at everything at once.

        Raises `TubeNotFound`; `DriverNotFound` where an order of your own is not registered.

        `Queue.check` shows an example.
        """
        answer = self._connection.examine(name, False)
        return await answer if type(answer) is CoroutineType else answer

    async def repair(self, name: str) -> list[Problem]:
        """Repair a tube, and return what was wrong with it, as `check` does. Others go on working meanwhile. O(n).

        It loses no task that can be read: one that stands nowhere becomes ready, delayed or buried, as its own fields
        say. It moves aside what cannot be read. A second repair finds nothing.

        Raises what `check` raises.
        """
        answer = self._connection.examine(name, True)
        return await answer if type(answer) is CoroutineType else answer

    async def take_any(
        self, tubes: Iterable[AsyncTube | str], timeout: Seconds | None = None, *, fair: bool = False
    ) -> AsyncTask | None:
        """Take the first task that may be taken from any of several tubes.

        `tubes`: tubes of this queue, or names, in order of preference: where several have a task, the first of them
        gives it. On a server a name costs a round trip more than a tube.
        `timeout`: seconds to wait for one; None: for ever; 0: not at all. A caller that waits stands in the line of
        every tube, and gets the first task of any of them; nothing polls. Returns None when the time is over.
        `fair`: each such call begins with the next tube of the list, so that one that is never empty lets the others
        have their turn.

        O(1) for each tube that is asked.

        Raises `TubeNotFound` if one is not there, or is dropped while the call waits, `InvalidOption` for an empty list
        and for a tube of another queue.

        `Queue.take_any` shows an example.
        """
        patience = None if timeout is None else micros("timeout", timeout)
        named: list[AsyncTube | str] = listed(tubes, fair, AsyncTube, self._connection)
        found = [await self.tube(one) if isinstance(one, str) else one for one in named]
        ports = in_turn([tube._port for tube in found], fair)
        task: AsyncTask | None
        for port in ports:
            answer = port.take()
            task = await answer if type(answer) is CoroutineType else answer
            if task is not None:
                return task
        return None if patience == 0 else await LoopWaiter(ports[0].clock, patience).wait(AnyOf(ports))

    async def session(self) -> AsyncQueue:
        """Open another session on the same queue. Each session is closed on its own."""
        return AsyncQueue(self._connection.sibling())

    async def identify(self, uuid: str | UUID | None = None) -> str:
        """Return the uuid of this session; with a uuid, join that session first.

        Connections of one session hold tasks together: what one takes another may ack. The session ends, and releases
        what it holds, when its last connection is closed. Joining leaves the session that this connection had.

        Raises `SessionNotFound` if there is no such session, `InvalidOption` if it is no uuid.
        """
        answer = self._connection.identify(uuid)
        return await answer if type(answer) is CoroutineType else answer

    async def register_driver(self, driver: Driver) -> None:
        """Let tubes be created with a driver of your own. Raises `DriverExists` if another one has its name."""
        self._connection.register(driver)

    async def detach(self) -> None:
        """Close the connection, but let its session live on for `session_ttl`: `identify(uuid)` can go on with it."""
        answer = self._connection.close(lost=True)
        if type(answer) is CoroutineType:
            await answer

    async def close(self) -> None:
        """End the session: its tasks are released at once, its waiting callers get `QueueClosed`. Twice is fine."""
        answer = self._connection.close()
        if type(answer) is CoroutineType:
            await answer

    @property
    def closed(self) -> bool:
        """Whether `close` or `detach` was called."""
        return self._connection.closed is not None

    async def __aenter__(self) -> Self:
        answer = self._connection.meet()
        if type(answer) is CoroutineType:
            await answer
        return self

    def __await__(self) -> Generator[Any, Any, Self]:
        return self.__aenter__().__await__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connection.url}{' closed' if self.closed else ''}>"


class AsyncTube(Generic[T, R]):
    """One tube, as one session sees it. Safe to share between event loops.

    `AsyncTube[Mail]` says to type checkers what data its tasks have, and `AsyncTube[Mail, Reply]` what a handler
    returns too: `mails: tubes.AsyncTube[Mail] = queue.create_tube("mails")`. Else both are `Any`. Nothing checks them
    at run time.

    Where a method takes a task it takes an `AsyncTask` or an id. An `AsyncTask` that was taken speaks for its own take
    only: when its time to run is over and the task was taken again, by whomever, its verbs raise `TaskNotTaken`.

    Where a method takes seconds it takes a number or a `datetime.timedelta`.

    Every method raises `QueueClosed` once the queue is closed, `TubeNotFound` once the tube is dropped, and
    `InvalidOption` for arguments that make no sense. A method that raises has changed nothing.
    """

    def __init__(self, port: AsyncPort[AsyncTask[T]]) -> None:
        self._port = port
        self.name = port.shared.name
        self.driver = port.shared.driver
        # In which fair call of `take_any` it was the first.
        self._first_in = 0

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that the tube was created with, or given by `alter`; read-only. O(1).

        It has only those that were given, in the units of `create_tube`: times are seconds, and `backoff` is a
        `Backoff` if one means the same, or else a list of seconds. So
        `create_tube("copy", tube.driver, **tube.options)` creates a tube that works in the same way.

        On a server these are the options as of the last call on this tube in this process. If another process may have
        altered it since, `queue.tube(name)` reads them again.

        `Tube.options` shows an example.
        """
        return MappingProxyType(shown(self._port.shared.options))

    # -- putting -------------------------------------------------------------------------------------------------------

    @overload
    async def put(self, data: T, *, timeout: None = None, **options: Unpack[PutOptions]) -> AsyncTask[T]: ...
    @overload
    async def put(self, data: T, *, timeout: Seconds | None, **options: Unpack[PutOptions]) -> AsyncTask[T] | None: ...
    async def put(
        self, data: T, *, timeout: Seconds | None = None, **options: Unpack[PutOptions]
    ) -> AsyncTask[T] | None:
        """Add a task. O(1); O(log n) where priorities are many.

        `options`, as far as the driver knows them:
        `utube`: the lane, a string;
        `pri`: the priority, 0 (first) to 4294967295;
        `delay`: seconds until the task becomes ready, by which its ttl is prolonged;
        `at`: instead, when it becomes ready: a `datetime` with a time zone. The queue's clock counts, on a server that
        of the server; a moment in the past means at once;
        `ttl`: seconds to live: past them a task that nobody has taken is removed; 0: at once;
        `ttr`: seconds to run: past them a taken task is ready again;
        and those that every driver knows:
        `max_attempts`: how often the task may be taken, 1 to 1048574: when the last attempt ends by release, by its
        ttr or with its session, the task is buried; None: what the tube says;
        `key`: a string: while a task of this key lives, in whatever state, the tube has no other. `on_duplicate` says
        what happens instead: `"keep"` returns the living task (`task.created_now` is False), `"replace"` deletes it
        and puts the new one, `"raise"` raises `DuplicateKey`;
        `key_ttl`: seconds for which the key is remembered after its task is gone: as if it lived, `"keep"` and
        `"raise"` add nothing; what `"keep"` returns then has the id of that task and the data of this put;
        `context`: a mapping of strings to strings that travels with the task, for trace ids and the like;
        `timeout`: seconds to wait for room, where the tube has a `capacity`. It returns None when the time is over, and
        has put nothing; 0: it does not wait. Without a timeout a put into a full tube raises `TubeFull`.

        Raises `TubeFull`, `OptionNotSupported` for an option that the driver lacks, `InvalidOption` for `on_duplicate`
        or `key_ttl` without a key, `CodecError` for data that the codec refuses.

        `Tube.put` shows an example.
        """
        if timeout is None:
            answer = self._port.put(data, options)
            task = await answer if type(answer) is CoroutineType else answer
            if task is None:
                raise self._port.full(1)
            return task
        patience = micros("timeout", timeout)
        if patience:
            waiter = LoopWaiter(self._port.clock, patience, self._port.prepare(data, options))
            waited: AsyncTask[T] | None = await waiter.wait(self._port)
            return waited
        answer = self._port.put(data, options)
        return await answer if type(answer) is CoroutineType else answer

    async def put_many(
        self, items: Iterable[T | Item[T]], *, timeout: Seconds | None = None, **options: Unpack[PutOptions]
    ) -> list[AsyncTask[T]]:
        """Add many tasks at once, all or none, and return them in the order of the items. Each is put as by `put`.

        `items`: data (a string must be in a list, an async iterable must be collected first), or
        `tubes.Item(data, **options)` where one has options of its own. All are checked and encoded before the first is
        put: an error says which item it is about.
        `options`: those of all items, where an `Item` does not say otherwise.
        `timeout`: seconds to wait until there is room for all of them, where the tube has a `capacity`. It returns []
        when the time is over, and has put nothing. Without a timeout a full tube raises `TubeFull`.

        On Redis a few thousand are one round trip; more are brought there first, and put by one call at the end.

        Raises what `put` raises, and `InvalidOption` for more items than the tube's `capacity`.

        `Tube.put_many` shows an example.
        """
        patience = None if timeout is None else micros("timeout", timeout)
        batch = self._port.gather(items, options)
        tasks: list[AsyncTask[T]] | None
        if patience:
            tasks = await LoopWaiter(self._port.clock, patience, batch).wait(self._port)
        else:
            answer = self._port.put_many(batch)
            tasks = await answer if type(answer) is CoroutineType else answer
        if tasks is None and patience is None:
            raise self._port.full(batch.size)
        return tasks or []

    async def call(self, data: T, timeout: Seconds | None = None, **options: Unpack[TaskOptions]) -> R:
        """Put a task, wait until a `tubes.worker.Worker` has handled it, and return what its handler has returned.

        `timeout`: seconds of real time to wait for the reply, and before that for room; None: for ever.
        `options`: those of `put`, but for `key`.

        The reply comes through a tube of this connection, which `tubes()` does not name. It is made with the first
        call, and dropped when nothing was called for some seconds or the queue is closed; on a server it goes by itself
        if this process dies. A first call costs two round trips more than others.

        Raises `CallFailed` with the handler's error when that was the last attempt: with `max_attempts=1` at the first
        one; while a task may be tried again the caller waits. `CallTimeout` when the time is over: the task stays and
        may still be done, and its reply is thrown away; where the driver has a ttl, `ttl=` ends it if nobody has begun
        it by then. `QueueClosed` when the queue is closed meanwhile; `ConnectionLost` when a server has come back
        without the task, since it has lost its last writes.

        `Tube.call` shows an example.
        """
        result: R = await calls.call_async(self, data, timeout, options)
        return result

    # -- taking --------------------------------------------------------------------------------------------------------

    async def take(self, timeout: Seconds | None = None) -> AsyncTask[T] | None:
        """Take the first task that may be taken. O(1), O(log n) at most.

        `timeout`: seconds to wait for one; None: for ever; 0: not at all. Callers that wait are served in the order in
        which they came. Returns None when the time is over.

        `Tube.take` shows an example.
        """
        if timeout.__class__ is int and timeout == 0:
            answer = self._port.take()
            return await answer if type(answer) is CoroutineType else answer
        patience = None if timeout is None else micros("timeout", timeout)
        answer = self._port.take()
        task: AsyncTask[T] | None = await answer if type(answer) is CoroutineType else answer
        if task is None and patience != 0:
            task = await LoopWaiter(self._port.clock, patience).wait(self._port)
        return task

    async def take_many(self, limit: int, timeout: Seconds | None = None) -> list[AsyncTask[T]]:
        """Take as many tasks as there are, up to `limit`. Each is taken as by `take`, and in its order.

        `limit`: from 1 to 100,000.
        `timeout`: seconds to wait until there is at least one, as for `take`. Answers [] when the time is over.

        It takes no more tasks of one lane than may be taken at a time. On Redis a thousand are one round trip.

        `Tube.take_many` shows an example.
        """
        count = check_limit(limit)
        patience = None if timeout is None else micros("timeout", timeout)
        answer = self._port.take_many(count)
        tasks = await answer if type(answer) is CoroutineType else answer
        if not tasks and patience != 0:
            first = await LoopWaiter(self._port.clock, patience).wait(self._port)
            if first is not None:
                answer = self._port.top_up(first, count)
                tasks = await answer if type(answer) is CoroutineType else answer
        return tasks

    @asynccontextmanager
    async def taking(self, timeout: Seconds | None = None) -> AsyncGenerator[AsyncTask[T]]:
        """Take a task for a block: acked when the block ends, released when it raises. `NothingReady` if none came.

        Where having no task is nothing special, ask first: `if task := await tube.take(5):` and then
        `async with task:`.

        `Tube.taking` shows an example.
        """
        task = await self.take(timeout)
        if task is None:
            raise NothingReady(tube=self.name, timeout=None if timeout is None else seconds("timeout", timeout))
        async with task:
            yield task

    async def __aiter__(self) -> AsyncGenerator[AsyncTask[T]]:
        """Take tasks until the queue is closed. A task is acked when the loop comes back for the next one.

        Raises `TubeNotFound` when the tube is dropped. When the loop is left by `break` or by an exception, its last
        task is released, unless it was dealt with (with asyncio a moment later, when the loop's iterator is finalized).
        A task that was lost meanwhile, because its time to run was over or the queue was closed, is logged as a
        warning: ack a task yourself before you close the queue.
        """
        try:
            task = await self.take()
            while task is not None:
                try:
                    yield task
                except BaseException as error:
                    await task.__aexit__(type(error), error, None)
                    raise
                task = await self._after(task) or await self.take()
        except QueueForked:
            raise
        except QueueClosed:
            return

    async def _after(self, task: AsyncTask[T]) -> AsyncTask[T] | None:
        """Ack a task and take the next one; None if there is none. It leaves alone what was dealt with."""
        if task._take == FINISHED:
            return None
        try:
            answer = self._port.next(task)
            return await answer if type(answer) is CoroutineType else answer
        except QueueClosed as lost:
            log_lost(lost)
            raise

    async def wait_empty(self, timeout: Seconds | None = None) -> bool:
        """Wait until nothing is left to do in this tube. Returns False when the time is over first.

        The tube is empty when none of its tasks is ready, delayed or taken. So a task that waits for its next attempt
        counts; a buried one does not, nor does a put that waits for room. Others may put tasks before this returns.

        `timeout`: seconds to wait; None: for ever; 0: only look. Nothing polls: whatever ends a task wakes the caller,
        by whichever process, and so does the end of a ttl. On a server the caller hears the tube's events meanwhile, as
        `on_task_change` does. `statistics().waiting` does not count it, and `drop` does not mind it: it gets
        `TubeNotFound`. O(1).

        `Tube.wait_empty` shows an example.
        """
        patience = None if timeout is None else micros("timeout", timeout)
        answer = self._port.is_empty()
        is_empty: bool = await answer if type(answer) is CoroutineType else answer
        if is_empty or patience == 0:
            return is_empty
        ended = await LoopWaiter(self._port.clock, patience, EMPTY).wait(self._port)
        return ended is not None

    # -- what the taker does -------------------------------------------------------------------------------------------

    async def ack(self, task: AsyncTask[T] | int) -> AsyncTask[T]:
        """Finish a task: its work is done, it is removed. Raises `TaskNotTaken` unless this session has it. O(1)."""
        answer = self._port.ack(task)
        return await answer if type(answer) is CoroutineType else answer

    async def ack_many(self, tasks: Iterable[AsyncTask[T] | int]) -> dict[int, bool]:
        """Finish these tasks, each as by `ack`. Returns by id, in their order, whether the task was acked.

        False means that this session does not have it, or not by that take. On Redis a few thousand are one round trip.
        Raises `InvalidOption` for what is no task of this tube.

        `Tube.ack_many` shows an example.
        """
        answer = self._port.ack_many(tasks)
        return await answer if type(answer) is CoroutineType else answer

    async def release_many(
        self, tasks: Iterable[AsyncTask[T] | int], delay: Seconds | None = None, *, at: datetime | None = None
    ) -> dict[int, bool]:
        """Give these tasks back, each as by `release`. Returns by id, in their order, whether the task was released.

        Raises `OptionNotSupported` for a delay where the driver has none, `InvalidOption` for what is no task of this
        tube.

        `Tube.release_many` shows an example.
        """
        delay = delay_of(delay, at, self._port.connection.micros)
        answer = self._port.release_many(tasks, delay)
        return await answer if type(answer) is CoroutineType else answer

    async def release(
        self,
        task: AsyncTask[T] | int,
        delay: Seconds | None = None,
        *,
        at: datetime | None = None,
        reason: str | None = None,
    ) -> AsyncTask[T]:
        """Give the task back to its own place in the order, ahead of younger ones. O(log n).

        `delay`: seconds until it is ready again, by which its ttl is prolonged; None: as long as the tube's `backoff`
        says, which is not at all if it has none. A task that was taken for the last time, by its `max_attempts`, is
        buried instead. `reason`: why, for whoever looks at it then; None: that it was the last attempt.

        Raises `TaskNotTaken` unless this session has it, `OptionNotSupported` for a delay where the driver has none.
        """
        delay = delay_of(delay, at, self._port.connection.micros)
        answer = self._port.release(task, delay, reason)
        return await answer if type(answer) is CoroutineType else answer

    async def touch(self, task: AsyncTask[T] | int, seconds: Seconds) -> AsyncTask[T]:
        """Get so much more time to run; the task's ttl and ttr grow by it for good. 0 changes nothing. O(log n).

        However often it is called, it puts neither off beyond 200 years from now on, which is more than a put can ask
        for.

        Raises `TaskNotTaken` unless this session has it, `OptionNotSupported` where the driver has no ttr.
        """
        answer = self._port.touch(task, seconds)
        return await answer if type(answer) is CoroutineType else answer

    # -- what anybody may do -------------------------------------------------------------------------------------------

    async def bury(self, task: AsyncTask[T] | int, reason: str | None = None) -> AsyncTask[T]:
        """Put a task aside, whatever its state and whoever has it, until `kick`. O(log n).

        `reason`: why, for whoever looks at it later: `task.reason`.

        Its ttl runs on. Burying a buried one changes nothing. Raises `TaskNotFound` if there is none.
        """
        answer = self._port.bury(task, reason)
        return await answer if type(answer) is CoroutineType else answer

    async def kick(self, count: int = 1, *, attempts: int | None = None, ttl: Seconds | None = None) -> int:
        """Make up to so many buried tasks ready, in the order of their places; returns how many. O(log n) each.

        `attempts`: so many more attempts each; a task that has had its last one gets one more without it.
        `ttl`: seconds to live from now on; `task.ttl`, which counts from the put, is that much more than its age.

        Raises `OptionNotSupported` for a ttl where the driver has none.

        `Tube.kick` shows an example.
        """
        answer = self._port.kick(count, attempts, ttl)
        return await answer if type(answer) is CoroutineType else answer

    async def kick_task(
        self, task: AsyncTask[T] | int, *, attempts: int | None = None, ttl: Seconds | None = None
    ) -> AsyncTask[T]:
        """Make one buried task ready; one that is not buried stays as it is. See `kick`. O(log n).

        Raises `TaskNotFound` if there is none.
        """
        answer = self._port.kick_task(task, attempts, ttl)
        return await answer if type(answer) is CoroutineType else answer

    async def buried(self, limit: int = 100) -> list[AsyncTask[T]]:
        """Return the buried tasks (dead letters), up to so many, by their ids. `task.reason` says why each is buried.

        Those that were put first come first, whenever they were buried.

        O(limit) where tasks come by their ids alone, O(n) of the buried ones elsewhere.
        """
        answer = self._port.buried(limit)
        return await answer if type(answer) is CoroutineType else answer

    async def update(
        self,
        task: AsyncTask[T] | int,
        *,
        data: T = KEEP,
        pri: int = KEEP,
        delay: Seconds = KEEP,
        ttl: Seconds = KEEP,
        at: datetime | None = None,
    ) -> AsyncTask[T]:
        """Change a task, whatever its state and whoever has it. All is checked first, and done at once. O(log n).

        `data`: its new data; a caller that has taken it keeps the data that it was given.
        `pri`: its priority: it moves to the place that this gives it.
        `delay`: seconds from now until it is ready, of a ready or a delayed task; 0: at once. Its ttl does not change.
        `at`: instead, when it is ready: a `datetime` with a time zone, as for `put`.
        `ttl`: seconds to live from now on, of a task that nobody has taken; 0 ends it.
        Without any of them nothing happens: it is a `peek`.

        Raises `TaskNotFound` if there is none, `OptionNotSupported` for what the driver lacks, `InvalidOption` for a
        delay of a task that is taken or buried, and for a ttl of a taken one, which `touch` prolongs.

        `Tube.update` shows an example.
        """
        delay = delay_of(delay, at, self._port.connection.micros)
        changes = {"data": data, "pri": pri, "delay": delay, "ttl": ttl}
        answer = self._port.update(task, changes)
        return await answer if type(answer) is CoroutineType else answer

    async def peek(self, task: AsyncTask[T] | int) -> AsyncTask[T]:
        """Return the task as it is now; this changes nothing. Raises `TaskNotFound` if there is none. O(1)."""
        answer = self._port.peek(task)
        return await answer if type(answer) is CoroutineType else answer

    async def delete(self, task: AsyncTask[T] | int) -> AsyncTask[T]:
        """Remove a task, whatever its state and whoever has it. Raises `TaskNotFound` if there is none. O(1)."""
        answer = self._port.delete(task)
        return await answer if type(answer) is CoroutineType else answer

    async def renew_many(self, tasks: Iterable[AsyncTask[T] | int], seconds: Seconds) -> dict[int, bool]:
        """Let these tasks have at least so many seconds to run from now on. Returns by id whether this session has it.

        It keeps a task while it is worked on. Unlike `touch` it adds nothing, and a later take has the ttr that the
        task had. Where the ttl ends a taken task (not in `utubettl`) the ttl is prolonged as far as that needs. A task
        without ttr needs no renewal. On Redis a few thousand are one round trip. O(log n) each.

        Raises `OptionNotSupported` where the driver has no ttr, `InvalidOption` for what is no task of this tube.

        `Tube.renew_many` shows an example.
        """
        answer = self._port.renew_many(tasks, seconds)
        return await answer if type(answer) is CoroutineType else answer

    async def delete_many(self, tasks: Iterable[AsyncTask[T] | int]) -> dict[int, bool]:
        """Remove these tasks, each as by `delete`. Returns by id, in their order, whether there was one.

        `Tube.delete_many` shows an example.
        """
        answer = self._port.delete_many(tasks)
        return await answer if type(answer) is CoroutineType else answer

    async def release_all(self) -> None:
        """Release all taken tasks, whoever has them. O(n log n) of the taken ones."""
        answer = self._port.release_all()
        if type(answer) is CoroutineType:
            await answer

    async def truncate(self) -> None:
        """Remove all tasks, and what lanes remember; ids and counts go on, listeners hear nothing. O(n)."""
        answer = self._port.truncate()
        if type(answer) is CoroutineType:
            await answer

    async def alter(self, **changes: Unpack[TubeOptions]) -> None:
        """Change options of the tube while it is used; None takes an option back to its default.

        All changes are checked first and made at once. When the call has returned, every put and every take that begins
        goes by them, in all sessions, threads and processes. What is left out stays as it is.

        `ttl`, `ttr`, `pri`, `max_attempts`, `key_ttl`: the defaults of tasks that are put from now on. Tasks that are
        in the tube keep what they were put with.
        `backoff`: for every attempt that fails from now on. A task that rests already rests as long as it was told.
        `capacity`: puts that wait get the room that there is now. A smaller one removes no task.
        `interval`, `jitter`, `max_in_flight`: for all lanes at once, but for the limits that a lane has by `configure`.
        A lane that cools down does so as long as the new interval says, from its last start on.

        The driver and `order` cannot change while the tube lives: create another tube, and let workers empty this one.

        O(1). Changes of `interval`, `jitter` and `max_in_flight` are O(n) of the lanes: on a server the next calls do
        that, some lanes each, before anything else. Every process that uses the tube then reads its options again, with
        its next call.

        Raises `InvalidOption` and `OptionNotSupported` as `create_tube` does, and for what cannot change.

        `Tube.alter` shows an example.
        """
        answer = self._port.alter(dict(changes))
        if type(answer) is CoroutineType:
            await answer

    async def pause(self, seconds: Seconds | None = None) -> None:
        """Let nobody take from this tube for so many seconds; None: until `resume`. O(1).

        Takes, of whatever session and process, find nothing and wait; `take_any` goes on to its other tubes. All else
        goes on: puts, the verbs of those who have a task already, and time, so that ttl, ttr and delays run out.
        Callers that wait are served at the very end of the pause. Another `pause` sets another end, 0 ends it at once.
        `truncate` keeps it, `drop` forgets it; it belongs to the tube, and does not end with the session that asked for
        it. `statistics().paused` tells until when.

        `Tube.pause` shows an example.
        """
        answer = self._port.pause(seconds)
        if type(answer) is CoroutineType:
            await answer

    async def resume(self) -> None:
        """End a pause; callers that wait are served. A tube that does not pause stays as it is. O(1)."""
        answer = self._port.resume()
        if type(answer) is CoroutineType:
            await answer

    async def drop(self, *, force: bool = False) -> None:
        """Remove the tube and what is in it. O(n).

        Raises `TubeBusy` while tasks are taken or callers wait. `force`: do it all the same; callers that wait get
        `TubeNotFound`, and so do those who have a task.
        """
        answer = self._port.drop(force)
        if type(answer) is CoroutineType:
            await answer

    # -- lanes ---------------------------------------------------------------------------------------------------------

    async def block(self, utube: str, seconds: Seconds) -> None:
        """Let no task of a lane start for so many seconds: a host has answered 429, with Retry-After. O(log n).

        The block ends by itself, and callers that wait are served at that moment. Another one replaces it; 0 ends it,
        but not a cool-down. Tasks that are taken stay so. A lane without tasks can be blocked too.

        Raises `OptionNotSupported` where the driver has no lanes.

        `Tube.block` shows an example.
        """
        answer = self._port.block(utube, seconds)
        if type(answer) is CoroutineType:
            await answer

    async def configure(self, utube: str, *, interval: Seconds | None = KEEP, max_in_flight: int | None = KEEP) -> None:
        """Let a lane have limits of its own, instead of the tube's. O(log n).

        `interval`: seconds from one start to the next, 0: none; `max_in_flight`: how many of its tasks may be taken at
        a time, from 1. None: what the tube says; what is left out stays. A new limit counts at once: the next start is
        reckoned anew from the last one that is known, and a lane of which more are taken than it may have starts none
        until they are fewer. A lane that has no task ready or taken, and does not cool down, has forgotten its last
        start.

        Raises `OptionNotSupported` where the driver has no lanes.

        `Tube.configure` shows an example.
        """
        answer = self._port.configure(utube, interval, max_in_flight)
        if type(answer) is CoroutineType:
            await answer

    async def utubes(self, limit: int = 1000) -> list[Utube]:
        """Return the lanes, sorted by name, up to so many.

        These are the lanes with tasks that are ready or taken, those that cool down or are blocked, and those with
        limits of their own.

        O(n) of the lanes; for looking, not for working. Raises `OptionNotSupported` where the driver has no lanes.

        `Tube.utubes` shows an example.
        """
        answer = self._port.utubes(limit)
        return await answer if type(answer) is CoroutineType else answer

    # -- looking -------------------------------------------------------------------------------------------------------

    async def statistics(self) -> Statistics:
        """Return how many tasks there are by state, and what was done so far. O(1), O(n) of the sessions."""
        answer = self._port.statistics()
        return await answer if type(answer) is CoroutineType else answer

    async def tasks(self, start: int = 0, limit: int = 1000) -> list[AsyncTask[T]]:
        """Return the tasks, whatever their state, in the order of their ids: up to so many, from id `start` on.

        To see all of them go on from the last one's id plus 1, until the result is []. Looking changes nothing, so
        tasks come and go meanwhile: each page is of one moment, all of them together are not.

        O(limit) where few ids are missing between them, else O(n) in memory; on a server a page of up to 1000, 4 MB or
        5000 ids is one round trip.

        `Tube.tasks` shows an example.
        """
        answer = self._port.tasks(start, limit)
        return await answer if type(answer) is CoroutineType else answer

    async def oldest_ready_age(self) -> float | None:
        """Return how many seconds ago the oldest ready task was put, the one with the smallest id; None: there is none.

        The time for which it was delayed or taken counts, too. It is the first sign of a growing backlog. O(n) of the
        tasks that are older and not ready.
        """
        answer = self._port.oldest_ready_age()
        return await answer if type(answer) is CoroutineType else answer

    async def due_histogram(self, edges: Iterable[Seconds]) -> list[int]:
        """Count the tasks that move by themselves (delay, ttr or ttl over), by how soon.

        `edges`: seconds from now, ascending. Returns one number more than there are edges: the tasks that are due
        before the first, from the first on and before the second, …, from the last on. O(n), on a server O(log n) for
        each edge.

        `Tube.due_histogram` shows an example.
        """
        answer = self._port.due_histogram(edges)
        return await answer if type(answer) is CoroutineType else answer

    async def on_task_change(
        self, callback: Callable[[AsyncTask[T], str], object] | None
    ) -> Callable[[AsyncTask[T], str], object] | None:
        """Have `callback(task, event)` called for every change in this tube, whoever makes it; None: no more.

        Events: `put take release touch bury kick delete update ttl ttr delay`; an ack is a `delete` too. It is called
        after the change, in the order of the changes, one at a time, in the event loop that has asked for it: what
        takes long belongs elsewhere. What it raises is logged and harms nothing. Each `AsyncQueue` has one callback per
        tube, for as long as the `AsyncQueue` lives; this returns the one before.

        `Tube.on_task_change` shows an example.
        """
        answer = self._port.listen(callback, LoopListener)
        before = await answer if type(answer) is CoroutineType else answer
        return callback_of(before)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} ({self.driver.name}) of {self._port.url}>"


class AsyncTask(TaskView[T]):
    """A task of an `AsyncTube`: frozen facts, and the verbs on it.

    With `async with` it is acked when the block ends, and released when the block raises.

    `Task` shows an example.
    """

    __slots__ = ()
    _tube: AsyncTube[T]

    async def ack(self) -> AsyncTask[T]:
        """Finish the task. See `AsyncTube.ack`."""
        return await self._tube.ack(self)

    async def release(
        self, delay: Seconds | None = None, *, at: datetime | None = None, reason: str | None = None
    ) -> AsyncTask[T]:
        """Give the task back. See `AsyncTube.release`."""
        return await self._tube.release(self, delay=delay, at=at, reason=reason)

    async def touch(self, seconds: Seconds) -> AsyncTask[T]:
        """Get more time to work. See `AsyncTube.touch`."""
        return await self._tube.touch(self, seconds)

    async def bury(self, reason: str | None = None) -> AsyncTask[T]:
        """Put the task aside. See `AsyncTube.bury`."""
        return await self._tube.bury(self, reason)

    async def kick(self, *, attempts: int | None = None, ttl: Seconds | None = None) -> AsyncTask[T]:
        """Make the task ready, if it is buried. See `AsyncTube.kick_task`."""
        return await self._tube.kick_task(self, attempts=attempts, ttl=ttl)

    async def update(
        self,
        *,
        data: T = KEEP,
        pri: int = KEEP,
        delay: Seconds = KEEP,
        ttl: Seconds = KEEP,
        at: datetime | None = None,
    ) -> AsyncTask[T]:
        """Change the task. See `AsyncTube.update`."""
        return await self._tube.update(self, data=data, pri=pri, delay=delay, ttl=ttl, at=at)

    async def delete(self) -> AsyncTask[T]:
        """Remove the task. See `AsyncTube.delete`."""
        return await self._tube.delete(self)

    async def peek(self) -> AsyncTask[T]:
        """Return the task as it is now. See `AsyncTube.peek`."""
        return await self._tube.peek(self)

    async def __aenter__(self) -> AsyncTask[T]:
        self._check_taken()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._take == FINISHED:
            return
        if kind is None:
            await self.ack()
            return
        if kind is GeneratorExit:
            # Perhaps from the garbage collector, which may come in the middle of a verb, or when the loop has gone.
            self._tube._port.release_later(self)
            return
        with suppress(TubesError):  # The block's own error matters more; what was not released is lost already.
            if issubclass(kind, Exception):
                await self.release()
            else:  # It was interrupted or cancelled: the task has not failed.
                answer = self._tube._port.release_unfailed(self)
                if type(answer) is CoroutineType:
                    await answer
