"""Throttling: the number of taken tasks per lane, and the interval between two starts of a lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.contract.bench import Bench, eventually, needs
from tubes import InvalidOption, Item, Task, Tube
from tubes.drivers.chance import apply_jitter
from tubes.drivers.options import SECOND


class Throttled(Bench):
    """Helpers for tubes with lanes."""

    def create_throttled(self, **options: object) -> None:
        """Switch to a new tube with these options."""
        self.tube = self.create("throttled", **options)
        self.knobs = self.tube.driver

    def create_filled(self, *lanes: str, **options: object) -> list[Task]:
        """Switch to a new tube with these options, fill the lanes, and return the tasks like `fill`."""
        self.create_throttled(**options)
        return self.fill(*lanes)

    def fill(self, *lanes: str, **options: object) -> list[Task]:
        """Put a task into each of these lanes; return the tasks in the driver's order."""
        return self.sort_as_taken([self.put(**self.lane(lane), **options) for lane in lanes])

    def pass_interval(self, seconds: float) -> None:
        """Let this time pass, and check that no task can be taken until 1 µs before its end."""
        self.pass_time(seconds - 0.001)
        self.clock.advance(0.000_999)
        assert self.tube.take(timeout=0) is None
        self.clock.advance(0.000_001)

    def next_start(self, lane: str) -> float | None:
        """Return the seconds until a lane may start a task; None if it may start now."""
        (found,) = [info for info in self.tube.lanes() if info.name == lane]
        return None if found.next_start is None else found.next_start - self.clock.now()


@needs("lane")
class Limits(Throttled):
    """max_in_flight."""

    def test_max_in_flight_limits_the_taken_tasks_of_a_lane(self) -> None:
        tasks = self.create_filled("x", "x", "x", "x", max_in_flight=2)
        assert self.drain() == [task.id for task in tasks[:2]]
        self.tube.ack(tasks[0].id)
        assert self.drain() == [tasks[2].id]

    def test_max_in_flight_applies_to_each_lane(self) -> None:
        self.create_filled("x", "y", "x", "y", "x", "y", max_in_flight=2)
        assert sorted(self.tube.peek(id).utube for id in self.drain()) == ["x", "x", "y", "y"]

    @needs("delay")
    def test_lanes_that_get_tasks_in_one_call_stay_apart(self) -> None:
        self.create_throttled()
        for lane, delay in (("a", 0), ("b", 0), ("a", 1)):
            self.put(**self.lane(lane), delay=delay)
        self.pass_time(2)
        self.tube.put_many(Item(n, **self.lane("b")) for n in range(2))
        assert sorted(task.utube or "" for task in self.tube.take_many(10, timeout=0)) == ["a", "b"]

    def test_take_many_respects_max_in_flight_and_interval(self) -> None:
        self.create_throttled(max_in_flight=2)
        self.tube.lane("y").configure(interval=5)
        self.fill("x", "x", "x", "y", "y", "y")
        assert sorted(task.utube for task in self.tube.take_many(9, timeout=0)) == ["x", "x", "y"]
        self.pass_time(5)
        assert [task.utube for task in self.tube.take_many(9, timeout=0)] == ["y"]

    def test_take_many_takes_tasks_of_many_lanes_in_order(self) -> None:
        lanes = [f"{number}" for number in range(40)]
        self.create_throttled(max_in_flight=2)
        tasks = self.sort_as_taken([*self.fill(*lanes), *self.fill(*lanes)])
        assert [task.id for task in self.tube.take_many(60, timeout=0)] == [task.id for task in tasks[:60]]

    def test_take_many_gives_each_lane_its_turn(self) -> None:
        lanes = [f"{number}" for number in range(40)]
        self.create_throttled(max_in_flight=2, order="round_robin")
        self.fill(*lanes)
        self.fill(*lanes)
        taken = [task.utube for task in self.tube.take_many(60, timeout=0)]
        assert len(set(taken[:40])) == 40

    def test_returned_task_is_first_again_in_a_lane_with_room(self) -> None:
        tasks = self.create_filled("x", "x", "x", max_in_flight=2)
        assert len(self.drain()) == 2
        self.tube.release(tasks[0].id)
        assert self.drain() == [tasks[0].id]
        self.tube.admin.release_all()
        assert self.drain() == [task.id for task in tasks[:2]]

    def test_the_end_of_a_session_makes_room_in_its_lanes(self) -> None:
        tasks = self.create_filled("x", "x", "x", max_in_flight=2)
        worker = self.add_worker()
        self.take(worker.tube)
        self.take(worker.tube)
        worker.queue.close()
        assert self.drain() == [task.id for task in tasks[:2]]

    def test_raised_max_in_flight_applies_at_once(self) -> None:
        tasks = self.fill("x", "x", "x")
        assert self.drain() == [tasks[0].id]
        self.tube.lane("x").configure(max_in_flight=3)
        assert self.drain() == [task.id for task in tasks[1:]]

    def test_raised_max_in_flight_serves_a_waiting_take(self) -> None:
        tasks = self.fill("x", "x")
        self.drain()
        call = self.begin(self.add_worker().tube)
        self.tube.lane("x").configure(max_in_flight=2)
        assert self.result_of(call).id == tasks[1].id

    def test_lane_above_a_lowered_max_in_flight_starts_nothing(self) -> None:
        tasks = self.create_filled("x", "x", "x", "x", max_in_flight=3)
        self.drain()
        self.tube.lane("x").configure(max_in_flight=1)
        for task in tasks[:2]:
            self.tube.ack(task.id)
            assert self.tube.take(timeout=0) is None
        self.tube.ack(tasks[2].id)
        assert self.drain() == [tasks[3].id]

    def test_lowered_max_in_flight_withdraws_offered_tasks(self) -> None:
        tasks = self.create_filled("x", "x", "y", max_in_flight=2)
        first = self.take()
        self.tube.lane(first.utube).configure(max_in_flight=1)
        other = next(task for task in tasks if task.utube != first.utube)
        if first.utube == "x":
            assert self.drain() == [other.id]
        self.tube.lane(first.utube).configure(max_in_flight=None)
        assert len(self.drain()) == len(tasks) - 1 - (first.utube == "x")


