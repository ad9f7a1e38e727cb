"""Time to run: a taken task is ready again when its ttr ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.bench import Bench, lacks, needs
from tubes import TaskNotTaken


@needs("ttr")
class TimeToRun(Bench):
    """ttr."""

    def test_a_task_returns_when_its_ttr_is_over(self) -> None:
        task = self.put_and_take(ttr=5)
        assert (task.ttr, task.due) == (5, 5)
        assert self.changes_state(task, "taken", "ready", after=5)
        assert self.count("ttr") == 1
        with self.expect_error(TaskNotTaken):
            self.tube.ack(task)

    def test_each_take_restarts_the_ttr(self) -> None:
        task = self.put_and_take(ttr=5)
        self.clock.advance(3)
        self.tube.release(task)
        assert self.take().due == 8
        assert self.changes_state(task, "taken", "ready", after=5)

    def test_task_without_ttr_has_no_time_limit(self) -> None:
        task = self.put_and_take()
        assert (task.ttr, task.due) == (None, None)
        self.clock.advance(50 * 365 * 86400)
        assert self.tube.ack(task).state == "done"

    @needs("ttl")
    def test_ttr_defaults_to_the_ttr_then_the_ttl_of_the_tube(self) -> None:
        assert self.create("both", ttl=8, ttr=3).put(0, ttl=4).ttr == 3
        assert self.create("live", ttl=8).put(0, ttl=4).ttr == 8
        assert self.create("none").put(0, ttl=4).ttr is None

    def test_a_task_with_ttr_0_returns_at_once(self) -> None:
        task = self.put_and_take(ttr=0)
        with pytest.raises(TaskNotTaken):
            self.tube.ack(task)
        assert self.state(task) == "ready"

    def test_ttr_stops_when_the_task_leaves_its_holder(self) -> None:
        task = self.tube.bury(self.put_and_take(ttr=5))
        self.clock.advance(9)
        assert (self.state(task), self.count("ttr")) == ("buried", 0)

    def test_touch_extends_the_current_and_later_takes(self) -> None:
        task = self.put_and_take(ttr=5)
        self.clock.advance(2)
        touched = self.tube.touch(task, 4)
        assert (touched.state, touched.ttr, touched.due) == ("taken", 9, 9)
        assert self.changes_state(task, "taken", "ready", after=7)
        assert self.take().due == 18

    @needs("ttl")
    def test_touch_extends_the_ttl(self) -> None:
        touched = self.tube.touch(self.put_and_take(ttl=5, ttr=1), 4)
        assert (touched.ttl, touched.expires) == (9, 9)
        assert self.changes_state(touched, "ready", "done", after=9)

    def test_touch_of_0_changes_nothing(self) -> None:
        task = self.put_and_take(ttr=5)
        with self.expect_no_change():
            assert self.tube.touch(task, 0) == task

    def test_renew_extends_from_now_and_keeps_the_ttr(self) -> None:
        task = self.put_and_take(ttr=5)
        for _ in range(3):
            self.clock.advance(4)
            assert self.tube.touch_many([task], 5) == {task.id: True}
        assert (self.tube.peek(task).ttr, self.tube.peek(task).due) == (5, 17)
        self.clock.advance(5)
        assert (self.state(task), self.count("ttr")) == ("ready", 1)
        assert self.take().due == 22

    def test_renew_never_shortens_the_time_left(self) -> None:
        task = self.put_and_take(ttr=5)
        assert self.tube.touch_many([task], 3) == {task.id: True}
        assert self.tube.peek(task).due == 5

    @needs("ttl")
    @lacks("ttl_spares_taken")
    def test_renew_extends_a_ttl_that_would_end_the_taken_task(self) -> None:
        task = self.put_and_take(ttl=5, ttr=3)
        for _ in range(4):
            self.clock.advance(2)
            assert self.tube.touch_many([task], 3) == {task.id: True}
        assert self.tube.peek(task).expires == 11
        self.tube.release(task)
        assert self.changes_state(task, "ready", "done", after=3)

    @needs("ttl")
    @lacks("ttl_spares_taken")
    def test_renew_never_shortens_a_ttl(self) -> None:
        task = self.put_and_take(ttl=60, ttr=3)
        assert self.tube.touch_many([task], 5) == {task.id: True}
        assert (self.tube.peek(task).due, self.tube.peek(task).expires) == (5, 60)

    @needs("ttl", "ttl_spares_taken")
    def test_renew_leaves_a_ttl_that_spares_the_taken_task(self) -> None:
        task = self.put_and_take(ttl=5, ttr=3)
        for _ in range(4):
            self.clock.advance(2)
            assert self.tube.touch_many([task], 3) == {task.id: True}
        assert self.tube.peek(task).expires == 5
        self.tube.release(task)
        assert self.changes_state(task, "done", "done", after=3)

    @needs("ttl")
    def test_renew_works_for_a_task_with_only_a_ttl(self) -> None:
        task = self.put_and_take(ttl=5)
        self.tube.touch_many([task], 9)
        self.clock.advance(8.9)
        assert self.state(task) == "taken"
        self.tube.ack(task)

    def test_renew_of_a_task_without_deadline_changes_nothing(self) -> None:
        task = self.put_and_take()
        assert self.tube.touch_many([task], 5) == {task.id: True}
        assert self.tube.peek(task).due is None

    def test_renew_by_a_former_holder_fails(self) -> None:
        task = self.put_and_take(ttr=5)
        self.clock.advance(5)
        again = self.take()
        assert self.tube.touch_many([task, 99], 50) == {task.id: False, 99: False}
        assert self.tube.touch_many([again], 50) == {again.id: True}
        assert self.add_worker().tube.touch_many([again.id], 50) == {again.id: False}
        assert self.tube.ack(again).state == "done"

    def test_renew_is_reported_and_counted_as_a_touch(self) -> None:
        task = self.put_and_take(ttr=5)
        events = self.listen()
        self.tube.touch_many([task], 5)
        self.clock.advance(1)
        self.tube.touch_many([task], 5)
        assert self.has_received(events, [("touch", task.id, "taken")])
        assert self.count("touch") == 1

    def test_renew_refuses_bad_spans(self) -> None:
        task = self.put_and_take(ttr=5)
        assert self.refuses(lambda bad: self.tube.touch_many([task], bad), -1, "5", None)

    @needs("ttr")
    def test_set_ttr_applies_only_to_the_current_take(self) -> None:
        task = self.put_and_take(ttr=5)
        longer = self.tube.touch(task, ttr=60)
        assert (longer.ttr, longer.due) == (5, self.clock.now() + 60)
        self.pass_time(59)
        shorter = self.tube.touch(task, ttr=2)
        assert (shorter.ttr, shorter.due) == (5, self.clock.now() + 2)
        assert self.changes_state(task, "taken", "ready", after=2)
        again = self.take()
        assert again.due == self.clock.now() + 5
        self.pass_time(4)
        assert again.touch().due == self.clock.now() + 5
        assert again.ack().state == "done"

    @needs("ttr")
    def test_take_may_set_a_ttr_for_itself(self) -> None:
        for _ in range(3):
            self.put(ttr=60)
        one, others = self.tube.take(0, ttr=2), self.tube.take_many(2, 0, ttr=3)
        assert [task.due - self.clock.now() for task in (one, *others)] == [2, 3, 3]
        assert {task.ttr for task in (one, *others)} == {60}
        assert self.changes_state(one, "taken", "ready", after=2)
        assert self.queue.take_any([self.tube], 0, ttr=4).due == self.clock.now() + 4

    @needs("ttr")
    def test_task_without_ttr_keeps_the_ttr_of_its_take(self) -> None:
        put = self.put()
        assert self.tube.touch(self.take(), ttr=5).due is None
        self.tube.release(put.id)
        assert self.tube.take(0, ttr=2).ttr == 2
        assert self.changes_state(put, "taken", "ready", after=2)
        assert self.tube.peek(put).take().due == self.clock.now() + 2
        assert self.tube.ack(put.id).state == "done"
        self.pass_time(2)
        assert self.state(put) == "done"

    @needs("ttr")
    def test_waiting_take_applies_its_own_ttr(self) -> None:
        for tube, method, tubes in ((self.tube, "take", ()), (self.queue, "take_any", ([self.tube],))):
            waiting = self.begin(tube, method, *tubes, 5, ttr=2)
            assert self.has_waiters(1)
            self.put(ttr=60)
            task = self.result_of(waiting)
            assert (task.due, task.ttr) == (self.clock.now() + 2, 60)
            self.tube.delete(task)

    @needs("ttr")
    def test_each_waiting_take_begins_with_its_own_ttr(self) -> None:
        spans = (2, 9, None)
        waiting: list[Any] = []
        for number, span in enumerate(spans, 1):
            options = {} if span is None else {"ttr": span}
            waiting.append(self.begin(self.tube, "take", 5, **options))
            assert self.has_waiters(number)
        for _ in spans:
            self.put()
        tasks: list[Any] = [self.result_of(call) for call in waiting]
        assert [task.ttr for task in tasks] == [2, 9, None]
        assert [task.due for task in tasks] == [self.clock.now() + 2, self.clock.now() + 9, None]
        assert self.count("touch") == 0
        assert self.changes_state(tasks[0], "taken", "ready", after=2)
