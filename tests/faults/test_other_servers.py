"""Redis itself, where it is installed: the contract, and what differs from Valkey."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.on_server import OnServer
from tests.support.parts import OfOrder
from tubes.conformance import AioFace, Contract, SyncFace
from tubes.testing import LocalServer, server_program


@pytest.fixture(autouse=True, scope="module")
def _server() -> Iterator[None]:
    if server_program("redis") is None:
        pytest.skip("redis-server is not installed")
    with LocalServer("redis") as server:
        OnRedis.url = server.url
        yield


class OnRedis(OnServer):
    """Redis, where it is installed."""


class TestFifoOnRedis(OnRedis, OfOrder):
    faces = (AioFace,)
    driver = "fifo"


class TestUtubeTtlOnRedis(OnRedis, Contract):
    faces = (SyncFace,)
    driver = "utubettl"
