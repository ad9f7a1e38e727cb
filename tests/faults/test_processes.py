"""Workers that are killed, and workers that stand still."""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.ledger import Ledger, Witness
from tests.support.taking import take_task
from tests.support.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.full


@pytest.fixture
def queue(url: str) -> Iterator[tubes.Queue]:
    with tubes.connect(url) as queue:
        yield queue


def start(url: str, mode: str) -> Worker:
    worker = Worker(url, mode)
    assert worker.read_line() == "ready"
    return worker


@pytest.mark.parametrize("mode", ["sync", "aio"])
def test_tasks_of_killed_workers_come_back(
    queue: tubes.Queue, url: str, mode: str, ledger: Ledger, factor: int
) -> None:
    tube = queue.create_tube("load")
    witness = Witness(tube)
    workers = [start(url, mode) for _ in range(3)]
    lines: list[str] = []
    for kill in range(4 * factor):
        for number in range(60):
            ledger.put(tube, f"{kill}.{number}")
        time.sleep(0.03 + random.random() * 0.05)
        victim = workers.pop(random.randrange(len(workers)))
        lines += victim.kill()
        workers.append(start(url, mode))
    assert eventually(lambda: tube.statistics().tasks["total"] == 0)
    for worker in workers:
        lines += worker.kill()
    ledger.read(lines)
    # A worker killed between its report and its ack has not acked: then another one did.
    assert ledger.done.keys() | ledger.maybe.keys() == set(ledger.puts.values())
    witness.check()
    ledger.check(tube)


def test_worker_frozen_beyond_its_lease_acks_too_late(queue: tubes.Queue, url: str) -> None:
    tube = queue.create_tube("load")
    task = tube.put("job")
    worker = start(url, "puppet")
    try:
        assert worker.send("take") == f"took {task.id} 1"
        worker.signal(signal.SIGSTOP)
        mine = take_task(tube, 10)
        assert (mine.id, mine.attempts) == (task.id, 2)
        worker.signal(signal.SIGCONT)
        assert worker.send("ack") == f"late {task.id} 1"
        assert worker.send("take") == "none"
        assert mine.ack().state == "done"
        # The worker continues in a new session.
        tube.put("another")
        assert worker.send("take") == f"took {task.id + 1} 1"
        assert worker.send("ack") == f"acked {task.id + 1} 1"
    finally:
        worker.kill()


def test_frozen_worker_can_take_after_reopening_its_tube(queue: tubes.Queue, url: str) -> None:
    tube = queue.create_tube("load")
    tube.put("job")
    worker = start(url, "puppet")
    try:
        assert worker.send("take") == "took 0 1"
        worker.signal(signal.SIGSTOP)
        take_task(tube, 10).release()
        worker.signal(signal.SIGCONT)
        assert worker.send("open") == "opened"
        assert worker.send("take") == "took 0 3"
        assert worker.send("open") == "opened"
        assert worker.send("ack") == "acked 0 3"
    finally:
        worker.kill()


def test_task_of_a_killed_worker_stays_taken_until_its_lease_expires(queue: tubes.Queue, url: str) -> None:
    tube = queue.create_tube("load")
    tube.put("job")
    worker = start(url, "puppet")
    assert worker.send("take") == "took 0 1"
    before = time.monotonic()
    worker.kill()
    assert tube.take(timeout=0) is None
    take_task(tube, 10)
    # Its lease was renewed a third of it ago at most.
    assert time.monotonic() - before > 0.6
