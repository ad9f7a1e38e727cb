"""The connections of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from tubes import aio, sync
from tubes.backend.port import port_of
from tubes.errors import QueueClosed, TubesError
from tubes.worker.lifetime import RETRY
from tubes.worker.logs import log


class Connections:
    """Two connections that share a session, one for the event loop and one for threads, and a third for replies."""

    def __init__(self, threads: sync.Queue, queue: aio.AsyncQueue, replies: aio.AsyncQueue) -> None:
        self.threads: Final = threads
        self.queue: Final = queue
        #: Has its own session, because callers' reply tubes come and go.
        self.replies: Final = replies
        #: UUID of the shared session; empty until `join` succeeds.
        self.session = ""
        self._tubes: Final[dict[str, sync.Tube]] = {}

    def thread_tube(self, tube: aio.AsyncTube) -> sync.Tube:
        """Return the synchronous tube that corresponds to this asyncio tube."""
        known = self._tubes.get(tube.name)
        if known is None or port_of(known).shared is not port_of(tube).shared:
            known = self._tubes[tube.name] = self.threads._find_tube(tube.name)
        if tube._part is None:
            return known
        port: Any = port_of(known)
        part: sync.Tube = port.part(tube._part)
        return part

    async def join(self) -> None:
        """Join both connections to one session. Retries until the backend is reachable."""
        failures = 0
        while True:
            try:
                self.session = await self.queue.admin.identify(await asyncio.to_thread(self.threads.admin.identify))
                return
            except QueueClosed:
                raise
            except TubesError as error:
                failures += 1
                seconds = RETRY.delay(failures)
                log.warning("the worker cannot start, retrying in %.1f s: %s", seconds, error)
                await asyncio.sleep(seconds)


@asynccontextmanager
async def open_connections(
    place: sync.Queue | aio.AsyncQueue, stopped: asyncio.Event
) -> AsyncGenerator[Connections | None]:
    """Open the connections of a run, and close them at the end: the session ends and releases its tasks.

    Yields None if the worker was `stopped` before it was connected.
    """
    async with AsyncExitStack() as stack:
        threads = sync.connect(place)
        stack.push_async_callback(_close, lambda: asyncio.to_thread(threads.close))
        queue = aio.connect(place)
        stack.push_async_callback(_close, queue.close)
        replies = aio.connect(place)
        stack.push_async_callback(_close, replies.close)
        connections = Connections(threads, queue, replies)
        joining = asyncio.create_task(connections.join())
        stopping = asyncio.create_task(stopped.wait())
        stack.callback(joining.cancel)
        stack.callback(stopping.cancel)
        await asyncio.wait((joining, stopping), return_when=asyncio.FIRST_COMPLETED)
        if joining.done():
            joining.result()
        yield connections if joining.done() else None


async def _close(close: Callable[[], Awaitable[None]]) -> None:
    try:
        await close()
    except TubesError as error:
        log.warning(
            "the session of a worker could not be closed; its tasks are released when its lease expires: %s", error
        )
