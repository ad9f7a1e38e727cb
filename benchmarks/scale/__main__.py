"""Measure calls with many waiting tasks: `python -m benchmarks.scale [--quick] [--write-readme] [--json FILE]`.

The sizes of one subject are measured in turn, in one run. The result is the ratio to the smallest size.
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

from benchmarks.scale import lanes, methods, plot, show, waiting_takes
from benchmarks.scale.figures import Figures
from benchmarks.scale.places import Memory, Place, Server
from benchmarks.shared.arguments import new_file

_PLOT: Final = Path(__file__).parent / "plot.png"


@dataclass(frozen=True)
class Extent:
    """The extent of a run."""

    waiting: list[int]
    #: The largest size, for fifo in memory only.
    most: int | None
    busy: list[int]
    due: list[int]
    waiting_takes: list[int]
    rounds: int
    #: Calls of a method per round. Twice as many tasks are taken at once, each of a different utube.
    count: int
    #: Tasks handed to waiting takes one by one.
    tasks: int


FULL: Final = Extent(
    waiting=[1_000, 100_000, 1_000_000],
    most=10_000_000,
    busy=[1_000, 15_000, 150_000],
    due=[1_000, 10_000, 100_000],
    waiting_takes=[1, 20, 200],
    rounds=7,
    count=250,
    tasks=100,
)
QUICK: Final = Extent(
    waiting=[1_000, 100_000],
    most=None,
    busy=[100, 10_000],
    due=[100, 10_000],
    waiting_takes=[1, 50],
    rounds=5,
    count=200,
    tasks=50,
)
#: The more expensive of the drivers with utubes. The other one is left out, since filling takes longer than measuring.
_LANES: Final = "utubettl"
#: Bytes of memory for a process with 11 million waiting tasks.
_NEEDED: Final = 5 * 2**30


def available() -> int | None:
    """Return the bytes of free memory, or None if the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _measure_due(figures: Figures, place: Place, sizes: list[int]) -> None:
    """Measure on a fresh server: a server that has just deleted millions of tasks frees memory for a while."""
    with type(place)() as fresh:
        lanes.measure_due(figures, fresh, sizes, 2)


def measure(extent: Extent, places: list[Place], report: Callable[[str], None]) -> Figures:
    """Measure all subjects."""
    figures = Figures()
    for place in places:
        steps: list[tuple[str, Callable[[], None]]] = []
        for driver in methods.DRIVERS:
            sizes = extent.waiting
            if extent.most and driver == "fifo" and place.name == Memory.name:
                free = available()
                if free is None or free > _NEEDED:
                    sizes = [*sizes, extent.most]
                else:
                    report(f"{extent.most:,} tasks are left out: they need {_NEEDED >> 30} GiB")
            step = partial(methods.measure, figures, place, driver, sizes, extent.rounds, extent.count)
            steps.append((driver, step))
        step = partial(methods.measure, figures, place, _LANES, extent.waiting, extent.rounds, extent.count, True)
        steps.append(("a utube per task", step))
        turns = extent.count // 10
        steps.append(
            ("busy utubes", partial(lanes.measure_busy, figures, place, _LANES, extent.busy, extent.rounds, turns))
        )
        # Each task is taken once, so a round with many due tasks is long.
        steps.append(("due at once", partial(_measure_due, figures, place, extent.due)))
        steps.append(
            (
                "waiting takes",
                partial(waiting_takes.measure_waiting_takes, figures, place, extent.waiting_takes, 3, extent.tasks),
            )
        )
        for what, act in steps:
            began = time.perf_counter()
            act()
            report(f"{place.name}: {what} ({time.perf_counter() - began:.0f} s)")
    return figures


def main() -> int:
    """Measure and show the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer tasks, for a quick look")
    parser.add_argument("--place", choices=["memory", "valkey"], help="measure only this place")
    parser.add_argument("--json", type=new_file(), metavar="FILE", help="write all figures to this file")
    parser.add_argument("--plot", type=new_file(".png"), metavar="FILE", help="write the plot to this file, as .png")
    parser.add_argument("--write-readme", action="store_true", help="write the table and the plot into benchmarks/")
    args = parser.parse_args()
    if args.write_readme and (args.quick or args.place):
        parser.error("--write-readme requires a full run")

    def report(what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    extent, figures = QUICK if args.quick else FULL, Figures()
    if args.place == "memory":
        figures = measure(extent, [Memory()], report)
    else:
        with Server() as server:
            figures = measure(extent, [server] if args.place else [Memory(), server], report)
    show.show(figures)
    if args.json:
        args.json.write_text(json.dumps(list(figures.rows()), indent=1) + "\n")
    if args.plot:
        plot.draw(figures, args.plot)
    if args.write_readme:
        show.write_readme(figures)
        plot.draw(figures, _PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
