"""tubes, by plain calls: take and ack, a loop over the tube, batches, or a Worker."""

import fcntl
import os
from typing import Any

import tubes
from benchmarks.peers.inside import notes, settings
from tubes.worker import Worker

# The ways with a URL are in this process: in memory, or in a folder.
_queue = tubes.connect(settings.WAY if ":" in settings.WAY else settings.URL)
_OPTIONS: Any = {"ttr": settings.LEASE} if settings.LEASE else {}
_tube = _queue.create_tube("jobs", if_not_exists=True, **_OPTIONS)


def put(payload: str) -> None:
    """Put one task."""
    _tube.put(payload)


def put_many(payloads: list[str]) -> None:
    """Put a batch, all or none."""
    _tube.put_many(payloads)


def _calls() -> None:
    while True:
        task = _tube.take()
        assert task is not None
        notes.handle(task.data)
        _tube.ack(task)


def _loop() -> None:
    for task in _tube:
        notes.handle(task.data)


def _batches() -> None:
    while True:
        tasks = _tube.take_many(100)
        for task in tasks:
            notes.handle(task.data)
        _tube.ack_many(tasks)


def _threads() -> None:
    worker = Worker(_queue)

    @worker.on("jobs", concurrency=10)
    def work(task: Any) -> None:
        notes.handle(task.data)

    worker.run()


def _coroutines() -> None:
    worker = Worker(_queue)

    @worker.on("jobs", concurrency=10)
    async def work(task: Any) -> None:
        await notes.handle_async(task.data)

    worker.run()


def handle_in_process(task: Any) -> None:
    """Handle a task in one of two processes, which count in turn."""
    with open(os.environ["PEERS_NOTES"]) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        notes.handle(task.data)


def _processes() -> None:
    worker = Worker(_queue)
    worker.on("jobs", handle_in_process, concurrency=2, process=True)
    worker.run()


def work() -> None:
    """Run the selected worker."""
    ways = {"calls": _calls, "loop": _loop, "batches": _batches, "threads": _threads, "processes": _processes}
    ways.get(settings.WAY, _coroutines)()
