"""Takes from several tubes of a server that end at random moments: no task is lost or given to two callers."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.cancelling import cancel_all, work
from tests.support.ledger import Ledger

NAMES = ("a", "b", "c")


def check(queue: tubes.Queue, ledgers: dict[str, Ledger]) -> None:
    for name, ledger in ledgers.items():
        tube = queue.tube(name)
        assert eventually(lambda tube=tube: tube.statistics().tasks["taken"] == 0)  # type: ignore[misc]
        assert {attempts for each in ledger.takes.values() for attempts in each} <= {1}, "attempt without a take"
        ledger.check(tube)


@pytest.mark.full
def test_take_any_with_random_timeouts_loses_no_task(url: str, factor: int) -> None:
    stop = threading.Event()
    gave_up = [0]
    ledgers = {name: Ledger() for name in NAMES}

    def take(queue: tubes.Queue, seed: int) -> None:
        rng = random.Random(seed)
        made = [queue.tube(name) for name in NAMES]
        while not stop.is_set():
            task = queue.take_any(rng.sample(made, 2), rng.random() * 0.003, fair=seed % 2 == 0)
            if task is None:
                gave_up[0] += 1
            else:
                ledgers[task.tube].work(task)

    with tubes.connect(url, session_ttl=31.0) as putting, tubes.connect(url) as queue:
        made = [putting.create_tube(name) for name in NAMES]
        threads = [
            threading.Thread(target=take, args=(session, number))
            for number in range(6)
            for session in (queue if number % 2 else queue.session(),)
        ]
        for thread in threads:
            thread.start()
        for number in range(500 * factor):
            ledgers[NAMES[number % 3]].put(made[number % 3], str(number))
            stop.wait(random.random() * 0.004)
        stop.set()
        for thread in threads:
            thread.join()
        assert gave_up[0] > 100
        assert sum(ledger.late for ledger in ledgers.values()) == 0
        check(putting, ledgers)


@pytest.mark.full
def test_randomly_cancelled_take_any_loses_no_task(url: str, factor: int) -> None:
    ledgers = {name: Ledger() for name in NAMES}

    async def take(queue: tubes.AsyncQueue, made: list[Any]) -> None:
        task = await queue.take_any(random.sample(made, 2), random.choice((None, 0.001)))
        if task is None:
            return
        await work(ledgers[task.tube], task)

    async def main() -> None:
        async with tubes.aio.connect(url) as queue, tubes.aio.connect(url, session_ttl=31.0) as putting:
            made = [await queue.create_tube(name) for name in NAMES]
            others = [await putting.tube(name) for name in NAMES]

            async def put(number: int) -> None:
                if number % 2 == 0:
                    where = random.choice(made if number % 4 else others)
                    ledgers[where.name].record_put(str(number), (await where.put(str(number))).id)

            cancelled = await cancel_all(1500 * factor, lambda: take(queue, made), put)
            assert cancelled > 1000

    asyncio.run(main())
    with tubes.connect(url) as queue:
        check(queue, ledgers)
