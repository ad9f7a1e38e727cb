"""Handlers of worker processes: they print when they start, and last for the time in the task's data."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tubes import Task


def say(*words: object) -> None:
    """Write a line in one call, so that the reader gets the whole line or nothing."""
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
    """Sleep and block the event loop."""
    say("begun")
    time.sleep(task.data)  # noqa: ASYNC251


async def executing(task: Any) -> None:
    """Sleep in a thread for which an event loop waits."""
    say("begun")
    await asyncio.to_thread(time.sleep, task.data)
