"""Count lost and repeated tasks under faults: `python -m benchmarks.chaos [--quick] [-k NAME] [--write-readme]`."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final

from benchmarks.chaos.cell import FAULTS, STUCK, measure, why_not
from benchmarks.chaos.systems import SYSTEMS
from benchmarks.peers.environments import CannotInstall, python_of
from benchmarks.peers.servers import versions
from benchmarks.shared.arguments import new_file
from benchmarks.shared.report import machine, write_result

#: The tasks of a cell: they are put in 20 seconds.
TASKS: Final = 600
#: Seconds after which a task of a quick run is stuck.
QUICK: Final = 15.0
#: Cells that are measured at a time: they mostly wait.
LANES: Final = 16
#: Seconds after which no cell begins, so that a run takes at most ten minutes.
LATEST: Final = 480.0
_FOLDER: Final = Path(__file__).parent


def render(results: dict[str, Any]) -> str:
    """Return the results as Markdown: a table for each fault."""
    found = ", ".join(f"{name} {number}" for name, number in results["servers"].items())
    lines = [f"Measured on {results['date']} on {results['machine']}; {found}; {results['tasks']} tasks a cell."]
    head = ["system", "lost", "twice", "unexplained", "goes on after s", "stuck", "puts refused", "faults", "restarts"]
    keys = ("lost", "twice", "unexplained", "resumed", "stuck", "refused", "kills", "restarts")
    for fault, (title, _) in FAULTS.items():
        cells = {name: row[fault] for name, row in results["cells"].items() if fault in row}
        if not cells:
            continue
        lines += ["", f"{title[0].upper()}{title[1:]}:", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for name, cell in cells.items():
            if why := cell.get("why") or cell.get("error"):
                lines.append(f"| {name} | {why} |{' |' * (len(head) - 2)}")
            else:
                resumed = "never" if cell["resumed"] is None else f"{cell['resumed']:.1f}"
                shown = [resumed if key == "resumed" else f"{cell[key]}" for key in keys]
                lines.append(f"| {name} | {' | '.join(shown)} |")
    lines += ["", "Settings:", "", "| system | settings |", "|---|---|"]
    lines += [f"| {system.name} | {system.settings} |" for system in SYSTEMS if system.name in results["cells"]]
    return "\n".join(lines)


def main() -> None:
    """Measure the cells, several at a time, and show them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"tasks are stuck after {QUICK:g} seconds")
    parser.add_argument(
        "-k", metavar="NAME", default="", help="only cells whose names contain this: rq, kill, huey cut"
    )
    parser.add_argument("--json", metavar="FILE", type=new_file(), help="keep all figures")
    parser.add_argument("--write-readme", action="store_true", help="write the tables and results.json")
    args = parser.parse_args()
    if args.write_readme and (args.quick or args.k):
        parser.error("--write-readme requires a full run of all cells")
    results = run(args.k.lower(), QUICK if args.quick else STUCK)
    print(render(results))
    for file in ([args.json] if args.json else []) + ([_FOLDER / "results.json"] if args.write_readme else []):
        file.write_text(json.dumps(results, indent=1) + "\n")
    if args.write_readme:
        write_result(_FOLDER / "README.md", "chaos", render(results))


def run(part: str, stuck_after: float) -> dict[str, Any]:
    """Measure all cells with this part in their names."""
    start = time.monotonic()
    chosen = [(system, fault) for system in SYSTEMS for fault in FAULTS if part in f"{system.name} {fault}".lower()]
    cells: dict[str, dict[str, Any]] = {system.name: {} for system, _ in chosen}
    for system in {system for system, _ in chosen}:
        try:
            python_of(system.packages)
        except CannotInstall as error:
            cells[system.name] = {fault: {"why": f"not measured: {error}"} for fault in FAULTS}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(LANES, mp_context=context, max_tasks_per_child=1) as pool:
        waiting = {}
        for system, fault in chosen:
            if why := why_not(system, fault):
                cells[system.name][fault] = {"why": why}
            elif fault not in cells[system.name]:
                waiting[pool.submit(measure, system, fault, TASKS, stuck_after, start + LATEST)] = system, fault
        for future in as_completed(waiting):
            system, fault = waiting[future]
            cells[system.name][fault] = future.result()
            print(f"{time.monotonic() - start:4.0f} s: {system.name}, {fault}: {future.result()}", flush=True)
    return {
        "date": time.strftime("%-d %B %Y"),
        "machine": machine(),
        "servers": versions(),
        "tasks": TASKS,
        "stuck after": stuck_after,
        "seconds": round(time.monotonic() - start),
        "cells": cells,
    }


if __name__ == "__main__":
    main()
