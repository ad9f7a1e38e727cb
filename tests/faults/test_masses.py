"""Many at once: tasks due at one moment, waiting takes, and cancelled takes."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import TYPE_CHECKING

import pytest
from typing_extensions import Unpack

import tubes
from tests.contract.bench import eventually
from tests.support.cancelling import cancel_all, work
from tests.support.ledger import Ledger
from tests.support.taking import take_task
from tubes.testing import ManualClock

if TYPE_CHECKING:
    from tubes import Tube
    from tubes.testing import LocalServer

pytestmark = pytest.mark.full


async def fill(url: str, clock: ManualClock, count: int, **options: Unpack[tubes.PutOptions]) -> None:
    """Put many tasks quickly."""
    async with tubes.aio.connect(url, clock=clock) as queue:
        tube = await queue.create_tube("load", "fifottl", if_not_exists=True)
        for first in range(0, count, 2000):
            await asyncio.gather(*(tube.put(number, **options) for number in range(first, min(first + 2000, count))))


def test_many_tasks_due_at_once_all_become_ready(url: str, factor: int) -> None:
    clock = ManualClock()
    count = 100_000 if factor > 1 else 10_000
    asyncio.run(fill(url, clock, count, delay=60))
    with tubes.connect(url, clock=clock) as queue:
        tube = queue.tube("load")
        assert tube.take(timeout=0) is None
        clock.advance(60)
        take_task(tube)
        assert tube.statistics().tasks == {
            "ready": count - 1, "taken": 1, "delayed": 0, "buried": 0, "done": 0, "total": count,
        }  # fmt: skip


def test_live_task_is_found_behind_many_expired_tasks(url: str, factor: int) -> None:
    clock = ManualClock()
    count = 50_000 if factor > 1 else 5_000
    asyncio.run(fill(url, clock, count, ttl=5))
    with tubes.connect(url, clock=clock) as queue:
        tube = queue.tube("load")
        alive = tube.put("alive")
        clock.advance(5)
        assert take_task(tube).id == alive.id
        assert tube.statistics().calls["ttl"] == count


def test_two_hundred_waiters_share_one_connection(own_server: LocalServer) -> None:
    with tubes.connect(own_server.url) as queue, own_server.client() as client:
        tube = queue.create_tube("load")
        ledger = Ledger()

        def take() -> None:
            ledger.work(take_task(tube, None))

        threads = [threading.Thread(target=take) for _ in range(200)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: tube.statistics().waiting == 200)
        blocked = [one for one in client.client_list() if one["cmd"] == "bzpopmin"]
        assert len(blocked) == 1
        assert len(client.client_list()) < 6
        with tubes.connect(own_server.url, session_ttl=31.0) as another:
            others = another.tube("load")
            for number in range(200):
                ledger.put(others, str(number))
        for thread in threads:
            thread.join()
        assert len(ledger.done) == 200
        ledger.check(tube)


def test_takes_of_threads_with_random_timeouts_lose_no_task(url: str, ledger: Ledger, factor: int) -> None:
    stop = threading.Event()
    gave_up = [0]

    def take(tube: Tube, seed: int) -> None:
        rng = random.Random(seed)
        while not stop.is_set():
            task = tube.take(timeout=rng.random() * 0.003)
            if task is None:
                gave_up[0] += 1
            else:
                ledger.work(task)

    with tubes.connect(url, session_ttl=31.0) as putting, tubes.connect(url) as queue:
        tube = putting.create_tube("load")
        threads = [
            threading.Thread(target=take, args=(session.tube("load"), number))
            for number in range(8)
            for session in (queue if number % 2 else queue.session(),)
        ]
        for thread in threads:
            thread.start()
        for number in range(600 * factor):
            ledger.put(tube, str(number))
            stop.wait(random.random() * 0.004)
        stop.set()
        for thread in threads:
            thread.join()
        assert gave_up[0] > 200
        assert ledger.late == 0
        assert eventually(lambda: tube.statistics().tasks["taken"] == 0)
        ledger.check(tube)


def test_randomly_cancelled_takes_of_an_event_loop_lose_no_task(url: str, ledger: Ledger, factor: int) -> None:
    async def take(tube: tubes.AsyncTube) -> None:
        task = await tube.take()
        assert task is not None
        await work(ledger, task)

    async def main() -> None:
        async with tubes.aio.connect(url) as queue, tubes.aio.connect(url, session_ttl=31.0) as putting:
            tube, others = await queue.create_tube("load"), await putting.tube("load")

            async def put(number: int) -> None:
                if number % 3 == 0:
                    where = tube if number % 2 else others
                    ledger.record_put(str(number), (await where.put(str(number))).id)

            cancelled = await cancel_all(1500 * factor, lambda: take(tube), put)
            assert cancelled > 1000

    asyncio.run(main())
    with tubes.connect(url) as queue:
        tube = queue.tube("load")
        assert eventually(lambda: tube.statistics().tasks["taken"] == 0)
        ledger.check(tube)
