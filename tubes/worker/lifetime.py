"""When a run stops and ends, and its waits after errors, for all parts of a run, threads included."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVarTuple

from tubes.backend.retry import RetryPolicy
from tubes.worker.logs import log

Ts = TypeVarTuple("Ts")

#: After an error of the backend. Workers wait for different times, so that they do not overrun a server that is back.
RETRY: Final = RetryPolicy.growing(0.1, 15.0, jitter=0.5)


class Lifetime:
    """The event loop of a run, and when the run stops and ends."""

    def __init__(self) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._stopped: Final = asyncio.Event()
        self._ended: Final = threading.Event()
        #: Whether it is to stop without waiting for handlers.
        self.at_once = False

    @property
    def is_stopping(self) -> bool:
        """Whether no more tasks are taken."""
        return self._stopped.is_set()

    def stop(self, *, now: bool) -> None:
        """Take no more tasks; `now`: and wait for nothing."""
        self._stopped.set()
        self.at_once = self.at_once or now

    def end(self) -> None:
        """Let nobody wait any more for what is still on its way."""
        self._ended.set()

    def has_ended(self) -> bool:
        """Whether nobody waits for what is still on its way."""
        return self._ended.is_set()

    async def rest(self, seconds: float) -> None:
        """Rest for so many seconds, or until the run is to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()

    def call(self, act: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call this in the event loop, if that still runs. From any thread."""
        try:
            self._loop.call_soon_threadsafe(act, *args)
        except RuntimeError:
            log.debug("a worker has ended before its handler")
