"""Signals whose handler raises, several in a row, at random moments of calls over a slow connection."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from types import FrameType
from typing import Any

import pytest

import tubes
import tubes.aio
from tests.contract.bench import eventually
from tests.support.ledger import Ledger
from tests.support.proxy import Proxy
from tubes import TaskNotTaken

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
#: The minimum seconds and interrupts of a storm.
LENGTH, INTERRUPTS = 3.0, 20
INTERRUPTED = object()


class Storm:
    """Send signals to the main thread; they raise while `attempt` makes a call."""

    def __init__(self) -> None:
        self.count = 0
        self._armed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Storm:
        self._began = time.monotonic()
        self._before, self._hook = signal.signal(signal.SIGUSR1, self._raise), sys.unraisablehook
        sys.unraisablehook = lambda unraisable: None  # An interrupt of a finalizer is only logged.
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._before)
        sys.unraisablehook = self._hook

    def is_over(self, factor: int) -> bool:
        return time.monotonic() > self._began + LENGTH * factor and self.count > INTERRUPTS * factor

    def _send(self) -> None:
        chosen = random.Random(random.random())
        while not self._stop.wait(chosen.uniform(0.0, 0.03)):
            for _ in range(chosen.randrange(1, 4)):
                os.kill(os.getpid(), signal.SIGUSR1)
                self._stop.wait(chosen.choice((0.0, 0.0005, 0.003, 0.01)))

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            self.count += 1
            raise KeyboardInterrupt

    def attempt(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call, or `INTERRUPTED`."""
        result = INTERRUPTED
        self._armed = True
        try:
            result = call()  # No interrupt occurs between the return and the end of the block.
        except KeyboardInterrupt:
            pass
        finally:
            self._armed = False
        return result


@pytest.fixture
def storm() -> Iterator[Storm]:
    with Storm() as storm:
        yield storm
    gc.collect()


def test_storm_of_signals_loses_no_task(
    proxied_url: str, proxy: Proxy, ledger: Ledger, storm: Storm, factor: int
) -> None:
    with tubes.connect(proxied_url) as queue:
        tube = queue.create_tube("load")
        proxy.delay = 0.004
        key = 0
        while not (storm.is_over(factor) and ledger.done):
            key += 1
            task = storm.attempt(lambda: tube.put(str(key)))  # noqa: B023
            if task is INTERRUPTED:
                ledger.unknown.add(str(key))
            else:
                ledger.record_put(str(key), task.id)
            task = storm.attempt(lambda: tube.take(0))
            if task is INTERRUPTED or task is None:
                continue
            ledger.record_take(task.id, task.attempts, task.data)
            try:
                done = storm.attempt(task.ack)
            except TaskNotTaken:
                ledger.late += 1
                continue
            if done is INTERRUPTED:
                ledger.record_unsure_acks({(task.id, task.attempts)})
            else:
                ledger.record_done(task.id, task.attempts)
        proxy.delay = 0.0
        assert ledger.late == 0
        held = {id for id, takes in ledger.maybe.items() if takes}
        assert eventually(lambda: {task.id for task in tube.select("taken")} <= held)
        ledger.check(tube)


def work_until(stop: threading.Event, tube: tubes.Tube, ledger: Ledger) -> None:
    """Take and ack tasks in a thread that no signal reaches."""
    while not stop.is_set():
        task = tube.take(timeout=1)
        if task is not None:
            ledger.work(task)


def put_until(stop: threading.Event, tube: tubes.Tube, ledger: Ledger) -> None:
    """Put a task every few milliseconds."""
    for number in count():
        if stop.wait(0.004):
            return
        ledger.put(tube, str(number))


def record(storm: Storm, ledger: Ledger, task: Any, ack: Callable[[Any], object]) -> None:
    """Ack the task of an attempt and record the outcome."""
    if task is INTERRUPTED or task is None:
        return
    ledger.record_take(task.id, task.attempts, task.data)
    if storm.attempt(lambda: ack(task)) is INTERRUPTED:
        ledger.record_unsure_acks({(task.id, task.attempts)})
    else:
        ledger.record_done(task.id, task.attempts)


@pytest.fixture
def load(proxied_url: str, proxy: Proxy, ledger: Ledger, factor: int) -> Iterator[tubes.Tube]:
    """Create a tube with a thread that puts and one that takes, which must get tasks until the end."""
    stop, fed = threading.Event(), threading.Event()
    with tubes.connect(proxied_url) as queue:
        tube = queue.create_tube("load")
        proxy.delay = 0.002
        putting = threading.Thread(target=put_until, args=(fed, tube, ledger))
        working = threading.Thread(target=work_until, args=(stop, queue.session().tube("load"), ledger))
        putting.start()
        working.start()
        yield tube
        proxy.delay = 0.0
        fed.set()
        putting.join(20)
        assert ledger.put(tube, "last")
        assert eventually(lambda: ledger.ids["last"] in ledger.done)
        stop.set()
        working.join(20)
        assert not working.is_alive()
        held = {id for id, takes in ledger.maybe.items() if takes}
        assert eventually(lambda: {task.id for task in tube.select("taken")} <= held)
        ledger.check(tube)


def test_storm_of_signals_on_waiting_takes_loses_no_task(
    load: tubes.Tube, ledger: Ledger, storm: Storm, factor: int
) -> None:
    while not storm.is_over(factor):
        record(storm, ledger, storm.attempt(lambda: load.take(timeout=0.03)), lambda task: task.ack())


def test_storm_of_signals_in_an_event_loop_loses_no_task(
    proxied_url: str, load: tubes.Tube, ledger: Ledger, storm: Storm, factor: int
) -> None:
    loop = asyncio.new_event_loop()

    def attempt(call: Coroutine[Any, Any, Any]) -> Any:
        """Do the same as `storm.attempt`, and cancel an interrupted call."""
        task = loop.create_task(call)
        storm.attempt(lambda: loop.run_until_complete(task))
        task.cancel()
        with contextlib.suppress(RuntimeError):  # The interrupted run may have left a stop request in the loop.
            loop.run_until_complete(asyncio.sleep(0.001))
        (result,) = loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        return INTERRUPTED if isinstance(result, (KeyboardInterrupt, asyncio.CancelledError)) else result

    async def enter() -> tubes.AsyncQueue:
        return await tubes.aio.connect(proxied_url)

    queue = loop.run_until_complete(enter())
    tube = loop.run_until_complete(queue.tube("load"))
    while not storm.is_over(factor):
        task = attempt(tube.take(timeout=0.03))
        if task is INTERRUPTED or task is None:
            continue
        ledger.record_take(task.id, task.attempts, task.data)
        if attempt(task.ack()) is INTERRUPTED:
            ledger.record_unsure_acks({(task.id, task.attempts)})
        else:
            ledger.record_done(task.id, task.attempts)
    loop.run_until_complete(queue.close())
    loop.close()
