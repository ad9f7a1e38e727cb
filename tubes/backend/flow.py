"""Flows: code that is written once, and runs in a thread or in an event loop.

A flow is a generator. It yields steps, receives the result of each step, and returns its own result. The function
`ask` runs a step: `run` uses its result, `run_async` awaits it. If a step raises, the error is raised in the flow, at
the yield. Any flow may yield a `Sleep`, which sleeps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from typing import Any, Final, TypeAlias, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Sleep:
    """A step that sleeps."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds: Final = seconds

    def sleep(self) -> None:
        """Sleep in this thread."""
        time.sleep(self.seconds)


#: Functions that `run_async` calls after each step: they start the time limits of the next step.
step_ended: Final[ContextVar[tuple[Callable[[], None], ...]]] = ContextVar("step_ended", default=())
#: The steps send results of any type: the type depends on the step.
Flow: TypeAlias = Generator[S | Sleep, Any, T]


def run(flow: Flow[S, T], ask: Callable[[S], object]) -> T:
    """Run a flow in this thread and return its result."""
    try:
        step = next(flow)
        while True:
            try:
                reply = None
                if isinstance(step, Sleep):
                    step.sleep()
                else:
                    reply = ask(step)
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result
    except BaseException:
        flow.close()  # An interrupt came between two steps.
        raise


async def run_async(flow: Flow[S, T], ask: Callable[[S], Awaitable[object]]) -> T:
    """Run a flow in the event loop and return its result."""
    try:
        step = next(flow)
        while True:
            try:
                reply = None
                if isinstance(step, Sleep):
                    await asyncio.sleep(step.seconds)
                else:
                    reply = await ask(step)
                    for notify in step_ended.get():
                        notify()
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result
    except BaseException:
        flow.close()
        raise
