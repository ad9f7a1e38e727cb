"""The ledger of a run with faults: one file to which all processes append, so that no system is asked what it did."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager

#: Seconds of work of a task, and tasks that are put per second.
WORK = 0.02
PACE = 30
_file = -1


def note(word: str, task: int) -> None:
    """Append a line: the event, the task, the process, and the nanoseconds of the clock that all processes share."""
    global _file
    if _file < 0:
        _file = os.open(os.environ["PEERS_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_file, f"{word} {task} {os.getpid()} {time.monotonic_ns()}\n".encode())


@contextmanager
def run(task: int) -> Generator[None]:
    """Record the start and the end of a run of a task."""
    note("start", task)
    yield
    note("end", task)


def next_task() -> int:
    """Return the number of the first task without a put."""
    try:
        with open(os.environ["PEERS_NOTES"]) as file:
            tasks = [int(line.split()[1]) for line in file if line.startswith(("try", "put"))]
    except FileNotFoundError:
        return 0
    return max(tasks, default=-1) + 1