@needs("lane")
class Intervals(Throttled):
    """interval, jitter."""

    def test_interval_counts_from_start_to_start(self) -> None:
        tasks = self.create_filled("x", "x", interval=5)
        self.take()
        self.pass_time(3)
        self.tube.ack(tasks[0].id)
        self.pass_interval(2)
        assert self.drain() == [tasks[1].id]

    def test_busy_lane_stays_busy_after_its_interval(self) -> None:
        tasks = self.create_filled("x", "x", interval=5)
        self.take()
        self.pass_time(9)
        assert self.tube.take(timeout=0) is None
        self.tube.ack(tasks[0].id)
        assert self.drain() == [tasks[1].id]

    def test_interval_does_not_delay_other_lanes(self) -> None:
        self.create_filled("x", "x", "y", "z", interval=5)
        assert len(self.drain()) == 3

    def test_interval_applies_to_a_lane_that_became_empty(self) -> None:
        self.create_filled("x", interval=5)
        self.tube.ack(self.take())
        self.pass_time(2)
        (task,) = self.fill("x")
        assert self.state(task) == "ready"
        self.pass_interval(3)
        assert self.drain() == [task.id]

    def test_interval_applies_between_several_tasks_in_flight(self) -> None:
        tasks = self.create_filled("x", "x", "x", interval=5, max_in_flight=2)
        assert self.drain() == [tasks[0].id]
        self.pass_interval(5)
        assert self.drain() == [tasks[1].id]
        self.pass_time(5)
        assert self.drain() == []

    def test_waiting_take_is_served_when_the_interval_ends(self) -> None:
        tasks = self.create_filled("x", "x", interval=5)
        self.tube.ack(self.take())
        calls = [self.begin(self.add_worker().tube) for _ in range(2)]
        self.pass_time(4.9)
        assert self.has_waiters(2)
        self.pass_time(0.1)
        assert self.result_of(calls[0]).id == tasks[1].id
        assert self.has_waiters(1)

    def test_waiting_takes_are_served_after_each_interval(self) -> None:
        tasks = self.create_filled("x", "x", "x", "x", interval=5)
        worker = self.add_worker()
        for task in tasks:
            call = self.begin(worker.tube)
            if task is not tasks[0]:
                self.pass_time(5)
            assert worker.tube.ack(self.result_of(call)).id == task.id

    def test_loop_respects_the_interval_of_a_lane(self) -> None:
        self.create_filled("x", "x", "y", interval=5)
        seen: list[str] = []
        for task in self.tube:
            seen.append(task.utube)
            if len(seen) == 2:
                assert sorted(seen) == ["x", "y"]
                self.pass_time(5)
            if len(seen) == 3:
                break
        assert seen[2] == "x"

    @needs("pri")
    def test_best_task_of_a_lane_comes_first_after_the_interval(self) -> None:
        self.create_throttled(interval=5)
        self.fill("x", pri=3)
        self.tube.ack(self.take())
        tasks = self.sort_as_taken([self.put(**self.lane("x"), pri=pri) for pri in (3, 1, 7, 2)])
        for task in tasks:
            self.pass_interval(5)
            assert self.tube.ack(self.take()).id == task.id

    def test_task_released_during_an_interval_waits_for_its_end(self) -> None:
        tasks = self.create_filled("x", "x", interval=5)
        self.tube.release(self.take())
        self.pass_interval(5)
        assert self.take().id == tasks[0].id
        self.tube.admin.release_all()
        self.pass_interval(5)
        assert self.drain() == [tasks[0].id]

    @needs("ttr")
    def test_task_past_its_ttr_waits_for_the_end_of_the_interval(self) -> None:
        self.create_throttled(interval=5)
        (task,) = self.fill("x", ttr=2)
        self.take()
        self.pass_time(2)
        assert self.state(task) == "ready"
        self.pass_interval(3)
        assert self.drain() == [task.id]

    @needs("ttl")
    def test_ttl_ends_during_an_interval(self) -> None:
        self.create_filled("x", interval=5)
        self.tube.ack(self.take())
        (task,) = self.fill("x", ttl=2)
        self.pass_time(2)
        assert self.state(task) == "done"
        self.pass_time(3)
        assert self.tube.lanes() == []

    @needs("delay")
    def test_delay_ends_during_an_interval(self) -> None:
        self.create_filled("x", interval=5)
        self.tube.release(self.take(), delay=2)
        self.pass_time(2)
        self.pass_interval(3)
        assert len(self.drain()) == 1

    def test_jitter_lengthens_intervals_reproducibly(self) -> None:
        self.create_throttled(interval=5, jitter=0.5)
        for number in range(12):
            self.fill(f"x{number}")
        spans: list[float] = []
        for id in self.drain():
            expected = apply_jitter(5 * SECOND, 0.5, 0, id, 1)
            spans.append(expected / SECOND)
            assert self.next_start(self.tube.peek(id).utube) == pytest.approx(expected / SECOND, abs=1e-6)
        assert len(set(spans)) == 12
        assert min(spans) >= 5
        assert max(spans) <= 7.5

    def test_tube_jitter_applies_to_a_lane_with_its_own_interval(self) -> None:
        self.create_throttled(jitter=0.5)
        self.tube.lane("x").configure(interval=2)
        (task,) = self.fill("x")
        self.take()
        expected = apply_jitter(2 * SECOND, 0.5, 0, task.id, 1) / SECOND
        assert self.next_start("x") == pytest.approx(expected, abs=1e-6)

    def test_a_lane_may_have_any_name(self) -> None:
        for name in ("", "ü", "\ud800", "x" * 500):
            self.tube.lane(name).configure(interval=2)
            self.tube.lane(name).block(5)
            self.fill(name)
        assert [lane.name for lane in self.tube.lanes()] == sorted(("", "ü", "\ud800", "x" * 500))

    def test_an_interval_that_is_changed_counts_from_the_last_start(self) -> None:
        tasks = self.create_filled("x", "x", "x", interval=5)
        self.tube.ack(self.take())
        self.pass_time(2)
        self.tube.lane("x").configure(interval=3)
        self.pass_interval(1)
        self.tube.lane("x").configure(interval=4)
        self.pass_interval(1)
        assert self.take().id == tasks[1].id
        self.tube.ack(tasks[1].id)
        self.tube.lane("x").configure(interval=0)
        assert self.drain() == [tasks[2].id]

    def test_changed_interval_serves_a_waiting_take(self) -> None:
        tasks = self.create_filled("x", "x", interval=60)
        self.tube.ack(self.take())
        call = self.begin(self.add_worker().tube)
        self.tube.lane("x").configure(interval=5)
        self.pass_time(5)
        assert self.result_of(call).id == tasks[1].id

    def test_lane_may_have_an_interval_in_a_tube_without_interval(self) -> None:
        self.tube.lane("x").configure(interval=5)
        tasks = self.fill("x", "x", "y", "y")
        for id in self.drain():
            self.tube.ack(id)
        assert self.tube.peek(self.drain()[0]).utube == "y"
        self.pass_interval(5)
        assert self.drain() == [[task for task in tasks if task.utube == "x"][1].id]

    def test_lane_returns_to_the_limits_of_the_tube(self) -> None:
        self.create_throttled(interval=5)
        self.tube.lane("x").configure(interval=60, max_in_flight=2)
        self.tube.lane("x").configure(interval=None)
        self.fill("x", "x")
        (found,) = self.tube.lanes()
        assert (found.interval, found.max_in_flight) == (5, 2)
        self.take()
        self.pass_interval(5)
        assert len(self.drain()) == 1
        self.tube.lane("x").configure(max_in_flight=None)
        assert self.tube.lanes()[0].max_in_flight == 1

    @pytest.mark.parametrize("options", [{}, {"interval_from": "ack"}], ids=["interval from takes", "from acks"])
    def test_cancelled_take_undoes_the_start_of_its_lane(self, options: dict[str, str]) -> None:
        self.require_asyncio()
        self.create_throttled(interval=5, **options)
        tube = self.tube.inner
        if self.cancel_late(tube.take, tube, lambda: tube.put(None, **self.lane("x"))):
            assert eventually(lambda: self.count("take") == 0)
            assert self.next_start("x") is None
            assert len(self.drain()) == 1


