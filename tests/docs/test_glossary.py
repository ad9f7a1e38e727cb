"""The glossary has every word once, explains every option, and names only existing code."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import tubes
import tubes.push
import tubes.sync
import tubes.worker
from tubes.drivers.options import OF_TASKS
from tubes.drivers.tube_options import OF_TUBES

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/explanation/glossary.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
USERS = [row for row in ROWS if len(row) == 7 and row[0] != "word"]
CODE = [row for row in ROWS if len(row) == 3 and row[0] != "word"]
NAMES = {name for row in USERS for name in re.findall(r"`([^`]+)`", row[2])}
PUBLIC = {**vars(tubes.sync), **vars(tubes.aio), **vars(tubes), **vars(tubes.worker), **vars(tubes.push)}


def test_glossary_terms_are_unique() -> None:
    words = [row[0] for row in USERS + CODE]
    assert sorted(words) == sorted(set(words))
    assert len(USERS) > 40
    assert len(CODE) > 15


def test_every_option_is_explained() -> None:
    """Options that only refine another option are exempt."""
    more = {"on_duplicate", "key_ttl", "timeout", "interval_from", "jitter", "order", "lane_rate", "lane_burst"}
    named = {option for name in NAMES for option in re.findall(r"\((\w+)=\)", name)}
    assert (OF_TASKS.keys() | OF_TUBES.keys()) - more - named == set()


def test_public_names_in_glossary_exist() -> None:
    for name in NAMES:
        path, _, option = name.removesuffix(")").removesuffix("=").partition("(")
        if path in ("put", "create_tube"):
            assert option in (OF_TASKS if path == "put" else OF_TUBES), name
            continue
        first, *others = path.split(".")
        found = PUBLIC[first]
        for other in others:
            found = getattr(found, other)
        assert not option or option in inspect.signature(found).parameters, name


def test_internal_names_in_glossary_exist() -> None:
    for _, _, name in CODE:
        module, _, found = name.strip("`").rpartition(".")
        assert hasattr(import_module(module), found), name
