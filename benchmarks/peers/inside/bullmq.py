"""bullmq's Python package: jobs are removed when done; 10 at a time."""

import asyncio
import signal
from importlib import import_module
from typing import Any

from benchmarks.peers.inside import notes, settings

_bullmq: Any = import_module("bullmq")
_CONNECTION = {"connection": settings.URL}
_OPTIONS = {"removeOnComplete": True}
_SPAN = settings.LEASE * 1000
_RELIABLE = {"lockDuration": _SPAN, "stalledInterval": _SPAN, "maxStalledCount": 20} if _SPAN else {}
_queue: Any = None


async def start() -> None:
    """Connect."""
    global _queue
    _queue = _bullmq.Queue("jobs", _CONNECTION)


async def put(payload: str) -> None:
    """Put one job."""
    await _queue.add("job", {"payload": payload}, _OPTIONS)


async def put_many(payloads: list[str]) -> None:
    """Put jobs in one transaction."""
    await _queue.addBulk([{"name": "job", "data": {"payload": payload}, "opts": _OPTIONS} for payload in payloads])


async def _handle(job: Any, token: str) -> None:
    await notes.handle_async(job.data["payload"])


async def _work() -> None:
    worker = _bullmq.Worker("jobs", _handle, {**_CONNECTION, **_RELIABLE, "concurrency": 10})
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await worker.close()


def work() -> None:
    """Work on 10 jobs at a time."""
    asyncio.run(_work())
