"""Rate limits: the next start of a lane, and forgetting its past starts."""

from __future__ import annotations

from tests.support.entries import LaneTube
from tubes.drivers.timers import NEVER


def create_throttled(**options: float) -> LaneTube:
    """Create a tube with two tasks in lane "a"."""
    tube = LaneTube({"interval": 10, "max_in_flight": 5, **options})
    tube.put("a")
    tube.put("a")
    return tube


def test_interval_counts_from_start_to_start() -> None:
    tube = create_throttled()
    assert tube.take(100) is not None
    rate = tube.lane("a").rate
    assert rate is not None
    assert (rate.due, rate.limit, tube.lane("a").limit) == (110, 0, 0)
    assert tube.take(109) is None
    tube.expire(109)
    assert tube.take(109) is None
    tube.expire(110)
    assert (rate.due, tube.lane("a").limit) == (NEVER, 5)
    assert tube.take(110) is not None


def test_a_lane_without_an_interval_has_no_rate_limit() -> None:
    tube = create_throttled(interval=0)
    assert tube.take(100) is not None
    assert tube.lane("a").rate is None
    assert tube.take(100) is not None


def test_jitter_extends_an_interval_reproducibly() -> None:
    ends: set[int] = set()
    for _ in range(2):
        tube = create_throttled(interval=1_000_000, jitter=0.5)
        assert tube.take(0) is not None
        rate = tube.lanes.known_rate("a")
        assert rate is not None
        ends.add(rate.due)
    assert len(ends) == 1
    assert 1_000_000 < ends.pop() <= 1_500_000


def test_block_holds_back_the_offered_task_until_it_ends() -> None:
    tube = LaneTube()
    only = tube.put("a")
    tube.lanes.rate("a").block(0, 50)
    assert tube.lane("a").head is None
    assert tube.take(0) is None
    tube.expire(50)
    assert tube.take(50) is only


def test_block_of_zero_ends_a_block() -> None:
    tube = LaneTube()
    only = tube.put("a")
    rate = tube.lanes.rate("a")
    rate.block(0, 50)
    rate.block(10, 0)
    assert rate.due == NEVER
    assert tube.timers.pop(50) is None
    assert tube.take(10) is only


def test_the_later_of_a_block_and_an_interval_counts() -> None:
    tube = create_throttled()
    assert tube.take(0) is not None
    rate = tube.lanes.rate("a")
    rate.block(0, 5)
    assert rate.due == 10
    rate.block(0, 15)
    assert rate.due == 15


def test_lane_limits_can_be_set_and_removed() -> None:
    tube = create_throttled()
    rate = tube.lanes.rate("a")
    rate.configure(0, {"interval": 0, "max_in_flight": 1})
    assert tube.take(0) is not None
    assert (rate.limit, tube.take(0)) == (1, None)
    rate.configure(0, {"max_in_flight": None})
    assert rate.limit == 5
    assert tube.take(0) is not None
    rate.configure(3, {"interval": None})
    assert (rate.interval, rate.due) == (None, 10)


def test_configure_keeps_limits_that_are_left_out() -> None:
    tube = create_throttled()
    rate = tube.lanes.rate("a")
    rate.configure(0, {"interval": 7})
    rate.configure(0, {"max_in_flight": 3})
    assert (rate.interval, rate.max_in_flight) == (7, 3)


def test_smaller_limit_withdraws_the_offered_task() -> None:
    tube = create_throttled(interval=0)
    assert tube.take(0) is not None
    assert tube.lane("a").head is not None
    tube.lanes.rate("a").configure(0, {"max_in_flight": 1})
    assert tube.lane("a").head is None


def test_undone_start_leaves_the_lane_free() -> None:
    tube = create_throttled()
    taken = tube.take(100)
    assert taken is not None
    lane = tube.lane("a")
    lane.undo_start(100, taken)
    assert lane.limit == 5
    assert lane.rate is not None
    assert lane.rate.starts[0].id < 0


def test_only_the_last_start_is_undone() -> None:
    tube = create_throttled()
    first = tube.take(100)
    tube.expire(110)
    assert tube.take(110) is not None
    assert first is not None
    tube.lane("a").undo_start(111, first)
    rate = tube.lane("a").rate
    assert rate is not None
    assert rate.due == 120


