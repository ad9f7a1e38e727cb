"""Workers in bursts: the outcomes of tasks. No test here waits for real time."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import itertools
import logging
import math
import os
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.worker.test_worker_running import running
from tubes import InvalidOption, TubeNotFound
from tubes.backend.retry import RetryPolicy
from tubes.testing import ManualClock
from tubes.worker import Bury, NoHandlers, Retry, Summary, Worker, WorkerBusy
from tubes.worker.fetcher import Fetcher
from tubes.worker.lifetime import RETRY

Act = Callable[[Any], Any]


def plain(act: Act) -> Act:
    return lambda task: act(task)


def awaited(act: Act) -> Act:
    async def handler(task: Any) -> Any:
        await asyncio.sleep(0)
        return act(task)

    return handler


@pytest.fixture
def place() -> str:
    """Use memory only: handlers behave alike on a server."""
    return "memory://"


@pytest.fixture(params=[plain, awaited], ids=["plain", "async"])
def kind(request: pytest.FixtureRequest) -> Callable[[Act], Act]:
    """A function that makes a handler plain or async."""
    wrap_handler: Callable[[Act], Act] = request.param
    return wrap_handler


@pytest.fixture
def tube(queue: tubes.Queue) -> tubes.Tube:
    return queue.create_tube("mail", "fifottl", ttr=60, max_attempts=3)


def work(queue: tubes.Queue, handler: Act, tubes: Any = "mail", **options: Any) -> Summary:
    worker = Worker(queue)
    worker.on(tubes, handler, **options)
    return worker.run(burst=True)


def fail(task: Any) -> None:
    raise ValueError("no such address")


# -- handlers ----------------------------------------------------------------------------------------------------------


def test_a_task_is_acked_when_its_handler_returns(queue: tubes.Queue, tube: tubes.Tube, kind: Any) -> None:
    tube.put_many(range(5))
    seen: list[int] = []
    assert work(queue, kind(lambda task: seen.append(task.data))) == Summary(acked=5)
    assert seen == [0, 1, 2, 3, 4]
    assert tube.statistics().tasks["total"] == 0


def test_result_of_a_handler_is_kept_with_its_task(queue: tubes.Queue, tube: tubes.Tube, kind: Any) -> None:
    tasks = tube.put_many([3, 4, 5], keep_done=60)
    forgotten = tube.put(6)
    assert work(queue, kind(lambda task: None if task.data == 4 else {"square": task.data**2})).acked == 4
    assert [tube.result(task, 0) for task in tasks] == [{"square": 9}, None, {"square": 25}]
    with pytest.raises(tubes.TaskNotFound):
        tube.result(forgotten)


def test_a_result_that_the_codec_refuses_is_left_out(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    with tubes.connect(codec="json", clock=clock) as queue:
        tube = queue.create_tube("mail", keep_done=60)
        task = tube.put(3)
        assert work(queue, lambda task: object()).acked == 1
        assert tube.result(task, 0) is None
    assert "is acked without its result: codec 'json' cannot encode" in caplog.text


def test_failing_task_is_buried_with_its_error_after_max_attempts(
    queue: tubes.Queue, tube: tubes.Tube, kind: Any
) -> None:
    tube.put("ann")
    assert work(queue, kind(fail)) == Summary(released=2, buried=1)
    (dead,) = tube.select("buried")
    assert (dead.reason, dead.attempts) == ("ValueError: no such address", 3)


def test_failed_task_is_delayed_by_the_backoff_of_its_tube(queue: tubes.Queue, clock: ManualClock, kind: Any) -> None:
    tube = queue.create_tube("mail", "fifottl", backoff=[10], max_attempts=2)
    tube.put("ann")
    assert work(queue, kind(fail)) == Summary(released=1)
    assert tube.statistics().tasks["delayed"] == 1
    clock.advance(10)
    assert work(queue, kind(fail)) == Summary(buried=1)


def test_a_handler_can_ask_for_another_attempt_later(
    queue: tubes.Queue, tube: tubes.Tube, clock: ManualClock, kind: Any
) -> None:
    def record_later(task: Any) -> None:
        raise Retry(delay=30)

    tube.put("ann")
    assert work(queue, kind(record_later)) == Summary(released=1)
    assert tube.peek(0).due == clock.now() + 30
    clock.advance(30)
    assert work(queue, kind(record_later)) == Summary(released=1)
    clock.advance(30)
    assert work(queue, kind(record_later)) == Summary(buried=1)
    assert next(iter(tube.select("buried"))).reason == "max_attempts: retry"


def test_worker_accepts_timedeltas(queue: tubes.Queue, tube: tubes.Tube, clock: ManualClock) -> None:
    worker = Worker(queue, grace=timedelta(minutes=1))
    assert worker.grace == 60

    def record_later(task: Any) -> None:
        raise Retry(delay=timedelta(minutes=2))

    worker.on(tube, record_later, timeout=timedelta(minutes=3))
    tube.put("ann", max_attempts=2)
    assert worker.run(burst=True) == Summary(released=1)
    assert tube.peek(0).due == clock.now() + 120
    clock.advance(120)
    assert worker.run(burst=True) == Summary(buried=1)
    assert next(iter(tube.select("buried"))).reason == "max_attempts: retry"


def test_retry_is_ready_at_once_when_the_driver_has_no_delays(queue: tubes.Queue, kind: Any) -> None:
    def record_later(task: Any) -> None:
        if task.attempts == 1:
            raise Retry(delay=30)

    tube = queue.create_tube("mail", "fifo", max_attempts=2)
    tube.put("ann")
    assert work(queue, kind(record_later)) == Summary(acked=1, released=1)


@pytest.mark.parametrize("driver", ["fifo", "fifottl"])
def test_retry_may_leave_the_attempts_uncounted(queue: tubes.Queue, clock: ManualClock, kind: Any, driver: str) -> None:
    seen: list[int] = []

    def busy(task: Any) -> None:
        seen.append(task.attempts)
        raise Retry(delay=30, reason="429", counts=False)

    tube = queue.create_tube("mail", driver, max_attempts=1)
    tube.put("ann")
    for _ in range(2):
        assert work(queue, kind(busy)) == Summary(released=1)
        (left,) = tube.select()
        assert (left.attempts, left.state) == (0, "delayed" if driver == "fifottl" else "ready")
        clock.advance(30)
    assert seen == [1, 1]
    assert tube.statistics().calls["release"] == 0  # The dashboard shows releases as failures.


def test_retry_may_pause_the_tube_but_not_shorten_a_pause(
    queue: tubes.Queue, tube: tubes.Tube, clock: ManualClock, kind: Any
) -> None:
    def refused(task: Any) -> None:
        raise Retry(delay=30, counts=False, pause=True)

    tube.put_many(["ann", "bob"])
    assert work(queue, kind(refused)) == Summary(released=1)
    assert tube.statistics().paused == clock.now() + 30
    clock.advance(30)
    worker = Worker(queue, concurrency=1)

    @worker.on(tube)
    def refused_while_an_operator_pauses(task: Any) -> None:
        tube.pause()
        raise Retry(delay=30, pause=True)

    assert worker.run(burst=True) == Summary(released=1)
    assert tube.statistics().paused == math.inf
    with pytest.raises(tubes.InvalidOption, match="needs a delay"):
        Retry(pause=True)


def test_invalid_retry_delay_fails_the_handler(queue: tubes.Queue, tube: tubes.Tube) -> None:
    def record_later(task: Any) -> None:
        raise Retry(delay=-1)

    tube.put("ann", max_attempts=1)
    assert work(queue, record_later) == Summary(buried=1)
    assert str(next(iter(tube.select("buried"))).reason).startswith("InvalidOption: delay=-1")


def test_handler_can_bury_its_task(queue: tubes.Queue, tube: tubes.Tube, kind: Any) -> None:
    def never(task: Any) -> None:
        raise Bury("no such address")

    tube.put("ann")
    assert work(queue, kind(never)) == Summary(buried=1)
    assert next(iter(tube.select("buried"))).reason == "no such address"


def test_buried_reasons_are_short_and_never_fail(queue: tubes.Queue, tube: tubes.Tube) -> None:
    class Shy(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def act(task: Any) -> None:
        raise task.data

    tube.put_many([Shy(), ValueError("x" * 9999), KeyError(), Bury(""), SystemExit(3)], max_attempts=1)
    assert work(queue, act).buried == 5
    reasons = [str(task.reason) for task in tube.select("buried")]
    assert reasons[0] == "Shy"
    assert reasons[1] == f"ValueError: {'x' * 500}..."
    assert reasons[2:] == ["KeyError", "buried by its handler", "RuntimeError: SystemExit: 3"]


def test_a_handler_may_settle_its_task_itself(queue: tubes.Queue, tube: tubes.Tube) -> None:
    def bury(task: tubes.Task) -> None:
        task.bury("by hand")

    async def release(task: tubes.AsyncTask) -> None:
        await task.release(delay=9)

    tube.put("ann")
    assert work(queue, bury) == Summary()
    assert next(iter(tube.select("buried"))).reason == "by hand"
    tube.select("buried", limit=1).kick()
    assert work(queue, release) == Summary()
    assert tube.peek(0).state == "delayed"


def test_plain_handlers_get_a_task_and_async_handlers_an_async_task(queue: tubes.Queue, tube: tubes.Tube) -> None:
    tube.put("ann", context={"trace": "1"})
    seen: list[Any] = []

    def handle(task: tubes.Task) -> None:
        seen.append((type(task), task.context, task.peek().state, threading.current_thread() is main))
        raise Retry(delay=0)

    async def handle_async(task: tubes.AsyncTask) -> None:
        seen.append((type(task), task.context, (await task.peek()).state, threading.current_thread() is main))

    main = threading.current_thread()
    worker = Worker(queue)
    worker.on("mail", handle)
    tube.update(0, data="ann")
    with pytest.raises(InvalidOption):
        worker.on("mail", handle_async)
    worker.run(burst=True)
    tube.select("buried", limit=1).kick(attempts=3)
    worker.off("mail")
    worker.on("mail", handle_async)
    worker.run(burst=True)
    assert seen[0] == (tubes.Task, {"trace": "1"}, "t", False)
    assert seen[-1] == (tubes.AsyncTask, {"trace": "1"}, "t", True)


def test_any_async_callable_can_be_a_handler(queue: tubes.Queue, tube: tubes.Tube) -> None:
    class Handler:
        async def __call__(self, task: Any) -> None:
            seen.append(1)

        async def method(self, task: Any) -> None:
            seen.append(2)

    async def handle(task: Any, number: int) -> None:
        seen.append(number)

    seen: list[int] = []
    for handler in (Handler(), Handler().method, functools.partial(handle, number=3)):
        tube.put("ann")
        assert work(queue, handler) == Summary(acked=1)
    assert seen == [1, 2, 3]


def test_undecodable_task_is_buried_without_affecting_others(kind: Any, clock: ManualClock) -> None:
    class Picky:
        def encode(self, data: Any) -> bytes:
            return str(data).encode()

        def decode(self, raw: bytes) -> Any:
            return int(raw)

    with tubes.connect(codec=Picky(), clock=clock) as queue:
        tube = queue.create_tube("mail")
        tube.put_many([1, "two", 3])
        seen: list[int] = []
        assert work(queue, kind(lambda task: seen.append(task.data))) == Summary(acked=2, buried=1)
        assert seen == [1, 3]
        (dead,) = tube.select("buried")
        assert (dead.id, str(dead.reason)[:52]) == (1, "CodecError: codec 'Picky' cannot decode bytes b'two'")


def test_each_handler_gets_the_context_variables_of_the_caller(queue: tubes.Queue, tube: tubes.Tube, kind: Any) -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(7)
    seen: list[int] = []

    def act(task: Any) -> None:
        seen.append(variable.get())
        variable.set(task.id)

    tube.put_many(range(3))
    work(queue, kind(act))
    assert seen == [7, 7, 7]


# -- the choice of tasks -----------------------------------------------------------------------------------------------


def test_first_tube_of_several_has_priority(queue: tubes.Queue, kind: Any) -> None:
    urgent, normal = queue.create_tube("urgent"), queue.create_tube("normal")
    seen: list[str] = []

    def act(task: Any) -> None:
        seen.append(task.data)
        if task.data == "n0":
            urgent.put("u2")

    normal.put_many(["n0", "n1"])
    urgent.put_many(["u0", "u1"])
    assert work(queue, kind(act), ["urgent", normal]) == Summary(acked=5)
    assert seen == ["u0", "u1", "n0", "u2", "n1"]


def test_burst_processes_tasks_put_by_handlers(queue: tubes.Queue, kind: Any) -> None:
    first, second = queue.create_tube("first"), queue.create_tube("second")
    worker = Worker(queue, concurrency=3)
    # The order matters: the first tube is empty when the second has a task.
    worker.on("first", kind(lambda task: second.put(task.data - 1) if task.data else None))
    worker.on("second", kind(lambda task: first.put(task.data - 1) if task.data else None))
    first.put(10)
    assert worker.run(burst=True) == Summary(acked=11)


def test_burst_looks_again_if_a_handler_ends_while_another_tube_is_read(
    queue: tubes.Queue, tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.create_tube("other").put("short")
    tube.put_many(range(3))
    fill, passes, ended = Fetcher.fill, itertools.count(), asyncio.Event()

    async def fill_slowly(fetcher: Fetcher, timeout: float | None) -> bool:
        found = await fill(fetcher, timeout)
        if fetcher.route.tubes[0] == "other" and next(passes) == 1:
            ended.set()
            for _ in range(20):  # As during a round trip, the handler ends and its task is acked.
                await asyncio.sleep(0)
        return found

    async def handle(task: Any) -> None:
        await ended.wait()

    monkeypatch.setattr(Fetcher, "fill", fill_slowly)
    worker = Worker(queue)
    worker.on("mail", handle)
    worker.on("other", awaited(lambda task: None))
    assert worker.run(burst=True) == Summary(acked=4)


def test_worker_takes_no_more_tasks_than_it_has_free_handlers(queue: tubes.Queue, tube: tubes.Tube, kind: Any) -> None:
    tube.put_many(range(20))
    held: list[int] = []
    work(queue, kind(lambda task: held.append(tube.statistics().tasks["taken"])), concurrency=4)
    assert len(held) == 20
    assert max(held) <= 4


def test_several_handlers_work_at_a_time(queue: tubes.Queue, tube: tubes.Tube) -> None:
    tube.put_many(range(3))
    together = threading.Barrier(3)
    assert work(queue, lambda task: together.wait(20), concurrency=3) == Summary(acked=3)


def test_burst_tries_a_failing_task_once(queue: tubes.Queue, kind: Any) -> None:
    tube = queue.create_tube("mail", "fifottl")
    tube.put_many(range(3))
    assert work(queue, kind(fail)) == Summary(released=3)
    assert [tube.peek(id).attempts for id in range(3)] == [1, 1, 1]
    assert tube.statistics().tasks["ready"] == 3


def test_total_limits_all_handlers_together_and_they_take_turns(queue: tubes.Queue) -> None:
    worker, go, order = Worker(queue, concurrency=5, total=2), threading.Event(), list[str]()
    most, lock = Counter[str](), threading.Lock()
    running_now = Counter[str]()

    def work_on(kind: str) -> Callable[[Any], None]:
        def act(*_: Any) -> None:
            with lock:
                running_now[kind] += 1
                most[kind] = max(most[kind], running_now[kind])
            go.wait(20)
            with lock:
                running_now[kind] -= 1

        return act

    def shared(task: tubes.Task) -> None:
        order.append(task.tube)
        act(task)

    act = work_on("shared")
    for name in ("a", "b"):
        queue.create_tube(name).put_many(range(5))
        worker.on(name, shared)
    worker.task("f")(act)
    for _ in range(5):
        queue.enqueue("f")
    queue.create_tube("own").put_many(range(3))
    worker.on("own", work_on("own"), concurrency=3)
    with running(worker):
        assert eventually(lambda: running_now == {"shared": 2, "own": 3})
        assert sorted(order) in (["a", "b"], ["a"], ["b"])  # Not two of one tube: they take turns.
        go.set()
        assert eventually(lambda: not any(queue.statistics(name).tasks["total"] for name in ("a", "b", "tasks", "own")))
    assert most == {"shared": 2, "own": 3}


def test_total_holds_after_all_handlers_are_removed_and_added_again(queue: tubes.Queue) -> None:
    worker, now, most = Worker(queue, total=2), list[int](), list[int]()
    lock, gates = threading.Lock(), [threading.Event() for _ in range(2)]
    for name in ("a", "b"):
        queue.create_tube(name).put_many(range(4))

    def act(task: tubes.Task) -> None:
        with lock:
            now.append(task.id)
            most.append(len(now))
            gate = gates[0] if len(most) <= 2 else gates[1]
        gate.wait(20)
        with lock:
            now.remove(task.id)

    worker.on("a", act)
    worker.on("b", act)
    with running(worker):
        assert eventually(lambda: len(most) == 2)
        worker.off(["a", "b"])
        assert eventually(lambda: worker._run is not None and not worker._run._fetchers)
        worker.on("a", act)
        worker.on("b", act)
        assert eventually(lambda: worker._run is not None and bool(worker._run._fetchers))
        gates[0].set()
        assert eventually(lambda: len(most) == 4)
        gates[1].set()
        assert eventually(lambda: len(most) == 8)
    assert max(most) == 2


def test_worker_with_a_total_describes_each_of_its_handlers(queue: tubes.Queue) -> None:
    worker = Worker(queue, total=2)
    for name in ("a", "b"):
        queue.create_tube(name)
        worker.task(f"f_{name}", tube=name)(lambda: None)
    queue.create_tube("c")
    worker.on("c", lambda task: None, concurrency=3)
    with running(worker):
        assert eventually(lambda: bool(queue.admin.workers()))
        (info,) = queue.admin.workers()
    places = {(one.tubes, one.functions, one.concurrency, one.is_shared) for one in info.handlers}
    assert places == {(("a",), ("f_a",), 2, True), (("b",), ("f_b",), 2, True), (("c",), (), 3, False)}
    assert info.concurrency == 5


def test_missing_tube_is_logged_rarely_while_others_have_tasks(
    queue: tubes.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "tubes.worker")
    worker = Worker(queue)
    for name in ("a", "b"):
        queue.create_tube(name)
    worker.on(["a", "b"], lambda task: None)
    queue.tube("b").drop()
    queue.tube("a").put_many(range(200))
    with running(worker):
        assert eventually(lambda: queue.tube("a").statistics().tasks["done"] == 200)
    lines = [record.getMessage() for record in caplog.records]
    assert 1 <= len(lines) <= 10
    assert all(line.startswith("tube 'b' does not exist, retrying in ") for line in lines)


def test_total_holds_in_a_burst_and_for_handlers_that_are_added(queue: tubes.Queue) -> None:
    worker, seen, now = Worker(queue, total=1, concurrency=3), list[int](), list[object]()

    def count(task: tubes.Task) -> None:
        now.append(task)
        seen.append(len(now))
        if task.data == "first":
            worker.on("later", count)
        now.remove(task)

    queue.create_tube("mail").put_many(["first", "second"])
    queue.create_tube("later").put_many(range(5))
    worker.on("mail", count)
    assert worker.run(burst=True).acked == 7
    assert seen == [1] * 7
    with pytest.raises(InvalidOption, match="total"):
        Worker(queue, total=0)


def release_unfailed(task: tubes.Task) -> None:
    task.release()


def retry_later(task: tubes.Task) -> None:
    raise Retry(delay=5)  # The driver fifo has no delays.


@pytest.mark.parametrize("how", [release_unfailed, retry_later, fail])
def test_a_burst_ends_however_a_task_comes_back(queue: tubes.Queue, how: Act) -> None:
    tube = queue.create_tube("mail", "fifo")
    tube.put_many(range(3))
    calls: list[int] = []

    def act(task: tubes.Task) -> None:
        calls.append(task.id)
        if len(calls) > 20:
            raise Bury("it has no end")
        how(task)

    work(queue, act)
    assert calls == [0, 1, 2]
    assert tube.statistics().tasks["ready"] == 3


def test_a_burst_ends_although_its_handler_releases_all(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    tube.put_many(range(3))
    calls: list[int] = []

    def act(task: tubes.Task) -> None:
        calls.append(task.id)
        tube.admin.release_all()

    work(queue, act)
    assert sorted(calls) == [0, 1, 2]


def test_missing_tube_does_not_block_the_other_tubes(queue: tubes.Queue, kind: Any) -> None:
    there = queue.create_tube("there")
    there.put_many(range(5))
    worker = Worker(queue)
    nowhere = queue.create_tube("nowhere")
    worker.on(["nowhere", "there"], kind(lambda task: None))
    nowhere.drop()
    assert worker.run(burst=True) == Summary(acked=5)
    queue.create_tube("nowhere").put("last")
    dropped = queue.create_tube("gone")
    there.put_many(range(5))

    def drop(task: Any) -> None:
        if "gone" in queue.tubes():
            dropped.drop()

    assert work(queue, kind(drop), ["nowhere", "gone", "there"]) == Summary(acked=6)


def test_plain_handler_returning_a_coroutine_fails(queue: tubes.Queue, tube: tubes.Tube) -> None:
    async def send(task: Any) -> None: ...

    tube.put("ann", max_attempts=1)
    assert work(queue, lambda task: send(task)) == Summary(buried=1)
    assert (next(iter(tube.select("buried"))).reason or "").startswith(
        "TypeError: a plain handler returned a coroutine"
    )


@pytest.mark.parametrize("driver", ["fifo", "fifottl"])
def test_endlessly_failing_task_is_held_longer_each_time(
    queue: tubes.Queue, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures_seen: list[int] = []

    class Policy(RetryPolicy):
        def delay(self, failures: int = 1) -> float:
            failures_seen.append(failures)
            return 0.001

    # Only of this module: threads of other tests may wait by the same policy.
    monkeypatch.setattr("tubes.worker.run.RETRY", Policy((0.001,)))
    queue.create_tube("mail", driver).put("ann")
    worker = Worker(queue)

    @worker.on("mail")
    def act(task: tubes.Task) -> None:
        if task.attempts == 4:
            worker.stop()
            raise Bury("enough")
        raise ValueError if task.attempts % 2 else Retry

    assert worker.run() == Summary(released=3, buried=1)
    assert failures_seen == [1, 2, 3]


def test_failing_task_is_held_a_few_seconds_at_most() -> None:
    assert 0.05 <= RETRY.delay(1) <= 0.15
    assert 7.5 <= RETRY.delay(1 << 40) <= 22.5


@pytest.mark.parametrize(
    ("driver", "options"), [("fifo", {"max_attempts": 3}), ("fifottl", {"max_attempts": 3, "backoff": [0.0]})]
)
def test_task_with_max_attempts_is_not_held(
    queue: tubes.Queue, driver: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(RetryPolicy, "delay")
    tube = queue.create_tube("mail", driver, **options)
    tube.put("ann")
    worker = Worker(queue)

    @worker.on("mail")
    def act(task: tubes.Task) -> None:
        if task.attempts == 3:
            worker.stop()
        raise ValueError

    assert worker.run() == Summary(released=2, buried=1)


def test_held_failed_task_is_not_timed_out(queue: tubes.Queue, kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    tube = queue.create_tube("mail")
    tube.put_many(["fail", "slow"])

    def act(task: Any) -> None:
        if task.data == "fail":
            raise ValueError
        time.sleep(0.5)

    async def act_async(task: Any) -> None:
        if task.data == "fail":
            raise ValueError
        await asyncio.sleep(0.5)

    worker = Worker(queue)
    worker.on(tube, act if kind is plain else act_async, timeout=0.15)
    other = queue.create_tube("other")
    other.put(0)
    worker.on(other, lambda task: time.sleep(1.5))
    summary = worker.run(burst=True)
    assert summary == Summary(acked=1, released=2)
    assert [tube.peek(id).attempts for id in range(2)] == [1, 1]
    assert [tube.peek(id).state for id in range(2)] == ["r", "r"]
    assert "ValueError" in caplog.text


def test_burst_does_not_wait_for_delayed_or_paused_tasks(queue: tubes.Queue, tube: tubes.Tube) -> None:
    tube.put("later", delay=60)
    paused = queue.create_tube("paused")
    paused.put("now")
    paused.pause()
    worker = Worker(queue)
    worker.on(tube, fail)
    worker.on(paused, fail)
    assert worker.run(burst=True) == Summary()


def test_burst_ignores_a_missing_tube(queue: tubes.Queue, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(queue)
    worker.on(tube := queue.create_tube("nowhere"), fail)
    tube.drop()
    assert worker.run(burst=True) == Summary()
    assert [record.getMessage() for record in caplog.records] == ["tube 'nowhere' does not exist"]


def test_a_worker_has_a_session_of_its_own(queue: tubes.Queue, tube: tubes.Tube) -> None:
    tube.put_many(["ann", "bob"])
    mine = tube.take(timeout=0)
    assert mine is not None
    assert work(queue, lambda task: task.data) == Summary(acked=1)
    mine.ack()


def test_stopped_burst_leaves_unstarted_tasks(queue: tubes.Queue, tube: tubes.Tube) -> None:
    tube.put_many(range(5))
    worker = Worker(queue)
    worker.on(tube, lambda task: worker.stop() if task.data == 1 else None)
    assert worker.run(burst=True) == Summary(acked=2)
    assert tube.statistics().tasks["ready"] == 3
    assert worker.run(burst=True) == Summary(acked=3)


def test_deleted_task_counts_as_lost(
    queue: tubes.Queue, tube: tubes.Tube, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tube.put_many(["ann", "bob"])
    assert work(queue, kind(lambda task: tube.delete(task.id))) == Summary(lost=2)
    assert "was deleted before the end of its handler" in caplog.text
    assert "may be done twice" not in caplog.text


def test_failures_are_logged_with_their_traces(
    queue: tubes.Queue, tube: tubes.Tube, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tube.put("ann", max_attempts=1)
    with caplog.at_level(logging.WARNING, "tubes.worker"):
        work(queue, kind(fail))
    (record,) = caplog.records
    assert record.message == "task 0 of tube 'mail' failed, attempt 1 of 1, is buried: ValueError: no such address"
    assert record.exc_info is not None
    assert record.exc_info[0] is ValueError
    frames = [frame.name for frame in traceback.extract_tb(record.exc_info[2])]
    assert frames[-1] == "fail"
    assert not {"_call", "job", "_contained"} & set(frames)


# -- hooks -------------------------------------------------------------------------------------------------------------


class Spy:
    """Hooks that record events."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def generator(self, task: Any) -> Generator[None]:
        self.seen.append(("begins", task.data))
        try:
            yield
        except ValueError as error:
            self.seen.append(str(error))
            raise
        finally:
            self.seen.append("ends")

    @contextmanager
    def manager(self, task: Any) -> Generator[None]:
        self.seen.append("inner")
        yield
        self.seen.append("inner ends")

    async def agenerator(self, task: Any) -> AsyncGenerator[None]:
        await asyncio.sleep(0)
        self.seen.append("async")
        yield
        self.seen.append("async ends")

    @asynccontextmanager
    async def amanager(self, task: Any) -> AsyncGenerator[None]:
        self.seen.append("amanager")
        yield
        self.seen.append("amanager ends")


