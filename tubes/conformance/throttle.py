"""Throttling: how many tasks of a lane are taken at a time, and how long it rests between two starts."""

from __future__ import annotations

import pytest

from tubes import Task
from tubes.conformance.bench import Bench, eventually, needs
from tubes.drivers.chance import varied
from tubes.drivers.options import SECOND


class Throttled(Bench):
    """A bench for tubes with lanes."""

    def throttle(self, **options: object) -> None:
        """Go on with another tube, that has these options."""
        self.tube = self.create("throttled", **options)
        self.knobs = self.tube.driver

    def throttled(self, *lanes: str, **options: object) -> list[Task]:
        """Go on with a tube that has these options, and a task in each of these lanes; answers them as `fill` does."""
        self.throttle(**options)
        return self.fill(*lanes)

    def fill(self, *lanes: str, **options: object) -> list[Task]:
        """Put a task into each of these lanes; answers them in the driver's order."""
        return self.in_order([self.put(**self.lane(lane), **options) for lane in lanes])

    def rest(self, seconds: float) -> None:
        """Nothing can be taken until so many seconds have passed, to the microsecond."""
        self.pass_time(seconds - 0.001)
        self.clock.advance(0.000_999)
        assert self.tube.take(timeout=0) is None
        self.clock.advance(0.000_001)

    def next_start(self, lane: str) -> float | None:
        """The seconds from now until a lane may start; None: now."""
        (found,) = [utube for utube in self.tube.utubes() if utube.name == lane]
        return None if found.next_start is None else found.next_start - self.clock.now()


@needs("lane")
class Limits(Throttled):
    """max_in_flight."""

    def test_so_many_of_a_lane_are_taken_at_a_time(self) -> None:
        tasks = self.throttled("x", "x", "x", "x", max_in_flight=2)
        assert self.drain() == [task.id for task in tasks[:2]]
        self.tube.ack(tasks[0].id)
        assert self.drain() == [tasks[2].id]

    def test_a_limit_is_of_each_lane(self) -> None:
        self.throttled("x", "y", "x", "y", "x", "y", max_in_flight=2)
        assert sorted(self.tube.peek(id).utube for id in self.drain()) == ["x", "x", "y", "y"]

    def test_many_at_once_are_no_more_of_a_lane_than_one_by_one(self) -> None:
        self.throttle(max_in_flight=2)
        self.tube.configure("y", interval=5)
        self.fill("x", "x", "x", "y", "y", "y")
        assert sorted(task.utube for task in self.tube.take_many(9, timeout=0)) == ["x", "x", "y"]
        self.pass_time(5)
        assert [task.utube for task in self.tube.take_many(9, timeout=0)] == ["y"]

    def test_what_returns_to_a_lane_with_room_is_first_again(self) -> None:
        tasks = self.throttled("x", "x", "x", max_in_flight=2)
        assert len(self.drain()) == 2
        self.tube.release(tasks[0].id)
        assert self.drain() == [tasks[0].id]
        self.tube.release_all()
        assert self.drain() == [task.id for task in tasks[:2]]

    def test_the_end_of_a_session_makes_room_in_its_lanes(self) -> None:
        tasks = self.throttled("x", "x", "x", max_in_flight=2)
        worker = self.another()
        self.take(worker.tube)
        self.take(worker.tube)
        worker.queue.close()
        assert self.drain() == [task.id for task in tasks[:2]]

    def test_a_limit_that_is_raised_counts_at_once(self) -> None:
        tasks = self.fill("x", "x", "x")
        assert self.drain() == [tasks[0].id]
        self.tube.configure("x", max_in_flight=3)
        assert self.drain() == [task.id for task in tasks[1:]]

    def test_a_limit_that_is_raised_serves_who_waits(self) -> None:
        tasks = self.fill("x", "x")
        self.drain()
        call = self.begin(self.another().tube)
        self.tube.configure("x", max_in_flight=2)
        assert self.got(call).id == tasks[1].id

    def test_a_limit_below_what_is_taken_lets_nothing_start_until_there_is_room(self) -> None:
        tasks = self.throttled("x", "x", "x", "x", max_in_flight=3)
        self.drain()
        self.tube.configure("x", max_in_flight=1)
        for task in tasks[:2]:
            self.tube.ack(task.id)
            assert self.tube.take(timeout=0) is None
        self.tube.ack(tasks[2].id)
        assert self.drain() == [tasks[3].id]

    def test_a_limit_that_is_lowered_withdraws_what_was_on_offer(self) -> None:
        tasks = self.throttled("x", "x", "y", max_in_flight=2)
        first = self.take()
        self.tube.configure(first.utube, max_in_flight=1)
        other = next(task for task in tasks if task.utube != first.utube)
        if first.utube == "x":
            assert self.drain() == [other.id]
        self.tube.configure(first.utube, max_in_flight=None)
        assert len(self.drain()) == len(tasks) - 1 - (first.utube == "x")


