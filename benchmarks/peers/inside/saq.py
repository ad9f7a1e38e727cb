"""saq, without results: 10 jobs at a time, which is its default."""

import asyncio
from importlib import import_module
from typing import Any

from benchmarks.peers.inside import notes, settings

_saq: Any = import_module("saq")
_queue = _saq.Queue.from_url(settings.URL)


async def start() -> None:
    """Connect."""
    await _queue.connect()


async def put(payload: str) -> None:
    """Put one job; with ttl=-1 its result is not kept."""
    await _queue.enqueue("handle", payload=payload, ttl=-1)


async def handle(context: Any, *, payload: str) -> None:
    """Handle a job."""
    notes.handle(payload)


async def _work() -> None:
    await start()
    await _saq.Worker(_queue, functions=[handle]).start()


def work() -> None:
    """Run a worker like the command does."""
    asyncio.run(_work())
