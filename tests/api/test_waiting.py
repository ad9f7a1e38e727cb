"""Waiting callers: no task is lost, no caller polls, and every caller gets a result."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import tubes
import tubes.aio
from tests.contract.bench import eventually
from tests.contract.faces import Face, SyncFace
from tests.support.cancelling import cancel_some
from tests.support.internals import port_of
from tubes.backend.alarms import Alarm
from tubes.backend.clock import SystemClock
from tubes.drivers import Ranked


def count_ready(tube: tubes.Tube) -> int:
    counts = tube.statistics().tasks
    assert counts["taken"] == 0
    return counts["ready"]


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(3))
def test_cancelled_takes_lose_nothing(seed: int) -> None:
    """Cancel thousands at random moments, with puts in between: each task is taken once or is still in the tube."""
    rng = random.Random(seed)
    puts = 3000

    async def main() -> None:
        taken: list[int] = []
        async with tubes.aio.connect() as queue:
            tube = await queue.create_tube("t", "utubettl")

            async def take_all() -> None:
                task = await tube.take(timeout=rng.choice([None, 0.001, 5]))
                if task is not None:
                    await task.ack()
                    taken.append(task.data)

            await cancel_some(rng, puts, take_all, lambda n: tube.put(n, utube=str(rng.randrange(50))))
            statistics = await tube.statistics()
            assert statistics.waiting == 0
            assert statistics.tasks["taken"] == 0
            assert len(taken) == len(set(taken)) == statistics.calls["ack"]
            assert statistics.tasks["ready"] + len(taken) == puts
            assert statistics.calls["take"] == len(taken)
            assert len(taken) > puts // 20, "the consumers got almost no task, which proves little"

    asyncio.run(main())


def test_takes_that_time_out_in_threads_lose_nothing() -> None:
    puts = 4000
    taken: list[int] = []
    with tubes.connect() as queue:
        tube = queue.create_tube("t")
        stop = threading.Event()

        def take_all(seed: int) -> None:
            rng = random.Random(seed)
            while not stop.is_set():
                task = tube.take(timeout=rng.random() * 0.0005)
                if task is not None:
                    taken.append(task.ack().data)

        threads = [threading.Thread(target=take_all, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for number in range(puts):
            tube.put(number)
        stop.set()
        for thread in threads:
            thread.join()
        assert count_ready(tube) + len(taken) == puts
        assert len(taken) == len(set(taken))
        assert tube.statistics().waiting == 0


def test_threads_and_event_loops_share_a_store_and_wake_each_other() -> None:
    rounds = 200
    url = f"memory://shared-{os.getpid()}"

    async def reply() -> None:
        async with tubes.aio.connect(url) as queue:
            requests = await queue.create_tube("requests", if_not_exists=True)
            replies = await queue.create_tube("replies", if_not_exists=True)
            for _ in range(rounds):
                async with requests.taking(timeout=30) as task:
                    await replies.put(task.data * 2)

    loop = threading.Thread(target=lambda: asyncio.run(reply()))
    loop.start()
    with tubes.connect(url) as queue:
        requests = queue.create_tube("requests", if_not_exists=True)
        replies = queue.create_tube("replies", if_not_exists=True)
        for number in range(rounds):
            requests.put(number)
            with replies.taking(timeout=30) as task:
                assert task.data == number * 2
    loop.join()


def test_delayed_task_wakes_a_waiting_take_in_real_time() -> None:
    with tubes.connect() as queue:
        tube = queue.create_tube("t", "fifottl")
        begin = time.monotonic()
        tube.put("late", delay=0.05)
        with tube.taking(timeout=30) as task:
            assert task.data == "late"
        assert time.monotonic() - begin >= 0.05


def test_take_times_out_in_real_time() -> None:
    with tubes.connect() as queue:
        begin = time.monotonic()
        assert queue.create_tube("t").take(timeout=0.05) is None
        assert time.monotonic() - begin >= 0.05


def test_listeners_receive_timed_changes_without_any_call() -> None:
    change: Future[tuple[str, str]] = Future()
    with tubes.connect() as queue:
        tube = queue.create_tube("t", "fifottl")
        tube.put("late", delay=0.02)
        tube.on_task_change(lambda task, event: change.set_result((task.state.letter, event)))
        assert change.result(timeout=30) == ("r", "delay")


def test_waiting_takes_use_no_cpu() -> None:
    """Waiting callers do not poll."""
    with tubes.connect() as queue:
        tube = queue.create_tube("t", "fifottl")
        tube.put("later", delay=3600)

        def take_all() -> None:
            with pytest.raises(tubes.QueueClosed):
                tube.take(60)

        threads = [threading.Thread(target=take_all) for _ in range(50)]
        for thread in threads:
            thread.start()
        while tube.statistics().waiting < 50:
            time.sleep(0.001)
        before = time.process_time()
        time.sleep(0.5)
        used = time.process_time() - before
        queue.close()
        for thread in threads:
            thread.join()
    assert used < 0.05


def test_a_put_wakes_exactly_one_waiter(face: Face, clock: tubes.testing.ManualClock) -> None:
    with face.connect("memory://", clock=clock) as queue:
        tube = queue.create_tube("t")
        count_waiters = [face.begin(tube, "take", 10) for _ in range(5)]
        tube.put("one")
        assert count_waiters[0].result(10).data == "one"
        assert tube.statistics().waiting == 4
        clock.advance(10)
        assert [wait.result(10) for wait in count_waiters[1:]] == [None] * 4


def test_put_sets_at_most_one_alarm_with_many_waiters(
    clock: tubes.testing.ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with tubes.aio.connect(clock=clock) as queue:
            tube = await queue.create_tube("t")
            takes = [asyncio.create_task(tube.take(timeout=number + 1)) for number in range(50)]
            await asyncio.sleep(0)
            sets: list[int] = []
            monkeypatch.setattr(Alarm, "set", lambda alarm, when: sets.append(when))
            await tube.put("x")
            monkeypatch.undo()
            assert len(sets) <= 1
            assert await takes[0] is not None
            for number in range(1, 50):
                clock.advance(1)
                await asyncio.sleep(0)
                assert [take.done() for take in takes].index(False) == number
                if number == 48:
                    break
            clock.advance(2)
            assert await asyncio.gather(*takes[1:]) == [None] * 49

    asyncio.run(main())


def test_take_in_a_closed_event_loop_takes_nothing() -> None:
    url = f"memory://closed-loop-{os.getpid()}"
    loop = asyncio.new_event_loop()

    async def begin() -> tuple[Any, asyncio.Task[Any]]:
        queue = tubes.aio.connect(url)
        tube = await queue.create_tube("t", if_not_exists=True)
        waiting = asyncio.create_task(tube.take())
        await asyncio.sleep(0)
        return queue, waiting

    kept, waiting = loop.run_until_complete(begin())
    loop.close()
    with tubes.connect(url) as queue:
        tube = queue.tube("t")
        tube.put("x")
        assert tube.statistics().tasks["ready"] == 1
        with tube.taking(0) as task:
            assert task.data == "x"
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    del kept, waiting


def test_timed_out_take_gets_nothing_while_its_loop_is_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"memory://late-{os.getpid()}"
    clock = SystemClock()
    loop = asyncio.new_event_loop()

    async def begin() -> tuple[Any, asyncio.Task[Any]]:
        queue = tubes.aio.connect(url)
        taking = asyncio.create_task((await queue.tube("t")).take(timeout=30))
        await asyncio.sleep(0)
        return queue, taking

    with tubes.connect(url, clock=clock) as queue:
        tube = queue.create_tube("t", "fifottl")
        kept, taking = loop.run_until_complete(begin())
        late = clock.micros() + 31_000_000
        monkeypatch.setattr(tube._port, "_micros", lambda: late)
        tube.put("x")
        with tube.taking(0) as task:
            assert task.data == "x"
    taking.cancel()
    loop.run_until_complete(asyncio.gather(taking, return_exceptions=True))
    loop.close()
    del kept


def test_put_in_a_closed_event_loop_puts_nothing() -> None:
    url = f"memory://closed-loop-of-a-putter-{os.getpid()}"
    loop = asyncio.new_event_loop()

    async def begin() -> tuple[Any, asyncio.Task[Any]]:
        queue = tubes.aio.connect(url)
        putting = asyncio.create_task((await queue.tube("t")).put("ghost", timeout=60))
        await asyncio.sleep(0)
        return queue, putting

    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", "limfifottl", capacity=1)
        tube.put("x")
        kept, putting = loop.run_until_complete(begin())
        loop.close()
        with tube.taking(0) as task:
            assert task.data == "x"
        statistics = tube.statistics()
        assert (statistics.tasks["total"], statistics.calls["put"], statistics.waiting) == (0, 1, 0)
    putting._log_destroy_pending = False  # type: ignore[attr-defined]
    del kept, putting


@pytest.mark.full
def test_rank_hook_that_exits_fails_only_the_waiting_put(queue: tubes.Queue) -> None:
    def leave(task: Ranked) -> float:
        if task.pri:
            raise SystemExit("no")
        return 0

    driver = tubes.Driver("leaving", options={"capacity", "timeout", "pri"}, rank=leave)
    tube = queue.create_tube("t", driver, capacity=1)
    tube.put("x")
    task = tube.take(0)
    refused = SyncFace().begin(tube, "put", "refused", pri=1, timeout=60)
    assert task is not None
    assert task.ack().state == "done"
    with pytest.raises(SystemExit):
        refused.result(10)
    assert tube.put("y") is not None


@pytest.mark.full
def test_an_interrupted_take_leaves_its_task_in_the_tube() -> None:
    program = """
