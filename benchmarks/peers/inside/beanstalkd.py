"""beanstalkd, through greenstalk: reserve and delete. It has no batches."""

from importlib import import_module
from typing import Any

from benchmarks.peers.inside import notes, settings

_greenstalk: Any = import_module("greenstalk")
_client = _greenstalk.Client((settings.HOST, settings.PORT))


def put(payload: str) -> None:
    """Put one job."""
    _client.put(payload)


def work() -> None:
    """Reserve, handle and delete jobs."""
    while True:
        job = _client.reserve()
        notes.handle(job.body)
        _client.delete(job)
