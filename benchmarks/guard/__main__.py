"""Check for regressions in time and memory: `python -m benchmarks.guard [--update]`, by hand or nightly.

Compare ratios (never times) of a fresh run with those of `ratios.json`: cycles and wake-ups in memory relative to the
standard library's queues, workers to a loop, calls on a Valkey to PING, bytes per waiting task, and the cost with many
waiting tasks to that with few. Exit with 1 if a ratio is missing, or worse by more than its tolerance in two runs.
`--update` measures several times and writes the file.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.shared.report import machine

_FILE: Final = Path(__file__).parent / "ratios.json"
#: The benchmarks to run, as an expression for pytest's -k.
_SELECTION: Final = (
    "cycle-1000- or test_options or (test_contended and asyncio) or test_memory or test_polite"
    " or test_wakeup or test_worker or (valkey and (test_round_trips or test_batches or test_bytes))"
)
#: Rows to ignore: other queues, single measurements, times, and rows dominated by the scheduling of threads.
_NOT_OURS: Final = ("queue.", "asyncio.")
_SKIPPED: Final = ("a put, until", "p99", "plain handler", "a time: time")
#: The calls whose mean cost with many tasks is compared with that with few.
_METHODS: Final = ("put", "take", "ack")
#: Relative tolerance of a ratio: the minimum, and the factor applied to the spread of several runs.
_MIN_TOLERANCE: Final = 0.15
_SPREAD_FACTOR: Final = 3.0
#: Maximum tolerance: a larger spread means that the machine was busy.
_MAX_TOLERANCE: Final = 0.6
#: Minimum tolerance of bytes, which hardly differ from run to run.
_MIN_TOLERANCE_OF_BYTES: Final = 0.03
_BYTES: Final = "a waiting task"
_RUNS: Final = 4
#: Ignore one outlier per this many runs in each row, since the machine may have been busy for a moment. For the same
#: reason, a comparison that fails is measured a second time.
_RUNS_PER_OUTLIER: Final = 4
#: The minimum number of runs with a meaningful spread.
_MIN_RUNS: Final = 2

Outcome = Literal["worse", "better", "same", "missing", "new"]


class Baseline(NamedTuple):
    """The committed values of a row."""

    ratio: float
    #: The relative increase that still counts as the same.
    tolerance: float


class Row(NamedTuple):
    """One row, with its committed and its new ratio."""

    name: str
    baseline: Baseline | None
    now: float | None

    @property
    def change(self) -> float:
        """Return the relative increase; below 0 is better."""
        return 0.0 if self.baseline is None or self.now is None else self.now / self.baseline.ratio - 1

    @property
    def outcome(self) -> Outcome:
        """Return the outcome. A row is better if the reverse change would be worse."""
        if self.baseline is None:
            return "new"
        if self.now is None:
            return "missing"
        if not (self.now > 0 and self.change <= self.baseline.tolerance):  # written so that NaN is worse
            return "worse"
        return "better" if 1 / (1 + self.change) - 1 > self.baseline.tolerance else "same"


def compare(baselines: Mapping[str, Baseline], fresh: Mapping[str, float]) -> list[Row]:
    """Return each row with its committed and its measured ratio: committed rows first, in order, then new ones."""
    names = [*baselines, *(name for name in fresh if name not in baselines)]
    return [Row(name, baselines.get(name), fresh.get(name)) for name in names]


def has_failed(rows: Iterable[Row]) -> bool:
    """Return True if a row is worse or missing, or if no row was compared."""
    outcomes = {row.outcome for row in rows}
    return bool(outcomes & {"worse", "missing"}) or outcomes <= {"new"}


def find_noisy_rows(baselines: Mapping[str, Baseline]) -> list[str]:
    """Return the rows whose spread is too large for a useful comparison."""
    return [name for name, row in baselines.items() if not row.tolerance <= _MAX_TOLERANCE]


def find_best(runs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the smallest ratio of each row: noise makes a run worse and hardly ever better."""
    found: dict[str, float] = {}
    for run in runs:
        for name, ratio in run.items():
            found[name] = min(ratio, found.get(name, ratio))
    return found


def _check_ratio(name: str, ratio: float) -> float:
    if not 0 < ratio < math.inf:
        raise ValueError(f"{name}: must be a number above 0, got {ratio}")
    return ratio


