"""`tubes worker --processes` and `--reload`, with real processes that are killed, stopped and restarted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.processes import python
from tubes.cli import supervisor as supervising
from tubes.cli.exits import Exit
from tubes.drivers.backoff import Backoff

pytestmark = pytest.mark.full

PROGRAM = """
import os
import sys
import time
from pathlib import Path

import tubes
from tubes.worker import Worker

LARGE = []


def make(queue):
    worker = Worker(queue, grace=60)

    @worker.on("jobs")
    def work(task):
        kind, value = task.data
        queue.tube("done").put(os.getpid())
        if kind == "sleep":
            time.sleep(value)
        if kind == "die":
            os.kill(os.getpid(), 9)
        if kind == "grow":
            LARGE.append(b"x" * value)
        if kind == "await":
            while not Path(value).exists():
                time.sleep(0.02)

    return worker


def empty(queue):
    return Worker(queue)


def in_memory(queue):
    queue = tubes.connect("memory://")
    worker = Worker(queue)
    worker.on(queue.create_tube("jobs"), print)
    return worker
"""

#: A module that kills its process on import, the first DEATHS times.
DYING = """
import os
from pathlib import Path
from jobs import make

starts = Path("starts")
starts.write_text(starts.read_text() + "." if starts.exists() else ".")
if len(starts.read_text()) <= int(os.environ["DEATHS"]):
    os._exit(99)
