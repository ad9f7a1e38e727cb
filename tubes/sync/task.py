"""A task and its methods: `Task`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tubes.drivers.options import KEEP, Seconds, micros
from tubes.errors import TaskCancelled, TaskNotTaken, TubesError
from tubes.values.task import CANCELLED, ENDED, T, TaskView

if TYPE_CHECKING:
    from tubes.sync.tube import Tube


class Task(TaskView[T]):
    """A task of a `Tube`: its state at one moment, and methods.

    A `with` block acks the task at its end, and releases it if the block raises.

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     tube = queue.create_tube("mail")
    ...     _ = tube.put("hello")
    ...     with tube.taking(timeout=0) as task:
    ...         print(task.data)
    hello
    """

    __slots__ = ()
    _tube: Tube[T]

    def take(self, *, ttr: Seconds | None = None) -> Task[T] | None:
        """Take this task out of turn. Returns None if it may not be taken now. O(log n).

        A task cannot be taken while it is not ready, its lane is busy or in cooldown, or the tube is paused.
        `ttr`: seconds to run for this take, as for `Tube.take`.

        Raises `TaskNotFound` if the task does not exist, and `OptionNotSupported` for a ttr if the driver has none.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     ann, bob = tube.put_many(["to ann", "to bob"])
        ...     bob.take().data, bob.take()
        ('to bob', None)
        """
        span = None if ttr is None else micros("ttr", ttr)
        return self._tube._port.take_task(self, span)

    def ack(self, result: Any = None) -> Task[T]:
        """Finish the task. See `Tube.ack`."""
        return self._tube.ack(self, result)

    def release(
        self,
        delay: Seconds | None = None,
        *,
        at: datetime | None = None,
        reason: str | None = None,
        pri: int | None = None,
        data: T = KEEP,
        traceback: str | None = None,
        worker: str | None = None,
    ) -> Task[T]:
        """Give the task back. See `Tube.release`."""
        return self._tube.release(
            self, delay=delay, at=at, reason=reason, pri=pri, data=data, traceback=traceback, worker=worker
        )

    def touch(self, seconds: Seconds = KEEP, *, ttr: Seconds = KEEP) -> Task[T]:
        """Get more time to work. See `Tube.touch`."""
        return self._tube.touch(self, seconds, ttr=ttr)

    def checkpoint(self, saved: object = None, *, progress: float | None = None, note: str | None = None) -> Task[T]:
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

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("videos")
        ...     _ = tube.put("a long film")
        ...     with tube.taking(timeout=0) as task:
        ...         for minute in range(task.saved or 0, 90):
        ...             last = task.checkpoint(minute + 1, progress=(minute + 1) / 90)
        ...     last.saved, last.progress
        (90, 1.0)
        """
        try:
            updated = self._tube._checkpoint(self, saved, progress, note)
        except TaskNotTaken as lost:
            if self._take == CANCELLED and not isinstance(lost, TaskCancelled):  # Its record is gone.
                raise TaskCancelled(id=self.id, tube=self.tube, reason=None) from None
            raise
        check: Callable[[], None] | None = self._tube._port.connection.on_checkpoint
        if check is not None:
            check()
        return updated

    def bury(
        self,
        reason: str | None = None,
        *,
        pri: int | None = None,
        traceback: str | None = None,
        worker: str | None = None,
    ) -> Task[T]:
        """Bury the task. See `Tube.bury`."""
        return self._tube.bury(self, reason, pri=pri, traceback=traceback, worker=worker)

    def kick(self, *, attempts: int | None = None, ttl: Seconds | None = None) -> Task[T]:
        """Make the task ready, if it is buried, delayed or done. See `Tube.kick`."""
        return self._tube.kick(task=self, attempts=attempts, ttl=ttl)

    def update(
        self,
        *,
        data: T = KEEP,
        pri: int = KEEP,
        delay: Seconds = KEEP,
        ttl: Seconds = KEEP,
        at: datetime | None = None,
    ) -> Task[T]:
        """Change the task. See `Tube.update`."""
        return self._tube.update(self, data=data, pri=pri, delay=delay, ttl=ttl, at=at)

    def delete(self, *, state: str | Iterable[str] | None = None) -> Task[T]:
        """Remove the task. See `Tube.delete`."""
        return self._tube.delete(self, state=state)

    def cancel(self, reason: str | None = None) -> Task[T]:
        """End the task as cancelled. See `Tube.cancel`."""
        return self._tube.cancel(self, reason)

    def peek(self) -> Task[T]:
        """Return the current state of the task. See `Tube.peek`."""
        return self._tube.peek(self)

    def _top_up(self, limit: int, span: int | None) -> list[Task[T]]:
        """Return this task, which a waiting call got, and more available tasks, up to `limit` in all."""
        if limit == 1 or self._tube._port.knows_none:
            return [self]
        port = self._tube._port.hot
        others: list[Task[T]] = port.take_many(limit - 1, span)
        return [self, *others]

    def __enter__(self) -> Task[T]:
        self._check_taken()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._take in ENDED:
            return
        if kind is None:
            self.ack()
            return
        if kind is GeneratorExit:
            # The garbage collector may raise it in the middle of a call, or after the loop is closed.
            self._tube._port.release_later(self)
            return
        # The block's own error matters more. A task that cannot be released is lost already.
        with suppress(TubesError):
            if issubclass(kind, Exception):
                self.release()
            else:  # The block was interrupted or cancelled: the task has not failed.
                self._tube._port.release_unfailed(self)
