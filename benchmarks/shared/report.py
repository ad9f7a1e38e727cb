"""Helpers for the reports of several benchmarks, and writing results into pages."""

from __future__ import annotations

import os
import platform
from pathlib import Path


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