@needs("lane")
class Bursts(Throttled):
    """lane_rate, lane_burst."""

    def test_lane_starts_its_burst_at_once_and_then_one_task_per_interval(self) -> None:
        tasks = self.create_filled(*"xxxxxxxy", lane_rate="12/min", lane_burst=3, max_in_flight=9)
        ids = [task.id for task in tasks if task.utube == "x"]
        assert [id for id in self.drain() if id in ids] == ids[:3]
        assert self.next_start("x") == pytest.approx(5)
        assert self.next_start("y") is None
        self.pass_interval(5)
        assert self.drain() == ids[3:4]
        self.pass_time(10)
        assert self.drain() == ids[4:6]

    def test_emptied_lane_keeps_its_starts_until_its_burst_is_full(self) -> None:
        self.create_filled("x", "x", interval=5, lane_burst=2)
        for _ in range(2):
            self.tube.ack(self.take())
        self.fill("x", "x")
        for _ in range(2):
            self.pass_interval(5)
            self.tube.ack(self.take())
        self.pass_time(5)
        assert self.next_start("x") is None
        self.fill("x", "x")
        self.tube.ack(self.take())
        self.pass_interval(5)
        self.tube.ack(self.take())
        self.pass_time(9.9)
        assert len(self.tube.lanes()) == 1
        self.pass_time(0.1)
        assert self.tube.lanes() == []

    def test_lane_may_have_its_own_rate_and_burst(self) -> None:
        tasks = self.create_filled("x", "x", "x", "x", max_in_flight=9)
        lane = self.tube.lane("x")
        lane.configure(rate="12/min", burst=2)
        assert (lane.info().interval, lane.info().burst) == (5, 2)
        assert self.drain() == [task.id for task in tasks[:2]]
        self.pass_interval(5)
        assert self.drain() == [tasks[2].id]
        lane.configure(burst=None)
        assert lane.info().burst == 1
        self.pass_interval(5)
        assert self.drain() == [tasks[3].id]
        lane.configure(rate=0)
        assert lane.info()[3:5] == (None, 0)

    def test_burst_counts_as_one_if_the_interval_counts_from_acks(self) -> None:
        tasks = self.create_filled("x", "x", "x", interval=5, lane_burst=3, max_in_flight=3, interval_from="ack")
        assert self.tube.lane("x").info().burst == 1
        assert self.drain() == [tasks[0].id]
        self.tube.alter(interval_from="take")
        assert self.tube.lane("x").info().burst == 3
        self.pass_time(10)
        assert self.drain() == [task.id for task in tasks[1:]]

    def test_burst_of_a_live_tube_changes(self) -> None:
        tasks = self.create_filled("x", "x", "x", "x", interval=5, max_in_flight=9)
        assert self.drain() == [tasks[0].id]
        self.tube.alter(lane_burst=3)
        self.pass_time(10)
        assert self.drain() == [task.id for task in tasks[1:3]]
        self.tube.alter(lane_burst=None)
        self.pass_interval(5)
        assert self.drain() == [tasks[3].id]

    def test_changed_limits_of_lanes_bring_no_takes(self) -> None:
        self.create_filled(*"x" * 25, interval=5, lane_burst=9, max_in_flight=30)
        assert len(self.drain()) == 9
        lane = self.tube.lane("x")
        changes: tuple[Callable[[], object], ...] = (
            lambda: self.tube.alter(lane_burst=1),
            lambda: self.tube.alter(interval=7, lane_burst=20),
            lambda: self.tube.alter(interval_from="ack"),
            lambda: self.tube.alter(interval=5, lane_burst=9, interval_from="take"),
            lambda: lane.configure(burst=1),
            lambda: lane.configure(interval=7, burst=20),
            lambda: lane.configure(interval_from="ack"),
            lambda: lane.configure(interval=None, burst=None, interval_from=None),
        )
        for change in changes:
            change()
            assert self.drain() == []
        self.pass_time(15)
        for change in changes[4:]:
            change()
        assert len(self.drain()) == 3
        self.pass_time(44.9)
        assert len(self.drain()) == 8
        assert self.next_start("x") == pytest.approx(0.1)

    def test_lane_rate_is_another_spelling_of_the_interval(self) -> None:
        tube = self.create("rated", lane_rate="10/s", lane_burst=5)
        assert (tube.options["interval"], tube.options["lane_burst"]) == (0.1, 5)
        assert self.queue.create_tube("rated", self.driver, if_not_exists=True, **tube.options) is not None
        tube.alter(lane_rate=4)
        assert tube.options["interval"] == 0.25
        tube.alter(lane_rate=None)
        assert not {"interval", "lane_rate", "lane_burst"} & set(tube.options)

    def test_bad_rates_and_bursts_of_lanes_are_refused(self) -> None:
        for options in ({"lane_burst": 5}, {"lane_burst": 5, "lane_rate": 0}):
            with self.expect_error(InvalidOption, "needs an interval"):
                self.create("rated", **options)
        with self.expect_error(InvalidOption, "must be left out if an interval is given"):
            self.create("rated", interval=1, lane_rate=1)
        with self.expect_error(InvalidOption, "must be left out if an interval is given"):
            self.tube.lane("x").configure(interval=1, rate=1)
        assert self.refuses(lambda value: self.tube.lane("x").configure(burst=value), 0, -1, 1.5, "2", True, 10**7)
        assert self.refuses(lambda value: self.tube.lane("x").configure(rate=value), "", "5", -1, True, "5/m")
        assert self.refuses(lambda value: self.create("rated", interval=1, lane_burst=value), 0, 1.5, "2", True)


