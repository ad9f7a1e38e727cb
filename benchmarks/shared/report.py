"""Helpers for the reports of several benchmarks, and writing results into pages."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any


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


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows to `result.json` of a benchmark, and as a table into its README."""
    (folder / "result.json").write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [f"One result, of {machine()}.", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| {' | '.join(_cell(row.get(column, '')) for column in columns)} |" for row in rows]
    write_result(folder / "README.md", folder.name, "\n".join(lines))


def percentiles(values: list[float], *shares: float) -> dict[str, float]:
    """Return the percentiles of times in milliseconds, and their maximum."""
    ordered = sorted(values)
    found = {
        f"p{share:g} ms": ordered[min(int(len(ordered) * share / 100), len(ordered) - 1)] * 1e3 for share in shares
    }
    return {**found, "max ms": ordered[-1] * 1e3}


def _cell(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
