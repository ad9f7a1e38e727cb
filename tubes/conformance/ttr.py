"""Time to run: past its ttr a taken task is ready again."""

from __future__ import annotations

import pytest

from tubes import State, TaskNotTaken
from tubes.conformance.bench import Bench, needs


@needs("ttr")
class TimeToRun(Bench):
    """ttr."""

    def test_a_task_returns_when_its_ttr_is_over(self) -> None:
        task = self.taken(ttr=5)
        assert (task.ttr, task.due) == (5, 5)
        assert self.turns(task, "t", "r", after=5)
        assert self.count("ttr") == 1
        with self.refused(TaskNotTaken):
            self.tube.ack(task)

    def test_each_take_starts_the_ttr_anew(self) -> None:
        task = self.taken(ttr=5)
        self.clock.advance(3)
        self.tube.release(task)
        assert self.take().due == 8
        assert self.turns(task, "t", "r", after=5)

    def test_a_task_without_ttr_runs_as_long_as_it_likes(self) -> None:
        task = self.taken()
        assert (task.ttr, task.due) == (None, None)
        self.clock.advance(50 * 365 * 86400)
        assert self.tube.ack(task).state == State.DONE

    @needs("ttl")
    def test_ttr_defaults_to_the_tubes_and_that_to_the_tubes_ttl_not_to_the_tasks(self) -> None:
        assert self.create("both", ttl=8, ttr=3).put(0, ttl=4).ttr == 3
        assert self.create("live", ttl=8).put(0, ttl=4).ttr == 8
        assert self.create("none").put(0, ttl=4).ttr is None

    def test_a_task_with_ttr_0_returns_at_once(self) -> None:
        task = self.taken(ttr=0)
        with pytest.raises(TaskNotTaken):
            self.tube.ack(task)
        assert self.state(task) == "r"

    def test_a_task_that_left_its_worker_has_no_ttr_running(self) -> None:
        task = self.tube.bury(self.taken(ttr=5))
        self.clock.advance(9)
        assert (self.state(task), self.count("ttr")) == ("!", 0)

    def test_touch_gives_more_time_now_and_at_later_takes(self) -> None:
        task = self.taken(ttr=5)
        self.clock.advance(2)
        touched = self.tube.touch(task, 4)
        assert (touched.state, touched.ttr, touched.due) == (State.TAKEN, 9, 9)
        assert self.turns(task, "t", "r", after=7)
        assert self.take().due == 18

    @needs("ttl")
    def test_touch_prolongs_the_ttl_too(self) -> None:
        touched = self.tube.touch(self.taken(ttl=5, ttr=1), 4)
        assert (touched.ttl, touched.expires) == (9, 9)
        assert self.turns(touched, "r", "-", after=9)

    def test_touch_of_0_changes_nothing(self) -> None:
        task = self.taken(ttr=5)
        with self.unchanged():
            assert self.tube.touch(task, 0) == task

    def test_a_renewal_gives_time_from_now_on_and_leaves_the_ttr_as_it_is(self) -> None:
        task = self.taken(ttr=5)
        for _ in range(3):
            self.clock.advance(4)
            assert self.tube.renew_many([task], 5) == {task.id: True}
        assert (self.tube.peek(task).ttr, self.tube.peek(task).due) == (5, 17)
        self.clock.advance(5)
        assert (self.state(task), self.count("ttr")) == ("r", 1)
        assert self.take().due == 22

    def test_a_renewal_takes_no_time_away(self) -> None:
        task = self.taken(ttr=5)
        assert self.tube.renew_many([task], 3) == {task.id: True}
        assert self.tube.peek(task).due == 5

    @needs("ttl")
    def test_a_renewal_keeps_a_task_from_dying_while_it_is_taken(self) -> None:
        task = self.taken(ttl=5, ttr=3)
        for _ in range(4):
            self.clock.advance(2)
            assert self.tube.renew_many([task], 3) == {task.id: True}
        # In the drivers whose takers are spared it dies when it comes back.
        spared = self.knobs.ttl_spares_taken
        assert self.tube.peek(task).expires == (5 if spared else 11)
        self.tube.release(task)
        assert self.turns(task, ("-" if spared else "r"), "-", after=3)

    @needs("ttl")
    def test_a_task_that_has_a_ttl_alone_is_renewed_too(self) -> None:
        task = self.taken(ttl=5)
        self.tube.renew_many([task], 9)
        self.clock.advance(8.9)
        assert self.state(task) == "t"
        self.tube.ack(task)

    def test_a_task_without_end_needs_no_renewal(self) -> None:
        task = self.taken()
        assert self.tube.renew_many([task], 5) == {task.id: True}
        assert self.tube.peek(task).due is None

    def test_who_has_lost_a_task_cannot_renew_it(self) -> None:
        task = self.taken(ttr=5)
        self.clock.advance(5)
        again = self.take()
        assert self.tube.renew_many([task, 99], 50) == {task.id: False, 99: False}
        assert self.tube.renew_many([again], 50) == {again.id: True}
        assert self.another().tube.renew_many([again.id], 50) == {again.id: False}
        assert self.tube.ack(again).state == State.DONE

    def test_a_renewal_is_a_touch_for_who_listens_and_counts(self) -> None:
        task = self.taken(ttr=5)
        heard = self.listen()
        self.tube.renew_many([task], 5)
        self.clock.advance(1)
        self.tube.renew_many([task], 5)
        assert self.heard(heard, [("touch", task.id, "t")])
        assert self.count("touch") == 1

    def test_a_renewal_by_no_time_at_all_is_refused(self) -> None:
        task = self.taken(ttr=5)
        assert self.refuses(lambda bad: self.tube.renew_many([task], bad), -1, "5", None)

    @needs("ttr")
    def test_a_ttr_is_set_for_this_take_alone(self) -> None:
        task = self.taken(ttr=5)
        longer = self.tube.set_ttr(task, 60)
        assert (longer.ttr, longer.due) == (5, self.clock.now() + 60)
        self.pass_time(59)
        shorter = self.tube.set_ttr(task, 2)
        assert (shorter.ttr, shorter.due) == (5, self.clock.now() + 2)
        assert self.turns(task, "t", "r", after=2)
        again = self.take()
        assert again.due == self.clock.now() + 5
        self.pass_time(4)
        assert again.set_ttr().due == self.clock.now() + 5
        assert again.ack().state == State.DONE

    @needs("ttr")
    def test_a_take_may_have_a_ttr_of_its_own(self) -> None:
        for _ in range(3):
            self.put(ttr=60)
        one, others = self.tube.take(0, ttr=2), self.tube.take_many(2, 0, ttr=3)
        assert [task.due - self.clock.now() for task in (one, *others)] == [2, 3, 3]
        assert {task.ttr for task in (one, *others)} == {60}
        assert self.turns(one, "t", "r", after=2)
        assert self.queue.take_any([self.tube], 0, ttr=4).due == self.clock.now() + 4

    @needs("ttr")
    def test_a_task_without_a_ttr_keeps_the_one_of_a_take(self) -> None:
        put = self.put()
        assert self.tube.set_ttr(self.take(), 5).due is None
        self.tube.release(put.id)
        assert self.tube.take(0, ttr=2).ttr == 2
        assert self.turns(put, "t", "r", after=2)
        assert self.tube.take_task(put.id).due == self.clock.now() + 2
        assert self.tube.ack(put.id).state == State.DONE
        self.pass_time(2)
        assert self.state(put) == "-"

    @needs("ttr")
    def test_a_take_that_had_to_wait_has_its_ttr_too(self) -> None:
        for tube, verb, tubes in ((self.tube, "take", ()), (self.queue, "take_any", ([self.tube],))):
            waiting = self.begin(tube, verb, *tubes, 5, ttr=2)
            assert self.waiting(1)
            self.put(ttr=60)
            task = self.got(waiting)
            assert (task.due, task.ttr) == (self.clock.now() + 2, 60)
            self.tube.delete(task)
