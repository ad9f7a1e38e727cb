"""The contract in a folder, where a journal could break it. `test_traces_in_a_folder.py` covers other drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import pytest

from tests.contract import AioFace, Contract, Face, SyncFace
from tests.contract.batches import Batches
from tests.contract.bench import Bench
from tests.contract.waiting import Waiting
from tests.support.parts import RareRules
from tubes import Driver

if TYPE_CHECKING:
    from pathlib import Path

    from tubes.testing import ManualClock


class InAFolder(Bench):
    """Uses a separate store for each test."""

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


class TestRareRulesOfFifo(InAFolder, RareRules):
    faces = (SyncFace,)
    driver = "fifo"


class TestRareRulesOfLimFifoTtl(InAFolder, RareRules):
    faces = (SyncFace,)
    driver = "limfifottl"


class TestRareRulesWithoutTtr(InAFolder, RareRules):
    faces = (SyncFace,)
    driver = Driver("untimed", options={"ttl"})


@pytest.mark.full
class TestSynced(InAFolder, Waiting, Batches):
    """With `sync=full`."""

    faces = (AioFace,)
    driver = "fifottl"
    sync = "full"


class TestUtubeTtl(InAFolder, Contract):
    """All rules of the contract."""

    faces = (SyncFace,)
    driver = "utubettl"
