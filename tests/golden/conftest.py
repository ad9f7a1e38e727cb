"""One face for all traces of a module, which leave no state on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.faces import AioFace, Face, SyncFace


@pytest.fixture(scope="module", params=[SyncFace, pytest.param(AioFace, marks=pytest.mark.full)], ids=["sync", "aio"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    made: Face = request.param()
    yield made
    made.close()
