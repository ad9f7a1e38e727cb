"""Tables that fit into a terminal: the least important columns are dropped first, then cells are truncated."""

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
    """A column, and how it shrinks in a narrow terminal."""

    name: str
    #: Align to the right, for numbers.
    right: bool = False
    #: Minimum width to which cells may be truncated, with an …; None: never truncate.
    min_width: int | None = None
    #: Order in which columns are dropped, the smallest number first; 0: never drop it.
    drop_order: int = 0


class Grid:
    """A table that shows as many of its columns as fit."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._rows: list[list[Text]] = []

    def add_row(self, *cells: Text) -> None:
        self._rows.append(list(cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table(options.max_width)

    def _table(self, width: int) -> Table:
        sizes = [max((row[number].cell_len for row in self._rows), default=0) for number in range(len(self._columns))]
        widths = fit(self._columns, sizes, width)
        header_line = box.SIMPLE_HEAD if sys.stdout.isatty() else None
        table = Table(box=header_line, show_edge=False, pad_edge=False, padding=(0, _GAP - bool(header_line), 0, 0))
        table.header_style = "bold"
        for number, size in widths.items():
            column = self._columns[number]
            side = "right" if column.right else "left"
            table.add_column(column.name, justify=side, overflow="ellipsis", no_wrap=True, width=size)  # type: ignore[arg-type]
        for row in self._rows:
            table.add_row(*(row[number] for number in widths))
        return table


def fit(columns: Sequence[Column], sizes: Sequence[int], width: int) -> dict[int, int]:
    """Return the index and width of each column to show. `sizes` has the widths that their cells need.

    If the columns do not fit, drop empty columns first, then the least important ones. Distribute the remaining width
    over the truncated columns.
    """
    natural = [max(size, len(column.name)) for size, column in zip(sizes, columns, strict=True)]
    least = [
        size if column.min_width is None else min(size, max(column.min_width, len(column.name)))
        for size, column in zip(natural, columns, strict=True)
    ]
    visible = set(range(len(columns)))
    droppable = sorted(
        (number for number in visible if columns[number].drop_order), key=lambda number: columns[number].drop_order
    )

    def room(wanted: Sequence[int]) -> int:
        return width - sum(wanted[number] for number in visible) - _GAP * (len(visible) - 1)

    for number in droppable:
        if not sizes[number] and room(natural) < 0:
            visible.remove(number)
    for number in droppable:
        if number in visible and room(least) < 0:
            visible.remove(number)
    remaining = max(0, room(least))
    widths = {number: least[number] for number in sorted(visible)}
    growing = sorted(visible, key=lambda number: natural[number] - least[number])
    for place, number in enumerate(growing):
        extra = min(natural[number] - least[number], remaining // (len(growing) - place))
        widths[number] += extra
        remaining -= extra
    return widths
