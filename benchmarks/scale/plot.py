"""The plot of a run: the cost of the calls of each subject by its size."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.scale.figures import Figures, Subject
from benchmarks.shared.plots import save

_COLUMNS: Final = 4
#: The colour of each call, the same in all panels.
_COLOURS: Final[dict[str, Any]] = {
    method: f"C{number}"
    for number, method in enumerate(("put", "take", "ack", "release", "touch", "peek", "bury", "kick", "delete"))
}
_STYLES: Final = {"longest call": "--", "longest script": ":"}
_TICKS: Final = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
#: The units whose panels share a row of the plot.
_ROWS: Final = (
    {"waiting tasks"},
    {"utubes of one task", "tasks in each"},
    {"tasks due at once", "waiting takes"},
)


def short(size: float) -> str:
    """Format a size for an axis.

    >>> short(100_000), short(10_000_000), short(200)
    ('100k', '10M', '200')
    """
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if size >= unit:
            return f"{size / unit:g}{letter}"
    return f"{size:g}"


def draw(figures: Figures, path: Path) -> None:
    """Write the plot as a PNG."""
    subjects = figures.subjects()
    places = dict.fromkeys(subject.place for subject in subjects)
    rows = [
        [subject for subject in subjects if subject.unit in units and subject.place == place]
        for units in _ROWS
        for place in places
    ]
    figure: Any = Figure(figsize=(4 * _COLUMNS, 3 * len(rows) + 1), layout="constrained")
    panels = figure.subplots(len(rows), _COLUMNS, squeeze=False)
    lines: dict[str, Any] = {}
    for row, there in zip(rows, panels, strict=True):
        for number, axes in enumerate(there):
            if number < len(row):
                lines |= _panel(axes, figures, row[number])
            else:
                axes.set_visible(False)
    figure.suptitle("Cost of each method, as a multiple of its cost at the smallest size", fontsize=16)
    figure.supylabel("times its cost at the smallest size, logarithmic")
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines), fontsize=12)
    save(figure, path)


def _panel(axes: Any, figures: Figures, subject: Subject) -> dict[str, Any]:
    sizes = figures.sizes(subject)
    lines: dict[str, Any] = {}
    highest = 2.0
    for method in figures.methods(subject):
        ratios = [figures.cell(subject, size, method).ratio for size in sizes]
        highest = max(highest, *ratios)
        look = {"color": _COLOURS.get(method, "black"), "linestyle": _STYLES.get(method, "-")}
        (lines[method],) = axes.plot(sizes, ratios, marker="o", markersize=4, **look)
    axes.axhline(1, color="grey", linewidth=0.7)
    axes.set_xscale("log")
    axes.set_yscale("log", base=2)
    axes.set_ylim(0.4, highest * 1.25)
    axes.yaxis.set_major_locator(FixedLocator(_TICKS))
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(f"{subject}\n({'time of the server' if subject.by_server else 'time of the call'})", fontsize=11)
    axes.set_xlabel(subject.unit)
    axes.grid(alpha=0.3)
    return lines


def _plain(value: float, _: object) -> str:
    return f"{value:g}"


def _short(value: float, _: object) -> str:
    return short(value)
