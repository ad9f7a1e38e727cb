"""How a handler is called with a task, and what its end means: a verdict."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from tubes.errors import CodecError
from tubes.sync import Task
from tubes.values.task import FINISHED, of_other_api
from tubes.worker.functions import Unknown
from tubes.worker.hooks import surround, surround_async
from tubes.worker.lifetime import RETRY
from tubes.worker.logs import log
from tubes.worker.outcomes import Verdict, name_of, reason_of, verdict_of
from tubes.worker.pool import Pool
from tubes.worker.processes import Processes
from tubes.worker.routes import UNKNOWN

if TYPE_CHECKING:
    from tubes.aio import AsyncTask
    from tubes.worker.connections import Connections
    from tubes.worker.hooks import Handler, Hook
    from tubes.worker.lifetime import Lifetime
    from tubes.worker.routes import Target


class Handling:
    """Calls handlers: async ones in the event loop, plain ones in threads."""

    def __init__(
        self, connections: Connections, lifetime: Lifetime, pool: Pool, processes: Processes, hooks: list[Hook]
    ) -> None:
        self._connections: Final = connections
        self._lifetime: Final = lifetime
        self._pool: Final = pool
        self._processes: Final = processes
        self._hooks: Final = hooks
        self._unknown: Final = Unknown()
        self._handlers: Final[dict[Target, Handler]] = {}

    async def handle(self, task: AsyncTask, target: Target) -> Verdict:
        """Call a handler with a task. Whatever that does ends with a verdict."""
        try:
            _ = task.data
        except BaseException as error:  # The codec's own.
            why = str(error) if isinstance(error, CodecError) else reason_of(error)
            log.error("%s is buried, since its data cannot be decoded", name_of(task))
            return Verdict("bury", f"CodecError: {why}", is_logged=True)
        if target is UNKNOWN:
            return self._unknown.verdict(task)
        try:
            handler = self._handlers.get(target)
            if handler is None:
                call = partial(self._processes.call, target) if target.process else target.handler
                surrounding = surround_async if target.is_async else surround
                handler = self._handlers[target] = surrounding(self._hooks, call)
            if not target.is_async:
                return Verdict("ack", result=await self._call_in_thread(task, handler))
            if target.timeout is None:
                return Verdict("ack", result=await _call(task, handler))
            limit = asyncio.timeout(target.timeout)
            try:
                async with limit:
                    return Verdict("ack", result=await _call(task, handler))
            except TimeoutError as error:
                return verdict_of(overtime(target) if limit.expired() else error)
        except asyncio.CancelledError as error:
            return verdict_of(error)._replace(is_cancelled=True)
        except Exception as error:
            return verdict_of(error)

    async def _call_in_thread(self, task: AsyncTask, handler: Handler) -> object:
        """A plain handler gets a task whose verbs need not be awaited."""
        ended: asyncio.Future[tuple[object, BaseException | None]] = asyncio.get_running_loop().create_future()

        def end(result: object, error: BaseException | None) -> None:
            if mine is not None and mine._take == FINISHED:
                task._take = FINISHED
            if ended.done():
                log.warning("the handler of %s has ended too late: its task was released before", name_of(task))
            else:
                ended.set_result((result, error))

        mine: Task | None = None

        def job() -> None:
            nonlocal mine
            try:
                mine = of_other_api(Task, self._connections.thread_tube(task._tube), task)
                result = handler(mine)
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError("a plain handler returned a coroutine, which is never awaited: make it `async def`")
            except BaseException as error:
                self._lifetime.call(end, None, _as_failure(error))
            else:
                self._lifetime.call(end, result, None)

        failures = 0
        while True:
            try:
                self._pool.submit(job)
                break
            except RuntimeError as error:
                failures += 1
                seconds = RETRY.delay(failures)
                log.warning("%s: the handler of %s begins in %.1f s", error, name_of(task), seconds)
                await asyncio.sleep(seconds)
        result, failure = await ended
        if failure is not None:
            raise failure
        return result


async def _call(task: AsyncTask, handler: Handler) -> object:
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


def _as_failure(error: BaseException) -> BaseException:
    """What a handler has failed by: SystemExit and its like end a handler, not its worker."""
    kind = type(error)  # `isinstance` believes what an error says of its class.
    # No coroutine raises a StopIteration.
    if issubclass(kind, (Exception, asyncio.CancelledError)) and not issubclass(kind, StopIteration):
        return error
    failure = RuntimeError(reason_of(error))
    failure.__cause__ = error
    return failure


def overtime(target: Target) -> TimeoutError:
    """What a handler that takes too long has failed by."""
    return TimeoutError(f"the handler took longer than {target.timeout} s")
