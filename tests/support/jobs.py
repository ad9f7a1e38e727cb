"""Long jobs that run in separate processes."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection

from tubes import TaskNotTaken
from tubes.worker import ProcessTask, current_task


def sleep_long(task: ProcessTask) -> None:
    """Handle a task for an hour."""
    task.checkpoint(note="it sleeps")
    time.sleep(3600)


def never_serve(pipe: Connection) -> None:
    """Be a process that does not start to serve, until its parent ends."""
    pipe.poll(3600)


def count_on(limit: int, progress: float | None = None) -> int:
    """Count to a limit, with a checkpoint at each number."""
    task = current_task()
    for number in range(task.saved or 0, limit):
        task.checkpoint(number + 1, progress=progress)
        time.sleep(0.005)
    return limit


def leave_a_thread(task: ProcessTask) -> None:
    """Handle a task, and leave a thread running that saves checkpoints."""
    threading.Thread(target=_save_later, args=(task,), daemon=True).start()
    time.sleep(0.01)


def _save_later(task: ProcessTask) -> None:
    time.sleep(0.012)
    for _ in range(20):
        with suppress(TaskNotTaken):
            task.checkpoint(f"of task {task.id}")
        time.sleep(0.001)
