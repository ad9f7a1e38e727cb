"""Servers for the tests of this folder: real ones, one per kind and test process."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tubes.testing import LocalServer, server_program


@pytest.fixture(scope="session")
def valkey() -> Iterator[LocalServer]:
    """A Valkey, from the wheel."""
    with LocalServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[LocalServer]:
    """A Redis, where it is installed."""
    if server_program("redis") is None:
        pytest.skip("redis-server is not installed")
    with LocalServer("redis") as server:
        yield server


@pytest.fixture
def url(valkey: LocalServer) -> str:
    """An empty key space of one's own."""
    return f"{valkey.url}?prefix={uuid4().hex}"
