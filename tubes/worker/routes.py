"""Routes map tubes to the handlers of their tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Final

from typing_extensions import override

from tubes.aio import AsyncTube
from tubes.drivers.backoff import RetryDelays
from tubes.drivers.driver import check_tube_name
from tubes.drivers.options import SECOND, Seconds, flag, positive, seconds
from tubes.errors import InvalidOption
from tubes.sync import Tube
from tubes.values.options import PutOptions
from tubes.values.task import TaskView
from tubes.values.worker_info import MAX_LISTED_FUNCTIONS
from tubes.worker.functions import Handler
from tubes.worker.outcomes import Verdict
from tubes.worker.schedules import Schedule


@dataclass(frozen=True, eq=False)
class Target:
    """A handler, and how to call it."""

    #: Called with a task.
    handler: Handler
    #: The user's function, which the handler calls.
    function: Callable[..., object]
    #: The timeout in seconds; None: no limit.
    timeout: float | None = None
    #: True if it is called in another process.
    process: bool = False
    #: Extracts the arguments from a task; None: the function is called with the task itself.
    arguments: Callable[[Any], tuple[list[object], dict[str, object]]] | None = None
    #: The name by which tasks call the function; None: the handler of all tasks of its tubes.
    called: str | None = None
    #: The schedule on which the function is called, in addition to other tasks that name it.
    schedule: Schedule | None = None
    #: The delays after failed attempts; None: the backoff of the tube.
    backoff: RetryDelays | None = None
    #: The options with which its tasks are put.
    options: PutOptions = field(default_factory=PutOptions)

    @property
    def name(self) -> str:
        """The name of the handler, for logs and lists."""
        inner = inspect.unwrap(self.function)
        return str(getattr(inner, "__qualname__", type(inner).__qualname__)).replace("<locals>.", "")

    @cached_property
    def is_async(self) -> bool:
        """True if the handler runs in the event loop instead of a thread."""
        return is_async(self.function)

    def delay_retry(self, task: TaskView, verdict: Verdict) -> Verdict:
        """Add the delay of the function's backoff to a verdict that releases a task without a delay."""
        if self.backoff is None or verdict.method != "release" or verdict.delay is not None:
            return verdict
        return verdict._replace(delay=self.backoff.compute(task.id, task.attempts) / SECOND)

    def timeout_error(self) -> TimeoutError:
        """Return the error of a call that exceeded the timeout."""
        return TimeoutError(f"the handler took longer than {self.timeout} s")


def _no_function(task: object) -> None:
    """Stand in for a function; never called."""


#: The target of a task that names a function which this worker does not have.
UNKNOWN: Final = Target(_no_function, _no_function)


