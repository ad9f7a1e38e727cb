"""Timed events are punctual, even on servers that check the ends of waits only once a second."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.taking import take_task
from tubes import Item
from tubes.redis.sessions.store import RedisStore
from tubes.testing import LocalServer, server_program

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds: far more than the events take, and far less than the average delay of a server that checks once a second.
_LATE = 0.2


@pytest.fixture(params=["valkey", "redis"])
def slow(request: pytest.FixtureRequest) -> Iterator[LocalServer]:
    if server_program(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    with LocalServer(request.param, hz=1) as server:
        yield server


def spans() -> list[float]:
    """Return waiting times in seconds that are not synchronous with a server's checks."""
    return [0.05 + 0.037 * number for number in range(7)]


@pytest.mark.full
@pytest.mark.sample(1)
def test_due_tasks_wake_waiters_in_time(slow: LocalServer) -> None:
    delays: dict[str, list[float]] = {}
    with tubes.connect(slow.url) as queue:
        tube = queue.create_tube("load", "utubettl")
        for span in spans():
            for what in ("delay", "ttr", "pause", "block"):
                tube.put(
                    what, utube="lane", delay=span if what == "delay" else None, ttr=span if what == "ttr" else None
                )
                if what == "ttr":
                    assert tube.take(timeout=0) is not None
                elif what == "pause":
                    tube.pause(span)
                elif what == "block":
                    tube.lane("lane").block(span)
                began = time.monotonic()
                task = tube.take(timeout=20)
                delays.setdefault(what, []).append(time.monotonic() - began - span)
                assert task is not None
                task.ack()
    assert {what: statistics.median(seconds) < _LATE for what, seconds in delays.items()} == dict.fromkeys(delays, True)


def test_lane_is_served_as_soon_as_its_cooldown_ends(slow: LocalServer) -> None:
    async def main() -> list[float]:
        async with tubes.aio.connect(slow.url) as queue:
            tube = await queue.create_tube("load", "utubettl", interval=0.13)
            await tube.put_many(Item(number, utube="lane") for number in range(8))
            starts: list[float] = []
            for _ in range(8):
                async with tube.taking(timeout=20):
                    starts.append(time.monotonic())
            return [after - before - 0.13 for before, after in pairwise(starts)]

    assert statistics.median(asyncio.run(main())) < _LATE


def test_timeouts_end_by_the_callers_own_clock(slow: LocalServer) -> None:
    delays: list[float] = []
    with tubes.connect(slow.url) as queue:
        tube = queue.create_tube("load", capacity=1)
        before = threading.active_count()
        for span in spans():
            began = time.monotonic()
            assert tube.take(timeout=span) is None
            delays.append(time.monotonic() - began - span)
            tube.put("full")
            began = time.monotonic()
            assert tube.put("no room", timeout=span) is None
            delays.append(time.monotonic() - began - span)
            tube.truncate()
        assert threading.active_count() <= before + 3
    assert statistics.median(delays) < _LATE


def test_timed_out_take_leaves_no_wait_on_the_server(slow: LocalServer) -> None:
    """It would take the next task and return it; on a busy machine that may happen sometimes."""
    at_once: list[bool] = []
    with tubes.connect(slow.url) as queue:
        tube = queue.create_tube("load")
        for span in spans():
            assert tube.take(timeout=span) is None
            tube.put(span)
            task = tube.take(timeout=0)
            at_once.append(task is not None)
            task = task or tube.take(timeout=20)
            assert task is not None
            assert (task.ack().data, task.attempts) == (span, 1)
    assert statistics.median(at_once)


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep clients from ending waits on the server."""
    monkeypatch.setattr(RedisStore, "end_expired_waits", lambda store, key: None)


@pytest.mark.usefixtures("deaf")
def test_task_taken_for_a_timed_out_caller_is_given_back(slow: LocalServer) -> None:
    with tubes.connect(slow.url) as queue, tubes.connect(slow.url, session_ttl=31.0) as other:
        tube, others = queue.create_tube("load"), other.tube("load")
        for number in range(5):
            assert tube.take(timeout=0.05) is None
            others.put(number)
            assert eventually(lambda: others.statistics().tasks["ready"] == 1)
            task = take_task(others)
            assert (task.ack().data, task.attempts) == (number, 1)


@pytest.mark.usefixtures("deaf")
def test_take_after_a_timed_out_take_gets_the_next_task(slow: LocalServer) -> None:
    with tubes.connect(slow.url) as queue, tubes.connect(slow.url, session_ttl=31.0) as other:
        tube, others = queue.create_tube("load", "fifottl"), other.tube("load")
        for number in range(5):
            assert tube.take(timeout=0.05) is None
            putter = threading.Timer(0.05, others.put, args=(number,), kwargs={"delay": 0.05 if number % 2 else None})
            putter.start()
            task = take_task(tube, 20)
            assert (task.ack().data, task.attempts) == (number, 1)
            putter.join()


def test_due_task_costs_each_waiting_process_few_requests(slow: LocalServer) -> None:
    """This includes many due tasks: a woken process takes one, and the other processes stay asleep."""
    with slow.client() as client:

        def calls() -> int:
            return int(client.info("commandstats").get("cmdstat_fcall", {"calls": 0})["calls"])

        queues = [tubes.connect(f"{slow.url}", session_ttl=30.0 + number) for number in range(4)]
        tube = queues[0].create_tube("load", "fifottl")
        tubes_ = [queue.tube("load") for queue in queues]
        taken: list[object] = []
        threads = [threading.Thread(target=lambda one=one: taken.append(one.take(timeout=20))) for one in tubes_]
        tube.put("job", delay=1)
        for thread in threads:
            thread.start()
        assert eventually(lambda: client.info("clients")["blocked_clients"] == len(threads))
        before = calls()
        assert eventually(lambda: bool(taken))
        time.sleep(0.3)
        # Each process requests a marker, perhaps twice, and looks once, one of them at once and the others later.
        assert calls() - before <= 3 * len(threads)
        for number in range(len(threads) - 1):
            tube.put(number)
        for thread in threads:
            thread.join()
        assert None not in taken
        for queue in queues:
            queue.close()
