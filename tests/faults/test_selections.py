"""Changes of selections while other programs work on the same tasks."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

import tubes
from tubes.testing import LocalServer

TASKS = 600


@pytest.mark.parametrize("where", ["memory", "server"])
def test_kicked_tasks_are_done_once_while_workers_bury_again(where: str, valkey: LocalServer) -> None:
    url = "memory://selections" if where == "memory" else f"{valkey.url}?prefix=selections"
    done: Counter[int] = Counter()
    lock = threading.Lock()
    stop = threading.Event()

    def work() -> None:
        with tubes.connect(url) as queue:
            tube = queue.tube("mail")
            while not stop.is_set():
                task = tube.take(timeout=0.05)
                if task is None:
                    continue
                if task.data % 3 == 0 and task.attempts < 3:
                    task.bury("try again: later")
                else:
                    task.ack()
                    with lock:
                        done[task.data] += 1

    with tubes.connect(url) as queue:
        tube = queue.create_tube("mail")
        tube.put_many(range(TASKS))
        assert tube.select().bury("try again: at first") == TASKS
        workers = [threading.Thread(target=work) for _ in range(3)]
        for worker in workers:
            worker.start()
        kicked = 0
        while sum(done.values()) < TASKS:
            some = tube.select(reason="try again").kick()
            assert some <= TASKS
            kicked += some
        stop.set()
        for worker in workers:
            worker.join()
        calls = tube.statistics().calls
        assert set(done.values()) == {1}
        assert len(done) == TASKS
        assert kicked == calls["kick"] == TASKS + 2 * (TASKS // 3)
        assert tube.select().count() == 0
        tube.drop()
