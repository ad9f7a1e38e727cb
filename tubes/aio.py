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

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from types import CoroutineType, MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, overload
from uuid import UUID

from typing_extensions import Unpack

from tubes import calls, connecting
from tubes.backend.clock import Clock
from tubes.backend.interface import ApiKind, AsyncConnection, AsyncPort
from tubes.backend.listeners import LoopListener, callback_of
from tubes.backend.moving import MOVE_BATCH, check_target, items_of, smaller_batch_size
from tubes.backend.port import check_end, check_reason, combine_if_exists
from tubes.backend.selecting import (
    Filters,
    Scan,
    cancelled_tasks,
    changeable,
    changeable_tasks,
    check_filters,
    check_progress,
    narrowed,
    part_size,
    remaining,
    see_all,
)
from tubes.backend.take_any import AnyOf, check_tube_list, order_ports
from tubes.backend.url import DEFAULT_URL
from tubes.backend.waiters import TUBE_EMPTY, LoopWaiter, TaskEnd
from tubes.drivers.driver import Driver, check_namespace
from tubes.drivers.moves import State, check_states
from tubes.drivers.options import KEEP, NO_WAIT, Seconds, delay_of, integer, micros, seconds
from tubes.drivers.tube_options import as_arguments
from tubes.errors import (
    CallTimeout,
    InvalidOption,
    NothingReady,
    QueueClosed,
    QueueForked,
    TaskCancelled,
    TaskNotFound,
    TaskNotTaken,
    TubeExists,
    TubeFull,
    TubeNotFound,
    TubesError,
    did_you_mean,
)
from tubes.values.batch import Item, check_limit
from tubes.values.codecs import Codec
from tubes.values.lane import LaneInfo, lane_of
from tubes.values.options import PutOptions, TaskOptions, TubeOptions, put_options
from tubes.values.overview import FolderUsage, Overview
from tubes.values.problem import Problem
from tubes.values.reasons import by_kind
from tubes.values.statistics import Statistics
from tubes.values.task import CANCELLED, ENDED, R, T, TaskView, checkpoint_changes, log_lost_take
from tubes.values.task_data import SCHEDULES, TASKS, TASKS_OPTIONS, call_of, check_call
from tubes.values.worker_info import HEARTBEAT_TTL, WORKERS, WorkerInfo, infos_of

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

    `url`: `memory://` is private to the returned AsyncQueue and its other sessions; `memory://name` is shared by name
    within the process, and lives until it ends. `file:jobs` is a folder on the disk, created if missing, which one
    process may have open at a time: with `?sync=full` each call waits for the disk, so that a power cut loses nothing;
    `?mode=read` reads its current state, also while another process has it open. `redis://`, `rediss://`, `unix://`,
    `redis+sentinel://` and `redis+cluster://` name servers; `?prefix=` selects a key space. `?namespace=` selects a
    namespace, see `AsyncQueue.namespace`. The URL may also be a client of redis-py, or a queue for threads or asyncio:
    then another session on the same store is opened, with its codec, clock and `session_ttl`. The default is the
    environment variable `TUBES_URL`, or `memory://` if it is not set.
    `codec`: `json`, `raw`, `msgpack` or a `Codec`. None: `memory://` stores objects unchanged, a folder or server JSON.
    `clock`: None for the system clock; a `tubes.testing.ManualClock` for tests.
    `session_ttl`: seconds that a session outlives a connection that was lost without `close`; at least 0.1 on a server.
    None: 30. In memory and in a folder the session ends with the process.
    `connect_timeout`: seconds to wait for a server that does not reply. None: 10. A warning is logged after 2.

    A URL may set `codec`, `session_ttl` and `connect_timeout`, as in `redis://localhost?session_ttl=5`. An argument
    overrides the URL.

    Raises `InvalidOption` for a bad URL, codec or option, and `ConnectionLost` if no server replies. For a folder it
    raises `StoreBusy` if another process has it open, and `StoreFailed` if it cannot be read or written. Opening a
    folder takes about two seconds per million tasks.

    `tubes.connect` shows an example.
    """
    arguments = connecting.Arguments(codec, clock, session_ttl, connect_timeout)
    return AsyncQueue(connecting.connect(url, arguments, ApiKind(AsyncTask, AsyncTube, awaited=True)))


class AsyncQueue:
    """A session with a store: its tubes, and the tasks that it holds. Safe to share between event loops.

    `connect` and `session` create queues. An `async with` block closes the queue at its end. Every method raises
    `QueueClosed` once the queue is closed, and `QueueForked` in a forked child.
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
            Names that start with `tubes.`, or are `reply.` and 26 hex digits, are reserved for the library.
        `driver`: a registered name, or a `Driver`, which is registered as well.
        `if_exists`: what to do if the tube exists. "raise", the default, raises `TubeExists`. "keep" returns the tube
        with its current options. "update" sets these options, as `AsyncTube.alter` does, and resets all other options
        to their defaults. "keep" and "update" raise `TubeExists` if the tube has another driver.
        `if_not_exists`: True returns the tube if it has this driver and exactly these options, and otherwise raises
        `TubeExists`. It cannot be combined with `if_exists`.
        `temporary`: the tube need not survive a restart of the server. In memory no tube does.
        `options`: defaults for the tube's tasks, as far as the driver has them: `ttl`, `ttr` (seconds; the default of
        ttr is the tube's ttl) and `pri`. For any driver: `capacity`, the maximum number of tasks (0, the default, also
        of `limfifottl`: no limit), `max_attempts`, `key_ttl` and `keep_done`, see `AsyncTube.put`, and `keep_done_max`,
        the maximum number of kept done tasks. For drivers with a ttl: `buried_ttl`, the lifetime of a task from its
        burial; `math.inf`: forever. For drivers with delays: `backoff`, the delay after a failed attempt: a `Backoff`,
        or a list of seconds. For drivers with lanes: `lane_capacity`, the maximum number of tasks in each lane (0, the
        default: no limit); `max_in_flight`, the number of tasks of a lane that may be taken at a time (1); `interval`,
        the seconds from one take in a lane to the next (0); `lane_rate`, the same as takes per second or a text such as
        "10/s"; `lane_burst`, with an interval: how many takes of a lane may start at once after an idle time (1; it
        counts as 1 while an interval counts from the end of a run); `interval_from`: "take" (the default), or "ack", if
        an interval must also pass after each run in the lane has ended, by ack, release, bury, delete or ttr; `jitter`,
        the fraction, 0 to 1, by which an interval may be longer, at random (0), also for intervals that `configure`
        sets; `order`, the order of lanes: "fifo", by their first tasks, or "round_robin", the lane with the oldest last
        take first. For any driver: `rate`, the largest rate of takes in all sessions together, as takes per second or a
        text such as "500/min" (also /s, /h and /day; None and 0, the default: no limit), and with it `burst`, how many
        takes may start at once after an idle time (1). Every attempt counts.

        Raises `TubeExists`, `DriverNotFound`, `DriverExists`, `OptionNotSupported` and `InvalidOption`.

        `Queue.create_tube` shows an example.
        """
        reply = self._connection.create(name, driver, combine_if_exists(if_not_exists, if_exists), temporary, options)
        port = await reply if type(reply) is CoroutineType else reply
        tube: AsyncTube = port.tube
        return tube

    async def tube(self, name: str) -> AsyncTube:
        """Return the tube of this name. O(1). Raises `TubeNotFound`, which suggests a similar name if there is one."""
        try:
            return await self._find_tube(name)
        except TubeNotFound:
            known: list[str] = []
            with suppress(TubesError):  # The user may lack the right to list tubes.
                known = await self.tubes()
            raise TubeNotFound(name=name, hint=did_you_mean(name, known)) from None

    async def _find_tube(self, name: str) -> AsyncTube:
        """Return the tube of this name, without a suggestion in the error: for code that expects `TubeNotFound`."""
        reply = self._connection.find(name)
        port = await reply if type(reply) is CoroutineType else reply
        tube: AsyncTube = port.tube
        return tube

    async def tubes(self) -> list[str]:
        """Return the names of all tubes, sorted."""
        reply = self._connection.names()
        return await reply if type(reply) is CoroutineType else reply

    async def namespace(self, name: str) -> AsyncQueue:
        """Open another session, on the tubes of a namespace of the same store.

        `name`: as for a tube, 1 to 255 letters, digits and any of `_ - . : + / ; $ ( )`. "": the tubes without a
            namespace, which `connect` opens if the URL has no `?namespace=`.

        A namespace has its own tubes, statistics, events, limits, workers and sessions, separate from all others. It
        exists as long as it has a tube. Namespaces do not nest: on a queue of any namespace, this method opens the
        namespace `name` of the store. It costs a session.

        Raises `InvalidOption` for a bad name.

        `Queue.namespace` shows an example.
        """
        return AsyncQueue(self._connection.sibling(None, check_namespace(name)))

    @overload
    async def enqueue(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> AsyncTask: ...
    @overload
    async def enqueue(self, function: str, /, *args: Any, **kwargs: Any) -> AsyncTask: ...
    async def enqueue(self, function: Any, /, *args: Any, **kwargs: Any) -> AsyncTask:
        """Put a task that calls a task function, see `Worker.task`, with these arguments.

        `function`: the function, whose signature checks the arguments and whose tube gets the task. Or its name, for
        programs that do not import the function: then the tube `tasks` gets the task.
        `args`, `kwargs`: its arguments. They are stored as JSON, unless the queue has another codec. In memory without
        a codec they are stored unchanged, but must be possible in JSON, so that they also work on a server.

        For a delay, a key, another option or another tube see `enqueue_with`. The tube `tasks` is created if it does
        not exist: a `fifottl` with `ttr=60`, `max_attempts=3` and a backoff of 1, 5, 25, … seconds. Costs a `put`; the
        first call also looks up the tube.

        Raises `InvalidOption` if the arguments do not fit the function, `CodecError` if they cannot be encoded, and
        what `put` raises.

        `Queue.enqueue` shows an example.
        """
        return await self._enqueue(function, args, kwargs, None, {})

    def enqueue_with(self, *, tube: AsyncTube | str | None = None, **options: Unpack[PutOptions]) -> AsyncEnqueuer:
        """Return `enqueue` with these options of `AsyncTube.put`: `queue.enqueue_with(delay=60)(send_email, "ann")`.

        `tube`: the tube, or its name, that gets the task; None: as for `enqueue`.

        The options are apart from the arguments of the function, whose names they may share. The call raises what
        `enqueue` raises.

        `Queue.enqueue_with` shows an example.
        """
        if not (tube is None or isinstance(tube, (AsyncTube, str))):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(option="tube", value=tube, rule="must be a tube or its name")
        return AsyncEnqueuer(self, tube, options)

    async def _enqueue(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        where: AsyncTube | str | None,
        options: PutOptions,
    ) -> AsyncTask:
        name, data = call_of(function, args, kwargs)
        if where is None:
            where = name
        tube = where if isinstance(where, AsyncTube) else self._task_tubes.get(where) or await self._task_tube(where)
        if tube._port.codec is None:
            check_call(data, args, kwargs)
        try:
            return await tube.put(data, **options)
        except TubeNotFound:
            if isinstance(where, AsyncTube):
                raise
            tube = await self._task_tube(where)  # It was dropped, and perhaps created again.
            return await tube.put(data, **options)

    async def _task_tube(self, name: str) -> AsyncTube:
        """Find a tube of task functions. The default tubes are created if they do not exist."""
        tube: AsyncTube | None = None
        while tube is None:
            try:
                tube = await self._find_tube(name)
            except TubeNotFound:
                if name not in (TASKS, SCHEDULES):
                    raise
                with suppress(TubeExists):  # Another process has created it since.
                    tube = await self.create_tube(name, "fifottl", **TASKS_OPTIONS)
        self._task_tubes[name] = tube
        return tube

    @overload
    async def statistics(self, name: str) -> Statistics: ...
    @overload
    async def statistics(self, name: None = None) -> dict[str, Statistics]: ...
    async def statistics(self, name: str | None = None) -> Statistics | dict[str, Statistics]:
        """Return the `Statistics` of one tube, or of all tubes by name if no name is given. Raises `TubeNotFound`."""
        if name is not None:
            tube = await self.tube(name)
            return await tube.statistics()
        found: dict[str, Statistics] = {}
        for name in await self.tubes():
            with suppress(TubeNotFound):  # The tube was dropped meanwhile.
                found[name] = await self.statistics(name)
        return found

    @overload
    async def take_any(
        self,
        tubes: Iterable[AsyncTube[T, Any]],
        timeout: Seconds | None = None,
        *,
        fair: bool = False,
        ttr: Seconds | None = None,
        order: Literal["tubes", "pri"] = "tubes",
    ) -> AsyncTask[T] | None: ...
    @overload
    async def take_any(
        self,
        tubes: Iterable[AsyncTube | str],
        timeout: Seconds | None = None,
        *,
        fair: bool = False,
        ttr: Seconds | None = None,
        order: Literal["tubes", "pri"] = "tubes",
    ) -> AsyncTask | None: ...
    async def take_any(
        self,
        tubes: Iterable[AsyncTube | str],
        timeout: Seconds | None = None,
        *,
        fair: bool = False,
        ttr: Seconds | None = None,
        order: Literal["tubes", "pri"] = "tubes",
    ) -> AsyncTask | None:
        """Take the first available task from any of several tubes.

        `tubes`: tubes of this queue, or names, in order of preference: the first tube with a task provides it. On a
        server a name costs one more round trip than a tube.
        `timeout`: seconds to wait; None: forever; 0: do not wait. A waiting call gets the first task that becomes
        available in any of the tubes; each tube serves its waiters in the order of arrival. It does not poll.
        Returns None on timeout.
        `fair`: each call starts with the next tube of the list, so that a busy tube does not starve the others.
        `ttr`: seconds to run for this take, as for `AsyncTube.take`.
        `order`: "pri" takes the task with the smallest priority, then the smallest id, among the first tasks of all
        tubes. The call first looks at all tubes, and then takes from one of them.

        O(1) for each tube.

        Raises `TubeNotFound` if a tube does not exist, or is dropped while the call waits, and `InvalidOption` for an
        empty list or a tube of another queue.

        `Queue.take_any` shows an example.
        """
        patience = None if timeout is None else micros("timeout", timeout)
        named: list[AsyncTube | str] = check_tube_list(tubes, fair, AsyncTube, self._connection, order)
        found = [await self._find_tube(one) if isinstance(one, str) else one for one in named]
        ports = order_ports([tube._port for tube in found], fair)
        task: AsyncTask | None
        if order == "pri":
            task = await self._take_by_pri(found, ttr)
            if task is not None:
                return task
        for port in ports if order == "tubes" else ():
            if ttr is None:
                reply = port.take()
                task = await reply if type(reply) is CoroutineType else reply
            else:
                tube: AsyncTube = port.tube
                task = await tube.take(0, ttr=ttr)
            if task is not None:
                return task
        if patience == 0:
            return None
        waiter = LoopWaiter(ports[0].clock, patience)
        if ttr is None:
            task = await waiter.wait(AnyOf(ports))
            return task
        tasks = await waiter.wait(AnyOf(ports), partial(AsyncTask._top_up, limit=1, span=micros("ttr", ttr)))
        return tasks[0] if tasks else None

    async def _take_by_pri(self, tubes: list[AsyncTube], ttr: Seconds | None) -> AsyncTask | None:
        """Take the task with the smallest priority, then the smallest id, among the first tasks of these tubes."""
        while True:
            places: list[tuple[tuple[int, int], int]] = []
            for number, tube in enumerate(tubes):
                place = await tube._first()
                if place is not None:
                    places.append((place, number))
            if not places:
                return None
            first = tubes[min(places)[1]]
            task = await first.take(0, ttr=ttr)
            if task is not None:  # Otherwise another caller has taken it meanwhile.
                return task

    async def take_many(
        self,
        tubes: Iterable[AsyncTube | str],
        limit: int,
        timeout: Seconds | None = None,
        *,
        fair: bool = False,
        ttr: Seconds | None = None,
    ) -> list[AsyncTask]:
        """Take all available tasks of several tubes, up to `limit`: first from the first tube, then from the next one.

        `tubes`, `timeout`, `fair`, `ttr`: as for `take_any`; a waiting call gets tasks of the first tube to have one.
        `limit`: from 1 to 100,000. Returns [] on timeout.

        Raises what `take_any` raises.

        `Queue.take_many` shows an example.
        """
        count = check_limit(limit)
        patience = None if timeout is None else micros("timeout", timeout)
        named: list[AsyncTube | str] = check_tube_list(tubes, fair, AsyncTube, self._connection)
        found = [await self._find_tube(one) if isinstance(one, str) else one for one in named]
        ports = order_ports([tube._port for tube in found], fair)
        tasks: list[AsyncTask] = []
        try:
            for port in ports:
                if len(tasks) < count:
                    tube: AsyncTube = port.tube
                    some = await tube.take_many(count - len(tasks), 0, ttr=ttr)
                    tasks += some
        except BaseException:
            while tasks:  # Repeated after another interrupt.
                with suppress(KeyboardInterrupt):
                    tasks[-1]._tube._port.release_later(tasks[-1])
                    del tasks[-1]
            raise
        if tasks or patience == 0:
            return tasks
        top_up = partial(AsyncTask._top_up, limit=count, span=None if ttr is None else micros("ttr", ttr))
        tasks = await LoopWaiter(ports[0].clock, patience).wait(AnyOf(ports), top_up)
        return tasks or []

    @property
    def admin(self) -> AsyncQueueAdmin:
        """Rare administration: check and repair, all namespaces and workers, sessions, drivers of your own."""
        return AsyncQueueAdmin(self)

    async def session(self) -> AsyncQueue:
        """Open another session on the same queue. Each session is closed on its own."""
        return AsyncQueue(self._connection.sibling())

    async def close(self) -> None:
        """End the session and release its tasks; waiting calls raise `QueueClosed`. A second call has no effect."""
        reply = self._connection.close()
        if type(reply) is CoroutineType:
            await reply

    @property
    def closed(self) -> bool:
        """True once `close` or `detach` was called."""
        return self._connection.closed is not None

    async def __aenter__(self) -> Self:
        reply = self._connection.ensure_connected()
        if type(reply) is CoroutineType:
            await reply
        return self

    def __await__(self) -> Generator[Any, Any, Self]:
        return self.__aenter__().__await__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connection.url}{' closed' if self.closed else ''}>"


class AsyncEnqueuer:
    """Puts tasks that call a function, with the options of `AsyncQueue.enqueue_with`."""

    def __init__(self, queue: AsyncQueue, tube: AsyncTube | str | None, options: PutOptions) -> None:
        self._queue = queue
        self._tube = tube
        self._options = options

    @overload
    async def __call__(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> AsyncTask: ...
    @overload
    async def __call__(self, function: str, /, *args: Any, **kwargs: Any) -> AsyncTask: ...
    async def __call__(self, function: Any, /, *args: Any, **kwargs: Any) -> AsyncTask:
        """Put a task that calls this function with these arguments. See `AsyncQueue.enqueue`."""
        return await self._queue._enqueue(function, args, kwargs, self._tube, self._options)


class AsyncQueueAdmin:
    """Rare administration of a store: `AsyncQueue.admin`."""

    def __init__(self, queue: AsyncQueue) -> None:
        self._queue = queue
        self._connection = queue._connection

    async def overview(self, *, ages: bool = False) -> dict[str, Overview]:
        """Return an `Overview` of each tube, by name. For monitoring.

        On a server one call reads 200 tubes, in a cluster one. The call opens no session in the tubes, and does not
        move due tasks: see `Overview.due_lag`. O(1) for each tube; in memory O(n) of the lanes and sessions.
        `ages`: include `oldest_ready_age`, by one more call for each tube that has a ready task. The age is also None
        if this process does not know the tube's driver.

        `QueueAdmin.overview` shows an example.
        """
        reply = self._connection.overview(ages)
        return await reply if type(reply) is CoroutineType else reply

    async def namespaces(self) -> list[str]:
        """Return the names of the namespaces of the store that have tubes, sorted. See `AsyncQueue.namespace`."""
        reply = self._connection.namespaces()
        return await reply if type(reply) is CoroutineType else reply

    async def workers(self) -> list[WorkerInfo]:
        """Return the running workers of this store, in all processes, by host and process: see `WorkerInfo`.

        A `tubes.worker.Worker` reports itself when it starts (a burst: after five seconds) and then every five seconds,
        and leaves the list when it ends. If its process dies, it stays in the list for up to fifteen seconds. In memory
        these are the workers of this process. O(n) of the workers.

        `QueueAdmin.workers` shows an example.
        """
        tube = await self._workers_tube()
        # By id: a worker that reports itself between two pages is in both.
        found: dict[str, WorkerInfo] = {}
        last: AsyncTask | None = None
        while tasks := await tube._tasks(last):
            last = tasks[-1]
            found |= {info.id: info for info in infos_of(tasks)}
        return sorted(found.values(), key=lambda info: (info.host, info.pid, info.started))

    async def _workers_tube(self) -> AsyncTube:
        reply = self._connection.open_hidden(WORKERS, "fifottl", 2 * HEARTBEAT_TTL)
        port = await reply if type(reply) is CoroutineType else reply
        tube: AsyncTube = port.tube
        return tube

    @property
    def folder_usage(self) -> FolderUsage | None:
        """The disk usage of a store in a folder, see `FolderUsage`; None for other stores. Reads three file sizes.

        `QueueAdmin.folder_usage` shows an example.
        """
        self._connection.check()
        return self._connection.folder_usage()

    async def check(self, name: str) -> list[Problem]:
        """Return the problems of a tube: keys on the server that contradict each other or cannot be read. [] if none.

        It changes nothing. Other programs may use the tube meanwhile; each problem existed at some moment. O(n), in
        scripts that read a few hundred tasks each; in memory in one step.

        Raises `TubeNotFound`, and `DriverNotFound` if a driver of your own is not registered.

        `QueueAdmin.check` shows an example.
        """
        reply = self._connection.examine(name, False)
        return await reply if type(reply) is CoroutineType else reply

    async def repair(self, name: str) -> list[Problem]:
        """Repair a tube and return its problems, as `check` does. Other programs may use the tube meanwhile. O(n).

        No readable task is lost: a task that is missing in all indexes becomes ready, delayed or buried, according to
        its own fields. Unreadable data is moved to other keys. A second repair finds nothing.

        Raises what `check` raises.
        """
        reply = self._connection.examine(name, True)
        return await reply if type(reply) is CoroutineType else reply

    async def identify(self, uuid: str | UUID | None = None, *, create: bool = False) -> str:
        """Return the uuid of this session; with a uuid, join that session first.

        The connections of a session share its tasks: each may ack a task that another one has taken. The session ends,
        and releases its tasks, when its last connection is closed. A connection that joins leaves its own session.
        `create`: start the session if it does not exist, so that the processes of a service can share one. The uuid
        must be random (version 4).

        Raises `SessionNotFound` if there is no such session, and `InvalidOption` for a bad uuid.

        `QueueAdmin.identify` shows an example.
        """
        reply = self._connection.identify(uuid, create)
        return await reply if type(reply) is CoroutineType else reply

    async def detach(self) -> None:
        """Close the connection, but keep its session for `session_ttl`: `identify(uuid)` can join it."""
        reply = self._connection.close(lost=True)
        if type(reply) is CoroutineType:
            await reply

    async def register_driver(self, driver: Driver) -> None:
        """Register a custom driver for `create_tube`. Raises `DriverExists` if another driver has its name."""
        self._connection.register(driver)


class AsyncTube(Generic[T, R]):
    """One tube, as one session sees it. Safe to share between event loops.

    `AsyncTube[Mail]` gives type checkers the type of the data, and `AsyncTube[Mail, Reply]` also the type that a
    handler returns: `mails: tubes.AsyncTube[Mail] = queue.create_tube("mails")`. The default is `Any`. Types are not
    checked at run time.

    Methods accept a task as an `AsyncTask`, by its lease (`task.lease`, see `Lease`) or by its id. A taken `AsyncTask`
    is valid for one take: if its time to run has ended and the task was taken again, its methods raise `TaskNotTaken`.
    A lease is valid for one take as well, in every session and process: with a lease all methods, also `bury`,
    `update`, `delete` and `peek`, raise `TaskNotTaken` once the take has ended. An id means the take that the session
    holds now. If several clients share a session, as behind a service, use leases.

    Methods accept seconds as a number or as a `datetime.timedelta`.

    Every method raises `QueueClosed` once the queue is closed, `TubeNotFound` once the tube is dropped, and
    `InvalidOption` for bad arguments. A method that raises has changed nothing.
    """

    def __init__(self, port: AsyncPort[AsyncTask[T]]) -> None:
        self._port = port
        self.name = port.shared.name
        self.driver = port.shared.driver
        # The number of the last fair call of `take_any` that started with this tube.
        self._last_fair_call = 0

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that `create_tube` and `alter` have set; read-only. O(1).

        Only options that were set are included. The units are the same as in `create_tube`: times are seconds.
        `backoff` is a list of seconds if it has at most four delays and no jitter, otherwise a `Backoff` if there is an
        equal one. So `create_tube("copy", tube.driver, **tube.options)` creates a tube with the same behavior.

        On a server these are the options as of the last call on this tube in this process. If another process may have
        altered the tube since, `queue.tube(name)` reads them again.

        `Tube.options` shows an example.
        """
        return MappingProxyType(as_arguments(self._port.shared.options))

    # -- putting -------------------------------------------------------------------------------------------------------

    @overload
    async def put(self, data: T, *, timeout: None = NO_WAIT, **options: Unpack[PutOptions]) -> AsyncTask[T]: ...
    @overload
    async def put(self, data: T, *, timeout: Seconds | None, **options: Unpack[PutOptions]) -> AsyncTask[T] | None: ...
    async def put(
        self,
        data: T,
        *,
        timeout: Seconds | None = NO_WAIT,
        utube: Any = None,
        pri: Any = None,
        ttl: Any = None,
        ttr: Any = None,
        delay: Any = None,
        **options: Any,
    ) -> AsyncTask[T] | None:
        """Add a task. O(1); O(log n) with many priorities.

        `options`, as far as the driver has them:
        `utube`: the lane, a string. Tasks without it share one lane; the first one in a tube logs a warning;
        `pri`: the priority, 0 (first) to 4294967295;
        `delay`: seconds until the task becomes ready; its ttl is extended by the same time;
        `at`: the time at which the task becomes ready, instead of `delay`: a `datetime` with a time zone, by the clock
        of the queue or the server; a time in the past means at once;
        `ttl`: seconds to live: afterwards a task that is not held is removed; 0: at once;
        `ttr`: seconds to run: afterwards a taken task is ready again;
        and for every driver:
        `max_attempts`: how often the task may be taken, 1 to 1048574. When the last attempt ends by release, by its ttr
        or with its session, the task is buried. None: the tube's value, by default no limit;
        `key`: a string. A tube has at most one task with this key, in any state. A buried task keeps its key until it
        is done after a kick, deleted or replaced. `on_duplicate` decides about a second put: `"keep"` returns the
        existing task (`task.created_now` is False), `"replace"` deletes it and puts the new one, `"update"` gives it
        the new data, as `update` does, and ignores all other options, `"raise"` raises `DuplicateKey`;
        `key_ttl`: seconds for which the key is remembered after its task has ended. During that time only
        `"replace"` adds a task; `"keep"` and `"update"` return a task with the id of the old one and the data of this
        put;
        `context`: a mapping of strings to strings that the task carries along with its data, such as trace ids;
        `keep_done`: seconds for which the done task is kept with its result; None: the tube's value, 0: not kept. See
        `result`, `select` and `kick`;
        `timeout`: seconds to wait for room, if the tube or the lane has a capacity; None: forever; 0: do not wait. On
        timeout nothing is put, and None is returned. Without `timeout` a put into a full tube or lane raises `TubeFull`
        at once.

        Raises `TubeFull`, `OptionNotSupported` for an option that the driver lacks, `InvalidOption` for `on_duplicate`
        or `key_ttl` without a key, and `CodecError` for data that the codec refuses.

        `Tube.put` shows an example.
        """
        # Frequent options are parameters: in a mapping they make a put in memory up to 40 % slower.
        if timeout is NO_WAIT:
            reply = self._port.put(data, options, utube, pri, ttl, ttr, delay)
            task = await reply if type(reply) is CoroutineType else reply
            if task is None:
                raise self._port.full_error(1)
            return task
        patience = None if timeout is None else micros("timeout", timeout)
        arguments = put_options(options, utube, pri, ttl, ttr, delay)
        if patience != 0:
            waiter = LoopWaiter(self._port.clock, patience, self._port.prepare(data, arguments))
            waited: AsyncTask[T] | None = await waiter.wait(self._port)
            return waited
        try:
            reply = self._port.put(data, arguments)
            return await reply if type(reply) is CoroutineType else reply
        except TubeFull as full:
            if "utube" not in full.facts:
                raise
            return None

    @overload
    async def put_many(
        self,
        items: Iterable[T | Item[T]],
        *,
        timeout: Seconds | None = NO_WAIT,
        errors: Literal["raise"] = "raise",
        **options: Unpack[PutOptions],
    ) -> list[AsyncTask[T]]: ...
    @overload
    async def put_many(
        self,
        items: Iterable[T | Item[T]],
        *,
        timeout: Seconds | None = NO_WAIT,
        errors: Literal["raise", "return"],
        **options: Unpack[PutOptions],
    ) -> list[AsyncTask[T] | TubesError]: ...
    async def put_many(
        self,
        items: Iterable[T | Item[T]],
        *,
        timeout: Seconds | None = NO_WAIT,
        errors: str = "raise",
        **options: Unpack[PutOptions],
    ) -> Any:
        """Add many tasks at once, all or none, and return them in the order of the items. See `put`.

        `items`: data, or `tubes.Item(data, **options)` for an item with its own options. A string must be in a list,
        and an async iterable must be collected first. All items are checked and encoded before the first is put: an
        error names the number of its item.
        `options`: options for all items; an `Item` overrides them.
        `timeout`: seconds to wait until there is room for all, if the tube or a lane has a capacity; None: forever; 0:
        do not wait. On timeout nothing is put, and [] is returned. Without `timeout` a full tube or lane raises
        `TubeFull` at once, and so does a batch with more tasks for one lane than its capacity.
        `errors`: "return" puts the good items. For an item with bad options, or data that cannot be encoded, the list
        has the error in the place of the task. Keys are not checked before the put: with `on_duplicate="raise"` a key
        that exists still raises `DuplicateKey`, and nothing is put.

        On a server a few thousand tasks take one round trip; more are uploaded first, and put by one call at the end.

        Raises what `put` raises, and `InvalidOption` for more items than the tube's `capacity`.

        `Tube.put_many` shows an example.
        """
        patience = 0 if timeout is NO_WAIT else None if timeout is None else micros("timeout", timeout)
        batch = self._port.gather(items, options, errors)
        tasks: list[AsyncTask[T]] | None
        if patience != 0:
            tasks = await LoopWaiter(self._port.clock, patience, batch).wait(self._port)
        else:
            try:
                reply = self._port.put_many(batch)
                tasks = await reply if type(reply) is CoroutineType else reply
            except TubeFull as full:
                if timeout is NO_WAIT or "utube" not in full.facts:
                    raise
                tasks = None
        if tasks is None and timeout is NO_WAIT:
            raise self._port.full_error(batch.size)
        if tasks is not None and batch.errors:
            return batch.insert_errors(tasks)
        return tasks or []

    async def call(self, data: T, timeout: Seconds | None = None, **options: Unpack[TaskOptions]) -> R:
        """Put a task, wait until a `tubes.worker.Worker` has handled it, and return the result of its handler.

        `timeout`: seconds of real time to wait, for room and for the reply; None: forever.
        `options`: as for `put`, except `key`.

        The reply comes through a hidden tube of this connection. The first call creates it, which costs two more round
        trips. It is dropped after some seconds without a call, when the queue is closed, and on a server also if this
        process dies.

        Raises `CallFailed` with the handler's error after the last attempt; `max_attempts=1` allows only one. While the
        task may be tried again, the call waits. Raises `CallTimeout` on timeout: the task stays and may still run, but
        its reply is dropped; with a driver that has a ttl, `ttl=` removes a task that has not started by then. Raises
        `QueueClosed` when the queue is closed meanwhile, and `ConnectionLost` when a server has lost its last writes
        and the task with them.

        `Tube.call` shows an example.
        """
        result: R = await calls.call_async(self, data, timeout, options)
        return result

    # -- taking --------------------------------------------------------------------------------------------------------

    async def take(self, timeout: Seconds | None = None, *, ttr: Seconds | None = None) -> AsyncTask[T] | None:
        """Take the first available task. O(1), at most O(log n).

        `timeout`: seconds to wait; None: forever; 0: do not wait. Waiting calls are served in the order of arrival.
        Returns None on timeout.
        `ttr`: seconds to run for this take only; later takes use the task's own ttr. A task without a ttr keeps this
        one for later takes. On a server a call that has waited costs one more round trip.

        Raises `OptionNotSupported` for a ttr if the driver has none.

        `Tube.take` shows an example.
        """
        if ttr is not None:
            tasks = await self.take_many(1, timeout, ttr=ttr)
            return tasks[0] if tasks else None
        if timeout.__class__ is int and timeout == 0:
            reply = self._port.take()
            return await reply if type(reply) is CoroutineType else reply
        patience = None if timeout is None else micros("timeout", timeout)
        reply = self._port.take()
        task: AsyncTask[T] | None = await reply if type(reply) is CoroutineType else reply
        if task is None and patience != 0:
            task = await LoopWaiter(self._port.clock, patience).wait(self._port)
        return task

    async def take_many(
        self, limit: int, timeout: Seconds | None = None, *, ttr: Seconds | None = None
    ) -> list[AsyncTask[T]]:
        """Take all available tasks, up to `limit`, in the order of `take`.

        `limit`: from 1 to 100,000.
        `timeout`: seconds to wait for the first task, as for `take`. Returns [] on timeout.
        `ttr`: seconds to run for these takes, as for `take`.

        Limits of lanes apply. On a server a thousand tasks take one round trip.

        `Tube.take_many` shows an example.
        """
        count = check_limit(limit)
        patience = None if timeout is None else micros("timeout", timeout)
        span = None if ttr is None else micros("ttr", ttr)
        top_up = partial(AsyncTask._top_up, limit=count, span=span)
        reply = self._port.take_many(count, span)
        tasks = await reply if type(reply) is CoroutineType else reply
        while not tasks and patience != 0:
            found = await LoopWaiter(self._port.clock, patience).wait(self._port, top_up)
            if found != []:  # Otherwise the ttr of the first task has ended already.
                return found or []
        return tasks

    async def _first(self) -> tuple[int, int] | None:
        """Return the priority and the id of the first available task."""
        reply = self._port.first()
        return await reply if type(reply) is CoroutineType else reply

    @asynccontextmanager
    async def taking(
        self, timeout: Seconds | None = None, *, ttr: Seconds | None = None
    ) -> AsyncGenerator[AsyncTask[T]]:
        """Take a task for a `with` block. It is acked when the block ends, and released when the block raises.

        `timeout`, `ttr`: as for `take`. Raises `NothingReady` on timeout. If that is not an error for you, write
        `if task := await tube.take(5):` and then `async with task:`.

        `Tube.taking` shows an example.
        """
        task = await self.take(timeout, ttr=ttr)
        if task is None:
            raise NothingReady(tube=self.name, timeout=None if timeout is None else seconds("timeout", timeout))
        async with task:
            yield task

    async def __aiter__(self) -> AsyncGenerator[AsyncTask[T]]:
        """Take tasks until the queue is closed. Each task is acked when the loop asks for the next one.

        Raises `TubeNotFound` when the tube is dropped. If the loop ends by `break` or by an exception, its last task is
        released, unless the body has finished it (with asyncio a moment later, when the iterator is finalized). If a
        task was lost meanwhile, because its time to run has ended or the queue was closed, a warning is logged: ack a
        task yourself before you close the queue.
        """
        try:
            task = await self.take()
            while task is not None:
                try:
                    yield task
                except BaseException as error:
                    await task.__aexit__(type(error), error, None)
                    raise
                task = await self._ack_and_take(task) or await self.take()
        except QueueForked:
            raise
        except QueueClosed:
            return

    async def _ack_and_take(self, task: AsyncTask[T]) -> AsyncTask[T] | None:
        """Ack a task, unless it is finished already, and take the next one; return None if there is none."""
        if task._take in ENDED:
            return None
        try:
            reply = self._port.next(task)
            return await reply if type(reply) is CoroutineType else reply
        except QueueClosed as lost:
            log_lost_take(lost)
            raise

    async def join(self, timeout: Seconds | None = None) -> bool:
        """Wait until no task of this tube is ready, delayed or taken. Returns False on timeout.

        Delayed tasks count, however long their delay, and so do tasks in backoff. Buried tasks and puts that wait for
        room do not count. Other programs may put tasks before this call returns.

        `timeout`: seconds to wait; None: forever; 0: do not wait. It does not poll: the end of the last task wakes the
        caller, in any process. On a server the caller receives the tube's events meanwhile, as `on_task_change` does.
        `statistics().waiting` does not count it. If the tube is dropped meanwhile, it raises `TubeNotFound`. O(1).

        `Tube.join` shows an example.
        """
        patience = None if timeout is None else micros("timeout", timeout)
        reply = self._port.is_empty()
        is_empty: bool = await reply if type(reply) is CoroutineType else reply
        if is_empty or patience == 0:
            return is_empty
        ended = await LoopWaiter(self._port.clock, patience, TUBE_EMPTY).wait(self._port)
        return ended is not None

    # -- for the holder ------------------------------------------------------------------------------------------------

    async def ack(self, task: AsyncTask[T] | str | int, result: R | None = None) -> AsyncTask[T]:
        """Finish a task as done: it is removed, or kept for its `keep_done` seconds. O(1), O(log n) if kept.

        `result`: stored with a kept task, for `task.result` and `AsyncTube.result`; otherwise it is dropped.

        Raises `TaskNotTaken` unless this session holds the task, and `CodecError` for a result that cannot be encoded.

        `Tube.ack` shows an example.
        """
        if result is None:
            reply = self._port.ack(task)
            return await reply if type(reply) is CoroutineType else reply
        reply = self._port.ack_with(task, result)
        return await reply if type(reply) is CoroutineType else reply

    async def ack_many(self, tasks: Iterable[AsyncTask[T] | str | int]) -> dict[int, bool]:
        """Finish these tasks, each as `ack` does. Returns a dict by id, in their order: True if the task was acked.

        False means that this session does not hold the task, or not by this take. On a server a few thousand tasks take
        one round trip. Raises `InvalidOption` for a task of another tube.

        `Tube.ack_many` shows an example.
        """
        reply = self._port.ack_many(tasks)
        return await reply if type(reply) is CoroutineType else reply

    async def release_many(
        self, tasks: Iterable[AsyncTask[T] | str | int], delay: Seconds | None = None, *, at: datetime | None = None
    ) -> dict[int, bool]:
        """Give these tasks back, each as `release` does. Returns a dict by id: True if the task was released.

        Raises `OptionNotSupported` for a delay if the driver has none, `InvalidOption` for a task of another tube.

        `Tube.release_many` shows an example.
        """
        delay = delay_of(delay, at, self._port.connection.micros)
        reply = self._port.release_many(tasks, delay)
        return await reply if type(reply) is CoroutineType else reply

    async def release(
        self,
        task: AsyncTask[T] | str | int,
        delay: Seconds | None = None,
        *,
        at: datetime | None = None,
        reason: str | None = None,
        pri: int | None = None,
        data: T = KEEP,
    ) -> AsyncTask[T]:
        """Give the task back. It returns to its place in the order, ahead of younger tasks. O(log n).

        `delay`: seconds until it is ready again; its ttl is extended by the same time. None: the tube's `backoff`, or
        at once if it has none. After its last attempt (`max_attempts`) the task is buried instead, with this `reason`
        or a standard one. `pri`, `data`: its new priority and data, as for `update`, in the same step.

        Raises `TaskNotTaken` unless this session holds the task, `OptionNotSupported` for a delay or a priority if the
        driver has none.
        """
        delay = delay_of(delay, at, self._port.connection.micros)
        reply = self._port.release(task, delay, reason, pri, data)
        return await reply if type(reply) is CoroutineType else reply

    async def _decline(self, task: AsyncTask[T], delay: Seconds) -> AsyncTask[T]:
        """Give a task back for another worker: the attempt does not count, and the delay does not extend the ttl."""
        reply = self._port.decline(task, delay)
        return await reply if type(reply) is CoroutineType else reply

    async def touch(
        self, task: AsyncTask[T] | str | int, seconds: Seconds = KEEP, *, ttr: Seconds = KEEP
    ) -> AsyncTask[T]:
        """Give the holder of a task more time. O(log n).

        Without arguments the task's own time to run starts again.
        `seconds`: extend the task's ttr and ttl by these seconds, also for later takes; 0 changes nothing. Neither can
        end later than 200 years from now.
        `ttr`: instead of `seconds`: the remaining time to run of this take, in seconds from now. It may be shorter than
        before; with 0 the take ends at once, as if its ttr had ended. Later takes use the task's own ttr. It has no
        effect on a task without a ttr.

        Raises `TaskNotTaken` unless this session holds the task, `OptionNotSupported` if the driver has no ttr.

        `Tube.touch` shows an example.
        """
        if seconds is KEEP:
            reply = self._port.set_ttr(task, None if ttr is KEEP else micros("ttr", ttr))
            return await reply if type(reply) is CoroutineType else reply
        if ttr is not KEEP:
            raise InvalidOption(option="ttr", value=ttr, rule="cannot be combined with seconds")
        reply = self._port.touch(task, seconds)
        return await reply if type(reply) is CoroutineType else reply

    async def touch_many(self, tasks: Iterable[AsyncTask[T] | str | int], ttr: Seconds) -> dict[int, bool]:
        """Give these tasks at least `ttr` seconds to run from now on. Returns a dict by id: True if the task is held.

        Call it regularly to keep tasks while you work on them. It never shortens a time to run, and later takes use the
        task's own ttr. If the driver ends taken tasks by their ttl (`utubettl` does not), the ttl is extended as
        far as needed. A task without ttr needs no renewal. On a server a few thousand tasks take one round trip.
        O(log n) each.

        Raises `OptionNotSupported` if the driver has no ttr, `InvalidOption` for a task of another tube.

        `Tube.touch_many` shows an example.
        """
        reply = self._port.renew_many(tasks, ttr)
        return await reply if type(reply) is CoroutineType else reply

    async def _checkpoint(
        self,
        task: AsyncTask[T] | str | int,
        saved: object = None,
        progress: float | None = None,
        note: str | None = None,
    ) -> AsyncTask[T]:
        """Store facts of a held task, as `AsyncTask.checkpoint` does."""
        reply = self._port.checkpoint(task, checkpoint_changes(saved, progress, note))
        return await reply if type(reply) is CoroutineType else reply

    # -- done tasks that are kept --------------------------------------------------------------------------------------

    async def result(self, task: AsyncTask[T] | int, timeout: Seconds | None = None) -> R:
        """Wait until a task is done, and return its result: the value that a handler returned or passed to `ack`.

        `task`: a task with `keep_done`. Any program may wait, as long as the task is kept.
        `timeout`: seconds to wait; None: forever; 0: do not wait. It does not poll: the end of the task wakes the
        caller, in any process. On a server the caller receives the tube's events meanwhile, as for `join`.

        Raises `TaskNotFound` if the task does not exist or is no longer kept; `CallFailed` if it will have no result,
        because it was buried or deleted, or its ttl has ended; `CallTimeout` on timeout: the task stays and may still
        run; `InvalidOption` for a task without `keep_done`. O(1).

        `Tube.result` shows an example.
        """
        patience = None if timeout is None else micros("timeout", timeout)
        reply = self._port.peek(task)
        seen = await reply if type(reply) is CoroutineType else reply
        done = check_end(seen)
        in_time = patience != 0
        while done is None and in_time:
            id = seen.id
            seen = await LoopWaiter(self._port.clock, patience, TaskEnd(id)).wait(self._port)
            in_time = seen is not None
            if seen is None or seen is True:  # True: its record was not kept, or its event was lost.
                reply = self._port.peek(id)
                seen = await reply if type(reply) is CoroutineType else reply
            done = check_end(seen)
        if done is None:
            waited = seconds("timeout", timeout)
            raise CallTimeout(id=seen.id, tube=self.name, timeout=waited, state=str(seen.state))
        result: R = done.result
        return result

    # -- for everybody -------------------------------------------------------------------------------------------------

    async def bury(
        self, task: AsyncTask[T] | str | int, reason: str | None = None, *, pri: int | None = None
    ) -> AsyncTask[T]:
        """Bury a task in any state, also if another session holds it. It is not taken again until `kick`. O(log n).

        `reason`: stored as `task.reason`. `pri`: its new priority.

        Its ttl keeps running, unless the tube has a `buried_ttl`. It keeps its key: puts with this key add no task
        until it is done after a kick, deleted, or replaced by a put with `on_duplicate="replace"`. Burying a buried
        task changes nothing. Raises `TaskNotFound` if the task does not exist.
        """
        reply = self._port.bury(task, reason, pri)
        return await reply if type(reply) is CoroutineType else reply

    @overload
    async def kick(self, count: int = 1) -> int: ...
    @overload
    async def kick(
        self, *, task: AsyncTask[T] | str | int, attempts: int | None = None, ttl: Seconds | None = None
    ) -> AsyncTask[T]: ...
    async def kick(
        self, count: int = 1, *, task: Any = KEEP, attempts: int | None = None, ttl: Seconds | None = None
    ) -> Any:
        """Make up to `count` buried tasks ready, in their order, and return their number. O(log n) each.

        It is short for `select("buried", limit=count).kick()`; to choose the tasks see `select`.
        `task`: only this task, instead of a count; the result is the task. It may be buried or delayed; a ready or
        taken task stays unchanged. A kept done task is put again with its data and its options (lane, priority, ttl,
        ttr, key, context and so on) under a new id, with no attempts, and the old one is forgotten, in one step.
        `attempts`: further attempts of this task. Without it, a task that has used its last attempt gets one more.
        `ttl`: seconds to live from now on. `task.ttl` counts from the put, so it becomes the age plus these seconds.

        Raises `OptionNotSupported` for a ttl if the driver has none, and `TaskNotFound` if the task does not exist or
        is no longer kept. For a done task also `TubeFull`, and `DuplicateKey` if its key is in use or remembered; then
        the old task stays.

        `Tube.kick` shows an example.
        """
        if task is KEEP:
            most = integer("count", count)
            if attempts is not None or ttl is not None:
                option, value = ("ttl", ttl) if attempts is None else ("attempts", attempts)
                raise InvalidOption(option=option, value=value, rule="needs a task; for several tasks see Tube.select")
            buried = self.select(State.BURIED, limit=most)
            kicked: int = await buried.kick()
            return kicked
        try:
            reply = self._port.kick_task(task, attempts, ttl)
            return await reply if type(reply) is CoroutineType else reply
        except TaskNotFound:
            done = await self.peek(task)  # Raises if it is not kept, either.
            if done.state is not State.DONE:
                raise
        if attempts is not None or ttl is not None:
            option, value = ("ttl", ttl) if attempts is None else ("attempts", attempts)
            rule = "must be left out for a done task, which is put again as it was"
            raise InvalidOption(option=option, value=value, rule=rule)
        new: AsyncTask[T] = await self._put_again(done)
        return new

    async def _put_again(self, done: AsyncTask[T]) -> AsyncTask[T]:
        reply = self._port.again(done)
        new = await reply if type(reply) is CoroutineType else reply
        if new is None:
            raise self._port.full_error(1)
        return new

    async def update(
        self,
        task: AsyncTask[T] | str | int,
        *,
        data: T = KEEP,
        pri: int = KEEP,
        delay: Seconds = KEEP,
        ttl: Seconds = KEEP,
        at: datetime | None = None,
    ) -> AsyncTask[T]:
        """Change a task in any state, also if another session holds it. All changes are made in one step. O(log n).

        `data`: its new data; the holder keeps the data that it got.
        `pri`: its new priority; the task moves to its new place.
        `delay`: seconds from now until a ready or delayed task is ready; 0: at once. Its ttl does not change.
        `at`: the time at which it is ready, instead of `delay`: a `datetime` with a time zone, as for `put`.
        `ttl`: seconds to live from now on, for a task that is not taken; 0 ends it.
        Without any change it is a `peek`.

        Raises `TaskNotFound` if the task does not exist, `OptionNotSupported` for an option that the driver lacks, and
        `InvalidOption` for the delay of a taken or buried task, and for the ttl of a taken one: use `touch`.

        `Tube.update` shows an example.
        """
        delay = delay_of(delay, at, self._port.connection.micros)
        changes = {"data": data, "pri": pri, "delay": delay, "ttl": ttl}
        reply = self._port.update(task, changes)
        return await reply if type(reply) is CoroutineType else reply

    async def peek(self, task: AsyncTask[T] | str | int) -> AsyncTask[T]:
        """Return the current state of a task without changing it. O(1).

        A done task is found as long as it is kept: `task.result`, `task.ended` and `task.why` tell its end.

        Raises `TaskNotFound` if the task does not exist.
        """
        reply = self._port.peek(task)
        return await reply if type(reply) is CoroutineType else reply

    async def delete(self, task: AsyncTask[T] | str | int, *, state: str | Iterable[str] | None = None) -> AsyncTask[T]:
        """Remove a task in any state, also if another session holds it. O(1).

        A task with `keep_done` is kept as a done task; a kept done task is forgotten.
        `state`: "ready", "taken", "buried", "delayed" or "done", or a list of them: remove the task only if it is in
        one of these states.

        Raises `TaskNotFound` if the task does not exist or is in another state.

        `Tube.delete` shows an example.
        """
        reply = self._port.delete(task, check_states(state))
        return await reply if type(reply) is CoroutineType else reply

    async def cancel(self, task: AsyncTask[T] | str | int, reason: str | None = None) -> AsyncTask[T]:
        """End a task in any state as cancelled, also if another session holds it. O(1).

        `reason`: stored as `task.reason`, if the task is kept.

        The task is removed, or kept for its `keep_done` seconds; `task.why` is "cancelled". If it was taken, it is kept
        for at least 60 seconds, and its holder is told at once: a worker cancels an async handler, and kills the
        process of a handler. A plain handler gets `TaskCancelled` at its next `AsyncTask.checkpoint`, and
        `task.cancelled` is True. The caller of `AsyncTube.call` gets `CallFailed`.

        Raises `TaskNotFound` if the task does not exist or is done.

        `Tube.cancel` shows an example.
        """
        reply = self._port.cancel(task, reason)
        ended = await reply if type(reply) is CoroutineType else reply
        await calls.tell_caller_async(ended)
        return ended

    async def delete_many(
        self, tasks: Iterable[AsyncTask[T] | str | int], *, state: str | Iterable[str] | None = None
    ) -> dict[int, bool]:
        """Remove these tasks, each as `delete` does. Returns a dict by id, in their order: True if it was removed.

        `state`: as for `delete`: a task in another state stays, and its value is False.

        `Tube.delete_many` shows an example.
        """
        reply = self._port.delete_many(tasks, check_states(state))
        return await reply if type(reply) is CoroutineType else reply

    async def truncate(self) -> None:
        """Remove all tasks at once, and the state of lanes. Ids and counts continue; listeners are not called. O(n).

        `select` removes some of them, each as `delete` does.

        `Tube.truncate` shows an example.
        """
        reply = self._port.truncate()
        if type(reply) is CoroutineType:
            await reply

    async def alter(self, **changes: Unpack[TubeOptions]) -> None:
        """Change options of the tube while it is used; None resets an option to its default.

        All changes are checked first and made in one step. Every put and take that starts after this call has returned
        uses them, in all sessions, threads and processes. Options that are left out keep their values.

        `ttl`, `ttr`, `pri`, `max_attempts`, `key_ttl`, `keep_done`: defaults for tasks that are put from now on. Tasks
        in the tube keep their own.
        `buried_ttl`: for tasks that are buried from now on. `keep_done_max`: for tasks that end from now on.
        `backoff`: for attempts that fail from now on. A task in backoff keeps its delay.
        `capacity`, `lane_capacity`: waiting puts get new room at once. A smaller one removes no task.
        `interval`, `jitter`, `max_in_flight`: for all lanes at once, except the limits that `configure` has set for a
        lane. A lane in cooldown follows the new interval, from its last take on. `interval_from`: for runs that end
        from now on.

        `rate`, `burst`: for all takes from now on. Without a rate there is no burst.

        The driver and `order` cannot change while the tube lives: create another tube, and let workers empty this one.

        O(1). Changes of the limits of lanes are O(n) of the lanes; on a server the next calls do that first, some lanes
        each. The first `lane_capacity` of a tube on a server is O(n) of its tasks: the next calls count them first,
        some tasks each. Every process that uses the tube reads its options again at its next call.

        Raises `InvalidOption` and `OptionNotSupported` as `create_tube` does, and for options that cannot change.

        `Tube.alter` shows an example.
        """
        reply = self._port.alter(dict(changes))
        if type(reply) is CoroutineType:
            await reply

    async def pause(self, seconds: Seconds | None = None) -> None:
        """Stop takes from this tube for some seconds; None: until `pause(0)`. O(1).

        Takes in all sessions and processes find no task, and wait; `take_any` uses its other tubes. Producers can still
        put, holders can still ack or release, and ttl, ttr and delays keep running. Waiting calls are served as soon as
        the pause ends. Another `pause` sets a new end; 0 ends it at once. The pause belongs to the tube, not to the
        session that set it, and `truncate` keeps it. `statistics().paused` is its end.

        `Tube.pause` shows an example.
        """
        reply = self._port.pause(seconds)
        if type(reply) is CoroutineType:
            await reply

    async def drop(self, *, force: bool = False) -> None:
        """Remove the tube and its tasks. O(n).

        Raises `TubeBusy` while tasks are taken or callers wait. `force`: remove the tube anyway; waiters and holders
        get `TubeNotFound`.
        """
        reply = self._port.drop(force)
        if type(reply) is CoroutineType:
            await reply

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def lane(self, name: str) -> AsyncLane:
        """Return a lane of this tube, by the value of the tasks' option `utube`. O(1), without a call of the store.

        A lane need not exist: it has no tasks then, and it can be blocked and configured in advance.

        Raises `OptionNotSupported` if the driver has no lanes, and `InvalidOption` for a bad name.

        `Tube.lane` shows an example.
        """
        return AsyncLane(self._port, name)

    async def lanes(self, limit: int = 1000) -> list[LaneInfo]:
        """Return up to `limit` lanes, sorted by name.

        The list has the lanes with ready or taken tasks, the lanes in cooldown or blocked, and the lanes with
        their own limits.

        O(n) of the lanes: for monitoring. Raises `OptionNotSupported` if the driver has no lanes.

        `Tube.lanes` shows an example.
        """
        reply = self._port.lanes(limit)
        return await reply if type(reply) is CoroutineType else reply

    # -- looking -------------------------------------------------------------------------------------------------------

    async def statistics(self) -> Statistics:
        """Return the counts of tasks by state and of calls. O(1), O(n) of the sessions."""
        reply = self._port.statistics()
        return await reply if type(reply) is CoroutineType else reply

    async def _tasks(
        self,
        after: AsyncTask[T] | int | None = None,
        limit: int = 1000,
        *,
        state: State | str | None = None,
        utube: str | None = None,
    ) -> list[AsyncTask[T]]:
        """Return a page of tasks after a task or its id, in the order of `select`."""
        reply = self._port.tasks(after, limit, state, utube)
        return await reply if type(reply) is CoroutineType else reply

    def select(
        self,
        state: State | str | None = None,
        *,
        reason: str | None = None,
        contains: str | bytes | None = None,
        lane: str | None = None,
        key: str | None = None,
        older_than: Seconds | None = None,
        attempts: int | None = None,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> AsyncSelection[T]:
        """Select tasks by these properties. `AsyncSelection` iterates over them, counts or changes them. O(1).

        `state`: "ready", "taken", "delayed", "buried" or "done". None: any state except done. Ready tasks are in the
        order of takes, delayed tasks in the order of the ends of their delays, buried tasks in the order of takes, kept
        done tasks from the last to be forgotten to the first. Taken tasks and tasks in any state are by id, and so are
        ready tasks in a tube with lanes.
        `reason`: buried tasks with this reason, or with this kind of reason, as `admin.reasons` lists them. With
        `state="done"`: tasks that had it when they ended.
        `contains`: a text or bytes in the encoded data, such as a part of their JSON. In memory without a codec it is
        searched in their JSON, or in their `repr` if they have none.
        `lane`, `key`: tasks in this lane, the task with this key.
        `older_than`: tasks that were put at least these seconds ago.
        `attempts`: tasks that were taken at least this often.
        `newest_first`: in the reverse order. Kept done tasks are in this order anyway.
        `limit`: at most this many tasks; None: all.

        Raises `InvalidOption` for bad arguments, `OptionNotSupported` for a lane if the driver has none.

        `Tube.select` shows an example.
        """
        driver = self.driver
        filters = check_filters(driver, state, reason, contains, lane, key, older_than, attempts, newest_first, limit)
        return AsyncSelection(self._port, filters)

    async def on_task_change(
        self, callback: Callable[[AsyncTask[T], str], object] | None
    ) -> Callable[[AsyncTask[T], str], object] | None:
        """Call `callback(task, event)` for every change in this tube, by any program; None removes the callback.

        Events: `put take release touch bury kick delete update ttl ttr delay cancel`; an ack is a `delete` as well. The
        callback is called after each change, in the order of the changes, one at a time, in the event loop that
        registered it: do long work elsewhere. Its errors are logged. Each `AsyncQueue` has one callback per tube, as
        long as the `AsyncQueue` lives. Returns the previous callback.

        `Tube.on_task_change` shows an example.
        """
        reply = self._port.listen(callback, LoopListener)
        before = await reply if type(reply) is CoroutineType else reply
        return callback_of(before)

    @property
    def admin(self) -> AsyncTubeAdmin[T]:
        """Rare administration: reasons of dead letters, ages, known keys, all taken tasks."""
        return AsyncTubeAdmin(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} ({self.driver.name}) of {self._port.url}>"


class AsyncSelection(Generic[T]):
    """Tasks of a tube with some properties: `AsyncTube.select`. Nothing is read before it is used, and each use reads
    again.

    Iterate over it, `count` its tasks, or change them. All of that works in parts of at most 250 tasks, and each part
    takes a few milliseconds: other programs use the tube meanwhile. Tasks that are put after the start are left out.
    Each task is returned, counted or changed once, so that a change ends even if workers bury the same tasks again.

    A change reads only which tasks there are, then changes a part of them in one step. A task that has changed since it
    was read, or is in a state to which the change does not apply, stays as it is. If the program stops, some parts are
    changed and the others are not.

    `on_progress`: called after each part, also if nothing in it changed, with the number of tasks changed so far. If it
    returns False, the change stops and returns this number; if it raises, the change stops, too.

    The cost is O(1) for each task in the selected state; in a selection without a state, or of ready tasks in a tube
    with lanes, O(1) for each task in the tube, and on a server for each id that no longer exists. With a key it is
    O(1), except for done tasks. Delayed tasks also cost O(1) for each task with an earlier end of ttr or ttl.
    """

    def __init__(self, port: AsyncPort[AsyncTask[T]], filters: Filters) -> None:
        self._port = port
        self._filters = filters

    async def __aiter__(self) -> AsyncGenerator[AsyncTask[T]]:
        """Return the tasks, without taking them. Each part of at most 250 is consistent; tasks come and go between."""
        scan, returned = Scan(self._filters), 0
        while not scan.ended and (size := part_size(self._filters, returned)):
            tasks = await self._part(scan, self._filters, size, with_data=True)
            for task in tasks[: remaining(self._filters, returned)]:
                returned += 1
                yield task

    async def _part(self, scan: Scan, filters: Filters, size: int, *, with_data: bool = False) -> list[Any]:
        """Return the next part: tasks, or without their data only which tasks there are."""
        await asyncio.sleep(0)  # In memory a part does not wait. Others may run before it.
        reply = self._port.select(filters, scan, size, with_data)
        return await reply if type(reply) is CoroutineType else reply

    async def _evict(self, tasks: list[AsyncTask[T]]) -> list[bool]:
        """Remove these tasks unless they have changed; return whether each was removed."""
        reply = self._port.evict(tasks)
        return await reply if type(reply) is CoroutineType else reply

    async def count(self) -> int:
        """Count the tasks. On a server their data stay there."""
        scan, counted = Scan(self._filters), 0
        while not scan.ended and (size := part_size(self._filters, counted)):
            seen = await self._part(scan, self._filters, size)
            counted += len(seen[: remaining(self._filters, counted)])
        return counted

    async def kick(
        self,
        *,
        attempts: int | None = None,
        ttl: Seconds | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> int:
        """Make the buried and delayed tasks ready, and return their number. O(log n) each.

        `attempts`, `ttl`: as for `AsyncTube.kick`. Raises `OptionNotSupported` for a ttl if the driver has none.

        `Selection.kick` shows an example.
        """
        arguments = self._port.shared.driver.check_kick(attempts, ttl)
        return await self._change("kick", arguments, on_progress)

    async def release(self, *, on_progress: Callable[[int], object] | None = None) -> int:
        """Release the taken tasks, of any session, and return their number. O(log n) each.

        Each counts as a release, and its last attempt buries it. Its holder gets `TaskNotTaken` from now on, but may
        still be at work.
        """
        return await self._change("release", (), on_progress)

    async def bury(self, reason: str | None = None, *, on_progress: Callable[[int], object] | None = None) -> int:
        """Bury the ready, delayed and taken tasks, and return their number. `reason`: as for `AsyncTube.bury`. O(log
        n).
        """
        return await self._change("bury", (check_reason(reason),), on_progress)

    async def delete(self, *, on_progress: Callable[[int], object] | None = None) -> int:
        """Remove the tasks, each as `AsyncTube.delete` does, and return their number. O(log n) each.

        With `state="done"` kept done tasks are forgotten.
        """
        return await self._change("delete", (), on_progress)

    async def cancel(self, reason: str | None = None, *, on_progress: Callable[[int], object] | None = None) -> int:
        """End the ready, delayed, taken and buried tasks, each as `AsyncTube.cancel` does, and return their number.

        `reason`: as for `AsyncTube.cancel`. O(log n) each. It reads the tasks with their data.

        `Selection.cancel` shows an example.
        """
        why = check_reason(reason)
        check_progress(on_progress)
        filters = narrowed(self._filters, "cancel")
        scan, cancelled = Scan(filters), 0
        while not scan.ended and (size := part_size(filters, cancelled)):
            found = await self._part(scan, filters, size, with_data=True)
            left = changeable_tasks("cancel", found)
            while tasks := left[: remaining(filters, cancelled)]:
                left = left[len(tasks) :]
                reply = self._port.change_seen("cancel", see_all(tasks), (why,))
                done = await reply if type(reply) is CoroutineType else reply
                cancelled += sum(done)
                for task in cancelled_tasks(tasks, done, why):
                    await calls.tell_caller_async(task)
            if on_progress is not None and on_progress(cancelled) is False:
                break
        return cancelled

    async def _change(self, act: str, arguments: tuple[Any, ...], on_progress: Callable[[int], object] | None) -> int:
        check_progress(on_progress)
        filters = narrowed(self._filters, act)
        scan, changed = Scan(filters), 0
        while not scan.ended and (size := part_size(filters, changed)):
            found = await self._part(scan, filters, size)
            left = changeable(act, found)
            while seen := left[: remaining(filters, changed)]:
                left = left[len(seen) :]
                reply = self._port.change_seen(act, seen, arguments)
                done = await reply if type(reply) is CoroutineType else reply
                changed += sum(done)
            if on_progress is not None and on_progress(changed) is False:
                break
        return changed

    async def move_to(self, tube: AsyncTube[T, Any], *, on_progress: Callable[[int], object] | None = None) -> int:
        """Move the ready, delayed and buried tasks to another tube, and return their number.

        `tube`: any other tube, of this queue or of another one, in another namespace or on another server.

        Delayed tasks stay delayed, all others become ready. A task keeps its data, priority, lane, context, ttr,
        max_attempts and keep_done, its key with its key_ttl, and the rest of its delay and its ttl. It gets a new id
        and a new time of put (`created`), its attempts start at 0, and it loses its reason. The old task is removed: it
        is not kept as a done task, and its key is free. Listeners get a put in the other tube and a delete in this one.

        In memory, in one folder and on one server each task moves in one step, some 100 with each call: it is always in
        exactly one of the tubes, whatever fails. In a cluster, and from one store to another, 250 tasks at a time are
        first put into the other tube and then removed here; if a task has changed meanwhile, its copy is removed
        instead. So no task is lost. If this program dies in between, or the connection is lost, up to 250 tasks may be
        in both tubes; and if other programs take tasks meanwhile, a task may be taken from both. O(log n) per task.

        Raises `OptionNotSupported` for an option that the driver of the other tube lacks, `DuplicateKey` for a key that
        is in use there, `TubeFull` if it has no room, and `CodecError` for data that its codec cannot encode. Tasks
        that were moved before the error stay moved.

        `Selection.move_to` shows an example.
        """
        check_target(self._port, tube, AsyncTube)
        check_progress(on_progress)
        filters = narrowed(self._filters, "move")
        together = self._port.relay_limit(tube._port)
        scan, moved, at_once = Scan(filters), 0, together or MOVE_BATCH
        copies: list[AsyncTask[T]] = []
        waiting: list[AsyncTask[T]] = []
        while waiting or not scan.ended:
            if not waiting:
                size = part_size(filters, moved)
                if not size:
                    break
                found = await self._part(scan, filters, size, with_data=True)
                waiting = changeable_tasks("move", found)
                if not waiting and on_progress is not None and on_progress(moved) is False:
                    break
                continue
            tasks = waiting[: remaining(filters, moved)][:at_once]
            if not tasks:
                break
            items = items_of(tasks, self._port.connection.micros())
            try:
                if together:
                    reply = self._port.relay(tube._port, tasks, tube._port.gather(items, {}))
                    relayed = await reply if type(reply) is CoroutineType else reply
                    if relayed is None:
                        raise tube._port.full_error(len(tasks))
                    moved += sum(relayed)
                    del waiting[: len(relayed)]
                else:
                    copies = await tube.put_many(items)
            except TubesError as error:
                at_once = smaller_batch_size(error, tasks, tube.name)
                continue
            if not together:
                removed = await self._evict(tasks)
                strays = [copy.id for copy, is_gone in zip(copies, removed, strict=True) if not is_gone]
                if strays:
                    await tube.delete_many(strays, state=("ready", "delayed"))
                moved += len(tasks) - len(strays)
                del waiting[: len(tasks)]
            if on_progress is not None and on_progress(moved) is False:
                break
        return moved

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._port.tube!r}>"


class AsyncLane:
    """One lane of a tube: `AsyncTube.lane`. Its tasks are the tasks with its name as their option `utube`."""

    def __init__(self, port: AsyncPort[Any], name: str) -> None:
        self._port = port
        self.name = lane_of(port.shared.driver, name)

    async def info(self) -> LaneInfo:
        """Return the lane's tasks, limits, next start and block. O(log n).

        A lane that `AsyncTube.lanes` does not list has no tasks, and the limits of the tube.
        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     lane = queue.create_tube("crawl", "utube", interval=2).lane("example.com")
        ...     lane.block(30, reason="429")
        ...     info = lane.info()
        ...     info.ready, info.interval, info.blocked_until is not None, info.blocked_reason
        (0, 2.0, True, '429')
        """
        reply = self._port.lane_info(self.name)
        return await reply if type(reply) is CoroutineType else reply

    async def block(self, seconds: Seconds, *, extend: bool = False, reason: str | None = None) -> None:
        """Stop takes from this lane for some seconds, for example after a 429 with Retry-After. O(log n).

        The block ends by itself, and waiting calls are served at once. Another block replaces it. Taken tasks stay
        taken. A lane without tasks can be blocked, too.
        `extend`: True never shortens a block: the latest end counts, whichever process set it. `reason`: why, a short
        text. `info` returns it until the block ends or another block replaces it.
        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("crawl", "utube")
        ...     _ = tube.put("/", utube="example.com")
        ...     tube.lane("example.com").block(30)
        ...     tube.take(timeout=0) is None
        True
        """
        reply = self._port.block(self.name, seconds, extend, reason)
        if type(reply) is CoroutineType:
            await reply

    async def unblock(self) -> None:
        """End a block and serve waiting calls. A cooldown goes on. Without a block it has no effect. O(log n)."""
        reply = self._port.block(self.name, 0, False, None)
        if type(reply) is CoroutineType:
            await reply

    async def configure(
        self,
        *,
        interval: Seconds | None = KEEP,
        max_in_flight: int | None = KEEP,
        interval_from: Literal["take", "ack"] | None = KEEP,
        capacity: int | None = KEEP,
        rate: float | str | None = KEEP,
        burst: int | None = KEEP,
    ) -> None:
        """Set limits for this lane, in place of the tube's. O(log n).

        `interval`: seconds from one take to the next, 0: none; `rate`: the same as takes per second, or as a text such
        as "10/s"; `burst`: how many takes may start at once after an idle time, from 1; `max_in_flight`: how many of
        its tasks may be taken at a time, from 1; `interval_from`: "take", or "ack", if the interval must also pass
        after each run has ended; `capacity`: how many tasks have room, in whatever state, as for `capacity` of a tube;
        0: any number. None: the tube's value. A limit that is left out keeps its value. New limits count at once: the
        interval runs from the last take of the lane, and if more of its tasks are taken than allowed, the next take
        waits until they are fewer. A lane without ready or taken tasks and without a cooldown has no last take.
        `interval_from` is observed at the ends of runs from now on.

        `Lane.configure` shows an example.
        """
        limits = {
            "interval": interval,
            "max_in_flight": max_in_flight,
            "interval_from": interval_from,
            "capacity": capacity,
            "rate": rate,
            "burst": burst,
        }
        reply = self._port.configure(self.name, limits)
        if type(reply) is CoroutineType:
            await reply

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._port.tube!r}>"


