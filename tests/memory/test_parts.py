"""Long calls in memory and in a folder work in parts, between which other tasks of the event loop run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest

import tubes
from tubes.aio import AsyncSelection
from tubes.testing import ManualClock

#: The number of tasks, and the maximum number that one part looks at.
TASKS, PART = 6000, 1000


async def first(selection: AsyncSelection[int]) -> int | None:
    return next(iter([task.id async for task in selection]), None)


async def reasons(tube: tubes.AsyncTube) -> object:
    await tube.select("delayed").bury("late: 1")
    return await steps_during(tube.admin.reasons())


async def newest_delayed(tube: tubes.AsyncTube) -> object:
    return await steps_during(first(tube.select("delayed", newest_first=True, limit=1)))


async def newest_ready(tube: tubes.AsyncTube) -> object:
    await tube.select("delayed").kick()
    return await steps_during(first(tube.select("ready", newest_first=True, limit=1)))


async def steps_during(call: Awaitable[object]) -> tuple[object, int]:
    """Return the result of a call, and the number of steps of another task meanwhile."""
    steps = count()

    async def work() -> None:
        while True:
            next(steps)
            await asyncio.sleep(0)

    worker = asyncio.create_task(work())
    result = await call
    worker.cancel()
    return result, next(steps)


@pytest.mark.parametrize("url", ["memory://", "file:FOLDER", "file:FOLDER?sync=full"])
@pytest.mark.parametrize(
    ("act", "expected"), [(reasons, {"late": TASKS}), (newest_delayed, TASKS - 1), (newest_ready, TASKS - 1)]
)
def test_other_tasks_of_the_loop_run_between_parts(
    act: Callable[[tubes.AsyncTube], Awaitable[tuple[object, int]]], expected: object, url: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with tubes.aio.connect(url.replace("FOLDER", str(tmp_path / "queue")), clock=ManualClock()) as queue:
            tube = await queue.create_tube("mail", "fifottl")
            await tube.put_many([tubes.Item(number, delay=60) for number in range(TASKS)])
            result, steps = await act(tube)
            assert result == expected
            assert steps >= TASKS // PART

    asyncio.run(main())
