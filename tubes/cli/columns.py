"""Tables that fit into a terminal: what must not be cut is not, and what matters least leaves first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

#: Cells between two columns.
_GAP = 2


@dataclass(frozen=True)
class Column:
    """What may become of a column where there is no room for it."""

    name: str
    #: Set to the right: a number.
    right: bool = False
    #: May be cut to so many cells, with an …; None: never.
    least: int | None = None
    #: Leaves as a whole, those with the smallest number first; 0: it stays.
    leaves: int = 0


class Grid:
    """Rows under columns, as many as there is room for."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._rows: list[list[Text]] = []

    def add_row(self, *cells: Text) -> None:
        """A row: a cell for each column."""
        self._rows.append(list(cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table(options.max_width)

    def _table(self, width: int) -> Table:
        sizes = [max((row[number].cell_len for row in self._rows), default=0) for number in range(len(self._columns))]
        widths = fit(self._columns, sizes, width)
        lined = box.SIMPLE_HEAD if sys.stdout.isatty() else None
        made = Table(box=lined, show_edge=False, pad_edge=False, padding=(0, _GAP - bool(lined), 0, 0))
        made.header_style = "bold"
        for number, size in widths.items():
            column = self._columns[number]
            side = "right" if column.right else "left"
            made.add_column(column.name, justify=side, overflow="ellipsis", no_wrap=True, width=size)  # type: ignore[arg-type]
        for row in self._rows:
            made.add_row(*(row[number] for number in widths))
        return made


def fit(columns: Sequence[Column], sizes: Sequence[int], width: int) -> dict[int, int]:
    """Which columns are shown, by their numbers, and how wide each is; `sizes`: what their cells need.

    Where there is no room columns leave that have nothing to say, then those that matter least; what is left over goes
    to those that may be cut.
    """
    natural = [max(size, len(column.name)) for size, column in zip(sizes, columns, strict=True)]
    least = [
        size if column.least is None else min(size, max(column.least, len(column.name)))
        for size, column in zip(natural, columns, strict=True)
    ]
    shown = set(range(len(columns)))
    leaving = sorted((number for number in shown if columns[number].leaves), key=lambda number: columns[number].leaves)

    def room(wanted: Sequence[int]) -> int:
        return width - sum(wanted[number] for number in shown) - _GAP * (len(shown) - 1)

    for number in leaving:
        if not sizes[number] and room(natural) < 0:
            shown.remove(number)
    for number in leaving:
        if number in shown and room(least) < 0:
            shown.remove(number)
    left = max(0, room(least))
    widths = {number: least[number] for number in sorted(shown)}
    for place, number in enumerate(wanting := sorted(shown, key=lambda number: natural[number] - least[number])):
        more = min(natural[number] - least[number], left // (len(wanting) - place))
        widths[number] += more
        left -= more
    return widths
