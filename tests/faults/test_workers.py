"""Workers of `tubes.worker` that are killed or stopped by signals, or lose their server."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.lasting import OUTLIVES_KILLS
from tests.support.processes import python
from tubes.testing import LocalServer
from tubes.worker import Summary, Worker

PROGRAM = """
import multiprocessing, sys, time
import tubes
from tests.support.handlers import *
from tubes.worker import Worker

def sleep(runs):
    runs.set()
    time.sleep(60)

def forking(task):
    fork = multiprocessing.get_context("fork")
    runs = fork.Event()
    child = fork.Process(target=sleep, args=(runs,))
    child.start()
    runs.wait()  # Python forgets the signals that a fork gets before it runs.
    say("begun")
    child.terminate()
    child.join(30)
    say(child.exitcode)

class Saying(Worker):
    def stop(self, *, now=False):
        super().stop(now=now)
        say("stops")

url, handler, grace, session_ttl = sys.argv[1:]
with tubes.connect(url, session_ttl=float(session_ttl)) as queue:
    worker = Saying(queue, grace=float(grace))
    worker.on("jobs", globals()[handler])
    code = worker.run().exit_code
sys.exit(code)
"""


@contextmanager
def process(url: str, handler: str, grace: float = 60, session_ttl: float = 1) -> Generator[subprocess.Popen[str]]:
    worker = python("-c", PROGRAM, url, handler, grace, session_ttl, stdout=subprocess.PIPE, text=True)
    try:
        yield worker
    finally:
        worker.kill()
        worker.communicate()


def read_line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


@pytest.fixture
def jobs(url: str) -> Iterator[tubes.Tube]:
    with tubes.connect(url) as queue:
        yield queue.create_tube("jobs", "fifottl", ttr=600)


@pytest.mark.full
def test_the_task_of_a_killed_worker_goes_to_another(jobs: tubes.Tube, url: str) -> None:
    jobs.put(0.5)
    with process(url, "thread") as first:
        assert read_line(first) == "begun"
        first.kill()
    with process(url, "loop") as second:
        assert read_line(second) == "begun"
        assert eventually(lambda: jobs.statistics().tasks["total"] == 0)
    calls = jobs.statistics().calls
    assert (calls["take"], calls["ack"]) == (2, 1)


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("handler", ["thread", "loop", "blocking"])
def test_signal_lets_a_worker_finish_its_current_task(
    jobs: tubes.Tube, url: str, handler: str, number: signal.Signals
) -> None:
    jobs.put_many([1, 1])
    with process(url, handler, session_ttl=30) as worker:  # A blocked event loop renews nothing.
        assert read_line(worker) == "begun"
        worker.send_signal(number)
        assert worker.wait(20) == 0
    statistics = jobs.statistics()
    assert (statistics.calls["ack"], statistics.tasks["ready"]) == (1, 1)


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("handler", ["thread", "loop"])
def test_worker_releases_its_tasks_and_exits_nonzero_after_the_grace(jobs: tubes.Tube, url: str, handler: str) -> None:
    jobs.put(60)
    with process(url, handler, grace=0.2) as worker:
        assert read_line(worker) == "begun"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 3
    assert jobs.statistics().tasks["ready"] == 1


@contextmanager
def long_job(jobs: tubes.Tube, url: str, handler: str) -> Generator[subprocess.Popen[str]]:
    """Start a worker with a task that takes a minute; when the worker has ended, the task can be taken again."""
    jobs.put(60)
    with process(url, handler) as worker:
        assert read_line(worker) == "begun"
        yield worker
    assert jobs.take(timeout=20) is not None


@pytest.mark.full
@pytest.mark.parametrize("handler", ["thread", "loop", "blocking"])
def test_a_second_signal_ends_a_worker_at_once(jobs: tubes.Tube, url: str, handler: str) -> None:
    with long_job(jobs, url, handler) as worker:
        worker.send_signal(signal.SIGTERM)
        # Two equal signals count as one for a process that has not handled the first.
        assert read_line(worker) == "stops"
        worker.send_signal(signal.SIGTERM)
        # A worker that blocked its event loop could not release the task, but its lease ends soon.
        assert worker.wait(20) == 4


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("handler", ["thread", "loop"])
def test_sigterm_and_sigint_together_count_as_two_signals(jobs: tubes.Tube, url: str, handler: str) -> None:
    with long_job(jobs, url, handler) as worker:
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGINT)
        assert worker.wait(20) == 4


@pytest.mark.full
def test_a_storm_of_signals_ends_a_worker_once(jobs: tubes.Tube, url: str) -> None:
    with long_job(jobs, url, "thread") as worker:
        for _ in range(20):
            worker.send_signal(signal.SIGTERM)
            worker.send_signal(signal.SIGINT)
            time.sleep(0.001)
        # The last signals may arrive while Python shuts down.
        assert worker.wait(20) in (4, -signal.SIGTERM, -signal.SIGINT)


@pytest.mark.full
def test_process_forked_by_a_handler_ends_on_a_signal(jobs: tubes.Tube, url: str) -> None:
    """The child does not inherit the worker's handling of signals."""
    jobs.put(0)
    with process(url, "forking") as worker:
        assert [read_line(worker), read_line(worker)] == ["begun", str(-signal.SIGTERM)]
        assert eventually(lambda: jobs.statistics().tasks["total"] == 0)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("gives_up", [False, True])
@pytest.mark.parametrize("handler", ["thread", "loop"])
def test_worker_survives_a_server_outage(
    handler: str, gives_up: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server fails while the worker waits, and again while a handler works; if `gives_up`, calls fail."""
    if gives_up:
        monkeypatch.setattr("tubes.redis.transport.attempt.PATIENCE", 0.1)
    server = LocalServer(**OUTLIVES_KILLS)
    queue = tubes.connect(server.url, session_ttl=20)
    tube = queue.create_tube("jobs", "fifottl", ttr=60)
    begun, go = threading.Event(), threading.Event()
    seen: list[int] = []

    def handle(task: Any) -> None:
        seen.append(task.data)
        begun.set()
        assert go.wait(60)

    async def handle_async(task: Any) -> None:
        await asyncio.to_thread(handle, task)

    worker = Worker(queue)
    worker.on(tube, handle if handler == "thread" else handle_async)
    summaries: list[Summary] = []
    thread = threading.Thread(target=lambda: summaries.append(worker.run()))
    thread.start()
    try:
        assert eventually(lambda: tube.statistics().waiting == 1)
        server.kill()
        time.sleep(1)
        server.start()
        tube.put(1)
        assert begun.wait(60)
        server.kill()
        go.set()
        time.sleep(1)
        server.start()
        tube.put(2)
        assert eventually(lambda: tube.statistics().tasks["total"] == 0)
        worker.stop()
        thread.join(60)
        assert seen == [1, 2]
        assert summaries == [Summary(acked=2)]
        assert ("retrying in" in caplog.text) == gives_up
    finally:
        go.set()
        worker.stop(now=True)
        thread.join(60)
        queue.close()
        server.close()


def test_a_worker_may_be_started_before_its_server(caplog: pytest.LogCaptureFixture) -> None:
    with LocalServer(**OUTLIVES_KILLS) as server, tubes.connect(server.url) as queue:
        queue.create_tube("jobs").put(1)
        worker = Worker(queue)
        worker.on("jobs", lambda task: None)
        server.kill()
        timer = threading.Timer(1, server.start)
        timer.start()
        assert worker.run(burst=True) == Summary(acked=1)
        timer.join()
