"""Handlers that run in separate processes and act on their data."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from typing import Any

from tubes.worker import Bury, ProcessTask, Retry, current_task


class Odd(Exception):
    """An error that cannot be pickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("odd")


def crunch(task: ProcessTask) -> Any:
    """Handle a task."""
    return act(*task.data) if isinstance(task.data, list) else act(task.data)


def act(what: str, *more: Any) -> Any:
    """Handle arguments."""
    if what in ("fork", "fork and die"):
        if not (child := os.fork()):  # The child inherits the pipe of its parent and keeps it open.
            time.sleep(60)
            os._exit(0)
        if what == "fork":
            return [os.getpid(), child]
        os.kill(os.getpid(), signal.SIGKILL)
    acts: dict[str, Any] = {
        "pid": os.getpid,
        "echo": lambda: list(more),
        "size": lambda: [os.getpid(), *(len(one) for one in more)],
        "facts": lambda: [current_task().tube, current_task().id, current_task().attempts],
        "signals": lambda: [signal.getsignal(one) is signal.SIG_IGN for one in (signal.SIGTERM, signal.SIGINT)],
        "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "leave": lambda: os._exit(3),
        "exit": lambda: sys.exit("out"),
        "sleep": lambda: time.sleep(*more),
        "lambda": lambda: lambda: None,
        "child": lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
    }
    if what == "fail":
        raise ValueError("no such address")
    if what == "odd":
        raise Odd(1, 2)
    if what == "retry":
        raise Retry(delay=30)
    if what == "bury":
        raise Bury("no such address")
    return acts[what]()


def tick() -> int:
    """Handle a call without arguments."""
    return os.getpid()


async def awaited(task: Any) -> None:
    """An async handler, which cannot run in a separate process."""
