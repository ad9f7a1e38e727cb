"""Servers whose data tests may remove."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tubes.testing import LocalServer, server_program

#: The Valkey of `start_server` that cannot load functions, so it runs the library as a script.
WITHOUT_FUNCTIONS = "valkey without functions"


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], LocalServer]]:
    """Return a function that starts a server of a program at first use, once per test process."""

    @cache
    def start(program: str) -> LocalServer:
        options: dict[str, object] = {"enable_debug_command": "yes"}
        if program == WITHOUT_FUNCTIONS:
            program, options["include"] = "valkey", without_functions(tmp_path_factory.mktemp("server"))
        if server_program(program) is None:
            pytest.skip(f"{program} is not installed")
        return stack.enter_context(LocalServer(program, **options))

    with ExitStack() as stack:
        yield start


def without_functions(folder: Path) -> Path:
    """Return the settings of a server that lacks the commands of functions."""
    settings = folder / "without_functions.conf"
    settings.write_text("".join(f'rename-command {name} ""\n' for name in ("FCALL", "FCALL_RO", "FUNCTION")))
    return settings


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest, start_server: Callable[[str], LocalServer]) -> LocalServer:
    """Return an empty server."""
    server = start_server(request.param)
    with server.client() as client:
        client.flushall()
    return server


@pytest.fixture(scope="session")
def valkey(start_server: Callable[[str], LocalServer]) -> LocalServer:
    return start_server("valkey")


@pytest.fixture(scope="session")
def scripted(start_server: Callable[[str], LocalServer]) -> LocalServer:
    """Return a server that cannot load functions."""
    return start_server(WITHOUT_FUNCTIONS)