class AsyncTubeAdmin(Generic[T]):
    """Rare administration of a tube: `AsyncTube.admin`."""

    def __init__(self, tube: AsyncTube[T, Any]) -> None:
        self._tube = tube
        self._port = tube._port

    async def reasons(self) -> dict[str, int]:
        """Count the buried tasks by the kind of their reason, the most frequent first. O(n) of the buried tasks.

        The kind of a reason is the text before its first colon, so `ValueError: no such address: x@y` counts as
        `ValueError`; reasons like `max_attempts: ttr` stay whole, and "none" counts tasks without a reason. On a server
        a script looks at 250 tasks, and their data stays there.

        `TubeAdmin.reasons` shows an example.
        """
        reply = self._port.reasons()
        found = await reply if type(reply) is CoroutineType else reply
        return by_kind(found)

    async def oldest_ready_age(self) -> float | None:
        """Return the age in seconds of the oldest ready task, by its id; None if no task is ready.

        The age includes the time for which it was delayed or taken. It is the first sign of a growing backlog. O(n) of
        the older tasks that are not ready.
        """
        reply = self._port.oldest_ready_age()
        return await reply if type(reply) is CoroutineType else reply

    async def due_histogram(self, edges: Iterable[Seconds]) -> list[int]:
        """Count tasks by the time until their delay, ttr or ttl ends.

        `edges`: seconds from now, ascending. Returns one number more than there are edges: the tasks that are due
        before the first edge, from the first to before the second, …, from the last on. O(n); on a server O(log n) for
        each edge.

        `TubeAdmin.due_histogram` shows an example.
        """
        reply = self._port.due_histogram(edges)
        return await reply if type(reply) is CoroutineType else reply

    async def forget_key(self, key: str) -> bool:
        """Forget a key that `key_ttl` remembers after its task has ended. Returns True if it was remembered. O(log n).

        The next put with this key adds a task. The key of a task in the tube stays, and the call returns False.

        `TubeAdmin.forget_key` shows an example.
        """
        reply = self._port.forget_key(key)
        return await reply if type(reply) is CoroutineType else reply

    async def release_all(self) -> None:
        """Release all taken tasks of all sessions. O(n log n) of the taken tasks."""
        reply = self._port.release_all()
        if type(reply) is CoroutineType:
            await reply


