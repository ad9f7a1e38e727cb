"""The contract, on real servers: everything that holds in memory holds there.

All of it as a user with no more rights than the page of rights gives to a program: the server refuses nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.on_server import OnServer
from tests.support.parts import OfCapacity, OfOrder, OfRank
from tests.support.rights import users_of
from tubes import Driver
from tubes.conformance import AioFace, Contract, SyncFace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tubes.drivers import Ranked
    from tubes.testing import LocalServer


@pytest.fixture(autouse=True)
def _nothing_is_refused(request: pytest.FixtureRequest, started: Callable[[str], LocalServer]) -> Iterator[None]:
    contract: Any = request.cls
    users = users_of(started(contract.program))
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


class Whole(OnValkey, Contract):
    """All rules."""


class TestFifo(Whole):
    faces = (SyncFace,)
    driver = "fifo"


class TestFifoTtl(Whole):
    faces = (AioFace,)
    driver = "fifottl"


class TestLimFifoTtl(OnValkey, OfCapacity):
    faces = (SyncFace,)
    driver = "limfifottl"


class TestUtube(Whole):
    faces = (SyncFace,)
    driver = "utube"


class TestUtubeTtl(Whole):
    faces = (AioFace,)
    driver = "utubettl"


class TestLifo(OnValkey, OfOrder):
    faces = (AioFace,)
    driver = Driver("lifo", order="-id")


def odd_first(task: Ranked) -> float:
    return task.pri if task.pri % 2 else task.pri + 2**32


class TestRankHook(OnValkey, OfRank):
    """An order that no knob names: odd priorities first."""

    faces = (SyncFace,)
    driver = Driver(
        "odd-first",
        options={"pri", "ttl", "delay"},
        rank=odd_first,
        rank_lua="pri % 2 == 1 and pri or pri + 4294967296",
    )


class TestLaneOfOnesOwnName(Whole):
    """All knobs at once."""

    faces = (SyncFace,)
    driver = Driver(
        "tenants",
        options={"tenant", "pri", "ttl", "ttr", "delay", "capacity", "timeout"},
        order="-pri,-id",
        lane="tenant",
    )


class TestFifoOnRedis(OnRedis, Contract):
    faces = (SyncFace,)
    driver = "fifo"


class TestUtubeTtlOnRedis(OnRedis, Contract):
    faces = (AioFace,)
    driver = "utubettl"