@needs("lane")
class Intervals(Throttled):
    """interval, jitter."""

    def test_a_lane_rests_from_start_to_start(self) -> None:
        tasks = self.throttled("x", "x", interval=5)
        self.take()
        self.pass_time(3)
        self.tube.ack(tasks[0].id)
        self.rest(2)
        assert self.drain() == [tasks[1].id]

    def test_after_a_rest_a_lane_that_is_busy_is_busy_still(self) -> None:
        tasks = self.throttled("x", "x", interval=5)
        self.take()
        self.pass_time(9)
        assert self.tube.take(timeout=0) is None
        self.tube.ack(tasks[0].id)
        assert self.drain() == [tasks[1].id]

    def test_other_lanes_do_not_rest(self) -> None:
        self.throttled("x", "x", "y", "z", interval=5)
        assert len(self.drain()) == 3

    def test_a_lane_rests_also_when_it_has_become_empty_meanwhile(self) -> None:
        self.throttled("x", interval=5)
        self.tube.ack(self.take())
        self.pass_time(2)
        (task,) = self.fill("x")
        assert self.state(task) == "r"
        self.rest(3)
        assert self.drain() == [task.id]

    def test_with_several_in_flight_there_is_an_interval_between_them(self) -> None:
        tasks = self.throttled("x", "x", "x", interval=5, max_in_flight=2)
        assert self.drain() == [tasks[0].id]
        self.rest(5)
        assert self.drain() == [tasks[1].id]
        self.pass_time(5)
        assert self.drain() == []

    def test_who_waits_is_served_when_the_rest_is_over(self) -> None:
        tasks = self.throttled("x", "x", interval=5)
        self.tube.ack(self.take())
        calls = [self.begin(self.another().tube) for _ in range(2)]
        self.pass_time(4.9)
        assert self.waiting(2)
        self.pass_time(0.1)
        assert self.got(calls[0]).id == tasks[1].id
        assert self.waiting(1)

    def test_who_waits_is_served_again_and_again(self) -> None:
        tasks = self.throttled("x", "x", "x", "x", interval=5)
        worker = self.another()
        for task in tasks:
            call = self.begin(worker.tube)
            if task is not tasks[0]:
                self.pass_time(5)
            assert worker.tube.ack(self.got(call)).id == task.id

    def test_the_end_of_a_loop_and_its_next_task_are_two_starts(self) -> None:
        self.throttled("x", "x", "y", interval=5)
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
    def test_after_a_rest_the_best_task_of_the_lane_comes_first(self) -> None:
        self.throttle(interval=5)
        self.fill("x", pri=3)
        self.tube.ack(self.take())
        tasks = self.in_order([self.put(**self.lane("x"), pri=pri) for pri in (3, 1, 7, 2)])
        for task in tasks:
            self.rest(5)
            assert self.tube.ack(self.take()).id == task.id

    def test_what_is_released_during_a_rest_waits_for_its_end(self) -> None:
        tasks = self.throttled("x", "x", interval=5)
        self.tube.release(self.take())
        self.rest(5)
        assert self.take().id == tasks[0].id
        self.tube.release_all()
        self.rest(5)
        assert self.drain() == [tasks[0].id]

    @needs("ttr")
    def test_what_was_taken_for_too_long_waits_for_the_end_of_the_rest(self) -> None:
        self.throttle(interval=5)
        (task,) = self.fill("x", ttr=2)
        self.take()
        self.pass_time(2)
        assert self.state(task) == "r"
        self.rest(3)
        assert self.drain() == [task.id]

    @needs("ttl")
    def test_a_ttl_ends_during_a_rest(self) -> None:
        self.throttled("x", interval=5)
        self.tube.ack(self.take())
        (task,) = self.fill("x", ttl=2)
        self.pass_time(2)
        assert self.state(task) == "-"
        self.pass_time(3)
        assert self.tube.utubes() == []

    @needs("delay")
    def test_a_delay_ends_during_a_rest(self) -> None:
        self.throttled("x", interval=5)
        self.tube.release(self.take(), delay=2)
        self.pass_time(2)
        self.rest(3)
        assert len(self.drain()) == 1

    def test_jitter_lengthens_an_interval_by_chance_that_can_be_repeated(self) -> None:
        self.throttle(interval=5, jitter=0.5)
        for number in range(12):
            self.fill(f"x{number}")
        spans: list[float] = []
        for id in self.drain():
            expected = varied(5 * SECOND, 0.5, 0, id, 1)
            spans.append(expected / SECOND)
            assert self.next_start(self.tube.peek(id).utube) == pytest.approx(expected / SECOND, abs=1e-6)
        assert len(set(spans)) == 12
        assert min(spans) >= 5
        assert max(spans) <= 7.5

    def test_the_tubes_jitter_is_that_of_a_lane_with_an_interval_of_its_own(self) -> None:
        self.throttle(jitter=0.5)
        self.tube.configure("x", interval=2)
        (task,) = self.fill("x")
        self.take()
        expected = varied(2 * SECOND, 0.5, 0, task.id, 1) / SECOND
        assert self.next_start("x") == pytest.approx(expected, abs=1e-6)

    def test_a_lane_may_have_any_name(self) -> None:
        for name in ("", "ü", "\ud800", "x" * 500):
            self.tube.configure(name, interval=2)
            self.tube.block(name, 5)
            self.fill(name)
        assert [lane.name for lane in self.tube.utubes()] == sorted(("", "ü", "\ud800", "x" * 500))

    def test_an_interval_that_is_changed_counts_from_the_last_start(self) -> None:
        tasks = self.throttled("x", "x", "x", interval=5)
        self.tube.ack(self.take())
        self.pass_time(2)
        self.tube.configure("x", interval=3)
        self.rest(1)
        self.tube.configure("x", interval=4)
        self.rest(1)
        assert self.take().id == tasks[1].id
        self.tube.ack(tasks[1].id)
        self.tube.configure("x", interval=0)
        assert self.drain() == [tasks[2].id]

    def test_an_interval_that_is_changed_serves_who_waits(self) -> None:
        tasks = self.throttled("x", "x", interval=60)
        self.tube.ack(self.take())
        call = self.begin(self.another().tube)
        self.tube.configure("x", interval=5)
        self.pass_time(5)
        assert self.got(call).id == tasks[1].id

    def test_a_lane_may_have_an_interval_in_a_tube_without(self) -> None:
        self.tube.configure("x", interval=5)
        tasks = self.fill("x", "x", "y", "y")
        for id in self.drain():
            self.tube.ack(id)
        assert self.tube.peek(self.drain()[0]).utube == "y"
        self.rest(5)
        assert self.drain() == [[task for task in tasks if task.utube == "x"][1].id]

    def test_a_lane_goes_back_to_what_the_tube_says(self) -> None:
        self.throttle(interval=5)
        self.tube.configure("x", interval=60, max_in_flight=2)
        self.tube.configure("x", interval=None)
        self.fill("x", "x")
        (found,) = self.tube.utubes()
        assert (found.interval, found.max_in_flight) == (5, 2)
        self.take()
        self.rest(5)
        assert len(self.drain()) == 1
        self.tube.configure("x", max_in_flight=None)
        assert self.tube.utubes()[0].max_in_flight == 1

    def test_a_take_that_is_cancelled_gives_the_start_back(self) -> None:
        self.cancelling()
        self.throttle(interval=5)
        tube = self.tube.inner
        if self.cancels_late(tube.take, tube, lambda: tube.put(None, **self.lane("x"))):
            assert eventually(lambda: self.count("take") == 0)
            assert self.next_start("x") is None
            assert len(self.drain()) == 1


