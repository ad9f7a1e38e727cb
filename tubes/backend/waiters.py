"""Callers that wait: in a thread or in an event loop, for a task or for room.

A backend that has a task for a waiter sets its `answer`, under the lock of the waiter's line, and wakes it. A waiter
gets at most one answer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from _thread import start_new_thread
from asyncio import _get_running_loop as running_loop
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from tubes.errors import TubesError

if TYPE_CHECKING:
    from tubes.backend.clock import Clock

#: The answer that is not there yet.
PENDING: Final = object()


class WaitLine(Protocol):
    """Where waiters wait in order: a port, or several at once."""

    def enlist(self, waiter: Waiter) -> None:
        """Answer the waiter at once, if that is possible, else put it at the end of the line."""
        ...

    def withdraw(self, waiter: Waiter, *, undo: bool) -> object:
        """Take the waiter out of the line and return None, or what it was given meanwhile; `undo`: give that back."""
        ...

    def keeps(self, waiter: Waiter) -> bool:
        """Whether the put of a waiter whose time is over is under way: then it sleeps on, and is woken soon."""
        ...

    def abandon(self, waiter: Waiter) -> None:
        """Withdraw and undo, a moment later: for finalizers, which may run in the middle of anything."""
        ...


class Waiter(Protocol):
    """A caller that stands in a line."""

    #: Its task, its error, or `PENDING`.
    answer: object
    #: When its time is over.
    deadline: int | None
    #: The port through which it waits; only the backend reads it.
    owner: Any

    @property
    def timeout(self) -> int | None:
        """Microseconds for which it waits; None: for ever, or until a deadline that is set already."""
        ...

    @property
    def request(self) -> Any:
        """The put, which only the backend reads; None: this is a take."""
        ...

    def lost(self) -> bool:
        """Whether nobody needs a result any more."""
        ...

    def is_gone(self) -> bool:
        """Whether nobody waits here any more, although the waiter is in a line."""
        ...

    def wake(self) -> bool:
        """End the wait; False if the caller is gone for good."""
        ...


#: The longest sleep of a thread at a time, in seconds.
_PART: Final = 0.25
#: What a caller asks for who waits until a tube is empty.
EMPTY: Final = object()


class EndOf(NamedTuple):
    """What a caller asks for who waits for the end of a task."""

    id: int


class ThreadWaiter:
    """A thread that sleeps on a lock of its own."""

    __slots__ = ("_clock", "_lock", "answer", "deadline", "owner", "request", "timeout")

    def __init__(self, clock: Clock, timeout: int | None, request: Any = None) -> None:
        self._clock = clock
        self.timeout: Final = timeout
        self._lock = threading.Lock()
        self._lock.acquire()
        self.answer: object = PENDING
        self.deadline: int | None = None
        self.owner: Any = None
        self.request: Final = request

    def wait(self, line: WaitLine, then: Callable[[Any], Any] | None = None) -> Any:
        """Wait for an answer; None if the time is over first. Raises the answer if it is an error.

        `then`: a function of the answer, whose result is returned instead.

        An interrupted wait (KeyboardInterrupt) loses nothing, however often it is interrupted: a task that it got
        meanwhile is given back. CPython raises interrupts only at the start of a function, after a call and in loops,
        so nothing comes between an `except` and the call below it.
        """
        try:
            line.enlist(self)
            if self.answer is PENDING:
                patience = self._clock.patience(self.deadline)
                if not self._sleep(patience) and line.keeps(self):
                    self._sleep(None)
            answer = _outcome(self, line)
            return answer if then is None or answer is None else then(answer)
        except BaseException:
            try:
                line.withdraw(self, undo=True)
            except TubesError:
                pass
            except BaseException:  # Interrupted once more. Signals do not reach another thread.
                start_new_thread(line.withdraw, (self,), {"undo": True})
            raise

    def _sleep(self, seconds: float | None) -> bool:
        """Sleep until the waiter is woken; False if the time is over first.

        It sleeps in parts: CPython raises an interrupt that comes just before a sleep only at the end of the sleep.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            left = _PART if end is None else end - time.monotonic()
            if self._lock.acquire(timeout=max(0.0, min(left, _PART))):
                return True
            if left <= _PART and end is not None:
                return False

    def lost(self) -> bool:
        """Whether nobody needs a result any more; a thread always does."""
        return False

    def is_gone(self) -> bool:
        """Whether nobody waits here any more, although the waiter is in a line."""
        return False

    def wake(self) -> bool:
        """End the sleep. It may be repeated, after an interrupt."""
        if self._lock.locked():
            self._lock.release()
        return True


class LoopWaiter:
    """An asyncio task that waits for a future of its loop."""

    __slots__ = ("_clock", "_future", "_loop", "answer", "deadline", "lost", "owner", "request", "timeout")

    def __init__(self, clock: Clock, timeout: int | None, request: Any = None) -> None:
        self._clock = clock
        self.timeout: Final = timeout
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()
        self.answer: object = PENDING
        self.deadline: int | None = None
        # Its time is over, or it was cancelled.
        self.lost: Final = self._future.done
        self.owner: Any = None
        self.request: Final = request

    async def wait(self, line: WaitLine, then: Callable[[Any], Awaitable[Any]] | None = None) -> Any:
        """Wait for an answer, as `ThreadWaiter.wait` does. A cancelled wait loses nothing either."""
        try:
            line.enlist(self)
            if self.answer is PENDING:
                timer = None
                try:
                    patience = self._clock.patience(self.deadline)
                    if patience is not None:
                        timer = self._loop.call_later(patience, self._finish_late, line)
                    await self._future
                finally:
                    if timer is not None:
                        timer.cancel()
            answer = _outcome(self, line)
            return answer if then is None or answer is None else await then(answer)
        except GeneratorExit:
            # The loop is gone, and the garbage collector may run in the middle of a call.
            line.abandon(self)
            raise
        except BaseException:
            try:
                line.withdraw(self, undo=True)
            except TubesError:
                pass
            except BaseException:  # As in `ThreadWaiter.wait`.
                start_new_thread(line.withdraw, (self,), {"undo": True})
            raise

    def is_gone(self) -> bool:
        """Whether nobody waits here any more: the task was cancelled, or its loop has gone."""
        return self._future.done() or self._loop.is_closed()

    def wake(self) -> bool:
        """End the wait; False if the loop is closed, and the waiter gone for good."""
        if running_loop() is self._loop:
            if not self._future.done():
                self._future.set_result(None)
            return True
        try:
            self._loop.call_soon_threadsafe(self._finish)
        except RuntimeError:
            return False
        return True

    def _finish_late(self, line: WaitLine) -> None:
        if not line.keeps(self):
            self._finish()

    def _finish(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


def _outcome(waiter: Waiter, line: WaitLine) -> object:
    answer = waiter.answer
    if answer is PENDING:
        answer = line.withdraw(waiter, undo=False)
    if isinstance(answer, BaseException):
        raise answer
    return answer
