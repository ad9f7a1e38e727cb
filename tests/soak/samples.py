"""Samples during a soak, and the check that memory does not grow."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from statistics import linear_regression, mean
from typing import Final, NamedTuple

#: The maximum growth of a fitted line over the second half: relative, or in bytes if this is more.
BOUND: Final = 0.05
LEAST: Final = 2**20
#: The minimum seconds of a part for checking its memory: a shorter one reaches no steady state.
SHORTEST: Final = 120.0


class Sample(NamedTuple):
    """A sample of a part."""

    #: Seconds since the start.
    when: float
    #: The numbers of tasks put and done so far.
    put: int
    done: int
    #: Bytes by owner.
    memory: dict[str, int]


class Growth(NamedTuple):
    """The growth of memory over the second half."""

    what: str
    #: The growth in bytes of a line fitted to the second half, and the average bytes.
    grown: float
    average: float
    #: Tasks that were done meanwhile.
    tasks: int

    @property
    def bound(self) -> float:
        """Return the maximum growth in bytes."""
        return max(BOUND * self.average, LEAST)

    @property
    def is_flat(self) -> bool:
        return self.grown <= self.bound

    def __str__(self) -> str:
        each = self.grown / max(self.tasks, 1)
        return (
            f"{self.what}: {self.grown / 2**20:+.2f} MiB of {self.average / 2**20:.1f}, "
            f"{each:+.1f} bytes per task done, bound {self.bound / 2**20:.2f} MiB"
        )


def growths(samples: Sequence[Sample]) -> list[Growth]:
    """Return the growth of each owner over the second half; empty if the second half is too short."""
    if not samples or samples[-1].when < SHORTEST:
        return []
    half = [sample for sample in samples if sample.when >= samples[-1].when / 2]
    tasks = half[-1].done - half[0].done
    found: list[Growth] = []
    for what in half[-1].memory:
        points = [(sample.when, sample.memory[what]) for sample in half if what in sample.memory]
        line = linear_regression([when for when, _ in points], [size for _, size in points])
        grown = line.slope * (points[-1][0] - points[0][0])
        found.append(Growth(what, grown, mean(size for _, size in points), tasks))
    return found


def resident(process: int) -> int:
    """Return the resident memory of a process in bytes."""
    pages = Path(f"/proc/{process}/statm")
    if pages.exists():
        return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    result = subprocess.run(["ps", "-o", "rss=", "-p", str(process)], capture_output=True, text=True, check=True)
    return int(result.stdout) * 1024
