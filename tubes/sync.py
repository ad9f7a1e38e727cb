"""The API for threads: `connect`, `Queue`, `Tube` and `Task`.

`.ci/make_aio.py` generates `aio.py`, the API for asyncio, from this file. Two of its rules are visible here: each call
of the backend is a separate statement, and the result of a method is assigned to a name before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, overload
from uuid import UUID

from typing_extensions import Unpack

from tubes import calls, connecting
from tubes.backend.clock import Clock
from tubes.backend.interface import ApiKind, Connection, Port
from tubes.backend.listeners import callback_of, thread_listener
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
from tubes.backend.waiters import TUBE_EMPTY, TaskEnd, ThreadWaiter
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

    from tubes.aio import AsyncQueue

P = ParamSpec("P")


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
    the process, and lives until it ends. `file:jobs` is a folder on the disk, created if missing, which one process may
    have open at a time: with `?sync=full` each call waits for the disk, so that a power cut loses nothing; `?mode=read`
    reads its current state, also while another process has it open. `redis://`, `rediss://`, `unix://`,
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
        driver: str | Driver = "fifo",
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
        takes may start at once after an idle time (1). Every attempt counts.

        Raises `TubeExists`, `DriverNotFound`, `DriverExists`, `OptionNotSupported` and `InvalidOption`.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     queue.create_tube("crawl", "utubettl", ttr=60)
        <Tube 'crawl' (utubettl) of memory://>
        """
        port = self._connection.create(name, driver, combine_if_exists(if_not_exists, if_exists), temporary, options)
        tube: Tube = port.tube
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
        tube: Tube = port.tube
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
    def enqueue(self, function: Any, /, *args: Any, **kwargs: Any) -> Task:
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

        >>> import tubes
        >>> def send_email(to: str, subject: str = "hello") -> None: ...
        >>> with tubes.connect() as queue:
        ...     queue.enqueue(send_email, "ann").data
        {'task': 'send_email', 'args': ['ann'], 'kwargs': {}}
        """
        return self._enqueue(function, args, kwargs, None, {})

    def enqueue_with(self, *, tube: Tube | str | None = None, **options: Unpack[PutOptions]) -> Enqueuer:
        """Return `enqueue` with these options of `Tube.put`: `queue.enqueue_with(delay=60)(send_email, "ann")`.

        `tube`: the tube, or its name, that gets the task; None: as for `enqueue`.

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
        return Enqueuer(self, tube, options)

    def _enqueue(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        where: Tube | str | None,
        options: PutOptions,
    ) -> Task:
        name, data = call_of(function, args, kwargs)
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
        empty list or a tube of another queue.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     urgent, other = queue.create_tube("urgent"), queue.create_tube("other")
        ...     _ = other.put("later"), urgent.put("now")
        ...     [queue.take_any([urgent, other]).data for _ in range(2)]
        ['now', 'later']
        """
        patience = None if timeout is None else micros("timeout", timeout)
        named: list[Tube | str] = check_tube_list(tubes, fair, Tube, self._connection, order)
        found = [self._find_tube(one) if isinstance(one, str) else one for one in named]
        ports = order_ports([tube._port for tube in found], fair)
        task: Task | None
        if order == "pri":
            task = self._take_by_pri(found, ttr)
            if task is not None:
                return task
        for port in ports if order == "tubes" else ():
            if ttr is None:
                task = port.take()
            else:
                tube: Tube = port.tube
                task = tube.take(0, ttr=ttr)
            if task is not None:
                return task
        if patience == 0:
            return None
        waiter = ThreadWaiter(ports[0].clock, patience)
        if ttr is None:
            task = waiter.wait(AnyOf(ports))
            return task
        tasks = waiter.wait(AnyOf(ports), partial(Task._top_up, limit=1, span=micros("ttr", ttr)))
        return tasks[0] if tasks else None

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
        top_up = partial(Task._top_up, limit=count, span=None if ttr is None else micros("ttr", ttr))
        tasks = ThreadWaiter(ports[0].clock, patience).wait(AnyOf(ports), top_up)
        return tasks or []

    @property
    def admin(self) -> QueueAdmin:
        """Rare administration: check and repair, all namespaces and workers, sessions, drivers of your own."""
        return QueueAdmin(self)

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
    def __call__(self, function: Any, /, *args: Any, **kwargs: Any) -> Task:
        """Put a task that calls this function with these arguments. See `Queue.enqueue`."""
        return self._queue._enqueue(function, args, kwargs, self._tube, self._options)


class QueueAdmin:
    """Rare administration of a store: `Queue.admin`."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._connection = queue._connection

    def overview(self, *, ages: bool = False) -> dict[str, Overview]:
        """Return an `Overview` of each tube, by name. For monitoring.

        On a server one call reads 200 tubes, in a cluster one. The call opens no session in the tubes, and does not
        move due tasks: see `Overview.due_lag`. O(1) for each tube; in memory O(n) of the lanes and sessions.
        `ages`: include `oldest_ready_age`, by one more call for each tube that has a ready task. The age is also None
        if this process does not know the tube's driver.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     _ = queue.create_tube("mail").put("to ann")
        ...     {name: seen.statistics.tasks["ready"] for name, seen in queue.admin.overview().items()}
        {'mail': 1}
        """
        return self._connection.overview(ages)

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
        tube = self._workers_tube()
        # By id: a worker that reports itself between two pages is in both.
        found: dict[str, WorkerInfo] = {}
        last: Task | None = None
        while tasks := tube._tasks(last):
            last = tasks[-1]
            found |= {info.id: info for info in infos_of(tasks)}
        return sorted(found.values(), key=lambda info: (info.host, info.pid, info.started))

    def _workers_tube(self) -> Tube:
        port = self._connection.open_hidden(WORKERS, "fifottl", 2 * HEARTBEAT_TTL)
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
        """Return the problems of a tube: keys on the server that contradict each other or cannot be read. [] if none.

        It changes nothing. Other programs may use the tube meanwhile; each problem existed at some moment. O(n), in
        scripts that read a few hundred tasks each; in memory in one step.

        Raises `TubeNotFound`, and `DriverNotFound` if a driver of your own is not registered.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     _ = queue.create_tube("mail").put("to ann")
        ...     queue.admin.check("mail")
        []
        """
        return self._connection.examine(name, False)

    def repair(self, name: str) -> list[Problem]:
        """Repair a tube and return its problems, as `check` does. Other programs may use the tube meanwhile. O(n).

        No readable task is lost: a task that is missing in all indexes becomes ready, delayed or buried, according to
        its own fields. Unreadable data is moved to other keys. A second repair finds nothing.

        Raises what `check` raises.
        """
        return self._connection.examine(name, True)

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


