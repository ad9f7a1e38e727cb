"""Routes: tubes, and the handlers of their tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from tubes.aio import AsyncTube
from tubes.drivers.driver import check_tube_name
from tubes.drivers.options import Seconds, flag, positive, seconds
from tubes.errors import InvalidOption
from tubes.sync import Tube
from tubes.values.task import TaskView
from tubes.worker.hooks import Handler
from tubes.worker.schedules import Schedule


@dataclass(frozen=True, eq=False)
class Target:
    """A handler, and how it is called."""

    #: Called with a task.
    handler: Handler
    #: The user's function, which it calls.
    function: Callable[..., Any]
    #: Seconds that it may take; None: no limit.
    timeout: float | None = None
    #: Whether it is called in another process.
    process: bool = False
    #: What a task has for the function; None: that is called with the task.
    arguments: Callable[[Any], tuple[list[object], dict[str, object]]] | None = None
    #: When it is to be called, besides.
    schedule: Schedule | None = None

    @property
    def name(self) -> str:
        """The name of the handler, for logs and lists."""
        inner = inspect.unwrap(self.function)
        return str(getattr(inner, "__qualname__", type(inner).__qualname__)).replace("<locals>.", "")

    @cached_property
    def is_async(self) -> bool:
        """Whether the handler runs in the event loop, and not in a thread."""
        return is_async(self.function)


def _none(task: object) -> None:
    """No function."""


#: Of a task that names no function of this worker.
UNKNOWN: Final = Target(_none, _none)


@dataclass(frozen=True)
class Route:
    """Tubes in the order of preference, the handlers of their tasks, and how many run at a time."""

    tubes: tuple[str, ...]
    #: One for all tasks; or, in a tube of task functions, by the name in the task's data: functions may be added.
    target: Target | dict[str, Target] = field(hash=False)
    #: None: that of the worker.
    concurrency: int | None = None
    #: Equal for a route and for what is left of it when a tube was taken away.
    key: object = field(default_factory=object, repr=False)

    @property
    def targets(self) -> list[Target]:
        """All handlers."""
        return [self.target] if isinstance(self.target, Target) else [*self.target.values()]

    @property
    def name(self) -> str:
        """The names of its handlers, for logs and lists."""
        return self.target.name if isinstance(self.target, Target) else ", ".join(self.target)

    def target_of(self, task: TaskView) -> Target:
        """The handler of this task; `UNKNOWN`: it names no function of this route."""
        if isinstance(self.target, Target):
            return self.target
        try:
            data: Any = task.data
            return self.target[data["task"]]
        except BaseException:  # Of the codec, or of whatever the data is.
            return UNKNOWN


def is_async(function: Callable[..., object]) -> bool:
    """Whether a function, or what is called like one, is to be awaited."""
    called = getattr(function.__class__, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(called)


def check_timeout(timeout: Seconds | None) -> float | None:
    """Seconds that a handler may take."""
    limit = None if timeout is None else seconds("timeout", timeout)
    if limit == 0:
        raise InvalidOption(option="timeout", value=timeout, rule="must be more than 0 seconds, or None")
    return limit


def check_handler(handler: Any, what: str) -> Handler:
    """A function of the user's. `what`: what it is a function of."""
    if not callable(handler) or inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidOption(option="handler", value=handler, rule=f"must be a function{what}, plain or async")
    made: Handler = handler
    return made


def make_route(
    tubes: object, handler: object, concurrency: int | None, timeout: Seconds | None, process: bool
) -> Route:
    """A route from a user's arguments, which are checked."""
    checked = check_handler(handler, " of a task")
    if concurrency is not None:
        positive("concurrency", concurrency)
    target = Target(checked, checked, check_timeout(timeout), flag("process", process))
    return Route(tube_names(tubes), target, concurrency)


def tube_names(tubes: object) -> tuple[str, ...]:
    """The names of a tube or of several."""
    wanted: list[object] = [tubes] if isinstance(tubes, _ONE) or not isinstance(tubes, Iterable) else [*tubes]
    names = tuple(tube.name if isinstance(tube, (Tube, AsyncTube)) else check_tube_name(tube) for tube in wanted)
    if not names or len(set(names)) < len(names):
        raise InvalidOption(option="tubes", value=tubes, rule="must name at least one tube, and none twice")
    return names


_ONE: Final = (str, Tube, AsyncTube)
