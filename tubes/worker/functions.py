"""Task functions: a task has the name of one, and its arguments."""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from tubes.errors import InvalidOption
from tubes.values.task_data import TaskFunction, read
from tubes.worker.logs import log
from tubes.worker.outcomes import Bury, Retry
from tubes.worker.routes import Target

if TYPE_CHECKING:
    from tubes.aio import AsyncTask
    from tubes.sync import Task
    from tubes.worker.hooks import Handler

#: The task whose function runs.
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


def handler_of(function: Handler, known: TaskFunction) -> Handler:
    """The handler that calls a function with the arguments that a task has."""

    @functools.wraps(function)
    def handle(task: Any) -> object:
        args, kwargs = arguments_of(known, task)
        current.set(task)
        return function(*args, **kwargs)

    return handle


def arguments_of(known: TaskFunction, task: Any) -> tuple[list[object], dict[str, object]]:
    """The arguments that a task has for a function. Raises `Bury` where they do not fit."""
    _, args, kwargs = _read(task)
    try:
        known.check(args, kwargs)
    except InvalidOption as error:
        raise Bury(f"TypeError: {error.facts['rule']}") from None
    return args, kwargs


def _unknown(task: Any) -> object:
    name, _, _ = _read(task)
    log.warning("task %d of tube %r names a function that this worker does not have: %r", task.id, task.tube, name)
    raise Retry(reason=f"there is no task function {name!r} in this worker")


def _read(task: Any) -> tuple[str, list[object], dict[str, object]]:
    try:
        return read(task.data)
    except ValueError as error:
        raise Bury(f"ValueError: {error}") from None


#: Called with a task that names no function of this worker.
UNKNOWN: Final = Target(_unknown, _unknown)