class Tube(Generic[T, R]):
    """One tube, as one session sees it. Safe to share between threads.

    `Tube[Mail]` gives type checkers the type of the data, and `Tube[Mail, Reply]` also the type that a handler returns:
    `mails: tubes.Tube[Mail] = queue.create_tube("mails")`. The default is `Any`. Types are not checked at run time.

    Methods accept a task as a `Task`, by its lease (`task.lease`, see `Lease`) or by its id. A taken `Task` is valid
    for one take: if its time to run has ended and the task was taken again, its methods raise `TaskNotTaken`. A lease
    is valid for one take as well, in every session and process: with a lease all methods, also `bury`, `update`,
    `delete` and `peek`, raise `TaskNotTaken` once the take has ended. An id means the take that the session holds now.
    If several clients share a session, as behind a service, use leases.

    Methods accept seconds as a number or as a `datetime.timedelta`.

    Every method raises `QueueClosed` once the queue is closed, `TubeNotFound` once the tube is dropped, and
    `InvalidOption` for bad arguments. A method that raises has changed nothing.
    """

    def __init__(self, port: Port[Task[T]]) -> None:
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

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail", "fifottl", ttr=60, backoff=tubes.Backoff(1, cap=30))
        ...     tube.options["ttr"], tube.options["backoff"], tube.options.get("capacity", 0)
        (60.0, Backoff(first=1.0, factor=2.0, cap=30.0, jitter=0.0, seed=0), 0)
        """
        return MappingProxyType(as_arguments(self._port.shared.options))

    # -- putting -------------------------------------------------------------------------------------------------------

    @overload
    def put(self, data: T, *, timeout: None = NO_WAIT, **options: Unpack[PutOptions]) -> Task[T]: ...
    @overload
    def put(self, data: T, *, timeout: Seconds | None, **options: Unpack[PutOptions]) -> Task[T] | None: ...
    def put(
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
    ) -> Task[T] | None:
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

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail", "fifottl")
        ...     tube.put({"to": "ann"}, delay=5)
        Task(id=0, state='delayed', data={'to': 'ann'}, tube='mail')
        """
        # Frequent options are parameters: in a mapping they make a put in memory up to 40 % slower.
        if timeout is NO_WAIT:
            task = self._port.put(data, options, utube, pri, ttl, ttr, delay)
            if task is None:
                raise self._port.full_error(1)
            return task
        patience = None if timeout is None else micros("timeout", timeout)
        arguments = put_options(options, utube, pri, ttl, ttr, delay)
        if patience != 0:
            waiter = ThreadWaiter(self._port.clock, patience, self._port.prepare(data, arguments))
            waited: Task[T] | None = waiter.wait(self._port)
            return waited
        try:
            return self._port.put(data, arguments)
        except TubeFull as full:
            if "utube" not in full.facts:
                raise
            return None

    @overload
    def put_many(
        self,
        items: Iterable[T | Item[T]],
        *,
        timeout: Seconds | None = NO_WAIT,
        errors: Literal["raise"] = "raise",
        **options: Unpack[PutOptions],
    ) -> list[Task[T]]: ...
    @overload
    def put_many(
        self,
        items: Iterable[T | Item[T]],
        *,
        timeout: Seconds | None = NO_WAIT,
        errors: Literal["raise", "return"],
        **options: Unpack[PutOptions],
    ) -> list[Task[T] | TubesError]: ...
    def put_many(
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

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     tasks = tube.put_many(f"to {name}" for name in ("ann", "bob"))
        ...     [task.data for task in tasks]
        ['to ann', 'to bob']
        """
        patience = 0 if timeout is NO_WAIT else None if timeout is None else micros("timeout", timeout)
        batch = self._port.gather(items, options, errors)
        tasks: list[Task[T]] | None
        if patience != 0:
            tasks = ThreadWaiter(self._port.clock, patience, batch).wait(self._port)
        else:
            try:
                tasks = self._port.put_many(batch)
            except TubeFull as full:
                if timeout is NO_WAIT or "utube" not in full.facts:
                    raise
                tasks = None
        if tasks is None and timeout is NO_WAIT:
            raise self._port.full_error(batch.size)
        if tasks is not None and batch.errors:
            return batch.insert_errors(tasks)
        return tasks or []

    def call(self, data: T, timeout: Seconds | None = None, **options: Unpack[TaskOptions]) -> R:
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

        >>> import threading, tubes
        >>> from tubes.worker import Worker
        >>> with tubes.connect() as queue:
        ...     squares = queue.create_tube("squares")
        ...     worker = Worker(queue)
        ...     _ = worker.on(squares, lambda task: task.data**2)
        ...     running = threading.Thread(target=worker.run)
        ...     running.start()
        ...     print(squares.call(12, timeout=10))
        ...     worker.stop()
        ...     running.join()
        144
        """
        result: R = calls.call(self, data, timeout, options)
        return result

    # -- taking --------------------------------------------------------------------------------------------------------

    def take(self, timeout: Seconds | None = None, *, ttr: Seconds | None = None) -> Task[T] | None:
        """Take the first available task. O(1), at most O(log n).

        `timeout`: seconds to wait; None: forever; 0: do not wait. Waiting calls are served in the order of arrival.
        Returns None on timeout.
        `ttr`: seconds to run for this take only; later takes use the task's own ttr. A task without a ttr keeps this
        one for later takes. On a server a call that has waited costs one more round trip.

        Raises `OptionNotSupported` for a ttr if the driver has none.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     tube.take(timeout=0) is None
        True
        """
        if ttr is not None:
            tasks = self.take_many(1, timeout, ttr=ttr)
            return tasks[0] if tasks else None
        if timeout.__class__ is int and timeout == 0:
            return self._port.take()
        patience = None if timeout is None else micros("timeout", timeout)
        task: Task[T] | None = self._port.take()
        if task is None and patience != 0:
            task = ThreadWaiter(self._port.clock, patience).wait(self._port)
        return task

    def take_many(self, limit: int, timeout: Seconds | None = None, *, ttr: Seconds | None = None) -> list[Task[T]]:
        """Take all available tasks, up to `limit`, in the order of `take`.

        `limit`: from 1 to 100,000.
        `timeout`: seconds to wait for the first task, as for `take`. Returns [] on timeout.
        `ttr`: seconds to run for these takes, as for `take`.

        Limits of lanes apply. On a server a thousand tasks take one round trip.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     _ = tube.put_many(["to ann", "to bob", "to cid"])
        ...     tasks = tube.take_many(2, timeout=0)
        ...     tube.ack_many(tasks)
        {0: True, 1: True}
        """
        count = check_limit(limit)
        patience = None if timeout is None else micros("timeout", timeout)
        span = None if ttr is None else micros("ttr", ttr)
        top_up = partial(Task._top_up, limit=count, span=span)
        tasks = self._port.take_many(count, span)
        while not tasks and patience != 0:
            found = ThreadWaiter(self._port.clock, patience).wait(self._port, top_up)
            if found != []:  # Otherwise the ttr of the first task has ended already.
                return found or []
        return tasks

    def _first(self) -> tuple[int, int] | None:
        """Return the priority and the id of the first available task."""
        return self._port.first()

    @contextmanager
    def taking(self, timeout: Seconds | None = None, *, ttr: Seconds | None = None) -> Generator[Task[T]]:
        """Take a task for a `with` block. It is acked when the block ends, and released when the block raises.

        `timeout`, `ttr`: as for `take`. Raises `NothingReady` on timeout. If that is not an error for you, write
        `if task := tube.take(5):` and then `with task:`.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     with tube.taking(timeout=0) as task:
        ...         print(task.data)
        Traceback (most recent call last):
        tubes.errors.NothingReady: no task of tube 'mail' became ready within 0 s.
        """
        task = self.take(timeout, ttr=ttr)
        if task is None:
            raise NothingReady(tube=self.name, timeout=None if timeout is None else seconds("timeout", timeout))
        with task:
            yield task

    def __iter__(self) -> Generator[Task[T]]:
        """Take tasks until the queue is closed. Each task is acked when the loop asks for the next one.

        Raises `TubeNotFound` when the tube is dropped. If the loop ends by `break` or by an exception, its last task is
        released, unless the body has finished it (with asyncio a moment later, when the iterator is finalized). If a
        task was lost meanwhile, because its time to run has ended or the queue was closed, a warning is logged: ack a
        task yourself before you close the queue.
        """
        try:
            task = self.take()
            while task is not None:
                try:
                    yield task
                except BaseException as error:
                    task.__exit__(type(error), error, None)
                    raise
                task = self._ack_and_take(task) or self.take()
        except QueueForked:
            raise
        except QueueClosed:
            return

    def _ack_and_take(self, task: Task[T]) -> Task[T] | None:
        """Ack a task, unless it is finished already, and take the next one; return None if there is none."""
        if task._take in ENDED:
            return None
        try:
            return self._port.next(task)
        except QueueClosed as lost:
            log_lost_take(lost)
            raise

    def join(self, timeout: Seconds | None = None) -> bool:
        """Wait until no task of this tube is ready, delayed or taken. Returns False on timeout.

        Delayed tasks count, however long their delay, and so do tasks in backoff. Buried tasks and puts that wait for
        room do not count. Other programs may put tasks before this call returns.

        `timeout`: seconds to wait; None: forever; 0: do not wait. It does not poll: the end of the last task wakes the
        caller, in any process. On a server the caller receives the tube's events meanwhile, as `on_task_change` does.
        `statistics().waiting` does not count it. If the tube is dropped meanwhile, it raises `TubeNotFound`. O(1).

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     _ = tube.put("to ann")
        ...     print(tube.join(timeout=0))
        ...     _ = tube.take().ack()
        ...     print(tube.join())
        False
        True
        """
        patience = None if timeout is None else micros("timeout", timeout)
        is_empty: bool = self._port.is_empty()
        if is_empty or patience == 0:
            return is_empty
        ended = ThreadWaiter(self._port.clock, patience, TUBE_EMPTY).wait(self._port)
        return ended is not None

    # -- for the holder ------------------------------------------------------------------------------------------------

    def ack(self, task: Task[T] | str | int, result: R | None = None) -> Task[T]:
        """Finish a task as done: it is removed, or kept for its `keep_done` seconds. O(1), O(log n) if kept.

        `result`: stored with a kept task, for `task.result` and `Tube.result`; otherwise it is dropped.

        Raises `TaskNotTaken` unless this session holds the task, and `CodecError` for a result that cannot be encoded.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("squares", keep_done=60)
        ...     task = tube.put(12)
        ...     _ = tube.take().ack(result=144)
        ...     tube.result(task)
        144
        """
        if result is None:
            return self._port.ack(task)
        return self._port.ack_with(task, result)

    def ack_many(self, tasks: Iterable[Task[T] | str | int]) -> dict[int, bool]:
        """Finish these tasks, each as `ack` does. Returns a dict by id, in their order: True if the task was acked.

        False means that this session does not hold the task, or not by this take. On a server a few thousand tasks take
        one round trip. Raises `InvalidOption` for a task of another tube.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     _ = tube.put_many(["to ann", "to bob"])
        ...     tube.ack_many([tube.take(0), 1])
        {0: True, 1: False}
        """
        return self._port.ack_many(tasks)

    def release_many(
        self, tasks: Iterable[Task[T] | str | int], delay: Seconds | None = None, *, at: datetime | None = None
    ) -> dict[int, bool]:
        """Give these tasks back, each as `release` does. Returns a dict by id: True if the task was released.

        Raises `OptionNotSupported` for a delay if the driver has none, `InvalidOption` for a task of another tube.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     _ = tube.put_many(["to ann", "to bob"])
        ...     tube.release_many(tube.take_many(2))
        {0: True, 1: True}
        """
        delay = delay_of(delay, at, self._port.connection.micros)
        return self._port.release_many(tasks, delay)

    def release(
        self,
        task: Task[T] | str | int,
        delay: Seconds | None = None,
        *,
        at: datetime | None = None,
        reason: str | None = None,
        pri: int | None = None,
        data: T = KEEP,
    ) -> Task[T]:
        """Give the task back. It returns to its place in the order, ahead of younger tasks. O(log n).

        `delay`: seconds until it is ready again; its ttl is extended by the same time. None: the tube's `backoff`, or
        at once if it has none. After its last attempt (`max_attempts`) the task is buried instead, with this `reason`
        or a standard one. `pri`, `data`: its new priority and data, as for `update`, in the same step.

        Raises `TaskNotTaken` unless this session holds the task, `OptionNotSupported` for a delay or a priority if the
        driver has none.
        """
        delay = delay_of(delay, at, self._port.connection.micros)
        return self._port.release(task, delay, reason, pri, data)

    def _decline(self, task: Task[T], delay: Seconds) -> Task[T]:
        """Give a task back for another worker: the attempt does not count, and the delay does not extend the ttl."""
        return self._port.decline(task, delay)

    def touch(self, task: Task[T] | str | int, seconds: Seconds = KEEP, *, ttr: Seconds = KEEP) -> Task[T]:
        """Give the holder of a task more time. O(log n).

        Without arguments the task's own time to run starts again.
        `seconds`: extend the task's ttr and ttl by these seconds, also for later takes; 0 changes nothing. Neither can
        end later than 200 years from now.
        `ttr`: instead of `seconds`: the remaining time to run of this take, in seconds from now. It may be shorter than
        before; with 0 the take ends at once, as if its ttr had ended. Later takes use the task's own ttr. It has no
        effect on a task without a ttr.

        Raises `TaskNotTaken` unless this session holds the task, `OptionNotSupported` if the driver has no ttr.

        >>> import tubes
        >>> with tubes.connect(clock=tubes.testing.ManualClock()) as queue:
        ...     tube = queue.create_tube("mail", "fifottl", ttr=60)
        ...     _ = tube.put("to ann")
        ...     task = tube.touch(tube.take(), ttr=300)
        ...     task.due - task.created, task.ttr
        (300.0, 60.0)
        """
        if seconds is KEEP:
            return self._port.set_ttr(task, None if ttr is KEEP else micros("ttr", ttr))
        if ttr is not KEEP:
            raise InvalidOption(option="ttr", value=ttr, rule="cannot be combined with seconds")
        return self._port.touch(task, seconds)

    def touch_many(self, tasks: Iterable[Task[T] | str | int], ttr: Seconds) -> dict[int, bool]:
        """Give these tasks at least `ttr` seconds to run from now on. Returns a dict by id: True if the task is held.

        Call it regularly to keep tasks while you work on them. It never shortens a time to run, and later takes use the
        task's own ttr. If the driver ends taken tasks by their ttl (`utubettl` does not), the ttl is extended as
        far as needed. A task without ttr needs no renewal. On a server a few thousand tasks take one round trip.
        O(log n) each.

        Raises `OptionNotSupported` if the driver has no ttr, `InvalidOption` for a task of another tube.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail", "fifottl", ttr=60)
        ...     _ = tube.put("to ann")
        ...     tube.touch_many([tube.take(0)], 60)
        {0: True}
        """
        return self._port.renew_many(tasks, ttr)

    def _checkpoint(
        self, task: Task[T] | str | int, saved: object = None, progress: float | None = None, note: str | None = None
    ) -> Task[T]:
        """Store facts of a held task, as `Task.checkpoint` does."""
        return self._port.checkpoint(task, checkpoint_changes(saved, progress, note))

    # -- done tasks that are kept --------------------------------------------------------------------------------------

    def result(self, task: Task[T] | int, timeout: Seconds | None = None) -> R:
        """Wait until a task is done, and return its result: the value that a handler returned or passed to `ack`.

        `task`: a task with `keep_done`. Any program may wait, as long as the task is kept.
        `timeout`: seconds to wait; None: forever; 0: do not wait. It does not poll: the end of the task wakes the
        caller, in any process. On a server the caller receives the tube's events meanwhile, as for `join`.

        Raises `TaskNotFound` if the task does not exist or is no longer kept; `CallFailed` if it will have no result,
        because it was buried or deleted, or its ttl has ended; `CallTimeout` on timeout: the task stays and may still
        run; `InvalidOption` for a task without `keep_done`. O(1).

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("squares")
        ...     task = tube.put(12, keep_done=60)
        ...     _ = tube.take().ack(result=144)
        ...     tube.result(task, timeout=5)
        144
        """
        patience = None if timeout is None else micros("timeout", timeout)
        seen = self._port.peek(task)
        done = check_end(seen)
        in_time = patience != 0
        while done is None and in_time:
            id = seen.id
            seen = ThreadWaiter(self._port.clock, patience, TaskEnd(id)).wait(self._port)
            in_time = seen is not None
            if seen is None or seen is True:  # True: its record was not kept, or its event was lost.
                seen = self._port.peek(id)
            done = check_end(seen)
        if done is None:
            waited = seconds("timeout", timeout)
            raise CallTimeout(id=seen.id, tube=self.name, timeout=waited, state=str(seen.state))
        result: R = done.result
        return result

    # -- for everybody -------------------------------------------------------------------------------------------------

    def bury(self, task: Task[T] | str | int, reason: str | None = None, *, pri: int | None = None) -> Task[T]:
        """Bury a task in any state, also if another session holds it. It is not taken again until `kick`. O(log n).

        `reason`: stored as `task.reason`. `pri`: its new priority.

        Its ttl keeps running, unless the tube has a `buried_ttl`. It keeps its key: puts with this key add no task
        until it is done after a kick, deleted, or replaced by a put with `on_duplicate="replace"`. Burying a buried
        task changes nothing. Raises `TaskNotFound` if the task does not exist.
        """
        return self._port.bury(task, reason, pri)

    @overload
    def kick(self, count: int = 1) -> int: ...
    @overload
    def kick(
        self, *, task: Task[T] | str | int, attempts: int | None = None, ttl: Seconds | None = None
    ) -> Task[T]: ...
    def kick(self, count: int = 1, *, task: Any = KEEP, attempts: int | None = None, ttl: Seconds | None = None) -> Any:
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

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail", max_attempts=1)
        ...     _ = tube.put("hello")
        ...     dead = tube.take(timeout=0).release()
        ...     tube.kick(task=dead, attempts=3).max_attempts
        4
        """
        if task is KEEP:
            most = integer("count", count)
            if attempts is not None or ttl is not None:
                option, value = ("ttl", ttl) if attempts is None else ("attempts", attempts)
                raise InvalidOption(option=option, value=value, rule="needs a task; for several tasks see Tube.select")
            buried = self.select(State.BURIED, limit=most)
            kicked: int = buried.kick()
            return kicked
        try:
            return self._port.kick_task(task, attempts, ttl)
        except TaskNotFound:
            done = self.peek(task)  # Raises if it is not kept, either.
            if done.state is not State.DONE:
                raise
        if attempts is not None or ttl is not None:
            option, value = ("ttl", ttl) if attempts is None else ("attempts", attempts)
            rule = "must be left out for a done task, which is put again as it was"
            raise InvalidOption(option=option, value=value, rule=rule)
        new: Task[T] = self._put_again(done)
        return new

    def _put_again(self, done: Task[T]) -> Task[T]:
        new = self._port.again(done)
        if new is None:
            raise self._port.full_error(1)
        return new

    def update(
        self,
        task: Task[T] | str | int,
        *,
        data: T = KEEP,
        pri: int = KEEP,
        delay: Seconds = KEEP,
        ttl: Seconds = KEEP,
        at: datetime | None = None,
    ) -> Task[T]:
        """Change a task in any state, also if another session holds it. All changes are made in one step. O(log n).

        `data`: its new data; the holder keeps the data that it got.
        `pri`: its new priority; the task moves to its new place.
        `delay`: seconds from now until a ready or delayed task is ready; 0: at once. Its ttl does not change.
        `at`: the time at which it is ready, instead of `delay`: a `datetime` with a time zone, as for `put`.
        `ttl`: seconds to live from now on, for a task that is not taken; 0 ends it.
        Without any change it is a `peek`.

        Raises `TaskNotFound` if the task does not exist, `OptionNotSupported` for an option that the driver lacks, and
        `InvalidOption` for the delay of a taken or buried task, and for the ttl of a taken one: use `touch`.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail", "fifottl")
        ...     task = tube.put("helo", delay=60)
        ...     tube.update(task, data="hello", delay=0)
        Task(id=0, state='ready', data='hello', tube='mail')
        """
        delay = delay_of(delay, at, self._port.connection.micros)
        changes = {"data": data, "pri": pri, "delay": delay, "ttl": ttl}
        return self._port.update(task, changes)

    def peek(self, task: Task[T] | str | int) -> Task[T]:
        """Return the current state of a task without changing it. O(1).

        A done task is found as long as it is kept: `task.result`, `task.ended` and `task.why` tell its end.

        Raises `TaskNotFound` if the task does not exist.
        """
        return self._port.peek(task)

    def delete(self, task: Task[T] | str | int, *, state: str | Iterable[str] | None = None) -> Task[T]:
        """Remove a task in any state, also if another session holds it. O(1).

        A task with `keep_done` is kept as a done task; a kept done task is forgotten.
        `state`: "ready", "taken", "buried", "delayed" or "done", or a list of them: remove the task only if it is in
        one of these states.

        Raises `TaskNotFound` if the task does not exist or is in another state.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     tube.delete(tube.put("to ann"), state=["ready", "buried"])
        Task(id=0, state='done', data='to ann', tube='mail')
        """
        return self._port.delete(task, check_states(state))

    def cancel(self, task: Task[T] | str | int, reason: str | None = None) -> Task[T]:
        """End a task in any state as cancelled, also if another session holds it. O(1).

        `reason`: stored as `task.reason`, if the task is kept.

        The task is removed, or kept for its `keep_done` seconds; `task.why` is "cancelled". If it was taken, it is kept
        for at least 60 seconds, and its holder is told at once: a worker cancels an async handler, and kills the
        process of a handler. A plain handler gets `TaskCancelled` at its next `Task.checkpoint`, and `task.cancelled`
        is True. The caller of `Tube.call` gets `CallFailed`.

        Raises `TaskNotFound` if the task does not exist or is done.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("videos", keep_done=60)
        ...     task = tube.cancel(tube.put("a long film"), "wrong file")
        ...     task.why, task.reason
        ('cancelled', 'wrong file')
        """
        ended = self._port.cancel(task, reason)
        calls.tell_caller(ended)
        return ended

    def delete_many(
        self, tasks: Iterable[Task[T] | str | int], *, state: str | Iterable[str] | None = None
    ) -> dict[int, bool]:
        """Remove these tasks, each as `delete` does. Returns a dict by id, in their order: True if it was removed.

        `state`: as for `delete`: a task in another state stays, and its value is False.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     _ = tube.put_many(["to ann", "to bob"])
        ...     tube.delete_many([1, 7])
        {1: True, 7: False}
        """
        return self._port.delete_many(tasks, check_states(state))

    def truncate(self) -> None:
        """Remove all tasks at once, and the state of lanes. Ids and counts continue; listeners are not called. O(n).

        `select` removes some of them, each as `delete` does.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     _ = tube.put("to ann").bury(), tube.put("to bob")
        ...     tube.truncate()
        ...     tube.select().count()
        0
        """
        self._port.truncate()

    def alter(self, **changes: Unpack[TubeOptions]) -> None:
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

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail", "fifottl", ttr=60, capacity=100)
        ...     tube.alter(ttr=120, max_attempts=5, capacity=None)
        ...     dict(tube.options)
        {'max_attempts': 5, 'ttr': 120.0}
        """
        self._port.alter(dict(changes))

    def pause(self, seconds: Seconds | None = None) -> None:
        """Stop takes from this tube for some seconds; None: until `pause(0)`. O(1).

        Takes in all sessions and processes find no task, and wait; `take_any` uses its other tubes. Producers can still
        put, holders can still ack or release, and ttl, ttr and delays keep running. Waiting calls are served as soon as
        the pause ends. Another `pause` sets a new end; 0 ends it at once. The pause belongs to the tube, not to the
        session that set it, and `truncate` keeps it. `statistics().paused` is its end.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     _ = tube.put("hello")
        ...     tube.pause(3600)
        ...     print(tube.take(timeout=0))
        ...     tube.pause(0)
        ...     print(tube.take(timeout=0).data)
        None
        hello
        """
        self._port.pause(seconds)

    def drop(self, *, force: bool = False) -> None:
        """Remove the tube and its tasks. O(n).

        Raises `TubeBusy` while tasks are taken or callers wait. `force`: remove the tube anyway; waiters and holders
        get `TubeNotFound`.
        """
        self._port.drop(force)

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def lane(self, name: str) -> Lane:
        """Return a lane of this tube, by the value of the tasks' option `utube`. O(1), without a call of the store.

        A lane need not exist: it has no tasks then, and it can be blocked and configured in advance.

        Raises `OptionNotSupported` if the driver has no lanes, and `InvalidOption` for a bad name.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     queue.create_tube("crawl", "utube").lane("example.com")
        <Lane 'example.com' of <Tube 'crawl' (utube) of memory://>>
        """
        return Lane(self._port, name)

    def lanes(self, limit: int = 1000) -> list[LaneInfo]:
        """Return up to `limit` lanes, sorted by name.

        The list has the lanes with ready or taken tasks, the lanes in cooldown or blocked, and the lanes with
        their own limits.

        O(n) of the lanes: for monitoring. Raises `OptionNotSupported` if the driver has no lanes.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("crawl", "utube")
        ...     _ = tube.put("/", utube="example.com")
        ...     [(lane.name, lane.ready) for lane in tube.lanes()]
        [('example.com', 1)]
        """
        return self._port.lanes(limit)

    # -- looking -------------------------------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Return the counts of tasks by state and of calls. O(1), O(n) of the sessions."""
        return self._port.statistics()

    def _tasks(
        self,
        after: Task[T] | int | None = None,
        limit: int = 1000,
        *,
        state: State | str | None = None,
        utube: str | None = None,
    ) -> list[Task[T]]:
        """Return a page of tasks after a task or its id, in the order of `select`."""
        return self._port.tasks(after, limit, state, utube)

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
    ) -> Selection[T]:
        """Select tasks by these properties. `Selection` iterates over them, counts or changes them. O(1).

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

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     for name in ("ann", "bob"):
        ...         _ = tube.put({"to": name}).bury(f"ValueError: no {name}")
        ...     print([task.data for task in tube.select("buried", contains="ann")])
        ...     print(tube.select(reason="ValueError").count(), tube.select(reason="ValueError").kick())
        [{'to': 'ann'}]
        2 2
        """
        driver = self.driver
        filters = check_filters(driver, state, reason, contains, lane, key, older_than, attempts, newest_first, limit)
        return Selection(self._port, filters)

    def on_task_change(
        self, callback: Callable[[Task[T], str], object] | None
    ) -> Callable[[Task[T], str], object] | None:
        """Call `callback(task, event)` for every change in this tube, by any program; None removes the callback.

        Events: `put take release touch bury kick delete update ttl ttr delay cancel`; an ack is a `delete` as well. The
        callback is called after each change, in the order of the changes, one at a time, in a thread that makes
        changes: do long work elsewhere. Its errors are logged. Each `Queue` has one callback per tube, as long as the
        `Queue` lives. Returns the previous callback.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     _ = tube.on_task_change(lambda task, event: print(event, task.id))
        ...     _ = tube.put("hello")
        put 0
        """
        before = self._port.listen(callback, thread_listener)
        return callback_of(before)

    @property
    def admin(self) -> TubeAdmin[T]:
        """Rare administration: reasons of dead letters, ages, known keys, all taken tasks."""
        return TubeAdmin(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} ({self.driver.name}) of {self._port.url}>"


