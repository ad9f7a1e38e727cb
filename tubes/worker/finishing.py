"""How a task is settled: the verdict is carried out, however long the backend is away.

Written once, as a flow that asks for calls and rests; `settle` runs it in a thread, `settle_async` in the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeAlias

from tubes.errors import (
    InvalidOption,
    OptionNotSupported,
    QueueClosed,
    TaskNotFound,
    TaskNotTaken,
    TubeNotFound,
    TubesError,
)
from tubes.worker.logs import log
from tubes.worker.retry import RETRY

if TYPE_CHECKING:
    from tubes.worker.outcomes import Verdict


#: Asks for a verb with its arguments, or for a rest of so many seconds; ends with what became of the task.
Flow: TypeAlias = Generator["tuple[str, tuple[Any, ...], dict[str, Any]] | float", Any, str]


def _settling(task: Any, verdict: Verdict, ended: Callable[[], bool]) -> Flow:
    """`acked`, `released`, `buried` or `lost`."""
    failures = 0
    options: dict[str, Any] = {}
    args: tuple[Any, ...] = (task,)
    if verdict.verb == "bury":
        args = (task, verdict.reason)
    elif verdict.verb == "release":
        options = {"delay": verdict.delay, "reason": verdict.reason}
    while True:
        try:
            after = yield verdict.verb, args, options
        except OptionNotSupported:
            log.warning("task %d of tube %r goes back at once: its driver has no delays", task.id, task.tube)
            options["delay"] = None
        except (TaskNotTaken, TaskNotFound, TubeNotFound, QueueClosed):
            return "lost"
        except InvalidOption as error:  # It would be refused again.
            if not any(options.values()) and len(args) == 1:
                raise
            log.warning("%s: task %d of tube %r goes without that", error, task.id, task.tube)
            args, options = (task,), {}
        except TubesError as error:
            if ended():
                return "lost"
            failures += 1
            span = RETRY.delay(failures)
            log.warning("%s, again in %.1f s: %s of task %d of tube %r", error, span, verdict.verb, task.id, task.tube)
            yield span
        else:
            return {"-": "acked", "!": "buried"}.get(after.state, "released")


def settle(tube: Any, task: Any, verdict: Verdict, ended: Callable[[], bool]) -> str:
    """Carry out a verdict, in a thread."""
    flow = _settling(task, verdict, ended)
    step: Any = next(flow)
    while True:
        try:
            if step.__class__ is float:
                time.sleep(step)
                step = next(flow)
                continue
            verb, args, options = step
            try:
                answer = getattr(tube, verb)(*args, **options)
            except TubesError as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
        except StopIteration as end:
            return str(end.value)


async def settle_async(tube: Any, task: Any, verdict: Verdict, ended: Callable[[], bool]) -> str:
    """The same in an event loop."""
    flow = _settling(task, verdict, ended)
    step: Any = next(flow)
    while True:
        try:
            if step.__class__ is float:
                await asyncio.sleep(step)
                step = next(flow)
                continue
            verb, args, options = step
            try:
                answer = await getattr(tube, verb)(*args, **options)
            except TubesError as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
        except StopIteration as end:
            return str(end.value)
