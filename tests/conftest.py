"""Fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tubes
from tubes.conformance.faces import AioFace, Face, SyncFace


@pytest.fixture
def clock() -> tubes.testing.ManualClock:
    return tubes.testing.ManualClock()


@pytest.fixture
def queue(clock: tubes.testing.ManualClock) -> Iterator[tubes.Queue]:
    with tubes.connect(clock=clock) as queue:
        yield queue


@pytest.fixture(params=[SyncFace, AioFace], ids=["sync", "aio"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    made: Face = request.param()
    yield made
    made.close()
