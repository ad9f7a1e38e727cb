"""Takes from several tubes that end at bad moments: cancelled, too late, interrupted, finalized."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import tubes
import tubes.aio
from tests.memory.test_interrupts import MANY, interrupt
from tests.support.cancelling import cancel_some
from tests.support.internals import port_of
from tubes.drivers.invariants import check_engine
from tubes.memory.port import MemoryPort

NAMES = ("a", "b", "c")


def check(queue: tubes.Queue) -> tuple[int, int, int]:
    """Check all indexes; return the numbers of ready tasks, taken tasks and waiting callers in all tubes."""
    for name in queue.tubes():
        check_engine(port_of(queue.tube(name)).shared.engine)
    found = queue.statistics().values()
    counts = [sum(each.tasks[name] for each in found) for name in ("ready", "taken")]
    return counts[0], counts[1], sum(each.waiting for each in found)


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(3))
def test_cancelled_takes_from_several_tubes_lose_nothing(seed: int) -> None:
    """Cancel thousands at random moments, with puts in between: each task is taken once or is still in the tube."""
    rng = random.Random(seed)
    puts = 3000

    async def main() -> None:
        taken: list[int] = []
        async with tubes.aio.connect() as queue:
            made = [await queue.create_tube(name, "utubettl") for name in NAMES]

            async def take_all() -> None:
                some = rng.sample(made, rng.randrange(1, 4))
                task = await queue.take_any(some, rng.choice([None, 0.001, 5]), fair=rng.random() < 0.5)
                if task is not None:
                    assert task.attempts == 1
                    await task.ack()
                    taken.append(task.data)

            await cancel_some(rng, puts, take_all, lambda n: rng.choice(made).put(n, utube=str(rng.randrange(50))))
            found = (await queue.statistics()).values()
            assert sum(each.waiting + each.tasks["taken"] for each in found) == 0
            assert len(taken) == len(set(taken)) == sum(each.calls["ack"] for each in found)
            assert sum(each.tasks["ready"] for each in found) + len(taken) == puts
            assert sum(each.calls["take"] for each in found) == len(taken)
            assert len(taken) > puts // 20, "the consumers got almost no task, which proves little"

    asyncio.run(main())


def test_takes_from_several_tubes_that_time_out_in_threads_lose_nothing() -> None:
    puts = 4000
    taken: list[int] = []
    with tubes.connect() as queue:
        made = [queue.create_tube(name) for name in NAMES]
        stop = threading.Event()

        def take_all(seed: int) -> None:
            rng = random.Random(seed)
            while not stop.is_set():
                task = queue.take_any(rng.sample(made, 2), rng.random() * 0.0005)
                if task is not None:
                    taken.append(task.ack().data)

        threads = [threading.Thread(target=take_all, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for number in range(puts):
            made[number % 3].put(number)
        stop.set()
        for thread in threads:
            thread.join()
        assert check(queue) == (puts - len(taken), 0, 0)
        assert len(taken) == len(set(taken))


def test_waiting_takes_from_several_tubes_use_no_cpu() -> None:
    with tubes.connect() as queue:
        for name in NAMES:
            queue.create_tube(name, "fifottl").put("later", delay=3600)

        def take_all() -> None:
            with pytest.raises(tubes.QueueClosed):
                queue.take_any(NAMES, 60)

        threads = [threading.Thread(target=take_all) for _ in range(20)]
        for thread in threads:
            thread.start()
        while check(queue)[2] < 60:
            time.sleep(0.001)
        before = time.process_time()
        time.sleep(0.5)
        used = time.process_time() - before
        queue.close()
        for thread in threads:
            thread.join()
    assert used < 0.05


def test_threads_and_event_loops_waiting_on_the_same_tubes_are_all_served() -> None:
    url = f"memory://several-{os.getpid()}"
    rounds = 200

    async def work() -> list[int]:
        async with tubes.aio.connect(url) as queue:
            seen: list[int] = []
            while (task := await queue.take_any(["stop", "a", "b"])) is not None and task.tube != "stop":
                seen.append((await task.ack()).data)
            return seen

    seen: list[int] = []
    with tubes.connect(url) as queue:
        for name in ("a", "b", "stop"):
            queue.create_tube(name)
        loop = threading.Thread(target=lambda: seen.extend(asyncio.run(work())))
        loop.start()

        def work_here() -> None:
            while (task := queue.take_any(["stop", "b", "a"])) is not None and task.tube != "stop":
                seen.append(task.ack().data)

        thread = threading.Thread(target=work_here)
        thread.start()
        for number in range(rounds):
            queue.tube("ab"[number % 2]).put(number)
        while sum(each.calls["ack"] for each in queue.statistics().values()) < rounds:
            time.sleep(0.001)
        for _ in range(2):
            queue.tube("stop").put(None)
        thread.join()
        loop.join()
    assert sorted(seen) == list(range(rounds))


def moments() -> Iterator[tuple[int, tubes.Queue]]:
    """Yield, for every moment, a queue with three tubes, the last of which has tasks."""
    for moment in range(MANY):
        with tubes.connect(clock=tubes.testing.ManualClock()) as queue:
            for name in NAMES:
                queue.create_tube(name)
            for number in range(3):
                queue.tube("c").put(number)
            yield moment, queue
    raise AssertionError("the call does not end")


@pytest.mark.sample(1)
@pytest.mark.parametrize("asks", [True, False], ids=["there", "in the line"])
def test_interrupted_take_from_several_tubes_has_no_effect(monkeypatch: pytest.MonkeyPatch, asks: bool) -> None:
    take = MemoryPort.take
    for moment, queue in moments():
        if not asks:  # The task is put only when the call is waiting.
            monkeypatch.setattr(MemoryPort, "take", lambda port: None)
        stop = not interrupt(lambda queue=queue: queue.take_any(NAMES, 5), moment)  # type: ignore[misc]
        monkeypatch.setattr(MemoryPort, "take", take)
        if stop:
            assert moment > 50
            assert check(queue) == (2, 1, 0)
            return
        assert check(queue) == (3, 0, 0)
        task = queue.take_any(NAMES, 0)
        assert task is not None
        assert (task.data, task.attempts) == (0, 1)


def test_interrupt_while_serving_a_take_from_several_tubes_loses_nothing() -> None:
    url = f"memory://interrupted-several-{os.getpid()}"
    loop = asyncio.new_event_loop()

    async def begin(queue: tubes.AsyncQueue) -> asyncio.Task[tubes.AsyncTask | None]:
        taking = asyncio.create_task(queue.take_any(NAMES))
        await asyncio.sleep(0)
        return taking

    async def finishes_soon(taking: asyncio.Task[tubes.AsyncTask | None]) -> bool:
        for _ in range(3):
            await asyncio.sleep(0)
        return taking.done()

    with tubes.connect(url) as queue:
        tube, *_ = [queue.create_tube(name) for name in reversed(NAMES)]
        theirs = tubes.aio.connect(url)
        for moment in range(MANY):
            taking = loop.run_until_complete(begin(theirs))
            stop = not interrupt(lambda: tube.put("x"), moment)
            served = loop.run_until_complete(finishes_soon(taking))
            assert check(queue) == (0, served, 0 if served else 3)
            if not served:
                queue.tube("a").put("y")
            task = loop.run_until_complete(taking)
            assert task is not None
            loop.run_until_complete(task.ack())
            if stop:
                break
        loop.run_until_complete(theirs.close())
    loop.close()


def test_interrupted_take_from_several_tubes_leaves_no_waiter() -> None:
    program = """
