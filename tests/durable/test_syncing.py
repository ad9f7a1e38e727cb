"""`?sync=full`: methods return after an fsync, which concurrent callers share."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import tubes
import tubes.aio
from tests.contract.bench import eventually
from tests.support.internals import port_of
from tests.support.taking import take_task
from tubes.backend.interface import AsyncPort
from tubes.durable.port import METHODS
from tubes.errors import InvalidOption, StoreFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

CALLS = 100


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'jobs'}?sync=full"


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Slow fsync down, as on a slow disk; return the list of its calls."""
    done: list[int] = []
    sync = os.fsync

    def slow(file: int) -> None:
        time.sleep(0.002)
        sync(file)
        done.append(file)

    monkeypatch.setattr(os, "fsync", slow)
    return done


def test_each_change_is_synced_and_each_read_is_not(url: str, syncs: list[int]) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        before = len(syncs)
        for number in range(5):
            tube.put(number)
            take_task(tube).ack()
            tube.statistics()
            assert tube.take(0) is None
        assert len(syncs) - before == 15


def test_threads_share_a_sync(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, syncs = threading.Event(), threading.Event(), list[int]()

    def sync(file: int) -> None:
        syncs.append(file)
        begun.set()
        assert go.wait(60)

    with tubes.connect(url) as queue, ThreadPoolExecutor(CALLS) as threads:
        tube = queue.create_tube("t")
        syncer = port_of(tube).connection.store.syncer
        written = syncer.written
        monkeypatch.setattr(os, "fsync", sync)
        puts = [threads.submit(tube.put, 0)]
        assert begun.wait(60)
        puts += [threads.submit(tube.put, number) for number in range(1, CALLS)]
        assert eventually(lambda: syncer.written == written + CALLS)
        go.set()
        assert len({put.result(60).id for put in puts}) == CALLS
        assert len(syncs) == 2  # One for the first put, and one for all others.


def test_asyncio_tasks_share_a_sync_without_blocking_the_loop(url: str, syncs: list[int]) -> None:
    async def main() -> None:
        async with tubes.aio.connect(url) as queue:
            tube = await queue.create_tube("t")
            before = len(syncs)
            await asyncio.gather(*(tube.put(number) for number in range(CALLS)))
            assert len(syncs) - before <= CALLS // 5
            waiting = asyncio.ensure_future(tube.take())
            assert (await waiting) is not None

    asyncio.run(main())


def test_each_change_of_a_partition_is_synced(url: str, syncs: list[int]) -> None:
    async def main() -> None:
        async with tubes.aio.connect(url) as queue:
            tube = await queue.create_tube("t", partitions=2)
            syncer = port_of(tube).connection.store.syncer
            calls: list[Callable[[], Any]] = [
                lambda: tube.put("x"),
                lambda: tube.put_many(range(3)),
                lambda: tube.take(0),
                tube.truncate,
                lambda: tube.alter(ttr=5),
                tube.drop,
            ]
            for call in calls:
                await call()
                assert syncer.is_synced

    asyncio.run(main())


def test_take_cancelled_while_it_waits_for_the_disk_has_no_effect(url: str, syncs: list[int]) -> None:
    async def main() -> None:
        async with tubes.aio.connect(url) as queue:
            tube = await queue.create_tube("t")
            await tube.put("x")
            taking = asyncio.ensure_future(tube.take(0))
            await asyncio.sleep(0)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            task = await tube.take(0)
            assert task is not None
            assert task.attempts == 1

    asyncio.run(main())


def test_calls_cancelled_while_they_wait_for_the_disk_lose_no_task(url: str) -> None:
    async def cancel(call: Coroutine[Any, Any, object]) -> None:
        running = asyncio.create_task(call)
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    async def main() -> None:
        async with tubes.aio.connect(url) as queue:
            tube = await queue.create_tube("t", "fifottl", keep_done=600)
            await tube.put("done")
            task = await tube.take(0)
            assert task is not None
            await task.ack()
            await cancel(tube.kick(task=task.id))
            assert [task.data async for task in tube.select("ready")] == ["done"]
            task = await tube.take(0)
            assert task is not None
            await tube.put("next")
            await cancel(tube._ack_and_take(task))
            tasks = (await tube.statistics()).tasks
            assert (tasks["taken"], tasks["ready"]) == (0, 1)

    asyncio.run(main())


def test_failed_sync_makes_the_store_unusable(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: int) -> None:
        raise OSError(5, "Input/output error")

    async def main() -> None:
        queue = await tubes.aio.connect(url)
        tube = await queue.create_tube("t")
        await tube.put("kept")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(StoreFailed, match="Input/output error"):
                await tube.put("perhaps")
        for act in (lambda: tube.put("lost"), lambda: tube.take(0), tube.statistics, queue.tubes):
            with pytest.raises(StoreFailed):
                await act()

    asyncio.run(main())
    with tubes.connect(url) as queue:
        assert [task.data for task in queue.tube("t").select()][:1] == ["kept"]


def test_open_folder_refuses_another_sync_mode(url: str) -> None:
    with tubes.connect(url):
        with pytest.raises(InvalidOption, match="already open"):
            tubes.connect(url.replace("full", "normal"))
        tubes.connect(url.partition("?")[0]).close()
    with pytest.raises(InvalidOption):
        tubes.connect(url.replace("full", "much"))


def test_tasks_move_to_another_tube(url: str) -> None:
    async def main() -> None:
        async with tubes.aio.connect(url) as queue:
            here, there = await queue.create_tube("here"), await queue.create_tube("there")
            await here.put_many(range(3))
            assert await here.select("ready", limit=2).move_to(there) == 2
            assert [task.data async for task in there.select()] == [0, 1]

    asyncio.run(main())


@pytest.fixture
def fails_once(monkeypatch: pytest.MonkeyPatch) -> FailsOnce:
    return FailsOnce(monkeypatch)


class FailsOnce:
    """After `arm`, the next fsync fails and later ones succeed, as on Linux."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.began, self.go, self._left = threading.Event(), threading.Event(), 0
        self._sync = os.fsync
        patch.setattr(os, "fsync", self._fsync)

    def arm(self) -> None:
        self._left = 1

    def _fsync(self, file: int) -> None:
        if self._left:
            self._left = 0
            self.began.set()
            assert self.go.wait(60)
            raise OSError(5, "Input/output error")
        self._sync(file)


def test_failed_sync_fails_all_waiting_puts(url: str, fails_once: FailsOnce) -> None:
    with tubes.connect(url) as queue, ThreadPoolExecutor(5) as threads:
        tube = queue.create_tube("t")
        fails_once.arm()
        puts = [threads.submit(tube.put, 0)]
        assert fails_once.began.wait(60)
        puts += [threads.submit(tube.put, number) for number in range(1, 5)]
        syncer = port_of(tube).connection.store.syncer
        while syncer.written < 6:  # Wait until all puts are written and wait for the lock.
            time.sleep(0.001)
        fails_once.go.set()
        for put in puts:
            with pytest.raises(StoreFailed, match="Input/output error"):
                put.result(60)


@pytest.mark.parametrize("method", ["put", "put_many", "take", "take_many"])
def test_call_interrupted_while_it_waits_for_the_disk_has_its_full_effect(
    url: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(file: int) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        tube.put("job")
        monkeypatch.setattr(os, "fsync", interrupt)
        argument: Any = {"put": 1, "put_many": [1, 2], "take": 0, "take_many": 2}[method]
        with pytest.raises(KeyboardInterrupt):
            getattr(tube, method)(argument)
        new = {"put": [1], "put_many": [1, 2]}.get(method, [])
        assert tube.statistics().tasks["taken"] == (not new)
    with tubes.connect(url) as queue:  # The end of the session has released the task.
        assert [(each.data, str(each.state)) for each in queue.tube("t").select()] == [
            (data, "ready") for data in ["job", *new]
        ]


def test_failed_sync_fails_all_waiting_asyncio_puts(url: str, fails_once: FailsOnce) -> None:
    async def main() -> None:
        queue = await tubes.aio.connect(url)
        tube = await queue.create_tube("t")
        fails_once.arm()
        first = asyncio.ensure_future(tube.put(0))
        assert await asyncio.to_thread(fails_once.began.wait, 60)
        others = [asyncio.ensure_future(tube.put(number)) for number in range(1, 5)]
        await asyncio.sleep(0)
        fails_once.go.set()
        found = await asyncio.gather(first, *others, return_exceptions=True)
        assert [type(error) for error in found] == [StoreFailed] * 5

    asyncio.run(main())


def test_failed_sync_fails_puts_of_a_store_that_closes(url: str, fails_once: FailsOnce) -> None:
    queue = tubes.connect(url)
    tube = queue.create_tube("t")
    fails_once.arm()
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(tube.put, 0)
        assert fails_once.began.wait(60)
        second = threads.submit(tube.put, 1)
        syncer = port_of(tube).connection.store.syncer
        while syncer.written < 3:
            time.sleep(0.001)
        closing = threads.submit(queue.close)
        fails_once.go.set()
        closing.result(60)
        for put in (first, second):
            with pytest.raises(StoreFailed):
                put.result(60)


def test_all_awaited_methods_of_a_port_wait_for_the_sync() -> None:
    awaited = {
        name
        for name, method in vars(AsyncPort).items()
        if "Soon" in str(getattr(method, "__annotations__", {}).get("return"))
    }
    assert awaited == METHODS
