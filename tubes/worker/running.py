"""Runs a worker inside a `with` or `async with` block."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from typing_extensions import override

from tubes.worker.logs import log

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class _Worker(Protocol):
    """The parts of a `Worker` that a block uses."""

    def stop(self, *, now: bool = False) -> None: ...
    def _run_blocking(self, on_start: Callable[[], object]) -> object: ...
    def _run_in_loop(self, on_start: Callable[[], object]) -> Coroutine[object, None, object]: ...


W = TypeVar("W", bound=_Worker)


class Running(AbstractContextManager[W], AbstractAsyncContextManager[W], Generic[W]):
    """The block of `Worker.running`: with `with` the worker runs in a thread, with `async with` in the event loop."""

    def __init__(self, worker: W) -> None:
        self._worker: Final = worker
        self._started: Final = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._task: asyncio.Task[object] | None = None

    def _run(self) -> None:
        try:
            self._worker._run_blocking(self._started.set)
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()

    @override
    def __enter__(self) -> W:
        self._started.clear()
        self._error = None
        self._thread = threading.Thread(target=self._run, name="tubes-worker", daemon=True)
        self._thread.start()
        try:
            self._started.wait()
        except BaseException:
            self._worker.stop(now=True)
            raise
        if self._error is not None:
            raise self._error
        return self._worker

    @override
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._thread is not None
        self._worker.stop()
        try:
            self._thread.join()
        except BaseException:  # A Ctrl-C ends the grace.
            self._worker.stop(now=True)
            raise
        _raise(self._error, error)

    @override
    async def __aenter__(self) -> W:
        started = asyncio.Event()
        self._task = task = asyncio.get_running_loop().create_task(self._worker._run_in_loop(started.set))
        task.add_done_callback(lambda _: started.set())
        try:
            await started.wait()
        except asyncio.CancelledError:
            await _cancel(task)
            raise
        if task.done():
            task.result()
        return self._worker

    @override
    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._task is not None
        self._worker.stop()
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:  # It ends the grace.
            await _cancel(self._task)
            raise
        _raise(None if self._task.cancelled() else self._task.exception(), error)


async def _cancel(task: asyncio.Task[object]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _raise(error: BaseException | None, error_of_block: BaseException | None) -> None:
    """Raise the error of the worker. If the block itself raised, that error is raised, and this one is logged."""
    if error is not None:
        if error_of_block is None:
            raise error
        log.error("the worker has failed", exc_info=error)
