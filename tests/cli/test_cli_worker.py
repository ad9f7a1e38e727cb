"""`tubes worker`: it runs a worker of a program, and reports the result."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tubes.cli.exits import Exit

PROGRAM = """
import os
import threading
import time

import tubes
from tubes.worker import Worker


def make(queue):
    worker = Worker(queue, grace=60)

    @worker.on("jobs")
    def work(task):
        if task.data == "bad":
            raise ValueError("bad")
        if task.data == "slow":
            print("begun", flush=True)
            time.sleep(60)
        print(task.data, worker.concurrency, worker.total, flush=True)

    return worker


def nothing(queue):
    return None


def picky(queue, name):
    return make(queue)


def failing(queue):
    raise KeyError("SECRET")


def empty(queue):
    return Worker(queue)


def unlucky(queue):
    worker = make(queue)

    @worker.lifespan
    def open():
        raise OSError("no database")
        yield

    return worker


own = make(tubes.connect(os.environ["TUBES_URL"]))
number = 5
"""


@pytest.fixture
def queue(url: str) -> Iterator[tubes.Queue]:
    with tubes.connect(url) as queue:
        yield queue


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name")
    (tmp_path / "raising.py").write_text("raise RuntimeError('no settings')")
    (tmp_path / "misspelt.py").write_text("def worker(:")
    return tmp_path


def start_worker(url: str, folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tubes", "worker", *words]
    environment = os.environ | {"TUBES_URL": url, "PYTHONPATH": f"{Path(tubes.__file__).parent.parent}"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, message = process.communicate(timeout=60)
    return process.returncode, out, message


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("target", ["jobs:make", "jobs:own"])
def test_burst_ends_when_no_task_is_left(url: str, queue: tubes.Queue, folder: Path, target: str) -> None:
    jobs = queue.create_tube("jobs", max_attempts=1)
    jobs.put_many(["one", "bad"])
    code, out, message = wait_for_end(
        start_worker(url, folder, target, "--burst", "--concurrency", "3", "--total", "5")
    )
    assert (code, out) == (Exit.DONE, "one 3 5\n")
    assert " INFO the worker has ended: 1 acked, 0 released, 1 buried" in message
    assert jobs.statistics().tasks["buried"] == 1


@pytest.mark.full
def test_json_output_summarizes_worker_run(url: str, queue: tubes.Queue, folder: Path) -> None:
    queue.create_tube("jobs")
    _, out, _ = wait_for_end(start_worker(url, folder, "jobs:make", "--burst", "--json"))
    found: Any = json.loads(out)
    assert found == {"acked": 0, "released": 0, "buried": 0, "lost": 0, "cut_off": 0}


@pytest.mark.full
def test_worker_ends_on_sigterm(url: str, queue: tubes.Queue, folder: Path) -> None:
    jobs = queue.create_tube("jobs")
    process = start_worker(url, folder, "jobs:make")
    jobs.put("one")
    assert eventually(lambda: jobs.statistics().calls["ack"] == 1)
    process.send_signal(signal.SIGTERM)
    assert wait_for_end(process)[0] == Exit.DONE


@pytest.mark.full
def test_exit_code_reports_tasks_cut_off_after_grace(url: str, queue: tubes.Queue, folder: Path) -> None:
    jobs = queue.create_tube("jobs")
    jobs.put("slow")
    process = start_worker(url, folder, "jobs:make", "--grace", "0")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"  # Only tasks with a running handler count as cut off.
    process.send_signal(signal.SIGINT)
    code, _, message = wait_for_end(process)
    assert (code, "Traceback" in message) == (Exit.CUT_OFF, False)
    assert jobs.statistics().tasks["ready"] == 1


@pytest.mark.full
def test_burst_reports_missing_tube_by_exit_code(url: str, queue: tubes.Queue, folder: Path) -> None:
    code, _, message = wait_for_end(start_worker(url, folder, "jobs:make", "--burst"))
    assert code == Exit.NOT_FOUND
    assert "there is no tube 'jobs'" in message.splitlines()[-1]


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("target", "code", "message"),
    [
        ("jobs", Exit.USAGE, "must be module:worker"),
        ("nosuch:worker", Exit.USAGE, "no module 'nosuch'"),
        ("jobs:nosuch", Exit.USAGE, "has no 'nosuch'"),
        ("jobs:number", Exit.USAGE, "must be a Worker or a function, not int"),
        ("jobs:nothing", Exit.USAGE, "must return a Worker, not NoneType"),
        ("jobs:picky", Exit.USAGE, "jobs:picky must be a function of one argument, the queue: missing"),
        ("jobs:failing", Exit.USAGE, "jobs:failing failed: KeyError: 'SECRET'"),
        ("jobs:empty", Exit.USAGE, "it has no handlers"),
        ("jobs:unlucky", Exit.INTERNAL, "jobs:unlucky failed: OSError: no database (TUBES_DEBUG=1 shows where)"),
        ("broken:worker", Exit.USAGE, "module 'broken' cannot be imported: ModuleNotFoundError: No module named"),
        ("raising:worker", Exit.USAGE, "module 'raising' cannot be imported: RuntimeError: no settings"),
        ("misspelt:worker", Exit.USAGE, "module 'misspelt' cannot be imported: SyntaxError: invalid syntax (misspe"),
    ],
)
def test_invalid_worker_target_is_reported_in_one_line(
    url: str, queue: tubes.Queue, folder: Path, target: str, code: int, message: str
) -> None:
    queue.create_tube("jobs")
    found, out, error = wait_for_end(start_worker(url, folder, target, "--burst"))
    assert (found, out, len(error.splitlines())) == (code, "", 1)
    assert message in error


LOGGING = """
import logging
import sys

