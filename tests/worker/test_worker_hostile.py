"""Hostile handlers, hooks, codecs and logs do not stop a worker or leave tasks unfinished."""

from __future__ import annotations

import _thread
import asyncio
import logging
import random
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from operator import call
from typing import Any

import pytest

import tubes
import tubes.sync
from tests.contract.bench import eventually
from tubes import CallFailed
from tubes.backend.flow import run_async
from tubes.backend.retry import RetryPolicy
from tubes.testing import LocalServer
from tubes.worker import Bury, Retry, Summary, Worker
from tubes.worker.finishing import carry_out
from tubes.worker.handling import Pool
from tubes.worker.lease_renewer import LeaseRenewer
from tubes.worker.lifetime import RETRY, Lifetime

#: Seconds within which a burst ends even on a slow machine.
TIMEOUT = 60.0
FULL = pytest.mark.full


@pytest.fixture
def place() -> str:
    """Use memory only: handlers behave alike on a server."""
    return "memory://"


@pytest.fixture(autouse=True)
def printable_logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Escape lone surrogates in captured logs: pytest-xdist cannot send them between processes."""

    def escape(record: logging.LogRecord) -> bool:
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        for name in ("msg", "exc_text"):
            text = record.getMessage() if name == "msg" else record.exc_text
            setattr(record, name, text and text.encode("utf-8", "backslashreplace").decode())
        record.args = None
        return True

    caplog.handler.addFilter(escape)
    yield
    caplog.handler.removeFilter(escape)  # All tests share the handler.


def burst(worker: Worker) -> Summary:
    """Run a burst in a thread, and fail the test if it does not end."""
    ended: list[Summary] = []
    failed: list[str] = []

    def run() -> None:
        try:
            ended.append(worker.run(burst=True))
        except BaseException as error:  # Do not call str() on it: it may be hostile.
            failed.append("".join([*traceback.format_tb(error.__traceback__), object.__repr__(error)]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    if thread.is_alive():
        worker.stop(now=True)
        thread.join(TIMEOUT)
        pytest.fail("the worker did not end")
    if failed:
        pytest.fail(f"the worker failed:\n{failed[0]}", pytrace=False)
    return ended[0]


# -- hostile errors ----------------------------------------------------------------------------------------------------


class FailingStr(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class SkipsInit(Retry):
    def __init__(self) -> None:  # Do not call the base class.
        pass


def retry_with_delay(delay: Any) -> Retry:
    error = Retry()
    error.delay = delay
    return error


def circular() -> Exception:
    first, second = ValueError("one"), ValueError("other")
    first.__cause__, second.__cause__ = second, first
    return ExceptionGroup("group", [first, second])


ERRORS: dict[str, Callable[[], BaseException]] = {
    "failing str": FailingStr,
    "skipped __init__": SkipsInit,
    "text as delay": lambda: retry_with_delay("soon"),
    "nan as delay": lambda: retry_with_delay(float("nan")),
    "negative delay": lambda: retry_with_delay(-1),
    "surrogates": lambda: ValueError("\ud800\x00"),
    "bury surrogates": lambda: Bury("\ud800"),
    "bury without reason": lambda: Bury(None),  # type: ignore[arg-type]
    "circular": circular,
    "cancelled": asyncio.CancelledError,
    "time out": TimeoutError,
    "stop": lambda: StopIteration(5),
    "stop async": StopAsyncIteration,
    "generator exit": GeneratorExit,
    "keyboard": KeyboardInterrupt,
    "exit": lambda: SystemExit(3),
    "memory": MemoryError,
    "recursion": RecursionError,
    "not taken": lambda: tubes.TaskNotTaken(id=0, tube="t"),
    "closed": lambda: tubes.QueueClosed(why="no"),
    "gone": lambda: tubes.TubeNotFound(name="t"),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize(
    "place_of_error", ["handler", *(pytest.param(hook, marks=FULL) for hook in ("hook", "hook's end"))]
)
@pytest.mark.parametrize("is_async", [pytest.param(False, marks=FULL), True], ids=["plain", "async"])
def test_any_error_of_a_handler_or_hook_buries_its_task(
    queue: tubes.Queue, name: str, place_of_error: str, is_async: bool
) -> None:
    tube = queue.create_tube("t", max_attempts=1)
    tube.put_many([True, False, True, False])

    def fail(task: Any, current_place: str) -> None:
        if task.data and place_of_error == current_place:
            raise ERRORS[name]()

    def handle(task: Any) -> None:
        fail(task, "handler")

    async def handle_async(task: Any) -> None:
        fail(task, "handler")

    class Hook:
        def __init__(self, task: Any) -> None:
            self.task = task

        def __enter__(self) -> None:
            fail(self.task, "hook")

        def __exit__(self, *error: object) -> None:
            fail(self.task, "hook's end")

    worker = Worker(queue)
    if place_of_error != "handler":
        worker.around(Hook)
    worker.on(tube, handle_async if is_async else handle)
    assert burst(worker) == Summary(acked=2, buried=2)
    assert all(task.reason for task in tube.select("buried"))


@pytest.mark.parametrize("name", ERRORS)
def test_any_error_of_a_handler_buries_its_task_on_a_server(url: str, name: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", "fifottl", max_attempts=1)
        tube.put_many([True, False])

        def handle(task: Any) -> None:
            if task.data:
                raise ERRORS[name]()

        worker = Worker(queue)
        worker.on(tube, handle)
        assert burst(worker) == Summary(acked=1, buried=1)
        assert all(task.reason for task in tube.select("buried"))


# -- hostile handlers --------------------------------------------------------------------------------------------------


def test_handler_that_cancels_its_own_asyncio_task_is_acked(queue: tubes.Queue) -> None:
    """Without precautions the cancellation would hit the code that finishes the task."""
    tube = queue.create_tube("t", max_attempts=1)
    tube.put_many(range(3))
    worker = Worker(queue)

    @worker.on(tube)
    async def handle(task: Any) -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()

    assert burst(worker) == Summary(acked=3)


def test_handler_that_interrupts_the_main_thread_stops_the_worker(queue: tubes.Queue) -> None:
    """The worker treats it as SIGINT: it stops without losing a task."""
    tube = queue.create_tube("t")
    tube.put_many(range(2))
    worker = Worker(queue)
    worker.on(tube, lambda task: _thread.interrupt_main())
    assert worker.run() == Summary(acked=1)
    assert tube.statistics().tasks["ready"] == 1


class Fatal:
    """A codec that raises SystemExit."""

    def encode(self, data: Any) -> bytes:
        if data == b"fatal":
            raise SystemExit("encode")
        return bytes(data)

    def decode(self, raw: bytes) -> Any:
        if raw == b"undecodable":
            raise SystemExit("decode")
        return raw


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_codec_raising_system_exit_does_not_stop_the_worker(is_async: bool) -> None:
    async def echo_async(task: Any) -> Any:
        return task.data

    with tubes.connect(codec=Fatal()) as queue:
        tube = queue.create_tube("t", max_attempts=1)
        tube.put_many([b"undecodable", b"fine"])
        worker = Worker(queue)
        worker.on(tube, echo_async if is_async else lambda task: task.data)
        assert burst(worker) == Summary(acked=1, buried=1)
        assert next(iter(tube.select("buried"))).reason == "CodecError: SystemExit: decode"


def test_result_that_cannot_be_encoded_fails_its_call(queue: tubes.Queue) -> None:
    with tubes.connect(codec=Fatal()) as queue:
        tube = queue.create_tube("t", max_attempts=1)
        worker = Worker(queue)
        worker.on(tube, lambda task: b"fatal")
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        with pytest.raises(CallFailed, match="SystemExit: encode"):
            tube.call(b"ann", timeout=TIMEOUT)
        worker.stop()
        thread.join(TIMEOUT)
        assert not thread.is_alive()


class RandomHandlers:
    """Handlers that act at random on their task and its tube."""

    def __init__(self, queue: tubes.Queue, seed: int) -> None:
        self._queue = queue
        self._random = random.Random(seed)
        self.barrier = threading.Barrier(3)

    def tube(self) -> tubes.Tube:
        return self._queue.create_tube("t", "fifottl", if_not_exists=True, ttr=1, max_attempts=2, backoff=[0.01])

    def handle(self, task: Any) -> None:
        if task.data != "fine":
            for act in self._acts(4):
                if act in ("ack", "release", "bury"):
                    getattr(task, act)()
            self._fail(task)

    async def handle_async(self, task: Any) -> None:
        if task.data != "fine":
            for act in self._acts(8):
                if act in ("ack", "release", "bury"):
                    await getattr(task, act)()
                current = asyncio.current_task()
                if act == "cancel" and current is not None:
                    current.cancel()
                if act == "wait":
                    await asyncio.sleep(0.01)
            self._fail(task)

    def meet(self, task: Any) -> None:
        self.barrier.wait(TIMEOUT)

    async def meet_async(self, task: Any) -> None:
        await asyncio.to_thread(self.barrier.wait, TIMEOUT)

    def _acts(self, most: int) -> list[str]:
        acts = ["ack", "release", "bury", "cancel", "wait", "nothing", "nothing"]
        return self._random.choices(acts, k=self._random.randrange(most))

    def _fail(self, task: Any) -> None:
        draw = self._random.random()
        tube = self.tube()
        if draw < 0.1:
            tube.delete(task.id)
        elif draw < 0.2:
            tube.bury(task.id)
        elif draw < 0.3:
            tube.admin.release_all()
        elif draw < 0.33:
            with suppress(tubes.TubesError):
                tube.drop(force=True)
            self.tube()
        elif draw < 0.35:
            time.sleep(1.5)
        raise ERRORS[self._random.choice(list(ERRORS))]()


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("place", ["memory", "server"])
def test_misbehaving_handlers_leave_all_slots_free(
    request: pytest.FixtureRequest, place: str, is_async: bool, seed: int
) -> None:
    with tubes.connect("memory://" if place == "memory" else request.getfixturevalue("url")) as queue:
        handlers = RandomHandlers(queue, seed)
        handlers.tube()
        together = queue.create_tube("together", "fifottl", ttr=60)
        worker = Worker(queue, concurrency=3)
        worker.on("t", handlers.handle_async if is_async else handlers.handle, timeout=1)
        worker.on(together, handlers.meet_async if is_async else handlers.meet)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        for number in range(100):
            with suppress(tubes.TubesError):
                handlers.tube().put("fine" if number % 3 else "havoc")

        def is_over() -> bool:
            time.sleep(0.01)
            with suppress(tubes.TubeNotFound):
                tasks = handlers.tube().statistics().tasks
                return tasks["total"] == tasks["buried"]
            return False

        assert eventually(is_over)
        together.put_many(range(3))
        assert eventually(lambda: together.statistics().tasks["total"] == 0)
        assert not handlers.barrier.broken
        worker.stop()
        thread.join(TIMEOUT)
        assert not thread.is_alive()


def test_last_task_given_up_is_counted(queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted even if its thread is still busy when the run ends."""
    call_in_loop = Lifetime.call

    def call_and_sleep(self: Lifetime, *args: Any) -> None:
        call_in_loop(self, *args)
        time.sleep(0.3)

    monkeypatch.setattr(Lifetime, "call", call_and_sleep)
    tube = queue.create_tube("t", "fifottl", max_attempts=1, ttr=60)
    worker = Worker(queue)
    go = threading.Event()
    worker.on(tube, lambda task: go.wait(TIMEOUT), timeout=0.1)
    tube.put("slow")
    summary = burst(worker)
    go.set()
    assert summary == Summary(buried=1)


