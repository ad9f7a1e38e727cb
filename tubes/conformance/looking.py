"""Looking at all tasks of a tube, at all tubes at a glance, and whether anything is wrong with one."""

from __future__ import annotations

import pytest

from tubes import InvalidOption, TaskNotFound, TubeNotFound
from tubes.conformance.bench import Bench, lacks, needs


class Looking(Bench):
    """tasks, overview, check, repair."""

    def test_all_tasks_are_seen_in_the_order_of_their_ids_whatever_their_state(self) -> None:
        taken, buried, ready = self.taken(), self.buried(), self.put([1, "two"])
        assert [(task.id, task.state.value) for task in self.tube.tasks()] == [
            (taken.id, "t"),
            (buried.id, "!"),
            (ready.id, "r"),
        ]
        for task in self.tube.tasks():
            assert task == self.tube.peek(task.id)

    @needs("delay")
    def test_delayed_tasks_are_seen_too(self) -> None:
        task = self.put(delay=5)
        assert [(found.id, found.due) for found in self.tube.tasks()] == [(task.id, self.clock.now() + 5)]

    def test_tasks_are_seen_page_by_page(self) -> None:
        tasks = [self.put(number) for number in range(7)]
        self.tube.delete(tasks[3])
        assert [task.data for task in self.tube.tasks(limit=2)] == [0, 1]
        assert [task.data for task in self.tube.tasks(tasks[1].id + 1, 3)] == [2, 4, 5]
        assert [task.data for task in self.tube.tasks(start=tasks[5].id + 1)] == [6]
        assert self.tube.tasks(tasks[6].id + 1) == []
        assert self.tube.tasks(limit=0) == []

    @lacks("capacity")
    def test_few_tasks_with_ids_far_apart_are_all_seen(self) -> None:
        first = self.put("first")
        between = self.tube.put_many(range(2500))
        last = self.put("last")
        self.tube.delete_many(between)
        assert [task.data for task in self.tube.tasks()] == ["first", "last"]
        assert [task.id for task in self.tube.tasks(first.id + 1)] == [last.id]

    @lacks("capacity")
    def test_more_tasks_than_a_call_looks_at_are_all_seen(self) -> None:
        tasks = self.tube.put_many(range(5200))
        self.tube.delete_many(tasks[:5100:2])
        assert [task.data for task in self.tube.tasks(limit=5200)] == [*range(1, 5100, 2), *range(5100, 5200)]
        assert [task.data for task in self.tube.tasks(tasks[5150].id)] == [*range(5150, 5200)]

    def test_looking_at_tasks_takes_none(self) -> None:
        task = self.put()
        assert self.tube.tasks() == [task]
        assert self.take().id == task.id

    @pytest.mark.parametrize("options", [{"start": -1}, {"start": "a"}, {"limit": -1}, {"limit": 1.5}])
    def test_only_numbers_say_which_tasks(self, options: dict[str, object]) -> None:
        with self.refused(InvalidOption):
            self.tube.tasks(**options)

    def test_nothing_is_wrong_with_a_tube_into_which_nobody_else_writes(self) -> None:
        self.taken(key="one", key_ttl=60)
        self.buried(key="two")
        self.put()
        self.tube.delete(self.put(key="three", key_ttl=60))
        with self.unchanged():
            assert self.queue.check("contract") == []
            assert self.queue.repair("contract") == []

    @pytest.mark.parametrize("verb", ["check", "repair"])
    def test_a_tube_that_is_not_there_is_not_checked(self, verb: str) -> None:
        with self.refused(TubeNotFound):
            getattr(self.queue, verb)("nowhere")
        with self.refused(InvalidOption):
            getattr(self.queue, verb)("no name")

    def test_the_overview_counts_as_the_statistics_do(self) -> None:
        self.taken()
        self.buried()
        self.put()
        other = self.create("other")
        other.pause(60)
        seen = self.queue.overview()
        assert list(seen) == ["contract", "other"]
        assert {name: one.statistics for name, one in seen.items()} == self.queue.statistics()
        assert (seen["contract"].driver, seen["contract"].at) == (self.knobs.name, self.clock.now())

    def test_the_overview_counts_the_sessions_that_have_opened_a_tube(self) -> None:
        other = self.another()
        assert self.queue.overview()["contract"].sessions == 2
        other.queue.close()
        assert self.queue.overview()["contract"].sessions == 1

    def test_the_overview_opens_no_session(self) -> None:
        queue = self.queue.session()
        self._queues.append(queue)
        for ages in (False, True):
            assert queue.overview(ages=ages)["contract"].sessions == 1

    def test_the_overview_changes_nothing(self) -> None:
        self.put()
        with self.unchanged():
            self.queue.overview(ages=True)

    def test_the_overview_knows_the_age_of_the_oldest_ready_task_if_it_is_asked_for(self) -> None:
        assert self.queue.overview(ages=True)["contract"].oldest_ready_age is None
        self.put()
        self.pass_time(5)
        self.put()
        assert self.queue.overview()["contract"].oldest_ready_age is None
        assert self.queue.overview(ages=True)["contract"].oldest_ready_age == 5

    @needs("lane")
    def test_the_overview_counts_lanes_and_those_that_rest(self) -> None:
        self.put(**self.lane("a"))
        self.put(**self.lane("b"))
        self.tube.block("b", 60)
        self.tube.block("c", 30)
        seen = self.queue.overview()["contract"]
        assert (seen.utubes, seen.resting) == (3, 2)
        assert seen.utubes == len(self.tube.utubes())
        self.pass_time(30)
        self.tube.statistics()
        seen = self.queue.overview()["contract"]
        assert (seen.utubes, seen.resting) == (2, 1)

    def test_the_overview_leaves_out_what_was_dropped(self) -> None:
        self.create("other").drop()
        assert list(self.queue.overview()) == ["contract"]

    def test_the_overview_counts_callers_that_wait(self) -> None:
        call = self.begin(timeout=60)
        assert self.waiting(1)
        assert self.queue.overview()["contract"].statistics.waiting == 1
        self.put()
        assert self.got(call) is not None

    @pytest.mark.parametrize("ages", [None, 1, "yes"])
    def test_ages_are_asked_for_by_true_or_false(self, ages: object) -> None:
        with self.refused(InvalidOption):
            self.queue.overview(ages=ages)

    def test_what_is_gone_is_not_seen(self) -> None:
        task = self.taken()
        task.ack()
        with pytest.raises(TaskNotFound):
            self.tube.peek(task.id)
        assert self.tube.tasks() == []
