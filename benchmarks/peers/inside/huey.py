"""huey on a Redis list, without results; one worker thread, which is its default."""

from importlib import import_module
from typing import Any

from benchmarks.peers.inside import notes, told

_huey: Any = import_module("huey")
_jobs = _huey.RedisHuey("jobs", url=told.URL, results=False)
_handle = _jobs.task()(notes.handle)


def put(payload: str) -> None:
    """One task."""
    _handle(payload)


def work() -> None:
    """As `huey_consumer` does."""
    _jobs.create_consumer(periodic=False).run()
