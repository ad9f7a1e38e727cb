"""The public class `Worker`."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import threading
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from datetime import tzinfo
from functools import partial
from typing import Final, TypeVar, overload

from typing_extensions import Unpack

from tubes import aio, sync
from tubes.drivers.backoff import Backoff, RetryDelays
from tubes.drivers.options import Seconds, flag, positive, seconds, text
from tubes.errors import InvalidOption, TubeNotFound, TubesError
from tubes.values.options import PutOptions, TaskOptions
from tubes.values.task_data import SCHEDULES, TASKS, TaskFunction, function_options, is_marked, mark, name_of
from tubes.worker.connections import open_connections
from tubes.worker.functions import Hook, arguments_of, check_hook, enter, handler_of
from tubes.worker.logs import log
from tubes.worker.outcomes import AT_ONCE, Summary
from tubes.worker.processes import check_process
from tubes.worker.routes import Route, Target, check_handler, check_timeout, make_route, share, tube_names
from tubes.worker.run import Run
from tubes.worker.running import Running
from tubes.worker.schedules import AnyOf, Cron, Every, Schedule
from tubes.worker.signals import stop_on_signals

H = TypeVar("H", bound=Callable[..., object])
#: One tube, or several in order of preference.
Tubes = sync.Tube | aio.AsyncTube | str | Iterable[sync.Tube | aio.AsyncTube | str]


def _no_op() -> None:
    """Do nothing when the worker starts."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options beside a function: how it is called, and the options and keys of its tasks."""

    timeout: float | None
    process: bool = False
    backoff: RetryDelays | None = None
    put: PutOptions = dataclasses.field(default_factory=PutOptions)
    key_of: Callable[..., str | None] | None = None
    unique: bool = False


class WorkerBusy(TubesError):
    """this worker cannot run: {why}."""


class NoHandlers(InvalidOption):
    """this worker cannot run: it has no handlers. Add one by worker.on, worker.task, worker.every or worker.cron."""


