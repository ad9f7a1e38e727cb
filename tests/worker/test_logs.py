"""The log lines of a worker. They never contain a task's data."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.worker.test_worker_running import running
from tubes.testing import ManualClock
from tubes.worker import Bury, Retry, Summary, Worker

SECRET = "card 4711"


@pytest.fixture(params=["plain", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    value: bool = request.param == "async"
    return value


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """A function that returns the logged lines with a prefix, each with its level."""
    caplog.set_level(logging.INFO, "tubes.worker")

    def messages_about(what: str = "task") -> list[str]:
        return [f"{one.levelname} {one.getMessage()}" for one in caplog.records if one.getMessage().startswith(what)]

    yield messages_about
    assert SECRET not in caplog.text


def sleep(task: Any) -> None:
    time.sleep(task.data)


def sleep_briefly(task: Any) -> None:
    time.sleep(0.5)


async def sleep_async(task: Any) -> None:
    await asyncio.sleep(task.data)


def work(queue: tubes.Queue, error: Exception, *, is_async: bool) -> None:
    def fail(task: Any) -> None:
        raise error

    async def fail_later(task: Any) -> None:
        await asyncio.sleep(0)
        raise error

    worker = Worker(queue)
    worker.on("mail", fail_later if is_async else fail)
    worker.run(burst=True)


def test_failure_log_names_the_attempt_and_the_next_retry(
    queue: tubes.Queue, clock: ManualClock, lines: Any, is_async: bool
) -> None:
    tube = queue.create_tube("mail", "fifottl", max_attempts=4, backoff=[5, 0.05, 0])
    tube.put(SECRET)
    for _ in range(3):
        work(queue, ValueError("no such address"), is_async=is_async)
        clock.advance(5)
    assert lines() == [
        "WARNING task 0 of tube 'mail' failed, attempt 1 of 4, retries in 5 s: ValueError: no such address",
        "WARNING task 0 of tube 'mail' failed, attempt 2 of 4, retries in 0.05 s: ValueError: no such address",
        "WARNING task 0 of tube 'mail' failed, attempt 3 of 4, retries at once: ValueError: no such address",
        "ERROR task 0 of tube 'mail' failed, attempt 4 of 4, is buried: ValueError: no such address",
    ]


def test_failure_log_without_max_attempts_has_only_the_attempt(queue: tubes.Queue, lines: Any, is_async: bool) -> None:
    queue.create_tube("mail", "fifottl", backoff=[90]).put(SECRET)
    work(queue, KeyError(), is_async=is_async)
    assert lines() == ["WARNING task 0 of tube 'mail' failed, attempt 1, retries after this burst: KeyError"]


@pytest.mark.parametrize(
    ("level", "limit", "traces"),
    [(logging.INFO, 3, [3]), (logging.DEBUG, 3, [1, 2, 3]), (logging.INFO, None, [1])],
    ids=["last", "each", "first"],
)
def test_only_one_attempt_shows_its_traceback(
    queue: tubes.Queue, clock: ManualClock, caplog: Any, level: int, limit: int | None, traces: list[int]
) -> None:
    caplog.set_level(level, "tubes.worker")
    tube = queue.create_tube("mail", "fifottl", max_attempts=limit, backoff=[5])
    tube.put(SECRET)
    for _ in range(3):
        work(queue, ValueError("no such address"), is_async=False)
        clock.advance(5)
    failed = [record for record in caplog.records if "failed" in record.getMessage()]
    assert [record.attempt for record in failed if record.exc_info] == traces


def test_failure_is_logged_in_one_line(queue: tubes.Queue, lines: Any) -> None:
    queue.create_tube("mail", max_attempts=3).put(SECRET)
    work(queue, ValueError("no such\n  address"), is_async=False)
    assert lines()[0].endswith("attempt 1 of 3, retries at once: ValueError: no such address")


@pytest.mark.parametrize("fails", [False, True])
def test_lost_task_is_logged_in_one_line(queue: tubes.Queue, lines: Any, fails: bool) -> None:
    tube = queue.create_tube("mail", max_attempts=3)
    tube.put(SECRET)
    worker = Worker(queue)

    @worker.on(tube)
    def handle(task: tubes.Task) -> None:
        tube.delete(task.id)
        if fails:
            raise ValueError("no such address")

    worker.run(burst=True)
    lost = "was deleted before the end of its handler"
    event = "failed, attempt 1 of 3, was lost meanwhile: ValueError: no such address" if fails else lost
    assert lines() == [f"WARNING task 0 of tube 'mail' {event}"]


def test_task_that_its_handler_finishes_is_logged(queue: tubes.Queue, lines: Any) -> None:
    queue.create_tube("mail").put(SECRET)
    worker = Worker(queue)
    worker.on("mail", lambda task: task.ack() and None)
    worker.run(burst=True)
    assert lines() == ["INFO task 0 of tube 'mail' was finished by its handler"]


def test_failure_in_a_burst_is_logged(queue: tubes.Queue, lines: Any, is_async: bool) -> None:
    queue.create_tube("mail", "fifo").put(SECRET)
    work(queue, KeyError(), is_async=is_async)
    assert lines() == ["WARNING task 0 of tube 'mail' failed, attempt 1, retries after this burst: KeyError"]


def test_requested_retry_is_logged_as_info(queue: tubes.Queue, clock: ManualClock, lines: Any, is_async: bool) -> None:
    tube = queue.create_tube("mail", "fifottl", max_attempts=2)
    tube.put(SECRET)
    work(queue, Retry(delay=30), is_async=is_async)
    clock.advance(30)
    work(queue, Retry(delay=30, reason="it is closed"), is_async=is_async)
    assert lines() == [
        "INFO task 0 of tube 'mail' was sent back by its handler, attempt 1 of 2, retries in 30 s",
        "WARNING task 0 of tube 'mail' has no attempts left, attempt 2 of 2, is buried: Retry: it is closed",
    ]
    assert next(iter(tube.select("buried"))).reason == "Retry: it is closed"


def test_log_records_have_the_fields_of_their_task(
    queue: tubes.Queue, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    queue.create_tube("mail", max_attempts=2).put(SECRET, context={"request": "4bf9"})
    work(queue, ValueError(), is_async=is_async)
    fields = [
        tuple(vars(one).get(name) for name in ("tube", "task", "attempt", "context"))
        for one in caplog.records
        if "task" in vars(one)
    ]
    assert fields == [("mail", 0, 1, {"request": "4bf9"}), ("mail", 0, 2, {"request": "4bf9"})]


@pytest.mark.parametrize(("name", "shown"), [("reports.send", "reports.send"), ("a\nb", r"'a\nb'")])
def test_log_line_names_the_function_that_the_task_calls(
    queue: tubes.Queue, caplog: pytest.LogCaptureFixture, name: str, shown: str
) -> None:
    caplog.set_level("INFO", "tubes.worker")
    worker, results = Worker(queue), [0, 1]
    queue.create_tube("mail", max_attempts=2)
    worker.task(name, tube="mail")(lambda text: 1 / results.pop(0))
    queue.enqueue_with(tube="mail")(name, SECRET)
    worker.run(burst=True)
    records = [one for one in caplog.records if "task" in vars(one)]
    assert [one.function for one in records] == [name, name]  # type: ignore[attr-defined]
    assert all(one.getMessage().startswith(f"task 0 of tube 'mail' ({shown}) ") for one in records)
    assert SECRET not in caplog.text


@pytest.mark.sample(5)
@pytest.mark.parametrize("process", [False, True])
def test_handler_timeout_is_logged_without_traceback(
    queue: tubes.Queue, caplog: pytest.LogCaptureFixture, is_async: bool, process: bool
) -> None:
    queue.create_tube("mail", max_attempts=1).put(3600)
    worker = Worker(queue)
    if process:
        worker.on("mail", sleep, timeout=0.05, process=True)
    elif is_async:
        worker.on("mail", sleep_async, timeout=0.05)
    else:
        worker.on("mail", sleep_briefly, timeout=0.05)
    worker.run(burst=True)
    assert "TimeoutError: the handler took longer" in caplog.text
    assert [one.exc_info for one in caplog.records if "TimeoutError" in one.getMessage()] == [None]


def test_worker_logs_its_end_after_its_lifespan_closed(queue: tubes.Queue, lines: Any) -> None:
    worker = Worker(queue)
    worker.on(queue.create_tube("mail"), print)
    seen: list[list[str]] = []

    @worker.lifespan
    def pool() -> Iterator[None]:
        yield
        seen.append(lines("the worker has ended"))

    worker.run(burst=True)
    assert seen == [[]]
    assert len(lines("the worker has ended")) == 1


def test_task_given_up_by_its_handler_is_logged(queue: tubes.Queue, lines: Any, is_async: bool) -> None:
    queue.create_tube("mail", max_attempts=3).put(SECRET)
    work(queue, Bury("no such address"), is_async=is_async)
    (line,) = lines()
    assert (
        line == "WARNING task 0 of tube 'mail' was given up by its handler, attempt 1 of 3, is buried: no such address"
    )


def test_undecodable_task_is_logged_once_without_its_data(
    clock: ManualClock, lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Picky:
        def encode(self, data: Any) -> bytes:
            return str(data).encode()

        def decode(self, raw: bytes) -> Any:
            return int(raw)

    with tubes.connect(codec=Picky(), clock=clock) as queue:
        queue.create_tube("mail").put(SECRET)
        work(queue, ValueError(), is_async=False)
    assert lines() == ["ERROR task 0 of tube 'mail' is buried: its data cannot be decoded"]


def test_lost_or_slow_task_is_logged_without_its_data(queue: tubes.Queue, lines: Any) -> None:
    tube = queue.create_tube("mail", max_attempts=1)
    tube.put_many([SECRET, SECRET])
    worker = Worker(queue, concurrency=2)

    @worker.on("mail", timeout=0.05)
    async def handle(task: tubes.AsyncTask) -> None:
        if task.id == 0:
            await task.delete()
            tube.put("more")
        else:
            await asyncio.sleep(3600)

    worker.run(burst=True)
    assert "ERROR task 1 of tube 'mail' failed, attempt 1 of 1, is buried: TimeoutError: the handler took" in str(
        lines()
    )


def test_worker_logs_its_handlers_its_tasks_and_its_summary(queue: tubes.Queue, lines: Any) -> None:
    queue.create_tube("mail").put(SECRET)
    queue.create_tube("urgent")
    worker = Worker(queue, concurrency=4)

    @worker.on(["mail", "urgent"])
    def send(task: tubes.Task) -> None: ...

    @worker.task
    def sweep() -> None: ...

    worker.run(burst=True)
    assert [re.sub(r"test_\w+\.", "", line) for line in lines("the worker takes")] == [
        f"INFO the worker takes tasks from tubes 'mail', 'urgent': send, 4 at a time, on {queue._connection.url}",
        f"INFO the worker takes tasks from tube 'tasks': sweep, 4 at a time, on {queue._connection.url}",
    ]
    (done,) = lines()
    assert re.fullmatch(r"INFO task 0 of tube 'mail' was done in \d+ ms", done)
    assert lines("the worker has ended") == [
        "INFO the worker has ended: 1 acked, 0 released, 0 buried, 0 lost, 0 cancelled, 0 cut off"
    ]


def fail_at_length(task: Any) -> None:
    raise ValueError(task.data[0] * task.data[1])


@pytest.mark.sample(2)
@pytest.mark.parametrize("process", [False, True])
@pytest.mark.parametrize("text", ["x", "x\n"])
def test_long_error_is_cut_in_the_log(
    queue: tubes.Queue, caplog: pytest.LogCaptureFixture, text: str, process: bool
) -> None:
    queue.create_tube("mail", max_attempts=1).put([text, 1_000_000])
    worker = Worker(queue)
    worker.on("mail", fail_at_length, process=process)
    assert worker.run(burst=True) == Summary(buried=1)
    assert "ValueError: x" in caplog.text
    assert text == "x\n" or "in fail_at_length\n" in caplog.text
    assert text == "x" or "\n[...]\n" in caplog.text
    assert len(caplog.text) < 25_000
    (error,) = (record.exc_info[1] for record in caplog.records if record.exc_info)
    assert str(error) == text * 1_000_000  # A handler of the program gets the whole error.


def test_reason_of_a_cancel_is_logged_in_one_line_and_cut(queue: tubes.Queue, lines: Any) -> None:
    tube, worker = queue.create_tube("mail"), Worker(queue)

    @worker.on("mail")
    def cancel(task: tubes.Task) -> None:
        tube.cancel(task, "wrong\nINFO " + "r" * 100_000)
        task.checkpoint()

    tube.put(SECRET)
    assert worker.run(burst=True) == Summary(cancelled=1)
    (line,) = lines("task 0")
    assert ": wrong INFO rrr" in line
    assert len(line) < 700


def test_missing_tubes_are_logged_in_one_line(queue: tubes.Queue, lines: Any) -> None:
    worker = Worker(queue)
    missing = [queue.create_tube(name) for name in ("nowhere", "a", "b")]
    worker.on("nowhere", lambda task: None)
    worker.on(["a", "b"], lambda task: None)
    for tube in missing:
        tube.drop()
    with running(worker):
        assert eventually(lambda: len(lines("tube")) >= 4)
    for line in lines("tube"):
        assert re.fullmatch(r"WARNING (tube 'nowhere' does|tubes 'a', 'b' do) not exist, retrying in \d+\.\d s", line)
