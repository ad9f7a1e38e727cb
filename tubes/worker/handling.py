"""How a handler is called with a task, and what its end means."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from tubes.calls import answer_async, is_call
from tubes.errors import CodecError, QueueClosed, ServerFull, ServerRefused, TubesError
from tubes.sync import Task
from tubes.values.task import FINISHED, of_face
from tubes.worker.acks import Acks
from tubes.worker.finishing import settle_async
from tubes.worker.hooks import surround, surround_async
from tubes.worker.in_flight import NEVER
from tubes.worker.logs import log
from tubes.worker.outcomes import DONE, Verdict, reason_of, verdict_of
from tubes.worker.retry import RETRY

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.worker.hooks import Hook
    from tubes.worker.in_flight import Flight
    from tubes.worker.run import Crew


class _Undecodable(Exception):
    """The data of a task is no data."""


def _as_failure(error: BaseException) -> BaseException:
    """What a handler has failed by: SystemExit and its like end a handler, not its worker."""
    kind = type(error)  # `isinstance` believes what an error says of its class.
    # No coroutine raises a StopIteration.
    if issubclass(kind, (Exception, asyncio.CancelledError)) and not issubclass(kind, StopIteration):
        return error
    failure = RuntimeError(reason_of(error))
    failure.__cause__ = error
    return failure


async def _contained(handler: Callable[[Any], Any], task: Any) -> Any:
    """What an async handler returns, or has failed by."""
    try:
        return await handler(task)
    except BaseException as error:
        failure = _as_failure(error)
        if failure is error:
            raise
        raise failure from error
    finally:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            # If it has cancelled itself and not waited since, that is for it, and not for what comes now.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)


class Handling:
    """Calls handlers: async ones in the event loop, plain ones in threads."""

    def __init__(self, crew: Crew, hooks: list[Hook]) -> None:
        self._crew: Final = crew
        self._hooks: Final = hooks
        self._acks: Final = Acks()
        self._handlers: Final[dict[Any, Callable[[Any], Any]]] = {}

    async def run(self, flight: Flight) -> None:
        """All that is done with a task, from its take to its end, which comes whatever happens on the way."""
        crew, task = self._crew, flight.task
        try:
            result: Any = None
            error: BaseException | None = None
            try:
                result = await self._call(flight)
            except asyncio.CancelledError as cancelled:
                if crew.has_ended() or flight.given_up or not crew.keeper.is_kept(flight):
                    return  # It was cut off, lost or given up; whoever did that has seen to it.
                error = cancelled
            except Exception as failure:
                error = failure
            if flight.given_up or not crew.keeper.is_kept(flight):
                if flight.given_up:
                    log.warning("too late: the handler of %r has ended, and its task has gone back", task)
                return
            verdict = flight.verdict = DONE if error is None else self._verdict(flight, error)
            why = None if error is None else verdict.reason or reason_of(error)
            told = not (is_call(task) and self.is_last(task, verdict.verb)) or await self._tell(task, result, why)
            if self._would_spin(flight, verdict):
                # It is kept meanwhile: others would only fail by it too.
                flight.ends_at = NEVER
                await crew.rest(RETRY.delay(task.attempts))
            if self.is_set_aside(flight, verdict):
                crew.set_aside(flight, verdict)
            elif crew.keeper.claim(flight):
                flight.is_settling = True
                outcome = ""
                if flight.task._turn != FINISHED:
                    outcome = await self.settle(flight, verdict)
                if not told:
                    await self._tell(task, result, why, mark_finished=True)
                crew.end(flight, outcome)
        except BaseException as unforeseen:
            if crew.has_ended():
                raise
            if crew.is_in_hand(flight):
                # In a task of its own: this one may be cancelled once more.
                crew.run_later(flight, self._rescue(flight, unforeseen))
            if not issubclass(type(unforeseen), Exception):
                raise

    async def _rescue(self, flight: Flight, error: BaseException) -> None:
        """End a flight on whose way something has failed that nobody has thought of."""
        crew, task = self._crew, flight.task
        verdict = flight.verdict or Verdict("release", reason_of(error), error=error)
        log.error("task %d of tube %r: %s failed", task.id, task.tube, verdict.verb, exc_info=_its_own(error))
        outcome = ""
        try:
            if self._would_spin(flight, verdict):
                await crew.rest(RETRY.delay(task.attempts))
            if (flight.is_settling or crew.keeper.claim(flight)) and task._turn != FINISHED:
                outcome = await settle_async(task._tube, task, verdict, crew.has_ended)
        except Exception:
            log.exception("task %d of tube %r stays with this worker until that ends", task.id, task.tube)
        finally:
            crew.end(flight, outcome)

    async def _tell(self, task: Any, result: Any, why: str | None, *, mark_finished: bool = False) -> bool:
        """Tell the caller what came of a task, however long the backend is away.

        False: a server is full, which the end of the task may change; so that comes first.
        """
        failures = 0
        while True:
            try:
                await answer_async(self._crew.reply_queue, task, result, why)
                return True
            except TubesError as error:
                if self._crew.has_ended() or _is_lasting(error):
                    log.warning("the reply to task %d of tube %r is lost: %s", task.id, task.tube, error)
                    return True
                if isinstance(error, ServerFull) and not mark_finished:
                    return False
                failures += 1
                span = RETRY.delay(failures)
                log.warning("%s, again in %.1f s: the reply to task %d of tube %r", error, span, task.id, task.tube)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # The result's own.
                log.warning("the reply to task %d of tube %r failed: %s", task.id, task.tube, reason_of(error))
                if why is not None:
                    return True
                result, why, span = None, reason_of(error), 0.0
            await asyncio.sleep(span)

    async def settle(self, flight: Flight, verdict: Verdict) -> str:
        """Carry out a verdict."""
        if verdict is DONE:
            try:
                return "acked" if await self._acks.ack(flight.task) else "lost"
            except TubesError:
                pass  # Each for itself then, as long as that takes.
        return await settle_async(flight.task._tube, flight.task, verdict, self._crew.has_ended)

    async def _call(self, flight: Flight) -> Any:
        task, post = flight.task, flight.taker.post
        try:
            _ = task.data
        except CodecError as error:
            raise _Undecodable(str(error)) from error
        except BaseException as error:  # The codec's own.
            raise _Undecodable(reason_of(error)) from error
        handler = self._handlers.get(post.key)
        if handler is None:
            surrounding = surround_async if post.is_async else surround
            handler = self._handlers[post.key] = surrounding(self._hooks, post.handler)
        if not post.is_async:
            return await self._call_in_thread(flight, handler)
        limit = asyncio.timeout(post.timeout)
        try:
            async with limit:
                return await _contained(handler, task)
        except TimeoutError:
            if limit.expired():
                raise self.overtime(flight) from None
            raise

    async def _call_in_thread(self, flight: Flight, handler: Callable[[Any], Any]) -> Any:
        """A plain handler gets a task whose verbs need not be awaited."""
        crew, task = self._crew, flight.task
        future: asyncio.Future[tuple[Any, BaseException | None]] = asyncio.get_running_loop().create_future()

        def done(result: Any, error: BaseException | None) -> None:
            if mine is not None and mine._turn == FINISHED:
                task._turn = FINISHED
            if future.done():
                log.warning("too late: the handler of %r has ended, and its task has gone back", task)
            else:
                future.set_result((result, error))

        mine: Task | None = None

        def job() -> None:
            nonlocal mine
            try:
                mine = of_face(Task, crew.thread_tube(task._tube), task)
                result = handler(mine)
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError("a plain handler has answered a coroutine, which nobody runs: make it `async def`")
            except BaseException as error:
                crew.call(done, None, _as_failure(error))
            else:
                crew.call(done, result, None)

        failures = 0
        while True:
            try:
                crew.pool.submit(job)
                break
            except RuntimeError as error:
                failures += 1
                span = RETRY.delay(failures)
                log.warning("%s, again in %.1f s: the handler of %r", error, span, task)
                await asyncio.sleep(span)
        result, failure = await future
        if failure is not None:
            raise failure
        return result

    @staticmethod
    def overtime(flight: Flight) -> TimeoutError:
        """What a handler that takes too long has failed by."""
        return TimeoutError(f"the handler took longer than {flight.taker.post.timeout} s")

    def _verdict(self, flight: Flight, error: BaseException) -> Verdict:
        if isinstance(error, _Undecodable):
            log.error("buried, since it cannot be decoded: task %d of tube %r", flight.task.id, flight.task.tube)
            return Verdict("bury", f"CodecError: {error}")
        verdict = verdict_of(error)
        if verdict.error is not None:
            task = flight.task
            log.error("the handler of task %d of tube %r failed", task.id, task.tube, exc_info=_its_own(verdict.error))
        return verdict

    @staticmethod
    def is_last(task: Any, verb: str) -> bool:
        """Whether nobody will try again."""
        return verb != "release" or (task.max_attempts is not None and task.attempts >= task.max_attempts)

    def is_set_aside(self, flight: Flight, verdict: Verdict) -> bool:
        """Whether it would come again and again in a burst that never ends."""
        return self._crew.burst and self._is_endless(flight, verdict)

    def _would_spin(self, flight: Flight, verdict: Verdict) -> bool:
        """Whether it would come again and again without a rest between."""
        return not self._crew.burst and self._is_endless(flight, verdict) and not _rests_of(flight.task)

    @staticmethod
    def _is_endless(flight: Flight, verdict: Verdict) -> bool:
        """Whether a task goes back, at once as far as its handler has asked for, and for any number of times."""
        task = flight.task
        later = bool(verdict.delay) and "delay" in task._tube.driver.options
        return verdict.verb == "release" and not later and task.max_attempts is None and task._turn != FINISHED


def _is_lasting(error: TubesError) -> bool:
    """Whether a reply is refused the next time too: for what it says, or for want of rights at the caller's tube."""
    if isinstance(error, ServerRefused):
        return str(error.facts.get("why")).startswith("NOPERM")
    return isinstance(error, (QueueClosed, ValueError))


def _rests_of(task: Any) -> Any:
    """What its tube says of rests after failures."""
    return task._tube._port.shared.options.get("backoff")


def _its_own(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """The error as its handler has raised it: without the frames of who has called that."""
    whole = _trace_of(error)
    trace = whole
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    return type(error), error, trace or whole


def _trace_of(error: BaseException) -> TracebackType | None:
    """Its traceback, whatever its class calls so."""
    descriptor: Any = BaseException.__dict__["__traceback__"]
    trace: TracebackType | None = descriptor.__get__(error)
    return trace
