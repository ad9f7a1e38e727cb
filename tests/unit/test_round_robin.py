"""`RoundRobin`: the lane with the oldest last start comes first."""

from __future__ import annotations

from tests.support.entries import LaneTube


def test_pop_without_lanes_returns_nothing() -> None:
    assert LaneTube(rounds=True).offers.pop() is None


def test_new_lanes_come_in_order_of_their_first_task() -> None:
    tube = LaneTube(rounds=True)
    for name in ("c", "a", "b"):
        tube.put(name)
    assert [one.id for one in iter(tube.offers.pop, None)] == [0, 1, 2]


def test_a_lane_that_has_started_goes_to_the_end() -> None:
    tube = LaneTube({"max_in_flight": 9}, rounds=True)
    tasks = [tube.put(name) for name in ("a", "a", "a", "b", "b", "c")]
    taken = [tube.take(0) for _ in tasks]
    assert taken == [tasks[place] for place in (0, 3, 5, 1, 4, 2)]


def test_tasks_within_a_lane_come_by_rank() -> None:
    tube = LaneTube({"max_in_flight": 9}, rounds=True)
    worse, better, other = tube.put("a", 2), tube.put("a", 1), tube.put("b", 0)
    assert [tube.take(0) for _ in range(3)] == [better, other, worse]


def test_lane_with_a_better_task_keeps_its_place() -> None:
    tube = LaneTube({"max_in_flight": 9}, rounds=True)
    tube.put("a", 2)
    tube.put("b", 0)
    better = tube.put("a", 1)
    assert tube.take(0) is better


def test_discarded_task_does_not_come() -> None:
    tube = LaneTube(rounds=True)
    discarded, stays = tube.put("a"), tube.put("b")
    assert discarded.index is tube.offers
    tube.offers.discard(discarded)
    assert discarded.index is None
    assert tube.offers.pop() is stays
    assert stays.index is None
    assert tube.offers.pop() is None


def test_undone_start_restores_the_place_of_the_lane() -> None:
    tube = LaneTube({"max_in_flight": 9}, rounds=True)
    first, second, other = tube.put("a"), tube.put("a"), tube.put("b")
    assert tube.take(0) is first
    assert tube.take(0) is other
    third = tube.put("b")
    tube.lane("b").undo_start(0, other)
    assert [tube.take(0), tube.take(0)] == [third, second]
