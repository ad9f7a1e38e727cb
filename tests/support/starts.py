"""The starts of tasks in tubes with a rate, by the clock of the backend."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable

import tubes

TTR = 60


def take_all(url: str, name: str, threads: int) -> list[float]:
    """Take all tasks of a tube in threads with their own sessions; return the times of the takes."""
    starts: list[float] = []

    def work() -> None:
        with tubes.connect(url) as queue:
            for task in iter(lambda: queue.tube(name).take(2), None):
                assert task.due is not None
                starts.append(task.due - TTR)
                task.ack()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return starts


def check_rate(starts: Iterable[float], rate: float, burst: int) -> None:
    """Assert that in no window of T seconds more than burst + rate * T tasks have started."""
    moments = sorted(starts)
    for first, begin in enumerate(moments):
        for count, end in enumerate(moments[first:], 1):
            assert count <= burst + rate * (end - begin) + 1e-3, (begin, end, count)


if __name__ == "__main__":
    print(json.dumps(take_all(sys.argv[1], "t", 2)))
