"""The contract, for the built-in drivers and for users' own.

The simplest driver and the richest run with threads and with asyncio, the others with one of them: the two APIs are one
source, and how they wait does not depend on the driver.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.parts import OfCodec, OfOrder, OfRank
from tubes import Driver, TaskNotFound
from tubes.conformance import AioFace, Bench, Contract, Face, SyncFace
from tubes.conformance.order import Order

if TYPE_CHECKING:
    from pathlib import Path

    from tubes.drivers import Ranked
    from tubes.testing import ManualClock


class TestFifo(Contract):
    driver = "fifo"


class TestFifoTtl(Contract):
    faces = (AioFace,)
    driver = "fifottl"


class TestLimFifoTtl(Contract):
    faces = (SyncFace,)
    driver = "limfifottl"


class TestUtube(Contract):
    faces = (AioFace,)
    driver = "utube"


class TestUtubeTtl(Contract):
    driver = "utubettl"


class TestLifo(OfOrder):
    """The smallest driver of one's own: a value."""

    driver = Driver("lifo", order="-id")


def picky(task: Ranked) -> float:
    if task.pri == 13:
        raise ArithmeticError("13 has no place")
    return task.pri


def odd_first(task: Ranked) -> float:
    return task.pri if task.pri % 2 else task.pri + 2**32


class TestRankHook(OfRank):
    """An order that no knob names: odd priorities first."""

    driver = Driver("odd-first", options={"pri", "ttl", "delay"}, rank=odd_first)


class TestLaneOfOnesOwnName(Contract):
    """All knobs at once: the greatest priority first, the newest among equals, one task per tenant."""

    faces = (SyncFace,)
    driver = Driver(
        "tenants",
        options={"tenant", "pri", "ttl", "ttr", "delay", "capacity", "timeout"},
        order="-pri,-id",
        lane="tenant",
    )


class TestThroughJson(OfCodec):
    """What goes through a codec goes the same way."""

    driver = "utubettl"

    def connect(self, face: Face, clock: ManualClock) -> Any:
        return face.connect("memory://", clock=clock, codec="json")


class TestDriverThatConnectRegisters(Order):
    """A name that only this queue knows."""

    driver = "mine"

    def connect(self, face: Face, clock: ManualClock) -> Any:
        queue = face.connect("memory://", clock=clock)
        queue.register_driver(Driver("mine", order="-id"))
        return queue


class TestRankHookThatFails(Bench):
    """A hook's own error goes to the put that it refuses, and nobody else notices."""

    driver = Driver("picky", options={"pri", "capacity", "timeout"}, rank=picky)

    def test_a_put_that_the_hook_refuses_changes_nothing(self) -> None:
        before = self.everything()
        with pytest.raises(ArithmeticError):
            self.put(pri=13)
        assert self.everything() == before

    def test_a_waiting_put_that_the_hook_refuses_harms_nobody_else(self) -> None:
        self.tube = self.create("full", capacity=1)
        first = self.taken()
        refused = self.begin(None, "put", "refused", pri=13, timeout=9)
        assert self.tube.ack(first).state == "-"
        with pytest.raises(ArithmeticError):
            self.got(refused)


class TestTheBench(Bench):
    """What the contract's own helpers answer."""

    driver = "limfifottl"

    @pytest.mark.parametrize(
        ("order", "expected"),
        [
            ("id", "abcd"),
            ("-id", "dcba"),
            ("pri", "bdac"),
            ("pri,id", "bdac"),
            ("pri,-id", "dbca"),
            ("-pri", "acbd"),
            ("-pri,id", "acbd"),
            ("-pri,-id", "cadb"),
        ],
    )
    def test_every_order_has_its_meaning(self, order: str, expected: str) -> None:
        tasks = [self.put(data, pri=pri) for data, pri in (("a", 2), ("b", 1), ("c", 2), ("d", 1))]
        self.knobs = Driver("any", options={"pri"}, order=order)
        assert "".join(task.data for task in self.in_order(tasks)) == expected

    def test_a_refused_call_that_changed_something_is_found_out(self) -> None:
        def change() -> None:
            with self.refused(TaskNotFound):
                self.put()
                self.tube.peek(1000)

        with pytest.raises(AssertionError):
            change()


#: Asserts as they are: to rewrite those of the contract takes longer than these tests.
PYTEST = ("-m", "pytest", "--assert=plain", "-p", "no:cacheprovider")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_a_skip_says_what_the_driver_lacks(tmp_path: Path) -> None:
    mine = tmp_path / "test_mine.py"
    mine.write_text("from tubes.conformance import Contract\nclass TestMine(Contract):\n    driver = 'fifo'\n")
    output = run(tmp_path, *PYTEST, "-rs", "-k", "delay_of_0 or knows_its_lane", str(mine)).stdout
    assert "driver 'fifo' has no delay" in output
    assert "driver 'fifo' has no lane" in output


def test_a_contract_without_a_driver_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "test_mine.py"
    mine.write_text("from tubes.conformance import Contract\nclass TestMine(Contract):\n    drivers = 'fifo'\n")
    ended = run(tmp_path, *PYTEST, "-k", "data_comes_back", str(mine))
    assert ended.returncode == 1
    assert "TestMine names no driver: set `driver = ...` in the class" in ended.stdout
    assert "passed" not in ended.stdout