@needs("lane")
class IntervalsFromAcks(Throttled):
    """interval_from."""

    ENDS: Final[dict[str, Callable[[Tube, Task], object]]] = {
        "ack": lambda tube, task: tube.ack(task),
        "ack_many": lambda tube, task: tube.ack_many([task]),
        "release": lambda tube, task: tube.release(task),
        "release_many": lambda tube, task: tube.release_many([task]),
        "release_all": lambda tube, task: tube.admin.release_all(),
        "bury": lambda tube, task: tube.bury(task),
        "delete": lambda tube, task: tube.delete(task.id),
        "cancel": lambda tube, task: tube.cancel(task.id),
        "delete_many": lambda tube, task: tube.delete_many([task.id]),
        "truncate": lambda tube, task: tube.select("taken").delete(),
    }

    def start_run(self, **options: object) -> Task:
        """Switch to such a tube with two tasks in one lane; the first task was taken 3 seconds ago."""
        self.create_filled("x", "x", **{"interval": 5, "interval_from": "ack", **options})
        task = self.take()
        self.pass_time(3)
        return task

    @pytest.mark.parametrize("end", ENDS)
    def test_interval_counts_from_the_end_of_a_run(self, end: str) -> None:
        task = self.start_run()
        self.ENDS[end](self.tube, task)
        assert self.next_start("x") == pytest.approx(5)
        self.pass_interval(5)
        assert len(self.drain()) == 1

    def test_run_longer_than_the_interval_is_followed_by_a_cooldown(self) -> None:
        task = self.start_run()
        self.pass_time(6)
        self.tube.ack(task)
        self.pass_interval(5)
        assert len(self.drain()) == 1

    def test_end_of_a_session_ends_its_runs(self) -> None:
        self.create_filled("x", interval=5, interval_from="ack")
        worker = self.add_worker()
        self.take(worker.tube)
        self.pass_time(3)
        worker.queue.close()
        self.pass_interval(5)
        assert len(self.drain()) == 1

    @needs("ttr")
    def test_interval_counts_from_the_end_of_a_ttr(self) -> None:
        self.create_throttled(interval=5, interval_from="ack")
        self.fill("x", ttr=2)
        self.take()
        self.pass_time(2)
        self.pass_interval(5)
        assert len(self.drain()) == 1

    @needs("delay")
    def test_released_task_with_a_delay_ends_its_run(self) -> None:
        task = self.start_run()
        self.tube.release(task, delay=60)
        self.pass_interval(5)
        assert len(self.drain()) == 1

    def test_replaced_task_ends_its_run(self) -> None:
        self.create_throttled(interval=5, interval_from="ack")
        self.fill("x", key="a")
        self.take()
        self.pass_time(3)
        (new,) = self.fill("x", key="a", on_duplicate="replace")
        self.pass_interval(5)
        assert self.drain() == [new.id]

    def test_changes_of_a_taken_task_do_not_end_its_run(self) -> None:
        task = self.start_run()
        self.tube.update(task, data=1)
        assert self.next_start("x") == pytest.approx(2)

    def test_end_of_a_task_that_is_not_taken_does_not_delay_its_lane(self) -> None:
        tasks = self.create_filled("x", "x", "x", interval=5, interval_from="ack")
        self.tube.delete(tasks[0].id)
        self.tube.bury(tasks[1].id)
        assert self.drain() == [tasks[2].id]

    def test_tasks_in_flight_start_after_the_interval_from_takes_and_ends(self) -> None:
        tasks = self.create_filled("x", "x", "x", "x", interval=5, interval_from="ack", max_in_flight=2)
        assert self.drain() == [tasks[0].id]
        self.pass_interval(5)
        assert self.drain() == [tasks[1].id]
        self.pass_time(1)
        self.tube.ack(tasks[0].id)
        self.pass_interval(5)
        assert self.drain() == [tasks[2].id]

    def test_end_of_a_run_withdraws_an_offered_task(self) -> None:
        tasks = self.create_filled("x", "x", "x", interval=5, interval_from="ack", max_in_flight=3)
        assert self.drain() == [tasks[0].id]
        self.pass_time(5)
        self.tube.ack(tasks[0].id)
        self.pass_interval(5)
        assert self.drain() == [tasks[1].id]

    def test_waiting_take_is_served_after_the_cooldown(self) -> None:
        task = self.start_run()
        call = self.begin(self.add_worker().tube)
        self.tube.ack(task)
        self.pass_time(4.9)
        assert self.has_waiters(1)
        self.pass_time(0.1)
        assert self.result_of(call).utube == "x"

    def test_lane_may_count_its_interval_from_acks(self) -> None:
        task = self.start_run(interval_from="take")
        self.tube.lane("x").configure(interval_from="ack")
        self.tube.ack(task)
        self.pass_interval(5)
        task = self.take()
        self.pass_time(3)
        self.tube.lane("x").configure(interval_from=None)
        self.tube.ack(task)
        assert self.next_start("x") == pytest.approx(2)

    def test_lane_may_count_its_interval_from_takes_in_a_tube_that_counts_from_acks(self) -> None:
        self.create_throttled(interval=5, interval_from="ack")
        self.tube.lane("x").configure(interval_from="take")
        self.fill("x", "y")
        taken = self.tube.take_many(2, timeout=0)
        self.pass_time(3)
        self.tube.ack_many(taken)
        assert self.next_start("x") == pytest.approx(2)
        assert self.next_start("y") == pytest.approx(5)

    def test_task_that_was_taken_before_its_lane_was_configured_ends_with_a_cooldown(self) -> None:
        tasks = self.fill("x", "x")
        self.tube.take(timeout=0)
        self.tube.lane("x").configure(interval=5, interval_from="ack")
        self.pass_time(9)
        self.tube.ack(tasks[0].id)
        self.pass_interval(5)
        assert self.drain() == [tasks[1].id]

    def test_altered_interval_from_counts_for_later_ends(self) -> None:
        task = self.start_run(interval_from="take")
        self.tube.alter(interval_from="ack")
        assert self.next_start("x") == pytest.approx(2)
        self.tube.ack(task)
        self.pass_interval(5)
        task = self.take()
        self.pass_time(3)
        self.tube.alter(interval_from=None)
        self.tube.ack(task)
        assert self.next_start("x") == pytest.approx(2)

    def test_jitter_lengthens_the_cooldown(self) -> None:
        task = self.start_run(jitter=0.5)
        self.tube.ack(task)
        expected = apply_jitter(5 * SECOND, 0.5, 0, task.id, 1) / SECOND
        assert self.next_start("x") == pytest.approx(expected, abs=1e-6)


