"""A queue as the URL of `connect`: another session on the same data, for threads or asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tubes
from tubes import InvalidOption, QueueClosed, TaskNotTaken
from tubes.testing import ManualClock


@pytest.fixture(params=["memory", "server"])
def place(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else str(request.getfixturevalue("url"))


def test_session_of_either_api_uses_the_same_queue(place: str) -> None:
    async def main(queue: tubes.Queue) -> None:
        async with tubes.aio.connect(queue) as other:
            task = await (await other.tube("mail")).take(timeout=0)
            assert task is not None
            assert task.data == {"to": "ann"}
            with pytest.raises(TaskNotTaken):
                queue.tube("mail").ack(task.id)
            with tubes.connect(other) as third:
                assert third.tubes() == ["mail"]
            await task.release()

    with tubes.connect(place, codec="json") as queue:
        queue.create_tube("mail").put({"to": "ann"})
        asyncio.run(main(queue))
        with tubes.connect(queue) as same:
            assert same.tube("mail").take(timeout=0) is not None


def test_identified_sessions_are_shared_by_both_apis(place: str) -> None:
    async def main(queue: tubes.Queue) -> None:
        async with tubes.aio.connect(queue) as other:
            await other.admin.identify(queue.admin.identify())
            task = await (await other.tube("mail")).take(timeout=0)
            assert task is not None
            queue.tube("mail").ack(task)  # type: ignore[arg-type]

    with tubes.connect(place) as queue:
        queue.create_tube("mail").put("ann")
        asyncio.run(main(queue))


def test_session_of_a_queue_refuses_another_codec_or_clock(place: str) -> None:
    with tubes.connect(place) as queue:
        with pytest.raises(InvalidOption):
            tubes.connect(queue, codec="json")
        with pytest.raises(InvalidOption):
            tubes.connect(queue, clock=ManualClock())
    closed: Any = queue
    with pytest.raises(QueueClosed):
        tubes.connect(closed)
