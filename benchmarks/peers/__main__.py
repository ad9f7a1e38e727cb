"""Measure tubes and its peers: `python -m benchmarks.peers [--quick] [-k NAME] [--json FILE] [--write-readme]`."""

from __future__ import annotations

import argparse
import json
import signal
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from benchmarks.peers import plot, table
from benchmarks.peers.environments import CannotInstall, python_of
from benchmarks.peers.measure import Stage
from benchmarks.peers.registry import SUBJECTS, Subject, select_subjects
from benchmarks.peers.results import Figures, Results
from benchmarks.peers.servers import NotInstalled, versions
from benchmarks.shared.arguments import new_file
from benchmarks.shared.report import machine

#: The number of rounds, and the fraction of the tasks.
FULL = (5, 0.6)
QUICK = (2, 0.3)
#: A subject is skipped after this many failures.
ENOUGH = 2


def install(results: Results, subjects: tuple[Subject, ...], console: Console) -> None:
    """Install all peers before any measurement; leave out peers that cannot be installed."""
    for subject in subjects:
        try:
            with console.status(f"pip install {' '.join(subject.packages)}"):
                python_of(subject.packages)
        except CannotInstall as error:
            _give_up(results.figures[subject.key], subject, error, console)


def _give_up(figures: Figures, subject: Subject, error: Exception, console: Console) -> None:
    figures.why = str(error) or type(error).__name__
    figures.failures = ENOUGH if isinstance(error, (CannotInstall, NotInstalled)) else figures.failures + 1
    console.print(f"{subject.key}: {figures.why}", style="red", markup=False)


def measure(results: Results, subjects: tuple[Subject, ...], share: float, console: Console) -> None:
    """Measure all subjects in turn in each round, until the last round or Ctrl-C."""
    with Stage(results.server, share) as stage, suppress(KeyboardInterrupt):
        for number in range(1, results.rounds + 1):
            start = time.monotonic()
            for subject in subjects:
                figures = results.figures[subject.key]
                if figures.failures >= ENOUGH:
                    continue
                try:
                    with console.status(f"round {number} of {results.rounds}: {subject.key}"):
                        turn, figures.versions = stage.turn(subject)
                except Exception as error:  # a peer that fails does not end the run
                    _give_up(figures, subject, error, console)
                else:
                    figures.turns.append(turn)
                results.yardsticks = stage.yardsticks()
            console.print(f"round {number} of {results.rounds}: {time.monotonic() - start:.0f} seconds")


def main() -> None:
    """Measure and show the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer tasks and rounds, for a quick look")
    parser.add_argument("-k", metavar="NAME", help="only peers whose names contain this")
    parser.add_argument(
        "--server", choices=("valkey", "redis"), default="valkey", help="the server of the peers on Redis"
    )
    parser.add_argument("--json", metavar="FILE", type=new_file(), help="keep all figures")
    parser.add_argument(
        "--again", metavar="FILE", type=Path, help="measure nothing: show the results in a file of --json"
    )
    parser.add_argument("--plot", metavar="FILE", type=new_file(".png"), help="write a plot, as .png")
    parser.add_argument("--write-readme", action="store_true", help="write the tables and the plot into benchmarks/")
    args = parser.parse_args()
    if args.write_readme and (args.quick or args.k or args.again):
        parser.error("--write-readme requires a full run of all peers")
    if args.again and args.k:
        parser.error(f"-k {args.k}: not allowed with --again, which shows all results")
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)
    rounds, share = QUICK if args.quick else FULL
    if args.again:
        try:
            results = Results.from_json(json.loads(args.again.read_text()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(f"--again {args.again}: must be a file written by --json: {error!r}")
    else:
        subjects = select_subjects(args.k)
        if not subjects:
            parser.error(
                f"-k {args.k}: matches no name; the names are {'; '.join(subject.key for subject in SUBJECTS)}"
            )
        figures = {subject.key: Figures() for subject in subjects}
        results = Results(machine(), args.server, rounds, figures, servers=versions())
        # Stop the started processes on SIGTERM as on Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        install(results, subjects, console)
        measure(results, subjects, share, console)
    table.show(results, console)
    if args.json:
        args.json.write_text(json.dumps(results.as_json(), indent=1))
    if args.plot:
        plot.draw(results, args.plot)
    if args.write_readme:
        table.write_readme(results)
        plot.draw(results, Path(__file__).parent / "plot.png")


if __name__ == "__main__":
    main()
