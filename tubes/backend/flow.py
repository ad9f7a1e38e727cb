"""Flows: work that is written once, and runs in a thread or in an event loop.

A flow is a generator. It yields steps, gets the result of each, and returns its own result. `ask` carries a step out:
at once for `run`, as an awaitable for `run_async`. An error of a step is raised in the flow at its yield. A `Rest` is a
step of any flow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Rest:
    """A step that waits for some time."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds: Final = seconds

    def sleep(self) -> None:
        """Let the time pass in a thread."""
        time.sleep(self.seconds)


#: The type of a result depends on the step.
Flow: TypeAlias = Generator[S | Rest, Any, T]


def run(flow: Flow[S, T], ask: Callable[[S], object]) -> T:
    """The result of a flow whose steps are carried out at once, in this thread."""
    try:
        step = next(flow)
        while True:
            try:
                answer = None
                if isinstance(step, Rest):
                    step.sleep()
                else:
                    answer = ask(step)
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
    except BaseException:
        flow.close()  # It was interrupted between two steps.
        raise


async def run_async(flow: Flow[S, T], ask: Callable[[S], Awaitable[object]]) -> T:
    """The result of a flow whose steps are awaited."""
    try:
        step = next(flow)
        while True:
            try:
                answer = await (asyncio.sleep(step.seconds) if isinstance(step, Rest) else ask(step))
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
    except BaseException:
        flow.close()
        raise
