"""What serves a waiting take: every event that makes a task takeable, and each serves one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from tubes import Task
from tubes.conformance.bench import Bench, Worker, needs

#: Something that makes one task takeable: what the driver must know, how the task is put, and the event.
Event: TypeAlias = tuple[str, dict[str, Any], Callable[[Bench, Worker, Task], object]]
EVENTS: dict[str, Event] = {
    "release": ("", {}, lambda bench, worker, task: worker.tube.release(task)),
    "kick": ("", {}, lambda bench, worker, task: (bench.tube.bury(task), bench.tube.kick())),
    "release_all": ("", {}, lambda bench, worker, task: bench.tube.release_all()),
    "end of session": ("", {}, lambda bench, worker, task: worker.queue.close()),
    "end of a detached session": (
        "",
        {},
        lambda bench, worker, task: (worker.queue.detach(), bench.pass_time(bench.session_ttl)),
    ),
    "ttr": ("ttr", {"ttr": 9}, lambda bench, worker, task: bench.pass_time(9)),
    "end of delay": (
        "delay",
        {},
        lambda bench, worker, task: (worker.tube.release(task, delay=1), bench.pass_time(1)),
    ),
}
#: The same for a neighbour in the lane of a taken task.
NEIGHBOURS: dict[str, Event] = {
    "ack": ("", {}, lambda bench, worker, task: worker.tube.ack(task)),
    "bury": ("", {}, lambda bench, worker, task: bench.tube.bury(task)),
    "delete": ("", {}, lambda bench, worker, task: bench.tube.delete(task)),
    "delayed release": ("delay", {}, lambda bench, worker, task: worker.tube.release(task, delay=99)),
}


class Waking(Bench):
    """Waking."""

    @pytest.mark.parametrize("event", EVENTS)
    def test_a_task_that_becomes_ready_serves_one_waiting_take(self, event: str) -> None:
        needed, options, happen = EVENTS[event]
        self.require(needed)
        worker = self.another()
        self.put(**options)
        task = self.take(worker.tube)
        calls = [self.begin(), self.begin()]
        happen(self, worker, task)
        again = self.got(calls[0])
        assert (again.id, again.attempts) == (task.id, 2)
        assert self.waiting(1)
        assert not calls[1].done()

    @needs("lane")
    @pytest.mark.parametrize("event", NEIGHBOURS)
    def test_a_lane_that_becomes_free_serves_one_waiting_take(self, event: str) -> None:
        needed, options, happen = NEIGHBOURS[event]
        self.require(needed)
        worker = self.another()
        first, second, _ = self.in_order([self.put(**self.lane("x"), **options) for _ in range(3)])
        task = self.take(worker.tube)
        assert task.id == first.id
        calls = [self.begin(), self.begin()]
        happen(self, worker, task)
        assert self.got(calls[0]).id == second.id
        assert self.waiting(1)
        assert not calls[1].done()

    @needs("lane")
    def test_a_task_put_into_a_busy_lane_serves_nobody(self) -> None:
        self.taken(**self.lane("x"))
        call = self.begin()
        self.put(**self.lane("x"))
        assert self.waiting(1)
        other = self.put(**self.lane("y"))
        assert self.got(call).id == other.id

    @needs("lane")
    def test_a_task_kicked_into_a_busy_lane_serves_nobody(self) -> None:
        self.buried(**self.lane("x"))
        held = self.taken(**self.lane("x"))
        call = self.begin()
        self.tube.kick()
        assert self.waiting(1)
        self.tube.ack(held)
        assert self.got(call).attempts == 1

    @needs("lane", "ttl")
    def test_a_task_that_expires_behind_a_busy_lane_serves_nobody(self) -> None:
        held = self.taken(**self.lane("x"))
        call = self.begin()
        self.put(**self.lane("x"), ttl=1)
        self.clock.advance(1)
        self.tube.ack(held)
        assert self.waiting(1)
        assert not call.done()

    def test_tasks_that_become_ready_together_are_handed_out_in_their_order(self) -> None:
        worker = self.another()
        tasks = self.puts(4)
        for _ in tasks:
            self.take(worker.tube)
        calls = [self.begin() for _ in range(3)]
        worker.queue.close()
        assert [self.got(call).id for call in calls] == [task.id for task in tasks[:3]]
        assert self.drain() == [tasks[3].id]

    def test_kicked_tasks_are_handed_out_in_their_order(self) -> None:
        tasks = self.puts(3)
        for task in tasks:
            self.tube.bury(task)
        calls = [self.begin() for _ in range(3)]
        assert self.tube.kick(2) == 2
        assert [self.got(call).id for call in calls[:2]] == [task.id for task in tasks[:2]]
        assert self.waiting(1)

    @pytest.mark.parametrize("verb", ["ack", "bury", "delete"])
    def test_a_task_that_goes_away_serves_nobody(self, verb: str) -> None:
        task = self.taken()
        call = self.begin()
        getattr(self.tube, verb)(task)
        assert self.waiting(1)
        assert not call.done()

    @needs("ttr")
    def test_a_worker_that_loses_its_task_to_time_may_wait_for_it_itself(self) -> None:
        task = self.taken(ttr=5)
        call = self.begin()
        self.clock.advance(5)
        again = self.got(call)
        assert (again.id, again.attempts) == (task.id, 2)

    @needs("delay")
    def test_a_delay_that_ends_with_the_timeout_still_serves(self) -> None:
        task = self.put(delay=5)
        call = self.begin(timeout=5)
        self.clock.advance(5)
        assert self.got(call).id == task.id

    @needs("delay")
    def test_what_becomes_ready_after_the_timeout_stays(self) -> None:
        task = self.put(delay=6)
        call = self.begin(timeout=5)
        self.clock.advance(9)
        assert self.got(call) is None
        assert self.state(task) == "r"
