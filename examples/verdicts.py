"""Checks, as a table."""

from collections.abc import Iterable

from proof import Check
from rich.table import Table
from rich.text import Text

VERDICTS = {True: Text("yes", "bold green"), False: Text("NO", "bold red"), None: Text("unseen", "yellow")}


def table_of(title: str, checks: Iterable[Check]) -> Table:
    """Return a table with a row per check: the result, the promise and the observation."""
    table = Table(title=title, title_style="bold", title_justify="left", box=None)
    for check in checks:
        table.add_row(VERDICTS[check.kept], check.promise, check.seen)
    return table
