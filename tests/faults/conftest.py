"""What scenarios share: servers, how much of everything, and the seed of what is random."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from faults.ledger import Ledger
from tubes.testing import LocalServer


@pytest.fixture
def own() -> Iterator[LocalServer]:
    """A server of a scenario's own, to do with as it likes."""
    with LocalServer() as server:
        yield server


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def much() -> int:
    """By how much a scenario is to be longer than in the short form."""
    return int(os.environ.get("TUBES_FAULTS", "1"))


@pytest.fixture(autouse=True)
def seed() -> int:
    """The seed of the run; `make soak` gives each round another one."""
    number = int(os.environ.get("TUBES_SEED", "1"))
    random.seed(number)
    return number
