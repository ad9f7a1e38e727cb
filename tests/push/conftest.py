"""Tests of this folder run in an event loop of asyncio."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The loop in which the plugin of anyio runs tests that are coroutines."""
    return "asyncio"
