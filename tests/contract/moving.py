"""Moving tasks to another tube."""

from __future__ import annotations

import pytest

from tests.contract.bench import Bench, eventually, lacks, needs
from tubes import DuplicateKey, InvalidOption, OptionNotSupported, Task, TaskNotFound, TubeFull
from tubes.errors import Facts


def kept_attributes(task: Task) -> tuple[object, ...]:
    """Return the attributes that a task keeps in another tube."""
    return task.data, task.utube, task.pri, task.key, task.context, task.max_attempts, task.ttr


class Moving(Bench):
    """move_to."""

    def test_move_to_moves_buried_tasks_as_ready(self) -> None:
        other = self.create("other")
        options = {"pri": 3} if self.knows("pri") else {}
        dead = [self.put_and_bury(key=f"key-{n}", context={"trace": "1"}, max_attempts=7, **options) for n in range(3)]
        self.put("stays", key="stays")
        assert self.tube.select("buried").move_to(other) == 3
        moved = {task.key: task for task in other.select()}
        assert {key: kept_attributes(task) for key, task in moved.items()} == {
            task.key: kept_attributes(task) for task in dead
        }
        assert all((task.state, task.attempts, task.reason) == ("ready", 0, None) for task in moved.values())
        assert [task.key for task in self.tube.select()] == ["stays"]
        assert (self.count("delete"), self.tube.select("buried").move_to(other)) == (3, 0)
        assert self.put(key="key-1").created_now

    def test_move_to_moves_up_to_the_limit_in_order(self) -> None:
        other = self.create("other")
        dead = self.sort_as_taken([self.put_and_bury() for _ in range(4)])
        assert self.tube.select("buried", limit=0).move_to(other) == 0
        assert self.tube.select("buried", limit=3).move_to(other) == 3
        assert [task.id for task in self.tube.select()] == [dead[3].id]

    def test_move_to_leaves_taken_tasks(self) -> None:
        with self.queue.namespace("elsewhere") as queue:
            other = queue.create_tube("other", self.driver, **self.options)
            taken, ready = self.put_and_take(), self.put("ready")
            events = self.listen()
            assert self.tube.select("ready").move_to(other) == 1
            assert [task.data for task in other.select()] == ["ready"]
            assert self.has_received(events, [("delete", ready.id, "done")])
            assert self.tube.ack(taken).id == taken.id

    @needs("delay", "ttl")
    def test_move_to_keeps_the_remaining_delay_and_ttl(self) -> None:
        other = self.create("other")
        task = self.put(ttl=60, delay=20)
        self.pass_time(5)
        assert self.tube.select("delayed").move_to(other) == 1
        (moved,) = other.select()
        assert (moved.state, moved.due, moved.expires) == ("delayed", task.due, task.expires)

    def test_move_to_keeps_options_that_are_0(self) -> None:
        pri = {"pri": 7} if self.knows("pri") else {}
        other = self.create("other", keep_done=50, key_ttl=100, **pri)
        self.put(**dict.fromkeys(pri, 0))
        self.put(key="k", key_ttl=0, keep_done=0)
        assert self.tube.select().move_to(other) == 2
        assert [(task.pri, task.keep_done) for task in other.select()] == [(0, None)] * 2
        other.delete_many([*other.select()])
        assert self.put(tube=other, key="k").created_now

    @needs("pri")
    def test_move_to_gives_tasks_without_priority_the_default_of_the_target(self) -> None:
        other, plain = self.create("other", pri=7), self.queue.create_tube("plain", "fifo")
        plain.put("data")
        assert plain.select().move_to(other) == 1
        assert [task.pri for task in other.select()] == [7]
        if self.knobs.lane is None:
            self.put(pri=0)
            assert self.tube.select().move_to(plain) == 1

    def test_moved_task_leaves_no_key_or_result_behind(self) -> None:
        other = self.create("other", keep_done=10)
        for number in range(2):
            self.put_and_bury(data="data", key=f"key-{number}", key_ttl=100, keep_done=60)
        assert self.tube.select("buried", limit=1).move_to(other) == 1
        assert all(self.tube.select()._evict([*self.tube.select()]))
        assert ([*self.tube.select("done")], self.tube.statistics().kept) == ([], 0)
        for look in (self.tube.peek, self.tube.result):
            with self.expect_error(TaskNotFound):
                look(0)
        with self.expect_error(TaskNotFound):
            self.tube.kick(task=0)
        assert all(self.put(key=f"key-{number}").created_now for number in range(2))
        (moved,) = other.select()
        assert moved.keep_done == 60
        other.take(0).ack("result")
        self.clock.advance(59)
        assert (other.result(moved.id), other.put("data", key=moved.key).created_now) == ("result", False)
        self.clock.advance(1)
        assert [*other.select("done")] == []

    @lacks("capacity")
    def test_move_to_moves_more_tasks_than_one_batch(self) -> None:
        other = self.create("other")
        self.tube.put_many(range(600))
        assert self.tube.select("ready", limit=599).move_to(other) == 599
        assert sorted(task.data for task in [*other.select(), *self.tube.select()]) == [*range(600)]

    def test_move_to_fills_a_tube_up_to_its_capacity(self) -> None:
        other = self.create("other", capacity=5)
        dead = self.sort_as_taken([self.put_and_bury() for _ in range(8)])
        with pytest.raises(TubeFull, match="'other' is full: it has no room for 1 more, its capacity is 5"):
            self.tube.select("buried").move_to(other)
        assert (other.select().count(), [*self.tube.select("buried")]) == (5, dead[5:])

    def test_move_to_refuses_a_duplicate_key_and_a_full_tube(self) -> None:
        dead = self.put_and_bury(key="same")
        other, full = self.create("other"), self.create("full", capacity=1)
        self.put(key="same", tube=other)
        with self.expect_error(DuplicateKey, match=f"^task {dead.id} cannot move to tube 'other': key 'same'"):
            self.tube.select("buried").move_to(other)
        self.put(tube=full)
        with self.expect_error(TubeFull):
            self.tube.select("buried").move_to(full)
        assert (other.select().count(), full.select().count()) == (1, 1)

    def test_move_to_works_after_another_session_altered_the_target(self) -> None:
        other = self.create("other")
        self.put_and_bury(data="data")
        self.add_worker().queue.tube("other").alter(max_attempts=5)
        assert self.tube.select("buried").move_to(other) == 1
        (moved,) = other.select()
        assert (moved.data, moved.max_attempts, [*self.tube.select()]) == ("data", 5, [])

    @needs("delay")
    def test_due_tasks_of_the_target_become_ready_before_a_move(self) -> None:
        other = self.create("other")
        self.put("late", delay=5, tube=other)
        self.put_and_bury(data="data")
        self.clock.advance(5)
        assert self.tube.select("buried").move_to(other) == 1
        assert [task.data for task in other.select("ready")] == ["late", "data"]

    def test_move_to_serves_a_waiting_take_of_the_target(self) -> None:
        other = self.create("other")
        waiting = self.begin(other, "take", 20)
        assert eventually(lambda: other.statistics().waiting == 1)
        self.put_and_bury(data="data")
        assert self.tube.select("buried").move_to(other) == 1
        assert self.result_of(waiting).data == "data"

    @needs("pri")
    def test_move_to_refuses_options_the_target_driver_lacks(self) -> None:
        dead = self.put_and_bury(pri=5)
        with self.expect_error(
            OptionNotSupported, match=f"^task {dead.id} cannot move to tube 'plain': driver 'fifo' has no"
        ):
            self.tube.select("buried").move_to(self.queue.create_tube("plain", "fifo"))

    def test_task_changed_since_it_was_read_is_not_evicted(self) -> None:
        seen = [self.put(n) for n in range(3)]
        taken = self.take()
        updated, same = (task for task in seen if task.id != taken.id)
        self.tube.update(updated.id, data="new")
        assert self.tube.select()._evict([taken, updated, same]) == [True, False, True]
        assert [task.data for task in self.tube.select()] == ["new"]
        self.put()
        ready = [*self.tube.select("ready", limit=10)]
        self.take()
        assert sorted(self.tube.select()._evict(ready)) == [False, True]

    @pytest.mark.parametrize("options", [{"state": "x"}, {"limit": -1}])
    def test_move_to_refuses_bad_states_and_limits(self, options: Facts) -> None:
        with self.expect_error(InvalidOption):
            self.tube.select(**options).move_to(self.create("other"))

    def test_move_to_refuses_a_target_that_is_not_another_tube(self) -> None:
        assert self.refuses(self.tube.select("buried").move_to, "other", None, self.tube, self.queue)
