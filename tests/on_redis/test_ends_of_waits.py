"""Waits in real time that end by timeout or by other calls: at once, and in the order of their starts."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.internals import port_of
from tests.support.taking import take_task
from tubes import ConnectionLost
from tubes.redis.transport.script_call import WaitForLock
from tubes.testing import ManualClock


def test_closing_a_session_ends_its_waits_at_once(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("load", capacity=1)
        ended: list[Any] = []

        def wait(other: tubes.Tube, **options: Any) -> None:
            try:
                other.put(1, **options) if options else other.take()
            except tubes.QueueClosed as error:
                ended.append(error)

        for options in ({}, {"timeout": 20}):
            session = queue.session()
            thread = threading.Thread(target=wait, args=(session.tube("load"),), kwargs=options)
            thread.start()
            assert eventually(lambda: tube.statistics().waiting == 1)
            time.sleep(0.1)  # Wait until the take blocks on the server.
            before = time.monotonic()
            session.close()
            thread.join()
            # Far less than the longest blocking wait.
            assert time.monotonic() - before < 2.5
            tube.put(0, timeout=0)
        assert len(ended) == 2
        assert tube.statistics().tasks == {
            "ready": 1, "taken": 0, "buried": 0, "delayed": 0, "done": 0, "total": 1,
        }  # fmt: skip


def test_waiters_are_served_in_order_after_a_pause_or_delay(url: str) -> None:
    async def main() -> None:
        async with tubes.aio.connect(url) as queue:
            tube = await queue.create_tube("load", "fifottl")
            for number in range(6):
                waits = [asyncio.create_task(tube.take(timeout=5)) for _ in range(4)]
                while (await tube.statistics()).waiting < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                if number % 2:
                    await tube.pause(0.1)
                    await tube.put_many(range(4))
                else:
                    await tube.put_many(range(4), delay=0.1)
                tasks = await asyncio.gather(*waits)
                assert [task.data for task in tasks if task is not None] == [0, 1, 2, 3]
                await tube.truncate()

    asyncio.run(main())


class DelayedPut:
    """A put that waits 0.3 seconds for room and is executed in time, but its reply arrives later."""

    def __init__(self, url: str, kind: str, monkeypatch: pytest.MonkeyPatch, lost: bool = False) -> None:
        self.done, self.released = threading.Event(), threading.Event()
        self._loses_reply = lost
        self._monkeypatch = monkeypatch
        self.outcome: Any = None
        put = self._put if kind == "thread" else lambda url: asyncio.run(self._put_in_loop(url))
        self._thread = threading.Thread(target=put, args=(url,))
        self._thread.start()

    def _slow(self, port: Any) -> None:
        put_waiting = port.put_waiting

        def slow(request: Any) -> Any:
            reply = yield from put_waiting(request)
            if reply is not None:
                self.done.set()
                assert self.released.wait(20)
                if self._loses_reply:
                    raise ConnectionLost(url="here", why="it was cut")
            return reply

        self._monkeypatch.setattr(port, "put_waiting", slow)

    def _put(self, url: str) -> None:
        with tubes.connect(url) as queue:
            tube = queue.tube("load")
            self._slow(tube._port)
            # Another thread serves the put, as usual.
            consumer = threading.Thread(target=tube.take, args=(20,))
            consumer.start()
            assert eventually(lambda: tube.statistics().waiting == 1)
            try:
                self.outcome = tube.put("late", timeout=0.3)
            except ConnectionLost as error:
                self.outcome = error
            tube.pause(0)
            consumer.join()

    async def _put_in_loop(self, url: str) -> None:
        async with tubes.aio.connect(url) as queue:
            tube = await queue.tube("load")
            self._slow(tube._port)
            try:
                self.outcome = await tube.put("late", timeout=0.3)
            except ConnectionLost as error:
                self.outcome = error

    def join(self) -> Any:
        """Return the result of the put."""
        time.sleep(0.5)  # Its timeout is over.
        self.released.set()
        self._thread.join()
        return self.outcome


@pytest.mark.parametrize("lost", [False, True], ids=["returns its task", "raises if its outcome is unknown"])
@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_put_done_as_its_timeout_expires(url: str, kind: str, lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("load", capacity=1)
        tube.pause()
        first = tube.put("first")
        delayed = DelayedPut(url, kind, monkeypatch, lost=lost)
        assert eventually(lambda: tube.statistics().waiting == (2 if kind == "thread" else 1))
        tube.delete(first)
        assert delayed.done.wait(20)
        if lost:
            assert isinstance(delayed.join(), ConnectionLost)
            return
        tube.delete(first.id + 1)  # Another caller has deleted the task: reporting that it was not put would be wrong.
        tube.put("for the consumer")
        assert delayed.join().data == "late"


def test_threads_waiting_for_the_serving_lock_sleep(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If each thread polled, all would be delayed: with 200 threads, for a minute."""
    sleeps: list[WaitForLock] = []
    sleep = WaitForLock.sleep

    def record_and_sleep(waiter: WaitForLock) -> None:
        sleeps.append(waiter)
        sleep(waiter)

    monkeypatch.setattr(WaitForLock, "sleep", record_and_sleep)
    with tubes.connect(url) as queue:
        tube = queue.create_tube("load")
        port: Any = tube._port
        with ThreadPoolExecutor(10) as threads, port.shared.serving.lock:
            ends = [threads.submit(port.shared.store.run_now, port.shared.tick()) for _ in range(10)]
            assert eventually(lambda: len(sleeps) > 0)
            time.sleep(WaitForLock.MOST)
        for end in ends:
            end.result()
        assert len(sleeps) < 100