class Selection(Generic[T]):
    """Tasks of a tube with some properties: `Tube.select`. Nothing is read before it is used, and each use reads again.

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

    def __init__(self, port: Port[Task[T]], filters: Filters) -> None:
        self._port = port
        self._filters = filters

    def __iter__(self) -> Generator[Task[T]]:
        """Return the tasks, without taking them. Each part of at most 250 is consistent; tasks come and go between."""
        scan, returned = Scan(self._filters), 0
        while not scan.ended and (size := part_size(self._filters, returned)):
            tasks = self._part(scan, self._filters, size, with_data=True)
            for task in tasks[: remaining(self._filters, returned)]:
                returned += 1
                yield task

    def _part(self, scan: Scan, filters: Filters, size: int, *, with_data: bool = False) -> list[Any]:
        """Return the next part: tasks, or without their data only which tasks there are."""
        return self._port.select(filters, scan, size, with_data)

    def _evict(self, tasks: list[Task[T]]) -> list[bool]:
        """Remove these tasks unless they have changed; return whether each was removed."""
        return self._port.evict(tasks)

    def count(self) -> int:
        """Count the tasks. On a server their data stay there."""
        scan, counted = Scan(self._filters), 0
        while not scan.ended and (size := part_size(self._filters, counted)):
            seen = self._part(scan, self._filters, size)
            counted += len(seen[: remaining(self._filters, counted)])
        return counted

    def kick(
        self,
        *,
        attempts: int | None = None,
        ttl: Seconds | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> int:
        """Make the buried and delayed tasks ready, and return their number. O(log n) each.

        `attempts`, `ttl`: as for `Tube.kick`. Raises `OptionNotSupported` for a ttl if the driver has none.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail", max_attempts=1)
        ...     _ = tube.put("hello")
        ...     tube.take(timeout=0).release()
        ...     tube.select("buried", limit=10).kick(attempts=3)
        Task(id=0, state='buried', data='hello', tube='mail', attempts=1, reason='max_attempts: release')
        1
        """
        arguments = self._port.shared.driver.check_kick(attempts, ttl)
        return self._change("kick", arguments, on_progress)

    def release(self, *, on_progress: Callable[[int], object] | None = None) -> int:
        """Release the taken tasks, of any session, and return their number. O(log n) each.

        Each counts as a release, and its last attempt buries it. Its holder gets `TaskNotTaken` from now on, but may
        still be at work.
        """
        return self._change("release", (), on_progress)

    def bury(self, reason: str | None = None, *, on_progress: Callable[[int], object] | None = None) -> int:
        """Bury the ready, delayed and taken tasks, and return their number. `reason`: as for `Tube.bury`. O(log n)."""
        return self._change("bury", (check_reason(reason),), on_progress)

    def delete(self, *, on_progress: Callable[[int], object] | None = None) -> int:
        """Remove the tasks, each as `Tube.delete` does, and return their number. O(log n) each.

        With `state="done"` kept done tasks are forgotten.
        """
        return self._change("delete", (), on_progress)

    def cancel(self, reason: str | None = None, *, on_progress: Callable[[int], object] | None = None) -> int:
        """End the ready, delayed, taken and buried tasks, each as `Tube.cancel` does, and return their number.

        `reason`: as for `Tube.cancel`. O(log n) each. It reads the tasks with their data.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("videos")
        ...     _ = tube.put_many([{"film": 1}, {"film": 2}])
        ...     tube.select(contains='"film":2').cancel("wrong file"), tube.select().count()
        (1, 1)
        """
        why = check_reason(reason)
        check_progress(on_progress)
        filters = narrowed(self._filters, "cancel")
        scan, cancelled = Scan(filters), 0
        while not scan.ended and (size := part_size(filters, cancelled)):
            found = self._part(scan, filters, size, with_data=True)
            left = changeable_tasks("cancel", found)
            while tasks := left[: remaining(filters, cancelled)]:
                left = left[len(tasks) :]
                done = self._port.change_seen("cancel", see_all(tasks), (why,))
                cancelled += sum(done)
                for task in cancelled_tasks(tasks, done, why):
                    calls.tell_caller(task)
            if on_progress is not None and on_progress(cancelled) is False:
                break
        return cancelled

    def _change(self, act: str, arguments: tuple[Any, ...], on_progress: Callable[[int], object] | None) -> int:
        check_progress(on_progress)
        filters = narrowed(self._filters, act)
        scan, changed = Scan(filters), 0
        while not scan.ended and (size := part_size(filters, changed)):
            found = self._part(scan, filters, size)
            left = changeable(act, found)
            while seen := left[: remaining(filters, changed)]:
                left = left[len(seen) :]
                done = self._port.change_seen(act, seen, arguments)
                changed += sum(done)
            if on_progress is not None and on_progress(changed) is False:
                break
        return changed

    def move_to(self, tube: Tube[T, Any], *, on_progress: Callable[[int], object] | None = None) -> int:
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

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     mail, dead = queue.create_tube("mail"), queue.create_tube("dead")
        ...     _ = mail.put("to ann").bury("no such address"), mail.put("to bob")
        ...     print(mail.select("buried").move_to(dead), [task.data for task in mail.select()])
        ...     [*dead.select()]
        1 ['to bob']
        [Task(id=0, state='ready', data='to ann', tube='dead')]
        """
        check_target(self._port, tube, Tube)
        check_progress(on_progress)
        filters = narrowed(self._filters, "move")
        together = self._port.relay_limit(tube._port)
        scan, moved, at_once = Scan(filters), 0, together or MOVE_BATCH
        copies: list[Task[T]] = []
        waiting: list[Task[T]] = []
        while waiting or not scan.ended:
            if not waiting:
                size = part_size(filters, moved)
                if not size:
                    break
                found = self._part(scan, filters, size, with_data=True)
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
                    relayed = self._port.relay(tube._port, tasks, tube._port.gather(items, {}))
                    if relayed is None:
                        raise tube._port.full_error(len(tasks))
                    moved += sum(relayed)
                    del waiting[: len(relayed)]
                else:
                    copies = tube.put_many(items)
            except TubesError as error:
                at_once = smaller_batch_size(error, tasks, tube.name)
                continue
            if not together:
                removed = self._evict(tasks)
                strays = [copy.id for copy, is_gone in zip(copies, removed, strict=True) if not is_gone]
                if strays:
                    tube.delete_many(strays, state=("ready", "delayed"))
                moved += len(tasks) - len(strays)
                del waiting[: len(tasks)]
            if on_progress is not None and on_progress(moved) is False:
                break
        return moved

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._port.tube!r}>"


