"""Services in processes of their own, on each backend."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.support.served import Served
from tubes.testing import LocalServer


@pytest.fixture(scope="module", params=["memory", "valkey"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A service that nobody harms: one for each file of tests."""
    url = "memory://"
    if request.param == "valkey":
        valkey: LocalServer = request.getfixturevalue("valkey")
        url = f"{valkey.url}?prefix={uuid4().hex}"
    with Served("--url", url) as served:
        yield served


@pytest.fixture
def base(served: Served) -> str:
    """The path of a namespace of one's own."""
    return f"/v1/{uuid4().hex}"