@needs("lane")
class Blocks(Throttled):
    """block."""

    def test_blocked_lane_starts_nothing_until_the_block_ends(self) -> None:
        (task,) = self.fill("x")
        self.tube.lane("x").block(5)
        assert self.state(task) == "ready"
        self.pass_interval(5)
        assert self.drain() == [task.id]

    def test_other_lanes_are_not_blocked(self) -> None:
        self.fill("x", "y")
        self.tube.lane("x").block(5)
        assert [self.tube.peek(id).utube for id in self.drain()] == ["y"]

    def test_a_lane_without_tasks_can_be_blocked(self) -> None:
        self.tube.lane("x").block(5)
        (task,) = self.fill("x")
        self.pass_interval(5)
        assert self.drain() == [task.id]

    @pytest.mark.parametrize("method", ["lanes", "info", "block", "configure"])
    def test_calls_of_lanes_end_if_a_block_has_ended_since_the_last_call(self, method: str) -> None:
        lane = self.tube.lane("x")
        lane.block(5)
        self.clock.advance(6)
        calls = {
            "lanes": self.tube.lanes,
            "info": lane.info,
            "block": lambda: lane.block(3),
            "configure": lambda: lane.configure(interval=3),
        }
        calls[method]()
        assert (lane.info().blocked_until is None) == (method != "block")

    def test_task_stays_taken_while_its_lane_is_blocked(self) -> None:
        tasks = self.fill("x", "x")
        held = self.take()
        self.tube.lane("x").block(5)
        assert self.state(held) == "taken"
        self.tube.ack(held)
        self.pass_interval(5)
        assert self.drain() == [tasks[1].id]

    def test_block_of_0_seconds_ends_a_block(self) -> None:
        (task,) = self.fill("x")
        self.tube.lane("x").block(5)
        call = self.begin(self.add_worker().tube)
        self.tube.lane("x").block(0)
        assert self.result_of(call).id == task.id
        self.tube.lane("nobody").block(0)
        assert [lane.name for lane in self.tube.lanes()] == ["x"]

    def test_last_block_replaces_earlier_ones(self) -> None:
        (task,) = self.fill("x")
        self.tube.lane("x").block(2)
        self.tube.lane("x").block(9)
        self.tube.lane("x").block(5)
        self.pass_interval(5)
        assert self.drain() == [task.id]

    def test_extending_block_never_shortens_a_block(self) -> None:
        (task,) = self.fill("x")
        self.tube.lane("x").block(9)
        self.tube.lane("x").block(5, extend=True)
        self.tube.lane("x").block(0, extend=True)
        self.pass_interval(9)
        assert self.drain() == [task.id]

    def test_extending_block_lengthens_a_block(self) -> None:
        (task,) = self.fill("x")
        self.tube.lane("x").block(0, extend=True)
        self.tube.lane("x").block(2, extend=True)
        self.tube.lane("x").block(5, extend=True)
        self.pass_interval(5)
        assert self.drain() == [task.id]

    def test_waiting_take_is_served_when_a_block_ends(self) -> None:
        self.tube.lane("x").block(5)
        (task,) = self.fill("x")
        call = self.begin(self.add_worker().tube)
        self.pass_time(4)
        self.tube.lane("x").block(3)
        self.pass_time(2)
        assert self.has_waiters(1)
        self.pass_time(1)
        assert self.result_of(call).id == task.id

    def test_later_end_of_block_and_interval_counts(self) -> None:
        tasks = self.create_filled("x", "x", "x", interval=5)
        self.tube.ack(self.take())
        self.tube.lane("x").block(2)
        assert self.next_start("x") == pytest.approx(5)
        self.tube.lane("x").block(0)
        self.pass_interval(5)
        self.tube.ack(self.take())
        self.tube.lane("x").block(9)
        self.pass_interval(9)
        assert self.drain() == [tasks[2].id]

    def test_info_of_a_lane_counts_its_tasks_and_names_its_limits(self) -> None:
        self.create_filled("x", "x", "x", "y", interval=5, max_in_flight=2)
        self.tube.lane("x").configure(interval=7)
        self.drain()
        now = self.clock.now()
        soon = pytest.approx(now + 7, abs=1e-6)
        assert tuple(self.tube.lane("x").info())[:-1] == ("x", 2, 1, soon, 7.0, 2, 0, 1, 1, None, None)
        assert tuple(self.tube.lane("z").info()) == ("z", 0, 0, None, 5.0, 2, 0, 1, 1, None, None, None)
        assert self.tube.lanes() == [self.tube.lane(lane).info() for lane in ("x", "y")]

    def test_info_in_a_tube_without_limits(self) -> None:
        self.create_filled("x", "x")
        self.take()
        self.tube.put(None, **self.lane("\ud800"))
        assert tuple(self.tube.lane("x").info())[:-1] == ("x", 1, 1, None, 0.0, 1, 0, 1, 1, None, None)
        assert self.tube.lane("\ud800").info().ready == 1
        assert tuple(self.tube.lane("z").info()) == ("z", 0, 0, None, 0.0, 1, 0, 1, 1, None, None, None)

    def test_waiting_since_is_the_put_of_the_next_task(self) -> None:
        lane = self.tube.lane("x")
        assert lane.info().waiting_since is None
        for _ in range(4):
            self.fill("x")
            self.pass_time(1)
        for _ in range(4):
            task = self.take()
            assert lane.info().waiting_since != task.created
            self.tube.release(task)
            assert lane.info().waiting_since == task.created
            lane.block(60)
            assert lane.info().waiting_since == task.created
            lane.unblock()
            self.tube.delete(task)
        assert lane.info().waiting_since is None

    def test_info_distinguishes_a_block_from_a_cooldown(self) -> None:
        self.create_filled("x", "x", interval=5)
        self.take()
        lane = self.tube.lane("x")
        assert lane.info().next_start is not None
        assert lane.info()[-3:-1] == (None, None)
        now = self.clock.now()
        lane.block(2, reason="429, Retry-After 2")
        assert lane.info()[-3:-1] == (pytest.approx(now + 2, abs=1e-6), "429, Retry-After 2")
        assert lane.info().next_start == pytest.approx(now + 5, abs=1e-6)
        self.pass_time(2)
        assert lane.info()[-3:-1] == (None, None)
        assert lane.info().next_start is not None
        lane.block(9)
        assert lane.info().blocked_until is not None
        assert lane.info().blocked_reason is None

    def test_reason_of_a_block_is_kept_until_it_is_replaced_or_ended(self) -> None:
        lane = self.tube.lane("x")
        lane.block(5, reason="a")
        lane.block(2, extend=True, reason="b")
        assert lane.info().blocked_reason == "a"
        lane.block(9, extend=True, reason="c")
        assert lane.info().blocked_reason == "c"
        lane.block(2, reason="\ud800")
        assert lane.info().blocked_reason == "\ud800"
        lane.configure(interval=1)
        assert lane.info().blocked_reason == "\ud800"
        lane.unblock()
        assert lane.info()[-3:-1] == (None, None)
        lane.block(5)
        assert lane.info().blocked_reason is None

    def test_block_and_configure_refuse_bad_values(self) -> None:
        self.fill("x")
        assert self.refuses(lambda name: self.tube.lane(name).block(1), None, b"x", 1.5)
        assert self.refuses(lambda seconds: self.tube.lane("x").block(seconds), -1, None, "1", True)
        assert self.refuses(lambda extend: self.tube.lane("x").block(5, extend=extend), None, 1, "yes")
        assert self.refuses(lambda reason: self.tube.lane("x").block(5, reason=reason), "", 5, b"429")
        assert self.refuses(lambda interval: self.tube.lane("x").configure(interval=interval), -1, "1")
        assert self.refuses(lambda limit: self.tube.lane("x").configure(max_in_flight=limit), 0, 1.5)
        assert self.refuses(lambda moment: self.tube.lane("x").configure(interval_from=moment), "put", "", 1)
        assert self.refuses(lambda capacity: self.tube.lane("x").configure(capacity=capacity), -1, 1.5, "2")
        assert self.refuses(self.tube.lanes, -1)
        assert self.tube.lanes()[0].next_start is None


