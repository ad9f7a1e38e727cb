"""Threads and asyncio tasks that contend for one queue: crowds of producers and consumers, and a ring.

All threads start at once, and the clock stops when the last task is acked. In a ring, each thread takes tokens from
its own queue and puts them into the next one. There are fewer tokens than threads, so each token wakes a thread.
"""

from __future__ import annotations

import asyncio
import queue
import resource
import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import pytest

import tubes
import tubes.aio
from benchmarks.shared.tasks import PAYLOAD
from benchmarks.speed.conftest import QUICK, scale_of
from benchmarks.speed.table import Comparison, Results

SECTION = "contended"
UTUBES = tuple(f"host-{number}" for number in range(100))
FEW, MANY = 20_000, 200_000
RING, TOKENS = 8, 3
#: By numbers of producers and consumers: the limit per task, by number of tasks and driver, relative to `queue.Queue`.
CROWDS: dict[tuple[int, int], dict[tuple[int, str], float]] = {
    (1, 1): {},
    (4, 1): {},
    (1, 4): {},
    (4, 4): {(FEW, "fifo"): 1.8, (FEW, "utubettl"): 3.4, (MANY, "fifo"): 0.7, (MANY, "utubettl"): 1.1},
    (8, 8): {(FEW, "fifo"): 2.3, (FEW, "utubettl"): 3.6, (MANY, "fifo"): 0.7, (MANY, "utubettl"): 1.1},
}
RING_GOAL, ASYNCIO_GOAL, SWITCHES = 4, 3.6, 0.1
#: A call that puts the task of a number, or takes and acks one.
Act = Callable[[int], object]
#: Seconds and context switches per task; None: not measured.
Figures = tuple[float, float | None]


class Side(NamedTuple):
    """The calls of a queue for threads."""

    put: Act
    take: Act
    close: Callable[[], object]


def tube_side(driver: str, session: tubes.Queue | None = None, name: str = "contended") -> Side:
    session = session or tubes.connect()
    tube: Any = session.create_tube(name, driver)
    add, get, ack = tube.put, tube.take, tube.ack

    def put(number: int) -> None:
        add(PAYLOAD)

    def put_in_lane(number: int) -> None:
        add(PAYLOAD, utube=UTUBES[number % len(UTUBES)])

    def take(number: int) -> None:
        ack(get())

    return Side(put if driver == "fifo" else put_in_lane, take, session.close)


def queue_side() -> Side:
    there: queue.Queue[str] = queue.Queue()
    add, get, done = there.put, there.get, there.task_done

    def put(number: int) -> None:
        add(PAYLOAD)

    def take(number: int) -> None:
        get()
        done()

    return Side(put, take, lambda: None)