class Lane:
    """One lane of a tube: `Tube.lane`. Its tasks are the tasks with its name as their option `utube`."""

    def __init__(self, port: Port[Any], name: str) -> None:
        self._port = port
        self.name = lane_of(port.shared.driver, name)

    def info(self) -> LaneInfo:
        """Return the lane's tasks, limits, next start and block. O(log n).

        A lane that `Tube.lanes` does not list has no tasks, and the limits of the tube.
        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     lane = queue.create_tube("crawl", "utube", interval=2).lane("example.com")
        ...     lane.block(30, reason="429")
        ...     info = lane.info()
        ...     info.ready, info.interval, info.blocked_until is not None, info.blocked_reason
        (0, 2.0, True, '429')
        """
        return self._port.lane_info(self.name)

    def block(self, seconds: Seconds, *, extend: bool = False, reason: str | None = None) -> None:
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
        self._port.block(self.name, seconds, extend, reason)

    def unblock(self) -> None:
        """End a block and serve waiting calls. A cooldown goes on. Without a block it has no effect. O(log n)."""
        self._port.block(self.name, 0, False, None)

    def configure(
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

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("crawl", "utube", interval=1)
        ...     tube.lane("example.com").configure(interval=10)
        ...     tube.lanes()[0].interval
        10.0
        """
        limits = {
            "interval": interval,
            "max_in_flight": max_in_flight,
            "interval_from": interval_from,
            "capacity": capacity,
            "rate": rate,
            "burst": burst,
        }
        self._port.configure(self.name, limits)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._port.tube!r}>"


class TubeAdmin(Generic[T]):
    """Rare administration of a tube: `Tube.admin`."""

    def __init__(self, tube: Tube[T, Any]) -> None:
        self._tube = tube
        self._port = tube._port

    def reasons(self) -> dict[str, int]:
        """Count the buried tasks by the kind of their reason, the most frequent first. O(n) of the buried tasks.

        The kind of a reason is the text before its first colon, so `ValueError: no such address: x@y` counts as
        `ValueError`; reasons like `max_attempts: ttr` stay whole, and "none" counts tasks without a reason. On a server
        a script looks at 250 tasks, and their data stays there.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     for reason in ("ValueError: 1", "late", "ValueError: 2"):
        ...         _ = tube.put("to ann").bury(reason)
        ...     tube.admin.reasons()
        {'ValueError': 2, 'late': 1}
        """
        found = self._port.reasons()
        return by_kind(found)

    def oldest_ready_age(self) -> float | None:
        """Return the age in seconds of the oldest ready task, by its id; None if no task is ready.

        The age includes the time for which it was delayed or taken. It is the first sign of a growing backlog. O(n) of
        the older tasks that are not ready.
        """
        return self._port.oldest_ready_age()

    def due_histogram(self, edges: Iterable[Seconds]) -> list[int]:
        """Count tasks by the time until their delay, ttr or ttl ends.

        `edges`: seconds from now, ascending. Returns one number more than there are edges: the tasks that are due
        before the first edge, from the first to before the second, …, from the last on. O(n); on a server O(log n) for
        each edge.

        >>> import tubes
        >>> with tubes.connect(clock=tubes.testing.ManualClock()) as queue:
        ...     tube = queue.create_tube("mail", "fifottl")
        ...     for delay in (1, 5, 30, 3600):
        ...         _ = tube.put("later", delay=delay)
        ...     tube.admin.due_histogram([10, 60])
        [2, 1, 1]
        """
        return self._port.due_histogram(edges)

    def forget_key(self, key: str) -> bool:
        """Forget a key that `key_ttl` remembers after its task has ended. Returns True if it was remembered. O(log n).

        The next put with this key adds a task. The key of a task in the tube stays, and the call returns False.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("crawl", key_ttl=3600)
        ...     _ = tube.put("/", key="/").delete()
        ...     tube.admin.forget_key("/"), tube.admin.forget_key("/")
        (True, False)
        """
        return self._port.forget_key(key)

    def release_all(self) -> None:
        """Release all taken tasks of all sessions. O(n log n) of the taken tasks."""
        self._port.release_all()


class Task(TaskView[T]):
    """A task of a `Tube`: its state at one moment, and methods.

    A `with` block acks the task at its end, and releases it if the block raises.

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     tube = queue.create_tube("mail")
    ...     _ = tube.put("hello")
    ...     with tube.taking(timeout=0) as task:
    ...         print(task.data)
    hello
    """

    __slots__ = ()
    _tube: Tube[T]

    def take(self, *, ttr: Seconds | None = None) -> Task[T] | None:
        """Take this task out of turn. Returns None if it may not be taken now. O(log n).

        A task cannot be taken while it is not ready, its lane is busy or in cooldown, or the tube is paused.
        `ttr`: seconds to run for this take, as for `Tube.take`.

        Raises `TaskNotFound` if the task does not exist, and `OptionNotSupported` for a ttr if the driver has none.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     ann, bob = tube.put_many(["to ann", "to bob"])
        ...     bob.take().data, bob.take()
        ('to bob', None)
        """
        span = None if ttr is None else micros("ttr", ttr)
        return self._tube._port.take_task(self, span)

    def ack(self, result: Any = None) -> Task[T]:
        """Finish the task. See `Tube.ack`."""
        return self._tube.ack(self, result)

    def release(
        self,
        delay: Seconds | None = None,
        *,
        at: datetime | None = None,
        reason: str | None = None,
        pri: int | None = None,
        data: T = KEEP,
    ) -> Task[T]:
        """Give the task back. See `Tube.release`."""
        return self._tube.release(self, delay=delay, at=at, reason=reason, pri=pri, data=data)

    def touch(self, seconds: Seconds = KEEP, *, ttr: Seconds = KEEP) -> Task[T]:
        """Get more time to work. See `Tube.touch`."""
        return self._tube.touch(self, seconds, ttr=ttr)

    def checkpoint(self, saved: object = None, *, progress: float | None = None, note: str | None = None) -> Task[T]:
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

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("videos")
        ...     _ = tube.put("a long film")
        ...     with tube.taking(timeout=0) as task:
        ...         for minute in range(task.saved or 0, 90):
        ...             last = task.checkpoint(minute + 1, progress=(minute + 1) / 90)
        ...     last.saved, last.progress
        (90, 1.0)
        """
        try:
            updated = self._tube._checkpoint(self, saved, progress, note)
        except TaskNotTaken as lost:
            if self._take == CANCELLED and not isinstance(lost, TaskCancelled):  # Its record is gone.
                raise TaskCancelled(id=self.id, tube=self.tube, reason=None) from None
            raise
        check: Callable[[], None] | None = self._tube._port.connection.on_checkpoint
        if check is not None:
            check()
        return updated

    def bury(self, reason: str | None = None, *, pri: int | None = None) -> Task[T]:
        """Bury the task. See `Tube.bury`."""
        return self._tube.bury(self, reason, pri=pri)

    def kick(self, *, attempts: int | None = None, ttl: Seconds | None = None) -> Task[T]:
        """Make the task ready, if it is buried, delayed or done. See `Tube.kick`."""
        return self._tube.kick(task=self, attempts=attempts, ttl=ttl)

    def update(
        self,
        *,
        data: T = KEEP,
        pri: int = KEEP,
        delay: Seconds = KEEP,
        ttl: Seconds = KEEP,
        at: datetime | None = None,
    ) -> Task[T]:
        """Change the task. See `Tube.update`."""
        return self._tube.update(self, data=data, pri=pri, delay=delay, ttl=ttl, at=at)

    def delete(self, *, state: str | Iterable[str] | None = None) -> Task[T]:
        """Remove the task. See `Tube.delete`."""
        return self._tube.delete(self, state=state)

    def cancel(self, reason: str | None = None) -> Task[T]:
        """End the task as cancelled. See `Tube.cancel`."""
        return self._tube.cancel(self, reason)

    def peek(self) -> Task[T]:
        """Return the current state of the task. See `Tube.peek`."""
        return self._tube.peek(self)

    def _top_up(self, limit: int, span: int | None) -> list[Task[T]]:
        """Return this task, which a waiting call got, and more available tasks, up to `limit` in all."""
        return self._tube._port.top_up(self, limit, span)

    def __enter__(self) -> Task[T]:
        self._check_taken()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._take in ENDED:
            return
        if kind is None:
            self.ack()
            return
        if kind is GeneratorExit:
            # The garbage collector may raise it in the middle of a call, or after the loop is closed.
            self._tube._port.release_later(self)
            return
        # The block's own error matters more. A task that cannot be released is lost already.
        with suppress(TubesError):
            if issubclass(kind, Exception):
                self.release()
            else:  # The block was interrupted or cancelled: the task has not failed.
                self._tube._port.release_unfailed(self)
