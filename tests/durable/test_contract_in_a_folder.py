"""The contract, in a folder: everything that holds in memory holds there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import pytest

from tests.support.parts import OfCapacity, OfOrder, OfRank
from tubes import Driver
from tubes.conformance import AioFace, Contract, Face, SyncFace
from tubes.conformance.any import TakeAny
from tubes.conformance.batches import Batches
from tubes.conformance.bench import Bench
from tubes.conformance.waiting import Waiting

if TYPE_CHECKING:
    from pathlib import Path

    from tubes.drivers import Ranked
    from tubes.testing import ManualClock


def odd_first(task: Ranked) -> float:
    return task.pri if task.pri % 2 else task.pri + 2**32


class InAFolder(Bench):
    """A folder of its own for every test."""

    folder: ClassVar[Path]
    sync: ClassVar[str] = "normal"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _folder(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.folder = tmp_path_factory.mktemp("stores")

    def connect(self, face: Face, clock: ManualClock) -> Any:
        return face.connect(
            f"file:{self.folder}/{uuid4().hex}?sync={self.sync}", clock=clock, session_ttl=self.session_ttl
        )


class TestFifo(InAFolder, OfOrder):
    faces = (SyncFace,)
    driver = "fifo"


class TestLimFifoTtl(InAFolder, OfCapacity):
    faces = (AioFace,)
    driver = "limfifottl"


class TestSynced(InAFolder, Waiting, TakeAny, Batches):
    """What was returned is on the disk, too."""

    driver = "fifottl"
    sync = "full"


class TestUtubeTtl(InAFolder, Contract):
    """All rules."""

    faces = (SyncFace,)
    driver = "utubettl"


class TestRankHook(InAFolder, OfRank):
    """An order that no knob names: odd priorities first."""

    faces = (AioFace,)
    driver = Driver("odd-first", options={"pri", "ttl", "delay"}, rank=odd_first)
