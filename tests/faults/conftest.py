"""What scenarios share: servers, how much of everything, and the seed of what is random."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from importlib.resources import files
from uuid import uuid4

import pytest

from tests.support.ledger import Ledger
from tests.support.proxy import Proxy
from tubes.drivers.registry import Registry
from tubes.redis.scripts.assembly import script
from tubes.testing import LocalServer


@pytest.fixture
def own() -> Iterator[LocalServer]:
    """A server of a scenario's own, to do with as it likes."""
    with LocalServer() as server:
        yield server


@pytest.fixture
def proxy(valkey: LocalServer) -> Iterator[Proxy]:
    """In front of a server that has all scripts: what is cut is the reply of one, not that it must be loaded first."""
    with valkey.client() as client:
        for file in (files("tubes.drivers") / "lua" / "verbs").iterdir():
            for driver in ("fifo", "fifottl", "utubettl"):
                client.script_load(script(file.name.removesuffix(".lua"), Registry().find(driver)).text)
    with Proxy(valkey) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: Proxy) -> str:
    """The URL of a key space of one's own through the proxy."""
    return f"{proxy.url}?prefix={uuid4().hex}"


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def much() -> int:
    """By how much a scenario is to be longer than in the short form."""
    return int(os.environ.get("TUBES_FAULTS", "1"))


@pytest.fixture(autouse=True)
def seed() -> int:
    """The seed of the run; `make soak-faults` gives each round another one."""
    number = int(os.environ.get("TUBES_SEED", "1"))
    random.seed(number)
    return number
