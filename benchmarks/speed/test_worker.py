"""A worker whose handlers do nothing, compared with a loop of take and ack."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest

import tubes
from benchmarks.shared.tasks import PAYLOAD
from benchmarks.speed.table import Comparison, Results
from tubes import task_data
from tubes.testing import LocalServer
from tubes.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.speed.conftest import Scale


def plain(task: Any) -> None:
    """Handle a task in a thread."""


async def handle_async(task: Any) -> None:
    """Handle a task in the event loop."""


#: Limits of microseconds per task, by place, handler and concurrency.
LIMITS = {
    ("memory", "plain", 1): 60,
    ("memory", "plain", 10): 25,
    ("memory", "async", 10): 10,
    ("Valkey", "plain", 10): 80,
    ("Valkey", "async", 10): 45,
}
ENQUEUE_GOAL = 1.3
HANDLERS: dict[str, Callable[[Any], Any]] = {"plain": plain, "async": handle_async}


@pytest.fixture(scope="module", params=["memory", "Valkey"])
def place(request: pytest.FixtureRequest) -> str:
    """Return the place of the tasks."""
    return str(request.param)


@pytest.fixture(scope="module")
def url(place: str) -> Iterator[str]:
    if place == "memory":
        yield "memory://"
        return
    with LocalServer() as server:
        yield server.url


def test_a_worker_beside_a_loop(place: str, url: str, scale: Scale, results: Results) -> None:
    count = scale.operations * 2
    with tubes.connect(url) as queue:
        tube = queue.create_tube("jobs")
        workers: dict[tuple[str, int], Worker] = {}
        for name, handler in HANDLERS.items():
            for concurrency in (1, 10):
                worker = workers[name, concurrency] = Worker(queue, concurrency=concurrency)
                worker.on(tube, handler)
        for _ in range(scale.passes):
            tube.put_many([PAYLOAD] * count)
            start = perf_counter()
            while (task := tube.take(timeout=0)) is not None:
                tube.ack(task)
            loop = (perf_counter() - start) / count
            for (name, concurrency), worker in workers.items():
                tube.put_many([PAYLOAD] * count)
                start = perf_counter()
                assert worker.run(burst=True).acked == count
                spent = (perf_counter() - start) / count
                what = f"a task in {place}, {name} handler, {concurrency} at a time"
                comparison = Comparison("worker", what, "take + ack")
                results.compare(comparison, "yardstick", loop)
                results.compare(comparison, "ours", spent)
                if limit := LIMITS.get((place, name, concurrency)):
                    comparison = Comparison("worker", f"{what}: time", "limit", goal=1)
                    results.compare(comparison, "yardstick", limit / 1e6)
                    results.compare(comparison, "ours", spent)


def send_email(to: str, subject: str = "hello") -> None:
    """A task function that does nothing."""


def test_enqueue(place: str, url: str, scale: Scale, results: Results) -> None:
    comparison = Comparison("worker", f"enqueue of a task function in {place}", "put", goal=ENQUEUE_GOAL)
    data = task_data(send_email, "ann", subject="news")
    with tubes.connect(url) as queue:
        queue.enqueue(send_email, "ann", subject="news")  # The first call creates the tube.
        tube = queue.tube("tasks")
        for _ in range(scale.passes * scale.rounds):
            start = perf_counter()
            for _ in range(scale.operations):
                tube.put(data)
            results.compare(comparison, "yardstick", (perf_counter() - start) / scale.operations)
            start = perf_counter()
            for _ in range(scale.operations):
                queue.enqueue(send_email, "ann", subject="news")
            results.compare(comparison, "ours", (perf_counter() - start) / scale.operations)
            tube.truncate()
