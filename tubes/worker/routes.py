"""What a worker works on: tubes, and the handler of their tasks."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tubes.aio import AsyncTube
from tubes.drivers.driver import check_name
from tubes.drivers.options import Seconds, positive, seconds
from tubes.errors import InvalidOption
from tubes.sync import Tube
from tubes.worker.hooks import Handler


@dataclass(frozen=True)
class Route:
    """Tubes in the order of preference, who handles their tasks, and how many at a time."""

    tubes: tuple[str, ...]
    handler: Handler
    #: None: what the worker says.
    concurrency: int | None
    #: Seconds that a handler may take; None: as long as it likes.
    timeout: float | None
    #: Equal for a route and for what is left of it when a tube was taken away.
    key: object = field(default_factory=object, repr=False)

    @property
    def name(self) -> str:
        """What the handler is called, for logs and lists."""
        inner = inspect.unwrap(self.handler)
        return str(getattr(inner, "__qualname__", type(inner).__qualname__)).replace("<locals>.", "")

    @cached_property
    def is_async(self) -> bool:
        """Whether the handler runs in the event loop, and not in a thread."""
        called = getattr(self.handler.__class__, "__call__", None)  # noqa: B004
        return inspect.iscoroutinefunction(inspect.unwrap(self.handler)) or inspect.iscoroutinefunction(called)


def make_route(tubes: object, handler: object, concurrency: int | None, timeout: Seconds | None) -> Route:
    """A route from a user's arguments, which are checked."""
    if not callable(handler) or inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidOption(option="handler", value=handler, rule="must be a function of a task, plain or async")
    if concurrency is not None:
        positive("concurrency", concurrency)
    limit = None if timeout is None else seconds("timeout", timeout)
    if limit == 0:
        raise InvalidOption(option="timeout", value=timeout, rule="must be more than 0 seconds, or None")
    return Route(tube_names(tubes), handler, concurrency, limit)


def tube_names(tubes: object) -> tuple[str, ...]:
    """The names of a tube or of several."""
    wanted: list[object] = [tubes] if isinstance(tubes, _ONE) or not isinstance(tubes, Iterable) else [*tubes]
    names = tuple(tube.name if isinstance(tube, (Tube, AsyncTube)) else check_name("tube", tube) for tube in wanted)
    if not names or len(set(names)) < len(names):
        raise InvalidOption(option="tubes", value=tubes, rule="must name at least one tube, and none twice")
    return names


_ONE: Final = (str, Tube, AsyncTube)
