"""Whatever handlers, hooks, codecs and logs do: their tasks are finished, and the worker goes on."""

from __future__ import annotations

import _thread
import asyncio
import logging
import random
import threading
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import suppress
from operator import call
from types import TracebackType
from typing import Any, Self

import pytest

import tubes
from tubes import CallFailed
from tubes.backend.flow import run_async
from tubes.backend.retry import RetryPolicy
from tubes.conformance.bench import eventually
from tubes.testing import LocalServer
from tubes.worker import Bury, Retry, Summary, Worker
from tubes.worker.finishing import carry_out
from tubes.worker.lease_renewer import LeaseRenewer
from tubes.worker.lifetime import RETRY, Lifetime
from tubes.worker.pool import Pool

#: Seconds in which a burst ends, on a slow machine too.
PATIENCE = 60.0
FULL = pytest.mark.full


@pytest.fixture
def place() -> str:
    """Where the tasks are is the same to handlers."""
    return "memory://"


@pytest.fixture(autouse=True)
def printable_logs(caplog: pytest.LogCaptureFixture) -> None:
    """What is captured goes from one test process to another, which takes no lone surrogates."""

    def escape(record: logging.LogRecord) -> bool:
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        for name in ("msg", "exc_text"):
            text = record.getMessage() if name == "msg" else record.exc_text
            setattr(record, name, text and text.encode("utf-8", "backslashreplace").decode())
        record.args = None
        return True

    caplog.handler.addFilter(escape)