@needs("lane")
class Blocks(Throttled):
    """block."""

    def test_a_lane_that_is_blocked_starts_nothing_until_then(self) -> None:
        (task,) = self.fill("x")
        self.tube.block("x", 5)
        assert self.state(task) == "r"
        self.rest(5)
        assert self.drain() == [task.id]

    def test_other_lanes_are_not_blocked(self) -> None:
        self.fill("x", "y")
        self.tube.block("x", 5)
        assert [self.tube.peek(id).utube for id in self.drain()] == ["y"]

    def test_a_lane_without_tasks_can_be_blocked(self) -> None:
        self.tube.block("x", 5)
        (task,) = self.fill("x")
        self.rest(5)
        assert self.drain() == [task.id]

    def test_what_is_taken_stays_so_while_its_lane_is_blocked(self) -> None:
        tasks = self.fill("x", "x")
        held = self.take()
        self.tube.block("x", 5)
        assert self.state(held) == "t"
        self.tube.ack(held)
        self.rest(5)
        assert self.drain() == [tasks[1].id]

    def test_a_block_of_0_ends_one(self) -> None:
        (task,) = self.fill("x")
        self.tube.block("x", 5)
        call = self.begin(self.another().tube)
        self.tube.block("x", 0)
        assert self.got(call).id == task.id
        self.tube.block("nobody", 0)
        assert [utube.name for utube in self.tube.utubes()] == ["x"]

    def test_the_last_block_counts(self) -> None:
        (task,) = self.fill("x")
        self.tube.block("x", 2)
        self.tube.block("x", 9)
        self.tube.block("x", 5)
        self.rest(5)
        assert self.drain() == [task.id]

    def test_who_waits_is_served_when_a_block_ends(self) -> None:
        self.tube.block("x", 5)
        (task,) = self.fill("x")
        call = self.begin(self.another().tube)
        self.pass_time(4)
        self.tube.block("x", 3)
        self.pass_time(2)
        assert self.waiting(1)
        self.pass_time(1)
        assert self.got(call).id == task.id

    def test_a_block_and_a_rest_both_count(self) -> None:
        tasks = self.throttled("x", "x", "x", interval=5)
        self.tube.ack(self.take())
        self.tube.block("x", 2)
        assert self.next_start("x") == pytest.approx(5)
        self.tube.block("x", 0)
        self.rest(5)
        self.tube.ack(self.take())
        self.tube.block("x", 9)
        self.rest(9)
        assert self.drain() == [tasks[2].id]

    def test_a_block_for_nothing_that_is_sensible_is_refused(self) -> None:
        self.fill("x")
        assert self.refuses(lambda name: self.tube.block(name, 1), None, b"x", 1.5)
        assert self.refuses(lambda seconds: self.tube.block("x", seconds), -1, None, "1", True)
        assert self.refuses(lambda interval: self.tube.configure("x", interval=interval), -1, "1")
        assert self.refuses(lambda limit: self.tube.configure("x", max_in_flight=limit), 0, 1.5)
        assert self.refuses(self.tube.utubes, -1)
        assert self.tube.utubes()[0].next_start is None


