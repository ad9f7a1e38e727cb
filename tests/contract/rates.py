"""The rate of a tube: takes in all sessions together start no faster."""

from __future__ import annotations

import pytest

from tests.contract.bench import Bench, eventually, needs
from tubes import InvalidOption


class Rates(Bench):
    """rate and burst."""

    def limit(self, **options: object) -> object:
        """Switch to a new tube with these options."""
        self.tube = self.create("limited", **options)
        self.knobs = self.tube.driver
        return self.tube

    def next_token(self, seconds: float) -> None:
        """Let this time pass, and check that no task can be taken until 1 µs before its end."""
        self.pass_time(seconds - 0.001)
        self.clock.advance(0.000_999)
        assert self.tube.take(timeout=0) is None
        self.clock.advance(0.000_001)

    def test_takes_start_evenly_without_a_burst(self) -> None:
        self.limit(rate="30/min")
        tasks = self.puts(3)
        assert self.drain() == [tasks[0].id]
        self.next_token(2)
        assert self.drain() == [tasks[1].id]
        self.pass_time(9)
        assert self.drain() == [tasks[2].id]

    def test_burst_starts_at_once_and_refills_with_time(self) -> None:
        self.limit(rate=2, burst=3)
        tasks = self.puts(9)
        assert self.drain() == [task.id for task in tasks[:3]]
        self.next_token(0.5)
        assert self.drain() == [tasks[3].id]
        self.pass_time(1)
        assert self.drain() == [task.id for task in tasks[4:6]]
        self.pass_time(60)
        assert len(self.drain()) == 3

    def test_sessions_share_the_rate(self) -> None:
        self.limit(rate=1, burst=2)
        self.puts(5)
        others = [self.add_worker().tube for _ in range(3)]
        assert [other.take(timeout=0) is None for other in others] == [False, False, True]
        assert self.tube.take(timeout=0) is None
        self.clock.advance(1)
        assert others[2].take(timeout=0) is not None

    def test_take_many_takes_as_many_as_there_are_tokens(self) -> None:
        self.limit(rate=1, burst=4)
        tasks = self.puts(9)
        assert [task.id for task in self.tube.take_many(3, timeout=0)] == [task.id for task in tasks[:3]]
        assert [task.id for task in self.tube.take_many(9, timeout=0)] == [tasks[3].id]
        assert self.tube.take_many(9, timeout=0) == []
        self.clock.advance(2)
        assert [task.id for task in self.tube.take_many(9, timeout=0)] == [task.id for task in tasks[4:6]]

    def test_every_attempt_uses_a_token(self) -> None:
        self.limit(rate=1)
        task = self.put_and_take()
        assert self.tube.release(task).state == "ready"
        self.next_token(1)
        assert self.take().attempts == 2

    @needs("ttr")
    def test_attempt_after_a_timeout_uses_a_token(self) -> None:
        self.limit(rate=0.5)
        self.put_and_take(ttr=1)
        self.next_token(2)
        assert self.take().attempts == 2

    def test_take_task_uses_a_token(self) -> None:
        self.limit(rate=1)
        tasks = self.puts(3)
        assert self.tube.peek(tasks[1]).take().id == tasks[1].id
        assert tasks[2].take() is None
        assert self.tube.take(timeout=0) is None
        self.clock.advance(1)
        assert self.tube.peek(tasks[2]).take().id == tasks[2].id

    def test_take_any_passes_over_a_tube_without_a_token(self) -> None:
        other = self.create("other")
        self.limit(rate=1)
        tasks = self.puts(2)
        other_task = self.put(tube=other)
        assert self.queue.take_any([self.tube], timeout=0).id == tasks[0].id
        assert self.queue.take_any([self.tube, other], timeout=0).tube == other.name
        assert self.queue.take_any([self.tube, other], timeout=0) is None
        assert other.peek(other_task.id).state == "taken"

    def test_waiting_takes_are_served_when_their_tokens_come(self) -> None:
        self.limit(rate=1)
        tasks = self.puts(3)
        calls = [self.begin(self.add_worker().tube) for _ in range(3)]
        assert eventually(lambda: sum(call.done() for call in calls) == 1)
        assert self.has_waiters(2)
        for done in (2, 3):
            self.clock.advance(0.9)
            assert sum(call.done() for call in calls) == done - 1
            self.clock.advance(0.1)
            assert eventually(lambda done=done: sum(call.done() for call in calls) == done)  # type: ignore[misc]
        assert sorted(self.result_of(call).id for call in calls) == sorted(task.id for task in tasks)

    def test_caller_that_waits_for_a_task_waits_for_a_token_too(self) -> None:
        self.limit(rate=0.2)
        self.put_and_take()
        call = self.begin()
        assert self.has_waiters(1)
        task = self.put()
        self.clock.advance(4)
        assert not call.done()
        self.clock.advance(1)
        assert self.result_of(call).id == task.id

    def test_cancelled_take_returns_its_token(self) -> None:
        self.require_asyncio()
        self.limit(rate=0.1)
        tube = self.tube.inner
        if self.cancel_late(tube.take, tube, lambda: tube.put(None, **self.lane("x"))):
            assert eventually(lambda: self.count("take") == 0)
            assert len(self.drain()) == 1

    def test_truncate_keeps_the_state_of_the_bucket(self) -> None:
        self.limit(rate=1)
        self.put_and_take()
        self.tube.truncate()
        self.put()
        self.next_token(1)
        assert len(self.drain()) == 1

    def test_pause_and_rate_are_independent(self) -> None:
        self.limit(rate=1)
        self.puts(3)
        self.take()
        self.tube.pause(0.5)
        self.tube.pause(0)
        self.next_token(1)
        self.tube.pause(5)
        self.pass_time(2)
        assert self.tube.take(timeout=0) is None
        self.pass_time(3)
        assert len(self.drain()) == 1

    def test_rate_of_a_live_tube_changes(self) -> None:
        tasks = self.puts(9)
        self.tube.alter(rate="1/min", burst=2)
        assert self.drain() == [task.id for task in tasks[:2]]
        call = self.begin(self.add_worker().tube)
        assert self.has_waiters(1)
        self.tube.alter(rate="30/min", burst=None)
        assert not call.done()
        self.clock.advance(2)
        assert self.result_of(call).id == tasks[2].id
        call = self.begin(self.add_worker().tube)
        assert self.has_waiters(1)
        self.tube.alter(rate=None)
        assert self.result_of(call).id == tasks[3].id
        assert len(self.drain()) == 5

    def test_altered_burst_brings_no_tokens(self) -> None:
        self.limit(rate=10, burst=20)
        self.puts(60)
        assert len(self.drain()) == 20
        for changes in ({"burst": 1}, {"rate": 1}, {"rate": 0.5, "burst": 3}):
            self.tube.alter(**changes)
            assert self.tube.take(timeout=0) is None
            self.tube.alter(rate=10, burst=20)
            assert self.tube.take(timeout=0) is None
        self.clock.advance(0.3)
        self.tube.alter(burst=1)
        self.tube.alter(burst=20)
        assert len(self.drain()) == 3
        self.clock.advance(9)
        assert len(self.drain()) == 20

    def test_options_show_the_rate_per_second(self) -> None:
        for rate, per_second in (
            ("3/s", 3),
            ("500/min", 500 / 60),
            ("90/hour", 1 / 40),
            ("7/day", 7 / 86_400),
            (0.1, 0.1),
        ):
            tube = self.create(f"tube-{per_second}", rate=rate, burst=5)
            assert (tube.options["rate"], tube.options["burst"]) == (pytest.approx(per_second, 1e-5), 5)
            same = self.queue.create_tube(tube.name, self.driver, if_not_exists=True, **tube.options)
            assert same.options == tube.options

    def test_rate_of_zero_or_none_is_no_limit(self) -> None:
        for number, rate in enumerate((None, 0, 0.0)):
            tube = self.create(f"tube-{number}", rate=rate)
            assert "rate" not in tube.options
            tube.alter(rate=rate, burst=None)
            assert not {"rate", "burst"} & set(tube.options)

    def test_altered_rate_without_a_limit_drops_the_burst(self) -> None:
        self.limit(rate=1, burst=9)
        self.tube.alter(rate=0)
        assert not {"rate", "burst"} & set(self.tube.options)

    def test_burst_needs_a_rate(self) -> None:
        for change in ({"burst": 5}, {"rate": None, "burst": 5}):
            with self.expect_error(InvalidOption, "needs a rate"):
                self.create("limited", **change)
            with self.expect_error(InvalidOption, "needs a rate"):
                self.tube.alter(**change)

    def test_bad_rates_and_bursts_are_refused(self) -> None:
        bad: tuple[object, ...] = (
            "",
            "5",
            "5/",
            "5/m",
            "-1/s",
            "0/s",
            "1/2/s",
            "1/s ",
            -1,
            float("nan"),
            float("inf"),
            2e6,
        )
        assert self.refuses(lambda value: self.tube.alter(rate=value), *bad, True, [], "9e9/s", "٣/s")
        assert self.refuses(lambda value: self.tube.alter(rate=1, burst=value), 0, -1, 1.5, "2", True, 10**7)
