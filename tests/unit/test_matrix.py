"""What `make matrix` runs on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import matrix


def interpreter(folder: Path, name: str, says: str) -> Path:
    """A program that answers as an interpreter would."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    return program


def test_the_newest_of_each_version_is_found_by_what_it_says(tmp_path: Path) -> None:
    on_path, home = tmp_path / "bin", tmp_path / "home"
    interpreter(on_path, "python3.12", "echo cpython 3 12 1")
    interpreter(on_path, "python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    interpreter(on_path, "python3.10", "echo cpython 3 10 9")
    interpreter(on_path, "python3.11", "echo pypy 3 11 2")
    interpreter(on_path, "python3-config", "echo cpython 3 12 9")
    newer = interpreter(home / ".pyenv/versions/3.12.4/bin", "python", "echo cpython 3 12 4")
    free = interpreter(home / ".pyenv/versions/3.13.0t/bin", "python", "echo cpython 3 13 0 t")
    found = matrix.find(f"{on_path}:{tmp_path / 'nowhere'}", home)
    assert found == {
        "3.12": matrix.Python("3.12", (3, 12, 4), newer),
        "3.13t": matrix.Python("3.13t", (3, 13, 0), free),
    }


def test_this_interpreter_is_found(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    [python] = matrix.find(str(tmp_path), tmp_path).values()
    assert python.version == sys.version_info[:3]


def test_one_that_fails_makes_the_whole_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find(path: str, home: Path) -> dict[str, matrix.Python]:
        return {name: matrix.Python(name, (3, 12, 0), home) for name in ("3.11", "3.12")}

    def run(python: matrix.Python, extras: list[str], arguments: list[str]) -> str:
        assert (extras, arguments) == (["test", "server"], ["-x"])
        return results[python.name]

    monkeypatch.setattr(matrix, "find", find)
    monkeypatch.setattr(matrix, "run", run)
    monkeypatch.setattr(sys, "argv", ["matrix.py", "--extras", "test server", "--", "-x"])
    results = {"3.11": "passed", "3.12": "passed"}
    assert matrix.main() == 0
    results["3.11"] = "failed: pytest ended with 1"
    assert matrix.main() == 1
    assert "3.13   not found: not run" in capsys.readouterr().out


def test_an_environment_in_which_nothing_can_be_installed_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "ENVIRONMENTS", tmp_path)
    broken = interpreter(tmp_path, "python3", "exit 1")
    assert matrix.run(matrix.Python("3.12", (3, 12, 1), broken), [], []) == "could not make an environment"
