"""For how long a first connection to a server is tried."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

#: Seconds; None: as long as any call.
first_patience: ContextVar[float | None] = ContextVar("first_patience", default=None)


@contextmanager
def impatient(seconds: float) -> Generator[None]:
    """Let `connect` give up after so many seconds: where somebody waits for it, and begins it anew by hand.

    What is called later, on a connection that there was, is tried as long as ever.
    """
    before = first_patience.set(seconds)
    try:
        yield
    finally:
        first_patience.reset(before)
