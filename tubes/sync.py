"""The API for threads: `connect`, `Queue`, `Tube` and `Task`.

`.ci/make_aio.py` makes `aio.py`, the API for asyncio, of this file, and says by which rules. Two of them are felt here:
a backend is asked in a statement of its own, and what a method has answered gets a name before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, overload
from uuid import UUID

from typing_extensions import Unpack

from tubes import calls, connecting
from tubes.backend.clock import Clock
from tubes.backend.interface import ApiKind, Connection, Port
from tubes.backend.listeners import callback_of, thread_listener
from tubes.backend.port import how_if_exists
from tubes.backend.take_any import AnyOf, in_turn, listed
from tubes.backend.url import DEFAULT_URL
from tubes.backend.waiters import EMPTY, ThreadWaiter
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

    `url`: `memory://` is private to the returned Queue and the sessions made from it; `memory://name` is shared by
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

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     queue.tubes()
    []
    """
    given = connecting.Arguments(codec, clock, session_ttl, connect_timeout)
    return Queue(connecting.connect(url, given, ApiKind(Task, Tube, awaited=False)))


class Queue:
    """A session with a queue: its tubes, and what it has taken from them. Safe to share between threads.

    `connect` and `session` make it. As a context manager it is closed at the end. Every method raises `QueueClosed`
    once it is closed, and `QueueForked` in a forked child.
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
        `driver`: a registered name, or a `Driver`, which is registered with it.
        `if_exists`: what happens if the tube exists. "raise", the default, raises `TubeExists`. "keep" returns the tube
        with the options that it has. "update" gives it these options, as `Tube.alter` does: those that are left out go
        back to their defaults, so the tube has what the program says. Both raise `TubeExists` if it has another driver.
        `if_not_exists`: True returns the tube if it has this driver and exactly these options, and else raises
        `TubeExists`. It cannot be given together with `if_exists`.
        `temporary`: it need not outlive a restart of the server; in memory nothing does.
        `options`: defaults for the tube's tasks, as far as the driver knows them: `ttl`, `ttr` (seconds; ttr is the
        tube's ttl if left out) and `pri`. And, for any driver: `capacity`, the number of tasks that have room (0: any
        number, the default, for `limfifottl` too), `max_attempts` and `key_ttl`, see `Tube.put`. Where tasks can be
        delayed, `backoff`: a `Backoff`, or a list of seconds: how long a task rests after an attempt that failed. Where
        there are lanes: `max_in_flight`, how many tasks of one are taken at a time (1); `interval`, the seconds from
        one start in it to the next (0); `jitter`, by up to which fraction, 0 to 1, an interval is longer (0), also one
        that `configure` sets; `order` between lanes: "fifo", by their first tasks, or "round_robin", first the lane
        whose last start is longest ago.

        Raises `TubeExists`, `DriverNotFound`, `DriverExists`, `OptionNotSupported` and `InvalidOption`.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     queue.create_tube("crawl", "utubettl", ttr=60)
        <Tube 'crawl' (utubettl) of memory://>
        """
        port = self._connection.create(name, driver, how_if_exists(if_not_exists, if_exists), temporary, options)
        tube: Tube = port.tube
        return tube

    def tube(self, name: str) -> Tube:
        """Return the tube of this name. Raises `TubeNotFound` if there is none. O(1)."""
        port = self._connection.find(name)
        tube: Tube = port.tube
        return tube

    def tubes(self) -> list[str]:
        """Return the names of all tubes, sorted."""
        return self._connection.names()

    @overload
    def enqueue(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> Task: ...
    @overload
    def enqueue(self, function: str, /, *args: Any, **kwargs: Any) -> Task: ...
    def enqueue(self, function: Any, /, *args: Any, **kwargs: Any) -> Task:
        """Put a task that calls a function with these arguments: one that a worker has by `Worker.task`.

        `function`: the function, whose tube it is put into and whose signature the arguments are checked against; or
        its name, for programs that do not import it: then it is put into the tube `tasks`.
        `args`, `kwargs`: its arguments. On a server they are JSON, unless the queue has another codec.

        Where a delay, a key or another option is needed, or another tube: `tube.put(task_data(function, …), delay=60)`.
        The tube `tasks` is made if it is not there: a `fifottl` with `ttr=60`, `max_attempts=3` and a backoff of 1, 5,
        25, … seconds. Costs a `put`; the first one finds the tube.

        Raises `InvalidOption` for arguments that the function does not take, and what `put` raises.

        >>> import tubes
        >>> def send_email(to: str, subject: str = "hello") -> None: ...
        >>> with tubes.connect() as queue:
        ...     queue.enqueue(send_email, "ann").data
        {'task': 'send_email', 'args': ['ann'], 'kwargs': {}}
        """
        name, data = call_of(function, args, kwargs)
        tube = self._task_tubes.get(name) or self._task_tube(name)
        try:
            return tube.put(data)
        except TubeNotFound:  # It was dropped, and perhaps made anew.
            tube = self._task_tube(name)
            return tube.put(data)

    def _task_tube(self, name: str) -> Tube:
        """Find a tube of task functions; the one that needs no name is made where it is missing."""
        tube: Tube | None = None
        while tube is None:
            try:
                tube = self.tube(name)
            except TubeNotFound:
                if name != TASKS:
                    raise
                with suppress(TubeExists):  # Somebody else has made it since.
                    tube = self.create_tube(name, "fifottl", **TASKS_OPTIONS)
        self._task_tubes[name] = tube
        return tube

    @overload
    def statistics(self, name: str) -> Statistics: ...
    @overload
    def statistics(self, name: None = None) -> dict[str, Statistics]: ...
    def statistics(self, name: str | None = None) -> Statistics | dict[str, Statistics]:
        """Return the `Statistics` of one tube, or without a name those of all tubes by name. Raises `TubeNotFound`."""
        if name is not None:
            tube = self.tube(name)
            return tube.statistics()
        found: dict[str, Statistics] = {}
        for name in self.tubes():
            with suppress(TubeNotFound):  # It was dropped meanwhile.
                found[name] = self.statistics(name)
        return found

    def overview(self, *, ages: bool = False) -> dict[str, Overview]:
        """Return an `Overview` of each tube, by name: for monitors.

        On a server one call of a script looks at 200 tubes, in a cluster at one. It opens no session in the tubes, and
        leaves what is due as it is: see `Overview.due_lag`. O(1) for each tube, in memory O(n) of the lanes and
        sessions.
        `ages`: include `oldest_ready_age`, which costs one more call for each tube that has a ready task. It is None
        also where this process does not know the tube's driver.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     _ = queue.create_tube("mail").put("to ann")
        ...     {name: seen.statistics.tasks["ready"] for name, seen in queue.overview().items()}
        {'mail': 1}
        """
        return self._connection.overview(ages)

    def workers(self) -> list[WorkerInfo]:
        """Return the workers that run on this queue, in whatever process, by host and process: see `WorkerInfo`.

        A `tubes.worker.Worker` describes itself when it begins to run (a burst: when it has run for five seconds), then
        every five seconds, and takes that away when it ends. One whose process has died is listed for up to fifteen
        seconds. In the memory of a process, its own workers. O(n) of the workers.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     [(worker.host, worker.pid, worker.in_hand) for worker in queue.workers()]
        []
        """
        tube = self._workers_tube()
        found: list[WorkerInfo] = []
        start = 0
        while tasks := tube.tasks(start):
            start = tasks[-1].id + 1
            found += [info for task in tasks if (info := info_of(task.data, task.created)) is not None]
        return sorted(found, key=lambda info: (info.host, info.pid, info.started))

    def _workers_tube(self) -> Tube:
        port = self._connection.open_hidden(WORKERS, "fifottl", 2 * FORGOTTEN)
        tube: Tube = port.tube
        return tube

    def check(self, name: str) -> list[Problem]:
        """Return what is wrong with a tube: what its keys on the server say that cannot be; [] if nothing is.

        It changes nothing, and others go on working meanwhile: what it finds was so at one moment. O(n), in scripts
        that look at a few hundred tasks each. In memory it looks at everything at once.

        Raises `TubeNotFound`; `DriverNotFound` where an order of your own is not registered.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     _ = queue.create_tube("mail").put("to ann")
        ...     queue.check("mail")
        []
        """
        return self._connection.examine(name, False)

    def repair(self, name: str) -> list[Problem]:
        """Repair a tube, and return what was wrong with it, as `check` does. Others go on working meanwhile. O(n).

        It loses no task that can be read: one that stands nowhere becomes ready, delayed or buried, as its own fields
        say. It moves aside what cannot be read. A second repair finds nothing.

        Raises what `check` raises.
        """
        return self._connection.examine(name, True)

    def take_any(
        self, tubes: Iterable[Tube | str], timeout: Seconds | None = None, *, fair: bool = False
    ) -> Task | None:
        """Take the first task that may be taken from any of several tubes.

        `tubes`: tubes of this queue, or names, in order of preference: where several have a task, the first of them
        gives it. On a server a name costs a round trip more than a tube.
        `timeout`: seconds to wait for one; None: for ever; 0: not at all. A caller that waits stands in the line of
        every tube, and gets the first task of any of them; nothing polls. Returns None when the time is over.
        `fair`: each such call begins with the next tube of the list, so that one that is never empty lets the others
        have their turn.

        O(1) for each tube that is asked; waiting with threads on a server, a thread for each tube while it waits.

        Raises `TubeNotFound` if one is not there, or is dropped while the call waits, `InvalidOption` for an empty list
        and for a tube of another queue.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     urgent, other = queue.create_tube("urgent"), queue.create_tube("other")
        ...     _ = other.put("later"), urgent.put("now")
        ...     [queue.take_any([urgent, other]).data for _ in range(2)]
        ['now', 'later']
        """
        patience = None if timeout is None else micros("timeout", timeout)
        named: list[Tube | str] = listed(tubes, fair, Tube, self._connection)
        found = [self.tube(one) if isinstance(one, str) else one for one in named]
        ports = in_turn([tube._port for tube in found], fair)
        task: Task | None
        for port in ports:
            task = port.take()
            if task is not None:
                return task
        return None if patience == 0 else ThreadWaiter(ports[0].clock, patience).wait(AnyOf(ports))

    def session(self) -> Queue:
        """Open another session on the same queue. Each session is closed on its own."""
        return Queue(self._connection.sibling())

    def identify(self, uuid: str | UUID | None = None) -> str:
        """Return the uuid of this session; with a uuid, join that session first.

        Connections of one session hold tasks together: what one takes another may ack. The session ends, and releases
        what it holds, when its last connection is closed. Joining leaves the session that this connection had.

        Raises `SessionNotFound` if there is no such session, `InvalidOption` if it is no uuid.
        """
        return self._connection.identify(uuid)

    def register_driver(self, driver: Driver) -> None:
        """Let tubes be created with a driver of your own. Raises `DriverExists` if another one has its name."""
        self._connection.register(driver)

    def detach(self) -> None:
        """Close the connection, but let its session live on for `session_ttl`: `identify(uuid)` can go on with it."""
        self._connection.close(lost=True)

    def close(self) -> None:
        """End the session: its tasks are released at once, its waiting callers get `QueueClosed`. Twice is fine."""
        self._connection.close()

    @property
    def closed(self) -> bool:
        """Whether `close` or `detach` was called."""
        return self._connection.closed is not None

    def __enter__(self) -> Self:
        self._connection.meet()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connection.url}{' closed' if self.closed else ''}>"


