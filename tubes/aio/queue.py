# Generated from tubes/sync/queue.py by .ci/make_aio.py (`make aio`): change that file, or the rules.
"""A session with a store: `connect`, and `AsyncQueue` with `enqueue_with` and `admin`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import suppress
from functools import partial
from types import CoroutineType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Self, overload
from uuid import UUID

from typing_extensions import Unpack

from tubes import connecting
from tubes.aio.task import AsyncTask
from tubes.aio.tube import AsyncTube
from tubes.backend.clock import Clock
from tubes.backend.interface import ApiKind, AsyncConnection
from tubes.backend.port import combine_if_exists
from tubes.backend.selecting import PART, Scan
from tubes.backend.take_any import AnyOf, check_tube_list, order_ports
from tubes.backend.url import DEFAULT_URL
from tubes.backend.waiters import LoopWaiter
from tubes.drivers.driver import Driver, check_namespace
from tubes.drivers.options import SECOND, Seconds, micros
from tubes.errors import (
    CodecError,
    ConnectionLost,
    InvalidOption,
    TubeExists,
    TubeNotFound,
    TubesError,
    did_you_mean,
)
from tubes.partitions.port import partitioned_port, parts_of, sum_overviews
from tubes.values.batch import check_limit
from tubes.values.codecs import Codec
from tubes.values.options import PutOptions, TubeOptions
from tubes.values.overview import FolderUsage, Overview
from tubes.values.problem import Problem
from tubes.values.statistics import Statistics
from tubes.values.task import T
from tubes.values.task_data import SCHEDULES, TASKS, TASKS_OPTIONS, WORKER_OPTIONS, call_of, check_call
from tubes.values.timings import Durations, Timings, durations_of, timings_in
from tubes.values.worker_info import HEARTBEAT_TTL, WORKERS, WorkerInfo, infos_of

if TYPE_CHECKING:
    import redis

    from tubes.sync.queue import Queue

P = ParamSpec("P")
#: Microseconds for which a call that waits on tubes of a cluster leaves out those of a dead node.
_LOOK_AGAIN: Final = SECOND


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
    within the process, and lives as long as the process. `file:jobs` is a folder on the disk, created if missing, which
    one process may have open at a time: with `?sync=full` each call waits for the disk, so that a power cut loses
    nothing; `?mode=read` reads its current state, also while another process has it open. `redis://`, `rediss://`,
    `unix://`, `redis+sentinel://` and `redis+cluster://` name servers; `?prefix=` selects a key space. `?namespace=`
    selects a namespace, see `AsyncQueue.namespace`. The URL may also be a client of redis-py, or a queue for threads or
    asyncio: then another session on the same store is opened, with its codec, clock and `session_ttl`. The default is
    the environment variable `TUBES_URL`, or `memory://` if it is not set.
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
        driver: str | Driver = "fifottl",
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
        takes may start at once after an idle time (1). Every attempt counts. `partitions`: the number of tubes, 1 to
        16384, among which the tasks of this one are divided, so that it lives on all nodes of a cluster; see
        docs/howto/scaling-out.md for what holds across partitions.

        Raises `TubeExists`, `DriverNotFound`, `DriverExists`, `OptionNotSupported` and `InvalidOption`.

        `Queue.create_tube` shows an example.
        """
        reply = self._connection.create(name, driver, combine_if_exists(if_not_exists, if_exists), temporary, options)
        port = await reply if type(reply) is CoroutineType else reply
        tube: AsyncTube = partitioned_port(port).tube
        if if_exists == "update" and tube.partitions:
            port = partitioned_port(port)
            reply = port.update_parts()
            if type(reply) is CoroutineType:
                await reply
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
        tube: AsyncTube = partitioned_port(port).tube
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
    async def enqueue(self, function: Callable[..., object] | str, /, *args: Any, **kwargs: Any) -> AsyncTask:
        """Put a task that calls a task function, see `Worker.task`, with these arguments.

        `function`: the function, whose signature checks the arguments and whose tube gets the task. Or its name, for
        programs that do not import the function: then the tube `tasks` gets the task.
        `args`, `kwargs`: its arguments. They are stored as JSON, unless the queue has another codec. In memory without
        a codec they are stored unchanged, but must be possible in JSON, so that they also work on a server.

        The task gets the options that stand beside the function, as in `@worker.task(max_attempts=5)`. For other
        options or another tube see `enqueue_with`. The tube `tasks` is created if it does not exist: a `fifottl` with
        `ttr=60`, `max_attempts=3` and a backoff of 1, 5, 25, … seconds. Costs a `put`; the first call also looks up the
        tube.

        Raises `InvalidOption` if the arguments do not fit the function, `CodecError` if they cannot be encoded, and
        what `put` raises.

        `Queue.enqueue` shows an example.
        """
        return await self._enqueue(function, args, kwargs, None, {})

    def enqueue_with(self, *, tube: AsyncTube | str | None = None, **options: Unpack[PutOptions]) -> AsyncEnqueuer:
        """Return `enqueue` with these options of `AsyncTube.put`: `queue.enqueue_with(delay=60)(send_email, "ann")`.

        `tube`: the tube, or its name, that gets the task; None: as for `enqueue`. The options replace those that stand
        beside the function; None: without that option.

        The options are apart from the arguments of the function, whose names they may share. The call raises what
        `enqueue` raises.

        `Queue.enqueue_with` shows an example.
        """
        if not (tube is None or isinstance(tube, (AsyncTube, str))):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(option="tube", value=tube, rule="must be a tube or its name")
        for option in sorted(WORKER_OPTIONS & options.keys()):
            rule = f"belongs beside the function, as in @worker.task({option}=...)"
            raise InvalidOption(option=option, value=options.get(option), rule=rule)
        return AsyncEnqueuer(self, tube, options)

    async def _enqueue(
        self,
        function: Callable[..., object] | str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        where: AsyncTube | str | None,
        options: PutOptions,
    ) -> AsyncTask:
        name, data, options = call_of(function, args, kwargs, options)
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
        empty list or a tube of another queue. In a cluster the call leaves out the tubes of a node that does not reply,
        and raises `ConnectionLost` if no node replies.

        `Queue.take_any` shows an example.
        """
        patience = None if timeout is None else micros("timeout", timeout)
        named: list[AsyncTube | str] = check_tube_list(tubes, fair, AsyncTube, self._connection, order)
        end = self._connection.micros() + patience if patience else 0
        while True:
            reply = self._connection.reachable(named)
            living = await reply if type(reply) is CoroutineType else reply
            left = max(end - self._connection.micros(), 0) if patience else patience
            span = left
            if len(living) < len(named):  # Look again soon for the tubes of a dead node.
                span = _LOOK_AGAIN if left is None else min(left, _LOOK_AGAIN)
            try:
                task = await self._take_from(living, span, fair, ttr, order)
            except ConnectionLost:
                reply = self._connection.reachable(living)
                still_living = await reply if type(reply) is CoroutineType else reply
                if len(still_living) == len(living):
                    raise
                continue
            if task is not None or span == left:
                return task

    async def _take_from(
        self, named: list[AsyncTube | str], patience: int | None, fair: bool, ttr: Seconds | None, order: str
    ) -> AsyncTask | None:
        found = [await self._find_tube(one) if isinstance(one, str) else one for one in named]
        ports = order_ports([tube._port for tube in found], fair)
        task: AsyncTask | None
        if order == "pri":
            task = await self._take_by_pri(found, ttr)
            if task is not None:
                return task
        for each in ports if order == "tubes" else ():
            if ttr is None:
                port = each if patience == 0 else each.hot
                reply = port.take()
                task = await reply if type(reply) is CoroutineType else reply
            else:
                tube: AsyncTube = each.tube
                task = await tube.take(0, ttr=ttr)
            if task is not None:
                return task
        if patience == 0:
            return None
        span = None if ttr is None else micros("ttr", ttr)
        task = await LoopWaiter(ports[0].clock, patience, span=span).wait(AnyOf(ports))
        return task

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
        span = None if ttr is None else micros("ttr", ttr)
        top_up = partial(AsyncTask._top_up, limit=count, span=span)
        tasks = await LoopWaiter(ports[0].clock, patience, span=span).wait(AnyOf(ports), top_up)
        return tasks or []

    @property
    def admin(self) -> AsyncQueueAdmin:
        """Rare administration: check and repair, all namespaces and workers, sessions, drivers of your own."""
        return AsyncQueueAdmin(self._connection)

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
    async def __call__(self, function: Callable[..., object] | str, /, *args: Any, **kwargs: Any) -> AsyncTask:
        """Put a task that calls this function with these arguments. See `AsyncQueue.enqueue`."""
        return await self._queue._enqueue(function, args, kwargs, self._tube, self._options)


class AsyncQueueAdmin:
    """Rare administration of a store: `AsyncQueue.admin`."""

    def __init__(self, connection: AsyncConnection[AsyncTask]) -> None:
        self._connection = connection

    async def overview(self, *, ages: bool = False) -> dict[str, Overview]:
        """Return an `Overview` of each tube, by name. For monitoring.

        On a server one call reads 200 tubes, in a cluster one. The call opens no session in the tubes, and does not
        move due tasks: see `Overview.due_lag`. O(1) for each tube; in memory O(n) of the lanes and sessions.
        In a cluster the tubes of a node that does not reply are left out, and a warning names them.
        `ages`: include `oldest_ready_age`, by one more call for each tube that has a ready task. The age is also None
        if this process does not know the tube's driver.

        `QueueAdmin.overview` shows an example.
        """
        return await self._overview(ages)

    async def _overview(self, ages: bool, patterns: Collection[str] = ("*",)) -> dict[str, Overview]:
        """Return an overview of each tube whose name matches."""
        reply = self._connection.overview(ages, patterns)
        found = await reply if type(reply) is CoroutineType else reply
        parts = {name: parts_of(name, seen, self._connection.namespace) for name, seen in found.items()}
        names = [part for mine in parts.values() for part in mine]
        if not names:
            return found
        reply = self._connection.overview(ages, names)
        counted = await reply if type(reply) is CoroutineType else reply
        for name in found:
            if parts[name]:
                seen = [counted[part] for part in parts[name] if part in counted]
                found[name] = sum_overviews(found[name], seen, self._connection.joins_all_lines)
        return found

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
        found = {info.id: info for info in infos_of(await self._read_workers())}
        return sorted(found.values(), key=lambda info: (info.host, info.pid, info.started))

    async def _read_workers(self) -> list[AsyncTask]:
        """Return the descriptions of the workers."""
        tube = await self._workers_tube()
        selection = tube.select()
        filters = selection._filters
        scan, found = Scan(filters), dict[str | int, AsyncTask]()
        while not scan.ended:
            scan.bound = None  # A worker that reports itself between two parts has a new task.
            part = await selection._part(scan, filters, PART, with_data=True)
            found |= {task.key or task.id: task for task in part}
        return [*found.values()]

    async def durations(self) -> list[Durations]:
        """Return how long tasks have waited and run during the last five minutes: of each tube, and of each function.

        The running workers count it and report it every five seconds, without history in the store and without a call
        per task; see `Durations`. What a worker has counted disappears when it ends, and a burst reports after five
        seconds. Tasks that programs take themselves are not counted. Costs what `workers` costs.

        `QueueAdmin.durations` shows an example.
        """
        timings: list[Timings] = []
        for task in await self._read_workers():
            with suppress(CodecError, AttributeError, TypeError):  # Another program has put it.
                timings += timings_in(task.data)
        return durations_of(timings)

    async def _workers_tube(self) -> AsyncTube:
        return await self._hidden_tube(WORKERS, 2 * HEARTBEAT_TTL, kept=False)

    async def _hidden_tube(self, name: str, idle: float, *, kept: bool) -> AsyncTube:
        """Open a tube of the library. On a server it expires after `idle` seconds without use.

        `kept`: it survives the process that has a folder open.
        """
        reply = self._connection.open_hidden(name, "fifottl", idle, kept)
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
        """Return the problems of a tube: keys on the server that contradict each other or cannot be read.

        It changes nothing, and returns [] if there are no problems. Other programs may use the tube meanwhile; each
        problem existed at some moment. O(n), in scripts that read a few hundred tasks each; in memory in one step.

        Raises `TubeNotFound`, and `DriverNotFound` if a driver of your own is not registered.

        `QueueAdmin.check` shows an example.
        """
        return await self._examine(name, False)

    async def repair(self, name: str) -> list[Problem]:
        """Repair a tube and return its problems, as `check` does. Other programs may use the tube meanwhile. O(n).

        No readable task is lost: a task that is missing in all indexes becomes ready, delayed or buried, according to
        its own fields. Unreadable data is moved to other keys. A second repair finds nothing.

        Raises what `check` raises.
        """
        return await self._examine(name, True)

    async def _examine(self, name: str, repairs: bool) -> list[Problem]:
        """Check or repair a tube and its partitions."""
        problems = await self._examine_one(name, repairs)
        for part in await self._parts_of(name):
            with suppress(TubeNotFound):  # It has not been used yet.
                problems += await self._examine_one(part, repairs)
        return problems

    async def _examine_one(self, name: str, repairs: bool) -> list[Problem]:
        reply = self._connection.examine(name, repairs)
        return await reply if type(reply) is CoroutineType else reply

    async def _parts_of(self, name: str) -> list[str]:
        reply = self._connection.overview(False, [name])
        found = await reply if type(reply) is CoroutineType else reply
        return parts_of(name, found[name], self._connection.namespace) if name in found else []

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
