"""Running workers, in memory and on a server: waiting, slow handlers, and stops, in real time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tubes.worker import NoHandlers, Summary, Worker

#: A ttr in seconds that is shorter than the handlers run.
TTR = 1.2


@pytest.fixture
def settings() -> dict[str, Any]:
    """Use real time, and sessions that expire soon."""
    return {"session_ttl": 2}


class Running:
    """A worker in a thread."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.summary: Summary | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.summary = self.worker.run()

    def end(self, *, now: bool = False, patience: float = 20) -> Summary:
        self.worker.stop(now=now)
        self._thread.join(patience)
        assert self.summary is not None, "it still runs"
        return self.summary


@contextmanager
def running(worker: Worker) -> Generator[Running]:
    run = Running(worker)
    try:
        yield run
    finally:
        run.end(now=True)


def total(tube: tubes.Tube) -> int:
    return tube.statistics().tasks["total"]


def test_a_worker_works_until_it_is_stopped(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    worker = Worker(queue)
    seen: list[int] = []
    worker.on(tube, lambda task: seen.append(task.data))
    with running(worker) as run:
        for number in range(5):
            tube.put(number)
            assert eventually(lambda: len(seen) == number + 1)  # noqa: B023
        assert run.end() == Summary(acked=5)
    assert (seen, total(tube)) == ([0, 1, 2, 3, 4], 0)
    assert tube.statistics().waiting == 0


def test_worker_stopped_before_its_run_ends_at_once_and_may_run_again(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    tube.put("ann")
    worker = Worker(queue)
    worker.on(tube, lambda task: None)
    worker.stop()
    run = Running(worker)
    run._thread.join(20)
    assert run.summary == Summary()
    assert total(tube) == 1
    worker.stop()  # It stops a run that has already ended.
    assert worker.run(burst=True) == Summary(acked=1)


def test_worker_waits_for_existing_tubes_and_one_created_again(queue: tubes.Queue) -> None:
    first, second = queue.create_tube("first"), queue.create_tube("second")
    worker = Worker(queue)
    seen: list[str] = []
    worker.on([first, second], lambda task: seen.append(task.tube))
    worker.on(later := queue.create_tube("later"), lambda task: seen.append(task.tube))
    later.drop()
    with running(worker):
        for tube in (second, first):
            assert eventually(lambda: tube.statistics().waiting == 1)  # noqa: B023
            tube.put(0)
            assert eventually(lambda: bool(seen) and seen[-1] == tube.name)  # noqa: B023
        queue.create_tube("later").put(0)
        assert eventually(lambda: seen[-1] == "later")


def test_tubes_can_be_added_and_removed_while_the_worker_runs(queue: tubes.Queue) -> None:
    one, two = queue.create_tube("one"), queue.create_tube("two")
    worker = Worker(queue)
    worker.on(queue.create_tube("another"), lambda task: None)
    seen: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def handle(task: Any) -> None:
        begun.set()
        assert go.wait(20)
        seen.append(task.data)

    with running(worker) as run:
        worker.on([one, two], handle)
        one.put("in hand")
        assert begun.wait(20)
        worker.off(one)
        go.set()
        two.put("of the other")
        assert eventually(lambda: seen == ["in hand", "of the other"])
        assert eventually(lambda: two.statistics().waiting == 1)
        one.put("nobody's")
        worker.off("two")
        assert eventually(lambda: one.statistics().waiting == two.statistics().waiting == 0)
        two.put("nobody's")
        assert run.end() == Summary(acked=2)
    assert (total(one), total(two)) == (1, 1)


# -- renewing leases ---------------------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [{"ttr": TTR}, {"ttl": TTR}, {"ttl": TTR, "ttr": 9}], ids=str)
@pytest.mark.parametrize("way", ["thread", "async", "blocking"])
def test_task_is_renewed_while_its_handler_works(queue: tubes.Queue, way: str, options: dict[str, Any]) -> None:
    """It is renewed even if the handler blocks the event loop."""
    tube = queue.create_tube("mail", "fifottl", **options)

    def handle(task: Any) -> None:
        time.sleep(2 * TTR)

    async def handle_async(task: Any) -> None:
        await asyncio.sleep(2 * TTR)

    async def block(task: Any) -> None:
        time.sleep(2 * TTR)  # noqa: ASYNC251

    worker = Worker(queue)
    worker.on(tube, {"thread": handle, "async": handle_async, "blocking": block}[way])
    tube.put("ann")
    assert worker.run(burst=True) == Summary(acked=1)
    calls = tube.statistics().calls
    assert (calls["take"], calls["ack"], calls["ttr"], calls["ttl"]) == (1, 1, 0, 0)
    assert calls["touch"] <= 40


@pytest.mark.sample(1)
def test_renewing_a_task_does_not_change_its_ttr(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifottl", ttr=TTR, max_attempts=2)

    def fail(task: Any) -> None:
        time.sleep(2 * TTR)
        raise ValueError

    worker = Worker(queue)
    worker.on(tube, fail)
    tube.put("ann")
    assert worker.run(burst=True) == Summary(released=1, buried=1)
    assert next(iter(tube.select("buried"))).ttr == TTR


def test_a_task_without_ttr_is_never_renewed(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifottl")
    worker = Worker(queue)
    worker.on(tube, lambda task: time.sleep(0.3))
    tube.put("ann")
    assert worker.run(burst=True) == Summary(acked=1)
    assert tube.statistics().calls["touch"] == 0


def test_blocked_event_loop_does_not_lose_its_session(url: str) -> None:
    with tubes.connect(url, session_ttl=1.2) as queue:
        tube = queue.create_tube("mail")

        async def block(task: Any) -> None:
            time.sleep(3)  # noqa: ASYNC251

        worker = Worker(queue)
        worker.on(tube, block)
        tube.put("ann")
        assert worker.run(burst=True) == Summary(acked=1)
        assert tube.statistics().calls["take"] == 1


def test_async_handler_is_cancelled_when_its_task_is_lost(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifottl", ttr=TTR)
    ended: list[str] = []
    begun = threading.Event()

    async def handle(task: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    worker = Worker(queue)
    worker.on(tube, handle)
    tube.put("ann")
    with running(worker) as run:
        assert begun.wait(20)
        tube.delete(0)
        assert eventually(lambda: ended == ["cancelled"])
        assert run.end() == Summary(lost=1)


# -- timeouts ----------------------------------------------------------------------------------------------------------


def test_an_async_handler_that_takes_too_long_is_cancelled(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", max_attempts=1)

    async def handle(task: Any) -> None:
        if task.data == "slow":
            await asyncio.sleep(60)

    worker = Worker(queue)
    worker.on(tube, handle, timeout=0.5)
    tube.put_many(["slow", "quick"])
    assert worker.run(burst=True) == Summary(acked=1, buried=1)
    assert next(iter(tube.select("buried"))).reason == "TimeoutError: the handler took longer than 0.5 s"


def test_timeout_error_of_a_handler_is_reported_as_its_own(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", max_attempts=1)

    async def handle(task: Any) -> None:
        raise TimeoutError("mine")

    worker = Worker(queue)
    worker.on(tube, handle, timeout=60)
    tube.put("ann")
    assert worker.run(burst=True) == Summary(buried=1)
    assert next(iter(tube.select("buried"))).reason == "TimeoutError: mine"


@pytest.mark.sample(2)
@pytest.mark.parametrize("way", ["thread", "stubborn"])
def test_handler_that_does_not_end_loses_its_task_at_the_timeout(
    queue: tubes.Queue, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its place is free for other tasks."""
    tube = queue.create_tube("mail", "fifottl", ttr=TTR, max_attempts=1)
    go = threading.Event()
    seen: list[str] = []

    def handle(task: Any) -> str:
        if task.data == "slow":
            assert go.wait(30)
        seen.append(task.data)
        return "too late"

    async def ignore_cancellation(task: Any) -> None:
        while task.data == "slow" and not go.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        seen.append(task.data)

    worker = Worker(queue)
    worker.on(tube, handle if way == "thread" else ignore_cancellation, timeout=0.5)
    tube.put_many(["slow", "quick"])
    with running(worker) as run:
        assert eventually(lambda: seen == ["quick"])
        (dead,) = tube.select("buried")
        assert (dead.data, dead.reason) == ("slow", "TimeoutError: the handler took longer than 0.5 s")
        go.set()
        assert eventually(lambda: "too late" in caplog.text)
        assert run.end() == Summary(acked=1, buried=1)
    assert "is buried: TimeoutError: the handler took longer than 0.5 s" in caplog.text
    assert tube.select("buried").count() == 1


# -- stopping ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["thread", "async"])
def test_stop_finishes_tasks_in_hand_and_takes_no_more(queue: tubes.Queue, way: str) -> None:
    tube = queue.create_tube("mail")
    begun = threading.Event()

    def handle(task: Any) -> None:
        begun.set()
        time.sleep(0.3)

    async def handle_async(task: Any) -> None:
        begun.set()
        await asyncio.sleep(0.3)

    worker = Worker(queue)
    worker.on(tube, handle if way == "thread" else handle_async)
    tube.put_many(range(3))
    with running(worker) as run:
        assert begun.wait(20)
        assert run.end() == Summary(acked=1)
    assert tube.statistics().tasks["ready"] == 2


@pytest.mark.sample(3)
@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("way", ["thread", "async", "stubborn"])
def test_unfinished_tasks_are_released_after_the_grace(queue: tubes.Queue, way: str, now: bool) -> None:
    tube = queue.create_tube("mail", "fifottl", ttr=600, backoff=[60])
    begun, go = threading.Event(), threading.Event()

    def handle(task: Any) -> None:
        begun.set()
        go.wait(30)

    async def handle_async(task: Any) -> None:
        begun.set()
        await asyncio.sleep(60)

    async def ignore_cancellation(task: Any) -> None:
        begun.set()
        while not go.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    handlers: dict[str, Callable[[Any], Any]] = {
        "thread": handle,
        "async": handle_async,
        "stubborn": ignore_cancellation,
    }
    worker = Worker(queue, grace=60 if now else 0.2)
    worker.on(tube, handlers[way])
    tube.put("ann")
    with running(worker) as run:
        assert begun.wait(20)
        began = time.monotonic()
        assert run.end(now=now) == Summary(cut_off=1, exit_code=4 if now else 3)
        assert time.monotonic() - began < 15
        retaken = tube.take(timeout=0)  # The attempt did not fail: it does not count, and the backoff does not apply.
        assert retaken is not None
        assert retaken.attempts == 1
        go.set()


def test_a_worker_in_a_loop_may_be_cancelled(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifottl", ttr=600)
    tube.put("ann")

    async def main() -> None:
        begun = asyncio.Event()

        async def handle(task: Any) -> None:
            begun.set()
            await asyncio.sleep(60)

        worker = Worker(queue)
        worker.on(tube, handle)
        running = asyncio.create_task(worker.run_async())
        await asyncio.wait_for(begun.wait(), 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert tube.take(timeout=0) is not None


@pytest.mark.sample(1)
def test_ended_worker_leaves_no_threads(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    tube.put_many(range(3))
    before = threading.active_count()
    worker = Worker(queue, concurrency=3)
    worker.on(tube, lambda task: time.sleep(0.01))
    assert worker.run(burst=True) == Summary(acked=3)
    # At most a thread of a server's store and one of asyncio's executor remain.
    assert eventually(
        lambda: not any(thread.name in ("tubes-handler", "tubes-worker-leases") for thread in threading.enumerate())
    )
    assert threading.active_count() <= before + 2


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_worker_runs_in_a_thread_during_a_block(queue: tubes.Queue) -> None:
    squares = queue.create_tube("squares")
    worker = Worker(queue)
    worker.on(squares, lambda task: task.data**2)
    block = worker.running()
    for number in (3, 4):
        with block as same:
            assert same is worker
            assert squares.call(number, timeout=30) == number**2
        assert not worker._is_running


def test_block_gives_running_handlers_their_grace(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    worker = Worker(queue)
    begun = threading.Event()

    @worker.on(tube)
    def handle(task: tubes.Task) -> None:
        begun.set()
        time.sleep(0.2)

    with worker.running():
        tube.put("ann")
        assert begun.wait(30)
    assert tube.statistics().tasks["total"] == 0


def test_error_at_the_start_is_raised_before_the_block(queue: tubes.Queue) -> None:
    with pytest.raises(NoHandlers), Worker(queue).running():
        pytest.fail("the block must not begin")


@pytest.mark.parametrize("fails", [False, True])
def test_later_error_is_raised_at_the_end_of_the_block(
    queue: tubes.Queue, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    worker = Worker(queue)
    worker.on(queue.create_tube("mail"), lambda task: None)

    @worker.lifespan
    def pool() -> Iterator[None]:
        yield
        raise OSError("the pool is broken")

    def run() -> None:
        with worker.running():
            if fails:
                raise KeyError

    with pytest.raises(KeyError if fails else OSError):
        run()
    assert ("the worker has failed" in caplog.text) is fails


def test_worker_runs_in_the_event_loop_during_a_block(queue: tubes.Queue) -> None:
    squares = queue.create_tube("squares")
    worker = Worker(queue)

    @worker.on(squares)
    async def square(task: tubes.AsyncTask) -> int:
        number: int = task.data
        return number**2

    async def main() -> None:
        async with worker.running() as same:
            assert same is worker
            assert await asyncio.to_thread(squares.call, 5, 30) == 25
        assert not worker._is_running
        with pytest.raises(NoHandlers):
            async with Worker(queue).running():
                pytest.fail("the block must not begin")
        with pytest.raises(KeyError):
            async with worker.running():
                raise KeyError

    asyncio.run(main())


def test_second_cancellation_of_a_block_cuts_its_handlers_off(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    tube.put("ann")
    worker = Worker(queue)
    begun = asyncio.Event()

    @worker.on(tube)
    async def hang(task: tubes.AsyncTask) -> None:
        begun.set()
        await asyncio.sleep(3600)

    async def block() -> None:
        async with worker.running():
            await begun.wait()

    async def main() -> None:
        running_block = asyncio.create_task(block())
        await begun.wait()
        for _ in range(2):
            running_block.cancel()
            await asyncio.sleep(0.05)
        await asyncio.wait([running_block])
        assert running_block.cancelled()

    asyncio.run(main())
    assert tube.statistics().tasks["ready"] == 1
