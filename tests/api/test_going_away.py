"""Callers, loops and queues that end at bad moments: no task is lost, no call hangs, no waiter stays."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from typing import Any

import pytest

import tubes
import tubes.aio
from tests.support.internals import port_of

Aio = tubes.aio.AsyncQueue


async def pause() -> None:
    await asyncio.sleep(0)


def run_alone(program: str) -> str:
    """Run a program that must not hang, and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_worker_may_be_cancelled_right_before_its_queue_is_closed() -> None:
    async def main() -> None:
        async with tubes.aio.connect() as other:
            tube = await other.create_tube("t")
            queue = await other.session()
            await tube.put("job")
            mine = await queue.tube("t")
            assert await mine.take(0) is not None
            worker, neighbour = asyncio.create_task(mine.take()), asyncio.create_task(mine.take())
            await pause()
            worker.cancel()
            await queue.close()
            with pytest.raises(tubes.QueueClosed):
                await neighbour
            assert await tube.take(0) is not None

    asyncio.run(main())


def test_a_worker_may_be_cancelled_right_before_its_tube_is_dropped() -> None:
    async def main() -> None:
        async with tubes.aio.connect() as queue:
            tube = await queue.create_tube("t")
            worker, neighbour = asyncio.create_task(tube.take()), asyncio.create_task(tube.take())
            await pause()
            worker.cancel()
            await tube.drop(force=True)
            with pytest.raises(tubes.TubeNotFound):
                await neighbour

    asyncio.run(main())


def test_worker_may_be_cancelled_right_before_its_timeout(clock: tubes.testing.ManualClock) -> None:
    async def main() -> None:
        async with tubes.aio.connect(clock=clock) as queue:
            tube = await queue.create_tube("t")
            takes = [asyncio.create_task(tube.take(5)) for _ in range(3)]
            await pause()
            takes[1].cancel()
            clock.advance(6)
            assert [await takes[0], await takes[2]] == [None, None]

    asyncio.run(main())


def test_take_cancelled_during_identify_loses_no_task() -> None:
    async def main() -> None:
        async with tubes.aio.connect() as first:
            tube = await first.create_tube("t")
            second, third = await first.session(), await first.session()
            await second.admin.identify(await first.admin.identify())
            waiter = asyncio.create_task(tube.take())
            await pause()
            await (await third.tube("t")).put(1)
            waiter.cancel()
            await first.admin.identify(await third.admin.identify())
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert await (await third.tube("t")).take(0) is not None
            await second.close()

    asyncio.run(main())


@pytest.mark.parametrize("taken", [False, True], ids=["adds no task", "keeps its task if it was taken"])
def test_cancelled_put(taken: bool) -> None:
    async def main() -> None:
        async with tubes.aio.connect() as queue:
            tube = await queue.create_tube("t", "limfifottl", capacity=1)
            await tube.put("a")
            putter = asyncio.create_task(tube.put("b", timeout=5))
            await pause()
            await (await tube.take(0)).ack()  # type: ignore[union-attr]
            task = await tube.take(0) if taken else None
            putter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await putter
            if taken:
                await task.ack()  # type: ignore[union-attr]
                return
            statistics = await tube.statistics()
            assert (statistics.tasks["total"], statistics.calls["put"]) == (0, 1)

    asyncio.run(main())


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_loop_in_a_forked_child_raises_queue_forked() -> None:
    output = run_alone("""
        import os, tubes
        tube = tubes.connect().create_tube("t")
        tube.put(1)
        if os.fork() == 0:
            try:
                for task in tube: pass
            except tubes.QueueForked:
                print("forked", flush=True)
            os._exit(0)
        os.wait()
    """)
    assert output == "forked"


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_forked_child_may_close_the_loop_of_its_parent() -> None:
    output = run_alone("""
        import os, tubes
        tube = tubes.connect().create_tube("t")
        tube.put(1)
        tasks = iter(tube)
        next(tasks)
        if os.fork() == 0:
            tasks.close()
            print("left", flush=True)
            os._exit(0)
        os.wait()
        print(tube.statistics().tasks["taken"])
    """)
    assert output.split() == ["left", "1"]


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_forked_child_may_close_its_parents_waiting_takes() -> None:
    output = run_alone("""
        import asyncio, os, threading, tubes
        async def main():
            tube = await tubes.aio.connect().create_tube("t")
            taking = asyncio.create_task(tube.take())
            await asyncio.sleep(0)
            if os.fork() == 0:
                taking.get_coro().close()
                print([thread.name for thread in threading.enumerate()], flush=True)
                os._exit(0)
            os.wait()
            await tube.put("x")
            print((await taking).data)
        asyncio.run(main())
    """)
    assert output.split() == ["['MainThread']", "x"]


@pytest.mark.full
def test_closed_event_loops_leave_no_waiter_behind() -> None:
    """The garbage collector runs at every allocation, so it ends waiting takes in the middle of other calls."""
    output = run_alone("""
        import asyncio, gc, time, tubes
        queue = tubes.connect("memory://n")
        tube = queue.create_tube("t")

        def job():
            loop = asyncio.new_event_loop()
            async def go():
                mine = await (await tubes.aio.connect("memory://n").tube("t")).take(0)
                other = await tubes.aio.connect("memory://n").tube("t")
                loop.create_task(other.take())
                await asyncio.sleep(0)
            loop.run_until_complete(go())
            loop.close()

        import logging; logging.disable()
        gc.set_threshold(2)
        for number in range(100):
            job()
            tube.put(number)
            tube.take(0).ack()
        gc.collect()
        while tube.statistics().waiting:
            time.sleep(0.001)
        print(tube.statistics().tasks["total"])
    """)
    assert output == "0"