def switches() -> int:
    """Return the number of voluntary context switches of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def race(acts: list[tuple[Act, int]], count: int) -> Figures:
    """Run each call the given number of times in its own thread, all at once; return the cost per task."""
    start = threading.Barrier(len(acts) + 1)

    def run(act: Act, times: int) -> None:
        start.wait()
        for number in range(times):
            act(number)

    threads = [threading.Thread(target=run, args=each) for each in acts]
    for thread in threads:
        thread.start()
    start.wait()
    begin, before = perf_counter(), switches()
    for thread in threads:
        thread.join()
    return (perf_counter() - begin) / count, (switches() - before) / count


def measure_threads(side: Side, producers: int, consumers: int, count: int) -> Figures:
    """Return the cost of a task that goes from producer to consumer threads."""
    acts = [(side.put, count // producers)] * producers + [(side.take, count // consumers)] * consumers
    figures = race(acts, count)
    side.close()
    return figures


def tube_crowd(driver: str, producers: int, consumers: int, count: int) -> Figures:
    return measure_threads(tube_side(driver), producers, consumers, count)


def queue_crowd(producers: int, consumers: int, count: int) -> Figures:
    return measure_threads(queue_side(), producers, consumers, count)


def ring(sides: list[Side]) -> Figures:
    """Return the cost of a hop from one thread to the next."""
    for side in sides[:TOKENS]:
        side.put(0)

    def pass_tokens(side: Side, after: Side) -> Act:
        def step(number: int) -> None:
            side.take(number)
            after.put(number)

        return step

    acts = [(pass_tokens(side, after), FEW // RING) for side, after in zip(sides, sides[1:] + sides[:1], strict=True)]
    figures = race(acts, FEW)
    for side in sides:
        side.close()
    return figures


def tube_ring(driver: str) -> Figures:
    session = tubes.connect()
    return ring([tube_side(driver, session, f"ring-{number}") for number in range(RING)])


def queue_ring() -> Figures:
    return ring([queue_side() for _ in range(RING)])


async def gather_crowd(put: Callable[[], Any], take: Callable[[], Any], producers: int, consumers: int) -> Figures:
    """Return the cost of a task that goes from producer to consumer asyncio tasks."""

    async def run(act: Callable[[], Any], times: int) -> None:
        for _ in range(times):
            await act()

    acts = [(put, FEW // producers)] * producers + [(take, FEW // consumers)] * consumers
    begin = perf_counter()
    await asyncio.gather(*(run(*each) for each in acts))
    return (perf_counter() - begin) / FEW, None


def awaited_tube(producers: int, consumers: int) -> Figures:
    async def run() -> Figures:
        async with tubes.aio.connect() as session:
            tube: Any = await session.create_tube("contended")

            async def take() -> None:
                await tube.ack(await tube.take())

            return await gather_crowd(lambda: tube.put(PAYLOAD), take, producers, consumers)

    return asyncio.run(run())


def asyncio_queue(producers: int, consumers: int) -> Figures:
    async def run() -> Figures:
        there: asyncio.Queue[str] = asyncio.Queue()

        async def take() -> None:
            await there.get()
            there.task_done()

        return await gather_crowd(lambda: there.put(PAYLOAD), take, producers, consumers)

    return asyncio.run(run())


class Case(NamedTuple):
    """A comparison of both sides; `goal` is the limit of tubes as a multiple of the yardstick."""

    what: str
    yardstick: str
    goal: float | None
    ours: Callable[[], Figures]
    theirs: Callable[[], Figures]


def cases(sizes: tuple[int, ...]) -> list[Case]:
    found: list[Case] = []
    for driver, name in (("fifo", "fifo"), ("utubettl", f"utubettl, {len(UTUBES)} utubes")):
        for count in sizes:
            for (producers, consumers), goals in CROWDS.items():
                found.append(
                    Case(
                        f"{name}, {count:,} tasks, {producers} x {consumers} threads",
                        "queue.Queue",
                        goals.get((count, driver)),
                        partial(tube_crowd, driver, producers, consumers, count),
                        partial(queue_crowd, producers, consumers, count),
                    )
                )
        what = f"{name}, ring of {RING} threads, {TOKENS} tokens"
        found.append(Case(what, "queue.Queue", RING_GOAL, partial(tube_ring, driver), queue_ring))
    what, ours, theirs = (
        f"fifo, {FEW:,} tasks, 4 x 4 of asyncio",
        partial(awaited_tube, 4, 4),
        partial(asyncio_queue, 4, 4),
    )
    return [*found, Case(what, "asyncio.Queue", ASYNCIO_GOAL, ours, theirs)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run both sides one after the other, so that noise affects both equally."""
    scale = scale_of(metafunc.config)
    measured = [
        pytest.param(case, ours, id=f"{case.what}-{'tubes' if ours else case.yardstick}-{turn}")
        for case in cases((FEW,) if scale is QUICK else (FEW, MANY))
        for turn in range(scale.passes)
        for ours in (True, False)
    ]
    metafunc.parametrize(("case", "ours"), measured)


def test_contended(case: Case, ours: bool, results: Results) -> None:
    seconds, switched = (case.ours if ours else case.theirs)()
    results.compare(
        Comparison(SECTION, case.what, case.yardstick, goal=case.goal), "ours" if ours else "yardstick", seconds
    )
    # In a ring, each token has to wake a thread.
    if ours and switched is not None and "ring" not in case.what:
        limit = Comparison(SECTION, f"{case.what}: context switches", "limit", goal=1, unit="switches")
        results.compare(limit, "ours", switched)
        results.compare(limit, "yardstick", SWITCHES)
