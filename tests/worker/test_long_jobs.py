"""Handlers of long jobs: cancelling them, their checkpoints, and shutdowns, in memory, in a folder and on a server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.soak.long_job import KINDS, STEP, run_job
from tests.support.jobs import count_on, leave_a_thread, never_serve, sleep_long
from tests.worker.test_logs import lines as lines
from tests.worker.test_worker_running import running
from tubes import TaskCancelled
from tubes.drivers.entry import Loss
from tubes.worker import Interrupted, Summary, Worker, current_task, processes
from tubes.worker.run import Run

#: Timeout in seconds: processes start slowly on a busy machine.
PATIENCE = 60


@pytest.fixture(params=["memory", "folder", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    if request.param == "folder":
        return f"file:{tmp_path / 'store'}"
    found: str = "memory://" if request.param == "memory" else request.getfixturevalue("url")
    return found


@pytest.fixture
def settings() -> dict[str, Any]:
    """Use real time."""
    return {}


@pytest.fixture(params=["fifo", "fifottl"])
def tube(request: pytest.FixtureRequest, queue: tubes.Queue) -> tubes.Tube:
    """A tube without leases, and one with leases that are longer than the test."""
    options: dict[str, Any] = {"ttr": 3600} if request.param == "fifottl" else {}
    return queue.create_tube("jobs", request.param, **options)


def eventually_started(condition: Callable[[], bool]) -> bool:
    """Return True if the condition becomes true while a process starts."""
    return any(eventually(condition) for _ in range(10))


def is_busy(worker: Worker) -> bool:
    """Return True if a handler of the worker runs."""
    return worker._run is not None and bool(worker._run._in_flight)


def ended(run: Any, **counts: int) -> None:
    assert eventually_started(lambda: not is_busy(run.worker))
    assert run.end() == Summary(**counts)


def test_cancel_ends_an_async_handler_at_once(queue: tubes.Queue, tube: tubes.Tube, lines: Any) -> None:
    worker, begun, ends = Worker(queue), threading.Event(), list[str]()

    @worker.on(tube)
    async def work(task: tubes.AsyncTask) -> None:
        try:
            begun.set()
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ends.append(f"cancelled: {task.cancelled}")
            raise

    task = tube.put("a long job")
    with running(worker) as run:
        assert begun.wait(PATIENCE)
        done = tube.cancel(task, "not needed")
        assert (done.state, done.why, done.reason) == ("done", "cancelled", "not needed")
        assert eventually(lambda: ends == ["cancelled: True"])
        ended(run, cancelled=1)
    (line,) = lines("task 0")
    assert line.startswith("INFO task 0 of tube 'jobs' was cancelled, its handler ended ")
    assert line.endswith(" ms later: not needed")


def test_cancel_ends_an_async_handler_that_waits_only_at_checkpoints(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker, begun = Worker(queue), threading.Event()

    @worker.on(tube)
    async def work(task: tubes.AsyncTask) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            await task.checkpoint()
            begun.set()

    task = tube.put("a long job")
    with running(worker) as run:
        assert begun.wait(PATIENCE)
        task.cancel()
        ended(run, cancelled=1)


def test_cancel_kills_the_process_of_a_handler(queue: tubes.Queue, tube: tubes.Tube, lines: Any) -> None:
    worker = Worker(queue)
    worker.on(tube, sleep_long, process=True)
    task = tube.put("a long job")
    with running(worker) as run:
        assert eventually_started(lambda: tube.peek(task).note == "it sleeps")
        task.cancel()
        ended(run, cancelled=1)
    assert "was cancelled" in str(lines("task 0"))


def test_cancel_before_the_process_runs_prevents_the_handler(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker = Worker(queue)
    worker.on(tube, sleep_long, process=True)
    task = tube.put("a long job", keep_done=60)
    with running(worker) as run:
        assert eventually(lambda: is_busy(worker))
        task.cancel()
        ended(run, cancelled=1)
    assert tube.peek(task).note is None


def test_cancel_does_not_wait_for_the_start_of_a_process(
    queue: tubes.Queue, tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_serve", never_serve)
    monkeypatch.setattr(processes, "_START_TIMEOUT", 3600.0)
    worker = Worker(queue)
    worker.on(tube, sleep_long, process=True)
    task = tube.put("a long job")
    with running(worker) as run:
        assert eventually(lambda: worker._run is not None and bool(worker._run._processes._all))
        task.cancel()
        ended(run, cancelled=1)


def test_plain_handler_learns_of_a_cancel_at_its_next_checkpoint(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker, seen = Worker(queue), list[object]()
    may_look = threading.Event()

    @worker.on(tube)
    def work(task: tubes.Task) -> None:
        seen.append(task.cancelled)
        may_look.wait(PATIENCE)
        assert eventually(lambda: task.cancelled)
        try:
            task.checkpoint(1)
        except TaskCancelled as error:
            seen.append(error.facts)
            raise

    task = tube.put("a long job")
    with running(worker) as run:
        assert eventually(lambda: seen == [False])
        task.cancel("not needed")
        may_look.set()
        ended(run, cancelled=1)
    assert seen[1:] == [{"id": 0, "tube": "jobs", "reason": "not needed"}]


def test_handler_that_ignores_a_cancel_cannot_ack(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker, begun, go_on, results = Worker(queue), threading.Event(), threading.Event(), list[str]()

    @worker.on(tube)
    def work(task: tubes.Task) -> str:
        begun.set()
        go_on.wait(PATIENCE)
        results.append("done")
        return "done"

    task = tube.put("a long job", keep_done=60)
    with running(worker) as run:
        assert begun.wait(PATIENCE)
        task.cancel()
        go_on.set()
        ended(run, cancelled=1)
    seen = tube.peek(task)
    assert (results, seen.why, seen.result) == (["done"], "cancelled", None)


@pytest.mark.parametrize("loss", ["delete", "bury"])
def test_task_that_is_taken_away_ends_its_handler_at_once(
    queue: tubes.Queue, tube: tubes.Tube, loss: str, lines: Any
) -> None:
    worker, begun, ends = Worker(queue), threading.Event(), list[bool]()

    @worker.on(tube)
    async def work(task: tubes.AsyncTask) -> None:
        try:
            begun.set()
            await asyncio.sleep(3600)
        finally:
            ends.append(task.cancelled)

    task = tube.put("a long job")
    with running(worker) as run:
        assert begun.wait(PATIENCE)
        getattr(tube, loss)(task)
        assert eventually(lambda: ends == [False])
        ended(run, lost=1)
    assert "may be done twice" not in str(lines())


@pytest.mark.parametrize(
    ("method", "driver", "options"),
    [("delete", "fifo", {}), ("delete", "fifottl", {"ttr": 3600}), ("ack", "fifottl", {"ttr": 0.3})],
    ids=["delete-fifo", "delete-fifottl", "ack and run longer than its ttr"],
)
def test_handler_may_end_its_task_and_continue(queue: tubes.Queue, method: str, driver: str, options: Any) -> None:
    tube, worker, ends = queue.create_tube("jobs", driver, **options), Worker(queue), list[str]()

    @worker.on(tube)
    async def work(task: tubes.AsyncTask) -> None:
        await getattr(task, method)()
        await asyncio.sleep(0.6)
        ends.append("went on")

    tube.put("a long job")
    worker.run(burst=True)
    assert ends == ["went on"]


def test_caller_of_a_cancelled_task_gets_an_error(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker = Worker(queue)

    @worker.on(tube)
    async def work(task: tubes.AsyncTask) -> None:
        await asyncio.sleep(3600)

    with running(worker):
        canceller = threading.Thread(target=lambda: (eventually(lambda: is_busy(worker)), tube.cancel(0, "not needed")))
        canceller.start()
        with pytest.raises(tubes.CallFailed, match="cancelled"):
            tube.call("a long job", timeout=PATIENCE)
        canceller.join()


def test_a_cancelled_task_function_in_a_process_is_killed(queue: tubes.Queue) -> None:
    worker = Worker(queue)
    worker.task(process=True)(count_on)
    task = queue.enqueue(count_on, 10**9)
    tube = queue.tube("tasks")
    with running(worker) as run:
        assert eventually_started(lambda: (tube.peek(task).saved or 0) > 2)
        tube.cancel(task)
        ended(run, cancelled=1)


def test_stopped_worker_hands_a_job_back_at_its_checkpoint(queue: tubes.Queue, tube: tubes.Tube, lines: Any) -> None:
    worker, steps = Worker(queue, grace=PATIENCE), list[int]()

    @worker.on(tube)
    def work(task: tubes.Task) -> None:
        for step in range(task.saved or 0, 6):
            steps.append(step)
            if step == 2:
                worker.stop()
                assert eventually(lambda: worker._run is not None and worker._run._lifetime.is_stopping)
            try:
                task.checkpoint(step + 1, progress=(step + 1) / 6, note=f"step {step}")
            except Exception as error:
                raise AssertionError from error

    task = tube.put("a long job", max_attempts=1)
    assert worker.run().exit_code == 0
    seen = tube.peek(task)
    assert (seen.state, seen.attempts, seen.saved, seen.progress, seen.note) == ("ready", 0, 3, 0.5, "step 2")
    assert "INFO task 0 of tube 'jobs' stopped at a checkpoint, attempt 1 of 1" in str(lines("task 0"))
    assert worker.run(burst=True).acked == 1
    assert steps == [0, 1, 2, 3, 4, 5]


def test_stopped_worker_hands_an_async_job_back_at_its_checkpoint(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker, steps = Worker(queue, grace=PATIENCE), list[int]()

    @worker.on(tube)
    async def work(task: tubes.AsyncTask) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(steps_of(task))

    async def steps_of(task: tubes.AsyncTask) -> None:
        for step in range(task.saved or 0, 4):
            steps.append(step)
            if step == 1:
                worker.stop()
                await asyncio.sleep(0.05)
            await task.checkpoint(step + 1)

    task = tube.put("a long job", max_attempts=1)
    worker.run()
    assert (tube.peek(task).state, tube.peek(task).saved, tube.peek(task).attempts) == ("ready", 2, 0)
    worker.run(burst=True)
    assert (steps, tube.statistics().tasks["total"]) == ([0, 1, 2, 3], 0)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("store", ["folder", "server"])
def test_long_job_does_each_item_once_through_deploys_and_kills(
    store: str, kind: str, tmp_path: Path, url: str
) -> None:
    report = run_job(url if store == "server" else f"file:{tmp_path}/store", tmp_path, 20_000, 4, 2, kind)
    assert report.repeated <= 2 * STEP


def test_stopped_worker_gets_a_job_back_from_a_process(queue: tubes.Queue) -> None:
    worker = Worker(queue, grace=PATIENCE)
    worker.task(process=True)(count_on)
    task = queue.enqueue_with(max_attempts=1)(count_on, 10**9)
    tube = queue.tube("tasks")
    with running(worker) as run:
        assert eventually_started(lambda: (tube.peek(task).saved or 0) > 2)
        assert run.end(patience=PATIENCE).exit_code == 0
    seen = tube.peek(task)
    assert (seen.state, seen.attempts) == ("ready", 0)
    assert seen.saved > 2


def test_bad_checkpoint_of_a_process_raises_in_its_handler(queue: tubes.Queue) -> None:
    worker = Worker(queue)
    worker.task(process=True)(count_on)
    queue.enqueue_with(max_attempts=1)(count_on, 1, progress=7)
    assert worker.run(burst=True).buried == 1
    (task,) = queue.tube("tasks").select(state="buried")
    assert task.reason == "InvalidOption: progress=7: must be a number from 0 to 1"


def test_interrupted_is_not_caught_by_a_handler_that_catches_exceptions() -> None:
    assert not issubclass(Interrupted, Exception)
    with pytest.raises(LookupError):
        current_task()


def test_cancel_is_noticed_although_the_report_was_missed(queue: tubes.Queue) -> None:
    """A report may be lost with a connection: the renewal of the lease notices the loss."""
    tube, worker = queue.create_tube("jobs", "fifottl", ttr=0.6), Worker(queue)

    @worker.on(tube)
    async def work(task: tubes.AsyncTask) -> None:
        await asyncio.sleep(3600)

    task = tube.put("a long job")
    with running(worker) as run:
        assert eventually(lambda: is_busy(worker))
        assert eventually(lambda: worker._run is not None and bool(worker._run._watched))
        time.sleep(0.1)
        assert worker._run is not None
        worker._run._connections.threads.tube("jobs")._port.on_loss(None)
        task.cancel("not needed")
        ended(run, cancelled=1)


def test_cancel_right_after_the_take_ends_the_handler(queue: tubes.Queue, tube: tubes.Tube) -> None:
    """The report arrives before the task: it is canceled as soon as a server says that it is taken."""
    worker, ran = Worker(queue, concurrency=100), list[int]()

    @worker.on(tube)
    async def work(task: tubes.AsyncTask) -> None:
        ran.append(task.id)
        await asyncio.sleep(3600)

    with running(worker) as run:
        for number in range(30):
            task = tube.put(number)
            assert eventually(lambda task=task: tube.peek(task).state == "taken")  # type: ignore[misc]
            task.cancel()
        assert eventually(lambda: worker._run is not None and worker._run._summary.cancelled == 30)
        ended(run, cancelled=30)


def test_report_of_a_cancel_after_the_end_of_the_handler_is_no_error(
    queue: tubes.Queue, tube: tubes.Tube, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint may say that the task was cancelled before the report arrives."""
    worker, report, find_loss = Worker(queue), Run._handle_loss, Run._find_loss

    async def find_after_report(entry: Any, **options: bool) -> Any:
        assert worker._run is not None
        report(worker._run, entry.task._tube, Loss(entry.task.id, entry.take[2], "cancel", "not needed"))
        await asyncio.sleep(0)
        return await find_loss(entry, **options)

    monkeypatch.setattr(Run, "_handle_loss", lambda *_: None)
    monkeypatch.setattr(Run, "_find_loss", staticmethod(find_after_report))

    @worker.on(tube)
    async def work(task: tubes.AsyncTask) -> None:
        while True:
            await asyncio.sleep(0.001)
            await task.checkpoint()

    task = tube.put("a long job")
    with running(worker) as run:
        assert eventually(lambda: is_busy(worker))
        task.cancel("not needed")
        ended(run, cancelled=1)
    assert not [line for line in lines("") if line.startswith("ERROR")]


