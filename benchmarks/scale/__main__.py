"""What a verb costs when much waits: `python -m benchmarks.scale [--quick] [--write-readme] [--json FILE]`.

Sizes of one subject are measured in turn, in one run; what counts is the ratio to the smallest of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.scale import lanes, plot, show, takers, verbs
from benchmarks.scale.figures import Figures
from benchmarks.scale.places import Memory, Place, Server
from benchmarks.shared.arguments import new_file

_PLOT: Final = Path(__file__).parent / "plot.png"


@dataclass(frozen=True)
class Extent:
    """How much a run measures."""

    waiting: list[int]
    #: In memory, fifo alone.
    most: int | None
    behind: list[int]
    due: list[int]
    takers: list[int]
    rounds: int
    #: Calls of a verb in a round. Twice as many tasks are taken at once, each of another utube.
    count: int
    #: Tasks that are handed over one by one.
    tasks: int


FULL: Final = Extent(
    waiting=[1_000, 100_000, 1_000_000],
    most=10_000_000,
    behind=[1_000, 15_000, 150_000],
    due=[1_000, 10_000, 100_000],
    takers=[1, 20, 200],
    rounds=7,
    count=250,
    tasks=100,
)
QUICK: Final = Extent(
    waiting=[1_000, 100_000],
    most=None,
    behind=[100, 10_000],
    due=[100, 10_000],
    takers=[1, 50],
    rounds=5,
    count=200,
    tasks=50,
)
#: Of the drivers with utubes the one that costs more: filling takes longer than measuring.
_LANES: Final = "utubettl"
#: Bytes that a process needs in which 11 million tasks wait.
_NEEDED: Final = 5 * 2**30


def available() -> int | None:
    """Bytes of memory that are free, where the system says so."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _measure_due(figures: Figures, place: Place, sizes: list[int]) -> None:
    """In a place of its own: a server that has just let go of millions of tasks gives memory back for a while."""
    with type(place)() as fresh:
        lanes.measure_due(figures, fresh, sizes, 2)


def measure(extent: Extent, places: list[Place], say: Callable[[str], None]) -> Figures:
    """Measure everything."""
    figures = Figures()
    for place in places:
        steps: list[tuple[str, Callable[[], None]]] = []
        for driver in verbs.DRIVERS:
            sizes = extent.waiting
            if extent.most and driver == "fifo" and place.name == Memory.name:
                free = available()
                if free is None or free > _NEEDED:
                    sizes = [*sizes, extent.most]
                else:
                    say(f"{extent.most:,} tasks are left out: they need {_NEEDED >> 30} GiB")
            step = partial(verbs.measure, figures, place, driver, sizes, extent.rounds, extent.count)
            steps.append((driver, step))
        step = partial(verbs.measure, figures, place, _LANES, extent.waiting, extent.rounds, extent.count, True)
        steps.append(("a utube per task", step))
        turns = extent.count // 10
        steps.append(
            ("busy utubes", partial(lanes.measure_busy, figures, place, _LANES, extent.behind, extent.rounds, turns))
        )
        # Each task is taken once: a round is long where many are due.
        steps.append(("due at once", partial(_measure_due, figures, place, extent.due)))
        steps.append(("takers", partial(takers.measure_takers, figures, place, extent.takers, 3, extent.tasks)))
        for what, act in steps:
            began = time.perf_counter()
            act()
            say(f"{place.name}: {what} ({time.perf_counter() - began:.0f} s)")
    return figures


def main() -> int:
    """Measure, and show."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer tasks: for a first look")
    parser.add_argument("--place", choices=["memory", "valkey"], help="only one of both")
    parser.add_argument("--json", type=new_file(), metavar="FILE", help="write every figure there")
    parser.add_argument("--plot", type=new_file(".png"), metavar="FILE", help="write the plot there, as .png")
    parser.add_argument("--write-readme", action="store_true", help="table and plot into benchmarks/")
    asked = parser.parse_args()
    if asked.write_readme and (asked.quick or asked.place):
        parser.error("--write-readme keeps the result of a full run")

    def say(what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    extent, figures = QUICK if asked.quick else FULL, Figures()
    if asked.place == "memory":
        figures = measure(extent, [Memory()], say)
    else:
        with Server() as server:
            figures = measure(extent, [server] if asked.place else [Memory(), server], say)
    show.show(figures)
    if asked.json:
        asked.json.write_text(json.dumps(list(figures.rows()), indent=1) + "\n")
    if asked.plot:
        plot.draw(figures, asked.plot)
    if asked.write_readme:
        show.write_readme(figures)
        plot.draw(figures, _PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
