"""Handlers in separate processes: their results, errors, deaths, and ends."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support import orphan_worker
from tests.support.crunching import act, awaited, crunch, tick
from tests.worker.test_worker_running import running
from tubes import CallFailed, InvalidOption, task_data
from tubes.values.task_data import TASKS
from tubes.worker import Summary, Worker, processes
from tubes.worker.in_flight import take_of
from tubes.worker.processes import Processes

#: Timeout in seconds: processes start slowly on a busy machine.
PATIENCE = 60


@pytest.fixture
def settings() -> dict[str, Any]:
    """Use real time, and sessions that expire soon."""
    return {"session_ttl": 2}


@pytest.fixture
def tube(queue: tubes.Queue) -> tubes.Tube:
    return queue.create_tube("frames", "fifottl", ttr=PATIENCE, max_attempts=1)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_and_errors_come_back_and_processes_are_reused(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker = Worker(queue)
    worker.on(tube, crunch, process=True)
    with running(worker):
        pid = tube.call("pid", timeout=PATIENCE)
        assert pid != os.getpid()
        assert tube.call("pid", timeout=PATIENCE) == pid
        assert tube.call(["echo", 1, {"two": 3}], timeout=PATIENCE) == [1, {"two": 3}]
        assert tube.call("facts", timeout=PATIENCE) == ["frames", 3, 1]
        assert tube.call("signals", timeout=PATIENCE) == [True, True]
        for what, why in {
            "fail": "ValueError: no such address",
            "odd": "RuntimeError: Odd: odd",
            "exit": "RuntimeError: SystemExit: out",
            "lambda": "pickle",
            "bury": "no such address",
            "retry": "max_attempts: retry",
        }.items():
            with pytest.raises(CallFailed, match=why):
                tube.call(what, timeout=PATIENCE)
        assert tube.call("child", timeout=PATIENCE) is None
        assert tube.call("pid", timeout=PATIENCE) == pid
    assert eventually(lambda: not is_alive(pid))


@pytest.mark.full
@pytest.mark.sample(1)
def test_dying_process_fails_only_its_own_attempt(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker = Worker(queue, concurrency=2)
    worker.on(tube, crunch, process=True)
    with running(worker):
        first = tube.call("pid", timeout=PATIENCE)
        slow = tube.put(["sleep", 4], ttr=3)  # It sleeps longer than its ttr.
        with pytest.raises(CallFailed, match="ProcessDied: the process of the handler died: by SIGKILL"):
            tube.call("die", timeout=PATIENCE)
        with pytest.raises(CallFailed, match="ProcessDied: the process of the handler died: exit code 3"):
            tube.call("leave", timeout=PATIENCE)
        assert eventually(lambda: tube.statistics().tasks["total"] == 2)
        assert slow.id not in [task.id for task in tube.select()]
        # Killing an idle process does not cost an attempt.
        second = tube.call("pid", timeout=PATIENCE)
        for pid in {first, second}:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not {first, second} & {child.pid for child in multiprocessing.active_children()})
        assert tube.call("pid", timeout=PATIENCE) not in (first, second)


@pytest.mark.sample(1)
def test_a_process_that_takes_too_long_is_killed(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker = Worker(queue)
    worker.on(tube, crunch, process=True, timeout=0.5)
    with running(worker):
        pid = tube.call("pid", timeout=PATIENCE)
        with pytest.raises(CallFailed, match=r"TimeoutError: the handler took longer than 0\.5 s"):
            tube.call(["sleep", 3600], timeout=PATIENCE)
        assert eventually(lambda: not is_alive(pid))
        assert tube.call("pid", timeout=PATIENCE) != pid


def test_processes_end_with_their_run(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker = Worker(queue, concurrency=2, grace=0.1)
    worker.on(tube, crunch, process=True)
    with running(worker) as run:
        pid = tube.call("pid", timeout=PATIENCE)
        tube.put(["sleep", 3600])
        assert eventually(lambda: tube.statistics().tasks["taken"] == 1)
        time.sleep(0.2)
        assert run.end(patience=PATIENCE) == Summary(acked=1, cut_off=1, exit_code=3)
    assert eventually(lambda: not is_alive(pid))
    assert tube.statistics().tasks["ready"] == 1  # The attempt, which was its only one, does not count.


def test_a_death_is_noticed_while_a_child_of_the_process_lives(queue: tubes.Queue, tube: tubes.Tube) -> None:
    worker = Worker(queue)
    worker.on(tube, crunch, process=True)
    with running(worker):
        tube.call("pid", timeout=PATIENCE)
        began = time.monotonic()
        with pytest.raises(CallFailed, match="ProcessDied: the process of the handler died: by SIGKILL"):
            tube.call("fork and die", timeout=PATIENCE)
        assert time.monotonic() - began < 30  # The child of the process lives for a minute.


# The data of the second fill the pipe to a process that does not read.
@pytest.mark.parametrize("size", [10, pytest.param(3_000_000, marks=pytest.mark.full)])
def test_a_process_that_died_while_it_was_idle_costs_no_attempt(
    queue: tubes.Queue, tube: tubes.Tube, size: int
) -> None:
    worker = Worker(queue)
    worker.on(tube, crunch, process=True)
    with running(worker):
        pid, child = tube.call(["fork"], timeout=PATIENCE)
        try:
            os.kill(pid, signal.SIGKILL)
            other, found = tube.call(["size", "x" * size], timeout=PATIENCE)
            assert (found, other != pid) == (size, True)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.full
@pytest.mark.parametrize("end", ["timeout", "kill"])
def test_a_process_that_does_not_read_its_work_is_killed(queue: tubes.Queue, tube: tubes.Tube, end: str) -> None:
    pool, worker = Processes(), Worker(queue)
    worker.on("frames", crunch, process=True, timeout=0.5 if end == "timeout" else None)
    target = worker._routes[0].targets[0]
    tube.put_many(["pid", ["size", "x" * 3_000_000]])
    first, task = tube.take_many(2)
    try:
        pid: Any = pool.call(target, first)
        os.kill(pid, signal.SIGSTOP)
        if end == "kill":
            threading.Timer(0.2, pool.kill, [take_of(task)]).start()
        with pytest.raises(TimeoutError if end == "timeout" else processes.ProcessDied):
            pool.call(target, task)
        assert (pool._idle, pool._all, is_alive(pid)) == ([], set(), False)
    finally:
        pool.close()


def test_messages_of_any_size_arrive_whole() -> None:
    pool = Processes()
    with tubes.connect() as queue:
        worker, tube = Worker(queue), queue.create_tube("frames")
        worker.on("frames", crunch, process=True)
        target = worker._routes[0].targets[0]
        try:
            for size in [*range(processes._PIECE - 500, processes._PIECE), 3_000_000]:
                tube.put(["echo", "x" * size])
                for task in tube.take_many(1):
                    assert pool.call(target, task) == ["x" * size]
                    task.ack()
        finally:
            pool.close()


# With "hang" the process is still importing the program and does not watch its parent yet: only the parent can kill it.
@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize(("end", "words"), [("kill", []), ("two signals", []), ("two signals", ["hang"])])
def test_no_process_outlives_its_worker(url: str, tmp_path: Path, end: str, words: list[str]) -> None:
    pids = tmp_path / "pids"
    program = Path(orphan_worker.__file__)
    worker = subprocess.Popen([sys.executable, str(program), url, str(pids), *words])
    try:
        assert eventually(lambda: pids.exists() and pids.read_text().endswith("\n"))
        if end == "kill":
            worker.kill()
        else:
            worker.terminate()
            worker.terminate()
        assert worker.wait(PATIENCE) in (-signal.SIGKILL, 0)
        assert eventually(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()))
    finally:
        worker.kill()
        worker.wait()


def test_a_process_that_does_not_start_fails_its_attempt(
    queue: tubes.Queue, tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_START_TIMEOUT", 0.001)
    worker = Worker(queue)
    worker.on(tube, crunch, process=True)
    tube.put("pid")
    assert worker.run(burst=True) == Summary(buried=1)
    assert (
        next(iter(tube.select("buried"))).reason == "TimeoutError: a process for the handler did not start in 0.001 s"
    )
    assert not [child for child in multiprocessing.active_children() if child.name == "tubes-handler"]


@pytest.mark.sample(1)
def test_task_functions_run_in_processes_too(queue: tubes.Queue) -> None:
    worker = Worker(queue)
    assert worker.task("act", process=True)(act) is act
    worker.every(1)(worker.task(process=True)(tick))
    tube = queue.create_tube(TASKS, "fifottl", max_attempts=1)
    with running(worker):
        assert tube.call(task_data(act, "echo", 1), timeout=PATIENCE) == [1]
        assert tube.call(task_data(tick), timeout=PATIENCE) not in (None, os.getpid())
        assert tube.call(task_data(act, "facts"), timeout=PATIENCE)[:1] == [TASKS]
        with pytest.raises(CallFailed, match="missing a required argument: 'what'"):
            tube.call({"task": "act"}, timeout=PATIENCE)


def test_data_that_cannot_be_pickled_fails_its_attempt() -> None:
    with tubes.connect() as queue:
        tube = queue.create_tube("frames", max_attempts=1)
        worker = Worker(queue)
        worker.on(tube, crunch, process=True)
        tube.put(lambda: None)
        assert worker.run(burst=True) == Summary(buried=1)
        assert "pickle" in (next(iter(tube.select("buried"))).reason or "")


def test_hooks_of_a_process_handler_run_in_the_worker(queue: tubes.Queue, tube: tubes.Tube) -> None:
    seen: list[Any] = []
    worker = Worker(queue)

    @worker.around
    def log(task: tubes.Task) -> Iterator[None]:
        seen.append(os.getpid())
        yield

    worker.on(tube, crunch, process=True)
    tube.put("pid")
    assert worker.run(burst=True) == Summary(acked=1)
    assert seen == [os.getpid()]


def test_closed_process_pool_refuses_calls(queue: tubes.Queue) -> None:
    processes = Processes()
    processes.close()
    target = Worker(queue)
    task = queue.create_tube("frames").put("pid")
    target.on("frames", crunch, process=True)
    (route,) = target._routes
    with pytest.raises(tubes.TubesError):
        processes.call(route.targets[0], task)


@pytest.mark.parametrize("moment", ["before it begins", "as its handler returns"])
def test_cancel_leaves_no_dying_process_to_other_tasks(
    queue: tubes.Queue, tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    pool, worker = Processes(), Worker(queue)
    worker.on("frames", crunch, process=True)
    target = worker._routes[0].targets[0]
    tube.put_many(["pid", "pid"])
    other, cancelled = tube.take_many(2)
    is_before = moment == "before it begins"
    owner, name = (pool, "_send_to_child") if is_before else (processes._Child, "receive")
    method = getattr(owner, name)

    def cancel(*args: Any) -> Any:
        reply = None if is_before else method(*args)
        pool.kill(take_of(cancelled))
        return method(*args) if is_before else reply

    try:
        idle = pool.call(target, other)
        with monkeypatch.context() as patch, suppress(tubes.TubesError):
            patch.setattr(owner, name, cancel)
            assert pool.call(target, cancelled) == idle
        assert [child.process.pid for child in pool._idle] == ([idle] if is_before else [])
        assert (pool.call(target, other) == idle) is is_before
    finally:
        pool.close()


BAD: list[Callable[[Worker], Any]] = [
    lambda worker: worker.on("frames", lambda task: None, process=True),
    lambda worker: worker.on("frames", awaited, process=True),
    lambda worker: worker.on("frames", functools.partial(lambda task: None), process=True),
    lambda worker: worker.on("frames", crunch, process=2),  # type: ignore[call-overload]
    lambda worker: worker.task("name", process=True)(lambda: None),
    lambda worker: worker.task(process=True)(awaited),
]


@pytest.mark.sample(7)
@pytest.mark.parametrize("bad", BAD)
def test_handler_that_cannot_run_in_a_process_is_refused(queue: tubes.Queue, bad: Any) -> None:
    worker = Worker(queue)
    with pytest.raises(InvalidOption):
        bad(worker)
    assert worker._routes == []