@needs("lane")
class RoundRobin(Throttled):
    """order, lanes."""

    def drain_lanes(self) -> list[str]:
        """Take all available tasks and return their lanes in this order."""
        return [self.tube.peek(id).utube for id in self.drain()]

    def test_round_robin_serves_the_lane_with_the_oldest_start(self) -> None:
        self.create_filled("x", "x", "x", "y", "y", "z", order="round_robin")
        seen: list[str] = []
        while (task := self.tube.take(timeout=0)) is not None:
            seen.append(task.utube)
            self.tube.ack(task)
        assert seen == ["x", "y", "z", "x", "y", "x"]

    def test_round_robin_orders_new_lanes_by_their_first_task(self) -> None:
        self.create_filled("x", "x", "y", order="round_robin")
        assert self.tube.ack(self.take()).utube == "x"
        self.fill("a", "y")
        assert self.drain_lanes() == ["y", "x", "a"]

    def test_round_robin_serves_the_best_task_of_a_lane(self) -> None:
        tasks = self.create_filled("x", "y", "x", "y", "x", "y", order="round_robin")
        for lane in "xyxyxy":
            task = self.tube.ack(self.take())
            assert task.id == next(each.id for each in tasks if each.utube == lane)
            tasks = [each for each in tasks if each.id != task.id]

    def test_round_robin_moves_a_lane_to_the_end_after_a_release(self) -> None:
        self.create_filled("x", "y", "z", order="round_robin")
        self.tube.release(self.take())
        assert self.drain_lanes() == ["y", "z", "x"]
        self.tube.admin.release_all()
        assert self.drain_lanes() == ["y", "z", "x"]

    def test_round_robin_alternates_lanes_with_several_in_flight(self) -> None:
        self.create_filled("x", "x", "x", "y", "y", "y", order="round_robin", max_in_flight=2)
        assert self.drain_lanes() == ["x", "y", "x", "y"]

    def test_round_robin_keeps_the_place_of_a_blocked_lane(self) -> None:
        self.create_filled("x", "y", "z", order="round_robin")
        self.tube.lane("x").block(5)
        assert self.tube.ack(self.take()).utube == "y"
        self.fill("y")
        self.pass_time(5)
        assert self.drain_lanes() == ["x", "z", "y"]

    def take_in_turn(self, count: int) -> str:
        """Take and ack this many tasks, one after the other, and return their lanes."""
        return "".join(self.tube.ack(self.take()).utube or "" for _ in range(count))

    def test_lane_gets_as_many_takes_per_round_as_its_weight(self) -> None:
        self.create_throttled(order="round_robin")
        self.tube.lane("x").configure(weight=3)
        self.fill(*"x" * 15, *"y" * 5)
        taken = self.take_in_turn(20)
        assert all(taken[n : n + 4].count("x") == 3 for n in range(17))

    def test_batch_respects_weights(self) -> None:
        self.create_throttled(order="round_robin", max_in_flight=20)
        self.tube.lane("y").configure(weight=2)
        self.fill(*"xxxyyyyyyzzz")
        assert "".join(task.utube or "" for task in self.tube.take_many(12, timeout=0)) == "xyyz" * 3

    def test_changed_weight_applies_from_the_next_round(self) -> None:
        self.create_throttled(order="round_robin")
        lane = self.tube.lane("x")
        lane.configure(weight=3)
        self.fill(*"x" * 20, *"y" * 9)
        assert self.take_in_turn(5) == "xxxyx"
        lane.configure(weight=2)
        assert self.take_in_turn(5) == "xyxxy"
        lane.configure(weight=None)
        assert self.take_in_turn(4) == "xyxy"
        lane.configure(weight=4)
        assert self.take_in_turn(6) == "xxxxyx"

    def test_empty_lane_collects_no_turns(self) -> None:
        self.create_throttled(order="round_robin")
        self.tube.lane("x").configure(weight=3)
        self.fill("x", *"y" * 9)
        assert self.take_in_turn(6) == "xyyyyy"
        self.fill(*"x" * 9)
        assert self.take_in_turn(8) == "yxxxyxxx"

    def test_lane_that_waits_for_an_ack_keeps_the_rest_of_its_turn(self) -> None:
        self.create_throttled(order="round_robin")
        self.tube.lane("x").configure(weight=2)
        self.fill(*"xxx", *"yyy")
        first = self.take()
        assert self.take_in_turn(2) == "yy"
        self.tube.ack(first)
        assert self.take_in_turn(3) == "xyx"

    def test_lanes_next_to_a_weighted_one_keep_their_order(self) -> None:
        self.create_throttled(order="round_robin", max_in_flight=9)
        self.fill(*"aabbxxxx")
        self.tube.lane("x").configure(weight=2)
        self.tube.lane("b").block(5)
        assert "".join(self.drain_lanes()) == "axxaxx"
        self.pass_time(5)
        assert self.drain_lanes() == ["b", "b"]

    def test_weight_is_shown_and_refused_without_round_robin_order(self) -> None:
        self.create_throttled(order="round_robin")
        lane = self.tube.lane("x")
        assert lane.info().weight == 1
        lane.configure(weight=7)
        assert (lane.info().weight, self.tube.lanes()[0].weight) == (7, 7)
        assert self.refuses(lambda value: lane.configure(weight=value), 0, 101, 1.5, "2", True)
        lane.configure(weight=None)
        assert (lane.info().weight, self.tube.lanes()) == (1, [])
        plain = self.create("plain").lane("x")
        with self.expect_error(InvalidOption, match=r"weight=2: needs a tube with order=\"round_robin\""):
            plain.configure(weight=2)
        plain.configure(weight=None)

    def test_lanes_are_listed_by_name(self) -> None:
        self.create_filled("b", "b", "b", "a", interval=5, max_in_flight=2)
        self.put(**self.lane(None))
        self.tube.lane("d").block(60)
        self.tube.lane("c").configure(interval=0.5, max_in_flight=7)
        for _ in range(3):
            self.take()
        now = self.clock.now()
        put = self.tube.peek(2).created
        soon, far = pytest.approx(now + 5, abs=1e-6), pytest.approx(now + 60, abs=1e-6)
        assert [tuple(lane) for lane in self.tube.lanes()] == [
            ("a", 0, 1, soon, 5.0, 2, 0, 1, 1, None, None, None),
            ("b", 2, 1, soon, 5.0, 2, 0, 1, 1, None, None, put),
            ("c", 0, 0, None, 0.5, 7, 0, 1, 1, None, None, None),
            ("d", 0, 0, far, 5.0, 2, 0, 1, 1, far, None, None),
            ("nil", 0, 1, soon, 5.0, 2, 0, 1, 1, None, None, None),
        ]
        assert [lane.name for lane in self.tube.lanes(limit=2)] == ["a", "b"]
        assert self.tube.lanes(limit=0) == []

    def test_finished_lane_is_forgotten(self) -> None:
        self.create_filled("x", "y", "z", interval=5)
        self.tube.lane("z").configure(interval=3)
        for id in self.drain():
            self.tube.ack(id)
        self.tube.lane("w").block(4)
        assert [lane.name for lane in self.tube.lanes()] == ["w", "x", "y", "z"]
        self.pass_time(4)
        assert [lane.name for lane in self.tube.lanes()] == ["x", "y", "z"]
        self.pass_time(1)
        assert [lane.name for lane in self.tube.lanes()] == ["z"]
        self.tube.lane("z").configure(interval=None)
        assert self.tube.lanes() == []

    def test_truncate_forgets_lane_limits_and_blocks(self) -> None:
        self.create_filled("x", "y", interval=5)
        self.drain()
        self.tube.lane("z").block(9)
        self.tube.lane("y").configure(max_in_flight=3)
        self.tube.truncate()
        assert self.tube.lanes() == []
        self.fill("x", "y", "z")
        assert len(self.drain()) == 3

    @pytest.mark.parametrize("method", ["truncate", "drop"])
    @pytest.mark.parametrize("end", ["block", "interval", "ttr", "session"])
    def test_drop_and_truncate_work_when_a_deadline_has_just_passed(self, method: str, end: str) -> None:
        self.require("ttr" if end == "ttr" else "")
        self.create_throttled(interval=1)
        self.fill("x", "x", **({"ttr": 2} if end == "ttr" else {}))
        if end == "block":
            self.tube.lane("x").block(2)
        elif end == "session":
            other = self.add_worker()
            other.tube.take(timeout=0)
            other.queue.admin.detach()
        else:
            task = self.take()
            if end == "interval":
                self.tube.ack(task)
        self.pass_time(self.session_ttl + 2)
        if method == "drop":
            self.tube.drop()
            self.create_throttled()
        else:
            self.tube.truncate()
        assert self.count("total") == 0
        assert self.tube.lanes() == []
        tasks = self.fill("x")
        assert self.drain() == [task.id for task in tasks]