def burst(worker: Worker) -> Summary:
    """Runs it in a thread, which shows whether it ends."""
    ended: list[Summary] = []
    failed: list[str] = []

    def run() -> None:
        try:
            ended.append(worker.run(burst=True))
        except BaseException as error:  # Without asking it or what it comes from for words: both may be hostile.
            failed.append("".join([*traceback.format_tb(error.__traceback__), object.__repr__(error)]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        worker.stop(now=True)
        thread.join(PATIENCE)
        pytest.fail("the worker has not ended")
    if failed:
        pytest.fail(f"the worker has failed:\n{failed[0]}", pytrace=False)
    return ended[0]


# -- errors that do not behave -----------------------------------------------------------------------------------------


class Nameless(type):
    """Its classes have no name."""

    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__", "__mro__"):
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class Liar(type):
    """Its classes are nothing that one may ask for."""

    def __instancecheck__(cls, instance: object) -> bool:
        raise RuntimeError("no class")

    def __subclasscheck__(cls, subclass: type) -> bool:
        raise RuntimeError("no class")


class WithoutName(Exception, metaclass=Nameless):
    pass


class WithoutNameOrBase(BaseException, metaclass=Nameless):
    pass


class Unasked(Exception, metaclass=Liar):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit

    __repr__ = __str__


class Odd(str):
    def __len__(self) -> int:
        raise RuntimeError

    def __format__(self, spec: str) -> str:
        raise RuntimeError


class Speaks(Exception):
    def __str__(self) -> str:
        return Odd("odd")


def posing(base: type[BaseException], pose: Any) -> type[BaseException]:
    """An error that says it is of another class; or that fails when it is asked."""

    def says(self: Any) -> Any:
        if isinstance(pose, type):
            return pose
        raise RuntimeError("no class")

    return type("Posing", (base,), {"__class__": property(says)})


class Traceless(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no trace")

    def with_traceback(self, tb: TracebackType | None) -> Self:
        raise RuntimeError("no trace")


class Shadowed(Exception):
    """Whatever is asked of it fails."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Unmade(Retry):
    def __init__(self) -> None:  # Its base is not made.
        pass


def retry_after(delay: Any) -> Retry:
    made = Retry()
    made.delay = delay
    return made


class Undelayed(Retry):
    @property
    def delay(self) -> Any:
        raise SystemError("no delay")

    @delay.setter
    def delay(self, delay: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        pass


def circular() -> Exception:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return ExceptionGroup("group", [one, other])


ERRORS: dict[str, Callable[[], BaseException]] = {
    "nameless": WithoutName,
    "nameless base": WithoutNameOrBase,
    "unasked": Unasked,
    "mute": Mute,
    "odd words": Speaks,
    "poses as Retry": posing(Exception, Retry),
    "poses as Bury": posing(BaseException, Bury),
    "poses as CancelledError": posing(BaseException, asyncio.CancelledError),
    "poses as StopIteration": posing(Exception, StopIteration),
    "fails when asked": posing(BaseException, None),
    "traceless": Traceless,
    "shadowed": Shadowed,
    "not made": Unmade,
    "delay is words": lambda: retry_after("soon"),
    "delay is no number": lambda: retry_after(float("nan")),
    "delay is negative": lambda: retry_after(-1),
    "delay fails": Undelayed,
    "surrogates": lambda: ValueError("\ud800\x00"),
    "bury surrogates": lambda: Bury("\ud800"),
    "bury nothing": lambda: Bury(None),  # type: ignore[arg-type]
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
@pytest.mark.parametrize("where", ["handler", *(pytest.param(hook, marks=FULL) for hook in ("hook", "hook's end"))])
@pytest.mark.parametrize("is_async", [pytest.param(False, marks=FULL), True], ids=["plain", "async"])
def test_any_error_of_a_handler_or_hook_buries_its_task(
    queue: tubes.Queue, name: str, where: str, is_async: bool
) -> None:
    tube = queue.create_tube("t", max_attempts=1)
    tube.put_many([True, False, True, False])

    def fail(task: Any, here: str) -> None:
        if task.data and where == here:
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
    if where != "handler":
        worker.around(Hook)
    worker.on(tube, handle_async if is_async else handle)
    assert burst(worker) == Summary(acked=2, buried=2)
    assert all(task.reason for task in tube.buried())


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
        assert all(task.reason for task in tube.buried())


def test_reason_names_the_class_of_an_error_with_a_hidden_name(queue: tubes.Queue) -> None:
    tube = queue.create_tube("t", max_attempts=1)
    tube.put(0)
    worker = Worker(queue)

    @worker.on(tube)
    def handle(task: Any) -> None:
        raise WithoutName("but words")

    assert burst(worker) == Summary(buried=1)
    assert tube.buried()[0].reason == "WithoutName: but words"


# -- handlers that do not behave ---------------------------------------------------------------------------------------


def test_handler_that_cancels_its_own_asyncio_task_is_acked(queue: tubes.Queue) -> None:
    """It is cancelled later then, while its task is finished."""
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
    """Which hears it as SIGINT: the worker stops, and nothing is lost."""
    tube = queue.create_tube("t")
    tube.put_many(range(2))
    worker = Worker(queue)
    worker.on(tube, lambda task: _thread.interrupt_main())
    assert worker.run() == Summary(acked=1)
    assert tube.statistics().tasks["ready"] == 1


class Fatal:
    """A codec that ends programs."""

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
        assert tube.buried()[0].reason == "CodecError: SystemExit: decode"


def test_result_that_cannot_be_encoded_fails_its_call(queue: tubes.Queue) -> None:
    with tubes.connect(codec=Fatal()) as queue:
        tube = queue.create_tube("t", max_attempts=1)
        worker = Worker(queue)
        worker.on(tube, lambda task: b"fatal")
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        with pytest.raises(CallFailed, match="SystemExit: encode"):
            tube.call(b"ann", timeout=PATIENCE)
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


class Havoc:
    """Handlers that do what comes to their mind, with their task and with its tube."""

    def __init__(self, queue: tubes.Queue, seed: int) -> None:
        self._queue = queue
        self._random = random.Random(seed)
        self.together = threading.Barrier(3)

    def tube(self) -> tubes.Tube:
        return self._queue.create_tube("t", "fifottl", if_not_exists=True, ttr=1, max_attempts=2, backoff=[0.01])

    def handle(self, task: Any) -> None:
        if task.data == "together":
            self.together.wait(PATIENCE)
        elif task.data != "fine":
            for act in self._acts(4):
                if act in ("ack", "release", "bury"):
                    getattr(task, act)()
            self._fail(task)

    async def handle_async(self, task: Any) -> None:
        if task.data == "together":
            await asyncio.to_thread(self.together.wait, PATIENCE)
        elif task.data != "fine":
            for act in self._acts(8):
                if act in ("ack", "release", "bury"):
                    await getattr(task, act)()
                current = asyncio.current_task()
                if act == "cancel" and current is not None:
                    current.cancel()
                if act == "wait":
                    await asyncio.sleep(0.01)
            self._fail(task)

    def _acts(self, most: int) -> list[str]:
        acts = ["ack", "release", "bury", "cancel", "wait", "nothing", "nothing"]
        return self._random.choices(acts, k=self._random.randrange(most))

    def _fail(self, task: Any) -> None:
        chance = self._random.random()
        tube = self.tube()
        if chance < 0.1:
            tube.delete(task.id)
        elif chance < 0.2:
            tube.bury(task.id)
        elif chance < 0.3:
            tube.release_all()
        elif chance < 0.33:
            with suppress(tubes.TubesError):
                tube.drop(force=True)
            self.tube()
        elif chance < 0.35:
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
        havoc = Havoc(queue, seed)
        tube = havoc.tube()
        worker = Worker(queue, concurrency=3)
        worker.on("t", havoc.handle_async if is_async else havoc.handle, timeout=1)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        for number in range(100):
            with suppress(tubes.TubesError):
                havoc.tube().put("fine" if number % 3 else "havoc")

        def is_over() -> bool:
            time.sleep(0.01)
            with suppress(tubes.TubeNotFound):
                tasks = havoc.tube().statistics().tasks
                return tasks["total"] == tasks["buried"]
            return False

        assert eventually(is_over)
        tube = havoc.tube()
        tube.truncate()
        tube.put_many(["together"] * 3)
        assert eventually(lambda: tube.statistics().tasks["total"] == 0)
        assert not havoc.together.broken
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_last_task_given_up_is_counted(queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its thread is held up when the run need not wait for it any more."""
    tell = Lifetime.call

    def tell_and_sleep(self: Lifetime, *args: Any) -> None:
        tell(self, *args)
        time.sleep(0.3)

    monkeypatch.setattr(Lifetime, "call", tell_and_sleep)
    tube = queue.create_tube("t", "fifottl", max_attempts=1, ttr=60)
    worker = Worker(queue)
    go = threading.Event()
    worker.on(tube, lambda task: go.wait(PATIENCE), timeout=0.1)
    tube.put("slow")
    summary = burst(worker)
    go.set()
    assert summary == Summary(buried=1)


# -- logs that do not behave -------------------------------------------------------------------------------------------


@pytest.fixture
def broken_log() -> Generator[None]:
    """Whatever is logged raises."""

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
            go.wait(PATIENCE)

    worker.on(tube, handle, timeout=1)
    worker.on("nowhere", handle)
    tube.put_many(["fail", "delete", "slow", "fine"])
    summary = burst(worker)
    go.set()
    assert summary == Summary(acked=1, buried=2, lost=1)
    assert [task.reason for task in tube.buried()] == [
        "ValueError: no such address",
        "TimeoutError: the handler took longer than 1 s",
    ]


def test_log_records_name_the_calling_function(queue: tubes.Queue, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(queue)
    worker.on("nowhere", lambda task: None)
    assert burst(worker) == Summary()
    assert [(record.filename, record.funcName) for record in caplog.records] == [("fetcher.py", "_log_missing")]


# -- a system that has nothing left ------------------------------------------------------------------------------------


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], list[int]]:
    """Lets threads of this name fail to start, so many times."""
    start = threading.Thread.start

    def fail(name: str, times: int) -> list[int]:
        failed: list[int] = []

        def starts(self: threading.Thread) -> None:
            if self.name == name and len(failed) < times:
                failed.append(1)
                raise RuntimeError("can't start new thread")
            start(self)

        monkeypatch.setattr(threading.Thread, "start", starts)
        return failed

    return fail


def test_handler_waits_when_a_thread_cannot_be_started(
    queue: tubes.Queue, no_threads: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The task has not failed by that."""
    tube = queue.create_tube("t", max_attempts=1)
    tube.put_many(range(3))
    failed = no_threads("tubes-handler", 2)
    calls: list[int] = []
    worker = Worker(queue, concurrency=3)
    worker.on(tube, lambda task: calls.append(task.data))
    assert burst(worker) == Summary(acked=3)
    assert (sorted(calls), len(failed)) == ([0, 1, 2], 2)
    assert "can't start new thread: the handler of task" in caplog.text


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["tubes-worker-leases", "tubes-handler"])
def test_slow_task_times_out_although_a_thread_failed_to_start(queue: tubes.Queue, no_threads: Any, name: str) -> None:
    tube = queue.create_tube("t", max_attempts=1)
    worker = Worker(queue, concurrency=2)

    @worker.on(tube, timeout=0.1)
    async def handle(task: Any) -> None:
        if task.data == "slow":  # Its thread is the event loop's.
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


# -- mistakes of this library ------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of workers; a lease renewer rests as ever."""
    delay = RetryPolicy.delay

    def short(policy: RetryPolicy, failures: int = 1) -> float:
        return 0.001 * 2**failures if policy is RETRY else delay(policy, failures)

    monkeypatch.setattr(RetryPolicy, "delay", short)


@pytest.mark.parametrize("where", ["ack_many", "ack", "release", "bury"])
@pytest.mark.parametrize("error", [KeyError("a mistake"), asyncio.CancelledError()], ids=repr)
def test_failed_ack_release_or_bury_is_repeated(
    queue: tubes.Queue, where: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = queue.create_tube("t", max_attempts=2)
    failed: list[int] = []
    right = getattr(tubes.aio.AsyncTube, where)

    async def wrong(self: Any, *args: Any, **options: Any) -> Any:
        if not failed:
            failed.append(1)
            raise error
        return await right(self, *args, **options)

    monkeypatch.setattr(tubes.aio.AsyncTube, where, wrong)
    if where == "ack":  # It comes to that where acks of several fail.

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

    tube.put_many(["release" if where == "release" else "bury" if where == "bury" else "fine", "fine"])
    summary = burst(worker)
    assert (summary.acked, summary.buried) == ((1, 1) if where == "bury" else (2, 0))
    assert tube.statistics().tasks["taken"] == 0
    assert failed == [1]


def test_failing_bury_frees_the_slot_of_its_handler(
    queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def wrong(self: Any, *args: Any, **options: Any) -> Any:
        raise KeyError("a mistake")

    tube = queue.create_tube("t")
    tube.put_many(["bury", "fine"])
    monkeypatch.setattr(tubes.aio.AsyncTube, "bury", wrong)
    worker = Worker(queue)

    @worker.on(tube)
    def handle(task: Any) -> None:
        if task.data == "bury":
            raise Bury

    assert burst(worker) == Summary(acked=1)
    assert "stays with this worker" in caplog.text
    assert tube.statistics().tasks["ready"] == 1  # The session has ended.


def test_refused_outcome_options_are_dropped_on_retry(queue: tubes.Queue) -> None:
    tube = queue.create_tube("t", "fifottl", max_attempts=5)
    tube.put_many(range(2))

    async def main() -> list[str]:
        async with tubes.aio.connect(queue) as other:
            there = await other.tube("t")
            outcomes: list[str] = []
            for verdict in (
                worker_verdict("release", delay=float("nan")),
                worker_verdict("bury", reason=7),
            ):
                task = await there.take(timeout=0)
                assert task is not None
                outcomes.append(await run_async(carry_out(there, task, verdict, lambda: False), call))
            return outcomes

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) == ["released", "buried"]


def worker_verdict(verb: Any, **facts: Any) -> Any:
    from tubes.worker.outcomes import Verdict

    return Verdict(verb, **facts)


def test_failed_take_many_is_retried_by_the_worker(queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    tube = queue.create_tube("t")
    tube.put_many(range(2))
    failed: list[int] = []
    right = tubes.aio.AsyncTube.take_many

    async def wrong(self: Any, *args: Any, **options: Any) -> Any:
        if len(failed) < 3:
            failed.append(1)
            raise KeyError("a mistake")
        return await right(self, *args, **options)

    monkeypatch.setattr(tubes.aio.AsyncTube, "take_many", wrong)
    worker = Worker(queue)

    @worker.on(tube)
    def handle(task: Any) -> None:
        if task.data == 1:
            worker.stop()

    thread_summary: list[Summary] = []
    thread = threading.Thread(target=lambda: thread_summary.append(worker.run()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert thread_summary == [Summary(acked=2)]


def test_lease_renewer_of_a_closed_queue_does_not_busy_loop(queue: tubes.Queue) -> None:
    """It may be told of that before the worker is."""
    asked: list[float] = []

    class Closed:
        name = "t"

        def renew_many(self, *_: object) -> Any:
            asked.append(time.monotonic())
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
    assert eventually(lambda: len(asked) >= 1)
    time.sleep(0.2)
    renewer.close()
    assert len(asked) <= 5


def test_a_worker_that_waits_for_its_server_is_stopped_at_once(
    queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only after its rest."""

    def away(self: Any, *_: object) -> Any:
        begun.set()
        raise tubes.ConnectionLost(url="redis://nowhere", why="refused")

    begun = threading.Event()
    monkeypatch.setattr(tubes.Queue, "identify", away)
    monkeypatch.setattr(RetryPolicy, "delay", lambda _, failures=1: 3600.0)
    busy = Worker(queue)
    busy.on("mail", lambda task: None)
    ended: list[Summary] = []
    thread = threading.Thread(target=lambda: ended.append(busy.run()), daemon=True)
    thread.start()
    assert begun.wait(PATIENCE)
    busy.stop()
    thread.join(PATIENCE)
    assert ended == [Summary()]


@pytest.mark.full
def test_worker_whose_acks_are_refused_stops_taking(caplog: pytest.LogCaptureFixture, short_rests: None) -> None:
    started: list[object] = []
    with LocalServer() as server, tubes.connect(server.url) as queue:
        tube = queue.create_tube("jobs")
        tube.put_many(range(20))
        worker = Worker(queue, concurrency=2)

        @worker.on(tube)
        async def work(task: tubes.aio.AsyncTask) -> None:
            if not started:  # Acks remove tasks; takes do not need that.
                server.client().acl_setuser("default", commands=["-hdel"], enabled=True)
            started.append(task.data)

        summaries: list[Summary] = []
        running = threading.Thread(target=lambda: summaries.append(worker.run(burst=True)))
        running.start()
        assert eventually(lambda: caplog.text.count("retrying") >= 12)
        assert 0 < len(started) <= 6  # At work, acked on their way, and refused: two each.
        server.client().acl_setuser("default", commands=["+hdel"], enabled=True)
        running.join(30)
        assert summaries[0].acked == len(started) == 20
