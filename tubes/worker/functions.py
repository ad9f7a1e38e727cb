"""Task functions: a task has the name of one, and its arguments."""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from tubes.drivers.options import SECOND
from tubes.errors import InvalidOption, excerpt
from tubes.values.task_data import TaskFunction, read
from tubes.worker.logs import log
from tubes.worker.outcomes import Bury, Verdict, name_of

if TYPE_CHECKING:
    from tubes.aio import AsyncTask
    from tubes.sync import Task
    from tubes.values.task import TaskView
    from tubes.worker.hooks import Handler

#: Seconds for which a task rests whose function this worker does not have, at least and at most.
_REST: Final = (1.0, 30.0)
#: So many names of such functions are logged.
_NAMES: Final = 1000
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


def arguments_of(known: TaskFunction, task: TaskView) -> tuple[list[object], dict[str, object]]:
    """The arguments that a task has for a function. Raises `Bury` where they do not fit."""
    _, args, kwargs = _read(task)
    try:
        known.check(args, kwargs)
    except InvalidOption as error:
        raise Bury(f"TypeError: {error.facts['rule']}") from None
    return args, kwargs


class Unknown:
    """What becomes of tasks that name functions which a worker does not have."""

    def __init__(self) -> None:
        self._names: Final[set[str]] = set()

    def verdict(self, task: TaskView) -> Verdict:
        """Leave the task to a worker that has the function, as one of another version may. Log each name once.

        The older the task, the longer it rests: many of them must not keep workers from all other work.
        """
        try:
            name, _, _ = read(task.data)
        except ValueError as error:
            return Verdict("bury", f"ValueError: {error}")
        if name not in self._names and len(self._names) < _NAMES:
            self._names.add(name)
            log.warning(
                "%s is left to other workers, and so are all that call %s: this one does not have it",
                name_of(task),
                excerpt(name),
            )
        age = task._tube._port.connection.micros() / SECOND - task.created
        return Verdict("decline", delay=min(max(age / 4, _REST[0]), _REST[1]), is_logged=True)


def _read(task: TaskView) -> tuple[str, list[object], dict[str, object]]:
    try:
        return read(task.data)
    except ValueError as error:
        raise Bury(f"ValueError: {error}") from None
