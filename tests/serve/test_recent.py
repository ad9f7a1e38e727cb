"""Results of expensive reads are reused for a short time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import pytest

from tubes.serve.recent import Recent


def runs(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an asynchronous test."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        async def main() -> None:
            await test(**arguments)

        asyncio.run(main())

    return run


class Reads:
    """Count reads; each takes `cost` seconds of its own clock."""

    def __init__(self, cost: float = 0.0) -> None:
        self.now, self.cost, self.count = 0.0, cost, 0
        self.recent = Recent(lambda: self.now)

    async def read(self) -> int:
        self.count += 1
        number = self.count
        await asyncio.sleep(0)
        self.now += self.cost
        return number

    async def get(self, key: str = "lanes") -> int:
        return await self.recent.get("shop", key, self.read)


@pytest.mark.parametrize(("cost", "lifetime"), [(0.0, 1.0), (0.1, 10.0), (5.0, 10.0)])
@runs
async def test_result_is_reused_for_a_hundred_times_its_cost(cost: float, lifetime: float) -> None:
    reads = Reads(cost)
    assert await reads.get() == 1
    reads.now = cost + lifetime - 0.01
    assert await reads.get() == 1
    reads.now = cost + lifetime + 0.01
    assert await reads.get() == 2
    assert await reads.get("other") == 3


@runs
async def test_simultaneous_requests_share_a_read_and_survive_a_cancelled_one() -> None:
    reads = Reads()
    first = asyncio.create_task(reads.get())
    await asyncio.sleep(0)
    second = asyncio.create_task(reads.get())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 1


@runs
async def test_change_of_namespace_forgets_results_even_while_they_are_read() -> None:
    reads = Reads()
    running = asyncio.create_task(reads.get())
    await asyncio.sleep(0)
    reads.recent.forget("mail")
    assert await reads.get() == 1
    reads.recent.forget("shop")
    assert (await running, await reads.get()) == (1, 2)


@runs
async def test_failed_read_is_tried_again() -> None:
    reads = Reads()

    async def fail() -> int:
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):  # noqa: PT011
            await reads.recent.get("shop", "lanes", fail)
    assert await reads.get() == 1


@runs
async def test_failure_is_reused_for_as_long_as_it_took() -> None:
    reads = Reads(3)

    async def fail() -> int:
        raise ValueError(await reads.read())

    for now, number in ((0.0, "1"), (5.9, "1"), (6.1, "2")):
        reads.now = now
        with pytest.raises(ValueError, match=number):
            await reads.recent.get("shop", "lanes", fail)


@runs
async def test_number_of_results_is_bounded() -> None:
    reads = Reads(1)
    for number in range(200):
        reads.now = 0.0
        await reads.get(str(number))
    assert len(reads.recent._results) <= 64
