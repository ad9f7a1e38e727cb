"""Workers as the first process of a container, which gets only signals that it handles."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.processes import python
from tubes.cli.exits import Exit

pytestmark = pytest.mark.full

#: A command that runs a process in a new process namespace and kills it with its parent.
_UNSHARE: Final = ("unshare", "--pid", "--fork", "--kill-child")
PROGRAM = """
import os, time
from tests.support.handlers import *
from tubes.worker import Worker

assert os.getpid() == 1

def make(queue):
    worker = Worker(queue, grace=float(os.environ["GRACE"]))
    worker.on("jobs", globals()[os.environ["HANDLER"]])
    return worker

if os.environ["HANDLER"] == "imports":
    say("begun")
    time.sleep(60)
"""


@pytest.fixture(autouse=True, scope="module")
def _may_unshare() -> None:
    command = [*_UNSHARE, "true"]
    if shutil.which("unshare") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("new process namespaces are not permitted here")


@pytest.fixture
def jobs(url: str) -> Iterator[tubes.Tube]:
    with tubes.connect(url) as queue:
        yield queue.create_tube("jobs", "fifottl", ttr=600)


class First:
    """`tubes worker` as the first process of its namespace."""

    def __init__(self, outer: subprocess.Popen[str]) -> None:
        self.outer = outer
        assert outer.stdout is not None
        self._stdout = outer.stdout
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        assert eventually(lambda: children.read_text().strip() != "")
        self._pid = int(children.read_text())

    def read_line(self) -> str:
        return self._stdout.readline().strip()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def end(self) -> int:
        return self.outer.wait(30)


@contextmanager
def first(url: str, folder: Path, handler: str, grace: float = 60) -> Generator[First]:
    (folder / "jobs.py").write_text(PROGRAM)
    environment = {"TUBES_URL": url, "HANDLER": handler, "GRACE": str(grace)}
    command = ("-m", "tubes", "worker", "jobs:make")
    outer = python(*command, prefix=_UNSHARE, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        yield First(outer)
    finally:
        outer.kill()
        outer.communicate()


@pytest.mark.parametrize("handler", ["thread", "loop", "blocking"])
def test_first_process_stops_on_sigterm(jobs: tubes.Tube, url: str, tmp_path: Path, handler: str) -> None:
    jobs.put_many([3, 1])
    with first(url, tmp_path, handler) as worker:
        assert worker.read_line() == "begun"
        worker.signal(signal.SIGTERM)
        assert worker.end() == Exit.DONE
    statistics = jobs.statistics()
    assert (statistics.calls["ack"], statistics.tasks["ready"]) == (1, 1)


@pytest.mark.parametrize("handler", ["thread", "loop", "blocking"])
def test_first_process_ends_at_once_on_a_second_signal(
    jobs: tubes.Tube, url: str, tmp_path: Path, handler: str
) -> None:
    jobs.put(60)
    with first(url, tmp_path, handler) as worker:
        assert worker.read_line() == "begun"
        worker.signal(signal.SIGTERM)
        time.sleep(0.2)
        assert worker.outer.poll() is None
        # Two signals before the process handles the first count as one: on a busy machine send another.
        for _ in range(3):
            if worker.outer.poll() is None:
                worker.signal(signal.SIGTERM)
                time.sleep(2.5)
        assert worker.end() == Exit.AT_ONCE
    assert jobs.statistics().tasks["total"] == 1


def test_first_process_does_not_wait_for_threads_after_its_grace(jobs: tubes.Tube, url: str, tmp_path: Path) -> None:
    jobs.put(60)
    with first(url, tmp_path, "executing", grace=0.2) as worker:
        assert worker.read_line() == "begun"
        worker.signal(signal.SIGTERM)
        assert worker.end() == Exit.CUT_OFF
    assert jobs.statistics().tasks["ready"] == 1


def test_first_process_stops_on_sigterm_before_its_worker_exists(jobs: tubes.Tube, url: str, tmp_path: Path) -> None:
    with first(url, tmp_path, "imports") as worker:
        assert worker.read_line() == "begun"
        worker.signal(signal.SIGTERM)
        assert worker.end() == Exit.DONE


def test_first_process_stops_on_sigterm_while_no_server_responds(tmp_path: Path) -> None:
    # This address never responds.
    with first("redis://192.0.2.1:6379", tmp_path, "connects") as worker:

        def has_ended() -> bool:
            # Signals are ignored until Python has started.
            worker.signal(signal.SIGTERM)
            time.sleep(0.1)
            return worker.outer.poll() is not None

        assert eventually(has_ended)
        assert worker.end() == Exit.DONE