class AsyncTask(TaskView[T]):
    """A task of an `AsyncTube`: its state at one moment, and methods.

    An `async with` block acks the task at its end, and releases it if the block raises.

    `Task` shows an example.
    """

    __slots__ = ()
    _tube: AsyncTube[T]

    async def take(self, *, ttr: Seconds | None = None) -> AsyncTask[T] | None:
        """Take this task out of turn. Returns None if it may not be taken now. O(log n).

        A task cannot be taken while it is not ready, its lane is busy or in cooldown, or the tube is paused.
        `ttr`: seconds to run for this take, as for `AsyncTube.take`.

        Raises `TaskNotFound` if the task does not exist, and `OptionNotSupported` for a ttr if the driver has none.

        `Task.take` shows an example.
        """
        span = None if ttr is None else micros("ttr", ttr)
        reply = self._tube._port.take_task(self, span)
        return await reply if type(reply) is CoroutineType else reply

    async def ack(self, result: Any = None) -> AsyncTask[T]:
        """Finish the task. See `AsyncTube.ack`."""
        return await self._tube.ack(self, result)

    async def release(
        self,
        delay: Seconds | None = None,
        *,
        at: datetime | None = None,
        reason: str | None = None,
        pri: int | None = None,
        data: T = KEEP,
    ) -> AsyncTask[T]:
        """Give the task back. See `AsyncTube.release`."""
        return await self._tube.release(self, delay=delay, at=at, reason=reason, pri=pri, data=data)

    async def touch(self, seconds: Seconds = KEEP, *, ttr: Seconds = KEEP) -> AsyncTask[T]:
        """Get more time to work. See `AsyncTube.touch`."""
        return await self._tube.touch(self, seconds, ttr=ttr)

    async def checkpoint(
        self, saved: object = None, *, progress: float | None = None, note: str | None = None
    ) -> AsyncTask[T]:
        """Save how far the work on the task is, and get more time for it. Returns the task as it is then. O(log n).

        This object does not change: its `saved` is that of the take. The returned task has the new values.

        `saved`: any JSON value, at most 65,536 bytes, for the next attempt: `task.saved`. `progress`: a number from 0
        to 1. `note`: a text of at most 1,000 characters. Anybody sees all three with `peek`, in lists and in events.
        None keeps the stored value. They survive releases, the end of a ttr, `bury`, `kick` and moves to other tubes.
        A done task keeps them, too, but starts without them if it is put again.

        It counts as a touch: afterwards the task has at least its own ttr left, and if the driver ends taken tasks by
        their ttl, the ttl is extended as far as needed. In a handler it raises an exception if the worker is stopping:
        the task returns to the tube, without a lost attempt, and the next handler starts with what was saved. On a
        server it takes one round trip.

        Raises `TaskCancelled` if the task was cancelled, `TaskNotTaken` unless this session holds the task,
        `CodecError` if `saved` is not JSON, `InvalidOption` for other bad values.

        `Task.checkpoint` shows an example.
        """
        try:
            updated = await self._tube._checkpoint(self, saved, progress, note)
        except TaskNotTaken as lost:
            if self._take == CANCELLED and not isinstance(lost, TaskCancelled):  # Its record is gone.
                raise TaskCancelled(id=self.id, tube=self.tube, reason=None) from None
            raise
        check: Callable[[], None] | None = self._tube._port.connection.on_checkpoint
        if check is not None:
            await asyncio.sleep(0)  # Signals and cancels arrive here.
            check()
        return updated

    async def bury(self, reason: str | None = None, *, pri: int | None = None) -> AsyncTask[T]:
        """Bury the task. See `AsyncTube.bury`."""
        return await self._tube.bury(self, reason, pri=pri)

    async def kick(self, *, attempts: int | None = None, ttl: Seconds | None = None) -> AsyncTask[T]:
        """Make the task ready, if it is buried, delayed or done. See `AsyncTube.kick`."""
        return await self._tube.kick(task=self, attempts=attempts, ttl=ttl)

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

    async def delete(self, *, state: str | Iterable[str] | None = None) -> AsyncTask[T]:
        """Remove the task. See `AsyncTube.delete`."""
        return await self._tube.delete(self, state=state)

    async def cancel(self, reason: str | None = None) -> AsyncTask[T]:
        """End the task as cancelled. See `AsyncTube.cancel`."""
        return await self._tube.cancel(self, reason)

    async def peek(self) -> AsyncTask[T]:
        """Return the current state of the task. See `AsyncTube.peek`."""
        return await self._tube.peek(self)

    async def _top_up(self, limit: int, span: int | None) -> list[AsyncTask[T]]:
        """Return this task, which a waiting call got, and more available tasks, up to `limit` in all."""
        reply = self._tube._port.top_up(self, limit, span)
        return await reply if type(reply) is CoroutineType else reply

    async def __aenter__(self) -> AsyncTask[T]:
        self._check_taken()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._take in ENDED:
            return
        if kind is None:
            await self.ack()
            return
        if kind is GeneratorExit:
            # The garbage collector may raise it in the middle of a call, or after the loop is closed.
            self._tube._port.release_later(self)
            return
        # The block's own error matters more. A task that cannot be released is lost already.
        with suppress(TubesError):
            if issubclass(kind, Exception):
                await self.release()
            else:  # The block was interrupted or cancelled: the task has not failed.
                reply = self._tube._port.release_unfailed(self)
                if type(reply) is CoroutineType:
                    await reply
