"""Handlers of workers in processes of their own, which say when they begin and last as long as the task's data says."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tubes import Task


def say(*words: object) -> None:
    """Write a line at once, so that whoever reads it has all of it or nothing."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def thread(task: Task) -> None:
    """Sleep in a thread."""
    say("begun")
    time.sleep(task.data)


async def loop(task: Any) -> None:
    """Sleep in an event loop."""
    say("begun")
    await asyncio.sleep(task.data)


async def blocking(task: Any) -> None:
    """Sleep, and let nothing else of the event loop go on."""
    say("begun")
    time.sleep(task.data)  # noqa: ASYNC251


async def executing(task: Any) -> None:
    """Sleep in a thread for which an event loop waits."""
    say("begun")
    await asyncio.to_thread(time.sleep, task.data)
