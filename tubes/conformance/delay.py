"""Delay: until it is over a task cannot be taken."""

from __future__ import annotations

import pytest

from tubes import State, TaskNotTaken
from tubes.conformance.bench import Bench, needs


@needs("delay")
class Delay(Bench):
    """delay."""

    def test_a_delayed_task_is_ready_when_its_delay_is_over(self) -> None:
        task = self.put(delay=5)
        assert (task.state, task.due, self.count("delayed")) == (State.DELAYED, 5, 1)
        self.clock.advance(4.9)
        assert (self.state(task), self.tube.take(timeout=0)) == ("~", None)
        self.clock.advance(0.1)
        assert (self.state(task), self.count("delay"), self.take().id) == ("r", 1, task.id)

    def test_a_delay_of_0_is_none(self) -> None:
        assert self.put(delay=0).state == State.READY
        assert self.tube.release(self.take(), delay=0).state == State.READY

    def test_delays_end_at_their_own_moments_whoever_looks(self) -> None:
        tasks = [self.put(delay=delay) for delay in (3, 1, 2)]
        heard = self.listen()
        self.clock.advance(9)
        assert self.heard(heard, [("delay", tasks[index].id, "r") for index in (1, 2, 0)])

    def test_a_released_task_with_a_delay_is_nobodys(self) -> None:
        task = self.taken()
        released = self.tube.release(task, delay=5)
        assert (released.state, released.due) == (State.DELAYED, 5)
        with self.refused(TaskNotTaken):
            self.tube.ack(task.id)
        self.clock.advance(5)
        assert self.take().id == task.id

    @pytest.mark.parametrize("verb", ["bury", "delete"])
    def test_a_delayed_task_that_was_put_away_does_not_come_back(self, verb: str) -> None:
        task = getattr(self.tube, verb)(self.put(delay=5))
        self.clock.advance(9)
        assert self.state(task) == task.state.value
        assert self.count("delay") == 0

    def test_truncate_removes_deadlines_too(self) -> None:
        self.put(delay=5)
        self.tube.truncate()
        self.clock.advance(9)
        assert [self.count(name) for name in ("delay", "total", "delayed")] == [0, 0, 0]
