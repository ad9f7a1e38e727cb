"""Rounds: the lane whose last start is longest ago comes first."""

from __future__ import annotations

from tests.support.entries import LaneTube


def test_nothing_comes_out_where_nothing_is() -> None:
    assert LaneTube(rounds=True).offers.pop() is None


def test_lanes_that_have_not_started_come_as_they_got_their_first_task() -> None:
    tube = LaneTube(rounds=True)
    for name in ("c", "a", "b"):
        tube.put(name)
    assert [one.id for one in iter(tube.offers.pop, None)] == [0, 1, 2]


def test_a_lane_that_has_started_goes_to_the_end() -> None:
    tube = LaneTube({"max_in_flight": 9}, rounds=True)
    tasks = [tube.put(name) for name in ("a", "a", "a", "b", "b", "c")]
    came = [tube.take(0) for _ in tasks]
    assert came == [tasks[place] for place in (0, 3, 5, 1, 4, 2)]


def test_within_a_lane_tasks_come_by_their_rank() -> None:
    tube = LaneTube({"max_in_flight": 9}, rounds=True)
    worse, better, other = tube.put("a", 2), tube.put("a", 1), tube.put("b", 0)
    assert [tube.take(0) for _ in range(3)] == [better, other, worse]


def test_a_lane_that_got_a_better_task_keeps_its_place() -> None:
    tube = LaneTube({"max_in_flight": 9}, rounds=True)
    tube.put("a", 2)
    tube.put("b", 0)
    better = tube.put("a", 1)
    assert tube.take(0) is better


def test_what_was_discarded_does_not_come() -> None:
    tube = LaneTube(rounds=True)
    gone, stays = tube.put("a"), tube.put("b")
    assert gone.index is tube.offers
    tube.offers.discard(gone)
    assert gone.index is None
    assert tube.offers.pop() is stays
    assert stays.index is None
    assert tube.offers.pop() is None


def test_a_start_that_is_undone_gives_the_lane_its_place_again() -> None:
    tube = LaneTube({"max_in_flight": 9}, rounds=True)
    first, second, other = tube.put("a"), tube.put("a"), tube.put("b")
    assert tube.take(0) is first
    assert tube.take(0) is other
    third = tube.put("b")
    tube.lane("b").undo_start(0, other)
    assert [tube.take(0), tube.take(0)] == [third, second]
