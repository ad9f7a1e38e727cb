"""Clients with wrong clocks: only the server's clock counts."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

import tubes
from tests.contract.bench import eventually
from tests.support.taking import take_task
from tubes import SystemClock
from tubes.backend.alarms import Alarm, AlarmThread

if TYPE_CHECKING:
    from tubes import Task
    from tubes.testing import LocalServer

HOUR = 3_600_000_000


class WrongClock(SystemClock):
    """The machine's clock plus `ahead` microseconds."""

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._ringer = AlarmThread(self.micros)

    @override
    def micros(self) -> int:
        return super().micros() + self._ahead

    @override
    def schedule(self, when: int, alarm: Alarm) -> None:
        self._ringer.schedule(when, alarm)


@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_client_with_wrong_clock_takes_due_tasks(url: str, ahead: int) -> None:
    with tubes.connect(url) as queue, tubes.connect(url, clock=WrongClock(ahead)) as wrong:
        tube, others = queue.create_tube("load", "fifottl"), wrong.tube("load")
        first = tube.put("soon", delay=0.2)
        assert others.take(timeout=0) is None
        task = take_task(others, 3)
        assert task.id == first.id
        # The time to run and the lease use the server's clock too.
        task.release()
        second = others.put("later", delay=0.1, ttr=60)
        assert second.due == pytest.approx(tube.peek(second.id).due)
        task = take_task(tube, 3)
        task.ack()
        task = take_task(tube, 3)
        assert task.id == second.id
        assert others.take(timeout=0) is None


@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_event_loop_with_wrong_clock_sleeps_until_a_task_is_due(own_server: LocalServer, ahead: int) -> None:
    async def main() -> int:
        async with tubes.aio.connect(own_server.url, clock=WrongClock(ahead)) as queue:
            tube = await queue.create_tube("load", "fifottl")
            await tube.put("soon", delay=0.5)
            before = count()
            task = await tube.take(timeout=3)
            assert task is not None
            return count() - before

    with own_server.client() as client:

        def count() -> int:
            return int(client.info("stats")["total_commands_processed"])

        assert asyncio.run(main()) < 60


def test_waiter_learns_of_an_earlier_due_task_put_elsewhere(url: str) -> None:
    taken: list[Task | None] = []
    with tubes.connect(url) as queue, tubes.connect(url, session_ttl=31.0) as another:
        tube = queue.create_tube("load", "fifottl")
        thread = threading.Thread(target=lambda: taken.append(tube.take(timeout=2)))
        thread.start()
        others = another.tube("load")
        assert eventually(lambda: others.statistics().waiting == 1)
        others.put("soon", delay=0.1)
        thread.join()
    assert taken[0] is not None
