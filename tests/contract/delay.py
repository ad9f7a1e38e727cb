"""Delay: a task cannot be taken before its delay ends."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.contract.bench import Bench, needs
from tubes import InvalidOption, Item, TaskNotTaken


@needs("delay")
class Delay(Bench):
    """delay."""

    def test_a_delayed_task_is_ready_when_its_delay_is_over(self) -> None:
        task = self.put(delay=5)
        assert (task.state, task.due, self.count("delayed")) == ("delayed", 5, 1)
        self.clock.advance(4.9)
        assert (self.state(task), self.tube.take(timeout=0)) == ("delayed", None)
        self.clock.advance(0.1)
        assert (self.state(task), self.count("delay"), self.take().id) == ("ready", 1, task.id)
        assert self.count("delayed") == 0

    def test_delay_of_0_leaves_the_task_ready(self) -> None:
        assert self.put(delay=0).state == "ready"
        assert self.tube.release(self.take(), delay=0).state == "ready"

    def test_delays_that_ended_are_reported_in_due_order(self) -> None:
        tasks = [self.put(delay=delay) for delay in (3, 1, 2)]
        events = self.listen()
        self.clock.advance(9)
        assert self.has_received(events, [("delay", tasks[index].id, "ready") for index in (1, 2, 0)])

    def test_task_released_with_a_delay_has_no_holder(self) -> None:
        task = self.put_and_take()
        released = self.tube.release(task, delay=5)
        assert (released.state, released.due) == ("delayed", 5)
        with self.expect_error(TaskNotTaken):
            self.tube.ack(task.id)
        self.clock.advance(5)
        assert self.take().id == task.id

    def moment(self, seconds: float) -> datetime:
        """Return the moment `seconds` from now, by the queue's clock, in an arbitrary time zone."""
        return datetime.fromtimestamp(self.clock.now() + seconds, timezone(timedelta(hours=-5)))

    def test_at_option_delays_a_task_until_a_moment(self) -> None:
        self.clock.advance(1000)
        now = self.clock.now()
        assert (self.put(at=self.moment(5)).due, self.count("delayed")) == (now + 5, 1)
        own = [self.lane(name) for name in ("a", "b", "c")]
        items = [Item(1, **own[0]), Item(2, at=self.moment(7), **own[1]), Item(3, delay=8, **own[2])]
        assert [task.due for task in self.tube.put_many(items, at=self.moment(6))] == [now + 6, now + 7, now + 8]
        self.clock.advance(5)
        task = self.take()
        assert self.tube.release(task, at=self.moment(5)).due == now + 10
        assert self.tube.update(task, at=self.moment(4)).due == now + 9
        self.clock.advance(4)
        taken = {task.id: task for task in self.tube.take_many(9, timeout=0)}
        assert len(taken) == 4
        assert taken[task.id].release(at=self.moment(1)).update(at=self.moment(2)).due == now + 11
        others = sorted(taken.keys() - {task.id})
        assert self.tube.release_many(others, at=self.moment(3)) == dict.fromkeys(others, True)
        assert [self.tube.peek(id).due for id in others] == [now + 12] * 3

    def test_task_with_at_in_the_past_is_ready_at_once(self) -> None:
        self.clock.advance(1000)
        for seconds in (0, -1, -2000):
            task = self.put(at=self.moment(seconds))
            assert task.state == "ready"
            assert self.tube.release(self.take(), at=self.moment(seconds)).state == "ready"
            assert self.tube.delete(task).state == "done"

    def test_at_option_applies_to_a_put_that_waited_for_room(self) -> None:
        tube = self.create("small", capacity=1)
        first = tube.put("first", **self.lane("a"))
        at = self.moment(100)
        put = self.begin(tube, "put", "second", timeout=900, at=at, **self.lane("a"))
        self.clock.advance(60)
        due = self.clock.now() + 40
        tube.delete(first)
        assert self.result_of(put).due == due

    def test_at_option_needs_a_time_zone_and_excludes_delay(self) -> None:
        naive = datetime(2030, 1, 1)
        task = self.put_and_take()
        other = self.put()
        last = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))
        bads: list[Any] = [naive, naive.date(), 5, "2030-01-01T00:00:00Z", True, timedelta(5), last]
        for bad in (*bads, self.moment(101 * 365 * 86400)):
            with self.expect_error(InvalidOption):
                self.tube.put(0, at=bad)
            with self.expect_error(InvalidOption):
                self.tube.put_many([Item(0, at=bad)])
            with self.expect_error(InvalidOption):
                self.tube.release(task, at=bad)
            with self.expect_error(InvalidOption):
                self.tube.update(other, at=bad)
        for delay in (5, 0, self.moment(5)):
            with self.expect_error(InvalidOption):
                self.tube.put(0, at=self.moment(5), delay=delay)
            with self.expect_error(InvalidOption):
                self.tube.release(task, delay, at=self.moment(5))
            with self.expect_error(InvalidOption):
                self.tube.update(other, delay=delay, at=self.moment(5))
        with self.expect_error(InvalidOption):
            self.tube.put(0, delay=self.moment(5))
        with self.expect_error(InvalidOption):
            self.tube.release(task, self.moment(5))

    @pytest.mark.parametrize("method", ["bury", "delete"])
    def test_buried_or_deleted_delayed_task_does_not_become_ready(self, method: str) -> None:
        task = getattr(self.tube, method)(self.put(delay=5))
        self.clock.advance(9)
        assert self.state(task) == str(task.state)
        assert self.count("delay") == 0

    def test_truncate_removes_delays_and_their_deadlines(self) -> None:
        self.put(delay=5)
        self.tube.truncate()
        self.clock.advance(9)
        assert [self.count(name) for name in ("delay", "total", "delayed")] == [0, 0, 0]

    def test_delayed_tasks_are_kicked_in_due_order(self) -> None:
        late, soon, later = (self.put(delay=delay) for delay in (20, 10, 30))
        buried = self.put_and_bury()
        events = self.listen()
        assert self.tube.select("delayed", limit=2).kick() == 2
        assert [self.state(task) for task in (late, soon, later, buried)] == ["ready", "ready", "delayed", "buried"]
        assert self.has_received(events, [("kick", soon.id, "ready"), ("kick", late.id, "ready")])
        assert self.tube.select("delayed", limit=9).kick(attempts=1) == 1
        assert self.tube.peek(later).max_attempts == 1
        assert self.tube.select("delayed", limit=9).kick() == 0
        assert self.count("kick") == 3
        assert self.refuses(lambda state: self.tube.select(state, limit=1).kick(), "x", ["delayed"])
        assert sorted(self.drain()) == sorted(task.id for task in (late, soon, later))

    def test_one_delayed_task_can_be_kicked(self) -> None:
        task, other = self.put(delay=20), self.put(delay=10)
        events = self.listen()
        kicked = self.tube.kick(task=task, attempts=2)
        assert (kicked.state, kicked.due, kicked.max_attempts) == ("ready", None, 2)
        assert self.state(other) == "delayed"
        assert self.has_received(events, [("kick", task.id, "ready")])
        assert self.take().id == task.id
        assert self.tube.kick(task=task.id).state == "taken"

    @needs("ttl")
    def test_kicked_delayed_task_still_expires_by_its_ttl(self) -> None:
        task = self.put(delay=5, ttl=10)
        assert self.tube.select("delayed", limit=1).kick() == 1
        assert self.changes_state(task, "ready", "done", after=15)