def test_hooks_wrap_handlers_with_the_first_outermost(queue: tubes.Queue, tube: tubes.Tube, kind: Any) -> None:
    spy = Spy()
    worker = Worker(queue)
    assert worker.around(spy.generator) == spy.generator
    worker.around(spy.manager)
    worker.on(tube, kind(lambda task: spy.seen.append("works")))
    tube.put("ann")
    assert worker.run(burst=True) == Summary(acked=1)
    assert spy.seen == [("begins", "ann"), "inner", "works", "inner ends", "ends"]


def test_a_hook_sees_the_error_of_a_handler(queue: tubes.Queue, tube: tubes.Tube, kind: Any) -> None:
    spy = Spy()
    worker = Worker(queue)
    worker.around(spy.generator)
    worker.on(tube, kind(fail))
    tube.put("ann", max_attempts=1)
    assert worker.run(burst=True) == Summary(buried=1)
    assert spy.seen == [("begins", "ann"), "no such address", "ends"]


def test_hook_that_suppresses_an_error_lets_the_task_be_acked(queue: tubes.Queue, tube: tubes.Tube, kind: Any) -> None:
    worker = Worker(queue)

    @worker.around
    def deal(task: Any) -> Generator[None]:
        with suppress(ValueError):
            yield

    worker.on(tube, kind(fail))
    tube.put("ann")
    assert worker.run(burst=True) == Summary(acked=1)