class Tube(Generic[T, R]):
    """One tube, as one session sees it. Safe to share between threads.

    `Tube[Mail]` says to type checkers what data its tasks have, and `Tube[Mail, Reply]` what a handler returns too:
    `mails: tubes.Tube[Mail] = queue.create_tube("mails")`. Else both are `Any`. Nothing checks them at run time.

    Where a method takes a task it takes a `Task` or an id. A `Task` that was taken speaks for its own take only: when
    its time to run is over and the task was taken again, by whomever, its verbs raise `TaskNotTaken`.

    Where a method takes seconds it takes a number or a `datetime.timedelta`.

    Every method raises `QueueClosed` once the queue is closed, `TubeNotFound` once the tube is dropped, and
    `InvalidOption` for arguments that make no sense. A method that raises has changed nothing.
    """

    def __init__(self, port: Port[Task[T]]) -> None:
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

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail", "fifottl", ttr=60, backoff=tubes.Backoff(1, cap=30))
        ...     tube.options["ttr"], tube.options["backoff"], tube.options.get("capacity", 0)
        (60.0, Backoff(first=1.0, factor=2.0, cap=30.0, jitter=0.0, seed=0), 0)
        """
        return MappingProxyType(shown(self._port.shared.options))

    # -- putting -------------------------------------------------------------------------------------------------------

    @overload
    def put(self, data: T, *, timeout: None = None, **options: Unpack[PutOptions]) -> Task[T]: ...
    @overload
    def put(self, data: T, *, timeout: Seconds | None, **options: Unpack[PutOptions]) -> Task[T] | None: ...
    def put(self, data: T, *, timeout: Seconds | None = None, **options: Unpack[PutOptions]) -> Task[T] | None:
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

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail", "fifottl")
        ...     tube.put({"to": "ann"}, delay=5)
        Task(id=0, state='delayed', data={'to': 'ann'}, tube='mail')
        """
        if timeout is None:
            task = self._port.put(data, options)
            if task is None:
                raise self._port.full(1)
            return task
        patience = micros("timeout", timeout)
        if patience:
            waiter = ThreadWaiter(self._port.clock, patience, self._port.prepare(data, options))
            waited: Task[T] | None = waiter.wait(self._port)
            return waited
        return self._port.put(data, options)

    def put_many(
        self, items: Iterable[T | Item[T]], *, timeout: Seconds | None = None, **options: Unpack[PutOptions]
    ) -> list[Task[T]]:
        """Add many tasks at once, all or none, and return them in the order of the items. Each is put as by `put`.

        `items`: data (a string must be in a list, an async iterable must be collected first), or
        `tubes.Item(data, **options)` where one has options of its own. All are checked and encoded before the first is
        put: an error says which item it is about.
        `options`: those of all items, where an `Item` does not say otherwise.
        `timeout`: seconds to wait until there is room for all of them, where the tube has a `capacity`. It returns []
        when the time is over, and has put nothing. Without a timeout a full tube raises `TubeFull`.

        On Redis a few thousand are one round trip; more are brought there first, and put by one call at the end.

        Raises what `put` raises, and `InvalidOption` for more items than the tube's `capacity`.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     tasks = tube.put_many(f"to {name}" for name in ("ann", "bob"))
        ...     [task.data for task in tasks]
        ['to ann', 'to bob']
        """
        patience = None if timeout is None else micros("timeout", timeout)
        batch = self._port.gather(items, options)
        tasks: list[Task[T]] | None
        if patience:
            tasks = ThreadWaiter(self._port.clock, patience, batch).wait(self._port)
        else:
            tasks = self._port.put_many(batch)
        if tasks is None and patience is None:
            raise self._port.full(batch.size)
        return tasks or []

    def call(self, data: T, timeout: Seconds | None = None, **options: Unpack[TaskOptions]) -> R:
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

    def take(self, timeout: Seconds | None = None) -> Task[T] | None:
        """Take the first task that may be taken. O(1), O(log n) at most.

        `timeout`: seconds to wait for one; None: for ever; 0: not at all. Callers that wait are served in the order in
        which they came. Returns None when the time is over.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     tube.take(timeout=0) is None
        True
        """
        if timeout.__class__ is int and timeout == 0:
            return self._port.take()
        patience = None if timeout is None else micros("timeout", timeout)
        task: Task[T] | None = self._port.take()
        if task is None and patience != 0:
            task = ThreadWaiter(self._port.clock, patience).wait(self._port)
        return task

    def take_many(self, limit: int, timeout: Seconds | None = None) -> list[Task[T]]:
        """Take as many tasks as there are, up to `limit`. Each is taken as by `take`, and in its order.

        `limit`: from 1 to 100,000.
        `timeout`: seconds to wait until there is at least one, as for `take`. Answers [] when the time is over.

        It takes no more tasks of one lane than may be taken at a time. On Redis a thousand are one round trip.

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
        tasks = self._port.take_many(count)
        if not tasks and patience != 0:
            first = ThreadWaiter(self._port.clock, patience).wait(self._port)
            if first is not None:
                tasks = self._port.top_up(first, count)
        return tasks

    @contextmanager
    def taking(self, timeout: Seconds | None = None) -> Generator[Task[T]]:
        """Take a task for a block: acked when the block ends, released when it raises. `NothingReady` if none came.

        Where having no task is nothing special, ask first: `if task := tube.take(5):` and then `with task:`.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     with tube.taking(timeout=0) as task:
        ...         print(task.data)
        Traceback (most recent call last):
        tubes.errors.NothingReady: no task of tube 'mail' became ready within 0 s.
        """
        task = self.take(timeout)
        if task is None:
            raise NothingReady(tube=self.name, timeout=None if timeout is None else seconds("timeout", timeout))
        with task:
            yield task

    def __iter__(self) -> Generator[Task[T]]:
        """Take tasks until the queue is closed. A task is acked when the loop comes back for the next one.

        Raises `TubeNotFound` when the tube is dropped. When the loop is left by `break` or by an exception, its last
        task is released, unless it was dealt with (with asyncio a moment later, when the loop's iterator is finalized).
        A task that was lost meanwhile, because its time to run was over or the queue was closed, is logged as a
        warning: ack a task yourself before you close the queue.
        """
        try:
            task = self.take()
            while task is not None:
                try:
                    yield task
                except BaseException as error:
                    task.__exit__(type(error), error, None)
                    raise
                task = self._after(task) or self.take()
        except QueueForked:
            raise
        except QueueClosed:
            return

    def _after(self, task: Task[T]) -> Task[T] | None:
        """Ack a task and take the next one; None if there is none. It leaves alone what was dealt with."""
        if task._take == FINISHED:
            return None
        try:
            return self._port.next(task)
        except QueueClosed as lost:
            log_lost(lost)
            raise

    def wait_empty(self, timeout: Seconds | None = None) -> bool:
        """Wait until nothing is left to do in this tube. Returns False when the time is over first.

        The tube is empty when none of its tasks is ready, delayed or taken. So a task that waits for its next attempt
        counts; a buried one does not, nor does a put that waits for room. Others may put tasks before this returns.

        `timeout`: seconds to wait; None: for ever; 0: only look. Nothing polls: whatever ends a task wakes the caller,
        by whichever process, and so does the end of a ttl. On a server the caller hears the tube's events meanwhile, as
        `on_task_change` does. `statistics().waiting` does not count it, and `drop` does not mind it: it gets
        `TubeNotFound`. O(1).

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     _ = tube.put("to ann")
        ...     print(tube.wait_empty(timeout=0))
        ...     _ = tube.take().ack()
        ...     print(tube.wait_empty())
        False
        True
        """
        patience = None if timeout is None else micros("timeout", timeout)
        is_empty: bool = self._port.is_empty()
        if is_empty or patience == 0:
            return is_empty
        ended = ThreadWaiter(self._port.clock, patience, EMPTY).wait(self._port)
        return ended is not None

    # -- what the taker does -------------------------------------------------------------------------------------------

    def ack(self, task: Task[T] | int) -> Task[T]:
        """Finish a task: its work is done, it is removed. Raises `TaskNotTaken` unless this session has it. O(1)."""
        return self._port.ack(task)

    def ack_many(self, tasks: Iterable[Task[T] | int]) -> dict[int, bool]:
        """Finish these tasks, each as by `ack`. Returns by id, in their order, whether the task was acked.

        False means that this session does not have it, or not by that take. On Redis a few thousand are one round trip.
        Raises `InvalidOption` for what is no task of this tube.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     _ = tube.put_many(["to ann", "to bob"])
        ...     tube.ack_many([tube.take(0), 1])
        {0: True, 1: False}
        """
        return self._port.ack_many(tasks)

    def release_many(
        self, tasks: Iterable[Task[T] | int], delay: Seconds | None = None, *, at: datetime | None = None
    ) -> dict[int, bool]:
        """Give these tasks back, each as by `release`. Returns by id, in their order, whether the task was released.

        Raises `OptionNotSupported` for a delay where the driver has none, `InvalidOption` for what is no task of this
        tube.

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
        task: Task[T] | int,
        delay: Seconds | None = None,
        *,
        at: datetime | None = None,
        reason: str | None = None,
    ) -> Task[T]:
        """Give the task back to its own place in the order, ahead of younger ones. O(log n).

        `delay`: seconds until it is ready again, by which its ttl is prolonged; None: as long as the tube's `backoff`
        says, which is not at all if it has none. A task that was taken for the last time, by its `max_attempts`, is
        buried instead. `reason`: why, for whoever looks at it then; None: that it was the last attempt.

        Raises `TaskNotTaken` unless this session has it, `OptionNotSupported` for a delay where the driver has none.
        """
        delay = delay_of(delay, at, self._port.connection.micros)
        return self._port.release(task, delay, reason)

    def touch(self, task: Task[T] | int, seconds: Seconds) -> Task[T]:
        """Get so much more time to run; the task's ttl and ttr grow by it for good. 0 changes nothing. O(log n).

        However often it is called, it puts neither off beyond 200 years from now on, which is more than a put can ask
        for.

        Raises `TaskNotTaken` unless this session has it, `OptionNotSupported` where the driver has no ttr.
        """
        return self._port.touch(task, seconds)

    # -- what anybody may do -------------------------------------------------------------------------------------------

    def bury(self, task: Task[T] | int, reason: str | None = None) -> Task[T]:
        """Put a task aside, whatever its state and whoever has it, until `kick`. O(log n).

        `reason`: why, for whoever looks at it later: `task.reason`.

        Its ttl runs on. Burying a buried one changes nothing. Raises `TaskNotFound` if there is none.
        """
        return self._port.bury(task, reason)

    def kick(self, count: int = 1, *, attempts: int | None = None, ttl: Seconds | None = None) -> int:
        """Make up to so many buried tasks ready, in the order of their places; returns how many. O(log n) each.

        `attempts`: so many more attempts each; a task that has had its last one gets one more without it.
        `ttl`: seconds to live from now on; `task.ttl`, which counts from the put, is that much more than its age.

        Raises `OptionNotSupported` for a ttl where the driver has none.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail", max_attempts=1)
        ...     _ = tube.put("hello")
        ...     tube.take(timeout=0).release()
        ...     tube.kick(10, attempts=3)
        Task(id=0, state='buried', data='hello', tube='mail', attempts=1, reason='max_attempts: release')
        1
        """
        return self._port.kick(count, attempts, ttl)

    def kick_task(self, task: Task[T] | int, *, attempts: int | None = None, ttl: Seconds | None = None) -> Task[T]:
        """Make one buried task ready; one that is not buried stays as it is. See `kick`. O(log n).

        Raises `TaskNotFound` if there is none.
        """
        return self._port.kick_task(task, attempts, ttl)

    def buried(self, limit: int = 100) -> list[Task[T]]:
        """Return the buried tasks (dead letters), up to so many, by their ids. `task.reason` says why each is buried.

        Those that were put first come first, whenever they were buried.

        O(limit) where tasks come by their ids alone, O(n) of the buried ones elsewhere.
        """
        return self._port.buried(limit)

    def update(
        self,
        task: Task[T] | int,
        *,
        data: T = KEEP,
        pri: int = KEEP,
        delay: Seconds = KEEP,
        ttl: Seconds = KEEP,
        at: datetime | None = None,
    ) -> Task[T]:
        """Change a task, whatever its state and whoever has it. All is checked first, and done at once. O(log n).

        `data`: its new data; a caller that has taken it keeps the data that it was given.
        `pri`: its priority: it moves to the place that this gives it.
        `delay`: seconds from now until it is ready, of a ready or a delayed task; 0: at once. Its ttl does not change.
        `at`: instead, when it is ready: a `datetime` with a time zone, as for `put`.
        `ttl`: seconds to live from now on, of a task that nobody has taken; 0 ends it.
        Without any of them nothing happens: it is a `peek`.

        Raises `TaskNotFound` if there is none, `OptionNotSupported` for what the driver lacks, `InvalidOption` for a
        delay of a task that is taken or buried, and for a ttl of a taken one, which `touch` prolongs.

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

    def peek(self, task: Task[T] | int) -> Task[T]:
        """Return the task as it is now; this changes nothing. Raises `TaskNotFound` if there is none. O(1)."""
        return self._port.peek(task)

    def delete(self, task: Task[T] | int) -> Task[T]:
        """Remove a task, whatever its state and whoever has it. Raises `TaskNotFound` if there is none. O(1)."""
        return self._port.delete(task)

    def renew_many(self, tasks: Iterable[Task[T] | int], seconds: Seconds) -> dict[int, bool]:
        """Let these tasks have at least so many seconds to run from now on. Returns by id whether this session has it.

        It keeps a task while it is worked on. Unlike `touch` it adds nothing, and a later take has the ttr that the
        task had. Where the ttl ends a taken task (not in `utubettl`) the ttl is prolonged as far as that needs. A task
        without ttr needs no renewal. On Redis a few thousand are one round trip. O(log n) each.

        Raises `OptionNotSupported` where the driver has no ttr, `InvalidOption` for what is no task of this tube.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail", "fifottl", ttr=60)
        ...     _ = tube.put("to ann")
        ...     tube.renew_many([tube.take(0)], 60)
        {0: True}
        """
        return self._port.renew_many(tasks, seconds)

    def delete_many(self, tasks: Iterable[Task[T] | int]) -> dict[int, bool]:
        """Remove these tasks, each as by `delete`. Returns by id, in their order, whether there was one.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     _ = tube.put_many(["to ann", "to bob"])
        ...     tube.delete_many([1, 7])
        {1: True, 7: False}
        """
        return self._port.delete_many(tasks)

    def release_all(self) -> None:
        """Release all taken tasks, whoever has them. O(n log n) of the taken ones."""
        self._port.release_all()

    def truncate(self) -> None:
        """Remove all tasks, and what lanes remember; ids and counts go on, listeners hear nothing. O(n)."""
        self._port.truncate()

    def alter(self, **changes: Unpack[TubeOptions]) -> None:
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

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail", "fifottl", ttr=60, capacity=100)
        ...     tube.alter(ttr=120, max_attempts=5, capacity=None)
        ...     dict(tube.options)
        {'max_attempts': 5, 'ttr': 120.0}
        """
        self._port.alter(dict(changes))

    def pause(self, seconds: Seconds | None = None) -> None:
        """Let nobody take from this tube for so many seconds; None: until `resume`. O(1).

        Takes, of whatever session and process, find nothing and wait; `take_any` goes on to its other tubes. All else
        goes on: puts, the verbs of those who have a task already, and time, so that ttl, ttr and delays run out.
        Callers that wait are served at the very end of the pause. Another `pause` sets another end, 0 ends it at once.
        `truncate` keeps it, `drop` forgets it; it belongs to the tube, and does not end with the session that asked for
        it. `statistics().paused` tells until when.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     _ = tube.put("hello")
        ...     tube.pause(3600)
        ...     print(tube.take(timeout=0))
        ...     tube.resume()
        ...     print(tube.take(timeout=0).data)
        None
        hello
        """
        self._port.pause(seconds)

    def resume(self) -> None:
        """End a pause; callers that wait are served. A tube that does not pause stays as it is. O(1)."""
        self._port.resume()

    def drop(self, *, force: bool = False) -> None:
        """Remove the tube and what is in it. O(n).

        Raises `TubeBusy` while tasks are taken or callers wait. `force`: do it all the same; callers that wait get
        `TubeNotFound`, and so do those who have a task.
        """
        self._port.drop(force)

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def block(self, utube: str, seconds: Seconds) -> None:
        """Let no task of a lane start for so many seconds: a host has answered 429, with Retry-After. O(log n).

        The block ends by itself, and callers that wait are served at that moment. Another one replaces it; 0 ends it,
        but not a cool-down. Tasks that are taken stay so. A lane without tasks can be blocked too.

        Raises `OptionNotSupported` where the driver has no lanes.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("crawl", "utube")
        ...     _ = tube.put("/", utube="example.com")
        ...     tube.block("example.com", 30)
        ...     tube.take(timeout=0) is None
        True
        """
        self._port.block(utube, seconds)

    def configure(self, utube: str, *, interval: Seconds | None = KEEP, max_in_flight: int | None = KEEP) -> None:
        """Let a lane have limits of its own, instead of the tube's. O(log n).

        `interval`: seconds from one start to the next, 0: none; `max_in_flight`: how many of its tasks may be taken at
        a time, from 1. None: what the tube says; what is left out stays. A new limit counts at once: the next start is
        reckoned anew from the last one that is known, and a lane of which more are taken than it may have starts none
        until they are fewer. A lane that has no task ready or taken, and does not cool down, has forgotten its last
        start.

        Raises `OptionNotSupported` where the driver has no lanes.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("crawl", "utube", interval=1)
        ...     tube.configure("example.com", interval=10)
        ...     tube.utubes()[0].interval
        10.0
        """
        self._port.configure(utube, interval, max_in_flight)

    def utubes(self, limit: int = 1000) -> list[Utube]:
        """Return the lanes, sorted by name, up to so many.

        These are the lanes with tasks that are ready or taken, those that cool down or are blocked, and those with
        limits of their own.

        O(n) of the lanes; for looking, not for working. Raises `OptionNotSupported` where the driver has no lanes.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("crawl", "utube")
        ...     _ = tube.put("/", utube="example.com")
        ...     [(utube.name, utube.ready) for utube in tube.utubes()]
        [('example.com', 1)]
        """
        return self._port.utubes(limit)

    # -- looking -------------------------------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Return how many tasks there are by state, and what was done so far. O(1), O(n) of the sessions."""
        return self._port.statistics()

    def tasks(self, start: int = 0, limit: int = 1000) -> list[Task[T]]:
        """Return the tasks, whatever their state, in the order of their ids: up to so many, from id `start` on.

        To see all of them go on from the last one's id plus 1, until the result is []. Looking changes nothing, so
        tasks come and go meanwhile: each page is of one moment, all of them together are not.

        O(limit) where few ids are missing between them, else O(n) in memory; on a server a page of up to 1000, 4 MB or
        5000 ids is one round trip.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     _ = tube.put_many(["to ann", "to bob", "to cid"])
        ...     [task.data for task in tube.tasks(start=1)]
        ['to bob', 'to cid']
        """
        return self._port.tasks(start, limit)

    def oldest_ready_age(self) -> float | None:
        """Return how many seconds ago the oldest ready task was put, the one with the smallest id; None: there is none.

        The time for which it was delayed or taken counts, too. It is the first sign of a growing backlog. O(n) of the
        tasks that are older and not ready.
        """
        return self._port.oldest_ready_age()

    def due_histogram(self, edges: Iterable[Seconds]) -> list[int]:
        """Count the tasks that move by themselves (delay, ttr or ttl over), by how soon.

        `edges`: seconds from now, ascending. Returns one number more than there are edges: the tasks that are due
        before the first, from the first on and before the second, …, from the last on. O(n), on a server O(log n) for
        each edge.

        >>> import tubes
        >>> with tubes.connect(clock=tubes.testing.ManualClock()) as queue:
        ...     tube = queue.create_tube("mail", "fifottl")
        ...     for delay in (1, 5, 30, 3600):
        ...         _ = tube.put("later", delay=delay)
        ...     tube.due_histogram([10, 60])
        [2, 1, 1]
        """
        return self._port.due_histogram(edges)

    def on_task_change(
        self, callback: Callable[[Task[T], str], object] | None
    ) -> Callable[[Task[T], str], object] | None:
        """Have `callback(task, event)` called for every change in this tube, whoever makes it; None: no more.

        Events: `put take release touch bury kick delete update ttl ttr delay`; an ack is a `delete` too. It is called
        after the change, in the order of the changes, one at a time, in a thread that makes some of them: what takes
        long belongs elsewhere. What it raises is logged and harms nothing. Each `Queue` has one callback per tube, for
        as long as the `Queue` lives; this returns the one before.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     _ = tube.on_task_change(lambda task, event: print(event, task.id))
        ...     _ = tube.put("hello")
        put 0
        """
        before = self._port.listen(callback, thread_listener)
        return callback_of(before)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} ({self.driver.name}) of {self._port.url}>"


