"""saq, without results: 10 jobs at a time, which is its default."""

import asyncio
from importlib import import_module
from typing import Any

from benchmarks.peers.inside import notes, settings

_saq: Any = import_module("saq")
_queue = _saq.Queue.from_url(settings.URL)
_RELIABLE: Any = {"timeout": settings.LEASE, "retries": 20} if settings.LEASE else {}
_SWEEPS: Any = (
    {"timers": {"sweep": settings.LEASE}, "shutdown_grace_period_s": settings.LEASE} if settings.LEASE else {}
)


async def start() -> None:
    """Connect."""
    await _queue.connect()


async def put(payload: str) -> None:
    """Put one job; with ttl=-1 its result is not kept."""
    await _queue.enqueue("handle", payload=payload, ttl=-1, **_RELIABLE)


async def handle(context: Any, *, payload: str) -> None:
    """Handle a job."""
    await notes.handle_async(payload)


async def _work() -> None:
    await start()
    await _saq.Worker(_queue, functions=[handle], **(_SWEEPS if settings.LEASE else {})).start()


def work() -> None:
    """Run a worker like the command does."""
    asyncio.run(_work())
