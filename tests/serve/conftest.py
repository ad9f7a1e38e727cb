"""Services in processes of their own, on each backend."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.support.served import Served
from tubes.testing import LocalServer


@pytest.fixture(scope="session")
def memory_service() -> Iterator[Served]:
    """A service in memory, shared by all tests, since a service takes a second to start."""
    with Served("--url", "memory://") as served:
        yield served


@pytest.fixture(scope="session")
def valkey_service(valkey: LocalServer) -> Iterator[Served]:
    """A service on a server, shared by all tests."""
    with Served("--url", f"{valkey.url}?prefix={uuid4().hex}") as served:
        yield served


@pytest.fixture(params=["memory_service", "valkey_service"])
def served(request: pytest.FixtureRequest) -> Served:
    """The shared service on each backend."""
    found: Served = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def base(served: Served) -> str:
    """The path of a namespace for one test."""
    return f"/v1/{uuid4().hex}"