import os, signal, threading, time, tubes
signal.signal(signal.SIGINT, signal.default_int_handler)
with tubes.connect() as queue:
    made = [queue.create_tube(name) for name in "abc"]
    def interrupt():
        while not made[2].statistics().waiting:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    try:
        queue.take_any(made)
    except KeyboardInterrupt:
        pass
    made[1].put("x")
    print([tube.statistics().waiting for tube in made], queue.take_any(made, 0).data)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[0, 0, 0] x\n"


@pytest.mark.full
def test_closed_event_loop_leaves_no_waiter_in_several_tubes() -> None:
    url = f"memory://closed-several-{os.getpid()}"
    with tubes.connect(url) as queue:
        made = [queue.create_tube(name) for name in NAMES]

        async def begin(theirs: Any) -> asyncio.Task[Any]:
            waiting = asyncio.create_task(theirs.take_any(NAMES))
            await asyncio.sleep(0)
            return waiting

        for number in range(3):
            loop = asyncio.new_event_loop()
            theirs = tubes.aio.connect(url)
            waiting = loop.run_until_complete(begin(theirs))
            assert check(queue)[2] == 3
            loop.close()
            made[number].put("x")
            assert check(queue)[:2] == (1, 0)
            task = made[number].take(0)
            assert task is not None
            assert task.attempts == 1
            task.ack()
            waiting._log_destroy_pending = False  # type: ignore[attr-defined]
            del waiting, theirs
            gc.collect()
            while check(queue)[2]:
                time.sleep(0.001)