def derive_baselines(runs: list[dict[str, float]]) -> dict[str, Baseline]:
    """Return the values to commit: the medians of several runs, each with a tolerance derived from their spread.

    Raises `ValueError` for an invalid ratio, and for a row that is missing from a run.
    """
    baselines: dict[str, Baseline] = {}
    for name in dict.fromkeys(name for run in runs for name in run):
        ratios = [_check_ratio(name, run.get(name, math.nan)) for run in runs]
        middle = median(ratios)
        spread = sorted(abs(ratio / middle - 1) for ratio in ratios)[-1 - len(ratios) // _RUNS_PER_OUTLIER]
        least = _MIN_TOLERANCE_OF_BYTES if _BYTES in name else _MIN_TOLERANCE
        baselines[name] = Baseline(round(middle, 4), round(max(least, _SPREAD_FACTOR * spread), 3))
    return baselines


def load(path: Path = _FILE) -> dict[str, Baseline]:
    """Read the committed values."""
    try:
        rows: dict[str, Any] = json.loads(path.read_text())["rows"]
        return {
            name: Baseline(_check_ratio(name, row["ratio"]), _check_ratio(name, row["tolerance"]))
            for name, row in rows.items()
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path} cannot be read: {error!r}; without that file --update writes a new one") from None


def save(baselines: Mapping[str, Baseline], path: Path = _FILE) -> None:
    """Write the values to commit."""
    rows = {name: row._asdict() for name, row in baselines.items()}
    path.write_text(json.dumps({"measured on": machine(), "rows": rows}, indent=1, ensure_ascii=False) + "\n")


def measure() -> dict[str, float]:
    """Run the benchmarks once, in separate processes."""
    with tempfile.TemporaryDirectory() as folder:
        ratios, scale = Path(folder) / "ratios.json", Path(folder) / "scale.json"
        _run("benchmarks", "--quick", "-k", _SELECTION, "--ratios", str(ratios))
        _run("benchmarks.scale", "--quick", "--json", str(scale))
        found: dict[str, float] = json.loads(ratios.read_text())
        found = {name: ratio for name, ratio in found.items() if _is_compared(name)}
        return found | of_scale(json.loads(scale.read_text()))


def _is_compared(name: str) -> bool:
    return not name.startswith(_NOT_OURS) and not any(part in name for part in _SKIPPED)


def of_scale(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean cost of put, take and ack at the largest size, relative to that at the smallest."""
    ratios: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        if row["method"] in _METHODS and "delayed" not in row["subject"]:
            sizes = ratios.setdefault(f"{row['place']}, {row['subject']}: put, take and ack where many wait", {})
            sizes.setdefault(row["size"], []).append(row["ratio"])
    largest = {name: sizes[max(sizes)] for name, sizes in ratios.items()}
    return {name: sum(each) / len(_METHODS) for name, each in largest.items() if len(each) == len(_METHODS)}


def _run(module: str, *arguments: str) -> None:
    print(f"python -m {module} {' '.join(arguments[:3])} …", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, cwd=_FILE.parent.parent.parent, stdout=subprocess.PIPE, text=True) as process:
        try:
            output, _ = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGINT)  # The process has to stop its own servers.
            process.communicate()
            raise
    if process.returncode:
        raise SystemExit(f"{output}\n{module} ended with {process.returncode}")


def show(rows: Iterable[Row]) -> None:
    """Print the comparisons."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    table = Table(title="Ratios: less is better", title_justify="left")
    for name in ("measurement", "committed", "new", "change", "tolerance", ""):
        table.add_column(name, justify="left" if name in ("measurement", "") else "right")
    for row in rows:
        baseline = ("", "") if row.baseline is None else (f"{row.baseline.ratio:.3f}", f"{row.baseline.tolerance:.0%}")
        now = "" if row.now is None else f"{row.now:.3f}"
        change = f"{row.change:+.0%}" if row.baseline and row.now else ""
        style = {"worse": "red", "missing": "red", "better": "green"}.get(row.outcome)
        outcome = "" if row.outcome == "same" else row.outcome
        table.add_row(row.name, baseline[0], now, change, baseline[1], outcome, style=style)
    console.print(table)


def update(runs: int, *, worse: bool) -> int:
    """Measure several times and write the values, unless noise is too large or, without `worse`, a row is worse."""
    try:
        baselines = derive_baselines([measure() for _ in range(runs)])
    except ValueError as error:
        print(f"not written: {error}")
        return 1
    rows = compare(load() if _FILE.exists() else {}, {name: row.ratio for name, row in baselines.items()})
    show(rows)
    if names := find_noisy_rows(baselines):
        print(f"not written: these rows vary too much between runs (is the machine busy?): {', '.join(names)}")
        return 1
    if not worse and (names := [row.name for row in rows if row.outcome in ("worse", "missing")]):
        print(f"not written: these rows are worse or missing (use --worse to accept them): {', '.join(names)}")
        return 1
    save(baselines)
    return 0


def main() -> int:
    """Measure, compare and print the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write benchmarks/guard/ratios.json from several runs")
    parser.add_argument("--worse", action="store_true", help="with --update: accept rows that are worse or missing")
    parser.add_argument("--runs", type=int, help=f"with --update: the number of runs (default: {_RUNS})")
    args = parser.parse_args()
    if args.runs is not None and (not args.update or args.runs < _MIN_RUNS):
        parser.error(f"--runs requires --update and must be at least {_MIN_RUNS}, got {args.runs}")
    if args.worse and not args.update:
        parser.error("--worse requires --update")
    # Stop the started processes on SIGTERM as on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if args.update:
        return update(args.runs or _RUNS, worse=args.worse)
    baselines = load()
    fresh = measure()
    rows = compare(baselines, fresh)
    if has_failed(rows):
        names = ", ".join(row.name for row in rows if row.outcome in ("worse", "missing"))
        print(
            f"worse: {names or 'nothing could be compared'}\nmeasuring again; the better ratio counts", file=sys.stderr
        )
        rows = compare(baselines, find_best([fresh, measure()]))
    show(rows)
    return int(has_failed(rows))


if __name__ == "__main__":
    sys.exit(main())
