"""Calls a handler with a task, and turns its result or error into a verdict."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from tubes.backend.port import port_of
from tubes.errors import CodecError
from tubes.sync import Task
from tubes.values.task import FINISHED, copy_to_api
from tubes.worker.functions import UnknownFunctions, wrap, wrap_async
from tubes.worker.lifetime import RETRY
from tubes.worker.logs import log
from tubes.worker.outcomes import Interrupted, Verdict, is_interruption, name_of, reason_of, verdict_of
from tubes.worker.processes import Processes
from tubes.worker.routes import UNKNOWN

if TYPE_CHECKING:
    from tubes.aio import AsyncTask
    from tubes.worker.connections import Connections
    from tubes.worker.functions import Handler, Hook
    from tubes.worker.in_flight import InFlight
    from tubes.worker.lifetime import Lifetime
    from tubes.worker.routes import Target


class Handling:
    """Calls handlers: async ones in the event loop, plain ones in threads or processes."""

    def __init__(
        self, connections: Connections, lifetime: Lifetime, pool: Pool, processes: Processes, hooks: list[Hook]
    ) -> None:
        self._connections: Final = connections
        self._lifetime: Final = lifetime
        self._pool: Final = pool
        self._processes: Final = processes
        self._hooks: Final = hooks
        self.unknown: Final = UnknownFunctions()
        self._handlers: Final[dict[Target, Handler]] = {}

    async def handle(self, entry: InFlight) -> Verdict:
        """Call the handler of a task, and return the verdict. Does not raise the handler's errors."""
        task, target = entry.task, entry.target
        try:
            _ = task.data
        except BaseException as error:  # A codec of the user may raise anything.
            reason = str(error) if isinstance(error, CodecError) else reason_of(error)
            log.error("%s is buried: its data cannot be decoded", name_of(task))
            return Verdict("bury", f"CodecError: {reason}", is_logged=True)
        if target is UNKNOWN:
            return self.unknown.verdict(task)
        try:
            handler = self._handlers.get(target)
            if handler is None:
                call = partial(self._processes.call, target) if target.process else target.handler
                wrapper = wrap_async if target.is_async else wrap
                handler = self._handlers[target] = wrapper(self._hooks, call)
            if not target.is_async:
                return Verdict("ack", result=await self._call_in_thread(entry, handler))
            if target.timeout is None:
                return Verdict("ack", result=await _call(task, handler))
            limit = asyncio.timeout(target.timeout)
            try:
                async with limit:
                    return Verdict("ack", result=await _call(task, handler))
            except TimeoutError as error:
                return verdict_of(target.timeout_error() if limit.expired() else error)
        except asyncio.CancelledError as error:
            return verdict_of(error)._replace(is_cancelled=True)
        except (Exception, Interrupted, BaseExceptionGroup) as error:
            return verdict_of(error)

    async def _call_in_thread(self, entry: InFlight, handler: Handler) -> object:
        """Call a plain handler in a thread, with a `Task` whose methods are synchronous."""
        task = entry.task
        ended: asyncio.Future[tuple[object, BaseException | None]] = asyncio.get_running_loop().create_future()

        def end(result: object, error: BaseException | None) -> None:
            if plain_task is not None and plain_task._take == FINISHED:
                task._take = FINISHED
            if ended.done():
                if entry.loss is None and not self._lifetime.has_ended():
                    log.warning("the handler of %s ended too late: its task was already finished", name_of(task))
            else:
                ended.set_result((result, error))

        plain_task: Task | None = None

        def job() -> None:
            nonlocal plain_task
            try:
                tube = self._connections.thread_tube(task._tube)
                kind: type[Task] = port_of(tube).kind
                plain_task = copy_to_api(kind, tube, task)
                entry.plain_task = plain_task
                plain_task._take = task._take  # It may have been cancelled since it was copied.
                result = handler(plain_task)
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError("a plain handler returned a coroutine, which is never awaited: make it `async def`")
            except BaseException as error:
                self._lifetime.call(end, None, _to_failure(error))
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
                text = "the handler of %s starts in %.1f s, no thread could be started: %s"
                log.warning(text, name_of(task), seconds, error)
                await asyncio.sleep(seconds)
        result, failure = await ended
        if failure is not None:
            raise failure
        return result


async def _call(task: AsyncTask, handler: Handler) -> object:
    """Await an async handler, and return its result."""
    try:
        return await handler(task)
    except BaseException as error:
        failure = _to_failure(error)
        if failure is error:
            raise
        raise failure from error
    finally:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            # The handler cancelled its own asyncio task and did not await since: consume that cancellation here, so
            # that it does not hit the code that finishes the task.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)


def _to_failure(error: BaseException) -> BaseException:
    """Wrap errors such as SystemExit in a `RuntimeError`: they end the handler, not its worker."""
    # A coroutine cannot raise StopIteration.
    is_error = isinstance(error, (Exception, asyncio.CancelledError)) and not isinstance(error, StopIteration)
    if is_error or is_interruption(error):
        return error
    failure = RuntimeError(reason_of(error))
    failure.__cause__ = error
    return failure


class Pool:
    """A pool of daemon threads. A job never waits: if all threads are busy or hang, a new one is started."""

    def __init__(self) -> None:
        self._jobs: Final[SimpleQueue[Callable[[], object] | None]] = SimpleQueue()
        self._lock: Final = threading.Lock()
        self._idle = 0
        self._threads = 0

    def submit(self, job: Callable[[], object]) -> None:
        """Run a job in a thread, with the context variables of the caller.

        Raises `RuntimeError` if a thread cannot be started; the job is not run then.
        """
        context = contextvars.copy_context()
        with self._lock:
            starts = self._idle == 0
            if not starts:
                self._idle -= 1
        if starts:
            threading.Thread(target=self._run, name="tubes-handler", daemon=True).start()
            with self._lock:
                self._threads += 1
        self._jobs.put(lambda: context.run(job))

    def close(self) -> None:
        """End each thread when it has no job left."""
        with self._lock:
            threads = self._threads
        for _ in range(threads):
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException:
                log.exception("a job in a thread of the worker failed")
            del job
            with self._lock:
                self._idle += 1