class Worker:
    """Calls functions with the tasks of tubes.

    `queue`: a `Queue` or an `AsyncQueue`. The worker opens its own session, so that its end does not release other
    tasks of the queue.
    `concurrency`: how many tasks each handler works on at a time, unless `on` sets it.
    `total`: how many tasks all handlers together work on at a time, but for those whose `concurrency` `on` sets. The
    handlers take turns; None: each has `concurrency`.
    `grace`: seconds that handlers have to finish when the worker is stopped.
    `tracebacks`: store the end of the traceback of a handler's error with the task: `task.traceback`. It contains lines
    of your code and the error, never the values of variables.

    A handler is called with a task: a plain function in a thread with a `Task`, an async one in the event loop with an
    `AsyncTask`. When it returns, the task is acked. When it raises, the task is released with the tube's backoff; after
    its last attempt it is buried with the error as the reason. See `Retry` and `Bury`. While a handler runs, its task
    is renewed, so neither its ttr nor its ttl ends. The worker takes a task only when a handler is free.

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     _ = queue.create_tube("numbers").put_many([1, 2, 3])
    ...     worker = Worker(queue)
    ...     squares = []
    ...     worker.on("numbers", lambda task: squares.append(task.data**2)) and None
    ...     summary = worker.run(burst=True)
    >>> sorted(squares), summary.acked
    ([1, 4, 9], 3)
    """

    def __init__(
        self,
        queue: sync.Queue | aio.AsyncQueue,
        *,
        concurrency: int = 1,
        total: int | None = None,
        grace: Seconds = 30.0,
        tracebacks: bool = True,
    ) -> None:
        if not isinstance(queue, (sync.Queue, aio.AsyncQueue)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(option="queue", value=queue, rule="must be a Queue or an AsyncQueue")
        positive("concurrency", concurrency)
        #: How many tasks each handler works on at a time. A change takes effect at the next `run`.
        self.concurrency = concurrency
        #: How many tasks all handlers work on together; None: each handler has `concurrency`. Like `concurrency`.
        self.total = None if total is None else positive("total", total)
        #: Seconds that handlers have to finish when the worker is stopped.
        self.grace = seconds("grace", grace)
        self._queue: Final = queue
        self._tracebacks: Final = flag("tracebacks", tracebacks)
        self._routes: list[Route] = []
        self._hooks: list[Hook] = []
        self._lifespans: list[Callable[[], object]] = []
        # Tubes that could not be looked up when their handlers were registered: the next run does it.
        self._unchecked: Final[set[str]] = set()
        self._has_async_hook = False
        self._lock: Final = threading.Lock()
        self._is_running = False
        self._has_run = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._run: Run | None = None
        # The pending request to stop: True without grace, False with grace; None: not requested.
        self._stop_request: bool | None = None
        self._stop_requested = asyncio.Event()
        # The exit code of a process that a second signal ends while its event loop is blocked.
        self._code_at_once: int = AT_ONCE

    # -- handlers ------------------------------------------------------------------------------------------------------

    @overload
    def on(
        self,
        tubes: Tubes,
        handler: H,
        *,
        concurrency: int | None = None,
        timeout: Seconds | None = None,
        process: bool = False,
    ) -> H: ...
    @overload
    def on(
        self, tubes: Tubes, *, concurrency: int | None = None, timeout: Seconds | None = None, process: bool = False
    ) -> Callable[[H], H]: ...
    def on(
        self,
        tubes: Tubes,
        handler: Callable[..., object] | None = None,
        *,
        concurrency: int | None = None,
        timeout: Seconds | None = None,
        process: bool = False,
    ) -> Callable[..., object]:
        """Handle the tasks of one tube or several by a function. Without a handler it is a decorator.

        `tubes`: names or tubes, in order of preference. They must exist. A tube that is dropped later may be created
        again: the worker keeps looking for it.
        `handler`: a plain or async function that takes a task. `on` returns it. Raise an error to fail the task: the
        task is acked whatever the handler returns, even False. The return value is the result.
        `concurrency`: how many tasks it works on at a time; None: the `concurrency` of the worker.
        `timeout`: seconds that it may take for a task, after which the attempt has failed. An async handler is
        cancelled; a thread continues, but its result is ignored.
        `process`: call a plain handler in another process, for work that needs a core of its own: in up to
        `concurrency` processes, which are reused. It gets a `ProcessTask`, and must be at the top level of a module
        that can be imported; data and result must be picklable. After its `timeout` the process is killed; a process
        that dies fails only that attempt.

        May be called from any thread: a running worker picks the change up a moment later. Costs a lookup of each tube;
        with an `AsyncQueue`, `run` looks them up at its start. Raises `TubeNotFound`, `InvalidOption` for a tube that
        already has a handler, and for a handler that cannot be called with one argument.
        """
        if handler is None:
            if callable(tubes):
                rule = 'is a function: name its tube in the decorator, as in @worker.on("mail")'
                raise InvalidOption(option="tubes", value=tubes, rule=rule)
            return partial(self._add_route, tubes, concurrency=concurrency, timeout=timeout, process=process)
        return self._add_route(tubes, handler, concurrency, timeout, process)

    def _add_route(
        self,
        tubes: Tubes,
        handler: H,
        concurrency: int | None = None,
        timeout: Seconds | None = None,
        process: bool = False,
        *,
        must_exist: bool = True,
    ) -> H:
        route = make_route(tubes, handler, concurrency, timeout, process)
        if process:
            check_process(handler)
        if must_exist:
            self._look_up(route.tubes)
        with self._lock:
            for name in route.tubes:
                if any(name in other.tubes for other in self._routes):
                    raise InvalidOption(option="tubes", value=name, rule="already has a handler: remove it first")
            for target in route.targets:
                self._check_async(target)
            self._routes = [*self._routes, route]
        self._notify_run()
        return handler

    def _look_up(self, names: Iterable[str]) -> None:
        """Raise `TubeNotFound` if a tube does not exist. If this cannot be known yet, `run` finds out."""
        for name in names:
            try:
                # While the server is unreachable, each lookup would take ten seconds: try only one.
                if isinstance(self._queue, sync.Queue) and not self._unchecked:
                    self._queue.tube(name)
                    continue
            except TubeNotFound:
                raise
            except TubesError:  # The server is unreachable, or the queue is closed.
                pass
            self._unchecked.add(name)

    async def _look_up_unchecked(self, queue: aio.AsyncQueue) -> None:
        for name in self._unchecked.intersection(name for route in self._routes for name in route.tubes):
            try:
                await queue.tube(name)
            except TubeNotFound:
                raise
            except TubesError:  # The run waits for its server.
                return
            self._unchecked.discard(name)

    def _check_async(self, target: Target) -> None:
        if self._has_async_hook and not target.is_async:
            rule = "must be async, because its around hook is"
            raise InvalidOption(option="handler", value=target.handler, rule=rule)

    @overload
    def task(self, name: H, /) -> H: ...
    @overload
    def task(
        self,
        name: str | None = None,
        *,
        tube: sync.Tube | aio.AsyncTube | str = TASKS,
        timeout: Seconds | None = None,
        process: bool = False,
        backoff: Backoff | Iterable[Seconds] | None = None,
        key: str | Callable[..., str] | None = None,
        key_ttl: Seconds | None = None,
        unique: bool = False,
        **options: Unpack[TaskOptions],
    ) -> Callable[[H], H]: ...
    def task(
        self,
        name: str | Callable[..., object] | None = None,
        *,
        tube: sync.Tube | aio.AsyncTube | str = TASKS,
        timeout: Seconds | None = None,
        process: bool = False,
        backoff: Backoff | Iterable[Seconds] | None = None,
        key: str | Callable[..., str] | None = None,
        key_ttl: Seconds | None = None,
        unique: bool = False,
        **options: Unpack[TaskOptions],
    ) -> Callable[..., object]:
        """Call a function for tasks that name it, with their arguments. A decorator, with or without arguments.

        `name`: the name in the tasks; None: the function's `__name__`. Programs in other languages may also use it: see
        `task_data`.
        `tube`: the tube of its tasks, or the name of it. All functions of one tube share its handlers: `concurrency` of
        them run at a time, plain ones in threads, async ones in the event loop. The tube `tasks` is created if it does
        not exist, as by `Queue.enqueue`; other tubes should exist.
        `timeout`: seconds that a call may take, as for `on`.
        `process`: call it in another process, as for `on`; `current_task` returns a `ProcessTask` there.
        `backoff`: the delays after failed attempts, a list of seconds or a `Backoff`; None: the tube's backoff, which
        also holds for attempts that end with the worker.
        `key`: the key of its tasks, or a function of the arguments that returns it. `unique`: the key consists of the
        name and the arguments, so that a call which waits, runs or is buried is not put again.
        `key_ttl`, `options`: options of `Tube.put`, such as `max_attempts`, `ttl`, `pri` or `keep_done`.

        `enqueue` gives the options of put to the tasks, in every process that imports the function; `enqueue_with`
        replaces single ones. Tasks that are put by name have the options of their tube. The calls of a schedule of the
        function have them too, but for delays and keys.

        `Tube.call` returns the return value of the function; errors count as for `on`. A task whose arguments do not
        fit is buried. A task that names an unknown function is left to other workers: it is released with a delay of
        some seconds, and the attempt does not count.

        Returns the function unchanged. Raises `InvalidOption` for a tube that has a handler, for a name that is in use
        in the tube, for a wrong option, and for anything but a function.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     worker = Worker(queue)
        ...     @worker.task(max_attempts=5, backoff=[1, 5], unique=True)
        ...     def send_email(to, subject="hello"):
        ...         print(subject, "to", to)
        ...     _ = queue.enqueue(send_email, "ann")
        ...     _ = queue.enqueue(send_email, "ann")  # it waits already
        ...     _ = queue.enqueue("send_email", "bob", subject="news")
        ...     worker.run(burst=True).acked
        hello to ann
        news to bob
        2
        """
        put, key_of = function_options(key, unique, {**options, "key_ttl": key_ttl})
        delays = None if backoff is None else RetryDelays.of(backoff)
        settings = Settings(check_timeout(timeout), flag("process", process), delays, put, key_of, unique)
        if callable(name):
            return self._add_function(name, None, tube, settings)
        return self._function_decorator(name, tube, settings)

    def every(
        self,
        interval: Seconds,
        name: str | None = None,
        *,
        tube: sync.Tube | aio.AsyncTube | str = SCHEDULES,
        timeout: Seconds | None = None,
    ) -> Callable[[H], H]:
        """Call a function at an interval, once each time even if many workers run. A decorator.

        `interval`: seconds, at least 1, or a `timedelta`. The function is called at all multiples of it since the epoch
        (`every(3600)`: at each full hour, UTC), by the clock of the queue.
        `tube`: the tube of its calls, by default `schedules`, which is created if it does not exist. It is a tube like
        any other: `concurrency` of its functions run at a time, independently of other tubes. Its driver needs delays.
        The other arguments are as for `task`. The function is called without arguments. Put this decorator on top of
        `task(process=True)` to call it in another process.

        The next call is a task with a delay and a unique key: all workers put it, and one of them takes it. It can fail
        and be retried like any task. If several calls become due while no worker runs, or while all are busy, only the
        latest one is made. If `tube` has lanes, each function has its own, so its calls never overlap; in other tubes
        they may.

        Raises the errors of `task`, and `InvalidOption` for a function that cannot be called without arguments.

        >>> import tubes
        >>> clock = tubes.testing.ManualClock()
        >>> with tubes.connect(clock=clock) as queue:
        ...     worker = Worker(queue)
        ...     @worker.every(60)
        ...     def sweep():
        ...         print("sweeps")
        ...     _ = worker.run(burst=True)
        ...     clock.advance(60)
        ...     _ = worker.run(burst=True)
        sweeps
        """
        return self._function_decorator(name, tube, Settings(check_timeout(timeout)), Every(interval))

    def cron(
        self,
        line: str,
        name: str | None = None,
        *,
        timezone: str | tzinfo = "UTC",
        tube: sync.Tube | aio.AsyncTube | str = SCHEDULES,
        timeout: Seconds | None = None,
    ) -> Callable[[H], H]:
        """Call a function at the times of a cron expression, otherwise like `every`. A decorator.

        `line`: minute, hour, day of the month, month, day of the week: `"*/5 * * * *"`, `"30 8 * * mon-fri"`.
        `timezone`: the name of a time zone, or a `tzinfo`. When clocks are set forward or back, a daily call
        (`"30 2 * * *"`) is made once on that day, as by Debian's cron.

        Needs the extra `schedule`. Raises the errors of `every`, and `InvalidOption` for a bad line or time zone.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     worker = Worker(queue)
        ...     @worker.cron("30 8 * * mon-fri", timezone="Europe/Vienna")
        ...     def send_report():
        ...         print("sends the report")
        """
        return self._function_decorator(name, tube, Settings(check_timeout(timeout)), Cron(line, timezone))

    def _function_decorator(
        self, name: str | None, tube: object, settings: Settings, schedule: Schedule | None = None
    ) -> Callable[[H], H]:
        if name is not None:
            text("name", name)
        return lambda function: self._add_function(function, name, tube, settings, schedule)

    def _add_function(
        self, function: H, name: str | None, tube: object, settings: Settings, schedule: Schedule | None = None
    ) -> H:
        (place,) = names = tube_names([tube])
        check_handler(function, "")
        if settings.process:
            check_process(function)
        own_name = name_of(function, name)
        if place not in (TASKS, SCHEDULES):
            self._look_up(names)
        with self._lock:
            route = next((route for route in self._routes if place in route.tubes), None) or Route(names, {})
            if isinstance(route.target, Target):
                raise InvalidOption(option="tube", value=place, rule="already has a handler: remove it first")
            same: dict[str, Target] = {}
            if schedule is not None:
                TaskFunction(function, own_name, place).check((), {})
                # A function may have several schedules, and may also be a task function.
                same = self._targets_of(function, route)
                own_name = next(iter(same)) if same and name is None else own_name
            existing = route.target.get(own_name)
            if existing is not None and (schedule is None or not _calls(existing, function)):
                rule = f"is already a task function of tube {place!r}"
                raise InvalidOption(option="name", value=own_name, rule=rule)
            if existing is not None and existing.schedule is not None and schedule is not None:
                schedule = AnyOf([existing.schedule, schedule])
            if existing is None and own_name in same:
                existing = same[own_name]
                timeout = existing.timeout if settings.timeout is None else settings.timeout
                existing = dataclasses.replace(existing, schedule=None, timeout=timeout)
            if existing is None:
                if schedule is not None and is_marked(function):
                    # It is also a task function, perhaps of another worker: `enqueue` keeps its tube and options.
                    task_function = TaskFunction(function, own_name, place)
                else:
                    task_function = mark(
                        function, own_name, place, settings.put, settings.key_of, unique=settings.unique
                    )
                existing = Target(
                    handler_of(function, task_function),
                    function,
                    settings.timeout,
                    settings.process,
                    partial(arguments_of, task_function),
                    own_name,
                    backoff=settings.backoff,
                    options=settings.put,
                )
            target = dataclasses.replace(existing, schedule=schedule)
            self._check_async(target)
            # A running worker shares this dict and uses the function at once.
            route.target[own_name] = target
            if route not in self._routes:
                self._routes = [*self._routes, route]
        self._notify_run()
        return function

    def _targets_of(self, function: Callable[..., object], route: Route) -> dict[str, Target]:
        """Return the targets that already call this function, by name: first of this route, then of the others."""
        found: dict[str, Target] = {}
        for candidate in (route, *self._routes):
            if not isinstance(candidate.target, Target):
                for name, target in candidate.target.items():
                    if _calls(target, function):
                        found.setdefault(name, target)
        return found

    def off(self, tubes: Tubes) -> None:
        """Stop taking tasks from these tubes. Tasks that were already taken are finished.

        May be called from any thread: a running worker picks the change up a moment later. Raises `TubeNotFound` for a
        tube without a handler.
        """
        names = tube_names(tubes)
        with self._lock:
            for name in names:
                if not any(name in route.tubes for route in self._routes):
                    raise TubeNotFound(name=name)
            kept = [(route, tuple(name for name in route.tubes if name not in names)) for route in self._routes]
            self._routes = [
                dataclasses.replace(route, tubes=tubes_left) if tubes_left != route.tubes else route
                for route, tubes_left in kept
                if tubes_left
            ]
        self._notify_run()

    def around(self, hook: H) -> H:
        """Wrap every call of a handler, for example in a log, a trace or a transaction. Also a decorator.

        `hook`: a function that takes the task and returns a context manager, or a generator function that yields once;
        errors of the handler are raised at the yield. An async hook needs async handlers. The first hook is the
        outermost. It takes effect at the next `run`.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     _ = queue.create_tube("mail").put("ann", context={"trace": "4bf9"})
        ...     worker = Worker(queue)
        ...     @worker.around
        ...     def log(task):
        ...         print("begins", task.context["trace"])
        ...         yield
        ...         print("ends")
        ...     _ = worker.on("mail", lambda task: print(task.data))
        ...     _ = worker.run(burst=True)
        begins 4bf9
        ann
        ends
        """
        checked = check_hook(hook, "around")
        is_async = inspect.isasyncgenfunction(hook)
        with self._lock:
            if is_async and not all(target.is_async for route in self._routes for target in route.targets):
                raise InvalidOption(option="around", value=hook, rule="must not be async: some handlers are not")
            self._has_async_hook = self._has_async_hook or is_async
            self._hooks = [*self._hooks, checked]
        return hook

    def lifespan(self, hook: H) -> H:
        """Wrap the whole run, for example to open and close a database connection for the handlers. Also a decorator.

        `hook`: a function without arguments that returns a context manager, or a generator function that yields once;
        plain or async. It is entered in the thread of `run`, before the worker connects, so no task is taken before it
        is ready. It is left when all handlers have ended or were cut off. The first hook is the outermost. It takes
        effect at the next `run`.

        An error of the hook ends the run, and `run` raises it.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     _ = queue.create_tube("mail").put("ann")
        ...     worker = Worker(queue)
        ...     @worker.lifespan
        ...     def pool():
        ...         print("opens")
        ...         yield
        ...         print("closes")
        ...     _ = worker.on("mail", lambda task: print(task.data))
        ...     _ = worker.run(burst=True)
        opens
        ann
        closes
        """
        checked: Callable[..., object] = check_hook(hook, "lifespan")
        with self._lock:
            self._lifespans = [*self._lifespans, checked]
        return hook

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, *, burst: bool = False) -> Summary:
        """Work until `stop` or a signal; with `burst`, until no task is left. Blocks, and returns a `Summary`.

        In the main thread SIGTERM and SIGINT stop the worker: it stops taking tasks, running handlers have `grace`
        seconds to finish, and the tasks of unfinished handlers are released. A second signal ends the worker at once.
        `summary.exit_code` is the exit code for the process: `sys.exit(worker.run().exit_code)`.

        A burst ends when no tube has a task that may be taken now and no handler runs. It does not wait for delayed
        tasks, for tasks in backoff, or for lanes that are busy elsewhere. A failed task without a backoff is retried
        while it has attempts left; a task without `max_attempts` is tried once, and released at the end of the burst.

        Raises `NoHandlers` for a worker without handlers, `TubeNotFound` for an unknown tube that could not be looked
        up when its handler was registered, and `WorkerBusy` if it is already running, or in an event loop, which it
        would block: use `run_async` there. An error of a `lifespan` ends the run.
        """
        return self._run_blocking(burst=burst)

    def _run_blocking(self, on_start: Callable[[], object] = _no_op, *, burst: bool = False) -> Summary:
        if asyncio._get_running_loop() is not None:
            raise WorkerBusy(why="an event loop runs in this thread: await run_async() there")
        loop = asyncio.new_event_loop()
        try:
            with stop_on_signals(lambda now: self.stop(now=now), self._code_at_once):
                return loop.run_until_complete(self._run_in_loop(on_start, burst=burst))
        finally:
            _close(loop)

    async def run_async(self, *, burst: bool = False) -> Summary:
        """Work like `run`, but in the running event loop and without signal handlers.

        `stop` ends it; cancelling it cuts the handlers off.
        """
        return await self._run_in_loop(burst=burst)

    def running(self) -> Running[Worker]:
        """Run the worker during a `with` or `async with` block, for a program that also does other work.

        With `with` the worker runs in a thread, with `async with` in the running event loop, both without signal
        handlers. The block begins when the worker has connected and its `lifespan` hooks have started. At the end of
        the block the worker stops: running handlers have `grace` seconds to finish; a Ctrl-C or a cancellation
        during this time stops it at once.

        An error at the start of the worker is raised before the block, see `run`, a later one at the end of the block.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     squares = queue.create_tube("squares")
        ...     worker = Worker(queue)
        ...     worker.on(squares, lambda task: task.data**2) and None
        ...     with worker.running():
        ...         squares.call(5, timeout=10)
        25
        """
        return Running(self)

    async def _run_in_loop(self, on_start: Callable[[], object] = _no_op, *, burst: bool = False) -> Summary:
        with self._lock:
            if self._is_running:
                raise WorkerBusy(why="it is already running")
            if not self._routes:
                raise NoHandlers
            # A stop before the first run is meant for that run. A later one may have been meant for the previous run.
            if self._has_run:
                self._stop_request = None
            self._is_running = self._has_run = True
        self._loop = asyncio.get_running_loop()
        self._stop_requested = asyncio.Event()
        if self._stop_request is not None:
            self._stop_requested.set()
        summary: Summary | None = None
        try:
            async with AsyncExitStack() as stack:
                for hook in self._lifespans:
                    await enter(stack, hook())
                async with open_connections(self._queue, self._stop_requested) as connections:
                    if connections is None:
                        return Summary()
                    await self._look_up_unchecked(connections.queue)
                    self._run = Run(connections, self._hooks, burst=burst, tracebacks=self._tracebacks)
                    self._update_run()
                    on_start()
                    summary = await self._run.work(self.grace)
            # A lifespan may have suppressed an error of the run.
            if summary is None:  # pyright: ignore[reportUnnecessaryComparison]
                return Summary()
            log.info("the worker has ended: %s", summary.as_text())
            return summary
        finally:
            self._run = self._loop = None
            self._is_running = False

    def stop(self, *, now: bool = False) -> None:
        """End a run, as a signal does. `now`: without grace. Does not wait. May be called from any thread or handler.

        A stop before the first run ends that run at its start, so that a thread which is about to call `run` also
        stops.
        """
        self._stop_request = now or bool(self._stop_request)
        self._notify_run()

    def _notify_run(self) -> None:
        """Make the current run apply a change."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(self._update_run)

    def _update_run(self) -> None:
        if self._stop_request is not None:
            self._stop_requested.set()
        if self._run is not None:
            if self._stop_request is not None:
                self._run.stop(now=self._stop_request)
            self._run.follow(share(self._routes, self.total, self.concurrency))


def _calls(target: Target, function: Callable[..., object]) -> bool:
    return bool(target.function == function)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Close an event loop. Handlers that ignore their cancellation are left behind after a second."""
    pending = asyncio.all_tasks(loop)
    for task in pending:
        task.cancel()
    if pending:
        loop.run_until_complete(asyncio.wait(pending, timeout=1))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