@dataclass(frozen=True)
class Route:
    """Tubes in the order of preference, the handlers of their tasks, and how many run at a time."""

    tubes: tuple[str, ...]
    #: One target for all tasks; or, for task functions, the targets by the name in the task's data. The worker may add
    #: functions while it runs.
    target: Target | dict[str, Target] = field(hash=False)
    #: Maximum handlers that run at a time; None: the `concurrency` of the worker.
    concurrency: int | None = None
    #: Identifies the route: `off` makes a copy with fewer tubes and the same key.
    key: object = field(default_factory=object, repr=False)

    @property
    def is_shared(self) -> bool:
        """True if its parts share the handlers."""
        return False

    @property
    def parts(self) -> tuple[Route, ...]:
        """The routes that take tasks together."""
        return (self,)

    def creates(self, tube: str) -> bool:
        """Return True if this tube of task functions is created if it does not exist and has a default name."""
        return not isinstance(self.target, Target)

    def tubes_of_turn(self, turn: int) -> tuple[str, ...]:
        """Return the tubes in the order of preference for a take. `turn`: the number of the take."""
        return self.tubes

    @property
    def targets(self) -> list[Target]:
        return [self.target] if isinstance(self.target, Target) else [*self.target.values()]

    @property
    def name(self) -> str:
        return self.target.name if isinstance(self.target, Target) else ", ".join(self.target)

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of the task functions that a worker lists; empty for a handler of tasks."""
        return () if isinstance(self.target, Target) else (*islice(self.target.copy(), MAX_LISTED_FUNCTIONS),)

    def target_of(self, task: TaskView) -> Target:
        """Return the target of this task; `UNKNOWN` if its data does not name a function of this route."""
        if isinstance(self.target, Target):
            return self.target
        try:
            data: Any = task.data
            return self.target[data["task"]]
        except BaseException:  # The codec, or the decoded data, may raise anything.
            return UNKNOWN


@dataclass(frozen=True)
class SharedRoute(Route):
    """Several routes whose handlers run at most `concurrency` at a time together. They take turns."""

    routes: tuple[Route, ...] = ()

    @property
    @override
    def is_shared(self) -> bool:
        return True

    @property
    @override
    def parts(self) -> tuple[Route, ...]:
        return self.routes

    @property
    @override
    def name(self) -> str:
        return ", ".join(route.name for route in self.routes)

    @override
    def creates(self, tube: str) -> bool:
        return any(tube in route.tubes and route.creates(tube) for route in self.routes)

    @override
    def tubes_of_turn(self, turn: int) -> tuple[str, ...]:
        first = turn % len(self.routes)
        return tuple(name for route in (*self.routes[first:], *self.routes[:first]) for name in route.tubes)

    @override
    def target_of(self, task: TaskView) -> Target:
        for route in self.routes:
            if task.tube in route.tubes:
                return route.target_of(task)
        return UNKNOWN


def share(routes: Iterable[Route], total: int | None, concurrency: int) -> dict[Route, int]:
    """Return the routes with the numbers of handlers that run at a time.

    `total`: the number for all routes without a number of their own together; None: each has `concurrency`.
    """
    found = {route: route.concurrency or concurrency for route in routes if route.concurrency or total is None}
    if shared := tuple(route for route in routes if route not in found):
        tubes = tuple(name for route in shared for name in route.tubes)
        found[SharedRoute(tubes, {}, key=SharedRoute, routes=shared)] = total or concurrency
    return found


def is_async(function: Callable[..., object]) -> bool:
    """Return True if the result of a function or callable object must be awaited."""
    called = getattr(function.__class__, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(called)


def check_timeout(timeout: Seconds | None) -> float | None:
    """Return the timeout of a handler in seconds. Raises `InvalidOption`."""
    limit = None if timeout is None else seconds("timeout", timeout)
    if limit == 0:
        raise InvalidOption(option="timeout", value=timeout, rule="must be more than 0 seconds, or None")
    return limit


def check_handler(handler: object, suffix: str) -> Handler:
    """Return the user's function. Raises `InvalidOption`; `suffix` completes "must be a function" in the message."""
    if not callable(handler) or inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidOption(option="handler", value=handler, rule=f"must be a function{suffix}, plain or async")
    made: Handler = handler
    return made


def _check_signature(handler: Handler) -> None:
    """Raise `InvalidOption` for a handler that cannot be called with a task."""
    try:
        signature = inspect.signature(handler, follow_wrapped=False)
    except (TypeError, ValueError):  # The signature is unknown, as for some builtins.
        return
    try:
        signature.bind(None)
    except TypeError:
        name = getattr(handler, "__name__", type(handler).__name__)
        rule = f"must take one positional argument, the task; its signature is {name}{signature}"
        raise InvalidOption(option="handler", value=handler, rule=rule) from None


def make_route(
    tubes: object, handler: object, concurrency: int | None, timeout: Seconds | None, process: bool
) -> Route:
    """Check the user's arguments, and make a route of them."""
    checked = check_handler(handler, " of a task")
    _check_signature(checked)
    if concurrency is not None:
        positive("concurrency", concurrency)
    target = Target(checked, checked, check_timeout(timeout), flag("process", process))
    return Route(tube_names(tubes), target, concurrency)


def tube_names(tubes: object) -> tuple[str, ...]:
    """Return the names of one tube or several."""
    items: list[object] = [tubes] if isinstance(tubes, _SINGLE) or not isinstance(tubes, Iterable) else [*tubes]
    names = tuple(tube.name if isinstance(tube, (Tube, AsyncTube)) else check_tube_name(tube) for tube in items)
    if not names or len(set(names)) < len(names):
        raise InvalidOption(option="tubes", value=tubes, rule="must name at least one tube, and each tube once")
    return names


_SINGLE: Final = (str, Tube, AsyncTube)
