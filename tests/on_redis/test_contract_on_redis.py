"""The contract on real servers, with the same rules as in memory.

All tests run as a user with only the documented rights of a program, and the server must refuse nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from tests.contract import AioFace, Contract, SyncFace
from tests.contract.cancelling import Losses
from tests.contract.capacity import Capacity
from tests.contract.lanes import Lanes
from tests.contract.order import Order
from tests.on_redis.conftest import WITHOUT_FUNCTIONS
from tests.partitions.test_contract_of_partitions import OnePartition, UnorderedLanes, without
from tests.support.on_server import OnServer
from tests.support.parts import TENANTS, OfCapacity, OfOrder, OfRank, RareRules
from tests.support.rights import users_of
from tubes import Driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tubes.drivers import Ranked
    from tubes.testing import LocalServer


@pytest.fixture(autouse=True)
def _check_rights(request: pytest.FixtureRequest, start_server: Callable[[str], LocalServer]) -> Iterator[None]:
    contract: Any = request.cls
    users = users_of(start_server(contract.program))
    contract.url = users.url("app")
    users.forget()
    yield
    assert users.refusals() == []


class OnValkey(OnServer):
    """Valkey, from the wheel."""

    program = "valkey"


class OnRedis(OnServer):
    """Redis itself, where it is installed."""

    program = "redis"


class OnScripts(OnServer):
    """A server that runs the library as a script."""

    program = WITHOUT_FUNCTIONS


class FullContract(OnValkey, Contract):
    """All rules."""


class TestFifo(FullContract):
    faces = (AioFace,)
    driver = "fifo"


class TestUtubeTtl(FullContract):
    faces = (SyncFace,)
    driver = "utubettl"


class TestRoomOfLimFifoTtl(OnValkey, Capacity):
    faces = (SyncFace,)
    driver = "limfifottl"


class TestOrderOfLifo(OnValkey, Order):
    faces = (AioFace,)
    driver = Driver("lifo", order="-id")


def odd_first(task: Ranked) -> float:
    return task.pri if task.pri % 2 else task.pri + 2**32


#: An order without a knob: odd priorities first.
ODD_FIRST = Driver(
    "odd-first",
    options={"pri", "ttl", "delay"},
    rank=odd_first,
    rank_lua="pri % 2 == 1 and pri or pri + 4294967296",
)


class TestOrderOfRankHook(OnValkey, Order):
    faces = (SyncFace,)
    driver = ODD_FIRST


class TestOrderInCustomLanes(OnValkey, Order, Lanes):
    faces = (SyncFace,)
    driver = TENANTS


class TestRareRulesOfLimFifoTtl(OnValkey, RareRules):
    faces = (SyncFace,)
    driver = "limfifottl"

    def test_take_with_a_listener_ends_with_the_ttr_or_the_ttl(self) -> None:
        self.listen()
        first = self.put_and_take(ttl=5, ttr=3)
        assert self.changes_state(first, "taken", "ready", after=3)
        assert self.changes_state(first, "ready", "done", after=2)
        second = self.put_and_take(ttl=3, ttr=5)
        assert self.changes_state(second, "taken", "done", after=3)


class TestRareRulesWithoutTtr(OnValkey, RareRules):
    faces = (SyncFace,)
    driver = Driver("untimed", options={"ttl"})


class TestRareRulesOnScripts(OnScripts, RareRules):
    faces = (SyncFace,)
    driver = "utubettl"


@pytest.mark.full
class TestFifoOnScripts(OnScripts, Contract):
    faces = (AioFace,)
    driver = "fifo"


@pytest.mark.full
class TestUtubeTtlOnScripts(OnScripts, Contract):
    faces = (SyncFace,)
    driver = "utubettl"


@pytest.mark.full
class TestFifoWithThreads(FullContract):
    faces = (SyncFace,)
    driver = "fifo"


@pytest.mark.full
class TestFifoTtl(FullContract):
    faces = (AioFace,)
    driver = "fifottl"


@pytest.mark.full
class TestLimFifoTtl(OnValkey, OfCapacity):
    faces = (SyncFace,)
    driver = "limfifottl"


@pytest.mark.full
class TestUtube(FullContract):
    faces = (SyncFace,)
    driver = "utube"


@pytest.mark.full
class TestUtubeTtlWithAsyncio(FullContract):
    faces = (AioFace,)
    driver = "utubettl"


@pytest.mark.full
class TestLifo(OnValkey, OfOrder):
    faces = (AioFace,)
    driver = Driver("lifo", order="-id")


@pytest.mark.full
class TestRankHook(OnValkey, OfRank):
    faces = (SyncFace,)
    driver = ODD_FIRST


@pytest.mark.full
class TestCustomLanes(FullContract):
    faces = (SyncFace,)
    driver = TENANTS


@pytest.mark.full
class TestFifoOnRedis(OnRedis, Contract):
    faces = (SyncFace,)
    driver = "fifo"


@pytest.mark.full
class TestUtubeTtlOnRedis(OnRedis, Contract):
    faces = (AioFace,)
    driver = "utubettl"


@pytest.mark.full
@without(
    # A session hears of losses in a partition from its first call there on.
    *(test for test in vars(Losses) if test.startswith("test_")),
    "test_put_waiting_for_room_is_served_before_join",
)
class TestFifoTtlWithOnePartition(OnValkey, OnePartition):
    """A tube of one partition."""

    driver = "fifottl"


@pytest.mark.full
class TestUtubeTtlWithThreePartitions(OnValkey, UnorderedLanes):
    """The rules that hold across partitions."""

    driver = "utubettl"
    options: ClassVar = {"partitions": 3}
