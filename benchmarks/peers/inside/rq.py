"""rq, without results: its worker forks for each job; its SimpleWorker does not."""

from importlib import import_module
from typing import Any

from benchmarks.peers.inside import notes, settings

_rq: Any = import_module("rq")
_redis: Any = import_module("redis")
_connection = _redis.Redis.from_url(settings.URL)
_queue = _rq.Queue("jobs", connection=_connection)


def put(payload: str) -> None:
    """Put one job."""
    _queue.enqueue(notes.handle, payload, result_ttl=0, retry=_rq.Retry(max=20) if settings.LEASE else None)


def put_many(payloads: list[str]) -> None:
    """Put jobs in one pipeline."""
    _queue.enqueue_many([_queue.prepare_data(notes.handle, (payload,), result_ttl=0) for payload in payloads])


def work() -> None:
    """Run a worker like `rq worker` does."""
    kind = _rq.SimpleWorker if settings.WAY == "simple" else _rq.Worker
    span = settings.LEASE
    # An idle worker waits for `worker_ttl` less 15 seconds, and looks for lost jobs only between two waits.
    reliable: Any = (
        {"job_monitoring_interval": span, "maintenance_interval": span, "worker_ttl": 15 + span} if span else {}
    )
    kind([_queue], connection=_connection, log_job_description=False, **reliable).work(logging_level="WARNING")
