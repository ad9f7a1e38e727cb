"""Callers that wait, in a thread or in an event loop, for a task or for room.

A backend that has a result for a waiter sets its `result`, under the lock of the waiter's line, and wakes it. A waiter
gets at most one result.
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

#: The value of `result` until the waiter has a result.
PENDING: Final = object()


class WaitLine(Protocol):
    """A line of waiters, in order: of one port, or of several at once."""

    def enlist(self, waiter: Waiter) -> None:
        """Serve the waiter at once if possible; otherwise append it to the line."""
        ...

    def withdraw(self, waiter: Waiter, *, undo: bool) -> object:
        """Remove the waiter from the line and return its result, if it has one, else None; `undo`: undo the result."""
        ...

    def must_keep_waiting(self, waiter: Waiter) -> bool:
        """True if the put of a waiter that timed out was already sent: it must keep waiting, and is woken soon."""
        ...

    def abandon(self, waiter: Waiter) -> None:
        """Withdraw and undo in another thread: for finalizers, which must not take locks."""
        ...


class Waiter(Protocol):
    """A caller in a line."""

    #: The result, an error, or `PENDING`.
    result: object
    #: When the wait times out, in microseconds since the epoch.
    deadline: int | None
    #: The port that it waits on; only the backend reads it.
    owner: Any

    @property
    def timeout(self) -> int | None:
        """Microseconds to wait; None: for ever, or until a deadline that is already set."""
        ...

    @property
    def request(self) -> Any:
        """The put, which only the backend reads; None for a take."""
        ...

    @property
    def span(self) -> int | None:
        """The ttr of the take in microseconds; None: the task's own."""
        ...

    def is_done(self) -> bool:
        """True if the caller needs no result any more."""
        ...

    def has_left(self) -> bool:
        """True if the caller has left, although the waiter is still in a line."""
        ...

    def wake(self) -> bool:
        """End the wait; return False if the caller has left."""
        ...


#: The longest single sleep of a thread, in seconds.
_MAX_SLEEP: Final = 0.25
#: The `request` of a caller that waits until a tube is empty.
TUBE_EMPTY: Final = object()
#: The result for such a caller when one partition of the tube is empty: it looks at all of them again.
PART_EMPTY: Final = object()


class Look:
    """The result of a caller that has to ask its tube again, since a task may be available there."""

    __slots__ = ("_waiter",)

    def __init__(self, waiter: Waiter) -> None:
        self._waiter: Final = waiter

    def ask(self) -> Any:
        """Return a task, or None; a coroutine in the asyncio API."""
        return self._waiter.owner.ask(self._waiter)

    def give_back(self, task: Any) -> None:
        """Release the task of a caller that has left."""
        self._waiter.owner.release_later(task)


class TaskEnd(NamedTuple):
    """The `request` of a caller that waits for the end of a task."""

    id: int


