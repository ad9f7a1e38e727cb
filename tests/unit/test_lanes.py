"""Lanes: each lane offers its best task while it may be taken."""

from __future__ import annotations

from tests.support.entries import LaneTube


def test_each_lane_offers_one_task() -> None:
    tube = LaneTube()
    first, _, other = tube.put("a"), tube.put("a"), tube.put("b")
    assert [tube.take(), tube.take(), tube.take()] == [first, other, None]


def test_lane_offers_the_next_task_after_an_ack() -> None:
    tube = LaneTube()
    first, second = tube.put("a"), tube.put("a")
    assert tube.take() is first
    assert tube.lane("a").head is None
    tube.ack(first)
    assert tube.lane("a").head is second
    assert tube.take() is second


def test_a_better_task_takes_the_place_on_offer() -> None:
    tube = LaneTube()
    worse, better = tube.put("a", 2), tube.put("a", 1)
    assert tube.lane("a").head is better
    assert worse.index is not tube.offers
    assert tube.take() is better
    tube.ack(better)
    assert tube.take() is worse


def test_worse_task_waits_behind_the_offered_one() -> None:
    tube = LaneTube()
    better, worse = tube.put("a", 1), tube.put("a", 2)
    assert tube.lane("a").head is better
    assert worse.index is tube.lane("a").waiting


def test_max_in_flight_limits_the_taken_tasks_of_a_lane() -> None:
    tube = LaneTube({"max_in_flight": 2})
    first, second, third = (tube.put("a") for _ in range(3))
    assert [tube.take(), tube.take(), tube.take()] == [first, second, None]
    tube.ack(second)
    assert tube.take() is third


def test_task_put_into_a_busy_lane_waits_behind() -> None:
    tube = LaneTube()
    tube.put("a")
    assert tube.take() is not None
    later = tube.put("a")
    assert tube.lane("a").head is None
    assert later.index is tube.lane("a").waiting


def test_waiting_tasks_of_a_lane_come_by_rank() -> None:
    tube = LaneTube()
    first = tube.put("a")
    assert tube.take() is first
    _, best, _ = tube.put("a", 3), tube.put("a", 1), tube.put("a", 2)
    tube.ack(first)
    assert tube.take() is best


def test_withdrawn_task_is_offered_again() -> None:
    tube = LaneTube()
    only = tube.put("a")
    tube.lane("a").withdraw()
    assert tube.take() is None
    tube.lane("a").offer_next()
    assert tube.take() is only


def test_a_lane_counts_its_ready_tasks() -> None:
    tube = LaneTube({"max_in_flight": 3})
    for _ in range(3):
        tube.put("a")
    lane = tube.lane("a")
    seen = [(lane.has_ready(), lane.ready())]
    while tube.take() is not None:
        seen.append((lane.has_ready(), lane.ready()))
    assert seen == [(True, 3), (True, 2), (True, 1), (False, 0)]


def test_busy_lane_counts_its_waiting_tasks() -> None:
    tube = LaneTube()
    tube.put("a")
    tube.take()
    tube.put("a")
    assert (tube.lane("a").has_ready(), tube.lane("a").ready()) == (True, 1)


def test_lane_without_tasks_is_forgotten() -> None:
    tube = LaneTube()
    for _ in range(2):
        tube.put("a")
    for _ in range(2):
        one = tube.take()
        assert one is not None
        tube.ack(one)
    assert tube.lanes.by_name == {}
    new = tube.put("b")
    assert (tube.lane("b").name, tube.lane("b").living, tube.lane("b").taken) == ("b", 1, 0)
    assert tube.take() is new


def test_lanes_that_are_made_after_one_was_forgotten_are_different() -> None:
    tube = LaneTube()
    tube.put("a")
    done = tube.take()
    assert done is not None
    tube.ack(done)
    tube.put("b")
    tube.put("c")
    assert tube.lane("b") is not tube.lane("c")
    assert [tube.lane("b").name, tube.lane("c").name] == ["b", "c"]


def test_a_rate_limit_outlives_the_tasks_of_its_lane() -> None:
    tube = LaneTube()
    tube.lanes.rate("a").block(0, 10)
    only = tube.put("a")
    assert tube.lane("a").rate is tube.lanes.known_rate("a")
    assert tube.take() is None
    tube.lane("a").waiting = None
    tube.lane("a").forget()
    kept = tube.lanes.known_rate("a")
    assert kept is not None
    assert (kept.lane, kept.blocked, tube.rates.alone) == (None, 10, {"a": kept})
    back = tube.put("a")
    assert tube.rates.alone == {}
    tube.expire(10)
    assert only is not back
    assert tube.take() is back


def test_lane_without_rate_limit_uses_the_limit_of_the_tube() -> None:
    tube = LaneTube({"max_in_flight": 2})
    tube.lanes.rate("a").block(0, 10)
    tube.put("a")
    assert tube.lane("a").limit == 0
    tube.lane("a").forget()
    tube.put("b")
    assert tube.lane("b").limit == 2


def test_see_lists_lanes_by_name() -> None:
    tube = LaneTube({"interval": 2_000_000, "max_in_flight": 3})
    for name in ("c", "a", "a", "b"):
        tube.put(name)
    tube.lanes.rate("0").configure(0, {"max_in_flight": 7})
    tube.take(1_000_000)
    tube.lanes.rate("c").block(1_000_000, 2_000_000, "429")
    assert [tube.lanes.show(1_000_000, name) for name in sorted(filter(tube.lanes.is_listed, tube.lanes.names()))] == [
        ("0", 0, 0, None, 2.0, 7, 0, 1, 1, None, None, None),
        ("a", 2, 0, None, 2.0, 3, 0, 1, 1, None, None, 0.0),
        ("b", 1, 0, None, 2.0, 3, 0, 1, 1, None, None, 0.0),
        ("c", 0, 1, 3.0, 2.0, 3, 0, 1, 1, 2.0, "429", None),
    ]
    assert tube.lanes.show(2_000_000, "c")[-3:-1] == (None, None)


def test_lane_is_listed_and_throttled_while_it_is_blocked() -> None:
    tube = LaneTube()
    tube.put("a")
    tube.lanes.rate("b").block(0, 5)
    assert [(name, tube.lanes.is_listed(name), tube.lanes.is_throttled(name)) for name in "abc"] == [
        ("a", True, False),
        ("b", True, True),
        ("c", False, False),
    ]
    tube.expire(5)
    assert tube.lanes.names() == ["a"]


def test_rebuilt_lanes_adopt_earlier_rate_limits() -> None:
    before, after = LaneTube(), LaneTube()
    before.put("a")
    before.lanes.rate("a").block(0, 10)
    before.lanes.rate("b").block(0, 20)
    before.rates.last_number = 5
    after.put("a")
    after.lanes.before = before.lanes
    after.lanes.adopt()
    assert after.take() is None
    assert (after.lane("a").limit, after.rates.next_number()) == (0, 6)
    assert after.lanes.names() == ["a", "b"]
    after.expire(10)
    assert after.take() is not None
    after.expire(20)
    assert after.rates.alone == {}
