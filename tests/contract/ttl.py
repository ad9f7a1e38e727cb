"""Time to live: a task that is not taken is removed when its ttl ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.bench import Bench, lacks, needs
from tubes import Task, TaskNotTaken

if TYPE_CHECKING:
    from collections.abc import Callable

#: Calls that do not change the ttl of a task.
NEUTRAL_CALLS: dict[str, Callable[[Bench, Task], object]] = {
    "take and release": lambda bench, task: bench.tube.release(bench.take()),
    "bury and kick": lambda bench, task: (bench.tube.bury(task), bench.tube.select("buried", limit=1).kick()),
    "peek": lambda bench, task: bench.tube.peek(task),
    "release_all": lambda bench, task: (bench.take(), bench.tube.admin.release_all()),
}


@needs("ttl")
class TimeToLive(Bench):
    """ttl."""

    def test_a_ready_task_is_removed_when_its_ttl_is_over(self) -> None:
        task = self.put(ttl=5)
        assert (task.ttl, task.expires, task.due) == (5, 5, 5)
        assert self.changes_state(task, "ready", "done", after=5)
        assert self.tube.take(timeout=0) is None

    def test_a_buried_task_is_removed_when_its_ttl_is_over(self) -> None:
        task = self.put_and_bury(ttl=5)
        assert self.changes_state(task, "buried", "done", after=5)
        assert self.tube.select("buried", limit=1).kick() == 0

    def test_an_expired_task_counts_as_ttl_delete_and_done(self) -> None:
        self.put(ttl=1)
        self.clock.advance(1)
        assert [self.count(name) for name in ("total", "done", "ttl", "delete", "ack")] == [0, 1, 1, 1, 0]

    def test_task_with_ttl_0_expires_before_any_take(self) -> None:
        task = self.put(ttl=0)
        assert task.state == "ready"
        assert (self.tube.take(timeout=0), self.state(task), self.count("ttl")) == (None, "done", 1)

    def test_tube_ttl_is_the_default_for_its_tasks(self) -> None:
        self.tube = self.create("short", ttl=2)
        default, own = self.put(), self.put(ttl=4)
        self.clock.advance(2)
        assert [self.state(default), self.state(own)] == ["done", "ready"]
        self.clock.advance(2)
        assert self.state(own) == "done"

    def test_task_without_ttl_never_expires(self) -> None:
        task = self.put()
        assert (task.ttl, task.expires) == (None, None)
        self.clock.advance(50 * 365 * 86400)
        assert self.state(task) == "ready"

    @pytest.mark.parametrize("passing", NEUTRAL_CALLS)
    def test_release_kick_and_peek_do_not_renew_the_ttl(self, passing: str) -> None:
        task = self.put(ttl=5)
        self.clock.advance(3)
        NEUTRAL_CALLS[passing](self, task)
        assert self.changes_state(task, "ready", "done", after=2)

    @needs("ttr")
    def test_a_ttr_that_ends_does_not_renew_the_ttl(self) -> None:
        task = self.put_and_take(ttl=5, ttr=3)
        assert self.changes_state(task, "ready", "done", after=5)

    @needs("delay")
    def test_put_with_delay_extends_the_ttl(self) -> None:
        task = self.put(ttl=2, delay=3)
        assert (task.ttl, task.expires, task.due) == (5, 5, 3)
        assert self.changes_state(task, "ready", "done", after=5)

    @needs("delay")
    def test_release_with_delay_extends_the_ttl(self) -> None:
        task = self.put_and_take(ttl=5)
        self.clock.advance(1)
        released = self.tube.release(task, delay=3)
        assert (released.ttl, released.expires, released.due) == (8, 8, 4)
        assert self.changes_state(task, "ready", "done", after=7)

    @needs("delay")
    def test_a_delayed_task_outlives_its_delay(self) -> None:
        task = self.put(ttl=1, delay=9)
        assert self.changes_state(task, "delayed", "ready", after=9)

    @lacks("ttr")
    def test_tube_ttl_sets_no_ttr_where_the_driver_has_no_ttr(self) -> None:
        self.tube = self.create("short", ttl=5)
        assert self.put_and_take().ttr is None

    @lacks("ttl_spares_taken")
    def test_holder_loses_its_task_when_the_ttl_ends(self) -> None:
        task = self.put_and_take(ttl=5)
        assert self.changes_state(task, "taken", "done", after=5)
        with self.expect_error(TaskNotTaken):
            self.tube.ack(task)
        assert [self.count(name) for name in ("ttr", "ttl", "delete", "done")] == [1, 1, 1, 1]

    @needs("ttl_spares_taken")
    def test_a_worker_may_finish_a_task_past_its_ttl(self) -> None:
        task = self.put_and_take(ttl=5)
        self.clock.advance(60)
        assert self.state(task) == "taken"
        assert self.tube.ack(task).state == "done"
        assert [self.count(name) for name in ("ttl", "ack")] == [0, 1]

    @needs("ttl_spares_taken")
    @pytest.mark.parametrize("way", ["release", "release_all", "bury", "end of session", "ttr"])
    def test_expired_taken_task_is_removed_when_it_returns(self, way: str) -> None:
        worker = self.add_worker()
        self.put(ttl=5, **({"ttr": 9} if way == "ttr" else {}))
        task = self.take(worker.tube)
        self.clock.advance(8)
        assert self.state(task) == "taken"
        if way == "end of session":
            worker.queue.close()
        elif way == "release_all":
            self.tube.admin.release_all()
        elif way == "ttr":
            self.clock.advance(1)
        else:
            getattr(worker.tube, way)(task)
        assert (self.tube.take(timeout=0), self.state(task), self.count("ttl")) == (None, "done", 1)

    @needs("ttl_spares_taken")
    @pytest.mark.parametrize("way", ["release", "bury", "last release"])
    def test_release_or_bury_of_an_expired_task_returns_it_as_done(self, way: str) -> None:
        task = self.put_and_take(ttl=5, max_attempts=1 if way == "last release" else None)
        self.clock.advance(5)
        result = self.tube.bury(task) if way == "bury" else self.tube.release(task)
        assert (result.state, result.due, self.count("ttl")) == ("done", None, 1)

    def test_kick_ttl_counts_from_the_kick(self) -> None:
        task = self.put_and_bury(ttl=100)
        self.clock.advance(60)
        kicked = self.tube.kick(task=task, ttl=5)
        assert (kicked.ttl, kicked.expires) == (65, 65)

    def test_a_new_ttl_of_0_ends_a_task_at_once(self) -> None:
        updated = self.tube.update(self.put(), ttl=0)
        kicked = self.tube.kick(task=self.put_and_bury(), ttl=0)
        assert (updated.state, kicked.state, self.count("total")) == ("done", "done", 0)
        assert self.count("ttl") == 2
