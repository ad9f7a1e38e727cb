"""The time limit of calls to a server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tubes.backend.flow import Flow, run_async
from tubes.errors import ConnectionLost
from tubes.serve.namespaces import limit_time

_SERVER: Any = SimpleNamespace(_connection=SimpleNamespace(is_remote=True, url="redis://a"))


def _read(parts: int, cost: float, *, nested: bool = False) -> int:
    """Read `parts` parts, each of which takes `cost` seconds of the loop's clock, with a limit of 3 seconds."""
    loop = asyncio.new_event_loop()
    now = 0.0
    loop.time = lambda: now  # type: ignore[method-assign]

    async def ask(part: int) -> int:
        nonlocal now
        now += cost
        for _ in range(3):
            await asyncio.sleep(0)  # The loop cancels the call if its limit has passed.
        return part

    def flow() -> Flow[int, int]:
        total = 0
        for part in range(parts):
            total += yield part
        return total

    async def main() -> int:
        call = run_async(flow(), ask)
        return await limit_time(_SERVER, limit_time(_SERVER, call) if nested else call)

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


@pytest.mark.parametrize("nested", [False, True])
def test_time_limit_covers_one_part_of_a_long_read(nested: bool) -> None:
    assert _read(1000, 2.0, nested=nested) == sum(range(1000))


def test_part_without_a_reply_within_the_limit_fails() -> None:
    with pytest.raises(ConnectionLost, match="no reply within 3 s"):
        _read(2, 4.0)
