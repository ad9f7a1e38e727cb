"""Handlers: hooks around them, and task functions, whose tasks name a function and its arguments in their data."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tubes.backend.port import port_of
from tubes.drivers.options import SECOND
from tubes.errors import InvalidOption, excerpt
from tubes.values.task_data import TaskFunction, read
from tubes.worker.logs import log
from tubes.worker.outcomes import MAX_NAME, Bury, Verdict, name_of

if TYPE_CHECKING:
    from tubes.aio import AsyncTask
    from tubes.sync import Task
    from tubes.values.task import TaskView

#: Shortest and longest delay, in seconds, of a task whose function this worker does not have.
_DELAYS: Final = (1.0, 30.0)
#: Maximum names of such functions that are logged and listed.
_MAX_KEPT: Final = 1000
#: Seconds for which such a name is listed after a task has called it: longer than the longest delay.
_RECENT: Final = 60.0
#: The task of the running function.
current: Final[ContextVar[Any]] = ContextVar("tubes.current_task")


def current_task() -> Task | AsyncTask:
    """Return the task of the running function, for its id, its attempts or its context.

    Raises `LookupError` outside of task functions.

    >>> import tubes
    >>> from tubes.worker import Worker, current_task
    >>> with tubes.connect() as queue:
    ...     worker = Worker(queue)
    ...     @worker.task
    ...     def greet(name):
    ...         print("hello", name, "by task", current_task().id)
    ...     _ = queue.enqueue(greet, "ann")
    ...     worker.run(burst=True).acked
    hello ann by task 0
    1
    """
    task: Task | AsyncTask = current.get()
    return task


def handler_of(function: Handler, task_function: TaskFunction) -> Handler:
    """Return a handler that calls the function with the arguments in the task's data."""

    @functools.wraps(function)
    def handle(task: Any) -> object:
        args, kwargs = arguments_of(task_function, task)
        current.set(task)
        return function(*args, **kwargs)

    return handle


def arguments_of(task_function: TaskFunction, task: TaskView) -> tuple[list[object], dict[str, object]]:
    """Return the arguments in the task's data. Raises `Bury` if they do not fit the function."""
    try:
        _, args, kwargs = read(task.data)
        task_function.check(args, kwargs)
    except InvalidOption as error:
        raise Bury(f"TypeError: {error.facts['rule']}") from None
    except ValueError as error:
        raise Bury(f"ValueError: {error}") from None
    return args, kwargs


class UnknownFunctions:
    """Decides about tasks that name a function which this worker does not have."""

    def __init__(self) -> None:
        # The time at which such a task was taken last, by tube and function.
        self._seen: Final[dict[tuple[str, str], float]] = {}

    def verdict(self, task: TaskView) -> Verdict:
        """Leave the task to a worker that has the function, such as one of a newer version. Log each name once.

        The delay grows with the age of the task, so that many such tasks do not keep workers from other work.
        """
        try:
            name, _, _ = read(task.data)
        except ValueError as error:
            return Verdict("bury", f"ValueError: {error}")
        name = name[:MAX_NAME].encode(errors="replace").decode()  # It is listed as JSON.
        call = task.tube, name
        if call not in self._seen and len(self._seen) < _MAX_KEPT:
            log.warning(
                "%s is left to other workers: this worker does not have the function %s."
                " If another application uses this tube, give each a namespace, as in redis://localhost?namespace=shop",
                name_of(task),
                excerpt(name),
            )
        if call in self._seen or len(self._seen) < _MAX_KEPT:
            self._seen[call] = time.monotonic()
        age = port_of(task._tube).connection.micros() / SECOND - task.created
        return Verdict("decline", delay=min(max(age / 4, _DELAYS[0]), _DELAYS[1]), is_logged=True)

    def recent(self) -> list[tuple[str, str]]:
        """Return the tube and the name of each such function that a task has called lately. For any thread."""
        earliest = time.monotonic() - _RECENT
        return [call for call, moment in self._seen.copy().items() if moment > earliest]


#: A user's function that takes a task, plain or async.
Handler: TypeAlias = Callable[[Any], Any]
#: A function that takes a task and returns a context manager.
Hook: TypeAlias = Callable[[object], Any]


def check_hook(hook: object, option: str) -> Hook:
    """Return the user's hook as a function that returns a context manager. Raises `InvalidOption`."""
    if not callable(hook) or inspect.iscoroutinefunction(hook):
        rule = "must be a generator function that yields once, or a function that returns a context manager"
        raise InvalidOption(option=option, value=hook, rule=rule)
    if inspect.isgeneratorfunction(hook):
        return contextmanager(hook)
    if inspect.isasyncgenfunction(hook):
        return asynccontextmanager(hook)
    made: Hook = hook
    return made


def wrap(hooks: list[Hook], handler: Handler) -> Handler:
    """Wrap a plain handler in its hooks, the first one outermost."""
    if not hooks:
        return handler

    def wrapped(task: object) -> object:
        with ExitStack() as stack:
            for hook in hooks:
                stack.enter_context(hook(task))
            return handler(task)
        return None  # A hook has handled the error.

    return wrapped


def wrap_async(hooks: list[Hook], handler: Handler) -> Handler:
    """Wrap an async handler in its hooks, whose context managers may be plain or async."""
    if not hooks:
        return handler

    async def wrapped(task: object) -> object:
        async with AsyncExitStack() as stack:
            for hook in hooks:
                await enter(stack, hook(task))
            return await handler(task)
        return None  # A hook has handled the error.

    return wrapped


async def enter(stack: AsyncExitStack, manager: Any) -> None:
    """Enter a context manager, plain or async."""
    if hasattr(manager, "__aenter__"):
        await stack.enter_async_context(manager)
    else:
        stack.enter_context(manager)
