"""celery without results: a worker with one process; it prefetches 100, as its guide advises for short tasks."""

from importlib import import_module
from typing import Any

from benchmarks.peers.inside import notes, settings

_celery: Any = import_module("celery")
app = _celery.Celery(__name__, broker=settings.URL)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=100, worker_hijack_root_logger=False)
if settings.LEASE:
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        broker_transport_options={
            "visibility_timeout": settings.LEASE,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "unacked_mutex_expire": settings.LEASE,
        },
    )
_handle = app.task(notes.handle, name="handle")


def put(payload: str) -> None:
    """Put one task."""
    _handle.delay(payload)


def work() -> None:
    """Run a worker like the command does."""
    app.worker_main(["worker", "--concurrency", "1", "--loglevel", "WARNING"])
