"""A call on a server that is interrupted, also twice, takes full effect or none, and spoils no connection."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

import tubes
from tests.support.interrupting import interrupted_twice
from tubes.conformance.bench import eventually
from tubes.testing import LocalServer

#: A socket that is interrupted while it connects is closed when its last reference goes.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
#: More moments than any call has.
MANY = 1000
#: Second interrupts for each first one.
SECONDS = 12


@pytest.fixture
def tube(valkey: LocalServer) -> Iterator[tubes.Tube]:
    with tubes.connect(f"{valkey.url}?prefix={uuid4().hex}") as queue:
        yield queue.create_tube("load")
    gc.collect()


def storm(call: Callable[[], object]) -> Iterator[tuple[int, int]]:
    """Interrupt a call at each of its moments, and its repair at some; after each of them it is the test's turn."""
    chosen = random.Random(1)
    for first in range(MANY):
        for second in (*range(2), *chosen.sample(range(2, 60), SECONDS - 3), chosen.randrange(60, 500)):
            if not interrupted_twice(call, first, second):
                assert first > 10
                return
            yield first, second
    raise AssertionError("this call has no end")


@pytest.mark.parametrize("verb", ["take", "take_many", "take_task"])
def test_interrupted_take_gives_its_tasks_back(tube: tubes.Tube, verb: str) -> None:
    tube.put_many(range(3))
    calls: dict[str, Callable[[], object]] = {
        "take": lambda: tube.take(0),
        "take_many": lambda: tube.take_many(2, 0),
        "take_task": lambda: tube.take_task(1),
    }
    calls[verb]()  # The scripts are loaded.
    tube.release_all()
    for first, second in storm(calls[verb]):
        assert eventually(lambda: tube.statistics().tasks["taken"] == 0), (first, second)
    tube.release_all()
    assert [task.data for task in tube.take_many(9, 0)] == [0, 1, 2]


@pytest.mark.parametrize("verb", ["put", "put_many"])
def test_interrupted_put_is_done_or_not(tube: tubes.Tube, verb: str) -> None:
    number, size = 0, 1 if verb == "put" else 3

    def put() -> None:
        tube.put(number) if verb == "put" else tube.put_many([number] * size)

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
