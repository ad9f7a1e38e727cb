"""The options of `put` and `create_tube`: the supported names and the valid values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum, IntEnum
from functools import partial

from tests.contract.bench import Bench, lacks, needs
from tubes import Backoff, InvalidOption, OptionNotSupported

TASKS = ("pri", "ttl", "ttr", "delay", "utube")
TUBES = ("pri", "ttl", "ttr")
SPANNING = ("ttl", "ttr")
SPANS: list[object] = [
    *(-1, -0.1, float("nan"), float("inf"), 100 * 366 * 86400, "1", [1], True),
    *(timedelta(seconds=-1), timedelta(days=-1, hours=1), timedelta.max),
]
LISTS: list[object] = [-1, 0.5, 1.0, "1", [1], True, 2**60]


class Number(IntEnum):
    """Numbers of a subclass of int."""

    ZERO = 0
    TWO = 2


class Word(str, Enum):  # noqa: UP042 - a StrEnum has another str()
    """Strings of a subclass of str."""

    NAME = "name"
    KEEP = "keep"


class Options(Bench):
    """Options."""

    def test_subclasses_of_int_and_str_are_accepted_as_options(self) -> None:
        tube = self.queue.create_tube(Word.NAME, self.driver, **self.options, capacity=Number.TWO)
        assert tube.name == "name"
        assert "Word" not in repr(tube)
        tube = self.queue.tube(Word.NAME)
        lane = self.lane(Word.NAME)
        options = {name: Number.TWO for name in ("pri", "ttl", "ttr", "key_ttl") if self.knows(name)}
        task = tube.put("x", key=Word.NAME, on_duplicate=Word.KEEP, max_attempts=Number.TWO, **options, **lane)
        assert (task.id, task.key, task.max_attempts) == (0, "name", 2)
        assert [type(fact) for fact in (task.key, task.pri, task.max_attempts)] == [str, int, int]
        changes = {"pri": Number.TWO} if self.knows("pri") else {"data": 1}
        assert tube.update(Number.ZERO, **changes).id == 0
        tube.bury(Number.ZERO, Word.NAME)
        assert tube.select("buried", limit=Number.TWO).kick(attempts=Number.TWO) == 1
        assert tube.kick(task=Number.ZERO, attempts=Number.TWO).state == "ready"
        for method in ("ack_many", "release_many", "delete_many"):
            assert getattr(tube, method)([Number.ZERO]) == {0: method == "delete_many"}
        assert len(tube.put_many([1], **options, **lane)) == 1

    def test_put_refuses_an_option_that_the_driver_lacks(self) -> None:
        known = self.knobs.options | ({"utube"} if self.knobs.lane else set[str]())
        lacking = {*TASKS, "capacity", "interval", "colour"} - known
        assert self.refuses(lambda option: self.tube.put(0, **{option: 1}), *lacking, error=OptionNotSupported)

    def test_a_tube_refuses_an_option_that_the_driver_lacks(self) -> None:
        lacking = {*TUBES, "colour"} - self.knobs.options
        if self.knobs.lane is None:
            lacking |= {"lane_capacity", "max_in_flight", "interval", "interval_from", "jitter", "order", "lane_rate"}
        assert self.refuses(lambda option: self.create("other", **{option: 1}), *lacking, error=OptionNotSupported)
        if "delay" not in self.knobs.options:
            with self.expect_error(OptionNotSupported):
                self.create("other", backoff=[1])
        assert self.queue.tubes() == ["contract"]

    def test_create_tube_refuses_task_only_options(self) -> None:
        own = ("delay", "timeout", "utube", self.knobs.lane or "utube")
        assert self.refuses(lambda option: self.create("other", **{option: 1}), *own, error=OptionNotSupported)

    @lacks("lane")
    def test_driver_without_lanes_refuses_throttling(self) -> None:
        assert self.put().utube is None
        calls = (partial(self.tube.lane, "x"), self.tube.lanes)
        assert self.refuses(lambda call: call(), *calls, error=OptionNotSupported)
        options = (
            {"interval": 1},
            {"lane_capacity": 2},
            {"max_in_flight": 2},
            {"jitter": 0.5},
            {"order": "round_robin"},
            {"interval_from": "ack"},
        )
        assert self.refuses(lambda settings: self.create("other", **settings), *options, error=OptionNotSupported)

    def test_bad_spans_of_time_are_refused(self) -> None:
        for option in ({"ttl", "ttr", "delay"} & self.knobs.options) | {"timeout", "key_ttl"}:
            bad = [{option: value} for value in SPANS]
            assert self.refuses(lambda settings: self.tube.put(0, **settings), *bad)
            if option in (*SPANNING, "key_ttl"):
                assert self.refuses(lambda settings: self.create("other", **settings), *bad)

    def test_a_span_of_time_may_be_a_timedelta(self) -> None:
        span = timedelta(seconds=90, microseconds=1)
        tube = self.create("other", key_ttl=span, **{option: span for option in SPANNING if self.knows(option)})
        task = tube.put(0, **{option: 2 * span for option in SPANNING if self.knows(option)}, **self.lane("a"))
        for option in SPANNING:
            if self.knows(option):
                assert (getattr(task, option), getattr(tube.peek(task), option)) == (180.000002, 180.000002)
        assert tube.take(timeout=timedelta(0)).id == task.id
        assert (tube.take_many(1, timedelta(0)), self.queue.take_any([tube], timedelta(0))) == ([], None)
        tube.pause(span)
        assert tube.statistics().paused == self.clock.now() + 90.000001
        assert tube.admin.due_histogram([span]) == [0, int(self.knows("ttr"))]

    @needs("delay")
    def test_a_delay_may_be_a_timedelta(self) -> None:
        second = timedelta(seconds=1)
        task = self.put(delay=2 * second)
        assert task.due == self.clock.now() + 2
        assert self.tube.update(task, delay=3 * second).due == self.clock.now() + 3
        self.clock.advance(3)
        assert self.take().release(4 * second).due == self.clock.now() + 4
        self.clock.advance(4)
        assert self.tube.release_many([self.take()], 5 * second) == {task.id: True}
        assert self.tube.peek(task).due == self.clock.now() + 5

    @needs("ttr")
    def test_touch_and_renew_many_accept_timedeltas(self) -> None:
        task = self.put_and_take(ttr=10)
        assert self.tube.touch(task, timedelta(minutes=1)).due == self.clock.now() + 70
        assert self.tube.touch_many([task], timedelta(minutes=2)) == {task.id: True}
        assert self.tube.peek(task).due == self.clock.now() + 120

    @needs("ttl")
    def test_kick_accepts_a_timedelta_as_ttl(self) -> None:
        task = self.put_and_bury()
        assert self.tube.select("buried", limit=1).kick(ttl=timedelta(minutes=1)) == 1
        assert self.tube.peek(task).ttl == 60

    @needs("lane")
    def test_the_limits_of_a_lane_may_be_timedeltas(self) -> None:
        minute = timedelta(minutes=1)
        tube = self.create("other", interval=minute)
        tube.lane("a").configure(interval=2 * minute)
        tube.lane("a").block(minute)
        (lane,) = tube.lanes()
        assert (lane.interval, lane.next_start) == (120, self.clock.now() + 60)

    @needs("delay")
    def test_a_backoff_may_be_of_timedeltas(self) -> None:
        for backoff in ([timedelta(minutes=1)], Backoff(timedelta(minutes=1), cap=timedelta(hours=1))):
            tube = self.create(f"of-{type(backoff).__name__}", backoff=backoff)
            tube.put(0, **self.lane("a"))
            assert tube.release(tube.take(0)).due == self.clock.now() + 60

    @needs("delay")
    def test_datetime_as_delay_is_refused_with_a_hint_to_at(self) -> None:
        soon = datetime.now(UTC) + timedelta(minutes=1)
        with self.expect_error(
            InvalidOption, match="delay=.* must be a number of seconds or a timedelta; use at= for a datetime"
        ):
            self.tube.put(0, delay=soon)
        with self.expect_error(InvalidOption, match="must be a number of seconds or a timedelta$"):
            self.tube.take(soon)

    @lacks("delay")
    def test_at_is_refused_where_the_driver_has_no_delay(self) -> None:
        task = self.put_and_take()
        with self.expect_error(OptionNotSupported):
            self.tube.put(0, at=datetime.now(UTC))
        with self.expect_error(OptionNotSupported):
            self.tube.release(task, at=datetime.now(UTC))

    @needs("pri")
    def test_a_priority_is_a_whole_number_of_32_bits(self) -> None:
        assert self.refuses(lambda value: self.tube.put(0, pri=value), *LISTS, 2**32)
        assert self.refuses(lambda value: self.create("other", pri=value), *LISTS, 2**32)

    def test_a_capacity_is_a_whole_number(self) -> None:
        assert self.refuses(lambda value: self.create("other", capacity=value), *LISTS)

    def test_option_set_to_null_counts_as_not_given(self) -> None:
        for option in (self.knobs.options - {"capacity"}) | {
            "timeout",
            "key",
            "max_attempts",
            "key_ttl",
            "on_duplicate",
        }:
            assert self.put(**{option: None}).state == "ready"

    @needs("ttl")
    def test_spans_may_be_fractions_of_a_second(self) -> None:
        assert self.put(ttl=0.25).ttl == 0.25
        assert self.put(ttl=1e-6).ttl == 1e-6

    @needs("pri")
    def test_a_task_knows_its_priority(self) -> None:
        assert self.put(pri=7).pri == 7
        assert self.put().pri == 0

    def test_a_task_knows_when_it_was_put(self) -> None:
        start = self.clock.now()
        self.clock.advance(2.5)
        assert self.put().created == start + 2.5
        self.clock.advance(1)
        assert self.take().created == start + 2.5
