"""Queues inside one process: put, get and settle in one loop. Each queue is empty before and after."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from importlib import import_module
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.peers.inside import settings
from benchmarks.peers.inside.notes import payload

DATA = payload()
UTUBES = [f"host-{number}" for number in range(100)]


def with_task_done(made: Any) -> Callable[[int], None]:
    """Return the cycle of a queue with the methods of `queue.Queue`."""

    def run_cycles(count: int) -> None:
        put, get, task_done = made.put, made.get, made.task_done
        for _ in range(count):
            put(DATA)
            get()
            task_done()

    return run_cycles


def simple_queue(count: int) -> None:
    """Use `queue.SimpleQueue`, which has no task_done."""
    made: queue.SimpleQueue[str] = queue.SimpleQueue()
    put, get = made.put, made.get
    for _ in range(count):
        put(DATA)
        get()


def priority_queue(count: int) -> None:
    """Use `queue.PriorityQueue`; a number orders entries of equal priority."""
    made: queue.PriorityQueue[tuple[int, int, str]] = queue.PriorityQueue()
    put, get, task_done = made.put, made.get, made.task_done
    for number in range(count):
        put((0, number, DATA))
        get()
        task_done()


async def run_async_cycles(made: Any, count: int) -> None:
    """Use a queue with the methods of `asyncio.Queue`."""
    put, get, task_done = made.put, made.get, made.task_done
    for _ in range(count):
        await put(DATA)
        await get()
        task_done()


def asyncio_queue(count: int) -> None:
    """Use `asyncio.Queue` with awaited put and get."""

    async def run() -> None:
        await run_async_cycles(asyncio.Queue(), count)

    asyncio.run(run())


def async_side(package: str) -> Callable[[int], None]:
    """Return the cycle of the async side of a queue with two sides."""

    def run_cycles(count: int) -> None:
        async def run() -> None:
            module: Any = import_module(package)
            await run_async_cycles(module.Queue().async_q, count)

        asyncio.run(run())

    return run_cycles


def sync_side(package: str) -> Callable[[int], None]:
    """Return the cycle of the sync side of a queue with two sides, used by one thread."""

    def run_cycles(count: int) -> None:
        module: Any = import_module(package)
        with_task_done(module.Queue().sync_q)(count)

    return run_cycles


def persist_queue(count: int) -> None:
    """Use the persist-queue with acks, in memory; acked tasks are cleared, as its documentation advises."""
    module: Any = import_module("persistqueue")
    made = module.SQLiteAckQueue(":memory:")
    for _ in range(count):
        made.put(DATA)
        made.ack(made.get())
    made.clear_acked_data(keep_latest=0)


def litequeue(count: int) -> None:
    """Use litequeue in memory; done tasks are pruned."""
    module: Any = import_module("litequeue")
    made = module.LiteQueue(memory=True)
    for _ in range(count):
        made.put(DATA)
        made.done(made.pop().message_id)
    made.prune()


def persist_queue_on_disk(count: int) -> None:
    """Use the persist-queue with acks."""
    module: Any = import_module("persistqueue")
    with TemporaryDirectory() as folder:
        made = module.SQLiteAckQueue(folder, auto_commit=True)
        for _ in range(count):
            made.put(DATA)
            made.ack(made.get())
        made.close()


def litequeue_on_disk(count: int) -> None:
    """Use litequeue with its own pragmas: a write-ahead log without syncs."""
    module: Any = import_module("litequeue")
    with TemporaryDirectory() as folder:
        made = module.LiteQueue(str(Path(folder, "queue.db")))
        for _ in range(count):
            made.put(DATA)
            made.done(made.pop().message_id)
        made.close()


def huey_on_disk(count: int) -> None:
    """Use huey's storage alone: taking a task removes it."""
    module: Any = import_module("huey.storage")
    with TemporaryDirectory() as folder:
        made = module.SqliteStorage(filename=str(Path(folder, "queue.db")))
        for _ in range(count):
            made.enqueue(DATA.encode())
            made.dequeue()
        made.close()


def folder(options: str) -> Callable[[int], None]:
    """Return the cycle of tubes in a folder: put, take, ack."""

    def run_cycles(count: int) -> None:
        tubes: Any = import_module("tubes")
        with TemporaryDirectory() as place, tubes.connect(f"file:{place}{options}") as session:
            made = session.create_tube("jobs")
            for _ in range(count):
                made.put(DATA)
                made.ack(made.take(timeout=0))

    return run_cycles


def tube(driver: str) -> Callable[[int], None]:
    """Return the cycle of tubes in memory: put, take, ack; with utubes, over 100 of them."""

    def run_cycles(count: int) -> None:
        tubes: Any = import_module("tubes")
        with tubes.connect() as session:
            made = session.create_tube("jobs", driver)
            put, take, ack = made.put, made.take, made.ack
            if not driver.startswith("utube"):
                for _ in range(count):
                    put(DATA)
                    ack(take(timeout=0))
                return
            hosts = cycle(UTUBES)
            for _ in range(count):
                put(DATA, utube=next(hosts))
                ack(take(timeout=0))

    return run_cycles


def awaited_tube(count: int) -> None:
    """Use tubes in memory with asyncio."""

    async def run() -> None:
        aio: Any = import_module("tubes.aio")
        async with aio.connect() as session:
            made = await session.create_tube("jobs")
            put, take, ack = made.put, made.take, made.ack
            for _ in range(count):
                await put(DATA)
                await ack(await take(timeout=0))

    asyncio.run(run())


def yardstick(count: int) -> None:
    """Use `queue.Queue`."""
    with_task_done(queue.Queue())(count)


WAYS: dict[str, Callable[[int], None]] = {
    "queue.Queue": yardstick,
    "queue.SimpleQueue": simple_queue,
    "queue.PriorityQueue": priority_queue,
    "asyncio.Queue": asyncio_queue,
    "janus, sync": sync_side("janus"),
    "janus, async": async_side("janus"),
    "culsans, sync": sync_side("culsans"),
    "culsans, async": async_side("culsans"),
    "persist-queue": persist_queue,
    "litequeue": litequeue,
    "persist-queue on disk": persist_queue_on_disk,
    "litequeue on disk": litequeue_on_disk,
    "huey on disk": huey_on_disk,
    "a folder": folder(""),
    "a folder, sync=full": folder("?sync=full"),
    "fifo": tube("fifo"),
    "fifottl": tube("fifottl"),
    "utube": tube("utube"),
    "utubettl": tube("utubettl"),
    "fifo, awaited": awaited_tube,
}


def run_cycles(count: int) -> None:
    """Run the cycles of the selected queue."""
    WAYS[settings.WAY](count)
