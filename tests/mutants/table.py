"""The table of mutants and the tests that kill them, in `README.md`."""

from __future__ import annotations

import re
from pathlib import Path

from tests.mutants.mutants import MUTANTS, Mutant

README = Path(__file__).with_name("README.md")
_HEAD = "| mutant | file | killed by |\n|---|---|---|\n"


def read_table() -> dict[str, str]:
    """The killers by the names of their mutants."""
    rows = re.findall(r"^\| (.+?) \| `.+?` \| (.*) \|$", README.read_text(), re.MULTILINE)
    return {name: killer.strip("`").replace("\\|", "|") for name, killer in rows}


def write_row(mutant: Mutant, killer: str | None) -> None:
    """Record the killer of a mutant. Rows are in the order of the list; rows of removed mutants are deleted."""
    killers = read_table() | {mutant.name: killer or ""}
    before, _, _ = README.read_text().partition(_HEAD)
    rows = [
        f"| {each.name} | `{each.path}` | `{killers[each.name]}` |\n".replace("``", "**survived**")
        for each in MUTANTS
        if each.name in killers
    ]
    README.write_text(before + _HEAD + "".join(rows))
