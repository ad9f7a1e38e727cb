"""Run one process of a benchmark: `python -m benchmarks.peers.inside MODULE work`, `… produce`, or both: `… TASKS`.

A producer reads commands from stdin, one per line: a word and a number. It replies to each with a line of JSON.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from benchmarks.peers.inside import ledger
from benchmarks.peers.inside.notes import Notes, payload

#: The size of a batch, and the number of concurrent puts.
BATCH = 100
AT_A_TIME = 50
#: Seconds between two tasks whose wake-up is measured, so that the worker is asleep again.
PAUSE = 0.003
#: Seconds to wait for one task before the worker counts as lost.
PATIENCE = 15.0


class Producer:
    """Put tasks, with or without an event loop, and return the time."""

    def __init__(self, module: Any, run: Callable[[Any], Any]) -> None:
        self._module = module
        self._run = run
        self._is_async = inspect.iscoroutinefunction(getattr(module, "put", None))

    def _seconds(self, act: Callable[[], Any]) -> dict[str, float]:
        """Time a call, which may return an awaitable."""

        async def run_async() -> float:
            start = time.perf_counter()
            await act()
            return time.perf_counter() - start

        if self._is_async:
            return {"seconds": self._run(run_async())}
        start = time.perf_counter()
        act()
        return {"seconds": time.perf_counter() - start}

    def one(self, count: int) -> dict[str, float]:
        """Put tasks one at a time."""
        put, text = self._module.put, payload()

        async def run_async() -> None:
            for _ in range(count):
                await put(text)

        def plain() -> None:
            for _ in range(count):
                put(text)

        return self._seconds(run_async if self._is_async else plain)

    def several(self, count: int) -> dict[str, float]:
        """Put 50 tasks at a time, from 50 asyncio tasks."""
        put, text = self._module.put, payload()

        async def put_some() -> None:
            for _ in range(count // AT_A_TIME):
                await put(text)

        async def run_async() -> None:
            await asyncio.gather(*(put_some() for _ in range(AT_A_TIME)))

        return self._seconds(run_async)

    def batches(self, count: int) -> dict[str, float]:
        """Put batches of 100."""
        put_many, texts = self._module.put_many, [payload()] * BATCH

        async def run_async() -> None:
            for _ in range(count // BATCH):
                await put_many(texts)

        def plain() -> None:
            for _ in range(count // BATCH):
                put_many(texts)

        return self._seconds(run_async if self._is_async else plain)

    def paced(self, count: int) -> dict[str, float]:
        """Put tasks up to this number at an even pace; the ledger records each try, and each put that returned."""
        put, first = self._module.put, ledger.next_task()
        start = time.monotonic() - first / ledger.PACE
        refused = 0
        for task in range(first, count):
            time.sleep(max(0.0, start + task / ledger.PACE - time.monotonic()))
            ledger.note("try", task)
            try:
                if self._is_async:
                    self._run(put(payload(task)))
                else:
                    put(payload(task))
            except Exception:  # any error of a peer: it is unknown whether the put took effect
                traceback.print_exc()
                refused += 1
            else:
                ledger.note("put", task)
        return {"refused": refused}

    def wake(self, milliseconds: int) -> dict[str, float]:
        """Put tasks with the time of their put, each after the previous one was handled, for this time."""
        notes = Notes(Path(os.environ["PEERS_NOTES"]))
        end = time.monotonic() + milliseconds / 1000
        while time.monotonic() < end:
            handled = notes.count
            text = payload(time.monotonic_ns())
            if self._is_async:
                self._run(self._module.put(text))
            else:
                self._module.put(text)
            lost = time.monotonic() + PATIENCE
            while notes.count == handled:
                if time.monotonic() > lost:
                    raise TimeoutError(f"the worker did not handle a task within {PATIENCE:g} seconds")
                time.sleep(0.001)
            time.sleep(PAUSE)
        return {}

    def scheduled(self, number: int) -> dict[str, float]:
        """Put tasks, each with the time at which it is due. `number`: the rate times 10,000, and a count."""
        rate, count = divmod(number, 10_000)
        put, start = self._module.put, time.monotonic_ns()
        moments = [start + n * 1_000_000_000 // rate for n in range(count)]

        async def run_async() -> None:
            for moment in moments:
                await asyncio.sleep(max(0, moment - time.monotonic_ns()) / 1e9)
                await put(payload(moment))

        def plain() -> None:
            for moment in moments:
                time.sleep(max(0, moment - time.monotonic_ns()) / 1e9)
                put(payload(moment))

        return self._seconds(run_async if self._is_async else plain)

    def cycle(self, count: int) -> dict[str, float]:
        """Put, get and settle inside this process."""
        self._is_async = inspect.iscoroutinefunction(self._module.run_cycles)
        return self._seconds(lambda: self._module.run_cycles(count))

    def can(self, _: int) -> dict[str, bool]:
        """Return the supported commands."""
        return {"several": self._is_async, "batches": hasattr(self._module, "put_many")}


def versions(packages: str) -> dict[str, str]:
    """Return the versions of packages by name."""
    return {name: importlib.metadata.version(name) for name in packages.split(",")}


def main() -> None:
    """Run a worker, or execute the commands from stdin."""
    module = import_module(f"benchmarks.peers.inside.{sys.argv[1]}")
    if sys.argv[2].isdecimal():  # A queue of one process: this worker puts its tasks, too.
        Thread(target=Producer(module, asyncio.run).paced, args=(int(sys.argv[2]),), daemon=True).start()
    if sys.argv[2] != "produce":
        module.work()
        return
    with asyncio.Runner() as runner:
        producer = Producer(module, runner.run)
        if hasattr(module, "start"):
            started = module.start()
            if inspect.isawaitable(started):
                runner.run(_wait(started))
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            result = versions(rest) if word == "versions" else getattr(producer, word)(int(rest))
            print(json.dumps(result), flush=True)


async def _wait(thing: Any) -> None:
    await thing


if __name__ == "__main__":
    main()
