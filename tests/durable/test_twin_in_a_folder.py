"""Twins: the same random calls in memory and in a folder, which is reopened repeatedly."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import tubes
from tests.on_redis.test_twin import DRIVERS, LEASE, Side, Twins, outcome
from tests.support.internals import port_of
from tubes.drivers.invariants import check_engine

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 120


class FolderTwins(Twins):
    """Both sides; the folder can be reopened."""

    def check(self, client: object) -> None:
        """Check the indexes of both sides."""
        for side in self.sides:
            check_engine(port_of(side.tube).shared.engine)

    def reopen(self, folder: Path, killed: Path) -> None:
        """End all sessions and reopen the folder; `killed`: the path for a copy of the folder before that."""
        # Let lost sessions end, since they would keep the store open.
        self.clock.advance(LEASE)
        self.compare()
        shutil.copytree(folder, killed)
        for worker in range(3):
            for side in self.sides:
                side.leave(worker, False)
        before = self.sides[1]
        before.close()
        after = Side.__new__(Side)
        vars(after).update(vars(before))
        self.open(after, folder)
        after.workers = [after.root.session() for _ in range(3)]
        after.tasks.clear()
        self.sides[0].tasks.clear()
        self.sides[1] = after
        self.compare()
        self.check(None)
        again = Side.__new__(Side)
        self.open(again, killed)
        assert again.tube.statistics() == after.tube.statistics()
        for id in range(self.puts):
            assert outcome(lambda: again.tube.peek(id))[1] == outcome(lambda: after.tube.peek(id))[1]  # noqa: B023
        check_engine(port_of(again.tube).shared.engine)
        again.root.close()

    def open(self, side: Side, folder: Path) -> None:
        side.root = tubes.connect(f"file:{folder}", clock=self.clock, session_ttl=LEASE)
        if isinstance(self.driver, tubes.Driver):
            side.root.admin.register_driver(self.driver)
        side.tube, side.target = side.root.tube("twin"), side.root.tube("target")


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", DRIVERS)
def test_memory_and_folder_behave_alike_across_reopening(name: str, tmp_path: Path) -> None:
    driver, options = DRIVERS[name]
    twins = FolderTwins(f"file:{tmp_path / 'store'}", driver, options, 1, listens=False)
    try:
        for step in range(STEPS):
            twins.step()
            if step % 10 == 9:
                twins.compare()
            if step % 40 == 39:
                twins.reopen(tmp_path / "store", tmp_path / f"killed-{step}")
    finally:
        twins.close()
