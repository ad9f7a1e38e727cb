"""How long a sleeper sleeps on: from before the put to after the take that waited for it."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from statistics import quantiles
from time import perf_counter_ns
from typing import Any

import pytest

import tubes
import tubes.aio
from benchmarks.conftest import Stopwatch, scale_of
from benchmarks.table import Comparison, Results

_TRIPS = 300

#: Makes so many trips there and back and notes the nanoseconds of each way.
Trips = Callable[[int, list[int]], None]


@contextmanager
def through_queues() -> Generator[Trips]:
    there: queue.Queue[int] = queue.Queue()
    back: queue.Queue[int] = queue.Queue()
    arrived: list[int] = []

    def answer() -> None:
        while sent := there.get():
            arrived.append(perf_counter_ns() - sent)
            back.put(perf_counter_ns())
            there.task_done()

    def trips(count: int, ways: list[int]) -> None:
        for _ in range(count):
            there.put(perf_counter_ns())
            sent = back.get()
            ways.append(perf_counter_ns() - sent)
            back.task_done()
        ways += arrived
        arrived.clear()

    other = threading.Thread(target=answer)
    other.start()
    yield trips
    there.put(0)
    other.join()


@contextmanager
def through_tubes() -> Generator[Trips]:
    with tubes.connect() as session:
        there: Any = session.create_tube("there")
        back: Any = session.create_tube("back")
        arrived: list[int] = []

        def answer() -> None:
            while sent := (task := there.take()).data:
                arrived.append(perf_counter_ns() - sent)
                back.put(perf_counter_ns())
                there.ack(task)

        def trips(count: int, ways: list[int]) -> None:
            for _ in range(count):
                there.put(perf_counter_ns())
                task = back.take()
                ways.append(perf_counter_ns() - task.data)
                back.ack(task)
            ways += arrived
            arrived.clear()

        other = threading.Thread(target=answer)
        other.start()
        yield trips
        there.put(0)
        other.join()


@contextmanager
def through_asyncio_queues() -> Generator[Trips]:
    async def travel(count: int, ways: list[int]) -> None:
        there: asyncio.Queue[int] = asyncio.Queue()
        back: asyncio.Queue[int] = asyncio.Queue()

        async def answer() -> None:
            while sent := await there.get():
                ways.append(perf_counter_ns() - sent)
                await back.put(perf_counter_ns())
                there.task_done()

        other = asyncio.create_task(answer())
        for _ in range(count):
            await there.put(perf_counter_ns())
            sent = await back.get()
            ways.append(perf_counter_ns() - sent)
            back.task_done()
        await there.put(0)
        await other

    with _loop() as loop:
        yield lambda count, ways: loop.run_until_complete(travel(count, ways))


@contextmanager
def through_awaited_tubes() -> Generator[Trips]:
    async def travel(count: int, ways: list[int]) -> None:
        async with tubes.aio.connect() as session:
            there: Any = await session.create_tube("there")
            back: Any = await session.create_tube("back")

            async def answer() -> None:
                while sent := (task := await there.take()).data:
                    ways.append(perf_counter_ns() - sent)
                    await back.put(perf_counter_ns())
                    await there.ack(task)

            other = asyncio.create_task(answer())
            for _ in range(count):
                await there.put(perf_counter_ns())
                task = await back.take()
                ways.append(perf_counter_ns() - task.data)
                await back.ack(task)
            await there.put(0)
            await other

    with _loop() as loop:
        yield lambda count, ways: loop.run_until_complete(travel(count, ways))


@contextmanager
def _loop() -> Generator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


_Travel = Callable[[], AbstractContextManager[Trips]]

_KINDS: dict[str, tuple[_Travel, _Travel, str]] = {
    "thread to thread": (through_tubes, through_queues, "queue.Queue"),
    "asyncio task to task": (through_awaited_tubes, through_asyncio_queues, "asyncio.Queue"),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Both sides stand next to each other: noise meets them alike."""
    cases = [
        pytest.param(kind, ours, id=f"{kind}-{'fifo' if ours else yardstick}-{turn}")
        for kind, (_, _, yardstick) in _KINDS.items()
        for turn in range(scale_of(metafunc.config).passes)
        for ours in (True, False)
    ]
    metafunc.parametrize(("kind", "ours"), cases)


def test_wake_up(stopwatch: Stopwatch, kind: str, ours: bool, results: Results) -> None:
    through_ours, through_yardstick, name = _KINDS[kind]
    ways: list[int] = []
    with (through_ours if ours else through_yardstick)() as trips:
        trips(_TRIPS, [])
        stopwatch.seconds(trips, _TRIPS, ways, times=2)
    percentiles = quantiles(ways, n=100)
    for percent in (50, 99):
        comparison = Comparison("wake-up", f"fifo, {kind}, p{percent}", name, goal=1.5)
        results.compare(comparison, "ours" if ours else "yardstick", percentiles[percent - 1] / 1e9)