def test_async_hooks_are_around_async_handlers(queue: tubes.Queue, tube: tubes.Tube) -> None:
    spy = Spy()
    worker = Worker(queue)
    for hook in (spy.agenerator, spy.amanager, spy.manager):
        worker.around(hook)
    worker.on(tube, awaited(lambda task: None))
    tube.put("ann")
    assert worker.run(burst=True) == Summary(acked=1)
    assert spy.seen == ["async", "amanager", "inner", "inner ends", "amanager ends", "async ends"]
    with pytest.raises(InvalidOption):
        worker.on(queue.create_tube("other"), fail)


def test_async_hook_is_refused_with_a_plain_handler(queue: tubes.Queue) -> None:
    worker = Worker(queue)
    worker.on(queue.create_tube("mail"), fail)
    with pytest.raises(InvalidOption):
        worker.around(Spy().agenerator)


# -- lifespans ---------------------------------------------------------------------------------------------------------


def test_lifespan_opens_before_the_first_task_and_closes_after_the_last(
    queue: tubes.Queue, tube: tubes.Tube, kind: Any
) -> None:
    seen: list[Any] = []
    worker = Worker(queue)

    @worker.lifespan
    def outer() -> Generator[None]:
        seen.append(("opens", tube.statistics().tasks["ready"]))
        yield
        seen.append(("closes", tube.statistics().tasks["taken"]))

    @worker.lifespan
    async def inner() -> AsyncGenerator[None]:
        seen.append("opens")
        yield
        seen.append("closes")

    @worker.lifespan
    @contextmanager
    def innermost() -> Generator[None]:
        seen.append("innermost")
        yield

    worker.on(tube, kind(lambda task: seen.append(task.data)))
    for name in ("ann", "bob"):
        seen.clear()
        tube.put(name)
        worker.run(burst=True)
        assert seen == [("opens", 1), "opens", "innermost", name, "closes", ("closes", 0)]


