"""The lifetime of a run: its stop, its end, and its sleeps after errors. Some of its methods may be called in threads.

A stopping run takes no further tasks; an ended run no longer waits for handlers and replies.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVarTuple

from tubes.backend.retry import RetryPolicy
from tubes.worker.logs import log

Ts = TypeVarTuple("Ts")

#: Delays after errors of the backend, with jitter, so that workers do not all return to a restarted server at once.
RETRY: Final = RetryPolicy.from_growth(0.1, 15.0, jitter=0.5)


class Lifetime:
    """The event loop of a run, and whether the run is stopping or has ended."""

    def __init__(self) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._stopped: Final = asyncio.Event()
        self._ended: Final = threading.Event()
        #: True if the run stops without waiting for handlers.
        self.at_once = False

    @property
    def is_stopping(self) -> bool:
        """True once the run takes no further tasks."""
        return self._stopped.is_set()

    def stop(self, *, now: bool) -> None:
        """Stop taking tasks. `now`: do not wait for handlers either."""
        self._stopped.set()
        self.at_once = self.at_once or now

    def end(self) -> None:
        """Mark the run as ended: its parts stop retrying."""
        self._ended.set()

    def has_ended(self) -> bool:
        """Return True if the run has ended. Safe to call from any thread."""
        return self._ended.is_set()

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the run stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()

    def call(self, act: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call `act` in the event loop, unless that is closed. Safe to call from any thread."""
        try:
            self._loop.call_soon_threadsafe(act, *args)
        except RuntimeError:
            log.debug("a handler ended after its worker")
