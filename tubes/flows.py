"""The verbs that may wait, each once for threads and asyncio.

A flow is a generator: it yields a waiter that is to sleep, and returns the answer. `sync.py` and `aio.py` run flows;
an error that ends a sleep (KeyboardInterrupt, CancelledError) is thrown into the flow, which cleans up after itself.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol, TypeVar

from tubes.waiters import PENDING, LoopWaiter, ThreadWaiter

W = TypeVar("W", ThreadWaiter, LoopWaiter)


class Desk(Protocol):
    """Where waiters are served."""

    def enlist(self, waiter: ThreadWaiter | LoopWaiter) -> None:
        """Answer the waiter at once, if that is possible, else put it at the end of the line."""
        ...

    def withdraw(self, waiter: ThreadWaiter | LoopWaiter, *, undo: bool) -> Any:
        """Take the waiter out of the line and answer None, or what it was given meanwhile; `undo`: give that back."""
        ...


def wait(desk: Desk, waiter: W) -> Generator[W, None, Any]:
    """Wait until the waiter is answered or its time is over; None then. Raises the answer if it is an error."""
    undo = True
    try:
        desk.enlist(waiter)
        if waiter.answer is PENDING:
            yield waiter
        answer = waiter.answer
        if answer is PENDING:
            answer = desk.withdraw(waiter, undo=False)
        undo = False
    finally:
        if undo:
            desk.withdraw(waiter, undo=True)
    if isinstance(answer, Exception):
        raise answer
    return answer