# -- hostile logs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def broken_log() -> Generator[None]:
    """Make every log call raise."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ValueError("the log is broken")

    broken = Broken()
    logger = logging.getLogger("tubes.worker")
    logger.addHandler(broken)
    yield
    logger.removeHandler(broken)


@pytest.mark.usefixtures("broken_log")
def test_failing_logger_does_not_stop_worker(queue: tubes.Queue) -> None:
    tube = queue.create_tube("t", "fifottl", max_attempts=1, ttr=60)
    worker = Worker(queue)
    go = threading.Event()

    def handle(task: Any) -> None:
        if task.data == "fail":
            raise ValueError("no such address")
        if task.data == "delete":
            tube.delete(task.id)
        if task.data == "slow":
            go.wait(TIMEOUT)

    worker.on(tube, handle, timeout=1)
    worker.on(nowhere := queue.create_tube("nowhere"), handle)
    nowhere.drop()
    tube.put_many(["fail", "delete", "slow", "fine"])
    summary = burst(worker)
    go.set()
    assert summary == Summary(acked=1, buried=2, lost=1)
    assert [task.reason for task in tube.select("buried")] == [
        "ValueError: no such address",
        "TimeoutError: the handler took longer than 1 s",
    ]


def test_log_records_name_the_calling_function(queue: tubes.Queue, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(queue)
    worker.on(tube := queue.create_tube("nowhere"), lambda task: None)
    tube.drop()
    assert burst(worker) == Summary()
    assert [(record.filename, record.funcName) for record in caplog.records] == [("fetcher.py", "_log_missing")]


# -- exhausted threads -------------------------------------------------------------------------------------------------


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], list[int]]:
    """A function that makes the first `times` threads with this name fail to start."""
    start = threading.Thread.start

    def fail(name: str, times: int) -> list[int]:
        failed: list[int] = []

        def start_or_fail(self: threading.Thread) -> None:
            if self.name == name and len(failed) < times:
                failed.append(1)
                raise RuntimeError("can't start new thread")
            start(self)

        monkeypatch.setattr(threading.Thread, "start", start_or_fail)
        return failed

    return fail


def test_handler_waits_when_a_thread_cannot_be_started(
    queue: tubes.Queue, no_threads: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The attempt does not fail."""
    tube = queue.create_tube("t", max_attempts=1)
    tube.put_many(range(3))
    failed = no_threads("tubes-handler", 2)
    calls: list[int] = []
    worker = Worker(queue, concurrency=3)
    worker.on(tube, lambda task: calls.append(task.data))
    assert burst(worker) == Summary(acked=3)
    assert (sorted(calls), len(failed)) == ([0, 1, 2], 2)
    assert "no thread could be started: can't start new thread" in caplog.text


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["tubes-worker-leases", "tubes-handler"])
def test_slow_task_times_out_although_a_thread_failed_to_start(queue: tubes.Queue, no_threads: Any, name: str) -> None:
    tube = queue.create_tube("t", max_attempts=1)
    worker = Worker(queue, concurrency=2)

    @worker.on(tube, timeout=0.1)
    async def handle(task: Any) -> None:
        if task.data == "slow":  # It blocks the event loop.
            time.sleep(4)  # noqa: ASYNC251

    failed = no_threads(name, 1)
    tube.put_many(["fine", "slow"])
    assert burst(worker) == Summary(acked=1, buried=1)
    assert len(failed) == 1


