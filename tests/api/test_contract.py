"""The contract in memory, for built-in and custom drivers.

The simplest driver runs with threads and the richest one with asyncio; the other drivers run only the subjects in which
they differ. The whole matrix is marked `full`.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract import AioFace, Bench, Contract, Face, SyncFace
from tests.contract.capacity import Capacity
from tests.contract.lanes import Lanes
from tests.contract.order import Order
from tests.contract.updates import Updates
from tests.support.parts import RULES, TENANTS, OfCodec, OfOrder, OfRank, RareRules, rules_of
from tubes import Driver, DriverNotFound, TaskNotFound

if TYPE_CHECKING:
    from tubes.drivers import Ranked
    from tubes.testing import ManualClock


class TestFifo(Contract):
    faces = (SyncFace,)
    driver = "fifo"


class TestUtubeTtl(Contract):
    faces = (AioFace,)
    driver = "utubettl"


class TestRoomOfLimFifoTtl(Capacity):
    faces = (SyncFace,)
    driver = "limfifottl"


class TestOrderOfLifo(Order):
    """The smallest custom driver, a value."""

    faces = (SyncFace,)
    driver = Driver("lifo", order="-id")


def picky(task: Ranked) -> float:
    if task.pri == 13:
        raise ArithmeticError("13 has no place")
    return task.pri


def odd_first(task: Ranked) -> float:
    return task.pri if task.pri % 2 else task.pri + 2**32


class TestOrderOfRankHook(Order):
    """An order without a knob: odd priorities first."""

    faces = (SyncFace,)
    driver = Driver("odd-first", options={"pri", "ttl", "delay"}, rank=odd_first)


class TestOrderInCustomLanes(Order, Lanes):
    faces = (SyncFace,)
    driver = TENANTS


class ThroughJson:
    """A queue in memory that encodes data."""

    def connect(self, face: Face, clock: ManualClock) -> Any:
        return face.connect("memory://", clock=clock, codec="json")


class TestUpdatesThroughJson(ThroughJson, Updates):
    faces = (SyncFace,)
    driver = "utubettl"


class TestDriverThatConnectRegisters(Order):
    """A name that is registered in this queue only."""

    driver = "mine"

    def connect(self, face: Face, clock: ManualClock) -> Any:
        queue = face.connect("memory://", clock=clock)
        queue.admin.register_driver(Driver("mine", order="-id"))
        return queue


class TestRankHookThatFails(Bench):
    """An error of a hook is raised by its put and has no other effect."""

    driver = Driver("picky", options={"pri", "capacity", "timeout"}, rank=picky)

    def test_put_refused_by_the_rank_hook_changes_nothing(self) -> None:
        before = self.snapshot()
        with pytest.raises(ArithmeticError):
            self.put(pri=13)
        assert self.snapshot() == before

    def test_waiting_put_refused_by_the_rank_hook_fails_alone(self) -> None:
        self.tube = self.create("full", capacity=1)
        first = self.put_and_take()
        refused = self.begin(None, "put", "refused", pri=13, timeout=9)
        assert self.tube.ack(first).state == "done"
        with pytest.raises(ArithmeticError):
            self.result_of(refused)


class TestRareRulesOfLimFifoTtl(RareRules):
    faces = (SyncFace,)
    driver = "limfifottl"


class TestRareRulesWithoutTtr(RareRules):
    faces = (SyncFace,)
    driver = Driver("untimed", options={"ttl"})


@pytest.mark.full
class TestFifoWithAsyncio(Contract):
    faces = (AioFace,)
    driver = "fifo"


@pytest.mark.full
class TestFifoTtl(Contract):
    faces = (AioFace,)
    driver = "fifottl"


@pytest.mark.full
class TestLimFifoTtl(Contract):
    faces = (SyncFace,)
    driver = "limfifottl"


@pytest.mark.full
class TestUtube(Contract):
    faces = (AioFace,)
    driver = "utube"


@pytest.mark.full
class TestUtubeTtlWithThreads(Contract):
    faces = (SyncFace,)
    driver = "utubettl"


@pytest.mark.full
class TestLifo(OfOrder):
    driver = Driver("lifo", order="-id")


@pytest.mark.full
class TestRankHook(OfRank):
    driver = Driver("odd-first", options={"pri", "ttl", "delay"}, rank=odd_first)


@pytest.mark.full
class TestCustomLanes(Contract):
    faces = (SyncFace,)
    driver = TENANTS


@pytest.mark.full
class TestThroughJson(ThroughJson, OfCodec):
    driver = "utubettl"


class TestBenchHelpers(Bench):
    """The helpers of the contract."""

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
    def test_in_order_follows_every_order_option(self, order: str, expected: str) -> None:
        tasks = [self.put(data, pri=pri) for data, pri in (("a", 2), ("b", 1), ("c", 2), ("d", 1))]
        self.knobs = Driver("any", options={"pri"}, order=order)
        assert "".join(task.data for task in self.sort_as_taken(tasks)) == expected

    def test_refused_call_that_changed_something_fails_the_test(self) -> None:
        def change() -> None:
            with self.expect_error(TaskNotFound):
                self.put()
                self.tube.peek(1000)

        with pytest.raises(AssertionError):
            change()


#: Plain asserts, because rewriting the asserts of the contract takes longer than these tests.
PYTEST = ("-m", "pytest", "--assert=plain", "-p", "no:cacheprovider")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest as the README of the drivers says: from a checkout."""
    command, checkout = [sys.executable, *PYTEST, *arguments], Path(__file__).parents[2]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False, timeout=60)


def test_contract_runs_for_a_driver_from_outside(tmp_path: Path) -> None:
    mine = tmp_path / "test_mine.py"
    mine.write_text(
        "from tests.contract import Contract\nfrom tubes import Driver\n"
        "class TestLifo(Contract):\n    driver = Driver('lifo', order='-id')\n"
    )
    ended = run("-k", "data_comes_back", str(mine))
    assert ended.returncode == 0, ended.stdout
    assert "passed" in ended.stdout


@pytest.mark.full
def test_skip_message_names_the_option_the_driver_lacks(tmp_path: Path) -> None:
    mine = tmp_path / "test_mine.py"
    mine.write_text("from tests.contract import Contract\nclass TestMine(Contract):\n    driver = 'fifo'\n")
    output = run("-rs", "-k", "delay_of_0 or knows_its_lane", str(mine)).stdout
    assert "driver 'fifo' has no delay" in output
    assert "driver 'fifo' has no lane" in output


@pytest.mark.full
def test_a_contract_without_a_driver_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "test_mine.py"
    mine.write_text("from tests.contract import Contract\nclass TestMine(Contract):\n    drivers = 'fifo'\n")
    ended = run("-k", "data_comes_back", str(mine))
    assert ended.returncode == 1
    assert "TestMine names no driver: set `driver = ...` in the class" in ended.stdout
    assert "passed" not in ended.stdout


@pytest.mark.parametrize(
    "module",
    ["tests.api.test_contract", "tests.on_redis.test_contract_on_redis", "tests.durable.test_contract_in_a_folder"],
)
def test_short_suite_runs_each_rule_on_each_backend(module: str) -> None:
    run: set[str] = set()
    for each in vars(import_module(module)).values():
        is_column = isinstance(each, type) and each.__name__.startswith("Test") and issubclass(each, Bench)
        if is_column and "full" not in [mark.name for mark in getattr(each, "pytestmark", [])]:
            with suppress(DriverNotFound):  # The driver of this test is registered in its own queue only.
                run |= rules_of(each.driver, [name for name in RULES if getattr(each, name, None)])
    assert sorted(RULES.keys() - run) == []
