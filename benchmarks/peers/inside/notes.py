"""A shared file in which the processes of a worker count tasks and record times and latencies."""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.inside import ledger, settings

#: The number of latencies that fit; later ones are dropped.
ROOM = 4096
#: Positions of the numbers, 8 bytes each; the latencies follow them.
_COUNT, _FIRST, _LAST, _LATENCIES, _HEAD = range(5)
#: A payload begins with the time of its put in this many digits; zeros mean that its latency is not measured.
DIGITS = 20


def payload(sent: int = 0) -> str:
    """Return a payload of 100 characters."""
    return f"{sent:0{DIGITS}d}{'x' * (100 - DIGITS)}"


class Notes:
    """The memory-mapped file."""

    def __init__(self, path: Path) -> None:
        size = 8 * (_HEAD + ROOM)
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), size)).cast("q")
        self._lock = threading.Lock()

    def add(self, payload: str) -> None:
        """Record a handled task."""
        now = time.monotonic_ns()
        numbers = self._numbers
        sent = int(payload[:DIGITS])
        with self._lock:
            if not numbers[_COUNT]:
                numbers[_FIRST] = now
            numbers[_LAST] = now
            if sent and numbers[_LATENCIES] < ROOM:
                numbers[_HEAD + numbers[_LATENCIES]] = now - sent
                numbers[_LATENCIES] += 1
            numbers[_COUNT] += 1

    @property
    def count(self) -> int:
        """Return the number of handled tasks."""
        return self._numbers[_COUNT]

    @property
    def seconds(self) -> float:
        """Return the seconds from the first to the last task."""
        return (self._numbers[_LAST] - self._numbers[_FIRST]) / 1e9

    @property
    def latencies(self) -> list[float]:
        """Return the seconds from before the put to the handler, for tasks with the time of their put."""
        return [number / 1e9 for number in self._numbers[_HEAD : _HEAD + self._numbers[_LATENCIES]]]


_notes: Notes | None = None


def handle(payload: str) -> None:
    """Handle a task of any peer: do almost nothing, or a short work that the ledger records."""
    global _notes
    if settings.LEASE:
        with ledger.run(int(payload[:DIGITS])):
            time.sleep(ledger.WORK)
        return
    if _notes is None:
        _notes = Notes(Path(os.environ["PEERS_NOTES"]))
    _notes.add(payload)


def work_until_stopped(take: Callable[[], Any], payload: Callable[[Any], str], finish: Callable[[Any], Any]) -> None:
    """Take, handle and finish tasks; SIGTERM ends the process between two of them."""
    waits, stopped = True, list[int]()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit() if waits else stopped.append(number))
    while not stopped:
        task = take()
        waits = False
        handle(payload(task))
        finish(task)
        waits = True


async def handle_async(payload: str) -> None:
    """Handle a task of a peer with async handlers."""
    if settings.LEASE:
        with ledger.run(int(payload[:DIGITS])):
            await asyncio.sleep(ledger.WORK)
    else:
        handle(payload)
