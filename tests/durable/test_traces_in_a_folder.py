"""A folder reproduces the golden traces and matches the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import tubes
from tests.contract import SyncFace
from tests.golden.deviations import BY_QUIRK, USUAL
from tests.golden.replay import Replay
from tests.golden.traces import GROUPS
from tests.support.internals import port_of
from tests.unit.test_model import DRIVERS, run_with_model
from tubes.drivers.invariants import check_engine

if TYPE_CHECKING:
    from pathlib import Path


class FolderFace(SyncFace):
    """The API for threads, with a folder instead of memory."""

    def __init__(self, folder: Path) -> None:
        self.url = f"file:{folder}/{uuid4().hex}"

    def connect(self, url: Any, **options: Any) -> tubes.Queue:  # type: ignore[override]
        assert url == "memory://"
        return tubes.connect(self.url, **options)


@pytest.mark.sample(7)
@pytest.mark.parametrize("group", GROUPS)
def test_traces_are_reproduced_and_readable_after_reopening(
    tmp_path: Path, group: str, subtests: pytest.Subtests
) -> None:
    for trace in GROUPS[group][::5]:
        with subtests.test(trace.name):
            face = FolderFace(tmp_path)
            Replay(face, trace, USUAL | {BY_QUIRK[quirk] for quirk in trace.quirks}).run()
            with tubes.connect(face.url) as queue:
                for name in queue.tubes():
                    check_engine(port_of(queue.tube(name)).shared.engine)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", DRIVERS)
def test_long_random_run_matches_the_model(tmp_path: Path, name: str) -> None:
    run_with_model(DRIVERS[name], 1, f"file:{tmp_path}", 500)
