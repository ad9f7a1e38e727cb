"""For how long a first connection to a server is tried."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

#: Seconds; None: as long as any call is tried.
connect_timeout: ContextVar[float | None] = ContextVar("connect_timeout", default=None)


@contextmanager
def connect_within(seconds: float) -> Generator[None]:
    """Let `connect` give up after so many seconds: for commands at which somebody sits who can try again.

    Calls on a connection that was made are tried for as long as ever.
    """
    token = connect_timeout.set(seconds)
    try:
        yield
    finally:
        connect_timeout.reset(token)
