"""Count lost and repeated tasks under faults: `python -m benchmarks.chaos [--quick] [-k PART]`."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final

from benchmarks.chaos.cell import FAULTS, STUCK, measure, why_not
from benchmarks.chaos.systems import SYSTEMS, System
from benchmarks.peers.environments import CannotInstall, installed, python_of
from benchmarks.peers.servers import versions
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.report import Row, keep

#: The tasks of a cell: they are put in 20 seconds.
TASKS: Final = 600
#: Seconds after which a task of a quick run is stuck.
QUICK: Final = 15.0
#: Cells that are measured at a time: they mostly wait.
LANES: Final = 16
#: Seconds after which no cell begins, so that a run takes about ten minutes.
LATEST: Final = 540.0


def main() -> None:
    """Measure the cells, several at a time, and print them as they end; a run without arguments keeps them."""
    parser = parser_of("chaos", __doc__)
    parser.add_argument("--quick", action="store_true", help=f"tasks are stuck after {QUICK:g} seconds")
    args = parser.parse_args()
    cells = [
        (system, fault) for system in SYSTEMS for fault in FAULTS if args.k.lower() in f"{system.name} {fault}".lower()
    ]
    about = versions() | installed()
    for rows in measure_all(cells, QUICK if args.quick else STUCK):
        if len(sys.argv) == 1:
            keep(Path(__file__).parent, rows, versions=about)


def measure_all(cells: list[tuple[System, str]], stuck_after: float) -> Iterator[list[Row]]:
    """Measure these cells, and yield all rows after each of them; those that are not measured say why."""
    start = time.monotonic()
    found: dict[tuple[str, str], Row] = {
        (system.name, fault): {"why": "not measured: the run was stopped before its end"} for system, fault in cells
    }
    cannot: dict[System, str] = {}
    for system in {system for system, _ in cells}:
        try:
            python_of(system.packages)
        except CannotInstall as error:
            cannot[system] = f"not measured: {error}"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(LANES, mp_context=context, max_tasks_per_child=1) as pool:
        waiting: dict[Future[Any], tuple[str, str]] = {}
        for system, fault in cells:
            if why := cannot.get(system) or why_not(system, fault):
                found[system.name, fault] = {"why": why}
            else:
                waiting[pool.submit(measure, system, fault, TASKS, stuck_after, start + LATEST)] = system.name, fault
        for future in as_completed(waiting):
            found[waiting[future]] = future.result()
            print(f"{time.monotonic() - start:4.0f} s: {', '.join(waiting[future])}: {future.result()}", flush=True)
            yield [{"system": system.name, "fault": fault, **found[system.name, fault]} for system, fault in cells]


if __name__ == "__main__":
    main()
