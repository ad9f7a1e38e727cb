"""What the documents say is true: their examples run, their diagram is the table."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import tubes
from tubes import MOVES

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def modules() -> list[ModuleType]:
    names = [info.name for info in pkgutil.walk_packages(tubes.__path__, "tubes.")]
    return [importlib.import_module(name) for name in ["tubes", *names]]


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_examples_in_docstrings_run(module: ModuleType) -> None:
    assert doctest.testmod(module, optionflags=doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS).failed == 0


@pytest.mark.parametrize("document", ["README.md", "drivers/README.md"])
def test_examples_in_documents_run(document: str) -> None:
    blocks = FENCE.findall((ROOT / document).read_text())
    assert blocks
    names: dict[str, object] = {"__name__": document}
    for block in blocks:
        exec(compile(block, document, "exec"), names)


def test_the_first_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    block = FENCE.findall((ROOT / "README.md").read_text())[0]
    assert len(block.strip().splitlines()) == 12
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.split() == re.findall(r"\)\s+# (https://\S+)", block)


def test_the_diagram_is_the_table() -> None:
    text = (ROOT / "README.md").read_text()
    drawn = re.findall(r"^    (\S+) --> (\S+): (\w+)$", text, re.MULTILINE)
    names = {None: "[*]", "r": "r", "t": "t", "!": "b", "~": "d", "-": "[*]"}
    table = [
        (names[was and was.value], names[move.to.value], why)
        for why, rows in MOVES.items()
        for was, move in rows.items()
    ]
    assert sorted(drawn) == sorted(table)
