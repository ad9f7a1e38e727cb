"""The time to wake a waiting take: from before the put to after the take.

The sender yields after every put: a thread sleeps a moment, an asyncio task lets the loop run. Otherwise its next
step would count as well, since only one of the two can run at a time.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from statistics import quantiles
from time import perf_counter_ns
from typing import Any

import pytest

import tubes
import tubes.aio
from benchmarks.speed.conftest import Scale, scale_of
from benchmarks.speed.table import Comparison, Results

#: Seconds for the receiver to fall asleep again.
_PAUSE = 0.0002
# In an event loop, the receiver falls asleep in the turn after the one that woke it.
_TURNS = 2


def through_queue(count: int) -> list[int]:
    there: queue.Queue[int] = queue.Queue()
    times: list[int] = []

    def receive() -> None:
        while sent := there.get():
            times.append(perf_counter_ns() - sent)
            there.task_done()

    _send(there.put, receive, count)
    return times


def through_tube(count: int) -> list[int]:
    times: list[int] = []
    with tubes.connect() as session:
        there: Any = session.create_tube("there")

        def receive() -> None:
            while sent := (task := there.take()).data:
                times.append(perf_counter_ns() - sent)
                there.ack(task)

        _send(there.put, receive, count)
    return times


def _send(put: Callable[[int], object], receive: Callable[[], None], count: int) -> None:
    receiver = threading.Thread(target=receive)
    receiver.start()
    for _ in range(count):
        time.sleep(_PAUSE)
        put(perf_counter_ns())
    put(0)
    receiver.join()


def through_asyncio_queue(count: int) -> list[int]:
    times: list[int] = []

    async def run() -> None:
        there: asyncio.Queue[int] = asyncio.Queue()

        async def receive() -> None:
            while sent := await there.get():
                times.append(perf_counter_ns() - sent)
                there.task_done()

        await _send_in_loop(there.put, receive, count)

    asyncio.run(run())
    return times


def through_awaited_tube(count: int) -> list[int]:
    times: list[int] = []

    async def run() -> None:
        async with tubes.aio.connect() as session:
            there: Any = await session.create_tube("there")

            async def receive() -> None:
                while sent := (task := await there.take()).data:
                    times.append(perf_counter_ns() - sent)
                    await there.ack(task)

            await _send_in_loop(there.put, receive, count)

    asyncio.run(run())
    return times


async def _send_in_loop(put: Callable[[int], Any], receive: Callable[[], Any], count: int) -> None:
    receiver = asyncio.create_task(receive())
    await asyncio.sleep(0)
    for _ in range(count):
        await put(perf_counter_ns())
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    await put(0)
    await receiver


#: By sender and receiver: functions of both sides that return the nanoseconds of wake-ups, the yardstick and the goal.
_KINDS: dict[str, tuple[Callable[[int], list[int]], Callable[[int], list[int]], str, float]] = {
    "thread to thread": (through_tube, through_queue, "queue.Queue", 1.5),
    "asyncio task to task": (through_awaited_tube, through_asyncio_queue, "asyncio.Queue", 1.65),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run both sides one after the other, so that noise affects both equally."""
    cases = [
        pytest.param(kind, ours, id=f"{kind}-{'fifo' if ours else yardstick}-{turn}")
        for kind, (_, _, yardstick, _) in _KINDS.items()
        for turn in range(2 * scale_of(metafunc.config).passes)
        for ours in (True, False)
    ]
    metafunc.parametrize(("kind", "ours"), cases)


def test_wake_up(kind: str, ours: bool, scale: Scale, results: Results) -> None:
    through_ours, through_yardstick, name, goal = _KINDS[kind]
    times = (through_ours if ours else through_yardstick)(scale.operations)
    percentiles = quantiles(times, n=100)
    for percent in (50, 99):
        comparison = Comparison("wake-up", f"fifo, {kind}, p{percent}", name, goal=goal)
        results.compare(comparison, "ours" if ours else "yardstick", percentiles[percent - 1] / 1e9)
