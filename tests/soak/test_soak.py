"""A soak of seconds succeeds, and broken rules are detected."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.soak import in_memory
from tests.soak import on_a_server as on_server
from tests.soak.actors import PATIENCE, Actor, Job
from tests.soak.listener import Listener
from tests.soak.long_ledger import LongLedger
from tests.soak.report import Part
from tests.soak.samples import SHORTEST, Sample, growths
from tests.support.processes import python

pytestmark = pytest.mark.full


def test_a_short_soak_on_a_server_keeps_the_rules() -> None:
    part = on_server.soak(2.0, seed=1, pause=0.05, workers=5)
    assert part.mistakes == []
    assert part.is_good
    assert part.judged > 50
    assert part.counts


def test_a_short_soak_in_memory_keeps_the_rules() -> None:
    part = in_memory.soak(0.6, seed=1)
    assert part.mistakes == []
    assert part.is_good
    assert part.judged > 50


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_soak_ends_its_processes(number: signal.Signals) -> None:
    # A background process of a shell ignores Ctrl-C, and its children inherit this.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        soak = python("-m", "tests.soak", "5", "--only", "memory", stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, previous)
    children = Path(f"/proc/{soak.pid}/task/{soak.pid}/children")
    assert eventually(lambda: bool(children.read_text().split()))
    (child,) = children.read_text().split()
    soak.send_signal(number)
    soak.communicate(timeout=20)  # The child would keep the pipe open.
    assert soak.returncode == 128 + number
    assert eventually(lambda: not Path(f"/proc/{child}").exists())


@pytest.fixture
def queue() -> Iterator[tubes.Queue]:
    with tubes.connect() as queue:
        yield queue


def put(ledger: LongLedger, tube: tubes.Tube, key: str) -> int:
    ledger.put(tube, key)
    return ledger.puts[key]


def test_worker_exit_is_reported_even_if_killed_afterwards() -> None:
    ledgers = {"fifo": LongLedger()}
    actor = Actor("memory://", Job("nothing", "fifo", False), "1", ledgers)
    actor.process.wait()
    actor.end()
    assert ledgers["fifo"].mistakes == ["nothing of fifo ended with 1"]
    actor._last -= 2 * PATIENCE
    actor.report_silence()
    assert "nothing of fifo hangs" in ledgers["fifo"].mistakes[1]


def test_a_ledger_finds_a_task_that_is_lost(queue: tubes.Queue) -> None:
    ledger, tube = LongLedger(), queue.create_tube("load")
    put(ledger, tube, "kept")
    tube.delete(put(ledger, tube, "lost"))
    tube.put("strange")
    ledger.close(tube)
    assert ledger.mistakes == ["lost is lost, or done and stored", "strange is stored but was never put"]


def test_ledger_reports_duplicate_put(queue: tubes.Queue) -> None:
    ledger, tube = LongLedger(), queue.create_tube("load")
    ledger.unknown.update(("maybe", "never"))
    for key in ("double", "finished"):
        put(ledger, tube, key)
        tube.put(key)
    tube.put_many(["maybe", "maybe"])
    double, again, finished, late, maybe, twice = tube.take_many(6, timeout=0)
    for task in (double, again, maybe, twice, finished):
        ledger.work(task)
    assert ledger.mistakes == [
        "double was put twice, as task 0 and as task 1",
        "maybe was put twice, as task 4 and as task 5",
    ]
    ledger.forget_finished({})
    ledger.work(late)
    ledger.close(tube)
    assert ledger.mistakes[2:] == ["finished is stored but was never put"]


def test_ledger_counts_delayed_buried_and_taken_tasks_as_stored(queue: tubes.Queue) -> None:
    ledger, tube = LongLedger(), queue.create_tube("load", "fifottl")
    for key in ("in hand", "buried", "delayed"):
        ledger.put(tube, key, delay=60 if key == "delayed" else 0)
    tube.bury(ledger.puts["buried"])
    assert tube.take(timeout=0) is not None
    ledger.close(tube)
    assert ledger.mistakes == []


def test_ledger_reports_task_done_twice_even_after_it_was_forgotten() -> None:
    ledger = LongLedger()
    for id in (0, 9):
        ledger.record_put(f"job-{id}", id)
        ledger.read_line(f"took {id} 1 job-{id}", set())
        ledger.record_done(id, 1)
    ledger.record_done(0, 1)
    ledger.forget_finished({})
    assert (ledger.puts, ledger.takes, ledger.done) == ({}, {}, {})
    ledger.record_done(9, 2)
    assert ledger.mistakes == ["task 0 was done twice", "task 9 was done twice"]


def test_ledger_reports_ack_by_expired_lease() -> None:
    ledger = LongLedger()
    ledger.record_put("job", 0)
    ledger.record_take(0, 1, "job")
    ledger.record_take(0, 2, "job")
    ledger.record_done(0, 1)
    ledger.forget_finished({})
    assert ledger.mistakes == ["task 0 was acked by an expired take"]


def test_ledger_finishes_unreported_task_once_server_no_longer_has_it() -> None:
    ledger = LongLedger()
    for id in (0, 1, 2):
        ledger.record_put(f"job {id}", id)
        ledger.read_line(f"left {id} 1", set())
    ended = {1: 1, 2: 2}
    ledger.forget_finished(ended)
    assert list(ledger.puts) == ["job 0", "job 2"]
    assert ledger.count_done == 1
    assert ended == {2: 2}, "the last consumer of task 2 has not reported yet"
    ledger.record_take(2, 2, "job 2")
    ledger.record_done(2, 2)
    ledger.forget_finished(ended)
    assert (ledger.count_done, ended, ledger.mistakes) == (2, {}, [])


class Story:
    """Send events to a listener."""

    def __init__(self, queue: tubes.Queue, driver: str) -> None:
        self.listener = Listener(queue.create_tube("load", driver))

    def send_event(self, event: str, id: int, state: str, **facts: Any) -> None:
        task: Any = SimpleNamespace(
            **{"id": id, "state": tubes.State(state), "pri": 0, "utube": None, "data": None, "attempts": 1} | facts
        )
        self.listener.record_event(task, event)


def test_listener_reports_take_out_of_order(queue: tubes.Queue) -> None:
    story = Story(queue, "fifottl")
    story.send_event("put", 0, "r", pri=1)
    story.send_event("put", 1, "r", pri=0)
    story.send_event("put", 2, "r", pri=0)
    story.send_event("take", 1, "t", pri=0)
    assert story.listener.mistakes == []
    story.send_event("take", 0, "t", pri=1)
    assert story.listener.mistakes == ["task 0 of rank (1, 0) was taken before one of rank (0, 2)"]


def test_listener_reports_double_early_and_late_takes(queue: tubes.Queue) -> None:
    story = Story(queue, "fifottl")
    story.send_event("put", 0, "r")
    story.send_event("put", 1, "~")
    story.send_event("take", 0, "t")
    story.send_event("take", 0, "t")
    story.send_event("take", 1, "t")
    story.send_event("delete", 0, "-")
    story.send_event("delete", 0, "-")
    story.send_event("take", 0, "t")
    assert story.listener.mistakes == [
        "task 0 was taken while it was taken",
        "task 1 was taken while it was delayed",
        "task 0 has ended twice",
        "task 0 was taken after its end",
    ]


def test_listener_reports_second_taken_task_of_lane(queue: tubes.Queue) -> None:
    story = Story(queue, "utube")
    for id, lane in ((0, "a"), (1, "a"), (2, "b")):
        story.send_event("put", id, "r", utube=lane)
    story.send_event("take", 0, "t", utube="a")
    story.send_event("take", 2, "t", utube="b")
    assert story.listener.mistakes == []
    story.send_event("take", 1, "t", utube="a")
    assert story.listener.mistakes == ["task 1 was taken while task 0 held its lane a"]


def test_listener_suspends_judgement_after_missed_events(queue: tubes.Queue) -> None:
    story = Story(queue, "fifo")
    story.send_event("put", 0, "r")
    story.listener.forget("mark")
    assert story.listener.is_blind
    story.send_event("take", 7, "t")
    story.send_event("put", 8, "r", data="mark 1")
    assert not story.listener.is_blind
    story.send_event("put", 9, "r")
    story.send_event("take", 6, "t")
    assert story.listener.mistakes == []
    story.send_event("put", 10, "r")
    story.send_event("take", 10, "t")
    assert story.listener.mistakes == ["task 10 of rank (0, 10) was taken before one of rank (0, 9)"]


def growing_samples(bytes_per_second: float, seconds: float = 200.0) -> list[Sample]:
    return [
        Sample(when, 0, int(when) + 1, {"server": int(50 * 2**20 + bytes_per_second * when + (when % 7) * 2**16)})
        for when in (seconds * number / 200 for number in range(201))
    ]


def test_oscillating_memory_is_flat_but_growing_memory_is_not() -> None:
    (flat,) = growths(growing_samples(0))
    assert flat.is_flat
    assert abs(flat.grown) < 2**17
    (leak,) = growths(growing_samples(60 * 1024))
    assert not leak.is_flat
    assert leak.grown == pytest.approx(100 * 60 * 1024, rel=0.05)
    assert "GROWS" in "".join(Part("leaking", growing_samples(60 * 1024), [], {}, 1, 0).lines())
    assert not Part("leaking", growing_samples(60 * 1024), [], {}, 1, 0).is_good


def test_short_memory_samples_are_not_judged() -> None:
    assert growths(growing_samples(60 * 1024, SHORTEST - 1)) == []


def test_a_part_that_did_nothing_is_not_good() -> None:
    assert not Part("idle", [Sample(1.0, 0, 0, {})], [], {}, 1, 0).is_good
    assert not Part("silent", [], [], {}, 1, 0).is_good


def test_unjudged_or_stalled_part_is_not_good() -> None:
    good = Part("good", growing_samples(0), [], {}, 1, 0, (), 200.0)
    assert good.is_good
    stopped = [sample._replace(done=min(sample.done, 140)) for sample in good.samples]
    bad = [good._replace(judged=0), good._replace(seconds=600.0), good._replace(samples=stopped)]
    assert [part.problems() for part in bad] == [
        ["the order of no take was looked at"],
        ["nothing was measured after 200 s of 600"],
        ["nothing was done from 150 to 200 s"],
    ]
    assert not any(part.is_good for part in bad)
