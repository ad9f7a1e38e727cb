"""A session with a store: `connect`, and `Queue` with `enqueue_with` and `admin`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Self, overload
from uuid import UUID

from typing_extensions import Unpack

from tubes import connecting
from tubes.backend.clock import Clock
from tubes.backend.interface import ApiKind, Connection
from tubes.backend.port import combine_if_exists
from tubes.backend.selecting import PART, Scan
from tubes.backend.take_any import AnyOf, check_tube_list, order_ports
from tubes.backend.url import DEFAULT_URL
from tubes.backend.waiters import ThreadWaiter
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
from tubes.sync.task import Task
from tubes.sync.tube import Tube
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

    from tubes.aio.queue import AsyncQueue

P = ParamSpec("P")
#: Microseconds for which a call that waits on tubes of a cluster leaves out those of a dead node.
_LOOK_AGAIN: Final = SECOND


def connect(
    url: str | redis.Redis | redis.RedisCluster | Queue | AsyncQueue = DEFAULT_URL,
    *,
    codec: str | Codec | None = None,
    clock: Clock | None = None,
    session_ttl: Seconds | None = None,
    connect_timeout: Seconds | None = None,
) -> Queue:
    """Connect to a queue. The connection is a session, which owns the tasks that it takes.

    `url`: `memory://` is private to the returned Queue and its other sessions; `memory://name` is shared by name within
    the process, and lives as long as the process. `file:jobs` is a folder on the disk, created if missing, which one
    process may have open at a time: with `?sync=full` each call waits for the disk, so that a power cut loses nothing;
    `?mode=read` reads its current state, also while another process has it open. `redis://`, `rediss://`, `unix://`,
    `redis+sentinel://` and `redis+cluster://` name servers; `?prefix=` selects a key space. `?namespace=` selects a
    namespace, see `Queue.namespace`. The URL may also be a client of redis-py, or a queue for threads or asyncio: then
    another session on the same store is opened, with its codec, clock and `session_ttl`. The default is the environment
    variable `TUBES_URL`, or `memory://` if it is not set.
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

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     queue.tubes()
    []
    """
    arguments = connecting.Arguments(codec, clock, session_ttl, connect_timeout)
    return Queue(connecting.connect(url, arguments, ApiKind(Task, Tube, awaited=False)))


class Queue:
    """A session with a store: its tubes, and the tasks that it holds. Safe to share between threads.

    `connect` and `session` create queues. A `with` block closes the queue at its end. Every method raises `QueueClosed`
    once the queue is closed, and `QueueForked` in a forked child.
    """

    def __init__(self, connection: Connection[Task]) -> None:
        self._connection = connection
        # The tubes of `enqueue`.
        self._task_tubes: dict[str, Tube] = {}

    def create_tube(
        self,
        name: str,
        driver: str | Driver = "fifottl",
        *,
        if_not_exists: bool = False,
        if_exists: Literal["raise", "keep", "update"] | None = None,
        temporary: bool = False,
        **options: Unpack[TubeOptions],
    ) -> Tube:
        """Create a tube. O(1).

        `name`: 1 to 255 letters, digits and any of `_ - . : + / ; $ ( )`, as in `mails:high`.
            Names that start with `tubes.`, or are `reply.` and 26 hex digits, are reserved for the library.
        `driver`: a registered name, or a `Driver`, which is registered as well.
        `if_exists`: what to do if the tube exists. "raise", the default, raises `TubeExists`. "keep" returns the tube
        with its current options. "update" sets these options, as `Tube.alter` does, and resets all other options to
        their defaults. "keep" and "update" raise `TubeExists` if the tube has another driver.
        `if_not_exists`: True returns the tube if it has this driver and exactly these options, and otherwise raises
        `TubeExists`. It cannot be combined with `if_exists`.
        `temporary`: the tube need not survive a restart of the server. In memory no tube does.
        `options`: defaults for the tube's tasks, as far as the driver has them: `ttl`, `ttr` (seconds; the default of
        ttr is the tube's ttl) and `pri`. For any driver: `capacity`, the maximum number of tasks (0, the default, also
        of `limfifottl`: no limit), `max_attempts`, `key_ttl` and `keep_done`, see `Tube.put`, and `keep_done_max`, the
        maximum number of kept done tasks. For drivers with a ttl: `buried_ttl`, the lifetime of a task from its
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

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     queue.create_tube("crawl", "utubettl", ttr=60)
        <Tube 'crawl' (utubettl) of memory://>
        """
        port = self._connection.create(name, driver, combine_if_exists(if_not_exists, if_exists), temporary, options)
        tube: Tube = partitioned_port(port).tube
        if if_exists == "update" and tube.partitions:
            port = partitioned_port(port)
            port.update_parts()
        return tube

    def tube(self, name: str) -> Tube:
        """Return the tube of this name. O(1). Raises `TubeNotFound`, which suggests a similar name if there is one."""
        try:
            return self._find_tube(name)
        except TubeNotFound:
            known: list[str] = []
            with suppress(TubesError):  # The user may lack the right to list tubes.
                known = self.tubes()
            raise TubeNotFound(name=name, hint=did_you_mean(name, known)) from None

    def _find_tube(self, name: str) -> Tube:
        """Return the tube of this name, without a suggestion in the error: for code that expects `TubeNotFound`."""
        port = self._connection.find(name)
        tube: Tube = partitioned_port(port).tube
        return tube

    def tubes(self) -> list[str]:
        """Return the names of all tubes, sorted."""
        return self._connection.names()

    def namespace(self, name: str) -> Queue:
        """Open another session, on the tubes of a namespace of the same store.

        `name`: as for a tube, 1 to 255 letters, digits and any of `_ - . : + / ; $ ( )`. "": the tubes without a
            namespace, which `connect` opens if the URL has no `?namespace=`.

        A namespace has its own tubes, statistics, events, limits, workers and sessions, separate from all others. It
        exists as long as it has a tube. Namespaces do not nest: on a queue of any namespace, this method opens the
        namespace `name` of the store. It costs a session.

        Raises `InvalidOption` for a bad name.

        >>> import tubes
        >>> with tubes.connect() as queue, queue.namespace("team") as team:
        ...     mail = team.create_tube("mail")
        ...     queue.tubes(), team.tubes(), queue.admin.namespaces()
        ([], ['mail'], ['team'])
        """
        return Queue(self._connection.sibling(None, check_namespace(name)))

    @overload
    def enqueue(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> Task: ...
    @overload
    def enqueue(self, function: str, /, *args: Any, **kwargs: Any) -> Task: ...
    def enqueue(self, function: Callable[..., object] | str, /, *args: Any, **kwargs: Any) -> Task:
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

        >>> import tubes
        >>> def send_email(to: str, subject: str = "hello") -> None: ...
        >>> with tubes.connect() as queue:
        ...     queue.enqueue(send_email, "ann").data
        {'task': 'send_email', 'args': ['ann'], 'kwargs': {}}
        """
        return self._enqueue(function, args, kwargs, None, {})

    def enqueue_with(self, *, tube: Tube | str | None = None, **options: Unpack[PutOptions]) -> Enqueuer:
        """Return `enqueue` with these options of `Tube.put`: `queue.enqueue_with(delay=60)(send_email, "ann")`.

        `tube`: the tube, or its name, that gets the task; None: as for `enqueue`. The options replace those that stand
        beside the function; None: without that option.

        The options are apart from the arguments of the function, whose names they may share. The call raises what
        `enqueue` raises.

        >>> import tubes
        >>> def send_email(to: str, subject: str = "hello") -> None: ...
        >>> with tubes.connect() as queue:
        ...     task = queue.enqueue_with(delay=60, key="ann")(send_email, "ann", subject="news")
        ...     task.state.name, task.key, task.data["kwargs"]
        ('DELAYED', 'ann', {'subject': 'news'})
        """
        if not (tube is None or isinstance(tube, (Tube, str))):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(option="tube", value=tube, rule="must be a tube or its name")
        for option in sorted(WORKER_OPTIONS & options.keys()):
            rule = f"belongs beside the function, as in @worker.task({option}=...)"
            raise InvalidOption(option=option, value=options.get(option), rule=rule)
        return Enqueuer(self, tube, options)

    def _enqueue(
        self,
        function: Callable[..., object] | str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        where: Tube | str | None,
        options: PutOptions,
    ) -> Task:
        name, data, options = call_of(function, args, kwargs, options)
        if where is None:
            where = name
        tube = where if isinstance(where, Tube) else self._task_tubes.get(where) or self._task_tube(where)
        if tube._port.codec is None:
            check_call(data, args, kwargs)
        try:
            return tube.put(data, **options)
        except TubeNotFound:
            if isinstance(where, Tube):
                raise
            tube = self._task_tube(where)  # It was dropped, and perhaps created again.
            return tube.put(data, **options)

    def _task_tube(self, name: str) -> Tube:
        """Find a tube of task functions. The default tubes are created if they do not exist."""
        tube: Tube | None = None
        while tube is None:
            try:
                tube = self._find_tube(name)
            except TubeNotFound:
                if name not in (TASKS, SCHEDULES):
                    raise
                with suppress(TubeExists):  # Another process has created it since.
                    tube = self.create_tube(name, "fifottl", **TASKS_OPTIONS)
        self._task_tubes[name] = tube
        return tube

    @overload
    def statistics(self, name: str) -> Statistics: ...
    @overload
    def statistics(self, name: None = None) -> dict[str, Statistics]: ...
    def statistics(self, name: str | None = None) -> Statistics | dict[str, Statistics]:
        """Return the `Statistics` of one tube, or of all tubes by name if no name is given. Raises `TubeNotFound`."""
        if name is not None:
            tube = self.tube(name)
            return tube.statistics()
        found: dict[str, Statistics] = {}
        for name in self.tubes():
            with suppress(TubeNotFound):  # The tube was dropped meanwhile.
                found[name] = self.statistics(name)
        return found

    @overload
    def take_any(
        self,
        tubes: Iterable[Tube[T, Any]],
        timeout: Seconds | None = None,
        *,
        fair: bool = False,
        ttr: Seconds | None = None,
        order: Literal["tubes", "pri"] = "tubes",
    ) -> Task[T] | None: ...
    @overload
    def take_any(
        self,
        tubes: Iterable[Tube | str],
        timeout: Seconds | None = None,
        *,
        fair: bool = False,
        ttr: Seconds | None = None,
        order: Literal["tubes", "pri"] = "tubes",
    ) -> Task | None: ...
    def take_any(
        self,
        tubes: Iterable[Tube | str],
        timeout: Seconds | None = None,
        *,
        fair: bool = False,
        ttr: Seconds | None = None,
        order: Literal["tubes", "pri"] = "tubes",
    ) -> Task | None:
        """Take the first available task from any of several tubes.

        `tubes`: tubes of this queue, or names, in order of preference: the first tube with a task provides it. On a
        server a name costs one more round trip than a tube.
        `timeout`: seconds to wait; None: forever; 0: do not wait. A waiting call gets the first task that becomes
        available in any of the tubes; each tube serves its waiters in the order of arrival. It does not poll.
        Returns None on timeout.
        `fair`: each call starts with the next tube of the list, so that a busy tube does not starve the others.
        `ttr`: seconds to run for this take, as for `Tube.take`.
        `order`: "pri" takes the task with the smallest priority, then the smallest id, among the first tasks of all
        tubes. The call first looks at all tubes, and then takes from one of them.

        O(1) for each tube. With threads on a server a waiting call uses a thread for each tube.

        Raises `TubeNotFound` if a tube does not exist, or is dropped while the call waits, and `InvalidOption` for an
        empty list or a tube of another queue. In a cluster the call leaves out the tubes of a node that does not reply,
        and raises `ConnectionLost` if no node replies.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     urgent, other = queue.create_tube("urgent"), queue.create_tube("other")
        ...     _ = other.put("later"), urgent.put("now")
        ...     [queue.take_any([urgent, other]).data for _ in range(2)]
        ['now', 'later']
        """
        patience = None if timeout is None else micros("timeout", timeout)
        named: list[Tube | str] = check_tube_list(tubes, fair, Tube, self._connection, order)
        end = self._connection.micros() + patience if patience else 0
        while True:
            living = self._connection.reachable(named)
            left = max(end - self._connection.micros(), 0) if patience else patience
            span = left
            if len(living) < len(named):  # Look again soon for the tubes of a dead node.
                span = _LOOK_AGAIN if left is None else min(left, _LOOK_AGAIN)
            try:
                task = self._take_from(living, span, fair, ttr, order)
            except ConnectionLost:
                still_living = self._connection.reachable(living)
                if len(still_living) == len(living):
                    raise
                continue
            if task is not None or span == left:
                return task

    def _take_from(
        self, named: list[Tube | str], patience: int | None, fair: bool, ttr: Seconds | None, order: str
    ) -> Task | None:
        found = [self._find_tube(one) if isinstance(one, str) else one for one in named]
        ports = order_ports([tube._port for tube in found], fair)
        task: Task | None
        if order == "pri":
            task = self._take_by_pri(found, ttr)
            if task is not None:
                return task
        for each in ports if order == "tubes" else ():
            if ttr is None:
                port = each if patience == 0 else each.hot
                task = port.take()
            else:
                tube: Tube = each.tube
                task = tube.take(0, ttr=ttr)
            if task is not None:
                return task
        if patience == 0:
            return None
        span = None if ttr is None else micros("ttr", ttr)
        task = ThreadWaiter(ports[0].clock, patience, span=span).wait(AnyOf(ports))
        return task

    def _take_by_pri(self, tubes: list[Tube], ttr: Seconds | None) -> Task | None:
        """Take the task with the smallest priority, then the smallest id, among the first tasks of these tubes."""
        while True:
            places: list[tuple[tuple[int, int], int]] = []
            for number, tube in enumerate(tubes):
                place = tube._first()
                if place is not None:
                    places.append((place, number))
            if not places:
                return None
            first = tubes[min(places)[1]]
            task = first.take(0, ttr=ttr)
            if task is not None:  # Otherwise another caller has taken it meanwhile.
                return task

    def take_many(
        self,
        tubes: Iterable[Tube | str],
        limit: int,
        timeout: Seconds | None = None,
        *,
        fair: bool = False,
        ttr: Seconds | None = None,
    ) -> list[Task]:
        """Take all available tasks of several tubes, up to `limit`: first from the first tube, then from the next one.

        `tubes`, `timeout`, `fair`, `ttr`: as for `take_any`; a waiting call gets tasks of the first tube to have one.
        `limit`: from 1 to 100,000. Returns [] on timeout.

        Raises what `take_any` raises.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     urgent, other = queue.create_tube("urgent"), queue.create_tube("other")
        ...     _ = other.put_many(["later", "last"]), urgent.put("now")
        ...     [task.data for task in queue.take_many([urgent, other], 2)]
        ['now', 'later']
        """
        count = check_limit(limit)
        patience = None if timeout is None else micros("timeout", timeout)
        named: list[Tube | str] = check_tube_list(tubes, fair, Tube, self._connection)
        found = [self._find_tube(one) if isinstance(one, str) else one for one in named]
        ports = order_ports([tube._port for tube in found], fair)
        tasks: list[Task] = []
        try:
            for port in ports:
                if len(tasks) < count:
                    tube: Tube = port.tube
                    some = tube.take_many(count - len(tasks), 0, ttr=ttr)
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
        top_up = partial(Task._top_up, limit=count, span=span)
        tasks = ThreadWaiter(ports[0].clock, patience, span=span).wait(AnyOf(ports), top_up)
        return tasks or []

    @property
    def admin(self) -> QueueAdmin:
        """Rare administration: check and repair, all namespaces and workers, sessions, drivers of your own."""
        return QueueAdmin(self._connection)

    def session(self) -> Queue:
        """Open another session on the same queue. Each session is closed on its own."""
        return Queue(self._connection.sibling())

    def close(self) -> None:
        """End the session and release its tasks; waiting calls raise `QueueClosed`. A second call has no effect."""
        self._connection.close()

    @property
    def closed(self) -> bool:
        """True once `close` or `detach` was called."""
        return self._connection.closed is not None

    def __enter__(self) -> Self:
        self._connection.ensure_connected()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connection.url}{' closed' if self.closed else ''}>"