class ThreadWaiter:
    """A thread that sleeps on its own lock."""

    __slots__ = ("_clock", "_lock", "deadline", "owner", "request", "result", "span", "timeout")

    def __init__(self, clock: Clock, timeout: int | None, request: object = None, span: int | None = None) -> None:
        self._clock = clock
        self.timeout: Final = timeout
        self._lock = threading.Lock()
        self._lock.acquire()
        self.result: object = PENDING
        self.deadline: int | None = None
        self.owner: Any = None
        self.request: Final = request
        self.span: Final = span

    def wait(self, line: WaitLine, then: Callable[[Any], object] | None = None) -> Any:
        """Wait for the result and return it; None after the timeout. Raises the result if it is an error.

        `then`: a function that converts the result.

        Interrupts (KeyboardInterrupt) never lose a task, even if several come: a received task goes back to its tube.
        CPython raises interrupts only at the start of a function, after a call and in loops, so that none can come
        between an `except` and the call below it.
        """
        look = task = None
        try:
            while True:
                line.enlist(self)
                if self.result is PENDING:
                    patience = self._clock.patience(self.deadline)
                    if not self._sleep(patience) and line.must_keep_waiting(self):
                        self._sleep(None)
                result: Any = _get_result(self, line)
                if result.__class__ is not Look:
                    return result if then is None or result is None else then(result)
                look = result
                task = look.ask()
                if task is not None:
                    return task if then is None else then(task)
                self._lock.acquire(blocking=False)
                self.result = PENDING
        except BaseException:
            try:
                if look is not None and task is not None:
                    look.give_back(task)
                line.withdraw(self, undo=True)
            except TubesError:
                pass
            except BaseException:  # A second interrupt. Use another thread: signals do not reach it.
                start_new_thread(line.withdraw, (self,), {"undo": True})
            raise

    def _sleep(self, seconds: float | None) -> bool:
        """Sleep until the waiter is woken; return False after a timeout.

        Sleep in short parts: if an interrupt comes just before a sleep, CPython raises it only at the end of the sleep.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            remaining = _MAX_SLEEP if end is None else end - time.monotonic()
            if self._lock.acquire(timeout=max(0.0, min(remaining, _MAX_SLEEP))):
                return True
            if remaining <= _MAX_SLEEP and end is not None:
                return False

    def is_done(self) -> bool:
        """Return False: a thread always needs its result."""
        return False

    def has_left(self) -> bool:
        """Return False: a thread never leaves without withdrawing."""
        return False

    def wake(self) -> bool:
        """End the sleep. The call may be repeated after an interrupt."""
        if self._lock.locked():
            self._lock.release()
        return True


class LoopWaiter:
    """An asyncio task that waits for a future of its event loop."""

    __slots__ = ("_clock", "_future", "_loop", "deadline", "is_done", "owner", "request", "result", "span", "timeout")

    def __init__(self, clock: Clock, timeout: int | None, request: object = None, span: int | None = None) -> None:
        self._clock = clock
        self.timeout: Final = timeout
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()
        self.result: object = PENDING
        self.deadline: int | None = None
        # The future is done after a timeout and after a cancel.
        self.is_done = self._future.done
        self.owner: Any = None
        self.request: Final = request
        self.span: Final = span

    async def wait(self, line: WaitLine, then: Callable[[Any], Awaitable[object]] | None = None) -> Any:
        """Wait for the result, as `ThreadWaiter.wait` does. A cancelled wait loses no task either."""
        look = task = None
        try:
            result = await self._wait_once(line)
            while result.__class__ is Look:
                look = result
                task = await look.ask()
                if task is not None:
                    return task if then is None else await then(task)
                self._future, self.result = self._loop.create_future(), PENDING
                self.is_done = self._future.done
                result = await self._wait_once(line)
            return result if then is None or result is None else await then(result)
        except GeneratorExit:
            # The loop is closed. The garbage collector may run this at any point, so take no lock here.
            line.abandon(self)
            raise
        except BaseException:
            try:
                if look is not None and task is not None:
                    look.give_back(task)
                line.withdraw(self, undo=True)
            except TubesError:
                pass
            except BaseException:  # As in `ThreadWaiter.wait`.
                start_new_thread(line.withdraw, (self,), {"undo": True})
            raise

    async def _wait_once(self, line: WaitLine) -> Any:
        line.enlist(self)
        if self.result is PENDING:
            timer = None
            try:
                patience = self._clock.patience(self.deadline)
                if patience is not None:
                    timer = self._loop.call_later(patience, self._time_out, line)
                await self._future
            finally:
                if timer is not None:
                    timer.cancel()
        return _get_result(self, line)

    def has_left(self) -> bool:
        """True if the task was cancelled, or its loop is closed."""
        return self._future.done() or self._loop.is_closed()

    def wake(self) -> bool:
        """End the wait; return False if the loop is closed."""
        if running_loop() is self._loop:
            if not self._future.done():
                self._future.set_result(None)
            return True
        try:
            self._loop.call_soon_threadsafe(self._finish)
        except RuntimeError:
            return False
        return True

    def _time_out(self, line: WaitLine) -> None:
        if not line.must_keep_waiting(self):
            self._finish()

    def _finish(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


def _get_result(waiter: Waiter, line: WaitLine) -> object:
    result = waiter.result
    if result is PENDING:
        result = line.withdraw(waiter, undo=False)
    if isinstance(result, BaseException):
        raise result
    return result
