"""Rates of tubes by the server's time: all processes together keep them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest

import tubes
from tests.support import starts
from tubes.testing import ManualClock


def test_processes_together_keep_the_rate(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", "fifottl", ttr=starts.TTR, rate=50, burst=5)
        tube.put_many(range(60))
        command = [sys.executable, "-m", "tests.support.starts", url]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
        found: list[float] = [start for each in running for start in json.loads(each.communicate(timeout=60)[0])]
        assert len(found) == 60
        starts.check_rate(found, rate=50, burst=5)
        # Nobody waited much longer than for the next token.
        assert sorted(found)[-1] - sorted(found)[0] < 60 / 50 * 3 + 2


def test_waiting_take_is_served_when_the_next_token_comes(url: str) -> None:
    with tubes.connect(url) as queue, tubes.connect(url) as other:
        tube = queue.create_tube("t", rate=2)
        tube.put_many(range(2))
        begin = time.monotonic()
        assert tube.take(0) is not None
        assert other.tube("t").take(9) is not None
        assert 0.4 < time.monotonic() - begin < 4


@pytest.mark.parametrize("backend", ["memory", "server"])
def test_declined_tasks_return_their_tokens_unless_another_take_has_started_later(url: str, backend: str) -> None:
    clock = ManualClock()
    with tubes.connect("memory://" if backend == "memory" else url, clock=clock) as queue:
        tube = queue.create_tube("t", rate=1, burst=3)
        tube.put_many(range(9))
        port: Any = tube._port
        tasks = tube.take_many(3, timeout=0)
        for task in tasks[:2]:
            port.decline(task, 0)
        assert len(tube.take_many(9, timeout=0)) == 2
        clock.advance(1)
        later = tube.take(timeout=0)
        assert later is not None
        port.decline(tasks[2], 0)
        assert tube.take(timeout=0) is None
        port.decline(later, 0)
        assert len(tube.take_many(9, timeout=0)) == 1
