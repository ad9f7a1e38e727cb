"""Long jobs that run in separate processes."""

from __future__ import annotations

import time

from tubes.worker import ProcessTask, current_task


def sleep_long(task: ProcessTask) -> None:
    """Handle a task for an hour."""
    task.checkpoint(note="it sleeps")
    time.sleep(3600)


def count_on(limit: int, progress: float | None = None) -> int:
    """Count to a limit, with a checkpoint at each number."""
    task = current_task()
    for number in range(task.saved or 0, limit):
        task.checkpoint(number + 1, progress=progress)
        time.sleep(0.005)
    return limit
