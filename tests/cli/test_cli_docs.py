"""The examples of the command in the pages match its output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tubes.cli.app import app

DOCS = Path(__file__).parent.parent.parent / "docs"
#: Pages with sessions, and the number of them. The sessions of a page share a server.
PAGES = {"cli.md": 3, "howto/cancel.md": 1, "howto/on-call.md": 1}


def matches(pattern: str, line: str) -> bool:
    """Return True if the line matches: `...` stands for any text, and the number of blanks is ignored."""
    parts = [re.escape(" ".join(part.split())) for part in pattern.split("...")]
    return re.fullmatch(" ?.* ?".join(parts), " ".join(line.split())) is not None


@pytest.mark.parametrize("name", PAGES)
def test_pages_show_actual_command_output(name: str, url: str) -> None:
    page = (DOCS / name).read_text()
    sessions = re.findall(r"^```console\n(\$ tubes .*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(sessions) == PAGES[name]
    for session in sessions:
        for step in session.split("$ tubes ")[1:]:
            command, *patterns = step.splitlines()
            result = CliRunner().invoke(app, command, env={"TUBES_URL": url})
            assert result.exit_code == 0, (command, result.output)
            lines = result.stdout.splitlines()
            assert len(lines) == len(patterns), (command, lines)
            for pattern, line in zip(patterns, lines, strict=True):
                assert matches(pattern, line), (command, pattern, line)


@pytest.mark.parametrize(("pattern", "line", "same"), [("a ... c", "a b c", True), ("a", "a b", False)])
def test_ellipsis_matches_any_text(pattern: str, line: str, same: bool) -> None:
    assert matches(pattern, line) is same