@needs("lane")
class Rounds(Throttled):
    """order, utubes."""

    def started(self) -> list[str]:
        """Take whatever can be taken; the lanes in that order."""
        return [self.tube.peek(id).utube for id in self.drain()]

    def test_in_rounds_the_lane_that_started_longest_ago_comes_first(self) -> None:
        self.throttled("x", "x", "x", "y", "y", "z", order="round_robin")
        seen: list[str] = []
        while (task := self.tube.take(timeout=0)) is not None:
            seen.append(task.utube)
            self.tube.ack(task)
        assert seen == ["x", "y", "z", "x", "y", "x"]

    def test_in_rounds_a_lane_that_has_not_started_comes_when_it_got_tasks(self) -> None:
        self.throttled("x", "x", "y", order="round_robin")
        assert self.tube.ack(self.take()).utube == "x"
        self.fill("a", "y")
        assert self.started() == ["y", "x", "a"]

    def test_in_rounds_a_lane_serves_its_best_task(self) -> None:
        tasks = self.throttled("x", "y", "x", "y", "x", "y", order="round_robin")
        for lane in "xyxyxy":
            task = self.tube.ack(self.take())
            assert task.id == next(each.id for each in tasks if each.utube == lane)
            tasks = [each for each in tasks if each.id != task.id]

    def test_in_rounds_a_lane_whose_task_is_released_comes_last(self) -> None:
        self.throttled("x", "y", "z", order="round_robin")
        self.tube.release(self.take())
        assert self.started() == ["y", "z", "x"]
        self.tube.release_all()
        assert self.started() == ["y", "z", "x"]

    def test_in_rounds_lanes_with_several_in_flight_take_turns(self) -> None:
        self.throttled("x", "x", "x", "y", "y", "y", order="round_robin", max_in_flight=2)
        assert self.started() == ["x", "y", "x", "y"]

    def test_in_rounds_a_block_keeps_a_place(self) -> None:
        self.throttled("x", "y", "z", order="round_robin")
        self.tube.block("x", 5)
        assert self.tube.ack(self.take()).utube == "y"
        self.fill("y")
        self.pass_time(5)
        assert self.started() == ["x", "z", "y"]

    def test_utubes_shows_all_lanes_by_name(self) -> None:
        self.throttled("b", "b", "b", "a", interval=5, max_in_flight=2)
        self.put(**self.lane(None))
        self.tube.block("d", 60)
        self.tube.configure("c", interval=0.5, max_in_flight=7)
        for _ in range(3):
            self.take()
        now = self.clock.now()
        soon = pytest.approx(now + 5, abs=1e-6)
        assert [tuple(utube) for utube in self.tube.utubes()] == [
            ("a", 0, 1, soon, 5.0, 2),
            ("b", 2, 1, soon, 5.0, 2),
            ("c", 0, 0, None, 0.5, 7),
            ("d", 0, 0, pytest.approx(now + 60, abs=1e-6), 5.0, 2),
            ("nil", 0, 1, soon, 5.0, 2),
        ]
        assert [utube.name for utube in self.tube.utubes(limit=2)] == ["a", "b"]
        assert self.tube.utubes(limit=0) == []

    def test_nothing_is_left_of_a_lane_that_is_done(self) -> None:
        self.throttled("x", "y", "z", interval=5)
        self.tube.configure("z", interval=3)
        for id in self.drain():
            self.tube.ack(id)
        self.tube.block("w", 4)
        assert [utube.name for utube in self.tube.utubes()] == ["w", "x", "y", "z"]
        self.pass_time(4)
        assert [utube.name for utube in self.tube.utubes()] == ["x", "y", "z"]
        self.pass_time(1)
        assert [utube.name for utube in self.tube.utubes()] == ["z"]
        self.tube.configure("z", interval=None)
        assert self.tube.utubes() == []

    def test_truncate_forgets_what_lanes_remember(self) -> None:
        self.throttled("x", "y", interval=5)
        self.drain()
        self.tube.block("z", 9)
        self.tube.configure("y", max_in_flight=3)
        self.tube.truncate()
        assert self.tube.utubes() == []
        self.fill("x", "y", "z")
        assert len(self.drain()) == 3

    @pytest.mark.parametrize("verb", ["truncate", "drop"])
    @pytest.mark.parametrize("end", ["block", "interval", "ttr", "session"])
    def test_a_tube_is_emptied_though_something_has_just_ended(self, verb: str, end: str) -> None:
        self.require("ttr" if end == "ttr" else "")
        self.throttle(interval=1)
        self.fill("x", "x", **({"ttr": 2} if end == "ttr" else {}))
        if end == "block":
            self.tube.block("x", 2)
        elif end == "session":
            other = self.another()
            other.tube.take(timeout=0)
            other.queue.detach()
        else:
            task = self.take()
            if end == "interval":
                self.tube.ack(task)
        self.pass_time(self.session_ttl + 2)
        if verb == "drop":
            self.tube.drop()
            self.throttle()
        else:
            self.tube.truncate()
        assert self.count("total") == 0
        assert self.tube.utubes() == []
        tasks = self.fill("x")
        assert self.drain() == [task.id for task in tasks]