def test_cancel_during_the_pause_after_a_failure_is_no_error(queue: tubes.Queue, tube: tubes.Tube, lines: Any) -> None:
    worker, failed = Worker(queue), threading.Event()

    @worker.on(tube)
    def work(task: tubes.Task) -> None:
        failed.set()
        raise ValueError

    task = tube.put("a long job")
    with running(worker) as run:
        assert failed.wait(PATIENCE)
        for _ in range(2):  # Longer pauses after more attempts.
            assert eventually(lambda: tube.peek(task).attempts > 2)
        task.cancel()
        summary = worker._run._summary if worker._run is not None else Summary()
        assert eventually(lambda: not is_busy(worker) and summary.cancelled + summary.released > 2)
        run.end()
    assert "CancelledError" not in str(lines())
    assert not [line for line in lines("") if line.startswith("ERROR")]


def test_timeout_frees_the_place_of_a_cancelled_handler_that_hangs(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker, go_on, seen = Worker(queue), threading.Event(), list[str]()

    @worker.on(tube, timeout=0.5)
    def work(task: tubes.Task) -> None:
        seen.append(task.data)
        if task.data == "hangs":
            go_on.wait(PATIENCE)

    task = tube.put("hangs")
    with running(worker) as run:
        assert eventually(lambda: seen == ["hangs"])
        task.cancel()
        tube.put("next")
        assert eventually_started(lambda: seen == ["hangs", "next"])
        go_on.set()
        ended(run, acked=1, cancelled=1)


def test_error_of_a_cancelled_handler_is_logged(queue: tubes.Queue, tube: tubes.Tube, lines: Any) -> None:
    worker, begun = Worker(queue), threading.Event()

    @worker.on(tube)
    async def work(task: tubes.AsyncTask) -> None:
        try:
            begun.set()
            await asyncio.sleep(3600)
        finally:
            raise ValueError("the cleanup failed")

    task = tube.put("a long job")
    with running(worker) as run:
        assert begun.wait(PATIENCE)
        task.cancel()
        ended(run, cancelled=1)
    assert "ValueError: the cleanup failed" in str(lines("task 0"))


def test_thread_of_an_earlier_handler_cannot_use_the_process(queue: tubes.Queue) -> None:
    tube, worker = queue.create_tube("jobs", "fifottl", ttr=60, max_attempts=1), Worker(queue)
    worker.on(tube, leave_a_thread, process=True)
    tube.put_many(range(10), keep_done=60)
    assert worker.run(burst=True).acked == 10
    assert all(task.saved in (None, f"of task {task.id}") for task in tube.select("done"))


def test_stopped_worker_interrupts_a_thread_of_a_handler(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker, seen = Worker(queue, grace=PATIENCE), list[str]()

    def step(task: tubes.Task) -> None:
        try:
            task.checkpoint(1)
        except Interrupted as error:
            seen.append(str(error))

    @worker.on(tube)
    def work(task: tubes.Task) -> None:
        worker.stop()
        assert eventually(lambda: worker._run is not None and worker._run._lifetime.is_stopping)
        thread = threading.Thread(target=step, args=(task,))
        thread.start()
        thread.join()

    tube.put("a long job")
    worker.run()
    assert seen == ["the worker is shutting down"]


def test_handler_that_claims_a_cancellation_fails(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker = Worker(queue)

    @worker.on(tube)
    def work(task: tubes.Task) -> None:
        raise TaskCancelled(id=task.id, tube=task.tube, reason="made up")

    tube.put("a long job", max_attempts=1)
    assert worker.run(burst=True).buried == 1
