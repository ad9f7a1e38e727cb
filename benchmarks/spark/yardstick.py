"""What the rates of Spark are compared with: two Python processes that put rows by `put_many`.

Processes that are started anew import this module; they could not import a `__main__`.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import tubes

#: Tasks of a call.
CALL = 2_000
#: Seconds for which the processes wait for each other: one that fails at its start must not stop the others for ever.
PATIENCE = 60


def row(number: int) -> str:
    """A page of the crawl: about 35 letters."""
    return f"http://example.com/pages/{number:010d}"


def put_rows(url: str, tube: str, first: int, end: int, ready: Any) -> None:
    """What one of the two processes does, when both are ready."""
    with tubes.connect(url) as queue:
        there = queue.tube(tube)
        ready.wait()
        for start in range(first, end, CALL):
            there.put_many([row(number) for number in range(start, min(start + CALL, end))])


def by_processes(url: str, tube: str, rows: int) -> float:
    """Put rows by two processes; the seconds that it took, without their start."""
    fork = multiprocessing.get_context("spawn")
    ready = fork.Barrier(3, timeout=PATIENCE)
    parts = [(url, tube, 0, rows // 2, ready), (url, tube, rows // 2, rows, ready)]
    processes = [fork.Process(target=put_rows, args=part) for part in parts]
    for process in processes:
        process.start()
    ready.wait()
    began = time.perf_counter()
    for process in processes:
        process.join()
    return time.perf_counter() - began
