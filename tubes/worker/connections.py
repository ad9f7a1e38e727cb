"""The connections of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from tubes import aio, sync
from tubes.errors import QueueClosed, TubesError
from tubes.worker.lifetime import RETRY
from tubes.worker.logs import log


class Connections:
    """Two connections with one session, for the event loop and for threads, and one for replies."""

    def __init__(self, threads: sync.Queue, queue: aio.AsyncQueue, replies: aio.AsyncQueue) -> None:
        self.threads: Final = threads
        self.queue: Final = queue
        #: With a session of its own: the tubes in which it was open come and go.
        self.replies: Final = replies
        #: The uuid of the session, once it is joined.
        self.session = ""
        self._tubes: Final[dict[str, sync.Tube]] = {}

    def thread_tube(self, tube: aio.AsyncTube) -> sync.Tube:
        """Find the tube for threads that is the same as this one for asyncio."""
        known = self._tubes.get(tube.name)
        if known is None or known._port.shared is not tube._port.shared:
            known = self._tubes[tube.name] = self.threads.tube(tube.name)
        return known

    async def join(self) -> None:
        """Make one session of both, however long the backend is away."""
        failures = 0
        while True:
            try:
                self.session = await self.queue.identify(await asyncio.to_thread(self.threads.identify))
                return
            except QueueClosed:
                raise
            except TubesError as error:
                failures += 1
                seconds = RETRY.delay(failures)
                log.warning("the worker cannot begin, retrying in %.1f s: %s", seconds, error)
                await asyncio.sleep(seconds)


@asynccontextmanager
async def connected(place: sync.Queue | aio.AsyncQueue, stopped: asyncio.Event) -> AsyncGenerator[Connections | None]:
    """Connections that are closed at the end, by which the session ends and releases its tasks.

    None: the worker was `stopped` before they were made.
    """
    async with AsyncExitStack() as ends:
        threads = sync.connect(place)
        ends.push_async_callback(_close, lambda: asyncio.to_thread(threads.close))
        queue = aio.connect(place)
        ends.push_async_callback(_close, queue.close)
        replies = aio.connect(place)
        ends.push_async_callback(_close, replies.close)
        connections = Connections(threads, queue, replies)
        joining = asyncio.create_task(connections.join())
        stopping = asyncio.create_task(stopped.wait())
        ends.callback(joining.cancel)
        ends.callback(stopping.cancel)
        await asyncio.wait((joining, stopping), return_when=asyncio.FIRST_COMPLETED)
        if joining.done():
            joining.result()
        yield connections if joining.done() else None


async def _close(close: Callable[[], Awaitable[None]]) -> None:
    try:
        await close()
    except TubesError as error:
        log.warning("the session of a worker was not closed; its tasks are released when its lease ends: %s", error)
