"""Helpers for the reports of several benchmarks, and writing results into pages."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

#: A row of results: values by column.
Row = dict[str, Any]


def duration(seconds: float) -> str:
    """Format seconds for a table."""
    return f"{seconds * 1e9:,.0f} ns" if seconds < 10e-6 else f"{seconds * 1e6:,.1f} µs"


def machine() -> str:
    """Describe the machine in one line."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {python}"


def write_result(page: Path, name: str, result: str) -> None:
    """Write a result into a page, between the comments with this name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}{result}\n{end}{after}")


def keep(folder: Path, rows: list[Row], **more: Any) -> None:
    """Write the rows of a full run to `result.json` of a benchmark, which `benchmarks.evidence` shows."""
    about = json.dumps({"date": time.strftime("%-d %B %Y"), "machine": machine(), **more})
    lines = ",\n".join(json.dumps(row) for row in rows)
    (folder / "result.json").write_text(f'{about[:-1]}, "rows": [\n{lines}\n]}}\n')


def run_cases(folder: Path, cases: Iterable[tuple[str, Callable[[], list[Row]]]], part: str) -> None:
    """Measure the cases whose names contain `part`, and print their rows. A run without arguments stores them."""
    rows: list[Row] = []
    for name, measure in cases:
        if part.lower() in name.lower():
            rows += (found := measure())
            print(*found, sep="\n", flush=True)
    if len(sys.argv) == 1:
        keep(folder, rows)


def tables(rows: list[Row]) -> str:
    """Return the rows as Markdown: a table for each set of columns."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row), []).append(row)
    lines: list[str] = []
    for columns, group in groups.items():
        lines += ["", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        lines += [f"| {' | '.join(_cell(value) for value in row.values())} |" for row in group]
    return "\n".join(lines[1:])


def percentiles(values: list[float], *shares: float) -> dict[str, float]:
    """Return the percentiles of times in milliseconds, and their maximum."""
    ordered = sorted(values)
    found = {
        f"p{share:g} ms": ordered[min(int(len(ordered) * share / 100), len(ordered) - 1)] * 1e3 for share in shares
    }
    return {**found, "max ms": ordered[-1] * 1e3}


def _cell(value: object) -> str:
    return (
        f"{value:,.{0 if value >= 1000 else 2}f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value).replace("|", "\\|")
    )
