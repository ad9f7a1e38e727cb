"""beanstalkd, through greenstalk: reserve and delete. It has no batches."""

from importlib import import_module
from operator import attrgetter
from typing import Any

from benchmarks.peers.inside import notes, settings

_greenstalk: Any = import_module("greenstalk")
_client: Any = None


def start() -> None:
    """Connect."""
    global _client
    _client = _greenstalk.Client((settings.HOST, settings.PORT))


def put(payload: str) -> None:
    """Put one job; connect again after an error, since the client does not."""
    global _client
    if _client is None:
        start()
    client: Any = _client
    try:
        client.put(payload, **({"ttr": settings.LEASE} if settings.LEASE else {}))
    except OSError:
        _client = None
        raise


def work() -> None:
    """Reserve, handle and delete jobs."""
    start()
    notes.work_until_stopped(_client.reserve, attrgetter("body"), _client.delete)
