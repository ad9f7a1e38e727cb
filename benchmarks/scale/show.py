"""The table of a run, for the terminal and README.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.scale.figures import Figures, Subject
from benchmarks.shared.report import duration, machine, write_result

README: Final = Path(__file__).parent / "README.md"
#: Calls whose cost grows by this factor are highlighted.
MUCH: Final = 2.0


def _cells(figures: Figures, subject: Subject) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Yield the costs of the calls by size, each as time and ratio."""
    for size in figures.sizes(subject):
        cells = [(method, figures.cell(subject, size, method)) for method in figures.methods(subject)]
        yield f"{size:,}", [(f"{duration(cell.seconds)} · {cell.ratio:.2f}", cell.ratio) for _, cell in cells]


def show(figures: Figures) -> None:
    """Print a table for each subject."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)
    for subject in figures.subjects():
        time = "time of the server" if subject.by_server else "time per call"
        table = Table(title=f"{subject}: {time} · ratio to the smallest size", title_justify="left")
        table.add_column(subject.unit, justify="right")
        for method in figures.methods(subject):
            table.add_column(method, justify="right")
        for size, cells in _cells(figures, subject):
            table.add_row(size, *(f"[red]{text}[/red]" if ratio > MUCH else text for text, ratio in cells))
        console.print(table)


def write_readme(figures: Figures) -> None:
    """Write the table into README.md, between its marks: times of the smallest size, ratios of the others."""
    lines = [
        f"One result, of {machine()}. The smallest size of each subject has times, the others ratios to it.",
        "\n![Cost of each method, by number of waiting tasks](plot.png)",
    ]
    shapes: dict[tuple[str, ...], list[Subject]] = {}
    for subject in figures.subjects():
        # Subjects with the same methods share a table. A subject without touch gets an empty cell.
        methods = tuple(method for method in figures.methods(subject) if method != "touch")
        shapes.setdefault(methods, []).append(subject)
    for subjects in shapes.values():
        columns = max((figures.methods(subject) for subject in subjects), key=len)
        lines += ["", f"| | | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
        for subject in subjects:
            sizes, has = figures.sizes(subject), figures.methods(subject)
            for size in sizes:
                cells = [figures.cell(subject, size, method) if method in has else None for method in columns]
                texts = ["" if cell is None else _text(cell.seconds, cell.ratio, size == sizes[0]) for cell in cells]
                lines.append(f"| {subject} | {size:,} {subject.unit} | {' | '.join(texts)} |")
    write_result(README, "scale", "\n".join(lines))


def _text(seconds: float, ratio: float, smallest: bool) -> str:
    return duration(seconds) if smallest else f"{ratio:.2f}"
