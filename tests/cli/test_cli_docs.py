"""What the manual of the command shows is what it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tubes.cli.app import app

MANUAL = (Path(__file__).parent.parent.parent / "docs/cli.md").read_text()
SESSIONS = re.findall(r"^```console\n(.*?)^```", MANUAL, re.DOTALL | re.MULTILINE)


def matches(shown: str, printed: str) -> bool:
    """Whether a line is what is shown; `...` is anything, and blanks are blanks."""
    parts = [re.escape(" ".join(part.split())) for part in shown.split("...")]
    return re.fullmatch(" ?.* ?".join(parts), " ".join(printed.split())) is not None


def test_manual_shows_actual_command_output(url: str) -> None:
    assert len(SESSIONS) == 3
    for session in SESSIONS:
        for step in session.split("$ tubes ")[1:]:
            command, *shown = step.splitlines()
            result = CliRunner().invoke(app, command, env={"TUBES_URL": url})
            assert result.exit_code == 0, (command, result.output)
            printed = result.stdout.splitlines()
            assert len(printed) == len(shown), (command, printed)
            for one, other in zip(shown, printed, strict=True):
                assert matches(one, other), (command, one, other)


@pytest.mark.parametrize(("shown", "printed", "same"), [("a ... c", "a b c", True), ("a", "a b", False)])
def test_ellipsis_matches_any_text(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same
