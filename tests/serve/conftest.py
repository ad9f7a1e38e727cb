"""Services in processes of their own, on each backend."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.support.served import Served
from tubes.testing import LocalServer


@pytest.fixture(scope="session")
def in_memory() -> Iterator[Served]:
    """A service that nobody harms: one for all tests, since each takes a second to start."""
    with Served("--url", "memory://") as served:
        yield served


@pytest.fixture(scope="session")
def on_valkey(valkey: LocalServer) -> Iterator[Served]:
    """The same on a server."""
    with Served("--url", f"{valkey.url}?prefix={uuid4().hex}") as served:
        yield served


@pytest.fixture(params=["in_memory", "on_valkey"])
def served(request: pytest.FixtureRequest) -> Served:
    """Either of them."""
    found: Served = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def base(served: Served) -> str:
    """The path of a namespace of one's own."""
    return f"/v1/{uuid4().hex}"
