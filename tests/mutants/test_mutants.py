"""The list of mutants fits the code, and so does the table."""

from __future__ import annotations

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