def test_pool_never_runs_a_job_whose_thread_failed_to_start(no_threads: Any) -> None:
    pool = Pool()
    done: list[str] = []
    no_threads("tubes-handler", 1)
    with pytest.raises(RuntimeError):
        pool.submit(lambda: done.append("refused"))
    pool.submit(lambda: done.append("accepted"))
    assert eventually(lambda: done == ["accepted"])
    pool.close()


# -- errors of this library --------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the retry delays of workers, but not of lease renewers."""
    delay = RetryPolicy.delay

    def short_delay(policy: RetryPolicy, failures: int = 1) -> float:
        return 0.001 * 2**failures if policy is RETRY else delay(policy, failures)

    monkeypatch.setattr(RetryPolicy, "delay", short_delay)


@pytest.mark.parametrize("failing_method", ["ack_many", "ack", "release", "bury"])
@pytest.mark.parametrize("error", [KeyError("a mistake"), asyncio.CancelledError()], ids=repr)
def test_failed_ack_release_or_bury_is_repeated(
    queue: tubes.Queue, failing_method: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = queue.create_tube("t", max_attempts=2)
    failed: list[int] = []
    original = getattr(tubes.aio.AsyncTube, failing_method)

    async def fail_first(self: Any, *args: Any, **options: Any) -> Any:
        if not failed:
            failed.append(1)
            raise error
        return await original(self, *args, **options)

    monkeypatch.setattr(tubes.aio.AsyncTube, failing_method, fail_first)
    if failing_method == "ack":  # A worker acks tasks one by one after `ack_many` failed.

        async def fails(*_: object) -> Any:
            raise tubes.ServerFull(url="redis://here")

        monkeypatch.setattr(tubes.aio.AsyncTube, "ack_many", fails)
    worker = Worker(queue)

    @worker.on(tube)
    def handle(task: Any) -> None:
        if task.data == "release" and task.attempts == 1:
            raise ValueError
        if task.data == "bury":
            raise Bury

    tube.put_many(
        ["release" if failing_method == "release" else "bury" if failing_method == "bury" else "fine", "fine"]
    )
    summary = burst(worker)
    assert (summary.acked, summary.buried) == ((1, 1) if failing_method == "bury" else (2, 0))
    assert tube.statistics().tasks["taken"] == 0
    assert failed == [1]


def test_failing_bury_frees_the_slot_of_its_handler(
    queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail_first(self: Any, *args: Any, **options: Any) -> Any:
        raise KeyError("a mistake")

    tube = queue.create_tube("t")
    tube.put_many(["bury", "fine"])
    monkeypatch.setattr(tubes.aio.AsyncTube, "bury", fail_first)
    worker = Worker(queue)

    @worker.on(tube)
    def handle(task: Any) -> None:
        if task.data == "bury":
            raise Bury

    assert burst(worker) == Summary(acked=1)
    assert "stays with this worker" in caplog.text
    assert tube.statistics().tasks["ready"] == 1  # The end of the session released it.


def test_refused_outcome_options_are_dropped_on_retry(queue: tubes.Queue) -> None:
    queue.create_tube("t", "fifottl", max_attempts=5).put_many(range(2))

    async def main() -> list[str]:
        async with tubes.aio.connect(queue) as other:
            tube = await other.tube("t")
            outcomes: list[str] = []
            for verdict in (
                make_verdict("release", delay=float("nan")),
                make_verdict("bury", reason=7),
            ):
                task = await tube.take(timeout=0)
                assert task is not None
                outcomes.append(await run_async(carry_out(tube, task, verdict, lambda: False), call))
            return outcomes

    assert asyncio.run(asyncio.wait_for(main(), TIMEOUT)) == ["released", "buried"]


def make_verdict(method: Any, **arguments: Any) -> Any:
    from tubes.worker.outcomes import Verdict

    return Verdict(method, **arguments)


def test_failed_take_many_is_retried_by_the_worker(queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    tube = queue.create_tube("t")
    tube.put_many(range(2))
    failed: list[int] = []
    original = tubes.aio.AsyncTube.take_many

    async def fail_first(self: Any, *args: Any, **options: Any) -> Any:
        if len(failed) < 3:
            failed.append(1)
            raise KeyError("a mistake")
        return await original(self, *args, **options)

    monkeypatch.setattr(tubes.aio.AsyncTube, "take_many", fail_first)
    worker = Worker(queue)

    @worker.on(tube)
    def handle(task: Any) -> None:
        if task.data == 1:
            worker.stop()

    thread_summary: list[Summary] = []
    thread = threading.Thread(target=lambda: thread_summary.append(worker.run()), daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    assert thread_summary == [Summary(acked=2)]


def test_lease_renewer_of_a_closed_queue_does_not_busy_loop(queue: tubes.Queue) -> None:
    """The queue may be closed before the worker notices."""
    renewals: list[float] = []

    class Closed:
        name = "t"

        def touch_many(self, *_: object) -> Any:
            renewals.append(time.monotonic())
            raise tubes.QueueClosed(why="close() was called")

    class Flight:
        class task:  # noqa: N801
            _tube = None
            id = 0

        span = 0.03
        renews_at = next_check = 0.0
        ends_at = float("inf")

    renewer = LeaseRenewer(lambda _: Closed(), lambda _: None, lambda _: None)  # type: ignore[arg-type, return-value]
    renewer.add(Flight())  # type: ignore[arg-type]
    assert eventually(lambda: len(renewals) >= 1)
    time.sleep(0.2)
    renewer.close()
    assert len(renewals) <= 5


def test_a_worker_that_waits_for_its_server_is_stopped_at_once(
    queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop interrupts the delay before the next attempt to connect."""

    def fail_to_identify(self: Any, *_: object) -> Any:
        has_started.set()
        raise tubes.ConnectionLost(url="redis://nowhere", why="refused")

    has_started = threading.Event()
    monkeypatch.setattr(tubes.sync.QueueAdmin, "identify", fail_to_identify)
    monkeypatch.setattr(RetryPolicy, "delay", lambda _, failures=1: 3600.0)
    busy = Worker(queue)
    busy.on(queue.create_tube("mail"), lambda task: None)
    ended: list[Summary] = []
    thread = threading.Thread(target=lambda: ended.append(busy.run()), daemon=True)
    thread.start()
    assert has_started.wait(TIMEOUT)
    busy.stop()
    thread.join(TIMEOUT)
    assert ended == [Summary()]


@pytest.mark.full
def test_worker_whose_acks_are_refused_stops_taking(caplog: pytest.LogCaptureFixture, short_delays: None) -> None:
    started: list[object] = []
    with LocalServer() as server, tubes.connect(server.url) as queue:
        tube = queue.create_tube("jobs")
        tube.put_many(range(20))
        worker = Worker(queue, concurrency=2)

        @worker.on(tube)
        async def work(task: tubes.aio.AsyncTask) -> None:
            if not started:  # Acks need the command HDEL; takes do not.
                server.client().acl_setuser("default", commands=["-hdel"], enabled=True)
            started.append(task.data)

        summaries: list[Summary] = []
        running = threading.Thread(target=lambda: summaries.append(worker.run(burst=True)))
        running.start()
        assert eventually(lambda: caplog.text.count("retrying") >= 12)
        assert 0 < len(started) <= 6  # Two in handlers, two being acked, and two refused.
        server.client().acl_setuser("default", commands=["+hdel"], enabled=True)
        running.join(30)
        # A task whose ack was refused halfway is ready again after the repair of the tube, and is done a second time.
        summaries.append(worker.run(burst=True))
        assert tube.statistics().tasks["total"] == 0
        assert {*started} == {*range(20)}
        assert sum(summary.acked for summary in summaries) == 20
