"""The pages about the service: what they type into a shell is run, and they name every path and option."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_cli_docs import matches
from tests.support.served import Served
from tubes.cli.app import app
from tubes.serve.native import OPERATIONS
from tubes.serve.tokens import LIMITS, RIGHTS

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "serve.md").read_text()


def typed(page: str) -> list[list[str]]:
    """What a page types into a shell, each with what it prints."""
    return [
        step.split("\n", 1)
        for block in re.findall(r"^```console\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    ]


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq")
@pytest.mark.parametrize("name", ["serve.md", "howto/from-lmstfy.md"])
def test_what_a_page_types_prints_what_it_shows(name: str, in_memory: Served, tmp_path: Path) -> None:
    place = in_memory.url.removeprefix("http://")
    steps = typed((DOCS / name).read_text())
    script = "".join(f"{command}\nprintf '\\0'\n" for command, _ in steps).replace("localhost:7777", place)
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=True)
    for (command, shown), printed in zip(steps, done.stdout.split("\0"), strict=False):
        assert matches(shown, printed), (command, printed)
    assert done.stdout.count("\0") == len(steps)
    if name != "serve.md":
        return
    asked = {(line["method"], line["path"]) for line in in_memory.lines() if line["path"].startswith("/v1/_/")}
    for one in OPERATIONS:
        path = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(one.path))
        assert any(method == one.method and re.fullmatch(path, where) for method, where in asked), one.path


@pytest.mark.parametrize("language", ["typescript", "go"])
def test_the_workers_of_the_page_handle_and_ack_tasks(language: str, in_memory: Served, tmp_path: Path) -> None:
    base = f"/v1/{language}"
    program, name, options = ("node", "worker.mjs", []) if language == "typescript" else ("go", "worker.go", ["run"])
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program}")
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    # Without its types it is JavaScript, which every node runs.
    plain = re.sub(r"(?<=\w): (string|object)(\[\])?(?=[,)= ])", "", block) if program == "node" else block
    (tmp_path / name).write_text(re.sub(r'("?wait"?: )20', r"\g<1>0", plain))
    client = in_memory.client
    client.put(f"{base}/tubes/mail")
    for number in range(3):
        client.post(f"{base}/tubes/mail/tasks", json={"data": number})
    command = [found, *options, name, "--burst"]
    env = {"TUBES": in_memory.url + base, "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", str(tmp_path))}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "handled 0\nhandled 1\nhandled 2\n"), done.stderr
    assert client.get(f"{base}/tubes/mail").json()["tasks"]["done"] == 3


def test_the_tables_have_all_options_and_rights() -> None:
    command = next(
        one for one in app.registered_commands if one.callback is not None and one.callback.__name__ == "serve"
    )
    assert command.callback is not None
    options = {name.replace("_", "-") for name in command.callback.__annotations__ if name != "return"}
    shown = set(re.findall(r"`--(?:no-)?([a-z-]+)", (DOCS / "howto/serving.md").read_text()))
    assert options - shown == set()
    rows = re.findall(r"^\| `(\w+)`", (DOCS / "howto/tokens.md").read_text(), re.MULTILINE)
    assert rows == [*RIGHTS, *LIMITS]
