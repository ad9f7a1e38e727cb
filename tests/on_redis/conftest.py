"""Servers whose data tests may remove."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tubes.testing import LocalServer, server_program


@pytest.fixture(scope="session")
def start_server() -> Iterator[Callable[[str], LocalServer]]:
    """Return a function that starts a server of a program at first use, once per test process."""

    @cache
    def start(program: str) -> LocalServer:
        if server_program(program) is None:
            pytest.skip(f"{program} is not installed")
        return stack.enter_context(LocalServer(program, enable_debug_command="yes"))

    with ExitStack() as stack:
        yield start


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
