"""How a task is finished when its handler has ended: reply to its caller, and carry out the verdict.

Both retry as long as the backend is away. `carry_out` is a flow whose steps are functions without arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from operator import call
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tubes.backend.flow import Flow, Rest, run_async
from tubes.calls import answer_async
from tubes.drivers.moves import State
from tubes.drivers.options import SECOND
from tubes.errors import (
    CodecError,
    InvalidOption,
    OptionNotSupported,
    QueueClosed,
    ServerFull,
    ServerRefused,
    TaskNotFound,
    TaskNotTaken,
    TubeNotFound,
    TubesError,
)
from tubes.worker.lifetime import RETRY
from tubes.worker.logs import log
from tubes.worker.outcomes import Outcome, Verdict, log_verdict, name_of, reason_of

if TYPE_CHECKING:
    from tubes.aio import AsyncQueue, AsyncTask, AsyncTube
    from tubes.sync import Tube
    from tubes.values.task import TaskView
    from tubes.worker.lifetime import Lifetime

#: A method with its arguments: returns the task after the call, or an awaitable.
_Step: TypeAlias = Callable[[], Any]
_OUTCOMES: Final[dict[State, Outcome]] = {State.DONE: "acked", State.BURIED: "buried"}


def carry_out(
    tube: Tube | AsyncTube, task: TaskView, verdict: Verdict, ended: Callable[[], bool]
) -> Flow[_Step, Outcome]:
    """Carry out a verdict, however long the backend is away, unless the run has `ended`."""
    verb: Callable[..., Any] = tube._decline if verdict.verb == "decline" else getattr(tube, verdict.verb)
    facts: dict[str, Any] = {}
    if verdict.leaves_result(task):
        facts = {"result": verdict.result}
    elif verdict.verb == "bury":
        facts = {"reason": verdict.reason}
    elif verdict.verb == "release":
        facts = {"delay": verdict.delay, "reason": verdict.reason}
    elif verdict.verb == "decline":
        facts = {"delay": verdict.delay}
    failures = 0
    while True:
        try:
            after: TaskView = yield partial(verb, task, **facts)
        except OptionNotSupported:
            log.warning("%s is released without a delay: its driver has no delays", name_of(task))
            facts["delay"] = None
        except (TaskNotTaken, TaskNotFound, TubeNotFound, QueueClosed):
            log_verdict(task, verdict, "lost")
            return "lost"
        except InvalidOption as error:  # A retry would be refused, too.
            if all(fact is None for fact in facts.values()):
                raise
            log.warning("%s goes without that: %s", name_of(task), error)
            facts = {}
        except TubesError as error:
            if ended():
                return "lost"
            if isinstance(error, CodecError) and "result" in facts:
                log.warning("%s is acked without its result: %s", name_of(task), error)
                facts = {}
                continue
            failures += 1
            rest = Rest(RETRY.delay(failures))
            log.warning("%s of %s failed, retrying in %.1f s: %s", verdict.verb, name_of(task), rest.seconds, error)
            yield rest
        else:
            outcome = _OUTCOMES.get(after.state, "released")
            log_verdict(task, verdict, outcome, _again(after))
            return outcome


def _again(after: TaskView) -> float | None:
    """Seconds until a released task is ready; None: it is ready."""
    if after.due is None or after.state is not State.DELAYED:
        return None
    now: int = after._tube._port.connection.micros()
    return round(after.due - now / SECOND, 1)


class Finishing:
    """Finishes the tasks of one run, in its event loop. `replies`: the queue for replies to callers."""

    def __init__(self, replies: AsyncQueue, lifetime: Lifetime) -> None:
        self._replies: Final = replies
        self._lifetime: Final = lifetime

    async def finish(self, task: AsyncTask, verdict: Verdict) -> Outcome:
        """Carry out a verdict."""
        return await run_async(carry_out(task._tube, task, verdict, self._lifetime.has_ended), call)

    async def tell_caller(self, task: AsyncTask, verdict: Verdict, *, if_full: bool = True) -> bool:
        """Send the result of a task to its caller.

        False: the server is full, and the end of the task, which may make room, comes first. `if_full`: whether to
        return for that.
        """
        result, why = verdict.result, verdict.reason
        failures = 0
        while True:
            try:
                await answer_async(self._replies, task, result, why)
                return True
            except TubesError as error:
                if self._lifetime.has_ended() or _is_final(error):
                    log.warning("the reply to %s is lost: %s", name_of(task), error)
                    return True
                if isinstance(error, ServerFull) and if_full:
                    return False
                failures += 1
                seconds = RETRY.delay(failures)
                log.warning("the reply to %s failed, retrying in %.1f s: %s", name_of(task), seconds, error)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # The result's own.
                log.warning("the reply to %s failed: %s", name_of(task), reason_of(error))
                if why is not None:
                    return True
                result, why, seconds = None, reason_of(error), 0.0
            await asyncio.sleep(seconds)


def _is_final(error: TubesError) -> bool:
    """Whether a retry of a reply would fail, too: its data is bad, or permissions for the caller's tube are missing."""
    if isinstance(error, ServerRefused):
        return str(error.facts.get("why")).startswith("NOPERM")
    return isinstance(error, (QueueClosed, ValueError))
