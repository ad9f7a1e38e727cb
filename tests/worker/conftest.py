"""Fixtures that run each test in memory and on a server, with a manual clock unless a module overrides it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tubes
from tubes.testing import ManualClock


@pytest.fixture(params=["memory", "server"])
def place(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store."""
    found: str = "memory://" if request.param == "memory" else request.getfixturevalue("url")
    return found


@pytest.fixture
def settings(clock: ManualClock) -> dict[str, Any]:
    """The options that `queue` is opened with."""
    # Leases of sessions are renewed in real time, so a test that advances the clock must not end them.
    return {"clock": clock, "session_ttl": 86_400}


@pytest.fixture
def queue(place: str, settings: dict[str, Any]) -> Iterator[tubes.Queue]:
    with tubes.connect(place, **settings) as queue:
        yield queue
