"""Pauses by the server's time: their end serves waiters of other processes, which do not poll meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import tubes
from tests.contract.bench import eventually

if TYPE_CHECKING:
    from tubes.testing import LocalServer


def run_waiters(url: str, kind: str, count: int, session_ttl: float = 30.0) -> list[tuple[float, Any]]:
    """Run waiting callers in one process, in threads or an event loop; return the time and result of each."""
    taken: list[tuple[float, Any]] = []

    def work() -> None:
        with tubes.connect(url, session_ttl=session_ttl) as queue:
            task = queue.tube("t").take(30)
            taken.append((time.monotonic(), task and task.ack().data))

    async def work_in_loop() -> None:
        async with tubes.aio.connect(url, session_ttl=session_ttl) as queue:
            tube = await queue.tube("t")

            async def take() -> None:
                task = await tube.take(30)
                taken.append((time.monotonic(), task and (await task.ack()).data))

            await asyncio.gather(*(take() for _ in range(count)))

    if kind == "threads":
        for _ in range(count):
            threading.Thread(target=work, daemon=True).start()
    else:
        threading.Thread(target=lambda: asyncio.run(work_in_loop()), daemon=True).start()
    return taken


@pytest.mark.parametrize("kind", ["threads", "loop"])
@pytest.mark.parametrize("before", [True, False], ids=["waits before", "waits after"])
def test_waiters_are_served_when_a_pause_ends(url: str, kind: str, before: bool) -> None:
    with tubes.connect(url, session_ttl=31.0) as queue:
        tube = queue.create_tube("t")
        taken = run_waiters(url, kind, 3) if before else []
        assert not before or eventually(lambda: tube.statistics().waiting > 0)
        tube.pause(0.6)
        ends = time.monotonic() + 0.6
        for number in range(3):
            tube.put(number)
        taken = taken if before else run_waiters(url, kind, 3)
        assert eventually(lambda: len(taken) == 3)
        assert sorted(data for _, data in taken) == [0, 1, 2]
        assert all(ends - 0.05 < moment < ends + 2.5 for moment, _ in taken)


def test_waiter_is_served_when_a_pause_ends_after_a_delay(url: str, clock: tubes.testing.ManualClock) -> None:
    with ThreadPoolExecutor() as threads, tubes.connect(url, clock=clock) as queue:
        tube = queue.create_tube("t", "fifottl")
        tube.pause(5)
        tube.put("job", delay=1)
        waiting = threads.submit(tube.take, 60)
        assert eventually(lambda: tube.statistics().waiting == 1)
        clock.advance(1)
        assert tube.statistics().tasks["ready"] == 1
        clock.advance(4)
        task = waiting.result(2.5)
        assert task is not None
        assert task.data == "job"


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_waiters_are_served_when_another_client_resumes(url: str, kind: str) -> None:
    with tubes.connect(url, session_ttl=31.0) as queue:
        tube = queue.create_tube("t")
        tube.pause()
        tube.put(1)
        tube.put(2)
        taken = run_waiters(url, kind, 2)
        assert eventually(lambda: tube.statistics().waiting > 0)
        assert not taken
        tube.pause(0)
        began = time.monotonic()
        assert eventually(lambda: len(taken) == 2)
        assert time.monotonic() - began < 2.5


@pytest.mark.parametrize("seconds", [None, 600])
def test_waiters_send_few_commands_while_a_tube_is_paused(valkey: LocalServer, url: str, seconds: float | None) -> None:
    # Leases are renewed every 200 seconds, so not during the measured second.
    with tubes.connect(url, session_ttl=601.0) as queue, valkey.client() as client:
        tube = queue.create_tube("t")
        taken = run_waiters(url, "threads", 5, session_ttl=600.0)
        assert eventually(lambda: tube.statistics().waiting > 0)
        tube.pause(seconds)
        for number in range(5):
            tube.put(number)

        def requests_per_second() -> int:
            before: int = client.info("stats")["total_commands_processed"]
            time.sleep(1)
            after: int = client.info("stats")["total_commands_processed"]
            return after - before

        # Once all processes have seen the pause, each looks once in 5 seconds.
        assert eventually(lambda: requests_per_second() < 30)
        assert not taken
        tube.pause(0)
        assert eventually(lambda: len(taken) == 5)


def test_take_any_skips_a_paused_tube(url: str) -> None:
    with tubes.connect(url) as queue, tubes.connect(url, session_ttl=31.0) as other:
        first, second = queue.create_tube("t"), queue.create_tube("u")
        first.pause()
        first.put("first")
        taken: list[Any] = []

        def work() -> None:
            taken.extend(queue.take_any([first, second], 20) for _ in range(2))

        worker = threading.Thread(target=work)
        worker.start()
        assert eventually(lambda: second.statistics().waiting == 1)
        other.tube("u").put("second")
        assert eventually(lambda: len(taken) == 1)
        other.tube("t").pause(0)
        worker.join(20)
        assert [task.data for task in taken] == ["second", "first"]
