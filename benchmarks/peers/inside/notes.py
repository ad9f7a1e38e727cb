"""What a worker has done, in a file that its processes share: how many tasks, from when to when, how late."""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path

#: So many latencies have room; later ones are not kept.
ROOM = 4096
#: Where the numbers stand, 8 bytes each: then the latencies follow.
_COUNT, _FIRST, _LAST, _LATENCIES, _HEAD = range(5)
#: A payload begins with when it was put, in this many digits; nothing but zeros: its latency is not asked for.
DIGITS = 20


def payload(sent: int = 0) -> str:
    """100 characters."""
    return f"{sent:0{DIGITS}d}{'x' * (100 - DIGITS)}"


class Notes:
    """The file, mapped."""

    def __init__(self, path: Path) -> None:
        size = 8 * (_HEAD + ROOM)
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), size)).cast("q")
        self._lock = threading.Lock()

    def add(self, payload: str) -> None:
        """A task is handled."""
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
        """How many tasks were handled."""
        return self._numbers[_COUNT]

    @property
    def seconds(self) -> float:
        """From the first to the last."""
        return (self._numbers[_LAST] - self._numbers[_FIRST]) / 1e9

    @property
    def latencies(self) -> list[float]:
        """Seconds from before the put to the handler, of tasks that said when they were put."""
        return [number / 1e9 for number in self._numbers[_HEAD : _HEAD + self._numbers[_LATENCIES]]]


_notes: Notes | None = None


def handle(payload: str) -> None:
    """What each peer's handler does with a task: next to nothing."""
    global _notes
    if _notes is None:
        _notes = Notes(Path(os.environ["PEERS_NOTES"]))
    _notes.add(payload)


async def handle_async(payload: str) -> None:
    """The same for peers whose handlers are async."""
    handle(payload)