import os, signal, threading, time, tubes
signal.signal(signal.SIGINT, signal.default_int_handler)
with tubes.connect() as queue:
    tube = queue.create_tube("t")
    def interrupt():
        while not tube.statistics().waiting:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    try:
        tube.take()
    except KeyboardInterrupt:
        pass
    tube.put("x")
    print(tube.statistics().waiting, tube.take(0).data)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0 x\n"


@pytest.mark.full
def test_unclosed_queue_does_not_keep_the_process_alive() -> None:
    program = "import tubes; tube = tubes.connect().create_tube('t'); tube.put(1); tube.take(0)"
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


@pytest.mark.full
def test_garbage_collected_queue_releases_its_tasks() -> None:
    with tubes.connect() as queue:
        tube = queue.create_tube("t")
        tube.put("x")
        other = queue.session()
        assert other.tube("t").take(0) is not None
        other.admin.detach()
        assert tube.take(0) is None, "the session exists until session_ttl has passed"
    with tubes.connect(session_ttl=0) as queue:
        tube = queue.create_tube("t")
        tube.put("x")
        assert queue.session().tube("t").take(0) is not None
        gc.collect()
        with tube.taking(timeout=30) as task:
            assert task.data == "x"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_must_connect_again() -> None:
    with tubes.connect(f"memory://forked-{os.getpid()}") as queue:
        tube = queue.create_tube("t")
        tube.put("x")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            findings = []
            for call in (lambda: tube.put(1), lambda: tube.take(5), queue.tubes, tube.statistics, queue.session):
                try:
                    call()
                    findings.append("no error")
                except tubes.QueueForked:
                    findings.append("forked")
            queue.close()
            with tubes.connect(queue_url := f"memory://forked-{os.getppid()}") as fresh:
                findings.append(f"{queue_url.partition('-')[0]} has {fresh.tubes()}")
                fresh.create_tube("t").put("y")
            os.write(writing, "; ".join(findings).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 1000).decode() == "forked; " * 5 + "memory://forked has []"
        os.close(reading)
        os.close(writing)
        assert tube.statistics().tasks["total"] == 1


