"""Comments and pages name only files that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("drivers", "tubes", "docs", "tests", "examples", "benchmarks", ".ci")
FILES: Final = {
    f"/{path.relative_to(ROOT)}"
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".lua", ".py", ".md") and "_build" not in path.parts
}
NAMERS: Final = sorted(file for file in FILES if file.startswith(("/drivers/", "/tubes/", "/docs/")))
#: A file, maybe with its folders. Names in capitals stand for any file.
NAMED: Final = re.compile(r"(?<![\w*./{}-])((?:[\w.-]+/)*[a-z_]\w*\.(?:lua|py))\b")


def test_named_files_exist() -> None:
    missing: list[tuple[str, str]] = []
    for file in (*NAMERS, "/CONTRIBUTING.md"):
        named = set(NAMED.findall((ROOT / file[1:]).read_text()))
        if file.startswith("/docs/"):  # Pages also name files that a reader writes.
            named = {name for name in named if name.startswith(("drivers/", "tubes/")) or name.endswith(".lua")}
        missing += [(file, name) for name in named if not any(known.endswith(f"/{name}") for known in FILES)]
    assert missing == []
