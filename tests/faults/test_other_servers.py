"""Redis itself, where it is installed: the contract, and what differs from Valkey."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import pytest

from tubes.conformance import Contract, Face
from tubes.testing import LocalServer, server_program

if TYPE_CHECKING:
    from tubes.testing import ManualClock


@pytest.fixture(autouse=True, scope="module")
def _server() -> Iterator[None]:
    if server_program("redis") is None:
        pytest.skip("redis-server is not installed")
    with LocalServer("redis") as server:
        OnRedis.server = server
        yield


class OnRedis(Contract):
    """A key space of its own for every test."""

    server: ClassVar[LocalServer]

    def connect(self, face: Face, clock: ManualClock) -> Any:
        url = f"{self.server.url}?prefix={uuid4().hex}"
        return face.connect(url, clock=clock, session_ttl=self.session_ttl)


class TestFifoOnRedis(OnRedis):
    driver = "fifo"


class TestUtubeTtlOnRedis(OnRedis):
    driver = "utubettl"