def test_undoing_a_start_restores_the_previous_one() -> None:
    tube = create_throttled()
    assert tube.take(100) is not None
    tube.expire(110)
    second = tube.take(110)
    assert second is not None
    tube.lane("a").undo_start(105, second)
    rate = tube.lane("a").rate
    assert rate is not None
    assert (rate.starts[0].at, rate.due) == (100, 110)


def test_undone_starts_return_their_part_of_the_burst() -> None:
    tube = create_throttled(lane_burst=3)
    for _ in range(3):
        tube.put("a")
    tasks = [tube.take(100) for _ in range(3)]
    rate = tube.lane("a").rate
    assert rate is not None
    assert (rate.starts[0].at, rate.due, rate.is_free) == (100, 110, False)
    for task in reversed(tasks[1:]):
        assert task is not None
        tube.lane("a").undo_start(105, task)
    assert (rate.starts[0].at, rate.due, rate.is_free) == (80, 110, True)
    assert len([task for task in (tube.take(105), tube.take(105), tube.take(105)) if task]) == 2


def test_lane_forgets_its_starts_when_its_burst_is_full() -> None:
    tube = LaneTube({"interval": 10, "lane_burst": 3})
    for _ in range(2):
        tube.put("a")
        taken = tube.take(0)
        assert taken is not None
        tube.ack(taken)
    tube.expire(19)
    assert list(tube.rates.alone) == ["a"]
    tube.expire(20)
    assert tube.rates.alone == {}


def test_a_burst_does_not_hide_that_the_clock_was_set_back() -> None:
    tube = create_throttled(lane_burst=2)
    assert tube.take(1000) is not None
    assert tube.take(1000) is not None
    rate = tube.lanes.rate("a")
    rate.apply(1000)
    assert (rate.starts[0].at, rate.due) == (1000, 1010)
    rate.apply(200)
    assert (rate.starts[0].at, rate.due) == (200, 210)


def test_a_start_in_the_future_counts_as_one_now() -> None:
    tube = create_throttled()
    assert tube.take(1000) is not None
    rate = tube.lanes.rate("a")
    rate.apply(200)
    assert (rate.starts[0].at, rate.due) == (200, 210)


def test_idle_lane_forgets_its_rate_limit_after_the_interval() -> None:
    tube = LaneTube({"interval": 10})
    tube.put("a")
    taken = tube.take(0)
    assert taken is not None
    tube.ack(taken)
    assert list(tube.rates.alone) == ["a"]
    tube.expire(9)
    assert list(tube.rates.alone) == ["a"]
    tube.expire(10)
    assert tube.rates.alone == {}


def test_a_lane_with_a_taken_task_keeps_its_rate_limit() -> None:
    tube = LaneTube({"interval": 10})
    tube.put("a")
    taken = tube.take(0)
    tube.expire(10)
    assert tube.lane("a").rate is not None
    assert taken is not None
    tube.ack(taken)
    assert tube.lanes.known_rate("a") is None


def test_configured_lane_keeps_its_rate_limit_but_forgets_its_starts() -> None:
    tube = LaneTube({"interval": 10})
    tube.lanes.rate("a").configure(0, {"max_in_flight": 2})
    tube.put("a")
    taken = tube.take(0)
    assert taken is not None
    tube.ack(taken)
    tube.expire(10)
    rate = tube.lanes.known_rate("a")
    assert rate is not None
    assert (rate.max_in_flight, rate.starts[0].id) == (2, -1)


def test_rate_limits_due_at_the_same_moment_precede_tasks() -> None:
    tube = LaneTube()
    tube.lanes.rate("a").block(0, 10)
    tube.lanes.rate("b").block(0, 10)
    late = tube.put("c")
    late.due = 10
    tube.timers.add(late, 10)
    found = [tube.timers.pop(10) for _ in range(4)]  # The first one opens the slot.
    assert [getattr(each, "name", "a task") for each in found if each is not None] == ["b", "a", "a task"]
