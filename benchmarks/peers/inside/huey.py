"""huey on a Redis list, without results; one worker thread, which is its default."""

from importlib import import_module
from typing import Any

from benchmarks.peers.inside import notes, settings

_huey: Any = import_module("huey")
_jobs = _huey.RedisHuey("jobs", url=settings.URL, results=False)
_handle = _jobs.task()(notes.handle)


def put(payload: str) -> None:
    """Put one task."""
    _handle(payload)


def work() -> None:
    """Run a worker like `huey_consumer` does."""
    _jobs.create_consumer(periodic=False).run()
