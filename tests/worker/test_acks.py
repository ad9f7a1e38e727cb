"""Acks of a worker: one call per tube at a time, and the next take right behind it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from typing import Any, Final, TypeAlias

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.processes import python
from tubes.aio import AsyncTube
from tubes.worker import Summary, Worker

#: An event that the first ack sets, and the number of tasks of each ack.
SlowAcks: TypeAlias = tuple[asyncio.Event, list[int]]

#: A worker that is killed when it sends its second ack.
_KILLED: Final = """
import os, signal, sys, tubes
from tubes.aio import AsyncTube
from tubes.worker import Worker
ack_many, sizes = AsyncTube.ack_many, []

async def ack_once(tube, tasks):
    if sizes:
        os.kill(os.getpid(), signal.SIGKILL)
    sizes.append(len(tasks))
    return await ack_many(tube, tasks)

AsyncTube.ack_many = ack_once
with tubes.connect(sys.argv[1], session_ttl=1) as queue:
    worker = Worker(queue, concurrency=5)
    worker.on("mail", lambda task: os.write(1, b"%d\\n" % task.data))
    worker.run()
"""


@pytest.mark.parametrize("is_async", [False, True])
def test_next_take_does_not_wait_for_the_reply_of_an_ack(monkeypatch: pytest.MonkeyPatch, is_async: bool) -> None:
    calls: list[str] = []
    take_many, ack_many = AsyncTube.take_many, AsyncTube.ack_many

    async def take(tube: AsyncTube, *args: Any) -> Any:
        calls.append("take")
        return await take_many(tube, *args)

    async def ack_slowly(tube: AsyncTube, tasks: list[Any]) -> Any:
        calls.append("ack")
        for _ in range(20):
            await asyncio.sleep(0)
        calls.append("acked")
        return await ack_many(tube, tasks)

    async def handle(task: Any) -> None:
        """Do nothing."""

    monkeypatch.setattr(AsyncTube, "take_many", take)
    monkeypatch.setattr(AsyncTube, "ack_many", ack_slowly)
    with tubes.connect() as queue:
        tube = queue.create_tube("mail")
        tube.put_many([1, 2])
        worker = Worker(queue, concurrency=1)
        worker.on(tube, handle if is_async else lambda task: None)
        assert worker.run(burst=True) == Summary(acked=2)
    assert calls[:4] == ["take", "ack", "take", "acked"]


@pytest.fixture
def slow_acks(monkeypatch: pytest.MonkeyPatch) -> SlowAcks:
    """Let each call that acks tasks take some turns of the event loop."""
    sizes: list[int] = []
    under_way, ack_many = asyncio.Event(), AsyncTube.ack_many

    async def ack_slowly(tube: AsyncTube, tasks: list[Any]) -> dict[int, bool]:
        sizes.append(len(tasks))
        under_way.set()
        for _ in range(20):
            await asyncio.sleep(0)
        return await ack_many(tube, tasks)

    monkeypatch.setattr(AsyncTube, "ack_many", ack_slowly)
    return under_way, sizes


def test_acks_travel_together_while_another_is_under_way(slow_acks: SlowAcks) -> None:
    under_way, sizes = slow_acks

    async def handle(task: Any) -> None:
        if task.data:
            await under_way.wait()

    with tubes.connect() as queue:
        tube = queue.create_tube("mail")
        tube.put_many(range(5))
        worker = Worker(queue, concurrency=5)
        worker.on(tube, handle)
        assert worker.run(burst=True) == Summary(acked=5)
    assert sizes == [1, 4]


def test_worker_stopped_at_once_acks_the_tasks_of_ended_handlers(slow_acks: SlowAcks) -> None:
    under_way, _ = slow_acks

    async def handle(task: Any) -> None:
        if task.data:
            await under_way.wait()
        if task.data == 4:
            worker.stop(now=True)

    with tubes.connect() as queue:
        tube = queue.create_tube("mail", max_attempts=1)
        tube.put_many(range(5))
        worker = Worker(queue, concurrency=5)
        worker.on(tube, handle)
        assert worker.run().acked == 5
        assert tube.statistics().tasks["total"] == 0


@pytest.mark.parametrize("place", ["memory", "server"], indirect=True)
def test_worker_stopped_at_once_acks_all_tasks_whose_plain_handlers_have_returned(queue: tubes.Queue) -> None:
    done: list[int] = []

    def handle(task: tubes.Task) -> None:
        done.append(task.id)
        if len(done) == 20:
            worker.stop(now=True)

    tube = queue.create_tube("mail", max_attempts=1)
    tube.put_many(range(20))
    worker = Worker(queue, concurrency=1)
    worker.on(tube, handle)
    worker.run()
    assert tube.statistics().tasks["done"] == 20


def test_tasks_of_a_worker_killed_between_two_acks_come_again(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("mail")
        tube.put_many(range(20))
        with python("-c", _KILLED, url, stdout=subprocess.PIPE, text=True) as process:
            started = {int(line) for line in process.communicate(timeout=60)[0].split()}
        assert process.returncode == -signal.SIGKILL
        acked = tube.statistics().calls["ack"]
        assert 0 < acked <= 5
        assert eventually(lambda: tube.statistics().tasks["taken"] == 0)
        again = {task.data for task in tube.take_many(20, 0)}
        assert len(again) == 20 - acked
        assert started | again == set(range(20))