from jobs import make

logging.getLogger({logger!r}).addHandler(logging.StreamHandler(sys.stdout))
"""


TRACED = """
import tubes
from tubes.worker import Worker

queue = tubes.connect("memory://")
mail = queue.create_tube("mail", max_attempts=2)
mail.put(1)
worker = Worker(queue)


@worker.on(mail)
def send(task):
    queue.tube("nosuch")
"""


def test_worker_logs_time_level_and_traceback_of_the_program(folder: Path) -> None:
    (folder / "traced.py").write_text(TRACED)
    _, _, message = wait_for_end(start_worker("memory://", folder, "traced:worker", "--burst"))
    lines = message.splitlines()
    assert [re.sub(r"^[\d-]{10} [\d:,]{12} ", "", line) for line in lines] == [
        "INFO the worker takes tasks from tube 'mail': send, 1 at a time, on memory://",
        "WARNING task 0 of tube 'mail' failed, attempt 1 of 2, retries at once: TubeNotFound: there is no tube "
        "'nosuch': create it with create_tube, or see whether it was dropped",
        "ERROR task 0 of tube 'mail' failed, attempt 2 of 2, is buried: TubeNotFound: there is no tube "
        "'nosuch': create it with create_tube, or see whether it was dropped",
        "Traceback (most recent call last):",
        f'  File "{folder}/traced.py", line 13, in send',
        '    queue.tube("nosuch")',
        "tubes.errors.TubeNotFound: there is no tube 'nosuch': create it with create_tube, or see whether it was "
        "dropped",
        "INFO the worker has ended: 0 acked, 1 released, 1 buried, 0 lost, 0 cancelled, 0 cut off",
    ]


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("logger", ["", "tubes", "tubes.worker"])
def test_worker_log_records_are_printed_once(url: str, queue: tubes.Queue, folder: Path, logger: str) -> None:
    queue.create_tube("jobs", max_attempts=1).put("bad")
    _, _, message = wait_for_end(start_worker(url, folder, "jobs:make", "--burst"))
    assert message.count("Traceback") == 1
    (folder / "logging_jobs.py").write_text(LOGGING.format(logger=logger))
    queue.tube("jobs").put("bad")
    _, out, message = wait_for_end(start_worker(url, folder, "logging_jobs:make", "--burst"))
    assert (out.count("Traceback"), message.count("Traceback")) == (1, 0)


LOG_LEVELS = """
import logging
from tubes.worker import Worker


def make(queue):
    worker = Worker(queue)

    @worker.on("jobs")
    def log(task):
        for level in ("warning", "info", "debug"):
            getattr(logging.getLogger("tubes.worker"), level)("logged at %s", level)

    return worker
"""


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("words", "levels"),
    [([], ["warning", "info"]), (["--quiet"], ["warning"]), (["--verbose"], ["warning", "info", "debug"])],
)
def test_quiet_and_verbose_set_worker_log_level(
    url: str, queue: tubes.Queue, folder: Path, words: list[str], levels: list[str]
) -> None:
    queue.create_tube("jobs").put(1)
    (folder / "log_levels.py").write_text(LOG_LEVELS)
    _, _, message = wait_for_end(start_worker(url, folder, "log_levels:make", "--burst", *words))
    assert [line.split()[-1] for line in message.splitlines() if " logged at " in line] == levels
