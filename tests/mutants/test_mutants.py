"""The list of mutants fits the code, and so does the table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.mutants import MUTANTS, Mutant
from tests.mutants.table import read_table

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_text_of_mutant_stands_once_in_its_file(mutant: Mutant) -> None:
    text = (_ROOT / mutant.path).read_text()
    assert mutant.apply(text) != text


def test_table_names_the_killer_of_each_mutant() -> None:
    killers = read_table()
    assert list(killers) == [mutant.name for mutant in MUTANTS]
    assert all(killer == "timeout" or "::" in killer for killer in killers.values())


@pytest.mark.full
def test_short_suite_has_all_killers() -> None:
    killers = {killer for killer in read_table().values() if killer != "timeout"}
    # Whole files: a test that is named by its id alone is always in the sample of its cases.
    files = sorted({killer.partition("::")[0] for killer in killers})
    options = ["--collect-only", "-p", "no:cacheprovider", "-m", "not full"]
    command = [sys.executable, "-m", "pytest", *options, *files]
    collected = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=120, check=True).stdout
    assert not killers - set(collected.splitlines())
