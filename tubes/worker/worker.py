"""The worker, as users see it."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import threading
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from datetime import tzinfo
from functools import partial
from typing import Any, Final, TypeVar, overload

from tubes import aio, sync
from tubes.drivers.options import Seconds, flag, positive, seconds, text
from tubes.errors import InvalidOption, TubeNotFound, TubesError
from tubes.values.task_data import TASKS, TaskFunction, mark, name_of
from tubes.worker.connections import connected
from tubes.worker.functions import arguments_of, handler_of
from tubes.worker.hooks import Hook, check_hook, enter
from tubes.worker.processes import check_process
from tubes.worker.routes import Route, Target, check_handler, check_timeout, make_route, tube_names
from tubes.worker.run import Run
from tubes.worker.schedules import AnyOf, Cron, Every, Schedule
from tubes.worker.signals import heeding
from tubes.worker.summary import AT_ONCE, Summary

H = TypeVar("H", bound=Callable[..., Any])
#: A tube, or several in the order of preference.
Tubes = sync.Tube | aio.AsyncTube | str | Iterable[sync.Tube | aio.AsyncTube | str]


class WorkerBusy(TubesError):
    """this worker cannot run: {why}."""


class NoHandlers(InvalidOption):
    """this worker cannot run: it has no handlers. Add one by worker.on, worker.task, worker.every or worker.cron."""


class Worker:
    """Calls functions with the tasks of tubes.

    `queue`: of threads or of asyncio, in memory or on a server. The worker has a session of its own on it, so that
    it can be ended without harm to what else the queue has taken.
    `concurrency`: how many tasks each handler works on at a time, unless `on` says otherwise.
    `grace`: seconds for which handlers may go on when the worker is stopped.

    A handler is called with a task: a plain function in a thread with a `Task`, an async one in the event loop with an
    `AsyncTask`. When it returns the task is acked. When it raises, the task is released, for as long as the tube's
    backoff says; after its last attempt it is buried with the error as the reason. See `Retry` and `Bury`. While a
    handler works its task is kept, whatever its ttr and its ttl. Nothing is taken that no handler is free for.

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

    def __init__(self, queue: sync.Queue | aio.AsyncQueue, *, concurrency: int = 1, grace: Seconds = 30.0) -> None:
        if not isinstance(queue, (sync.Queue, aio.AsyncQueue)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(option="queue", value=queue, rule="must be a Queue or an AsyncQueue")
        positive("concurrency", concurrency)
        #: How many tasks each handler works on at a time; what is set here counts from the next `run` on.
        self.concurrency = concurrency
        #: Seconds for which handlers may go on when the worker is stopped.
        self.grace = seconds("grace", grace)
        self._queue: Final = queue
        self._routes: list[Route] = []
        self._hooks: list[Hook] = []
        self._lifespans: list[Callable[[], Any]] = []
        self._has_async_hook = False
        self._lock: Final = threading.Lock()
        self._is_running = False
        self._has_run = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._run: Run | None = None
        # Whether somebody wants it to stop: at once, or with grace.
        self._asked: bool | None = None
        self._is_asked = asyncio.Event()
        # The exit code of a process that a second signal ends while its event loop is blocked.
        self._code_at_once: int = AT_ONCE

    # -- what it does --------------------------------------------------------------------------------------------------

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
        handler: Any = None,
        *,
        concurrency: int | None = None,
        timeout: Seconds | None = None,
        process: bool = False,
    ) -> Any:
        """Have tasks of a tube, or of several, handled by a function; without one it is a decorator.

        `tubes`: names or tubes; of several the first that has a task gives it. They should be there when it runs: until
        then the worker looks for them again and again.
        `handler`: called with a task; plain or async. Answers the handler.
        `concurrency`: how many tasks it works on at a time; None: what the worker says.
        `timeout`: seconds that it may take for a task; an async handler is cancelled then, a thread goes on but nobody
        heeds it, and either way the attempt has failed.
        `process`: whether a plain handler is called in another process, for work that needs a core of its own: in up to
        `concurrency` processes, which are kept for the next tasks. It is given a `ProcessTask`, and must be at the top
        level of a module that can be imported; data and result must be picklable. After its `timeout` the process is
        killed; one that dies fails that attempt alone.

        From any thread; a worker that runs heeds it a moment later. Raises `InvalidOption` for a tube that has a
        handler.
        """
        if handler is None:

            def decorate(handler: H) -> H:
                return self._add_route(tubes, handler, concurrency, timeout, process)

            return decorate
        return self._add_route(tubes, handler, concurrency, timeout, process)

    def _add_route(
        self, tubes: Tubes, handler: H, concurrency: int | None, timeout: Seconds | None, process: bool
    ) -> H:
        route = make_route(tubes, handler, concurrency, timeout, process)
        if process:
            check_process(handler)
        with self._lock:
            for name in route.tubes:
                if any(name in other.tubes for other in self._routes):
                    raise InvalidOption(option="tubes", value=name, rule="already has a handler: remove that first")
            for target in route.targets:
                self._check_async(target)
            self._routes = [*self._routes, route]
        self._tell()
        return handler

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
    ) -> Callable[[H], H]: ...
    def task(
        self,
        name: Any = None,
        *,
        tube: sync.Tube | aio.AsyncTube | str = TASKS,
        timeout: Seconds | None = None,
        process: bool = False,
    ) -> Any:
        """Have a function called with the arguments of tasks that name it; a decorator, with or without arguments.

        `name`: by which tasks call it; None: its own, `__name__`. Programs in all languages use it: see `task_data`.
        `tube`: where its tasks come from, a tube or a name. All functions of one tube share its place in the worker:
        `concurrency` of them run at a time, plain ones in threads, async ones in the event loop. The tube `tasks` is
        made if it is not there, as by `Queue.enqueue`; others should be there.
        `timeout`: seconds that a call may take, as for `on`.
        `process`: whether it is called in another process, as for `on`; `current_task` returns a `ProcessTask` there.

        What the function returns goes to whoever has put the task by `Tube.call`; what it raises counts as for `on`. A
        task whose arguments do not fit is buried. One whose name this worker does not know is released, as if it had
        failed, since a newer worker may know it; after its last attempt it is buried with that as the reason.

        Returns the function as it was: it can still be called. Raises `InvalidOption` for a tube that has a handler, a
        name that the tube has already, and what is no function.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     worker = Worker(queue)
        ...     @worker.task
        ...     def send_email(to, subject="hello"):
        ...         print(subject, "to", to)
        ...     _ = queue.enqueue(send_email, "ann")
        ...     _ = queue.enqueue("send_email", "bob", subject="news")
        ...     worker.run(burst=True).acked
        hello to ann
        news to bob
        2
        """
        if callable(name):
            return self._add_function(name, None, tube, timeout, process)
        if name is not None:
            text("name", name)

        def decorate(function: H) -> H:
            return self._add_function(function, name, tube, timeout, process)

        return decorate

    def every(
        self,
        interval: Seconds,
        name: str | None = None,
        *,
        tube: sync.Tube | aio.AsyncTube | str = TASKS,
        timeout: Seconds | None = None,
    ) -> Callable[[H], H]:
        """Have a function called every so many seconds, once however many workers and processes run; a decorator.

        `interval`: seconds, at least 1, or a `timedelta`. The function is called at all multiples of it since the epoch
        (`every(3600)`: at each full hour, UTC), by the clock of the queue.
        The rest is as for `task`: it is a task function, which is called without arguments. `tube` needs delays. Put
        this decorator on top of `task(process=True)` to have it called in another process.

        The next call is a task with a delay and a key of its own, which all workers put and one of them takes. It fails
        and is tried again like any task. What becomes due while no worker runs, or while all are busy, is called once,
        for the latest time; the others are left out. Where `tube` has lanes each function has its own, so that a call
        does not begin before the last one has ended; elsewhere they may overlap.

        Raises what `task` raises, and `InvalidOption` for a function that cannot be called without arguments.

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
        return self._scheduling(Every(interval), name, tube, timeout)

    def cron(
        self,
        line: str,
        name: str | None = None,
        *,
        timezone: str | tzinfo = "UTC",
        tube: sync.Tube | aio.AsyncTube | str = TASKS,
        timeout: Seconds | None = None,
    ) -> Callable[[H], H]:
        """Have a function called when a line of a crontab says so, as `every` does. A decorator.

        `line`: minute, hour, day of the month, month, day of the week: `"*/5 * * * *"`, `"30 8 * * mon-fri"`.
        `timezone`: the name of a time zone, or a `tzinfo`. Where clocks are set forward or back, a call that has a time
        of its own (`"30 2 * * *"`) comes once on that day, as Debian's cron does it.

        Needs the extra `schedule`. Raises what `every` raises, and `InvalidOption` for a line or a time zone that is
        none.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     worker = Worker(queue)
        ...     @worker.cron("30 8 * * mon-fri", timezone="Europe/Vienna")
        ...     def send_report():
        ...         print("sends the report")
        """
        return self._scheduling(Cron(line, timezone), name, tube, timeout)

    def _scheduling(
        self, schedule: Schedule, name: str | None, tube: object, timeout: Seconds | None
    ) -> Callable[[H], H]:
        if name is not None:
            text("name", name)

        def decorate(function: H) -> H:
            return self._add_function(function, name, tube, timeout, schedule=schedule)

        return decorate

    def _add_function(
        self,
        function: H,
        name: str | None,
        tube: object,
        timeout: Seconds | None,
        process: bool = False,
        schedule: Schedule | None = None,
    ) -> H:
        (place,) = names = tube_names([tube])
        check_handler(function, "")
        limit = check_timeout(timeout)
        if flag("process", process):
            check_process(function)
        own_name = name_of(function, name)
        with self._lock:
            route = next((route for route in self._routes if place in route.tubes), None) or Route(names, {})
            if isinstance(route.target, Target):
                raise InvalidOption(option="tube", value=place, rule="already has a handler: remove that first")
            if schedule is not None:
                TaskFunction(function, own_name, place).check((), {})
                # A function may have several schedules, and be a task function besides.
                same = [known for known, target in route.target.items() if _calls(target, function)]
                own_name = same[0] if same and name is None else own_name
            before = route.target.get(own_name)
            if before is not None and (schedule is None or not _calls(before, function)):
                rule = f"is already a task function of tube {place!r}"
                raise InvalidOption(option="name", value=own_name, rule=rule)
            if before is not None and before.schedule is not None and schedule is not None:
                schedule = AnyOf([before.schedule, schedule])
            if before is None:
                known = mark(function, own_name, place)
                arguments = partial(arguments_of, known)
                before = Target(handler_of(function, known), function, limit, process, arguments)
            target = dataclasses.replace(before, schedule=schedule)
            self._check_async(target)
            # A worker that runs knows it at once.
            route.target[own_name] = target
            if route not in self._routes:
                self._routes = [*self._routes, route]
        self._tell()
        return function

    def off(self, tubes: Tubes) -> None:
        """Take no more from a tube, or from several; what is in hand is finished. From any thread; a worker
        that runs heeds it a moment later.

        Raises `TubeNotFound` for one that has no handler.
        """
        names = tube_names(tubes)
        with self._lock:
            for name in names:
                if not any(name in route.tubes for route in self._routes):
                    raise TubeNotFound(name=name)
            left = [(route, tuple(name for name in route.tubes if name not in names)) for route in self._routes]
            self._routes = [
                dataclasses.replace(route, tubes=rest) if rest != route.tubes else route for route, rest in left if rest
            ]
        self._tell()

    def around(self, hook: Any) -> Any:
        """Have every handler's call surrounded: for logs, traces, transactions. A decorator, too.

        `hook`: a function of the task that answers a context manager, or a generator function that yields once; what
        the handler raises is raised there. An async one is for async handlers alone. The first one is the outermost.
        Counts from the next `run` on.

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
        made = check_hook(hook, "around")
        is_async = inspect.isasyncgenfunction(hook)
        with self._lock:
            if is_async and not all(target.is_async for route in self._routes for target in route.targets):
                raise InvalidOption(option="around", value=hook, rule="must not be async: some handlers are not")
            self._has_async_hook = self._has_async_hook or is_async
            self._hooks = [*self._hooks, made]
        return hook

    def lifespan(self, hook: H) -> H:
        """Have the whole run surrounded: to open what handlers need, and to close it. A decorator, too.

        `hook`: a function without arguments that returns a context manager, or a generator function that yields once;
        plain or async. It is entered in the thread of `run`, before the worker connects, so no task is taken before it
        is ready, and left when all handlers have ended or were cut off. The first hook is the outermost.
        Counts from the next `run` on.

        What it raises ends the run, and is raised by `run`.

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
        made: Callable[..., Any] = check_hook(hook, "lifespan")
        with self._lock:
            self._lifespans = [*self._lifespans, made]
        return hook

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, *, burst: bool = False) -> Summary:
        """Work until `stop`, or a signal; with `burst` until nothing is left. Blocks; answers a `Summary`.

        In the main thread SIGTERM and SIGINT stop it: no task is taken any more, what is in hand has `grace` seconds to
        end, and the rest is released; a second signal does without the grace. `summary.exit_code` says which:
        `sys.exit(worker.run().exit_code)`.

        A burst ends when no tube has a task that may be taken now and no handler works. It does not wait for tasks that
        are delayed, or rest after a failure, or whose lane is busy elsewhere. What fails is tried again while it has
        attempts left and does not rest; a task that may be taken any number of times is tried once, and released at the
        end of the burst.

        Raises `NoHandlers` for a worker without handlers; `WorkerBusy` where it runs already, and in an event loop,
        which it would block: there is `run_async`. What a `lifespan` raises ends the run.
        """
        if asyncio._get_running_loop() is not None:
            raise WorkerBusy(why="an event loop runs in this thread: await run_async() there")
        loop = asyncio.new_event_loop()
        try:
            with heeding(lambda now: self.stop(now=now), self._code_at_once):
                return loop.run_until_complete(self.run_async(burst=burst))
        finally:
            _close(loop)

    async def run_async(self, *, burst: bool = False) -> Summary:
        """Work as `run` does, in the running event loop, without signals: `stop` it, or cancel it to cut it off."""
        with self._lock:
            if self._is_running:
                raise WorkerBusy(why="it is already running")
            if not self._routes:
                raise NoHandlers
            # A stop before the first run is for a thread that is about to run; later ones may be of the run before.
            if self._has_run:
                self._asked = None
            self._is_running = self._has_run = True
        self._loop = asyncio.get_running_loop()
        self._is_asked = asyncio.Event()
        if self._asked is not None:
            self._is_asked.set()
        try:
            async with AsyncExitStack() as stack:
                for hook in self._lifespans:
                    await enter(stack, hook())
                async with connected(self._queue, self._is_asked) as connections:
                    if connections is None:
                        return Summary()
                    self._run = Run(connections, self._hooks, burst=burst)
                    self._heed()
                    return await self._run.work(self.grace)
            return Summary()  # A lifespan has dealt with an error of the run.
        finally:
            self._run = self._loop = None
            self._is_running = False

    def stop(self, *, now: bool = False) -> None:
        """End a run, as a signal does; `now`: without grace. From any thread, and from a handler. Does not wait.

        Before the first one it ends that as it begins: a thread that is about to run is not missed.
        """
        self._asked = now or bool(self._asked)
        self._tell()

    def _tell(self) -> None:
        """Whatever has changed, a run that is on its way heeds it."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # It has ended.
                loop.call_soon_threadsafe(self._heed)

    def _heed(self) -> None:
        if self._asked is not None:
            self._is_asked.set()
        if self._run is not None:
            if self._asked is not None:
                self._run.stop(now=self._asked)
            self._run.follow({route: route.concurrency or self.concurrency for route in self._routes})


def _calls(target: Target, function: Callable[..., Any]) -> bool:
    return bool(target.function == function)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """End a loop, without waiting for handlers that do not end."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=1))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
