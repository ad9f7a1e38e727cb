"""The examples in the manual of the command match its output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tubes.cli.app import app

MANUAL = (Path(__file__).parent.parent.parent / "docs/cli.md").read_text()
SESSIONS = re.findall(r"^```console\n(.*?)^```", MANUAL, re.DOTALL | re.MULTILINE)


def matches(pattern: str, line: str) -> bool:
    """Return True if the line matches: `...` stands for any text, and the number of blanks is ignored."""
    parts = [re.escape(" ".join(part.split())) for part in pattern.split("...")]
    return re.fullmatch(" ?.* ?".join(parts), " ".join(line.split())) is not None


def test_manual_shows_actual_command_output(url: str) -> None:
    assert len(SESSIONS) == 3
    for session in SESSIONS:
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
