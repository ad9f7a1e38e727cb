"""The results, and the table that compares them with their goals."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, Literal

from rich.console import Console
from rich.table import Table

from benchmarks.shared.report import duration, machine, write_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Side = Literal["ours", "yardstick"]
#: The section or subject of a row, and its cells.
Row = tuple[str, list[str]]

_README: Final = Path(__file__).parent / "README.md"


@dataclass(frozen=True)
class Comparison:
    """A comparison of two sides. The table shows the worst one per `section` and `what`."""

    section: str
    what: str
    yardstick: str
    detail: str = ""
    goal: float | None = None
    later: float | None = None
    unit: Literal["s", "bytes", "switches"] = "s"


@dataclass
class Sides:
    """The figures of both sides of a comparison, one per pass."""

    ours: list[float] = field(default_factory=list[float])
    yardstick: list[float] = field(default_factory=list[float])

    @property
    def ratio(self) -> float:
        """Return the median of the ratios of the passes: the two sides of a pass were measured close together."""
        return median(a / b for a, b in zip(self.ours, self.yardstick, strict=False))


@dataclass(frozen=True)
class Operation:
    """An operation of a subject at one size, for the table of all operations."""

    subject: str
    waiting: int
    name: str


class Results:
    """All results of a run."""

    def __init__(self) -> None:
        self._comparisons: dict[Comparison, Sides] = {}
        self._operations: dict[Operation, Sides] = {}

    def compare(self, comparison: Comparison, side: Side, figure: float) -> None:
        """Record the figure of one pass: seconds or bytes."""
        getattr(self._comparisons.setdefault(comparison, Sides()), side).append(figure)

    def operation(self, operation: Operation, side: Side, figure: float) -> None:
        """Record the seconds per operation of one pass."""
        getattr(self._operations.setdefault(operation, Sides()), side).append(figure)

    def __bool__(self) -> bool:
        return bool(self._comparisons)

    def sections(self) -> set[str]:
        """Return the sections with results."""
        return {comparison.section for comparison in self._comparisons}

    def _worst(self) -> Iterator[tuple[Comparison, Sides]]:
        """Yield the comparisons section by section, only the worst one for each `what`."""
        by_what: dict[tuple[str, str], list[tuple[Comparison, Sides]]] = {}
        for comparison, sides in self._comparisons.items():
            if sides.ours and sides.yardstick:
                by_what.setdefault((comparison.section, comparison.what), []).append((comparison, sides))
        for _, found in sorted(by_what.items(), key=lambda item: SECTIONS.index(item[0][0])):
            yield max(found, key=lambda pair: pair[1].ratio)

    def ratios(self) -> dict[str, float]:
        """Return the ratio to the yardstick of each comparison, by name."""
        return {comparison.what: sides.ratio for comparison, sides in self._worst()}

    def goals(self) -> Iterator[Row]:
        """Yield the rows of the table of goals, each with its section."""
        for comparison, sides in self._worst():
            section, what = comparison.section, comparison.what
            ratio, goal, later = sides.ratio, comparison.goal, comparison.later
            yield (
                section,
                [
                    f"{what}{comparison.detail and ': ' + comparison.detail}",
                    _figure(median(sides.ours), comparison.unit),
                    f"{comparison.yardstick} {_figure(median(sides.yardstick), comparison.unit)}",
                    f"{ratio:.2f}",
                    "" if goal is None else f"{goal:g}" + ("" if later is None else f" (later {later:g})"),
                    "" if goal is None else _verdict(ratio, goal, later),
                ],
            )

    def operations(self) -> Iterator[Row]:
        """Yield the rows of the table of operations, each with its subject."""
        found = {name: sides for name, sides in self._operations.items() if sides.ours and sides.yardstick}
        rows = sorted({(operation.subject, operation.waiting) for operation in found}, key=lambda row: row[1])
        for subject in dict.fromkeys(operation.subject for operation in found):
            for _, waiting in (row for row in rows if row[0] == subject):
                cells = [subject, f"{waiting:,}"]
                for name in OPERATIONS:
                    sides = found.get(Operation(subject, waiting, name))
                    cells.append("" if sides is None else f"{_figure(median(sides.ours))} · {sides.ratio:.2f}")
                yield subject, cells


OPERATIONS: Final = ("put", "take + ack", "cycle")
#: The parts of the table of goals.
SECTIONS: Final = (
    "cycle",
    "options",
    "batches",
    "size",
    "busy utubes",
    "throttled",
    "wake-up",
    "contended",
    "memory",
    "filling",
    "redis",
    "worker",
)
_GOAL_COLUMNS: Final = ("measurement", "tubes", "yardstick", "ratio", "goal", "met")
_OPERATION_COLUMNS: Final = ("subject", "waiting", *(f"{name} · ratio" for name in OPERATIONS))


def _verdict(ratio: float, goal: float, later: float | None) -> str:
    if later is not None and ratio <= later:
        return "yes, the later one too"
    return "yes" if ratio <= goal else "no"


def _figure(value: float, unit: str = "s") -> str:
    if unit == "switches":
        return f"{value:.3f}"
    return f"{value:,.0f} B" if unit == "bytes" else duration(value)


def show(results: Results) -> None:
    """Print both tables."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    operations = list(results.operations())
    if operations:
        title = "Per operation, and the ratio to the yardstick (queue.Queue; asyncio.Queue where awaited)"
        _print(console, title, _OPERATION_COLUMNS, operations)
    title = f"Goals, on {machine()}: ratios count, times differ from run to run"
    _print(console, title, _GOAL_COLUMNS, results.goals())


def _print(console: Console, title: str, columns: tuple[str, ...], rows: Iterable[Row]) -> None:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or column in ("goal", "met") else "right")
    for _, section in groupby(rows, key=lambda row: row[0]):
        for _, cells in section:
            style = {"no": "red", "yes": "green", "yes, the later one too": "bold green"}.get(cells[-1])
            table.add_row(*cells, style=style)
        table.add_section()
    console.print()
    console.print(table)


def write_readme(results: Results) -> None:
    """Write both tables into README.md, between the marks."""
    tables = [
        f"One result, of {machine()}. Ratios count; the times are those of one noisy machine.\n",
        *_markdown(_GOAL_COLUMNS, results.goals()),
        "\nPer operation, and the ratio to the yardstick of the same run:\n",
        *_markdown(_OPERATION_COLUMNS, results.operations()),
    ]
    write_result(_README, "result", "\n".join(tables))


def _markdown(columns: tuple[str, ...], rows: Iterable[Row]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for _, cells in rows:
        yield f"| {' | '.join(cells)} |"
