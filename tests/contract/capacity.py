"""Capacity: a put into a full tube raises `TubeFull`, or waits and returns None after its timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.bench import Bench, needs
from tubes import Item, Task, TubeFull

if TYPE_CHECKING:
    from collections.abc import Callable

#: Calls that make room in a full tube whose first task is taken.
ROOM_MAKERS: dict[str, Callable[[Bench, Task], object]] = {
    "ack": lambda bench, task: bench.tube.ack(task),
    "delete": lambda bench, task: bench.tube.delete(task),
    "cancel": lambda bench, task: bench.tube.cancel(task),
    "truncate": lambda bench, task: bench.tube.truncate(),
    "delete of a selection": lambda bench, task: bench.tube.select("taken").delete(),
    "cancel of a selection": lambda bench, task: bench.tube.select("taken").cancel(),
}


class Capacity(Bench):
    """Capacity, an option of every driver."""

    def fill_tube(self, capacity: int = 2) -> Task:
        """Switch to a full tube, take its first task and return it."""
        self.tube = self.create("full", capacity=capacity)
        first = self.put_and_take()
        for _ in range(capacity - 1):
            self.put()
        return first

    def test_a_put_into_a_full_tube_is_refused_and_changes_nothing(self) -> None:
        self.fill_tube()
        with self.expect_no_change():
            with self.expect_error(TubeFull):
                self.tube.put("more")
            with self.expect_error(TubeFull):
                self.tube.put_many(["more"])
            assert self.tube.put_many(["more"], timeout=0) == []

    def test_refused_put_uses_no_id(self) -> None:
        first = self.fill_tube()
        with self.expect_error(TubeFull):
            self.tube.put("more")
        assert self.tube.put("more", timeout=0) is None
        self.tube.ack(first)
        assert self.put().id == 2

    def test_a_tube_without_capacity_is_never_full(self) -> None:
        for tube in (self.tube, self.create("any", capacity=0)):
            assert all(tube.put(number, **self.lane(str(number))) is not None for number in range(50))

    @needs("delay")
    def test_tasks_in_every_state_use_capacity(self) -> None:
        self.tube = self.create("full", capacity=4)
        self.put_and_take()
        self.put_and_bury()
        self.put(delay=9)
        self.put()
        assert self.tube.put("more", timeout=0) is None

    @pytest.mark.parametrize("way", ROOM_MAKERS)
    def test_removed_task_makes_room(self, way: str) -> None:
        first = self.fill_tube()
        ROOM_MAKERS[way](self, first)
        assert self.put() is not None

    def test_full_tube_accepts_releases_of_its_tasks(self) -> None:
        first = self.fill_tube()
        assert self.tube.release(first).state == "ready"

    def test_buried_task_still_uses_capacity(self) -> None:
        first = self.fill_tube()
        self.tube.bury(first)
        assert self.tube.put("more", timeout=0) is None

    @needs("ttl")
    def test_a_task_that_expires_makes_room(self) -> None:
        self.tube = self.create("full", capacity=1)
        self.put(ttl=5)
        assert self.tube.put("more", timeout=0) is None
        self.clock.advance(5)
        assert self.put() is not None

    def test_a_put_that_finds_room_does_not_wait(self) -> None:
        self.tube = self.create("full", capacity=1)
        assert self.put(timeout=9).state == "ready"

    @pytest.mark.parametrize("way", ROOM_MAKERS)
    def test_room_serves_one_waiting_put(self, way: str) -> None:
        first = self.fill_tube(1)
        calls = [self.begin(None, "put", data, timeout=9) for data in ("a", "b")]
        ROOM_MAKERS[way](self, first)
        put = self.result_of(calls[0])
        assert (put.data, put.state) == ("a", "ready")
        assert self.has_waiters(1)
        assert not calls[1].done()

    def test_waiting_puts_are_served_in_arrival_order(self) -> None:
        first = self.fill_tube(1)
        calls = [self.begin(None, "put", timeout, timeout=timeout) for timeout in (9, 5, 7)]
        for call in calls:
            self.tube.ack(first)
            put = self.result_of(call)
            first = self.take()
            assert first.id == put.id

    def test_a_put_of_timeout_0_does_not_wait_and_changes_nothing(self) -> None:
        self.fill_tube()
        with self.expect_no_change():
            assert self.tube.put("more", timeout=0) is None

    def test_a_waiting_put_serves_a_waiting_take(self) -> None:
        first = self.fill_tube(1)
        taking = self.begin()
        putting = self.begin(None, "put", "next", timeout=9)
        self.tube.ack(first)
        assert self.result_of(putting).id == self.result_of(taking).id

    @pytest.mark.parametrize("method", ["put", "put_many"])
    def test_put_with_timeout_none_waits_for_ever(self, method: str) -> None:
        first = self.fill_tube(1)
        call = self.begin(None, method, ["late"], timeout=None)
        assert self.has_waiters(1)
        self.clock.advance(40 * 24 * 3600)
        assert not call.done()
        self.tube.ack(first)
        (put,) = self.result_of(call) if method == "put_many" else [self.result_of(call)]
        assert put.data == ("late" if method == "put_many" else ["late"])

    def test_put_with_timeout_none_that_finds_room_does_not_wait(self) -> None:
        self.tube = self.create("full", capacity=1)
        assert self.put(timeout=None).state == "ready"

    @needs("ttl")
    def test_ttl_of_a_waiting_put_starts_when_it_gets_room(self) -> None:
        first = self.fill_tube(1)
        call = self.begin(None, "put", "late", timeout=9, ttl=5)
        self.clock.advance(3)
        self.tube.ack(first)
        put = self.result_of(call)
        assert (put.created, put.expires) == (3, 8)

    @needs("ttl")
    def test_waiting_put_with_ttl_0_serves_no_waiting_take(self) -> None:
        first = self.fill_tube(1)
        taking = self.begin()
        putting = self.begin(None, "put", "stillborn", timeout=9, ttl=0)
        self.tube.ack(first)
        assert self.result_of(putting).state == "ready"
        assert self.has_waiters(1)
        assert (self.count("total"), self.count("ttl")) == (0, 1)
        task = self.put()
        assert self.result_of(taking).id == task.id

    @needs("ttl")
    def test_expiry_of_a_task_makes_room_for_a_waiting_put(self) -> None:
        self.tube = self.create("full", capacity=1)
        self.put(ttl=5)
        call = self.begin(None, "put", "late", timeout=9)
        self.clock.advance(5)
        assert self.result_of(call).created == 5


@needs("lane")
class LaneCapacity(Bench):
    """lane_capacity of a tube and the capacity of a lane: they count the same tasks as the capacity of a tube."""

    def fill_lane(self, capacity: int = 2) -> Task:
        """Switch to a tube whose lane "x" is full, take the first task of this lane and return it."""
        self.tube = self.create("crowded", lane_capacity=capacity)
        first = self.put_and_take(**self.lane("x"))
        for _ in range(capacity - 1):
            self.put(**self.lane("x"))
        return first

    def test_put_into_a_full_lane_is_refused_and_changes_nothing(self) -> None:
        self.fill_lane()
        with self.expect_error(TubeFull, match="lane 'x' of tube 'crowded' is full: .* 1 more, its capacity is 2"):
            self.tube.put("more", **self.lane("x"))
        with self.expect_no_change():
            assert self.tube.put("more", timeout=0, **self.lane("x")) is None
        assert self.put(**self.lane("y")).id == 2

    def test_tasks_without_a_lane_share_one_capacity(self) -> None:
        self.tube = self.create("crowded", lane_capacity=1)
        self.tube.put("a")
        assert self.tube.put("b", timeout=0) is None

    def test_tasks_in_every_state_use_the_capacity_of_their_lane(self) -> None:
        first = self.fill_lane()
        self.tube.bury(first)
        assert self.tube.put("more", timeout=0, **self.lane("x")) is None
        if "delay" in self.knobs.options:
            self.put(delay=9, **self.lane("y"))
            self.put(**self.lane("y"))
            assert self.tube.put("more", timeout=0, **self.lane("y")) is None

    @pytest.mark.parametrize("way", ROOM_MAKERS)
    def test_removed_task_makes_room_in_its_lane(self, way: str) -> None:
        first = self.fill_lane()
        ROOM_MAKERS[way](self, first)
        assert self.put(**self.lane("x")) is not None

    @needs("ttl")
    def test_task_that_expires_makes_room_in_its_lane(self) -> None:
        self.tube = self.create("crowded", lane_capacity=1)
        self.put(ttl=5, **self.lane("x"))
        call = self.begin(None, "put", "late", timeout=9, **self.lane("x"))
        self.clock.advance(5)
        assert self.result_of(call).created == 5

    def test_full_lane_accepts_releases_and_kicks_of_its_tasks(self) -> None:
        first = self.fill_lane()
        self.tube.release(first)
        self.tube.bury(first.id)
        assert self.tube.select("buried", limit=1).kick() == 1

    def test_batch_is_put_whole_or_not_at_all(self) -> None:
        self.fill_lane()
        for key in (None, "k"):
            batch = [Item(0, **self.lane("y")), Item(1, key=key, **self.lane("x"))]
            with self.expect_error(TubeFull, match="lane 'x'"):
                self.tube.put_many(batch)
            with self.expect_no_change():
                assert self.tube.put_many(batch, timeout=0) == []
        with self.expect_error(TubeFull, match="lane 'y' .* 3 more"):
            self.tube.put_many([0, 1, 2], **self.lane("y"))
        assert len(self.tube.put_many([0, 1], **self.lane("y"))) == 2

    def test_put_that_replaces_needs_no_room_in_the_same_lane(self) -> None:
        self.tube = self.create("crowded", lane_capacity=1)
        self.put(key="k", **self.lane("x"))
        self.put(key="other", **self.lane("y"))
        assert self.put(key="k", on_duplicate="replace", **self.lane("x")).id == 2
        assert self.put(key="k", **self.lane("x")).created_now is False
        with self.expect_error(TubeFull):
            self.tube.put(key="k", data=0, on_duplicate="replace", **self.lane("y"))
        assert self.put(key="k", on_duplicate="replace", **self.lane("z")).id == 3
        assert self.put(**self.lane("x")).id == 4

    @pytest.mark.parametrize("way", ROOM_MAKERS)
    def test_room_in_a_lane_serves_one_waiting_put(self, way: str) -> None:
        first = self.fill_lane(1)
        calls = [self.begin(None, "put", data, timeout=9, **self.lane("x")) for data in ("a", "b")]
        ROOM_MAKERS[way](self, first)
        assert self.result_of(calls[0]).data == "a"
        assert self.has_waiters(1)
        assert not calls[1].done()

    def test_put_that_waits_for_a_lane_does_not_hold_up_others(self) -> None:
        first = self.fill_lane(1)
        other = self.put(**self.lane("y"))
        late = self.begin(None, "put", "late", timeout=None, **self.lane("x"))
        soon = self.begin(None, "put", "soon", timeout=9, **self.lane("y"))
        assert self.result_of(self.begin(None, "put", "now", timeout=9, **self.lane("z"))).data == "now"
        self.tube.delete(other.id)
        assert self.result_of(soon).data == "soon"
        assert not late.done()
        self.tube.ack(first)
        assert self.result_of(late).data == "late"

    def test_waiting_batch_gets_room_in_all_its_lanes(self) -> None:
        first = self.fill_lane(1)
        call = self.begin(None, "put_many", [Item(0, **self.lane("x")), Item(1, **self.lane("y"))], timeout=9)
        assert self.has_waiters(1)
        self.tube.ack(first)
        assert [task.data for task in self.result_of(call)] == [0, 1]

    def test_lane_has_a_capacity_of_its_own(self) -> None:
        self.tube.put_many([0, 1], **self.lane("x"))
        self.tube.lane("x").configure(capacity=2)
        assert self.tube.put("more", timeout=0, **self.lane("x")) is None
        assert [(each.name, each.capacity) for each in self.tube.lanes()] == [("x", 2)]
        self.tube.alter(lane_capacity=1)
        assert len(self.tube.put_many([0], **self.lane("y"))) == 1
        assert self.tube.put("more", timeout=0, **self.lane("y")) is None
        assert [(each.name, each.capacity) for each in self.tube.lanes()] == [("x", 2), ("y", 1)]
        self.tube.lane("x").configure(capacity=0)
        assert len(self.tube.put_many([0, 1], **self.lane("x"))) == 2
        self.tube.lane("x").configure(capacity=None)
        assert self.tube.lanes()[0].capacity == 1

    def test_raised_capacity_of_a_lane_serves_a_waiting_put(self) -> None:
        self.fill_lane(1)
        call = self.begin(None, "put", "late", timeout=9, **self.lane("x"))
        assert self.has_waiters(1)
        self.tube.lane("x").configure(capacity=2)
        assert self.result_of(call).data == "late"
        call = self.begin(None, "put", "later", timeout=9, **self.lane("x"))
        assert self.has_waiters(1)
        self.tube.lane("x").configure(capacity=None)
        self.tube.alter(lane_capacity=3)
        assert self.result_of(call).data == "later"

    def test_lane_capacity_counts_tasks_that_were_there_before(self) -> None:
        self.tube.put_many([0, 1, 2], **self.lane("x"))
        self.tube.alter(lane_capacity=3)
        assert self.tube.put("more", timeout=0, **self.lane("x")) is None
        self.process_one("x")
        assert self.tube.put("more", timeout=0, **self.lane("x")) is not None
        self.tube.alter(lane_capacity=None)
        assert "lane_capacity" not in self.tube.options
        assert len(self.tube.put_many([0] * 3, **self.lane("x"))) == 3
        self.tube.alter(lane_capacity=6)
        assert self.tube.put("more", timeout=0, **self.lane("x")) is None

    def process_one(self, lane: str) -> None:
        """Take a task, check that it is of this lane, and ack it."""
        task = self.take()
        assert task.utube == lane
        self.tube.ack(task)
