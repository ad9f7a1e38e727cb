"""The tests in this folder run in an asyncio event loop."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The backend that the anyio plugin runs async tests with."""
    return "asyncio"
