# Generated from tubes/sync/task.py by .ci/make_aio.py (`make aio`): change that file, or the rules.
"""A task and its methods: `AsyncTask`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from types import CoroutineType, TracebackType
from typing import TYPE_CHECKING, Any

from tubes.drivers.options import KEEP, Seconds, micros
from tubes.errors import TaskCancelled, TaskNotTaken, TubesError
from tubes.values.task import CANCELLED, ENDED, T, TaskView

if TYPE_CHECKING:
    from tubes.aio.tube import AsyncTube


class AsyncTask(TaskView[T]):
    """A task of an `AsyncTube`: its state at one moment, and methods.

    An `async with` block acks the task at its end, and releases it if the block raises.

    `Task` shows an example.
    """

    __slots__ = ()
    _tube: AsyncTube[T]

    async def take(self, *, ttr: Seconds | None = None) -> AsyncTask[T] | None:
        """Take this task out of turn. Returns None if it may not be taken now. O(log n).

        A task cannot be taken while it is not ready, its lane is busy or in cooldown, or the tube is paused.
        `ttr`: seconds to run for this take, as for `AsyncTube.take`.

        Raises `TaskNotFound` if the task does not exist, and `OptionNotSupported` for a ttr if the driver has none.

        `Task.take` shows an example.
        """
        span = None if ttr is None else micros("ttr", ttr)
        reply = self._tube._port.take_task(self, span)
        return await reply if type(reply) is CoroutineType else reply

    async def ack(self, result: Any = None) -> AsyncTask[T]:
        """Finish the task. See `AsyncTube.ack`."""
        return await self._tube.ack(self, result)

    async def release(
        self,
        delay: Seconds | None = None,
        *,
        at: datetime | None = None,
        reason: str | None = None,
        pri: int | None = None,
        data: T = KEEP,
        traceback: str | None = None,
        worker: str | None = None,
    ) -> AsyncTask[T]:
        """Give the task back. See `AsyncTube.release`."""
        return await self._tube.release(
            self, delay=delay, at=at, reason=reason, pri=pri, data=data, traceback=traceback, worker=worker
        )

    async def touch(self, seconds: Seconds = KEEP, *, ttr: Seconds = KEEP) -> AsyncTask[T]:
        """Get more time to work. See `AsyncTube.touch`."""
        return await self._tube.touch(self, seconds, ttr=ttr)

    async def checkpoint(
        self, saved: object = None, *, progress: float | None = None, note: str | None = None
    ) -> AsyncTask[T]:
        """Save how far the work on the task is, and get more time for it. Returns the task as it is then. O(log n).

        This object does not change: its `saved` is that of the take. The returned task has the new values.

        `saved`: any JSON value, at most 65,536 bytes, for the next attempt: `task.saved`. `progress`: a number from 0
        to 1. `note`: a text of at most 1,000 characters. Anybody sees all three with `peek`, in lists and in events.
        None keeps the stored value. They survive releases, the end of a ttr, `bury`, `kick` and moves to other tubes.
        A done task keeps them, too, but starts without them if it is put again.

        It counts as a touch: afterwards the task has at least its own ttr left, and if the driver ends taken tasks by
        their ttl, the ttl is extended as far as needed. In a handler it raises an exception if the worker is stopping:
        the task returns to the tube, without a lost attempt, and the next handler starts with what was saved. On a
        server it takes one round trip.

        Raises `TaskCancelled` if the task was cancelled, `TaskNotTaken` unless this session holds the task,
        `CodecError` if `saved` is not JSON, `InvalidOption` for other bad values.

        `Task.checkpoint` shows an example.
        """
        try:
            updated = await self._tube._checkpoint(self, saved, progress, note)
        except TaskNotTaken as lost:
            if self._take == CANCELLED and not isinstance(lost, TaskCancelled):  # Its record is gone.
                raise TaskCancelled(id=self.id, tube=self.tube, reason=None) from None
            raise
        check: Callable[[], None] | None = self._tube._port.connection.on_checkpoint
        if check is not None:
            await asyncio.sleep(0)  # Signals and cancels arrive here.
            check()
        return updated

    async def bury(
        self,
        reason: str | None = None,
        *,
        pri: int | None = None,
        traceback: str | None = None,
        worker: str | None = None,
    ) -> AsyncTask[T]:
        """Bury the task. See `AsyncTube.bury`."""
        return await self._tube.bury(self, reason, pri=pri, traceback=traceback, worker=worker)

    async def kick(self, *, attempts: int | None = None, ttl: Seconds | None = None) -> AsyncTask[T]:
        """Make the task ready, if it is buried, delayed or done. See `AsyncTube.kick`."""
        return await self._tube.kick(task=self, attempts=attempts, ttl=ttl)

    async def update(
        self,
        *,
        data: T = KEEP,
        pri: int = KEEP,
        delay: Seconds = KEEP,
        ttl: Seconds = KEEP,
        at: datetime | None = None,
    ) -> AsyncTask[T]:
        """Change the task. See `AsyncTube.update`."""
        return await self._tube.update(self, data=data, pri=pri, delay=delay, ttl=ttl, at=at)

    async def delete(self, *, state: str | Iterable[str] | None = None) -> AsyncTask[T]:
        """Remove the task. See `AsyncTube.delete`."""
        return await self._tube.delete(self, state=state)

    async def cancel(self, reason: str | None = None) -> AsyncTask[T]:
        """End the task as cancelled. See `AsyncTube.cancel`."""
        return await self._tube.cancel(self, reason)

    async def peek(self) -> AsyncTask[T]:
        """Return the current state of the task. See `AsyncTube.peek`."""
        return await self._tube.peek(self)

    async def _top_up(self, limit: int, span: int | None) -> list[AsyncTask[T]]:
        """Return this task, which a waiting call got, and more available tasks, up to `limit` in all."""
        if limit == 1 or self._tube._port.knows_none:
            return [self]
        port = self._tube._port.hot
        reply = port.take_many(limit - 1, span)
        others: list[AsyncTask[T]] = await reply if type(reply) is CoroutineType else reply
        return [self, *others]

    async def __aenter__(self) -> AsyncTask[T]:
        self._check_taken()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._take in ENDED:
            return
        if kind is None:
            await self.ack()
            return
        if kind is GeneratorExit:
            # The garbage collector may raise it in the middle of a call, or after the loop is closed.
            self._tube._port.release_later(self)
            return
        # The block's own error matters more. A task that cannot be released is lost already.
        with suppress(TubesError):
            if issubclass(kind, Exception):
                await self.release()
            else:  # The block was interrupted or cancelled: the task has not failed.
                reply = self._tube._port.release_unfailed(self)
                if type(reply) is CoroutineType:
                    await reply
