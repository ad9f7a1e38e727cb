"""taskiq on a stream of Redis with acks, or on a list without acks; no results, one worker process."""

from importlib import import_module
from typing import Any

from benchmarks.peers.inside import notes, settings

_redis: Any = import_module("taskiq_redis")
_RELIABLE: Any = {"idle_timeout": settings.LEASE * 1000, "unacknowledged_lock_timeout": settings.LEASE}
if settings.WAY == "list":
    broker = _redis.ListQueueBroker(settings.URL)
else:
    broker = _redis.RedisStreamBroker(settings.URL, **(_RELIABLE if settings.LEASE else {}))
_handle = broker.task(notes.handle_async)


async def start() -> None:
    """Connect."""
    await broker.startup()


async def put(payload: str) -> None:
    """Put one task."""
    await _handle.kiq(payload)


def work() -> None:
    """Run a worker like the command does."""
    args: Any = import_module("taskiq.cli.worker.args")
    run: Any = import_module("taskiq.cli.worker.run")
    run.run_worker(args.WorkerArgs.from_cli([f"{__name__}:broker", "--workers", "1", "--log-level", "WARNING"]))