class Enqueuer:
    """Puts tasks that call a function, with the options of `Queue.enqueue_with`."""

    def __init__(self, queue: Queue, tube: Tube | str | None, options: PutOptions) -> None:
        self._queue = queue
        self._tube = tube
        self._options = options

    @overload
    def __call__(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> Task: ...
    @overload
    def __call__(self, function: str, /, *args: Any, **kwargs: Any) -> Task: ...
    def __call__(self, function: Callable[..., object] | str, /, *args: Any, **kwargs: Any) -> Task:
        """Put a task that calls this function with these arguments. See `Queue.enqueue`."""
        return self._queue._enqueue(function, args, kwargs, self._tube, self._options)


class QueueAdmin:
    """Rare administration of a store: `Queue.admin`."""

    def __init__(self, connection: Connection[Task]) -> None:
        self._connection = connection

    def overview(self, *, ages: bool = False) -> dict[str, Overview]:
        """Return an `Overview` of each tube, by name. For monitoring.

        On a server one call reads 200 tubes, in a cluster one. The call opens no session in the tubes, and does not
        move due tasks: see `Overview.due_lag`. O(1) for each tube; in memory O(n) of the lanes and sessions.
        In a cluster the tubes of a node that does not reply are left out, and a warning names them.
        `ages`: include `oldest_ready_age`, by one more call for each tube that has a ready task. The age is also None
        if this process does not know the tube's driver.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     _ = queue.create_tube("mail").put("to ann")
        ...     {name: seen.statistics.tasks["ready"] for name, seen in queue.admin.overview().items()}
        {'mail': 1}
        """
        return self._overview(ages)

    def _overview(self, ages: bool, patterns: Collection[str] = ("*",)) -> dict[str, Overview]:
        """Return an overview of each tube whose name matches."""
        found = self._connection.overview(ages, patterns)
        parts = {name: parts_of(name, seen, self._connection.namespace) for name, seen in found.items()}
        names = [part for mine in parts.values() for part in mine]
        if not names:
            return found
        counted = self._connection.overview(ages, names)
        for name in found:
            if parts[name]:
                seen = [counted[part] for part in parts[name] if part in counted]
                found[name] = sum_overviews(found[name], seen, self._connection.joins_all_lines)
        return found

    def namespaces(self) -> list[str]:
        """Return the names of the namespaces of the store that have tubes, sorted. See `Queue.namespace`."""
        return self._connection.namespaces()

    def workers(self) -> list[WorkerInfo]:
        """Return the running workers of this store, in all processes, by host and process: see `WorkerInfo`.

        A `tubes.worker.Worker` reports itself when it starts (a burst: after five seconds) and then every five seconds,
        and leaves the list when it ends. If its process dies, it stays in the list for up to fifteen seconds. In memory
        these are the workers of this process. O(n) of the workers.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     [(worker.host, worker.pid, worker.in_hand) for worker in queue.admin.workers()]
        []
        """
        found = {info.id: info for info in infos_of(self._read_workers())}
        return sorted(found.values(), key=lambda info: (info.host, info.pid, info.started))

    def _read_workers(self) -> list[Task]:
        """Return the descriptions of the workers."""
        tube = self._workers_tube()
        selection = tube.select()
        filters = selection._filters
        scan, found = Scan(filters), dict[str | int, Task]()
        while not scan.ended:
            scan.bound = None  # A worker that reports itself between two parts has a new task.
            part = selection._part(scan, filters, PART, with_data=True)
            found |= {task.key or task.id: task for task in part}
        return [*found.values()]

    def durations(self) -> list[Durations]:
        """Return how long tasks have waited and run during the last five minutes: of each tube, and of each function.

        The running workers count it and report it every five seconds, without history in the store and without a call
        per task; see `Durations`. What a worker has counted disappears when it ends, and a burst reports after five
        seconds. Tasks that programs take themselves are not counted. Costs what `workers` costs.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     [(one.tube, one.function, one.wait_p95, one.run_p95) for one in queue.admin.durations()]
        []
        """
        timings: list[Timings] = []
        for task in self._read_workers():
            with suppress(CodecError, AttributeError, TypeError):  # Another program has put it.
                timings += timings_in(task.data)
        return durations_of(timings)

    def _workers_tube(self) -> Tube:
        return self._hidden_tube(WORKERS, 2 * HEARTBEAT_TTL, kept=False)

    def _hidden_tube(self, name: str, idle: float, *, kept: bool) -> Tube:
        """Open a tube of the library. On a server it expires after `idle` seconds without use.

        `kept`: it survives the process that has a folder open.
        """
        port = self._connection.open_hidden(name, "fifottl", idle, kept)
        tube: Tube = port.tube
        return tube

    @property
    def folder_usage(self) -> FolderUsage | None:
        """The disk usage of a store in a folder, see `FolderUsage`; None for other stores. Reads three file sizes.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     queue.admin.folder_usage
        """
        self._connection.check()
        return self._connection.folder_usage()

    def check(self, name: str) -> list[Problem]:
        """Return the problems of a tube: keys on the server that contradict each other or cannot be read.

        It changes nothing, and returns [] if there are no problems. Other programs may use the tube meanwhile; each
        problem existed at some moment. O(n), in scripts that read a few hundred tasks each; in memory in one step.

        Raises `TubeNotFound`, and `DriverNotFound` if a driver of your own is not registered.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     _ = queue.create_tube("mail").put("to ann")
        ...     queue.admin.check("mail")
        []
        """
        return self._examine(name, False)

    def repair(self, name: str) -> list[Problem]:
        """Repair a tube and return its problems, as `check` does. Other programs may use the tube meanwhile. O(n).

        No readable task is lost: a task that is missing in all indexes becomes ready, delayed or buried, according to
        its own fields. Unreadable data is moved to other keys. A second repair finds nothing.

        Raises what `check` raises.
        """
        return self._examine(name, True)

    def _examine(self, name: str, repairs: bool) -> list[Problem]:
        """Check or repair a tube and its partitions."""
        problems = self._examine_one(name, repairs)
        for part in self._parts_of(name):
            with suppress(TubeNotFound):  # It has not been used yet.
                problems += self._examine_one(part, repairs)
        return problems

    def _examine_one(self, name: str, repairs: bool) -> list[Problem]:
        return self._connection.examine(name, repairs)

    def _parts_of(self, name: str) -> list[str]:
        found = self._connection.overview(False, [name])
        return parts_of(name, found[name], self._connection.namespace) if name in found else []

    def identify(self, uuid: str | UUID | None = None, *, create: bool = False) -> str:
        """Return the uuid of this session; with a uuid, join that session first.

        The connections of a session share its tasks: each may ack a task that another one has taken. The session ends,
        and releases its tasks, when its last connection is closed. A connection that joins leaves its own session.
        `create`: start the session if it does not exist, so that the processes of a service can share one. The uuid
        must be random (version 4).

        Raises `SessionNotFound` if there is no such session, and `InvalidOption` for a bad uuid.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     queue.admin.identify("2b6c1f6e-58c4-4d0e-9a57-6a3f0d1c7e11", create=True)
        '2b6c1f6e58c44d0e9a576a3f0d1c7e11'
        """
        return self._connection.identify(uuid, create)

    def detach(self) -> None:
        """Close the connection, but keep its session for `session_ttl`: `identify(uuid)` can join it."""
        self._connection.close(lost=True)

    def register_driver(self, driver: Driver) -> None:
        """Register a custom driver for `create_tube`. Raises `DriverExists` if another driver has its name."""
        self._connection.register(driver)