def test_result_is_returned_if_its_event_comes_after_a_check(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check does not find the task, since the tube keeps no done tasks that long; only the event has the result."""
    with tubes.connect(url) as queue, ThreadPoolExecutor() as pool:
        tube: tubes.Tube = queue.create_tube("t", keep_done=60, keep_done_max=1)
        shared: Any = port_of(tube).shared
        late: list[Any] = []
        monkeypatch.setattr(shared.emptiness, "handle_event", late.append)

        def check() -> None:
            executed = threading.Event()
            shared.emptiness.schedule_check()
            shared.store.later(executed.set)
            assert executed.wait(20)

        waiting = pool.submit(tube.result, tube.put(1), 20)
        assert eventually(lambda: shared.emptiness.waiting)
        check()
        for result in ("first", "second"):
            tube.put(2)
            take_task(tube).ack(result=result)
        check()
        check()
        assert eventually(lambda: sum(event[1] == b"-" for event in late) == 2)
        monkeypatch.undo()
        for event in late:
            shared.emptiness.handle_event(event)
        assert waiting.result(20) == "first"


@pytest.mark.timeout(60)
def test_clock_of_a_test_does_not_block_the_loop_whose_call_serves_waiters(url: str) -> None:
    async def run(steps: int) -> None:
        clock = ManualClock()
        async with tubes.aio.connect(url, clock=clock) as queue:
            tube = await queue.create_tube(f"t{steps}", "fifottl")
            await tube.put_many([1, 2])
            held = [await tube.take(timeout=0), await tube.take(timeout=0)]
            waits = [asyncio.create_task(tube.take(timeout=60))]
            await asyncio.sleep(0)
            releases = [asyncio.create_task(task.release(delay=10)) for task in held if task is not None]
            for _ in range(steps):
                await asyncio.sleep(0)
            clock.advance(5)
            waits.append(asyncio.create_task(tube.take(timeout=60)))
            await asyncio.gather(*releases)
            clock.advance(10)
            assert sorted(task.data for task in await asyncio.gather(*waits) if task is not None) == [1, 2]

    for steps in range(40):
        asyncio.run(run(steps))


def test_put_finds_room_although_an_earlier_take_still_blocks_on_the_server(url: str) -> None:
    async def main() -> None:
        async with tubes.aio.connect(url) as queue:
            tube = await queue.create_tube("load", "fifo", capacity=1)
            take = asyncio.create_task(tube.take(timeout=60))
            while not (await tube.statistics()).waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # Wait until the take blocks on the server.
            await tube.put(0)
            task = await take
            take = asyncio.create_task(tube.take(timeout=60))
            await asyncio.sleep(0.1)
            take.cancel()
            put = asyncio.create_task(tube.put(1, timeout=2))
            await asyncio.sleep(0.05)
            assert task is not None
            await task.ack()
            assert await put is not None

    asyncio.run(main())
