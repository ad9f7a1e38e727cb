"""A call on a server that is interrupted, even twice, takes full effect or none, and breaks no connection."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.internals import port_of
from tests.support.interrupting import interrupt_twice
from tubes.testing import LocalServer

#: A socket that is interrupted while it connects is closed by the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
#: More moments than any call has.
MANY = 1000
#: About as many moments as a waiting call has.
MOMENTS_OF_WAITS = 80
#: Second interrupts for each first one.
SECONDS = 12


@pytest.fixture
def queue(valkey: LocalServer) -> Iterator[tubes.Queue]:
    with tubes.connect(f"{valkey.url}?prefix={uuid4().hex}") as queue:
        yield queue
    gc.collect()


@pytest.fixture
def tube(queue: tubes.Queue) -> tubes.Tube:
    return queue.create_tube("load")


def storm(call: Callable[[], object]) -> Iterator[tuple[int, int]]:
    """Interrupt a call at each of its moments, and its repair at some; yield after each interrupt."""
    chosen = random.Random(1)
    for first in range(MANY):
        for second in (*range(2), *chosen.sample(range(2, 60), SECONDS - 3), chosen.randrange(60, 500)):
            if not interrupt_twice(call, first, second):
                assert first > 10
                return
            yield first, second
    raise AssertionError("this call has no end")


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["take", "take_many", "take_task"])
def test_interrupted_take_gives_its_tasks_back(tube: tubes.Tube, method: str) -> None:
    tube.put_many(range(3))
    calls: dict[str, Callable[[], object]] = {
        "take": lambda: tube.take(0),
        "take_many": lambda: tube.take_many(2, 0),
        "take_task": lambda: tube.peek(1).take(),
    }
    calls[method]()  # Load the library.
    tube.admin.release_all()
    for first, second in storm(calls[method]):
        assert eventually(lambda: tube.statistics().tasks["taken"] == 0), (first, second)
    tube.admin.release_all()
    assert [task.data for task in tube.take_many(9, 0)] == [0, 1, 2]


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["put", "put_many"])
def test_interrupted_put_is_done_or_not(tube: tubes.Tube, method: str) -> None:
    number, size = 0, 1 if method == "put" else 3

    def put() -> None:
        tube.put(number) if method == "put" else tube.put_many([number] * size)

    put()
    tube.ack_many(tube.take_many(9, 0))
    for first, second in storm(put):
        tasks = tube.take_many(100, 0)
        assert [task.data for task in tasks] in ([], [number] * size), (first, second)
        tube.ack_many(tasks)
        number += 1


def test_interrupted_ack_is_done_or_not(tube: tubes.Tube) -> None:
    tube.put("warm up")
    with tube.taking(0):
        tube.put("x")
    task = tube.take(0)

    def ack() -> None:
        assert task is not None
        task.ack()

    for first, second in storm(ack):
        assert tube.statistics().tasks["ready"] == 0, (first, second)
        if not tube.statistics().tasks["taken"]:
            tube.put("x")
            task = tube.take(0)
            assert task is not None
            assert task.data == "x"


def waiting_storm(call: Callable[[], object], meanwhile: Callable[[], object]) -> Iterator[tuple[int, int]]:
    """Interrupt a waiting call twice at sampled moments; another thread runs `meanwhile`."""
    chosen = random.Random(2)
    interrupts = 0
    for first in range(MOMENTS_OF_WAITS):
        for second in (chosen.randrange(3), chosen.randrange(3, 60)):
            timer = threading.Timer(chosen.choice((0.0, 0.003, 0.006)), meanwhile)
            timer.start()
            interrupts += interrupt_twice(call, first, second)
            timer.join()
            yield first, second
    assert interrupts > MOMENTS_OF_WAITS


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["take", "take_many", "take_any", "take_any_ttr"])
def test_interrupted_waiting_take_loses_no_task(queue: tubes.Queue, method: str) -> None:
    tube, other = queue.create_tube("load", "fifottl"), queue.create_tube("other", "fifottl")
    calls: dict[str, Callable[[], object]] = {
        "take": lambda: tube.take(0.01),
        "take_many": lambda: tube.take_many(2, 0.01),
        "take_any": lambda: queue.take_any([other, tube], 0.01),
        "take_any_ttr": lambda: queue.take_any([other, tube], 0.01, ttr=9),
    }

    result: object = None

    def call() -> None:
        nonlocal result
        result = None
        result = calls[method]()

    with ThreadPoolExecutor(1) as thread:
        for moments in waiting_storm(call, lambda: tube.put("x")):
            if result:
                tube.admin.release_all()
            assert eventually(lambda: tube.statistics().tasks["taken"] == tube.statistics().waiting == 0), moments
            # A take that was already sent for the interrupted call may hold the task for a moment.
            found: list[tubes.Task] = []
            assert eventually(lambda found=found: found.extend(tube.take_many(2, 0)) or found), moments  # type: ignore[misc]
            (ready,) = found
            ready.ack()
            taking = thread.submit(tube.take, 10)
            assert eventually(lambda: tube.statistics().waiting == 1), moments
            tube.put("y")
            task = taking.result(9)
            assert task is not None, moments
            task.ack()


@pytest.mark.full
def test_interrupted_waiting_put_is_done_or_not(queue: tubes.Queue) -> None:
    tube = queue.create_tube("load", "limfifottl", capacity=1)
    tube.put("first")

    def make_room() -> None:
        for task in tube.take_many(1, 0):
            task.ack()

    with ThreadPoolExecutor(1) as thread:
        for moments in waiting_storm(lambda: tube.put("x", timeout=0.01), make_room):
            assert eventually(lambda: tube.statistics().waiting == 0), moments
            # Other threads may still execute the interrupted put, or remove its task, which would make room later.
            with port_of(tube).shared.serving.lock:
                pass
            tube.truncate()
            assert tube.put("next", timeout=0) is not None, moments
            putting = thread.submit(tube.put, "y", timeout=10)
            assert eventually(lambda: tube.statistics().waiting == 1), moments
            make_room()
            assert putting.result(9) is not None, moments


PACKING = """
import random, signal, time
from tubes.redis.transport.wire import pack

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
end, chance, interrupted = time.monotonic() + 1, random.Random(1), 0
while time.monotonic() < end:
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 3e-4))
        while True:
            pack("EVALSHA", "a" * 40, 1, "tubes:{t}", 0, 12345, 7, 123456789.5, b"data")
    except KeyboardInterrupt:
        interrupted += 1
print(interrupted)
"""


@pytest.mark.full
def test_interrupts_while_a_command_is_packed_do_not_crash() -> None:
    """hiredis crashes if a signal handler raises while it formats a number."""
    run = subprocess.run([sys.executable, "-c", PACKING], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr[-500:]
    assert int(run.stdout) > 100
