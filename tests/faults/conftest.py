"""Fixtures of all scenarios: servers, the length of a scenario, and the random seed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.support.ledger import Ledger
from tests.support.proxy import Proxy
from tubes.redis.library import text
from tubes.testing import LocalServer


@pytest.fixture
def own_server() -> Iterator[LocalServer]:
    """Start a server for a single scenario, which may break it."""
    with LocalServer() as server:
        yield server


@pytest.fixture
def proxy(valkey: LocalServer) -> Iterator[Proxy]:
    """Start a proxy for a server that has the library, so that cuts affect replies of functions, not their loading."""
    with valkey.client() as client:
        client.execute_command("FUNCTION", "LOAD", "REPLACE", text.library())
    with Proxy(valkey) as proxy:
        yield proxy


@pytest.fixture
def proxied_url(proxy: Proxy) -> str:
    """Return the URL of a separate key space through the proxy."""
    return f"{proxy.url}?prefix={uuid4().hex}"


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def factor() -> int:
    """Return the factor for the length of a scenario; 1 is the short form."""
    return int(os.environ.get("TUBES_FAULTS", "1"))


@pytest.fixture(autouse=True)
def seed() -> int:
    """Return the seed of the run; `make soak-faults` uses another one in each round."""
    number = int(os.environ.get("TUBES_SEED", "1"))
    random.seed(number)
    return number
