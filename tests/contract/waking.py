"""Waking: every event that makes a task available serves one waiting take."""

from __future__ import annotations

import pytest

from tests.contract.bench import Bench, needs
from tests.contract.ways import LEAVING, RETURNING, Way


class Waking(Bench):
    """Waking."""

    @pytest.mark.parametrize("way", RETURNING.values(), ids=RETURNING)
    def test_a_task_that_becomes_ready_serves_one_waiting_take(self, way: Way) -> None:
        self.require(way.needs)
        worker = self.add_worker()
        self.put(**way.options)
        task = self.take(worker.tube)
        calls = [self.begin(), self.begin()]
        way.go(self, worker, task)
        again = self.result_of(calls[0])
        assert (again.id, again.attempts) == (task.id, 2)
        assert self.has_waiters(1)
        assert not calls[1].done()

    @needs("lane")
    @pytest.mark.parametrize("way", LEAVING.values(), ids=LEAVING)
    def test_a_lane_that_becomes_free_serves_one_waiting_take(self, way: Way) -> None:
        self.require(way.needs)
        worker = self.add_worker()
        first, second, _ = self.sort_as_taken([self.put(**self.lane("x")) for _ in range(3)])
        task = self.take(worker.tube)
        assert task.id == first.id
        calls = [self.begin(), self.begin()]
        way.go(self, worker, task)
        assert self.result_of(calls[0]).id == second.id
        assert self.has_waiters(1)
        assert not calls[1].done()

    @needs("lane")
    def test_task_put_into_a_busy_lane_serves_no_waiter(self) -> None:
        self.put_and_take(**self.lane("x"))
        call = self.begin()
        self.put(**self.lane("x"))
        assert self.has_waiters(1)
        other = self.put(**self.lane("y"))
        assert self.result_of(call).id == other.id

    @needs("lane")
    def test_task_kicked_into_a_busy_lane_serves_no_waiter(self) -> None:
        self.put_and_bury(**self.lane("x"))
        held = self.put_and_take(**self.lane("x"))
        call = self.begin()
        self.tube.select("buried", limit=1).kick()
        assert self.has_waiters(1)
        self.tube.ack(held)
        assert self.result_of(call).attempts == 1

    @needs("lane", "ttl")
    def test_task_that_expires_behind_a_busy_lane_serves_no_waiter(self) -> None:
        held = self.put_and_take(**self.lane("x"))
        call = self.begin()
        self.put(**self.lane("x"), ttl=1)
        self.clock.advance(1)
        self.tube.ack(held)
        assert self.has_waiters(1)
        assert not call.done()

    def test_tasks_ready_together_are_handed_out_in_order(self) -> None:
        worker = self.add_worker()
        tasks = self.puts(4)
        for _ in tasks:
            self.take(worker.tube)
        calls = [self.begin() for _ in range(3)]
        worker.queue.close()
        assert [self.result_of(call).id for call in calls] == [task.id for task in tasks[:3]]
        assert self.drain() == [tasks[3].id]

    def test_kicked_tasks_are_handed_out_in_their_order(self) -> None:
        tasks = self.puts(3)
        for task in tasks:
            self.tube.bury(task)
        calls = [self.begin() for _ in range(3)]
        assert self.tube.select("buried", limit=2).kick() == 2
        assert [self.result_of(call).id for call in calls[:2]] == [task.id for task in tasks[:2]]
        assert self.has_waiters(1)

    @pytest.mark.parametrize("method", ["ack", "bury", "delete"])
    def test_acked_buried_or_deleted_task_serves_no_waiter(self, method: str) -> None:
        task = self.put_and_take()
        call = self.begin()
        getattr(self.tube, method)(task)
        assert self.has_waiters(1)
        assert not call.done()

    @needs("ttr")
    def test_worker_may_wait_for_the_task_it_lost_to_its_ttr(self) -> None:
        task = self.put_and_take(ttr=5)
        call = self.begin()
        self.clock.advance(5)
        again = self.result_of(call)
        assert (again.id, again.attempts) == (task.id, 2)

    @needs("delay")
    def test_delay_ending_at_the_timeout_still_serves_the_take(self) -> None:
        task = self.put(delay=5)
        call = self.begin(timeout=5)
        self.clock.advance(5)
        assert self.result_of(call).id == task.id

    @needs("delay")
    def test_task_ready_after_the_timeout_stays_in_the_tube(self) -> None:
        task = self.put(delay=6)
        call = self.begin(timeout=5)
        self.clock.advance(9)
        assert self.result_of(call) is None
        assert self.state(task) == "ready"
