"""Measure a store in a folder and other queues that need no server.

    python -m benchmarks.folder [--tasks 2000] [--rounds 10] [--stored 1000000]

Litequeue, persist-queue and huey are measured if they are installed: `pip install litequeue persist-queue huey`.
All stores are on disk, and their tasks are texts of 100 characters. A cycle is a put, a take and an ack of each task
in turn. Each round measures every store once. The table shows the processor time of the best round, in microseconds
per task, and its ratio to that of litequeue. With `--stored N` it also shows the cost of a put into a store of N
tasks, the size of the file relative to the data, and the time to open it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

import tubes

DATA = "x" * 100
#: Like the driver fifo, but usable without an installed package.
PLAIN = tubes.Driver("plain")
Methods = dict[str, Callable[[int], object]]


def of_tubes(url: str) -> Methods:
    """Return the calls of tubes, with the default codec of a folder."""
    tube = tubes.connect(url, codec="json").create_tube("t", PLAIN)

    def put(count: int) -> None:
        for _ in range(count):
            tube.put(DATA)

    def take_and_ack(count: int) -> None:
        for _ in range(count):
            task = tube.take(0)
            if task is not None:
                task.ack()

    return {"put": put, "take + ack": take_and_ack, "put_many": lambda count: tube.put_many([DATA] * count)}


def of_litequeue(folder: Path) -> Methods:
    """Return the calls of litequeue: put, pop and done."""
    queue: Any = import_module("litequeue").LiteQueue(str(folder / "lite.db"))

    def put(count: int) -> None:
        for _ in range(count):
            queue.put(DATA)

    def take_and_ack(count: int) -> None:
        for _ in range(count):
            queue.done(queue.pop().message_id)

    return {"put": put, "take + ack": take_and_ack}


def of_persist_queue(folder: Path) -> Methods:
    """Return the calls of persist-queue's queue with acks."""
    queue: Any = import_module("persistqueue").SQLiteAckQueue(str(folder / "persist"), auto_commit=True)

    def put(count: int) -> None:
        for _ in range(count):
            queue.put(DATA)

    def take_and_ack(count: int) -> None:
        for _ in range(count):
            queue.ack(queue.get(block=False))

    return {"put": put, "take + ack": take_and_ack}


def of_huey(folder: Path) -> Methods:
    """Return the calls of huey's storage alone: a get removes the task, without an ack."""
    storage: Any = import_module("huey.storage").SqliteStorage(filename=str(folder / "huey.db"))

    def put(count: int) -> None:
        for _ in range(count):
            storage.enqueue(DATA.encode())

    def take_and_ack(count: int) -> None:
        for _ in range(count):
            storage.dequeue()

    return {"put": put, "take + ack": take_and_ack}


def measure_round(methods: Methods, tasks: int, best: dict[str, float]) -> None:
    """Measure one round and keep the best times."""
    for method, run in methods.items():
        before = time.process_time()
        run(tasks)
        spent = (time.process_time() - before) / tasks * 1e6
        best[method] = min(best.get(method, spent), spent)


def measure_large_store(folder: Path, stored: int) -> str:
    """Measure a store with many tasks and describe the result."""
    url = f"file:{folder / 'large'}"
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", PLAIN)
        for _ in range(stored // 10_000):
            tube.put_many([DATA] * 10_000)
        times: list[float] = []
        for _ in range(20_000):
            before = time.perf_counter()
            tube.put(DATA)
            times.append(time.perf_counter() - before)
        times.sort()
    size = os.path.getsize(folder / "large" / "tubes.db") / ((stored + len(times)) * len(DATA))
    before, spent = time.perf_counter(), time.process_time()
    queue = tubes.connect(url)
    opened, spent = time.perf_counter() - before, time.process_time() - spent
    queue.close()  # Close waits until all writes are on disk.
    puts = ", ".join(f"p{share * 100:g} {times[int(len(times) * share)] * 1000:.3f} ms" for share in (0.5, 0.99, 0.999))
    opening = f"opened in {opened:.1f} s ({spent:.1f} s CPU)"
    return f"{stored:,} stored tasks: puts {puts}; the file has {size:.1f} times the size of the data; {opening}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tasks", type=int, default=2000)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--stored", type=int, default=0)
    args = options.parse_args()
    with TemporaryDirectory() as place:
        folder = Path(place)
        stores: dict[str, Methods] = {
            "tubes memory:// (JSON)": of_tubes("memory://"),
            "tubes file:": of_tubes(f"file:{folder / 'normal'}"),
            "tubes file:?sync=full": of_tubes(f"file:{folder / 'full'}?sync=full"),
        }
        peers = {"litequeue": of_litequeue, "persistqueue": of_persist_queue, "huey": of_huey}
        stores |= {name: make(folder) for name, make in peers.items() if find_spec(name)}
        best: dict[str, dict[str, float]] = {name: {} for name in stores}
        for _ in range(args.rounds):
            for name, methods in stores.items():
                measure_round(methods, args.tasks, best[name])
        table = Table("store", "put", "take + ack", "cycle", "relative to litequeue", "put_many")
        cycles = {name: found["put"] + found["take + ack"] for name, found in best.items()}
        for name, found in best.items():
            relative = f"{cycles[name] / cycles['litequeue']:.2f}" if "litequeue" in cycles else ""
            many = f"{found['put_many']:.1f}" if "put_many" in found else ""
            table.add_row(
                name, f"{found['put']:.1f}", f"{found['take + ack']:.1f}", f"{cycles[name]:.1f}", relative, many
            )
        Console().print(table)
        if args.stored:
            Console().print(measure_large_store(folder, args.stored))


if __name__ == "__main__":
    main()
