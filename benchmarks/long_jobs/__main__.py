"""Measure long jobs: how soon a handler ends after a cancel, and the cost of a checkpoint.

    python -m benchmarks.long_jobs [--cancels 100] [--checkpoints 5000]

The first table shows the time from the call of `cancel` to the end of the handler, in milliseconds: an async handler
that sleeps, a handler in a process that sleeps, and a plain handler with a checkpoint every 5 ms. A process ends when
the kernel closes its pipe. The second table shows the time of a checkpoint with a saved number, and of `touch`, in
microseconds per call.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console
from rich.table import Table

import tubes
from benchmarks.long_jobs.handlers import sleep_in_process
from benchmarks.shared.report import machine
from tubes import TaskCancelled
from tubes.testing import LocalServer
from tubes.worker import Worker

#: Seconds between two checkpoints of a plain handler.
STEP: Final = 0.005
KINDS: Final = ("async", "process", "plain")


class Cancels:
    """Cancels tasks of a worker, one at a time, and measures the time until their handlers have ended."""

    def __init__(self, url: str, kind: str, pipe: Path) -> None:
        self._queue = tubes.connect(url)
        self._tube = self._queue.create_tube(kind)
        self._kind, self._pipe = kind, pipe
        self._begun, self._ended = threading.Event(), threading.Event()
        self._end = 0.0
        self._worker = Worker(self._queue)
        handler: Any = {"async": self._sleep, "plain": self._step, "process": sleep_in_process}[kind]
        self._worker.on(self._tube, handler, process=kind == "process")

    def measure(self, count: int) -> list[float]:
        """Return the seconds from each cancel to the end of its handler."""
        with self._queue:
            thread = threading.Thread(target=self._worker.run)
            thread.start()
            times = [self._measure_one() for _ in range(count + 1)][1:]
            self._worker.stop()
            thread.join()
        return times

    def _measure_one(self) -> float:
        self._begun.clear()
        self._ended.clear()
        task = self._tube.put(str(self._pipe))
        if self._kind == "process":
            with self._pipe.open("rb", buffering=0) as pipe:
                pipe.read(1)
                time.sleep(0.005)
                began = time.perf_counter()
                task.cancel()
                pipe.read()
                return time.perf_counter() - began
        self._begun.wait()
        time.sleep(0.005)
        began = time.perf_counter()
        task.cancel()
        self._ended.wait()
        return self._end - began

    def _note_end(self) -> None:
        self._end = time.perf_counter()
        self._ended.set()

    async def _sleep(self, _: tubes.AsyncTask) -> None:
        self._begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self._note_end()

    def _step(self, task: tubes.Task) -> None:
        self._begun.set()
        try:
            while True:
                task.checkpoint()
                time.sleep(STEP)
        except TaskCancelled:
            self._note_end()
            raise


def measure_calls(url: str, count: int) -> tuple[float, float]:
    """Return the seconds per checkpoint and per touch of a taken task."""
    with tubes.connect(url) as queue:
        tube = queue.create_tube("calls", "fifottl", ttr=3600)
        tube.put("a long job")
        with tube.taking(timeout=0) as task:
            began = time.perf_counter()
            for number in range(count):
                task.checkpoint(number)
            middle = time.perf_counter()
            for _ in range(count):
                tube.touch(task)
            return (middle - began) / count, (time.perf_counter() - middle) / count


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cancels", type=int, default=100)
    options.add_argument("--checkpoints", type=int, default=5000)
    args = options.parse_args()
    ends, calls = Table(title=f"ms from a cancel to the end of the handler, {machine()}"), Table(title="µs per call")
    for column in ("", *(f"{kind}: {part}" for kind in KINDS for part in ("p50", "p99"))):
        ends.add_column(column)
    for column in ("", "checkpoint", "touch"):
        calls.add_column(column)
    with TemporaryDirectory() as folder, LocalServer() as server:
        pipe = Path(folder) / "pipe"
        os.mkfifo(pipe)
        for name, url in (("memory", "memory://"), ("folder", f"file:{folder}/store"), ("server", server.url)):
            cells: list[str] = []
            for kind in KINDS:
                cuts = statistics.quantiles(Cancels(url, kind, pipe).measure(args.cancels), n=100)
                cells += f"{cuts[49] * 1000:.1f}", f"{cuts[98] * 1000:.1f}"
            ends.add_row(name, *cells)
            calls.add_row(name, *(f"{seconds * 1e6:.1f}" for seconds in measure_calls(url, args.checkpoints)))
    Console().print(ends, calls)


if __name__ == "__main__":
    main()
