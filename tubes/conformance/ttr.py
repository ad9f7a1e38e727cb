"""Time to run: past its ttr a taken task is ready again."""

from __future__ import annotations

import pytest

from tubes import State, TaskNotTaken
from tubes.conformance.bench import Bench, lacks, needs


class TimeToRun(Bench):
    """ttr."""

    @needs("ttr")
    def test_a_task_returns_when_its_ttr_is_over(self) -> None:
        task = self.taken(ttr=5)
        assert (task.ttr, task.due) == (5, 5)
        self.clock.advance(4.9)
        assert self.state(task) == "t"
        self.clock.advance(0.1)
        assert (self.state(task), self.count("ttr")) == ("r", 1)
        with self.refused(TaskNotTaken):
            self.tube.ack(task)

    @needs("ttr")
    def test_each_take_starts_the_ttr_anew(self) -> None:
        task = self.taken(ttr=5)
        self.clock.advance(3)
        self.tube.release(task)
        assert self.take().due == 8
        self.clock.advance(4.9)
        assert self.state(task) == "t"
        self.clock.advance(0.1)
        assert self.state(task) == "r"

    @needs("ttr")
    def test_a_task_without_ttr_runs_as_long_as_it_likes(self) -> None:
        task = self.taken()
        assert (task.ttr, task.due) == (None, None)
        self.clock.advance(50 * 365 * 86400)
        assert self.tube.ack(task).state == State.DONE

    @needs("ttr", "ttl")
    def test_ttr_defaults_to_the_tubes_and_that_to_the_tubes_ttl_not_to_the_tasks(self) -> None:
        assert self.create("both", ttl=8, ttr=3).put(0, ttl=4).ttr == 3
        assert self.create("live", ttl=8).put(0, ttl=4).ttr == 8
        assert self.create("none").put(0, ttl=4).ttr is None

    @needs("ttl")
    @lacks("ttr")
    def test_without_ttr_a_tubes_ttl_limits_no_run(self) -> None:
        self.tube = self.create("short", ttl=5)
        assert self.taken().ttr is None

    @needs("ttr")
    def test_a_task_with_ttr_0_returns_at_once(self) -> None:
        task = self.taken(ttr=0)
        with pytest.raises(TaskNotTaken):
            self.tube.ack(task)
        assert self.state(task) == "r"

    @needs("ttr")
    def test_a_task_that_left_its_worker_has_no_ttr_running(self) -> None:
        task = self.tube.bury(self.taken(ttr=5))
        self.clock.advance(9)
        assert (self.state(task), self.count("ttr")) == ("!", 0)

    @needs("ttr")
    def test_touch_gives_more_time_now_and_at_later_takes(self) -> None:
        task = self.taken(ttr=5)
        self.clock.advance(2)
        touched = self.tube.touch(task, 4)
        assert (touched.state, touched.ttr, touched.due) == (State.TAKEN, 9, 9)
        self.clock.advance(6.9)
        assert self.state(task) == "t"
        self.clock.advance(0.1)
        assert self.state(task) == "r"
        assert self.take().due == 18

    @needs("ttr", "ttl")
    def test_touch_prolongs_the_ttl_too(self) -> None:
        touched = self.tube.touch(self.taken(ttl=5, ttr=1), 4)
        assert (touched.ttl, touched.expires) == (9, 9)
        self.clock.advance(8.9)
        assert self.state(touched) == "r"
        self.clock.advance(0.1)
        assert self.state(touched) == "-"

    @needs("ttr")
    def test_touch_of_0_changes_nothing(self) -> None:
        task = self.taken(ttr=5)
        before = self.everything()
        assert self.tube.touch(task, 0) == task
        assert self.everything() == before
