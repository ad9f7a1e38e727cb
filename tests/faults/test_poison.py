"""Tasks that kill the process of their handler: they are buried, and other tasks are done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tubes
from tests.support.poison import DEADLY, run_supervised, started_attempts

pytestmark = pytest.mark.full

#: The maximum number of attempts of a task.
ATTEMPTS = 2
#: Seconds until all tasks are finished, even on a slow machine.
_PATIENCE = 90.0


@pytest.fixture
def jobs(url: str) -> Iterator[tubes.Tube]:
    with tubes.connect(url) as queue:
        yield queue.create_tube("jobs", "fifottl", ttr=600, max_attempts=ATTEMPTS)


def run_until_finished(jobs: tubes.Tube, url: str, mode: str, journal: Path) -> None:
    """Run workers until every task is done or buried."""
    deadline = time.monotonic() + _PATIENCE
    with run_supervised(url, mode, journal):
        while (tasks := jobs.statistics().tasks)["total"] != tasks["buried"]:
            assert time.monotonic() < deadline, tasks
            time.sleep(0.05)


@pytest.mark.parametrize("mode", ["threads 1", "loop 1", "for", "async for", "take"])
def test_a_task_that_kills_its_process_is_buried_after_its_last_attempt(
    jobs: tubes.Tube, url: str, tmp_path: Path, mode: str
) -> None:
    """A worker with one task at a time harms no other task."""
    journal = tmp_path / "journal"
    poison = DEADLY if mode == "threads 1" else DEADLY[:2]
    ids = {jobs.put(data).id for number, data in enumerate(poison) if jobs.put_many([number] * 3)}
    innocent = {task.id for task in jobs.put_many(range(5))} | {id for id in range(max(ids)) if id not in ids}
    run_until_finished(jobs, url, mode, journal)
    assert {task.id: (task.attempts, task.reason) for task in jobs.select("buried")} == dict.fromkeys(
        ids, (ATTEMPTS, "max_attempts: session")
    )
    attempts = started_attempts(journal)
    assert {id: attempts[id] for id in ids} == {id: list(range(1, ATTEMPTS + 1)) for id in ids}
    # An ack may be sent with the next take: a process killed by that task has then not acked.
    assert {id: attempts[id][0] for id in innocent} == dict.fromkeys(innocent, 1)
    assert all(len(attempts[id]) <= ATTEMPTS for id in innocent)


def test_task_that_runs_out_of_memory_fails_without_killing_its_process(
    jobs: tubes.Tube, url: str, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    jobs.put_many(["memory", 1, 2])
    run_until_finished(jobs, url, "threads 1", journal)
    assert [(task.id, task.reason) for task in jobs.select("buried")] == [(0, "MemoryError")]
    assert {id: len(attempts) for id, attempts in started_attempts(journal).items()} == {0: ATTEMPTS, 1: 1, 2: 1}


@pytest.mark.parametrize("mode", ["threads 4", "loop 4", "take_many"])
def test_deadly_task_costs_the_other_tasks_of_its_process_only_attempts(
    jobs: tubes.Tube, url: str, tmp_path: Path, mode: str
) -> None:
    """Innocent tasks may be buried with the deadly one. After a kick, a worker with one task at a time does them."""
    journal = tmp_path / "journal"
    poison, *innocent = (task.id for task in jobs.put_many(["kill", *range(9)]))
    run_until_finished(jobs, url, mode, journal)
    buried = {task.id: task.reason for task in jobs.select("buried")}
    assert poison in buried
    assert set(buried.values()) == {"max_attempts: session"}
    assert started_attempts(journal)[poison] == list(range(1, ATTEMPTS + 1))
    assert jobs.select("buried", limit=100).kick() == len(buried)
    run_until_finished(jobs, url, "for", journal)
    assert [task.id for task in jobs.select("buried")] == [poison]
    assert started_attempts(journal)[poison] == list(range(1, ATTEMPTS + 2))
    calls = jobs.statistics().calls
    assert (calls["ack"], jobs.statistics().tasks["total"]) == (len(innocent), 1)
