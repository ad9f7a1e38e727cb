"""How callers wait on a partitioned tube: for a task, for the end of a task, for room, or until it is empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tubes.backend.waiters import PENDING, Look
from tubes.drivers.options import SECOND
from tubes.values.batch import Batch

if TYPE_CHECKING:
    from tubes.backend.interface import AnyPort
    from tubes.backend.waiters import Waiter

#: Microseconds after which a put that waits for room in one partition tries the others.
_ROOM_LOOK: Final = SECOND


class HotPort:
    """The takes of a port that may wait: they leave out the partitions in whose lines this process stands."""

    def __init__(self, port: Any) -> None:
        self._port: Final = port

    def take(self) -> Any:
        return self._port.ask_all(None, None)

    def take_many(self, limit: int, span: int | None = None) -> Any:
        if self._port.connection.awaited:
            return self._take_many_async(limit, span)
        tasks: list[Any] = []
        task: Any = None
        try:
            while len(tasks) < limit and (task := self._port.ask_all(None, span)) is not None:
                tasks.append(task)
                if len(tasks) < limit and self._port.has_more(task):
                    tasks += self._port.take_more(task, limit - len(tasks), span)
            return tasks
        except BaseException:
            for one in tasks if task is None or task in tasks else [*tasks, task]:
                self._port.release_later(one)
            raise

    async def _take_many_async(self, limit: int, span: int | None) -> list[Any]:
        tasks: list[Any] = []
        try:
            while len(tasks) < limit and (task := await self._port.ask_all(None, span)) is not None:
                tasks.append(task)
                if len(tasks) < limit and self._port.has_more(task):
                    tasks += await self._port.take_more(task, limit - len(tasks), span)
        except BaseException:
            for task in tasks:
                self._port.release_later(task)
            raise
        return tasks


class Forward:
    """A waiter in the line of one partition, for a caller that waits on the whole tube."""

    timeout: int | None

    def __init__(self, parent: Waiter, request: object, result: object = PENDING) -> None:
        self._parent: Final = parent
        # The result for the caller; `PENDING`: that of the partition.
        self._instead: Final = result
        self.result: object = PENDING
        self.timeout = parent.timeout
        self.deadline: int | None = parent.deadline
        self.owner: Any = None
        self.request: Final = request
        self.span: Final = parent.span
        self._port: Any = None

    def enlist(self, port: AnyPort) -> None:
        """Join the line of a partition."""
        self._port = port
        self._parent.owner = self
        port.enlist(self)
        self._parent.deadline = self.deadline
        if self.result is not PENDING:
            self._parent.result = self._reply()

    def _reply(self) -> object:
        result = self.result  # None: the wait timed out.
        return (
            result if self._instead is PENDING or result is None or isinstance(result, BaseException) else self._instead
        )

    def withdraw(self, _parent: Waiter, *, undo: bool) -> object:
        """Leave the line; return the result, or None."""
        result = self._port.withdraw(self, undo=undo)
        return None if result is None else self._reply()

    def must_keep_waiting(self, _parent: Waiter) -> bool:
        return bool(self._port.must_keep_waiting(self))

    def abandon(self, _parent: Waiter) -> None:
        self._port.abandon(self)

    def is_done(self) -> bool:
        return self._parent.is_done()

    def has_left(self) -> bool:
        return self._parent.has_left()

    def wake(self) -> bool:
        """Wake the caller. Its wait timed out if there is no result."""
        if self.result is not PENDING:
            self._parent.result = self._reply()
        return self._parent.wake()


class AnyRoom(Forward):
    """The wait of a put for the room of any partition.

    It waits in the line of one partition. After each `_ROOM_LOOK`, and at the end, it tries all of them.
    """

    def __init__(self, parent: Waiter, tube_port: Any) -> None:
        super().__init__(parent, parent.request)
        self._tube_port: Final = tube_port
        now = tube_port.clock.micros()
        before = parent.owner
        # When the wait of the caller ends; None: never.
        self._end: Final[int | None] = (
            before._end if isinstance(before, AnyRoom) else None if self.timeout is None else now + self.timeout
        )
        self._is_over: Final = self._end is not None and self._end <= now
        self.timeout = None
        self.deadline = now + _ROOM_LOOK if self._end is None else min(now + _ROOM_LOOK, self._end)

    def enlist(self, port: AnyPort) -> None:
        """Join the line of a partition, unless the timeout has passed."""
        if not self._is_over:
            super().enlist(port)
            return
        self._port = port
        self._parent.owner = self
        self._parent.wake()

    def withdraw(self, parent: Waiter, *, undo: bool) -> object:
        """Leave the line; return the result, None after the timeout, or a `Look` at all partitions."""
        result = super().withdraw(parent, undo=undo)
        return Look(self._parent) if result is None and not undo and not self._is_over else result

    def ask(self, parent: Waiter) -> Any:
        """Try all partitions."""
        return self._tube_port.reach_again(parent.request)

    def release_later(self, made: Any) -> None:
        """Undo the put of a caller that was interrupted."""
        self.result = made
        first: Any = made[0] if isinstance(self.request, Batch) else made
        self._tube_port.port_of(first).withdraw(self, undo=True)
        self.result = PENDING
