"""A worker whose handlers do nothing, beside a loop of take and ack."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest

import tubes
from benchmarks.shared.tasks import PAYLOAD
from benchmarks.speed.table import Comparison, Results
from tubes.testing import LocalServer
from tubes.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.speed.conftest import Scale


def plain(task: Any) -> None:
    """A handler for threads."""


async def awaited(task: Any) -> None:
    """A handler for the event loop."""


HANDLERS: dict[str, Callable[[Any], Any]] = {"plain": plain, "async": awaited}


@pytest.mark.parametrize("place", ["memory", "Valkey"])
def test_a_worker_beside_a_loop(place: str, scale: Scale, results: Results) -> None:
    if place == "memory":
        measure("memory", "memory://", scale, results)
        return
    with LocalServer() as server:
        measure("Valkey", server.url, scale, results)


def measure(place: str, url: str, scale: Scale, results: Results) -> None:
    count = scale.operations * 2
    with tubes.connect(url) as queue:
        tube = queue.create_tube("jobs")
        workers: dict[str, Worker] = {}
        for name, handler in HANDLERS.items():
            for concurrency in (1, 10):
                worker = workers[f"{name} handler, {concurrency} at a time"] = Worker(queue, concurrency=concurrency)
                worker.on(tube, handler)
        for _ in range(scale.passes):
            tube.put_many([PAYLOAD] * count)
            start = perf_counter()
            while (task := tube.take(timeout=0)) is not None:
                tube.ack(task)
            loop = (perf_counter() - start) / count
            for name, worker in workers.items():
                tube.put_many([PAYLOAD] * count)
                start = perf_counter()
                assert worker.run(burst=True).acked == count
                spent = (perf_counter() - start) / count
                comparison = Comparison("worker", f"a task in {place}, {name}", "take + ack")
                results.compare(comparison, "yardstick", loop)
                results.compare(comparison, "ours", spent)