"""


@pytest.fixture
def queue(url: str) -> Iterator[tubes.Queue]:
    with tubes.connect(url, session_ttl=2) as queue:
        yield queue


@pytest.fixture
def jobs(queue: tubes.Queue) -> tubes.Tube:
    queue.create_tube("done")
    return queue.create_tube("jobs", "fifottl", max_attempts=3, ttr=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(PROGRAM)
    (tmp_path / "dying.py").write_text(DYING)
    (tmp_path / "broken.py").write_text("def make(:")
    return tmp_path


@contextmanager
def supervisor(url: str, folder: Path, *words: str, **variables: str) -> Generator[subprocess.Popen[str]]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with python("-m", "tubes", "worker", *words, cwd=folder, env={"TUBES_URL": url, **variables}, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_end(process: subprocess.Popen[str]) -> tuple[int, str]:
    message = process.communicate(timeout=60)[1]
    return process.returncode, message


def child_pids(process: subprocess.Popen[str]) -> list[int]:
    return list(map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()))


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def started_pids(queue: tubes.Queue, count: int) -> list[int]:
    """Wait until `count` tasks have started, and return the ids of their processes."""
    found: list[int] = []
    while len(found) < count:
        task = queue.tube("done").take(timeout=60)
        assert task is not None
        found.append(task.data)
        task.ack()
    return found


def test_processes_share_work_and_end_on_sigterm(url: str, folder: Path, queue: tubes.Queue, jobs: tubes.Tube) -> None:
    jobs.put_many([("await", str(folder / "go"))] * 2)
    with supervisor(url, folder, "jobs:make", "--processes", "2") as process:
        assert set(started_pids(queue, 2)) == set(child_pids(process))
        (folder / "go").touch()
        process.terminate()
        code, message = wait_for_end(process)
    assert (code, jobs.statistics().calls["ack"]) == (Exit.DONE, 2)
    assert "INFO the supervisor starts 2 processes of jobs:make; Ctrl-C stops them" in message


def test_stopping_processes_finish_their_tasks(url: str, folder: Path, queue: tubes.Queue, jobs: tubes.Tube) -> None:
    jobs.put_many([("await", str(folder / "go"))] * 3)
    with supervisor(url, folder, "jobs:make", "--processes", "2") as process:
        workers = started_pids(queue, 2)
        process.send_signal(signal.SIGINT)
        for worker in workers:  # systemd also signals all processes of a service. Children ignore this signal.
            os.kill(worker, signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        (folder / "go").touch()
        assert wait_for_end(process)[0] == Exit.DONE
    assert (jobs.statistics().calls["ack"], jobs.statistics().tasks["ready"]) == (2, 1)


@pytest.mark.parametrize(("grace", "signals", "code"), [("0", 1, Exit.CUT_OFF), ("60", 2, Exit.AT_ONCE)])
def test_exit_code_reports_processes_that_were_cut_off(
    url: str, folder: Path, queue: tubes.Queue, jobs: tubes.Tube, grace: str, signals: int, code: Exit
) -> None:
    jobs.put_many([("sleep", 600)] * 2)
    with supervisor(url, folder, "jobs:make", "--processes", "2", "--grace", grace) as process:
        workers = started_pids(queue, 2)
        for _ in range(signals):
            process.terminate()
            time.sleep(0.5)  # Two signals in quick succession count as one.
        assert wait_for_end(process)[0] == code
    assert not any(map(is_alive, workers))
    assert eventually(lambda: jobs.statistics().tasks["ready"] == 2)


def test_killed_process_is_replaced(url: str, folder: Path, queue: tubes.Queue, jobs: tubes.Tube) -> None:
    jobs.put(("die", 0))
    with supervisor(url, folder, "jobs:make", "--processes", "2") as process:
        killed, *others = started_pids(queue, 3)  # The task is taken again when its ttr ends.
        assert killed not in others
        jobs.put_many([("await", str(folder / "go"))] * 2)
        assert len(set(started_pids(queue, 2))) == 2
        (folder / "go").touch()
        process.terminate()
        code, message = wait_for_end(process)
    assert code == Exit.DONE
    assert f"process {killed} was killed by SIGKILL; another one starts in 0.5 s" in message
    assert eventually(lambda: jobs.statistics().tasks["buried"] == 1)


def test_processes_end_when_supervisor_dies(url: str, folder: Path, queue: tubes.Queue, jobs: tubes.Tube) -> None:
    jobs.put_many([("await", str(folder / "go"))] * 2)
    with supervisor(url, folder, "jobs:make", "--processes", "2") as process:
        workers = started_pids(queue, 2)
        process.kill()
        time.sleep(0.3)
        assert all(map(is_alive, workers))  # Children finish their tasks in hand.
        (folder / "go").touch()
        assert eventually(lambda: not any(map(is_alive, workers)))
    assert jobs.statistics().calls["ack"] == 2


def test_supervisor_gives_up_after_repeated_failed_starts(url: str, folder: Path, jobs: tubes.Tube) -> None:
    with supervisor(url, folder, "dying:make", "--processes", "2", DEATHS="1000") as process:
        code, message = wait_for_end(process)
    assert code == Exit.CRASHED
    assert "has ended with exit code 99; another one starts in 0.5 s" in message
    assert message.splitlines()[-1].endswith(
        "ERROR the processes do not start: 5 in a row have died, the last one has ended with exit code 99"
    )
    assert len((folder / "starts").read_text()) == 5


@pytest.mark.parametrize(("burst", "code"), [(False, Exit.DONE), (True, Exit.UNREACHABLE)])
def test_unreachable_server_restarts_processes_but_ends_burst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, burst: bool, code: Exit
) -> None:
    monkeypatch.setattr(supervising, "_BACKOFF", Backoff(0.01))
    starts = tmp_path / "starts"
    starts.touch()

    async def main() -> Exit:
        instance = supervising.Supervisor(
            ["sh", "-c", f"echo >> {starts}; exit {int(Exit.UNREACHABLE)}"], 2, burst=burst
        )
        running = asyncio.create_task(instance.run())
        while not running.done() and starts.stat().st_size <= 6:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        instance._stop()
        return await running

    assert asyncio.run(main()) == code
    assert (starts.stat().st_size > 6) is not burst


def test_failed_start_is_retried(url: str, folder: Path, queue: tubes.Queue, jobs: tubes.Tube) -> None:
    jobs.put_many([("await", str(folder / "go"))] * 2)
    with supervisor(url, folder, "dying:make", "--processes", "2", DEATHS="2") as process:
        assert len(set(started_pids(queue, 2))) == 2
        (folder / "go").touch()
        process.terminate()
        assert wait_for_end(process)[0] == Exit.DONE


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("broken:make", "module 'broken' cannot be imported: SyntaxError"),
        ("nosuch:make", "no module 'nosuch'"),
        ("jobs:nosuch", "has no 'nosuch'"),
        ("jobs:empty", "it has no handlers"),
        ("jobs:in_memory", "--processes starts several: give the URL of a server"),
    ],
)
def test_unusable_target_is_reported_once(url: str, folder: Path, jobs: tubes.Tube, target: str, message: str) -> None:
    with supervisor(url, folder, target, "--processes", "3") as process:
        code, error = wait_for_end(process)
    assert (code, error.count(message), len(error.splitlines())) == (Exit.USAGE, 1, 2)


@pytest.mark.parametrize("words", [["--url", "memory://mine"], []])
def test_memory_url_is_refused_for_several_processes(folder: Path, words: list[str]) -> None:
    with supervisor("memory://", folder, "jobs:make", "--processes", "2", *words) as process:
        code, error = wait_for_end(process)
    assert (code, len(error.splitlines())) == (Exit.USAGE, 1)
    assert "memory:// and file: work in one process only" in error


def test_process_is_replaced_after_max_tasks(url: str, folder: Path, queue: tubes.Queue, jobs: tubes.Tube) -> None:
    jobs.put_many([("sleep", 0)] * 6)
    with supervisor(url, folder, "jobs:make", "--processes", "1", "--max-tasks", "2") as process:
        one, two, three, four, five, six = started_pids(queue, 6)
        process.terminate()
        code, message = wait_for_end(process)
    assert (one, three, five) == (two, four, six)
    assert len({one, three, five}) == 3
    assert (code, f"process {one} stops after 2 tasks" in message) == (Exit.DONE, True)
    assert f"process {one} has ended; another one takes its place" in message
    assert jobs.statistics().calls["ack"] == 6


def test_process_is_replaced_above_max_memory(url: str, folder: Path, queue: tubes.Queue, jobs: tubes.Tube) -> None:
    jobs.put_many([("sleep", 0), ("grow", 500 * 2**20), ("sleep", 0)])
    with supervisor(url, folder, "jobs:make", "--processes", "1", "--max-memory", "400") as process:
        one, two, three = started_pids(queue, 3)
        process.terminate()
        code, message = wait_for_end(process)
    assert one == two != three
    assert (code, f"process {one} stops: it uses " in message) == (Exit.DONE, True)


def test_worker_without_supervisor_obeys_limits(url: str, folder: Path, queue: tubes.Queue, jobs: tubes.Tube) -> None:
    jobs.put_many([("sleep", 0)] * 3)
    with supervisor(url, folder, "jobs:make", "--max-tasks", "2") as process:
        assert wait_for_end(process)[0] == Exit.DONE
    assert jobs.statistics().calls["ack"] == 2


def test_processes_end_after_burst(url: str, folder: Path, jobs: tubes.Tube) -> None:
    jobs.put_many([("sleep", 0)] * 10)
    with supervisor(url, folder, "jobs:make", "--processes", "2", "--burst", "--json") as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == Exit.DONE
    assert sum(json.loads(line)["acked"] for line in out.splitlines()) == 10


def test_changed_file_restarts_worker(url: str, folder: Path, queue: tubes.Queue, jobs: tubes.Tube) -> None:
    pytest.importorskip("watchfiles")
    jobs.put(("sleep", 0))
    with supervisor(url, folder, "jobs:make", "--reload") as process:
        (one,) = started_pids(queue, 1)
        assert process.stderr is not None
        (folder / "jobs.py").write_text("def make(:")
        assert any("jobs.py changed: the processes are restarted" in line for line in process.stderr)
        assert any("the next change of a file starts another one" in line for line in process.stderr)
        (folder / "jobs.py").write_text(PROGRAM.replace("os.getpid()", "-os.getpid()", 1))
        jobs.put(("sleep", 0))
        (two,) = started_pids(queue, 1)
        assert two < 0 < one
        process.terminate()
        assert wait_for_end(process)[0] == Exit.DONE


def test_reload_leaves_running_tasks_their_grace(url: str, folder: Path, queue: tubes.Queue, jobs: tubes.Tube) -> None:
    pytest.importorskip("watchfiles")
    jobs.put(("await", str(folder / "go")))
    with supervisor(url, folder, "jobs:make", "--reload") as process:
        (worker,) = started_pids(queue, 1)
        assert process.stderr is not None
        for change in ("# one", "# two"):
            (folder / "jobs.py").write_text(PROGRAM + change)
            assert any("jobs.py changed: the processes are restarted" in line for line in process.stderr)
        process.terminate()
        time.sleep(0.5)
        assert is_alive(worker)
        (folder / "go").touch()
        assert wait_for_end(process)[0] == Exit.DONE
    assert (jobs.statistics().calls["ack"], jobs.statistics().calls["release"]) == (1, 0)


def test_change_during_a_failing_start_starts_the_program_again(
    url: str, folder: Path, queue: tubes.Queue, jobs: tubes.Tube
) -> None:
    pytest.importorskip("watchfiles")
    jobs.put(("sleep", 0))
    slow = "import os, pathlib, time\npathlib.Path('begun').touch()\ntry: time.sleep(60)\nfinally: os._exit(2)"
    (folder / "jobs.py").write_text(slow)
    with supervisor(url, folder, "jobs:make", "--reload") as process:
        assert any(eventually((folder / "begun").exists) for _ in range(10))
        (folder / "jobs.py").write_text(PROGRAM)
        assert started_pids(queue, 1)
        process.terminate()
        assert wait_for_end(process)[0] == Exit.DONE


def test_missing_reload_extra_names_package_to_install(url: str, folder: Path) -> None:
    (folder / "watchfiles.py").write_text("raise ModuleNotFoundError('no watchfiles', name='watchfiles')")
    with supervisor(url, folder, "jobs:make", "--reload") as process:
        code, message = wait_for_end(process)
    assert (code, message) == (Exit.USAGE, "tubes: --reload needs watchfiles: pip install 'tubes-queue[reload]'\n")


def test_burst_of_processes_reports_missing_tube(url: str, folder: Path) -> None:
    with supervisor(url, folder, "jobs:make", "--processes", "2", "--burst") as process:
        assert wait_for_end(process)[0] == Exit.NOT_FOUND
