"""Changing a task in place, and statistics of a whole tube."""

from __future__ import annotations

import pytest

from tests.contract.bench import Bench, lacks, needs
from tubes import InvalidOption, OptionNotSupported, TaskNotFound, TaskNotTaken


class Updates(Bench):
    """update, due_histogram, oldest_ready_age."""

    def test_update_changes_data_in_any_state(self) -> None:
        taken, ready, buried = *self.puts(2), self.put_and_bury()
        assert self.take().id == taken.id
        states = {task.id: self.state(task) for task in (ready, taken, buried)}
        events = self.listen()
        for task in (ready, taken, buried):
            updated = self.tube.update(task, data=["new", task.id])
            assert (updated.data, str(updated.state)) == (["new", task.id], states[task.id])
            found = self.tube.peek(task)
            assert (found.data, found.attempts, found.created) == (["new", task.id], updated.attempts, task.created)
        assert self.has_received(events, [("update", id, state) for id, state in states.items()])

    def test_update_does_not_change_earlier_task_objects(self) -> None:
        before = self.put("old")
        taken = self.take()
        self.tube.update(before, data="new")
        assert (before.data, taken.data) == ("old", "old")
        assert self.tube.ack(taken).state == "done"

    @pytest.mark.parametrize("method", ["ack", "release", "touch"])
    def test_holder_keeps_the_data_it_took_after_an_update(self, method: str) -> None:
        self.require("ttr" if method == "touch" else "")
        task = self.put_and_take(data="old")
        self.tube.update(task.id, data="new")
        result = getattr(self.tube, method)(task, *([1] if method == "touch" else []))
        assert result.data == "old"
        if method == "touch":
            assert result.ack().data == "old"
        elif method == "release":
            assert self.take().data == "new"

    def test_update_without_changes_is_a_peek_without_event(self) -> None:
        task, events = self.put(), self.listen()
        assert self.tube.update(task) == task
        with self.expect_error(TaskNotFound):
            self.tube.update(task.id + 1000)
        last = self.put()
        assert self.has_received(events, [("put", last.id, "ready")])

    def test_an_updated_task_keeps_its_place_and_its_lane(self) -> None:
        tasks = [self.put(number) for number in range(3)]
        for task in tasks:
            self.tube.update(task, data=task.data + 10)
        assert self.drain() == [task.id for task in self.sort_as_taken(tasks)]

    def test_update_leaves_a_taken_task_with_its_holder(self) -> None:
        task = self.put_and_take()
        self.tube.update(task, data=None)
        assert self.add_worker().tube.peek(task).state == "taken"
        assert self.tube.release(task).state == "ready"
        assert self.take().data is None

    @needs("pri")
    def test_update_of_the_priority_changes_the_place(self) -> None:
        tasks = [self.put(pri=5) for _ in range(3)]
        for pri, task in zip((9, 5, 1), tasks, strict=True):
            assert self.tube.update(task, pri=pri).pri == pri
        assert self.drain() == [task.id for task in self.sort_as_taken([self.tube.peek(task) for task in tasks])]

    @needs("pri")
    def test_a_buried_task_gets_its_new_place_when_it_is_kicked(self) -> None:
        first, second = self.put_and_bury(pri=5), self.put_and_bury(pri=5)
        self.tube.update(second, pri=1)
        self.tube.select("buried", limit=2).kick()
        assert self.drain() == [
            task.id for task in self.sort_as_taken([self.tube.peek(task) for task in (first, second)])
        ]

    @needs("delay")
    def test_update_starts_or_ends_a_delay(self) -> None:
        task = self.put()
        assert (self.tube.update(task, delay=5).state, self.tube.peek(task).due) == ("delayed", 5)
        assert self.tube.update(task, delay=2).due == 2
        self.clock.advance(1)
        assert self.tube.take(timeout=0) is None
        assert self.tube.update(task, delay=0).state == "ready"
        assert self.tube.update(task, delay=0).state == "ready"
        assert self.take().id == task.id
        with self.expect_error(InvalidOption):
            self.tube.update(task, delay=1)
        self.tube.bury(task)
        with self.expect_error(InvalidOption):
            self.tube.update(task, delay=0, data="not this either")

    @needs("delay")
    def test_update_that_ends_a_delay_wakes_a_waiter(self) -> None:
        task = self.put(delay=50)
        call = self.begin(timeout=None)
        assert self.has_waiters(1)
        self.tube.update(task, delay=0)
        assert self.result_of(call).id == task.id

    @needs("delay")
    def test_updated_delay_ends_at_its_new_time(self) -> None:
        task = self.put(delay=50)
        call = self.begin(timeout=None)
        assert self.has_waiters(1)
        self.tube.update(task, delay=3)
        self.clock.advance(3)
        assert self.result_of(call).id == task.id

    @needs("ttl")
    def test_updated_ttl_counts_from_the_update(self) -> None:
        mortal, immortal = self.put(ttl=5), self.put()
        self.clock.advance(4)
        for task in (mortal, immortal):
            updated = self.tube.update(task, ttl=6)
            assert (updated.ttl, updated.expires) == (10, 10)
        assert self.changes_state(mortal, "ready", "done", after=6)
        assert self.state(immortal) == "done"

    @needs("ttl")
    def test_update_of_the_ttl_is_refused_for_a_taken_task(self) -> None:
        task = self.put_and_take(ttl=50)
        with self.expect_error(InvalidOption):
            self.tube.update(task, data="new", ttl=9)

    @needs("ttr")
    def test_update_does_not_change_the_ttr_of_a_taken_task(self) -> None:
        task = self.put_and_take(ttr=5)
        self.clock.advance(2)
        assert self.tube.update(task, data="new").due == 5
        self.clock.advance(3)
        assert self.state(task) == "ready"
        again = self.take()
        self.tube.update(task, data="newer")
        self.tube.ack(again)
        self.clock.advance(9)
        assert self.state(task) == "done"

    def test_update_with_any_bad_value_changes_nothing(self) -> None:
        task = self.put("old")
        wrong: list[dict[str, object]] = [{"pri": -1}, {"delay": -1}, {"ttl": "1"}, {"pri": None}]
        for changes in wrong:
            known = changes.keys() <= self.knobs.options or None in changes.values()
            with self.expect_error(InvalidOption if known else OptionNotSupported):
                self.tube.update(task, data="new", **changes)
        with self.expect_error(TaskNotFound):
            self.tube.update(10**6, data="new")

    @lacks("pri")
    def test_update_refuses_options_the_driver_lacks(self) -> None:
        task = self.put("old")
        with self.expect_error(OptionNotSupported):
            self.tube.update(task, data="new", pri=1)

    def test_an_updated_task_keeps_its_key_and_attempts(self) -> None:
        task = self.put(key="k", max_attempts=1)
        self.tube.update(task, data="new")
        assert (self.put(key="k").data, self.tube.peek(task).max_attempts) == ("new", 1)
        self.tube.ack(self.take())
        assert self.put(key="k").created_now

    # -- statistics ----------------------------------------------------------------------------------------------------

    def test_oldest_ready_age_is_the_age_of_the_oldest_ready_task(self) -> None:
        assert self.tube.admin.oldest_ready_age() is None
        first = self.put()
        self.clock.advance(5)
        second = self.put()
        self.clock.advance(2)
        assert self.tube.admin.oldest_ready_age() == 7
        self.tube.bury(first)
        assert self.tube.admin.oldest_ready_age() == 2
        self.tube.delete(second)
        assert self.tube.admin.oldest_ready_age() is None
        self.tube.select("buried", limit=1).kick()
        assert self.tube.admin.oldest_ready_age() == 7

    def test_oldest_ready_age_skips_many_tasks_that_are_not_ready(self) -> None:
        tasks = self.puts(20)
        for task in tasks:
            self.tube.bury(task)
        self.clock.advance(3)
        self.put()
        self.clock.advance(1)
        assert self.tube.admin.oldest_ready_age() == 1

    @needs("delay")
    def test_oldest_ready_age_finds_tasks_with_ids_far_apart(self) -> None:
        delayed = self.tube.put_many(range(2100), delay=9)
        self.tube.delete_many(self.tube.put_many(range(11_000)))
        for _ in range(2):
            assert self.tube.admin.oldest_ready_age() is None
        self.clock.advance(9)
        assert self.tube.admin.oldest_ready_age() == 9
        self.tube.delete_many(delayed[:1500])
        self.clock.advance(1)
        self.put()
        assert self.tube.admin.oldest_ready_age() == 10
        self.tube.delete_many(delayed[1500:])
        assert self.tube.admin.oldest_ready_age() == 0

    @needs("delay")
    def test_due_histogram_counts_tasks_by_due_time(self) -> None:
        for delay in (1, 4, 5, 50, 500):
            self.put(delay=delay)
        self.put()
        assert self.tube.admin.due_histogram([5, 100]) == [2, 2, 1]
        assert self.tube.admin.due_histogram([]) == [5]
        self.clock.advance(4)
        assert self.tube.admin.due_histogram([5]) == [1, 2]

    def test_due_histogram_refuses_bad_edges(self) -> None:
        assert self.tube.admin.due_histogram([1, 2]) == [0, 0, 0]
        wrong: list[object] = [[2, 1], [-1], ["1"], 5, "12"]
        for edges in wrong:
            with pytest.raises(InvalidOption):
                self.tube.admin.due_histogram(edges)

    @needs("pri")
    def test_release_and_bury_may_change_the_priority(self) -> None:
        first, second, third = (self.put(pri=5) for _ in range(3))
        for _ in range(3):
            self.take()
        assert self.tube.release(second.id, pri=2).pri == 2
        assert self.tube.release(first.id).pri == 5
        assert self.tube.bury(third.id, pri=7).pri == 7
        assert self.tube.bury(first.id, "late", pri=0).pri == 0
        assert self.tube.bury(first.id, pri=9).pri == 0
        assert self.tube.select("buried", limit=2).kick() == 2
        ready = [self.tube.peek(task.id) for task in (first, second, third)]
        assert [task.pri for task in ready] == [0, 2, 7]
        if self.knobs.lane is None:
            assert self.drain() == [task.id for task in self.sort_as_taken(ready)]

    def test_release_may_change_the_data(self) -> None:
        for by_id in (False, True):
            task = self.put_and_take(data="old")
            assert self.tube.release(task.id if by_id else task, data={"page": 2}).data == {"page": 2}
            assert task.data == "old"
            again = self.take()
            assert (again.id, again.data, again.attempts) == (task.id, {"page": 2}, 2)
            assert self.tube.ack(again).data == {"page": 2}
        ready = self.put("old")
        with self.expect_error(TaskNotTaken):
            self.tube.release(ready, data="new")
        assert self.take().data == "old"

    @needs("delay")
    def test_release_with_data_follows_the_other_rules_of_release(self) -> None:
        task = self.put_and_take(data=1, max_attempts=2)
        assert self.tube.release(task, delay=5, data=2).state == "delayed"
        self.clock.advance(5)
        last = self.tube.release(self.take(), data=3)
        assert (last.state, last.data, self.tube.peek(last).data) == ("buried", 3, 3)

    @lacks("pri")
    def test_release_and_bury_refuse_pri_where_the_driver_has_no_pri(self) -> None:
        task = self.put_and_take()
        assert self.refuses(lambda pri: self.tube.release(task, pri=pri), 0, error=OptionNotSupported)
        assert self.refuses(lambda pri: self.tube.bury(task, pri=pri), 0, error=OptionNotSupported)
