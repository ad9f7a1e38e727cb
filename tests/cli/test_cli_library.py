"""The command `tubes library`, and how `tubes check` reports a library that runs as a script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import tubes
from tests.on_redis.conftest import without_functions
from tubes.cli.app import app
from tubes.cli.exits import Exit
from tubes.redis.library import text
from tubes.testing import LocalServer

NAME = f"tubes_{text.version()}"
OTHER = "tubes_0123456789ab"


@pytest.fixture
def own_server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


def admin(server: LocalServer) -> Any:
    return server.client()


def shell(*words: str, url: str = "redis://unused.invalid", code: int = 0) -> Result:
    result = CliRunner().invoke(app, words, env={"TUBES_URL": url})
    assert result.exit_code == code, result.output
    return result


def load_other(server: LocalServer, name: str = OTHER) -> None:
    altered = text.library().replace(text.version().encode(), name.removeprefix("tubes_").encode())
    admin(server).execute_command("FUNCTION", "LOAD", altered)


def libraries(server: LocalServer) -> set[str]:
    listed = str(admin(server).execute_command("FUNCTION", "LIST"))
    return set(re.findall(r"library_name'[:,] b'(\w+)'", listed))


def test_library_prints_the_text_without_a_server() -> None:
    assert shell("library").stdout.encode() == text.library() + b"\n"


def test_load_serves_users_who_may_only_call_functions(own_server: LocalServer) -> None:
    client = admin(own_server)
    words = ("reset", "on", ">secret", "~*", "&*", "+@all", "-function", "-@scripting", "+fcall")
    client.execute_command("ACL", "SETUSER", "caller", *words)
    url = f"unix://caller:secret@{own_server.socket}"
    with pytest.raises(tubes.ServerRefused, match=r"(?i)evalsha.*function.*"):
        tubes.connect(url)
    for _ in range(2):
        assert shell("library", "--load", url=own_server.url).stdout == f"{NAME}: loaded\n"
    assert libraries(own_server) == {NAME}
    with tubes.connect(url) as queue:
        queue.create_tube("t").put(1)
        assert queue.tube("t").take(timeout=0) is not None


def test_prune_deletes_only_other_versions(own_server: LocalServer) -> None:
    load_other(own_server)
    load_other(own_server, "tubes_of_the_user")
    assert shell("library", "--load", "--prune", url=own_server.url).stdout == f"{NAME}: loaded\n{OTHER}: deleted\n"
    assert libraries(own_server) == {NAME, "tubes_of_the_user"}


@pytest.mark.parametrize("url", ["memory://", "memory://name", "file:folder"])
def test_load_refuses_places_without_lua(url: str) -> None:
    for option in ("--load", "--prune"):
        assert "must be the URL of a server" in shell("library", option, url=url, code=Exit.USAGE).stderr


def test_refusal_of_a_server_is_an_error(own_server: LocalServer) -> None:
    admin(own_server).execute_command("ACL", "SETUSER", "lacks", "on", ">secret", "~*", "+@all", "-function")
    url = f"unix://lacks:secret@{own_server.socket}"
    assert "no permissions" in shell("library", "--load", url=url, code=Exit.UNREACHABLE).stderr
    own_server.kill()
    shell("library", "--load", url=own_server.url, code=Exit.UNREACHABLE)


def test_check_reports_why_the_library_runs_as_a_script(own_server: LocalServer, tmp_path: Path) -> None:
    with tubes.connect(own_server.url) as queue:
        queue.create_tube("t")
    assert shell("check", url=own_server.url).stdout == "t: fine\n"
    with LocalServer(include=without_functions(tmp_path)) as server:
        with tubes.connect(server.url) as queue:
            queue.create_tube("t")
        first, second = shell("check", url=server.url).stdout.splitlines()
        assert first == "the Lua library runs as a script, not as functions: ERR unknown command 'FCALL'"
        assert second == "t: fine"
        assert "unknown command" in shell("library", "--load", url=server.url, code=Exit.UNREACHABLE).stderr