class Task(TaskView[T]):
    """A task of a `Tube`: frozen facts, and the verbs on it.

    As a context manager it is acked when the block ends, and released when the block raises.

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

    def ack(self) -> Task[T]:
        """Finish the task. See `Tube.ack`."""
        return self._tube.ack(self)

    def release(
        self, delay: Seconds | None = None, *, at: datetime | None = None, reason: str | None = None
    ) -> Task[T]:
        """Give the task back. See `Tube.release`."""
        return self._tube.release(self, delay=delay, at=at, reason=reason)

    def touch(self, seconds: Seconds) -> Task[T]:
        """Get more time to work. See `Tube.touch`."""
        return self._tube.touch(self, seconds)

    def bury(self, reason: str | None = None) -> Task[T]:
        """Put the task aside. See `Tube.bury`."""
        return self._tube.bury(self, reason)

    def kick(self, *, attempts: int | None = None, ttl: Seconds | None = None) -> Task[T]:
        """Make the task ready, if it is buried. See `Tube.kick_task`."""
        return self._tube.kick_task(self, attempts=attempts, ttl=ttl)

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

    def delete(self) -> Task[T]:
        """Remove the task. See `Tube.delete`."""
        return self._tube.delete(self)

    def peek(self) -> Task[T]:
        """Return the task as it is now. See `Tube.peek`."""
        return self._tube.peek(self)

    def __enter__(self) -> Task[T]:
        self._check_taken()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._take == FINISHED:
            return
        if kind is None:
            self.ack()
            return
        if kind is GeneratorExit:
            # Perhaps from the garbage collector, which may come in the middle of a verb, or when the loop has gone.
            self._tube._port.release_later(self)
            return
        with suppress(TubesError):  # The block's own error matters more; what was not released is lost already.
            if issubclass(kind, Exception):
                self.release()
            else:  # It was interrupted or cancelled: the task has not failed.
                self._tube._port.release_unfailed(self)
