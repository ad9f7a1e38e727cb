"""Finishes a task after its handler has ended: replies to its caller, and carries out the verdict.

Both retry while the backend is unreachable. `carry_out` is a flow whose steps are functions without arguments.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from functools import partial
from operator import call
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tubes.backend.flow import Flow, Sleep, run_async
from tubes.backend.port import port_of
from tubes.calls import send_reply_async
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
from tubes.worker.outcomes import Outcome, Verdict, log_verdict, name_of, reason_of, traceback_of

if TYPE_CHECKING:
    from tubes.aio import AsyncQueue, AsyncTask, AsyncTube
    from tubes.sync import Tube
    from tubes.values.task import TaskView
    from tubes.worker.in_flight import InFlight
    from tubes.worker.lifetime import Lifetime

#: A bound call that returns the updated task, or an awaitable of it.
_Step: TypeAlias = Callable[[], Any]
_OUTCOMES: Final[dict[State, Outcome]] = {State.DONE: "acked", State.BURIED: "buried"}


def carry_out(
    tube: Tube | AsyncTube, task: TaskView, verdict: Verdict, has_ended: Callable[[], bool], *, tracebacks: bool = False
) -> Flow[_Step, Outcome]:
    """Carry out a verdict. Retries until the backend is reachable or the run `has_ended`.

    `tracebacks`: store the traceback of an error with the task.
    """
    method: Callable[..., object] = tube._decline if verdict.method == "decline" else getattr(tube, verdict.method)
    arguments: dict[str, object] = {}
    if verdict.leaves_result(task):
        arguments = {"result": verdict.result}
    elif verdict.method == "bury":
        arguments = {"reason": verdict.reason, "worker": _name_of_worker()}
    elif verdict.method == "release":
        arguments = {"delay": verdict.delay, "reason": verdict.reason_for(task), "worker": _name_of_worker()}
        if tracebacks and verdict.error is not None:
            arguments["traceback"] = traceback_of(verdict.error)
    elif verdict.method == "decline":
        arguments = {"delay": verdict.delay}
    failures = 0
    while True:
        try:
            if verdict.pauses and verdict.delay is not None:
                yield partial(tube.pause, verdict.delay, extend=True)
            after: TaskView = yield partial(method, task, **arguments)
        except OptionNotSupported:
            log.warning("%s is released without a delay: its driver has no delays", name_of(task))
            arguments["delay"] = None
        except (TaskNotTaken, TaskNotFound, TubeNotFound, QueueClosed):
            log_verdict(task, verdict, "lost")
            return "lost"
        except InvalidOption as error:  # A retry with the same options would also fail.
            if all(argument is None for argument in arguments.values()):
                raise
            log.warning("%s of %s is retried without its options: %s", verdict.method, name_of(task), error)
            arguments = {}
        except TubesError as error:
            if has_ended():
                return "lost"
            if isinstance(error, CodecError) and "result" in arguments:
                log.warning("%s is acked without its result: %s", name_of(task), error)
                arguments = {}
                continue
            failures += 1
            retry = Sleep(RETRY.delay(failures))
            log.warning("%s of %s failed, retrying in %.1f s: %s", verdict.method, name_of(task), retry.seconds, error)
            yield retry
        else:
            outcome = _OUTCOMES.get(after.state, "released")
            log_verdict(task, verdict, outcome, _seconds_until_ready(after))
            return outcome


def _name_of_worker() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _seconds_until_ready(after: TaskView) -> float | None:
    """Return the seconds until a released task is ready; None if it is ready now."""
    if after.due is None or after.state is not State.DELAYED:
        return None
    now: int = port_of(after._tube).connection.micros()
    left = max(0, after.due - now / SECOND)
    return round(left, 1) if left >= 1 else float(f"{left:.1g}")


class Finishing:
    """Finishes the tasks of one run, in its event loop.

    `replies`: the queue that sends the replies to callers. `tracebacks`: as for `carry_out`.
    """

    def __init__(self, replies: AsyncQueue, lifetime: Lifetime, *, tracebacks: bool) -> None:
        self._replies: Final = replies
        self._tracebacks: Final = tracebacks
        self._lifetime: Final = lifetime

    async def finish(self, task: AsyncTask, verdict: Verdict) -> Outcome:
        return await run_async(
            carry_out(task._tube, task, verdict, self._lifetime.has_ended, tracebacks=self._tracebacks), call
        )

    async def reply(self, task: AsyncTask, verdict: Verdict, *, return_if_full: bool = True) -> bool:
        """Send the result of a task to its caller.

        `return_if_full`: return False when the server is full, so that the caller first finishes the task, which may
        free memory. Without it, retry.
        """
        result, why = verdict.result, verdict.reason
        failures = 0
        while True:
            try:
                await send_reply_async(self._replies, task, result, why)
                return True
            except TubesError as error:
                if self._lifetime.has_ended() or _is_final(error):
                    log.warning("the reply to %s is lost: %s", name_of(task), error)
                    return True
                if isinstance(error, ServerFull) and return_if_full:
                    return False
                failures += 1
                seconds = RETRY.delay(failures)
                log.warning("the reply to %s failed, retrying in %.1f s: %s", name_of(task), seconds, error)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # Raised by the result when it was encoded.
                log.warning("the reply to %s failed: %s", name_of(task), reason_of(error))
                if why is not None:
                    return True
                result, why, seconds = None, reason_of(error), 0.0
            await asyncio.sleep(seconds)


def _is_final(error: TubesError) -> bool:
    """Return True if a retry of a reply would also fail: invalid data, or no permission for the caller's tube."""
    if isinstance(error, ServerRefused):
        return str(error.facts.get("why")).startswith("NOPERM")
    return isinstance(error, (QueueClosed, ValueError))


class Acks:
    """Sends the acks of handlers, one call per tube at a time: acks that are added meanwhile join the next call.

    `begin`: called with each task just before its ack is sent; `end`: called with each task and its outcome; `fail`:
    called instead with the task and the error.
    """

    def __init__(
        self,
        begin: Callable[[InFlight], object],
        end: Callable[[InFlight, Outcome], object],
        fail: Callable[[InFlight, BaseException], object],
    ) -> None:
        self._begin: Final = begin
        self._end: Final = end
        self._fail: Final = fail
        # The tasks of the next call, for each tube with a sender.
        self._gathered: Final[dict[AsyncTube, list[InFlight]]] = {}
        self._senders: Final[set[asyncio.Task[None]]] = set()

    def add(self, entry: InFlight) -> None:
        """Ack a finished task in the next call for its tube."""
        tube = entry.task._tube
        group = self._gathered.get(tube)
        if group is not None:
            group.append(entry)
            return
        self._gathered[tube] = [entry]
        sender = asyncio.get_running_loop().create_task(self._send(tube))
        self._senders.add(sender)
        sender.add_done_callback(self._senders.discard)

    async def join(self) -> None:
        """Wait until all acks are sent and have ended."""
        await asyncio.gather(*self._senders, return_exceptions=True)

    async def _send(self, tube: AsyncTube) -> None:
        while group := self._gathered[tube]:
            self._gathered[tube] = []
            for entry in group:
                self._begin(entry)
            try:
                acked = await tube.ack_many([entry.task for entry in group])
            except BaseException as error:
                if not isinstance(error, Exception):
                    group += self._gathered.pop(tube)
                for entry in group:
                    self._fail(entry, error)
                if not isinstance(error, Exception):
                    raise
            else:
                for entry in group:
                    self._end(entry, "acked" if acked.get(entry.task.id) else "lost")
        del self._gathered[tube]
