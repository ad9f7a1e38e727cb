"""Repeated signals at any moment of a call: no task is lost or stranded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import FrameType

import pytest

import tubes
import tubes.aio
from tests.support.internals import port_of
from tubes.drivers.invariants import check_engine

#: The minimum seconds and interrupts of a storm.
SECONDS, INTERRUPTS = 0.7, 20
PACKAGE = os.path.dirname(tubes.__file__)

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        threading.current_thread() is not threading.main_thread(), reason="signals arrive in the main thread"
    ),
]


class Storm:
    """Interrupts at random moments of the library, while the block runs and the storm is not over.

    It has to end: on a busy machine, a repair may take longer than the time between two interrupts, so that no call
    returns. `only_own`: do not interrupt code that the library calls. An interrupt of asyncio's own `call_soon` loses
    a wake-up. `logging` is never interrupted: its lock would stay locked, and later tests would wait for it forever.
    """

    def __init__(self, rng: random.Random, seconds: float = SECONDS, *, only_own: bool = False) -> None:
        self._rng = rng
        self._only_own = only_own
        self._end = time.monotonic() + seconds
        self._count = 0

    def is_over(self) -> bool:
        return time.monotonic() > self._end and self._count > INTERRUPTS

    def __enter__(self) -> Storm:
        self._before, self._hook = signal.signal(signal.SIGALRM, self._interrupt), sys.unraisablehook
        sys.unraisablehook = lambda unraisable: None  # An interrupt of a finalizer is only logged.
        # The timeout of the test uses the same timer.
        self._seconds_left, _ = signal.setitimer(signal.ITIMER_REAL, 0.0001)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, self._seconds_left)
        sys.unraisablehook = self._hook
        signal.signal(signal.SIGALRM, self._before)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self.is_over():
            return
        seconds = self._rng.choice([0.00005, 0.0002, 0.001]) * (self._rng.random() + 0.1)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        while frame is not None and frame.f_code.co_filename != logging.__file__:
            if frame.f_code.co_filename.startswith(PACKAGE):
                self._count += 1
                raise KeyboardInterrupt
            frame = None if self._only_own else frame.f_back


class Ledger:
    """The results of the calls of one caller."""

    def __init__(self) -> None:
        self.put: set[int] = set()
        self.acked: set[int] = set()
        #: Puts and acks that raised an error.
        self.unsure: set[int] = set()

    def check(self, tube: tubes.Tube[int]) -> None:
        """Assert that the tube has each unacked task exactly once."""
        statistics = tube.statistics()
        check_engine(port_of(tube).shared.engine)
        assert statistics.tasks["taken"] == 0
        assert tube.select("ready", limit=10**5).count() == statistics.tasks["ready"] == statistics.tasks["total"]
        found = [task.ack().data for task in iter(lambda: tube.take(0), None)]
        assert len(found) == len(set(found)) == statistics.tasks["total"]
        assert not self.acked.intersection(found)
        assert not (self.put - self.acked - self.unsure).difference(found)


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}" if request.param == "memory" else f"file:{tmp_path}"


def lane(tube: tubes.Tube[int] | tubes.AsyncTube[int], number: int) -> tubes.TaskOptions:
    """Return the options of a task in this lane, if the tube has lanes."""
    return {"utube": str(number)} if port_of(tube).shared.driver.lane else {}


def work(tube: tubes.Tube[int], ledger: Ledger, numbers: Iterator[int]) -> None:
    """Put a task, or take and ack one; every other take may wait."""
    number = next(numbers)
    if number % 3:
        ledger.unsure.add(number)
        tube.put(number, **lane(tube, number % 5))
        ledger.put.add(number)
        ledger.unsure.discard(number)
    elif (task := tube.take(number % 2 and 0.001)) is not None:
        ledger.unsure.add(task.data)
        task.ack()
        ledger.acked.add(task.data)


@pytest.mark.parametrize("driver", ["fifo", "utubettl"])
@pytest.mark.parametrize("others", [0, 2])
def test_storm_of_signals_loses_no_task(url: str, driver: str, others: int) -> None:
    with tubes.connect(url) as queue, tubes.connect(url) as elsewhere:
        tube = queue.create_tube("t", driver)
        ledgers = [Ledger() for _ in range(others + 1)]
        storm = Storm(random.Random(driver))

        def run(place: int, tube: tubes.Tube[int]) -> None:
            numbers = iter(range(place * 10**6, (place + 1) * 10**6))
            while not storm.is_over():
                with contextlib.suppress(KeyboardInterrupt):
                    work(tube, ledgers[place], numbers)

        threads = [threading.Thread(target=run, args=(place, elsewhere.tube("t"))) for place in range(1, others + 1)]
        for thread in threads:
            thread.start()
        with storm:
            run(0, tube)
        for thread in threads:
            thread.join()
        tube.admin.release_all()
        whole = Ledger()
        for each in ledgers:
            whole.put |= each.put
            whole.acked |= each.acked
            whole.unsure |= each.unsure
        whole.check(tube)


@pytest.mark.parametrize("driver", ["fifo", "utubettl"])
def test_storm_in_an_event_loop_loses_no_task(url: str, driver: str) -> None:
    rng, ledger, loop = random.Random(driver), Ledger(), asyncio.new_event_loop()
    storm = Storm(rng, 2 * SECONDS, only_own=True)

    async def put(tube: tubes.AsyncTube[int]) -> None:
        for number in count():
            # A repair is O(n). It cannot end if it takes longer than the time between two interrupts.
            while len(ledger.put) > len(ledger.acked) + 200:  # noqa: ASYNC110
                await asyncio.sleep(0)
            ledger.unsure.add(number)
            with contextlib.suppress(KeyboardInterrupt):
                await tube.put(number, **lane(tube, number % 100))
                ledger.put.add(number)
                ledger.unsure.discard(number)
            await asyncio.sleep(0)

    async def work(tube: tubes.AsyncTube[int]) -> None:
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                (task,) = await tube.take_many(1)
                ledger.unsure.add(task.data)
                await task.ack()
                ledger.acked.add(task.data)
            await asyncio.sleep(0)

    async def attack(tube: tubes.AsyncTube[int]) -> None:
        running = [asyncio.create_task(call(tube)) for call in (put, work, work, work)]
        try:
            while not (storm.is_over() and ledger.acked):
                await asyncio.sleep(0.0005)
                place = rng.randrange(1, len(running))
                running[place].cancel()
                running[place] = asyncio.create_task(work(tube))
        finally:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    def run(tube: tubes.AsyncTube[int]) -> None:
        attacking = loop.create_task(attack(tube))
        while not attacking.done():
            with contextlib.suppress(
                KeyboardInterrupt, RuntimeError
            ):  # An interrupted run leaves a stop request in the loop.
                loop.run_until_complete(attacking)

    async def connect() -> tubes.AsyncQueue:
        return await tubes.aio.connect(url)

    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", driver)
        theirs = loop.run_until_complete(connect())
        attacked = loop.run_until_complete(theirs.tube("t"))
        with storm:
            run(attacked)
        for _ in range(9):  # A cancelled task may have to withdraw its waiter first.
            if left := asyncio.all_tasks(loop):
                for each in left:
                    each.cancel()
                loop.run_until_complete(asyncio.wait(left, timeout=1))
        assert not asyncio.all_tasks(loop)
        loop.run_until_complete(theirs.close())
        loop.close()
        assert tube.statistics().waiting == 0
        ledger.check(tube)
