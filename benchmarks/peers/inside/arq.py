"""arq, without results: 10 jobs at a time, which is its default."""

from importlib import import_module
from typing import Any

from benchmarks.peers.inside import notes, settings

_connections: Any = import_module("arq.connections")
_settings = _connections.RedisSettings(host=settings.HOST, port=settings.PORT)
_pool: Any = None


async def start() -> None:
    """Connect."""
    global _pool
    _pool = await _connections.create_pool(_settings)


async def put(payload: str) -> None:
    """Put one job."""
    await _pool.enqueue_job("handle", payload)


async def handle(context: Any, payload: str) -> None:
    """Handle a job."""
    await notes.handle_async(payload)


def work() -> None:
    """Run a worker like the command does."""
    worker: Any = import_module("arq.worker")
    lease = settings.LEASE
    reliable = {"job_timeout": lease, "max_tries": 20, "job_completion_wait": lease} if lease else {}
    worker.Worker([handle], redis_settings=_settings, keep_result=0, **reliable).run()
