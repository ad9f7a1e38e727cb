"""Capacity: a put into a full tube raises `TubeFull`, or returns None after the time that it may wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tubes import Task, TubeFull
from tubes.conformance.bench import Bench, needs

if TYPE_CHECKING:
    from collections.abc import Callable

#: What makes room in a full tube whose first task is taken.
ROOM: dict[str, Callable[[Bench, Task], object]] = {
    "ack": lambda bench, task: bench.tube.ack(task),
    "delete": lambda bench, task: bench.tube.delete(task),
    "truncate": lambda bench, task: bench.tube.truncate(),
}


class Capacity(Bench):
    """Capacity: every driver accepts one."""

    def full(self, capacity: int = 2) -> Task:
        """Work in a full tube; answers its first task, taken."""
        self.tube = self.create("full", capacity=capacity)
        first = self.taken()
        for _ in range(capacity - 1):
            self.put()
        return first

    def test_a_put_into_a_full_tube_is_refused_and_changes_nothing(self) -> None:
        self.full()
        with self.unchanged():
            with self.refused(TubeFull):
                self.tube.put("more")
            with self.refused(TubeFull):
                self.tube.put("more", timeout=None)

    def test_refused_put_uses_no_id(self) -> None:
        first = self.full()
        with self.refused(TubeFull):
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
        self.taken()
        self.buried()
        self.put(delay=9)
        self.put()
        assert self.tube.put("more", timeout=0) is None

    @pytest.mark.parametrize("way", ROOM)
    def test_removed_task_makes_room(self, way: str) -> None:
        first = self.full()
        ROOM[way](self, first)
        assert self.put() is not None

    def test_full_tube_accepts_releases_of_its_tasks(self) -> None:
        first = self.full()
        assert self.tube.release(first).state == "ready"

    def test_buried_task_still_uses_capacity(self) -> None:
        first = self.full()
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

    @pytest.mark.parametrize("way", ROOM)
    def test_room_serves_one_waiting_put(self, way: str) -> None:
        first = self.full(1)
        calls = [self.begin(None, "put", data, timeout=9) for data in ("a", "b")]
        ROOM[way](self, first)
        put = self.got(calls[0])
        assert (put.data, put.state) == ("a", "ready")
        assert self.waiting(1)
        assert not calls[1].done()

    def test_waiting_puts_are_served_in_arrival_order(self) -> None:
        first = self.full(1)
        calls = [self.begin(None, "put", timeout, timeout=timeout) for timeout in (9, 5, 7)]
        for call in calls:
            self.tube.ack(first)
            put = self.got(call)
            first = self.take()
            assert first.id == put.id

    def test_a_put_of_timeout_0_does_not_wait_and_changes_nothing(self) -> None:
        self.full()
        with self.unchanged():
            assert self.tube.put("more", timeout=0) is None

    def test_a_waiting_put_serves_a_waiting_take(self) -> None:
        first = self.full(1)
        taking = self.begin()
        putting = self.begin(None, "put", "next", timeout=9)
        self.tube.ack(first)
        assert self.got(putting).id == self.got(taking).id

    @needs("ttl")
    def test_ttl_of_a_waiting_put_starts_when_it_gets_room(self) -> None:
        first = self.full(1)
        call = self.begin(None, "put", "late", timeout=9, ttl=5)
        self.clock.advance(3)
        self.tube.ack(first)
        put = self.got(call)
        assert (put.created, put.expires) == (3, 8)

    @needs("ttl")
    def test_waiting_put_with_ttl_0_serves_no_waiting_take(self) -> None:
        first = self.full(1)
        taking = self.begin()
        putting = self.begin(None, "put", "stillborn", timeout=9, ttl=0)
        self.tube.ack(first)
        assert self.got(putting).state == "ready"
        assert self.waiting(1)
        assert (self.count("total"), self.count("ttl")) == (0, 1)
        task = self.put()
        assert self.got(taking).id == task.id

    @needs("ttl")
    def test_expiry_of_a_task_makes_room_for_a_waiting_put(self) -> None:
        self.tube = self.create("full", capacity=1)
        self.put(ttl=5)
        call = self.begin(None, "put", "late", timeout=9)
        self.clock.advance(5)
        assert self.got(call).created == 5