@pytest.mark.sample(2)
@pytest.mark.parametrize("backend", ["memory", "folder", "server"])
def test_waiting_result_is_returned_even_if_it_is_discarded_at_once(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls = {"memory": "memory://results", "folder": f"file:{tmp_path / 'jobs'}"}
    url = urls.get(backend) or request.getfixturevalue("url")

    def count_waiters(shared: Any) -> int:
        """Return the number of registered callers that wait for the end of a task."""
        if backend != "server":
            return sum(map(len, shared.end_waiters.values()))
        executed = threading.Event()
        shared.store.later(executed.set)
        assert executed.wait(20)
        return sum(map(len, shared.emptiness._of_task.values()))

    async def main() -> None:
        async with tubes.aio.connect(url) as loops:
            there = await loops.tube("few")
            tasks = await there.put_many(range(6))
            calls: list[Any] = [asyncio.create_task(there.result(task.id, 20)) for task in tasks[::2]]
            calls += [asyncio.create_task(asyncio.to_thread(tube.result, task.id, 20)) for task in tasks[1::2]]
            held = tube.take_many(6)
            assert await asyncio.to_thread(eventually, lambda: count_waiters(port_of(tube).shared) == 6)
            for task in held:
                task.ack(result=task.data * 10)
            assert [task.id for task in tube.select("done")] == [held[-1].id]
            assert sorted(await asyncio.gather(*calls)) == [0, 10, 20, 30, 40, 50]

    with tubes.connect(url) as queue:
        tube: tubes.Tube = queue.create_tube("few", keep_done=60, keep_done_max=1)
        asyncio.run(main())
