"""Listing the tasks of a tube, an overview of all tubes, and checks of their consistency."""

from __future__ import annotations

import pytest

from tests.contract.bench import Bench, lacks, needs
from tubes import InvalidOption, OptionNotSupported, State, TaskNotFound, TubeNotFound


class Looking(Bench):
    """tasks, overview, check, repair."""

    def test_tasks_lists_all_states_in_id_order(self) -> None:
        taken, buried, ready = self.put_and_take(), self.put_and_bury(), self.put([1, "two"])
        assert [(task.id, str(task.state)) for task in self.tube.select()] == [
            (taken.id, "taken"),
            (buried.id, "buried"),
            (ready.id, "ready"),
        ]
        for task in self.tube.select():
            assert task == self.tube.peek(task.id)

    @needs("delay")
    def test_tasks_lists_delayed_tasks(self) -> None:
        task = self.put(delay=5)
        assert [(found.id, found.due) for found in self.tube.select()] == [(task.id, self.clock.now() + 5)]

    def test_tasks_can_be_read_page_by_page(self) -> None:
        tasks = [self.put(number) for number in range(7)]
        self.tube.delete(tasks[3])
        assert [task.data for task in self.tube.select(limit=2)] == [0, 1]
        assert self.list_after(tasks[1].id) == [task.id for task in (tasks[2], *tasks[4:])]
        assert self.list_after(tasks[6].id) == []
        assert [*self.tube.select(limit=0)] == []

    @lacks("capacity")
    def test_tasks_lists_few_tasks_with_ids_far_apart(self) -> None:
        first = self.put("first")
        between = self.tube.put_many(range(2500))
        last = self.put("last")
        self.tube.delete_many(between)
        assert [task.data for task in self.tube.select()] == ["first", "last"]
        assert self.list_after(first.id) == [last.id]

    @lacks("capacity")
    def test_tasks_lists_more_tasks_than_one_call_reads(self) -> None:
        tasks = self.tube.put_many(range(5200))
        self.tube.delete_many(tasks[:5100:2])
        assert [task.data for task in self.tube.select(limit=5200)] == [*range(1, 5100, 2), *range(5100, 5200)]
        assert self.list_after(tasks[5149].id) == [task.id for task in tasks[5150:]]
        ready = [task.id for task in self.sort_as_taken(tasks[:5100][1::2] + tasks[5100:])]
        assert [task.id for task in self.tube.select("ready", limit=5200)] == ready
        # Returned tasks get their old places again.
        back = self.tube.take_many(600)[::2]
        self.tube.release_many(back)
        ready = [task.id for task in self.sort_as_taken([*back, *self.tube.select("ready", limit=5200)])]
        assert [task.id for task in self.tube.select("ready")] == list(dict.fromkeys(ready))
        assert [task.id for task in self.tube.select("taken")] == [
            task.id for task in self.tube.select() if task.state == "taken"
        ]

    def test_listing_tasks_takes_no_task(self) -> None:
        task = self.put()
        assert [*self.tube.select()] == [task]
        assert self.take().id == task.id

    def pages(self, state: str) -> list[int]:
        """Return the ids of all tasks in a state, and check the lists that begin after each of them."""
        found = [task.id for task in self.tube.select(state)]
        assert sorted(found) == [task.id for task in self.tube.select() if task.state == state]
        for place, id in enumerate(found, 1):
            assert self.list_after(id, state) == found[place:]
        return found

    def test_tasks_of_one_state_are_listed_in_queue_order(self) -> None:
        pri = {"pri": 1} if self.knows("pri") else {}
        tasks = [self.put(number, **(pri if number % 3 else {})) for number in range(12)]
        held = [self.take(), self.take(self.add_worker().tube), self.take(), self.take()]
        self.tube.release(held.pop(0))
        for task in tasks[8:2:-2]:
            if task.id not in {one.id for one in held}:
                self.tube.bury(task.id)
        left = {task.id: task for task in self.tube.select()}
        ready, buried = ([task for task in left.values() if task.state == state] for state in ("ready", "buried"))
        in_order = ready if self.knobs.lane else self.sort_as_taken(ready)
        assert self.pages("ready") == [task.id for task in in_order]
        assert self.pages("buried") == [task.id for task in self.sort_as_taken(buried)]
        assert self.pages("taken") == sorted(task.id for task in held)
        assert self.pages("delayed") == []
        assert [*self.tube.select("buried", limit=1)] == [*self.tube.select("buried", limit=1)]
        for state in ("ready", State.READY):
            assert [*self.tube.select(state)] == in_order
        self.tube.delete(in_order[0].id)
        if not self.knobs.lane:
            with self.expect_error(TaskNotFound):
                self.list_after(in_order[0].id, "ready")
        self.tube.select("buried", limit=1).kick()
        assert [*self.tube.select("buried")] == self.sort_as_taken(buried)[1:]

    @needs("delay")
    def test_delayed_tasks_are_listed_in_due_order(self) -> None:
        # Delays longer than a slot of the timers, several equal ones, and some between other timers.
        delays = [5, 0.001, 3600, 5, 5, 1, 0.5, 5]
        later = self.tube.put(0, delay=40)
        tasks = [self.put(number, delay=delay) for number, delay in enumerate(delays)]
        if self.knows("ttr"):
            self.put_and_take(ttr=2)
        if self.knows("ttl"):
            self.put(ttl=4)
        expected = [task.id for task in sorted([*tasks, later], key=lambda task: (task.due, task.id))]
        assert self.pages("delayed") == expected
        self.pass_time(0.1)
        self.tube.update(later.id, delay=0.2)
        assert [*self.tube.select("delayed", limit=2)] == [self.tube.peek(id) for id in (later.id, tasks[6].id)]

    @needs("lane")
    def test_tasks_of_one_lane_are_listed(self) -> None:
        tasks = [self.put(number, **self.lane("ab"[number % 2])) for number in range(6)]
        other = self.tube.put("in none")
        taken = next(task for task in iter(self.take, None) if task.utube == "a")
        buried, ready = (task for task in tasks[::2] if task.id != taken.id)
        self.tube.bury(buried.id)
        assert [task.data for task in self.tube.select(lane="a")] == [0, 2, 4]
        for state, ids in (("ready", [ready.id]), ("taken", [taken.id]), ("buried", [buried.id]), ("delayed", [])):
            assert [task.id for task in self.tube.select(state, lane="a")] == ids
        assert self.list_after(tasks[1].id, lane="b") == [tasks[3].id, tasks[5].id]
        assert [*self.tube.select(lane="nil")] == [self.tube.peek(other.id)]
        assert [*self.tube.select(lane="c")] == []

    @lacks("lane")
    def test_listing_a_lane_is_refused_where_the_driver_has_no_lanes(self) -> None:
        with self.expect_error(OptionNotSupported):
            list(self.tube.select(lane="a"))

    @pytest.mark.parametrize(
        "options",
        [{"limit": -1}, {"limit": 1.5}, {"state": "gone"}, {"state": 7}, {"state": ""}],
    )
    def test_selection_refuses_bad_arguments(self, options: dict[str, object]) -> None:
        with self.expect_error(InvalidOption):
            self.tube.select(**options)

    def test_check_and_repair_find_nothing_in_an_intact_tube(self) -> None:
        self.put_and_take(key="one", key_ttl=60)
        self.put_and_bury(key="two")
        self.put()
        self.tube.delete(self.put(key="three", key_ttl=60))
        with self.expect_no_change():
            assert self.queue.admin.check("contract") == []
            assert self.queue.admin.repair("contract") == []

    @pytest.mark.parametrize("method", ["check", "repair"])
    def test_check_and_repair_refuse_a_missing_tube(self, method: str) -> None:
        with self.expect_error(TubeNotFound):
            getattr(self.queue.admin, method)("nowhere")
        with self.expect_error(InvalidOption):
            getattr(self.queue.admin, method)("no name")

    def test_overview_counts_match_the_statistics(self) -> None:
        self.put_and_take()
        self.put_and_bury()
        self.put()
        other = self.create("other")
        other.pause(60)
        seen = self.queue.admin.overview()
        assert list(seen) == ["contract", "other"]
        assert {name: one.statistics for name, one in seen.items()} == self.queue.statistics()
        assert (seen["contract"].driver, seen["contract"].at) == (self.knobs.name, self.clock.now())

    def test_the_overview_counts_the_sessions_that_have_opened_a_tube(self) -> None:
        other = self.add_worker()
        assert self.queue.admin.overview()["contract"].sessions == 2
        other.queue.close()
        assert self.queue.admin.overview()["contract"].sessions == 1

    def test_the_overview_opens_no_session(self) -> None:
        queue = self.queue.session()
        self._queues.append(queue)
        for ages in (False, True):
            assert queue.admin.overview(ages=ages)["contract"].sessions == 1

    def test_the_overview_changes_nothing(self) -> None:
        self.put()
        with self.expect_no_change():
            self.queue.admin.overview(ages=True)

    def test_overview_includes_oldest_ready_age_on_request(self) -> None:
        assert self.queue.admin.overview(ages=True)["contract"].oldest_ready_age is None
        self.put()
        self.pass_time(5)
        self.put()
        assert self.queue.admin.overview()["contract"].oldest_ready_age is None
        assert self.queue.admin.overview(ages=True)["contract"].oldest_ready_age == 5

    @needs("lane")
    def test_overview_counts_lanes_and_lanes_in_cooldown(self) -> None:
        self.put(**self.lane("a"))
        self.put(**self.lane("b"))
        self.tube.lane("b").block(60)
        self.tube.lane("c").block(30)
        seen = self.queue.admin.overview()["contract"]
        assert (seen.lanes, seen.throttled_lanes) == (3, 2)
        assert seen.lanes == len(self.tube.lanes())
        self.pass_time(30)
        self.tube.statistics()
        seen = self.queue.admin.overview()["contract"]
        assert (seen.lanes, seen.throttled_lanes) == (2, 1)

    def test_overview_omits_dropped_tubes(self) -> None:
        self.create("other").drop()
        assert list(self.queue.admin.overview()) == ["contract"]

    def test_the_overview_counts_callers_that_wait(self) -> None:
        call = self.begin(timeout=60)
        assert self.has_waiters(1)
        assert self.queue.admin.overview()["contract"].statistics.waiting == 1
        self.put()
        assert self.result_of(call) is not None

    @pytest.mark.parametrize("ages", [None, 1, "yes"])
    def test_overview_refuses_non_boolean_ages(self, ages: object) -> None:
        with self.expect_error(InvalidOption):
            self.queue.admin.overview(ages=ages)

    def test_acked_task_is_not_found_or_listed(self) -> None:
        task = self.put_and_take()
        task.ack()
        with pytest.raises(TaskNotFound):
            self.tube.peek(task.id)
        assert [*self.tube.select()] == []
