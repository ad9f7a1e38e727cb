"""tubes with asyncio: one connection, 50 tasks at a time."""

import asyncio

import tubes
import tubes.aio
from benchmarks.peers.inside import notes, settings

_tube: tubes.AsyncTube


async def start() -> None:
    """Connect."""
    global _tube
    _tube = await tubes.aio.connect(settings.URL).create_tube("jobs", if_not_exists=True)


async def put(payload: str) -> None:
    """Put one task."""
    await _tube.put(payload)


async def put_many(payloads: list[str]) -> None:
    """Put a batch, all or none."""
    await _tube.put_many(payloads)


async def _work() -> None:
    await start()

    async def loop() -> None:
        async for task in _tube:
            await notes.handle_async(task.data)

    await asyncio.gather(*(loop() for _ in range(50)))


def work() -> None:
    """Run 50 loops over the tube."""
    asyncio.run(_work())
