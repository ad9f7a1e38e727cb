"""The cost of handing a task to one of few or many waiting takes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

from benchmarks.scale.figures import Figures, Subject, measure_interleaved
from benchmarks.scale.places import Place
from tests.contract.bench import eventually

_METHOD: Final = "put to ack"
#: Seconds for a consumer to start waiting again after its ack.
_PAUSE: Final = 0.002


def measure_threads(place: Place, waiters: int, tasks: int) -> float:
    """Return the seconds from before a put to after the ack of the waiting thread."""
    acked = threading.Semaphore(0)
    with place.connect() as queue:
        tube: Any = queue.create_tube("waiting")

        def work() -> None:
            for _ in range(tasks + 1):
                task = tube.take()
                last = task.data != place.payload
                tube.ack(task)
                if last:
                    return
                acked.release()

        threads = [threading.Thread(target=work) for _ in range(waiters)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: tube.statistics().waiting == waiters)
        times: list[float] = []
        for _ in range(tasks):
            began = time.perf_counter()
            tube.put(place.payload)
            acked.acquire()
            times.append(time.perf_counter() - began)
            time.sleep(_PAUSE)
        for _ in threads:
            tube.put(place.payload[:1])
        for thread in threads:
            thread.join()
        tube.drop(force=True)
    return median(times)


def measure_tasks(place: Place, waiters: int, tasks: int) -> float:
    """Return the same for consumers in an event loop."""

    async def main() -> float:
        async with place.connect_aio() as queue:
            tube: Any = await queue.create_tube("waiting")
            acked = asyncio.Semaphore(0)

            async def work() -> None:
                while True:
                    await (await tube.take()).ack()
                    acked.release()

            workers = [asyncio.create_task(work()) for _ in range(waiters)]
            while (await tube.statistics()).waiting < waiters:  # noqa: ASYNC110  (no event signals that they wait)
                await asyncio.sleep(0.01)
            times: list[float] = []
            for _ in range(tasks):
                began = time.perf_counter()
                await tube.put(place.payload)
                await acked.acquire()
                times.append(time.perf_counter() - began)
                await asyncio.sleep(_PAUSE)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await tube.drop(force=True)
        return median(times)

    return asyncio.run(main())


_KINDS: Final[dict[str, Callable[[Place, int, int], float]]] = {"threads": measure_threads, "asyncio": measure_tasks}


def measure_waiting_takes(figures: Figures, place: Place, sizes: list[int], rounds: int, tasks: int) -> None:
    """Measure the caller's time for handing tasks, one at a time, to waiting consumers."""
    for kind, measure_kind in _KINDS.items():
        subject = Subject(place.name, f"fifo, {kind} that wait", "waiting takes")

        def one(size: int, measure_kind: Any = measure_kind, subject: Subject = subject) -> None:
            figures.record(subject, size, _METHOD, measure_kind(place, size, tasks))

        measure_interleaved(rounds, sizes, one)
