"""The yardstick of the rates of Spark: two Python processes that put rows by `put_many`.

Spawned processes import this module; they could not import a `__main__`.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import tubes

#: Tasks per call.
CALL = 2_000
#: Seconds for which the processes wait for each other, so that one that fails at its start does not block the others.
PATIENCE = 60


def row(number: int) -> str:
    """Return the URL of a page: about 35 letters."""
    return f"http://example.com/pages/{number:010d}"


def put_rows(url: str, tube: str, first: int, end: int, ready: Any) -> None:
    """Put the rows of one of the two processes, when both are ready."""
    with tubes.connect(url) as queue:
        there = queue.tube(tube)
        ready.wait()
        for start in range(first, end, CALL):
            there.put_many([row(number) for number in range(start, min(start + CALL, end))])


def measure_processes(url: str, tube: str, rows: int) -> float:
    """Put rows from two processes; return the seconds, without the start of the processes."""
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