def test_error_in_a_lifespan_start_ends_the_run_without_taking_tasks(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker = Worker(queue)
    seen: list[str] = []

    @worker.lifespan
    def good() -> Generator[None]:
        try:
            yield
        finally:
            seen.append("closed")

    @worker.lifespan
    def bad() -> Generator[None]:
        raise OSError("no database")
        yield

    worker.on(tube, fail)
    tube.put("ann")
    for _ in range(2):
        with pytest.raises(OSError, match="no database"):
            worker.run(burst=True)
    assert tube.peek(0).attempts == 0
    assert seen == ["closed", "closed"]
    assert queue.admin.workers() == []


def test_error_in_a_lifespan_end_is_raised_after_the_run(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker = Worker(queue)

    @worker.lifespan
    def pool() -> Generator[None]:
        yield
        raise OSError("cannot be closed")

    worker.on(tube, lambda task: None)
    tube.put("ann")
    with pytest.raises(OSError, match="cannot be closed"):
        worker.run(burst=True)
    assert tube.statistics().tasks["total"] == 0


def test_a_worker_without_handlers_does_not_run(queue: tubes.Queue) -> None:
    worker = Worker(queue)
    for burst in (False, True):
        with pytest.raises(NoHandlers, match=r"it has no handlers\. Add one by worker\.on"):
            worker.run(burst=burst)
    worker.on(queue.create_tube("mail"), fail)
    assert worker.run(burst=True) == Summary()
    worker.off("mail")
    with pytest.raises(InvalidOption):
        worker.run(burst=True)


# -- in an event loop --------------------------------------------------------------------------------------------------


def test_worker_runs_in_a_running_event_loop(clock: ManualClock, kind: Any) -> None:
    async def main() -> None:
        async with tubes.aio.connect(clock=clock) as queue:
            tube = await queue.create_tube("mail")
            await tube.put_many(range(3))
            worker = Worker(queue)
            worker.on(tube, kind(lambda task: None))
            with pytest.raises(WorkerBusy):
                worker.run(burst=True)
            assert await worker.run_async(burst=True) == Summary(acked=3)

    asyncio.run(main())


def test_a_worker_runs_once_at_a_time(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker = Worker(queue)

    async def run_again(task: Any) -> None:
        with pytest.raises(WorkerBusy):
            await worker.run_async()

    worker.on(tube, run_again)
    tube.put("ann")
    assert worker.run(burst=True) == Summary(acked=1)
    tube.put("ann")
    assert worker.run(burst=True) == Summary(acked=1)


# -- bad input ---------------------------------------------------------------------------------------------------------

BAD: list[Callable[[Worker], Any]] = [
    lambda worker: worker.on("", fail),
    lambda worker: worker.on([], fail),
    lambda worker: worker.on(["a", "a"], fail),
    lambda worker: worker.on(7, fail),  # type: ignore[call-overload]
    lambda worker: worker.on("a", 7),  # type: ignore[call-overload]
    lambda worker: worker.on("a", Spy().generator),
    lambda worker: worker.on("a", fail, concurrency=0),
    lambda worker: worker.on("a", fail, concurrency=1.5),  # type: ignore[call-overload]
    lambda worker: worker.on("a", fail, timeout=0),
    lambda worker: worker.on("a", fail, timeout=-1),
    lambda worker: worker.on(["b", "mail"], fail),
    lambda worker: worker.on("mail", lambda: None),
    lambda worker: worker.around(7),  # type: ignore[type-var]
    lambda worker: worker.lifespan(7),  # type: ignore[type-var]
    lambda worker: worker.lifespan(awaited(fail)),
    lambda worker: worker.around(awaited(fail)),
]


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_refused_and_changes_nothing(queue: tubes.Queue, tube: tubes.Tube, bad: Any) -> None:
    worker = Worker(queue)
    worker.on("mail", lambda task: None)
    queue.create_tube("b")
    with pytest.raises(InvalidOption):
        bad(worker)
    tube.put("ann")
    assert worker.run(burst=True) == Summary(acked=1)


def test_off_refuses_a_tube_without_handler(queue: tubes.Queue) -> None:
    worker = Worker(queue)
    for name in "ab":
        queue.create_tube(name)
    worker.on(["a", "b"], fail)
    with pytest.raises(TubeNotFound):
        worker.off(["a", "c"])
    worker.off("a")
    with pytest.raises(TubeNotFound):
        worker.off("a")
    worker.off("b")
    worker.on(["a", "b"], fail)


def test_a_worker_needs_a_queue() -> None:
    for bad in ("memory://", None):
        with pytest.raises(InvalidOption):
            Worker(bad)  # type: ignore[arg-type]
    with tubes.connect() as queue:
        bad_options: list[dict[str, Any]] = [{"concurrency": 0}, {"grace": -1}, {"tracebacks": 1}]
        for options in bad_options:
            with pytest.raises(InvalidOption):
                Worker(queue, **options)


def test_workers_are_imported_by_name_only() -> None:
    import subprocess

    program = "import sys, tubes; print([name for name in sys.modules if name.startswith('tubes.worker')])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    "error", [SystemExit(9), KeyboardInterrupt("k"), GeneratorExit(), BaseException("b"), StopIteration("s")], ids=repr
)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_base_exception_of_a_handler_does_not_stop_the_worker(
    queue: tubes.Queue, error: BaseException, is_async: bool
) -> None:
    tube = queue.create_tube("t", max_attempts=1)
    tube.put_many(range(2))

    def fail(task: tubes.Task) -> None:
        raise error

    async def fail_async(task: tubes.AsyncTask) -> None:
        raise error

    worker = Worker(queue)
    worker.on(tube, fail_async if is_async else fail)
    assert worker.run(burst=True).buried == 2
    assert {type(error).__name__ in (task.reason or "") for task in tube.select("buried")} == {True}


def test_decorator_without_tube_is_refused(queue: tubes.Queue) -> None:
    with pytest.raises(
        InvalidOption, match=r'is a function: name its tube in the decorator, as in @worker.on\("mail"\)'
    ):
        Worker(queue).on(fail)  # type: ignore[call-overload]


def without_task() -> None: ...


def with_two(task: Any, database: Any) -> None: ...


def with_keyword(task: Any, *, database: Any) -> None: ...


@pytest.mark.parametrize("handler", [without_task, with_two, with_keyword])
def test_handler_that_does_not_take_a_task_is_refused(queue: tubes.Queue, tube: tubes.Tube, handler: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        Worker(queue).on(tube, handler)
    signature = f"{handler.__name__}{inspect.signature(handler)}"
    assert f"must take one positional argument, the task; its signature is {signature}" in str(caught.value)


def test_handlers_that_take_a_task_are_accepted(queue: tubes.Queue) -> None:
    @functools.wraps(with_two)
    def wrapped(task: Any) -> None: ...

    worker = Worker(queue)
    handlers: tuple[Any, ...] = (
        wrapped,
        functools.partial(with_two, database=1),
        print,
        dict.fromkeys,
        [].append,
        lambda *args: None,
    )
    for number, handler in enumerate(handlers):
        worker.on(queue.create_tube(f"tube{number}"), handler)


def test_unknown_tube_is_refused_and_not_registered(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker = Worker(queue)
    for register in (
        lambda: worker.on(["mail", "mial"], fail),
        lambda: worker.task(tube="mial")(fail),
        lambda: worker.every(60, tube="mial")(without_task),
    ):
        with pytest.raises(TubeNotFound, match=r"there is no tube 'mial'; did you mean 'mail'\?"):
            register()
    with pytest.raises(NoHandlers):
        worker.run(burst=True)


def test_tube_that_cannot_be_looked_up_is_checked_by_run(
    queue: tubes.Queue, tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups: list[str] = []

    def refuse(self: tubes.Queue, name: str) -> tubes.Tube:
        lookups.append(name)
        raise tubes.ConnectionLost(url="redis://nowhere", why="refused")

    worker = Worker(queue)
    with monkeypatch.context() as patch:
        patch.setattr(tubes.Queue, "tube", refuse)
        worker.on("mail", lambda task: None)
        worker.on("mial", fail)
    assert lookups == ["mail"]  # Each lookup of a server that is away takes long.
    tube.put("ann")
    with pytest.raises(TubeNotFound, match="did you mean 'mail'"):
        worker.run(burst=True)
    assert tube.statistics().tasks["ready"] == 1
    worker.off("mial")
    assert worker.run(burst=True) == Summary(acked=1)


def test_run_refuses_an_unknown_tube_of_an_async_queue() -> None:
    async def run() -> None:
        async with tubes.aio.connect() as queue:
            tube = await queue.create_tube("mail")
            await tube.put("ann")
            worker = Worker(queue)
            worker.on("mail", fail)
            worker.on("mial", fail)
            with pytest.raises(TubeNotFound, match="did you mean 'mail'"):
                await worker.run_async(burst=True)
            assert (await tube.statistics()).calls["take"] == 0

    asyncio.run(run())


def test_task_is_acked_whatever_its_handler_returns(queue: tubes.Queue, tube: tubes.Tube) -> None:
    tube.put("ann")
    assert work(queue, lambda task: False) == Summary(acked=1)


def test_failed_attempts_are_stored_with_their_worker(queue: tubes.Queue, kind: Callable[[Act], Act]) -> None:
    def fail(task: Any) -> None:
        secret = "the value of a local"
        if task.attempts == 1:
            raise Retry(0)
        raise KeyError(task.attempts) from ValueError(len(secret))

    queue.create_tube("failing", max_attempts=3).put("x")
    worker = Worker(queue)
    worker.on("failing", kind(fail))
    worker.run(burst=True)
    (dead,) = queue.tube("failing").select("buried")
    name = f"{socket.gethostname()}:{os.getpid()}"
    assert [(one.attempt, one.worker, one.error) for one in dead.failures] == [
        (2, name, "KeyError: 2"),
        (3, name, "KeyError: 3"),
    ]
    assert dead.traceback is not None
    assert dead.traceback.endswith("raise KeyError(task.attempts) from ValueError(len(secret))\nKeyError: 3")
    assert "the direct cause" in dead.traceback
    assert "the value" not in dead.traceback
    assert "finishing.py" not in dead.traceback


def test_worker_stores_no_traceback_if_told_so(queue: tubes.Queue) -> None:
    queue.create_tube("failing", max_attempts=1).put("x")
    worker = Worker(queue, tracebacks=False)
    worker.on("failing", lambda task: 1 / 0)
    worker.run(burst=True)
    (dead,) = queue.tube("failing").select("buried")
    assert (dead.traceback, dead.reason) == (None, "ZeroDivisionError: division by zero")


def test_long_traceback_is_cut_at_its_beginning(queue: tubes.Queue) -> None:
    def fail(_: Any) -> None:
        raise ValueError("x" * 1_000_000 + "end")

    queue.create_tube("failing", max_attempts=1).put("x")
    worker = Worker(queue)
    worker.on("failing", fail)
    worker.run(burst=True)
    (dead,) = queue.tube("failing").select("buried")
    assert dead.traceback == "x" * 4093 + "end"