@pytest.mark.full
def test_garbage_collected_loop_releases_its_task() -> None:
    output = run_alone("""
        import gc, time, tubes
        queue = tubes.connect()
        tube = queue.create_tube("t")

        class Worker:
            def __init__(self):
                self.me = self
                self.tasks = iter(tube)
                self.task = next(self.tasks)

        gc.set_threshold(5)
        for number in range(300):
            tube.put(number)
            Worker()
        gc.collect()
        while tube.statistics().tasks["taken"]:
            time.sleep(0.001)
        print(tube.statistics().tasks["ready"])
    """)
    assert output == "300"


@pytest.mark.full
def test_an_interrupt_leaves_the_store_unlocked() -> None:
    output = run_alone("""
        import _thread, signal, threading, time, tubes
        signal.signal(signal.SIGINT, signal.default_int_handler)
        queue = tubes.connect()
        tube = queue.create_tube("t")

        working = threading.Event()

        def poke():
            working.wait()
            for _ in range(2000):
                time.sleep(0.0005)
                _thread.interrupt_main()

        def work():
            working.set()
            while poker.is_alive():
                tube.put(1)
                if task := tube.take(0):
                    task.ack()
                queue.tubes()
                tube.statistics()

        poker = threading.Thread(target=poke)
        hits = 0
        try:
            poker.start()
            while poker.is_alive():
                try:
                    work()
                except KeyboardInterrupt:
                    hits += 1
                    if queue._connection.store.lock.locked():
                        break
        except KeyboardInterrupt:
            pass
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        poker.join()
        print("locked" if queue._connection.store.lock.locked() else "interrupted" if hits else "in peace")
    """)
    assert output == "interrupted"


@pytest.mark.full
def test_queue_with_a_listener_is_garbage_collected() -> None:
    clock = tubes.testing.ManualClock()
    with tubes.connect("memory://", clock=clock, session_ttl=0) as queue:
        tube = queue.create_tube("t")
        tube.put("x")
        other = queue.session()
        mine = other.tube("t")
        mine.on_task_change(lambda task, event: None)
        assert mine.take(0) is not None
        reference = weakref.ref(other)
        del other, mine
        gc.collect()
        assert reference() is None
        with tube.taking(timeout=30) as task:
            assert task.data == "x"


@pytest.mark.full
def test_asyncio_listener_of_a_closed_loop_receives_and_keeps_nothing(
    queue: tubes.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"memory://ended-{os.getpid()}"
    tube = tubes.connect(name).create_tube("t")
    kept: list[Any] = []

    async def main() -> None:
        kept.append(mine := await tubes.aio.connect(name).tube("t"))
        await mine.on_task_change(lambda task, event: None)

    asyncio.run(main())
    data = Data()
    tube.put(data)
    tube.take(0).ack()  # type: ignore[union-attr]
    reference = weakref.ref(data)
    del data
    gc.collect()
    assert reference() is None
    assert not caplog.records


class Data:
    """Data with weak references, to observe when it is freed."""


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", ["fifo", "fifottl", "utube", "utubettl"])
@pytest.mark.parametrize("options", [{}, {"ttl": 1000, "ttr": 100}], ids=["plain", "timed"])
def test_finished_task_does_not_keep_its_data(queue: tubes.Queue, driver: str, options: dict[str, Any]) -> None:
    if options and "ttl" not in driver:
        pytest.skip(f"driver {driver!r} has no ttl")
    tube = queue.create_tube("t", driver, **options)
    seen = []
    for method in (tube.delete, lambda id: tube.bury(id) and tube.delete(id)):
        for _ in range(50):
            data = Data()
            seen.append(weakref.ref(data))
            method(tube.put(data).id)
            del data
    gc.collect()
    assert not [one for one in seen if one() is not None]


def test_deadlines_of_finished_tasks_are_forgotten(queue: tubes.Queue) -> None:
    tube = queue.create_tube("t", "fifottl")
    for number in range(5000):
        tube.put(None, ttl=10 + number * 100)
    while task := tube.take(0):
        task.ack()
    timers = port_of(tube).shared.engine.timers
    assert len(timers._slots) < 200
    assert len(timers._starts) < 200


@pytest.mark.full
def test_replaced_alarms_are_forgotten(clock: tubes.testing.ManualClock) -> None:
    with tubes.connect(clock=clock) as queue:
        tube = queue.create_tube("t", "fifottl")
        tube.put("far", delay=86400)
        tube.on_task_change(lambda task, event: None)
        for number in range(2000):
            tube.put(number, delay=1)
            clock.advance(1)
            tube.take(0).ack()  # type: ignore[union-attr]
        assert len(clock._schedule._moments) < 400


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_namespace_in_which_nothing_was_made_leaves_nothing(kind: str, tmp_path: Path) -> None:
    with tubes.connect("memory://" if kind == "memory" else f"file:{tmp_path}") as queue:
        store: Any = queue._connection
        known = store.store._namespaces
        for name in ("nothing", "dropped", "kept"):
            with queue.namespace(name) as space:
                if name != "nothing":
                    space.create_tube("mail").put(1)
                if name == "dropped":
                    space.tube("mail").drop()
        assert list(known) == ["kept"]
        one, other = queue.namespace("nothing"), queue.namespace("nothing")
        one.close()
        other.create_tube("mail")
        other.close()
        assert queue.admin.namespaces() == ["kept", "nothing"]
