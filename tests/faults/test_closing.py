"""Closing queues during their calls, and during waits of any length."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import tubes
from tests.contract.bench import eventually
from tubes import QueueClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.testing import LocalServer

#: Calls to repeat until they raise.
CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "put": lambda queue, tube, full: tube.put("job"),
    "put_many": lambda queue, tube, full: tube.put_many(["a", "b"]),
    "put, waiting": lambda queue, tube, full: full.put("job", timeout=60),
    "put_many, waiting": lambda queue, tube, full: full.put_many(["a"], timeout=60),
    "take": lambda queue, tube, full: tube.take(timeout=0),
    "take_many": lambda queue, tube, full: tube.take_many(2, timeout=0),
    "take, waiting": lambda queue, tube, full: tube.take(timeout=60),
    "take_any": lambda queue, tube, full: queue.take_any([tube, full], timeout=60),
    "peek": lambda queue, tube, full: full.peek(0),
    "statistics": lambda queue, tube, full: tube.statistics(),
    "tasks": lambda queue, tube, full: tube.select().count(),
    "listen": lambda queue, tube, full: tube.on_task_change(lambda task, event: None),
    "create_tube": lambda queue, tube, full: queue.create_tube("new", if_not_exists=True),
    "tube": lambda queue, tube, full: queue.tube("load"),
    "tubes": lambda queue, tube, full: queue.tubes(),
    "overview": lambda queue, tube, full: queue.admin.overview(),
    "identify": lambda queue, tube, full: queue.admin.identify(),
    "ack": lambda queue, tube, full: full.ack(0) and None,
}
#: The calls that never wait keep the queue as busy as possible.
NAMES = list(CALLS)


def measure_close(seconds: float) -> float:
    """Return the moment of the close, sometimes at once."""
    return random.choice((0.0, seconds * random.random()))


@pytest.fixture
def place(valkey: LocalServer) -> str:
    """Create an empty tube and a full one, without buried tasks."""
    url = f"{valkey.url}?prefix={uuid4().hex}"
    with tubes.connect(url, session_ttl=25) as queue:
        queue.create_tube("load")
        queue.create_tube("full", capacity=1).put("first")
    return url


def busy(queue: Any, name: str, ends: dict[str, Any]) -> None:
    """Repeat the call until it raises."""
    try:
        tube, full = queue.tube("load"), queue.tube("full")
        while True:
            try:
                CALLS[name](queue, tube, full)
            except (tubes.TaskNotFound, tubes.TaskNotTaken):
                continue
    except BaseException as error:
        ends[name] = error


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("shared", [True, False], ids=["beside others", "as the last"])
def test_call_in_a_thread_raises_when_its_queue_is_closed(place: str, shared: bool) -> None:
    with tubes.connect(place, session_ttl=30 if shared else 26):
        for _ in range(60):
            queue = tubes.connect(place)
            ends: dict[str, Any] = {}
            threads = [threading.Thread(target=busy, args=(queue, name, ends), daemon=True) for name in NAMES]
            for thread in threads:
                thread.start()
            time.sleep(measure_close(0.05))
            queue.close()
            for name, thread in zip(NAMES, threads, strict=True):
                thread.join(30)
                assert not thread.is_alive(), name
            assert {name: type(end) for name, end in ends.items()} == dict.fromkeys(NAMES, QueueClosed), ends


async def busy_async(queue: Any, name: str) -> Any:
    try:
        tube, full = await queue.tube("load"), await queue.tube("full")
        while True:
            await asyncio.sleep(0)
            try:
                if name == "ack":
                    await full.ack(0)
                else:
                    await CALLS[name](queue, tube, full)
            except (tubes.TaskNotFound, tubes.TaskNotTaken):
                continue
    except Exception as error:
        return error


@pytest.mark.full
def test_call_in_an_event_loop_raises_when_its_queue_is_closed(place: str) -> None:
    async def main() -> None:
        for _ in range(60):
            queue = tubes.aio.connect(place)
            running = [asyncio.create_task(busy_async(queue, name)) for name in NAMES]
            await asyncio.sleep(measure_close(0.05))
            await queue.close()
            ends = await asyncio.wait_for(asyncio.gather(*running), 30)
            assert [type(end) for end in ends] == [QueueClosed] * len(NAMES), dict(zip(NAMES, ends, strict=True))

    asyncio.run(main())


def test_take_that_starts_while_the_queue_closes_does_not_wait(place: str) -> None:
    with tubes.connect(place) as queue:
        tube = queue.tube("load")
        port: Any = tube._port
        enlist = port.shared.wait_loop.enlist

        def late(waiter: Any) -> None:
            queue.close()
            enlist(waiter)

        port.shared.wait_loop.enlist = late
        with pytest.raises(QueueClosed):
            tube.take(timeout=60)


def test_listener_added_while_the_queue_closes_leaves_no_thread(place: str) -> None:
    with tubes.connect(place) as queue, queue.session() as other:
        tube = other.tube("load")
        port: Any = tube._port
        subscription = port.shared.subscription
        begin = subscription.open

        def late(port: Any) -> Any:
            other.close()
            return begin(port)

        subscription.open = late
        others = set(threading.enumerate())
        with pytest.raises(QueueClosed):
            tube.on_task_change(lambda task, event: None)
        assert subscription._stop is None
        assert eventually(lambda: not any(t.name == "tubes-events" for t in {*threading.enumerate()} - others))


YEARS = 100 * 365 * 24 * 3600
SPANS = [2**31 // 1000 + 1, 2**32 // 1000 + 1, YEARS]


@pytest.mark.parametrize("timeout", SPANS)
@pytest.mark.parametrize("kind", ["memory", "server"])
def test_wait_may_last_a_hundred_years(place: str, kind: str, timeout: int, caplog: pytest.LogCaptureFixture) -> None:
    url = place if kind == "server" else "memory://"
    with tubes.connect(url) as queue:
        tube = queue.create_tube("long")
        full = queue.create_tube("narrow", capacity=1)
        full.put("first")
        results: list[Any] = []

        async def main() -> None:
            async with tubes.aio.connect(queue) as other:
                taking = asyncio.create_task((await other.tube("long")).take(timeout=timeout))
                assert await asyncio.to_thread(eventually, lambda: tube.statistics().waiting == 2)
                await asyncio.to_thread(tube.put_many, ["a", "b"])
                results.append(await taking)

        threads = [
            threading.Thread(target=lambda: results.append(tube.take(timeout=timeout)), daemon=True),
            threading.Thread(target=lambda: results.append(full.put("second", timeout=timeout)), daemon=True),
        ]
        for thread in threads:
            thread.start()
        asyncio.run(main())
        full.truncate()
        for thread in threads:
            thread.join(30)
        assert len(results) == 3
        assert None not in results
        assert not caplog.records
