"""dramatiq with its default middleware: one process of 8 threads."""

from importlib import import_module
from typing import Any

from benchmarks.peers.inside import notes, settings

_dramatiq: Any = import_module("dramatiq")
_redis_broker: Any = import_module("dramatiq.brokers.redis")
_RELIABLE: Any = {"heartbeat_timeout": settings.LEASE * 1000, "maintenance_chance": 100_000} if settings.LEASE else {}
_dramatiq.set_broker(_redis_broker.RedisBroker(url=settings.URL, **_RELIABLE))
_handle = _dramatiq.actor(notes.handle)


def put(payload: str) -> None:
    """Put one message."""
    _handle.send(payload)


def work() -> None:
    """Run a worker like the command does."""
    cli: Any = import_module("dramatiq.cli")
    words = [__name__, "--processes", "1", "--skip-logging"]
    cli.main(cli.make_argument_parser().parse_args(words))
