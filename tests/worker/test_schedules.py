"""Scheduled functions are called once per occurrence, with any number of workers, and even if a worker dies."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import tubes
from tests.contract.bench import eventually
from tests.worker.test_worker_running import running
from tubes import ExtraMissing, InvalidOption
from tubes.drivers.options import SECOND
from tubes.testing import ManualClock
from tubes.values.task_data import SCHEDULES, TASKS
from tubes.worker import Summary, Worker, current_task, scheduler
from tubes.worker.schedules import AnyOf, Cron, Every, Schedule, latest

pytest.importorskip("cronsim", reason="the extra schedule")


class Program:
    """A version of a program, with one function and its schedule."""

    def __init__(self, queue: tubes.Queue, interval: float | None = 60, tube: str = TASKS, name: str = "sweep") -> None:
        self.worker = Worker(queue)
        self.calls: list[float] = []
        self.fails = False
        if interval is None:
            self.worker.task(name, tube=tube)(self.sweep)
        else:
            self.worker.every(interval, name, tube=tube)(self.sweep)

    def sweep(self) -> None:
        self.calls.append(current_task().data.get("at"))
        if self.fails:
            raise ValueError

    def run(self) -> Summary:
        return self.worker.run(burst=True)


# -- times -------------------------------------------------------------------------------------------------------------


def micros(*moment: int, zone: Any = UTC) -> int:
    return round(datetime(*moment, tzinfo=zone).timestamp()) * SECOND  # type: ignore[misc, arg-type]


def occurrences(schedule: Schedule, first: int, count: int) -> list[datetime]:
    found = []
    for _ in range(count):
        first = schedule.next_after(first)
        found.append(datetime.fromtimestamp(first / SECOND, UTC))
    return found


def test_an_interval_is_counted_from_the_epoch() -> None:
    for interval in (7, 7.0, timedelta(seconds=7)):
        assert [Every(interval).next_after(at * SECOND) for at in (0, 6, 7)] == [7 * SECOND, 7 * SECOND, 14 * SECOND]
    assert Every(1.5).next_after(SECOND) == 1_500_000


def test_cron_line_uses_its_time_zone() -> None:
    start = micros(2026, 1, 2, 12)  # A Friday.
    assert occurrences(Cron("*/20 * * * *", "UTC"), start, 2) == [
        datetime(2026, 1, 2, 12, 20, tzinfo=UTC),
        datetime(2026, 1, 2, 12, 40, tzinfo=UTC),
    ]
    for zone in ("Europe/Vienna", ZoneInfo("Europe/Vienna"), timezone(timedelta(hours=1))):
        assert occurrences(Cron("30 8 * * mon-fri", zone), start, 2) == [
            datetime(2026, 1, 5, 7, 30, tzinfo=UTC),
            datetime(2026, 1, 6, 7, 30, tzinfo=UTC),
        ]


class OneOffset(tzinfo):
    """A zone as pytz has it: without `localize` a datetime has the offset that the zone had first."""

    zone = "Europe/Vienna"

    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(hours=1, minutes=5)

    def dst(self, _: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, _: datetime | None) -> str:
        return "LMT"

    def localize(self, moment: datetime) -> datetime:
        raise NotImplementedError


def test_zone_of_pytz_follows_the_clock_changes_of_its_place() -> None:
    daily = Cron("0 9 * * *", OneOffset())
    assert str(daily) == "0 9 * * * Europe/Vienna"
    assert occurrences(daily, micros(2026, 10, 24, 12), 2) == [
        datetime(2026, 10, 25, 8, tzinfo=UTC),
        datetime(2026, 10, 26, 8, tzinfo=UTC),
    ]
    assert occurrences(daily, micros(2026, 10, 23, 12), 1) == [datetime(2026, 10, 24, 7, tzinfo=UTC)]
    fixed = OneOffset()
    fixed.zone = None  # type: ignore[assignment]  # As of `pytz.FixedOffset`.
    assert occurrences(Cron("0 9 * * *", fixed), 0, 1) == [datetime(1970, 1, 1, 7, 55, tzinfo=UTC)]


def test_daily_call_happens_once_on_days_of_clock_changes() -> None:
    nightly = Cron("30 2 * * *", "Europe/Vienna")
    spring = occurrences(nightly, micros(2026, 3, 28, 12), 2)  # 2:30 does not exist on the 29th.
    assert spring == [datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 3, 30, 0, 30, tzinfo=UTC)]
    autumn = occurrences(nightly, micros(2026, 10, 24, 12), 2)  # 2:30 exists twice on the 25th.
    assert autumn == [datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 26, 1, 30, tzinfo=UTC)]


@pytest.mark.parametrize("line", ["30 2 * * *", "*/5 * * * *", "0 * * * *", "15,45 1-3 * * *"])
def test_occurrences_are_increasing_and_independent_of_the_query_time(line: str) -> None:
    schedule = Cron(line, "Europe/Vienna")
    for day in (micros(2026, 3, 28, 20), micros(2026, 10, 24, 20)):
        all_of_them = []
        at = day
        while at < day + 12 * 3600 * SECOND:
            at = schedule.next_after(at)
            all_of_them.append(at)
        assert all_of_them == sorted(set(all_of_them))
        for moment in range(day, day + 10 * 3600 * SECOND, 17 * 60 * SECOND + 1):
            assert schedule.next_after(moment) == next(found for found in all_of_them if found > moment)
            assert latest(schedule, day, moment) == max((at for at in all_of_them if at <= moment), default=None)


def test_latest_occurrence_in_a_long_span_is_found_quickly() -> None:
    begin, now = micros(1970, 1, 2), micros(2026, 1, 2, 12, 0, 30)
    assert latest(Every(1), begin, now) == now
    assert latest(Cron("* 9 * * *", "UTC"), begin, now) == micros(2026, 1, 2, 9, 59)
    assert latest(AnyOf([Every(7200), Every(5000)]), begin, now) == max(
        now - now % (span * SECOND) for span in (7200, 5000)
    )


@pytest.mark.parametrize("interval", [0, 0.5, -1, None, "60", timedelta(0)])
def test_an_interval_must_be_a_second_at_least(queue: tubes.Queue, interval: Any) -> None:
    with pytest.raises(InvalidOption):
        Worker(queue).every(interval)


@pytest.mark.parametrize(
    ("line", "zone"),
    [
        ("", "UTC"),
        ("* * * *", "UTC"),
        ("* * * * * *", "UTC"),
        ("61 * * * *", "UTC"),
        ("0-0/99999999999 * * * *", "UTC"),
        ("0," * 200 + "0 * * * *", "UTC"),
        ("a b c d e", "UTC"),
        ("0 0 30 2 *", "UTC"),
        ("@daily", "UTC"),
        (None, "UTC"),
        (7, "UTC"),
        ("* * * * *", "Europe/Nowhere"),
        ("* * * * *", ""),
        ("* * * * *", None),
        ("* * * * *", "../etc"),
    ],
)
def test_invalid_cron_line_or_time_zone_is_refused(queue: tubes.Queue, line: Any, zone: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        Worker(queue).cron(line, timezone=zone)
    assert repr(line) in str(caught.value) or repr(zone) in str(caught.value)


def test_cron_without_the_extra_names_the_missing_package(queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ExtraMissing, match=r"pip install 'tubes-queue\[schedule\]'"):
        Worker(queue).cron("* * * * *")
    Worker(queue).every(60)


def test_a_function_that_needs_arguments_is_refused(queue: tubes.Queue) -> None:
    def send(to: str) -> None: ...

    with pytest.raises(InvalidOption):
        Worker(queue).every(60)(send)


# -- one call per occurrence -------------------------------------------------------------------------------------------


def test_each_occurrence_is_called_once_by_several_workers(queue: tubes.Queue, clock: ManualClock) -> None:
    with queue.session() as other:
        programs = [Program(queue), Program(other), Program(queue)]
        for _ in range(5):
            for program in programs:
                program.run()
            clock.advance(60)
        calls = sorted(at for program in programs for at in program.calls)
    assert calls == [60, 120, 180, 240]


def test_cron_schedule_calls_its_function(queue: tubes.Queue, clock: ManualClock) -> None:
    worker = Worker(queue)
    calls: list[float] = []
    worker.cron("*/5 * * * *", "five")(lambda: calls.append(clock.now()))
    for _ in range(12):
        worker.run(burst=True)
        clock.advance(60)
    assert calls == [300, 600]


def test_a_function_may_have_several_schedules_and_be_a_task_function(queue: tubes.Queue, clock: ManualClock) -> None:
    worker = Worker(queue)
    calls: list[float] = []

    @worker.every(120)
    @worker.every(100)
    @worker.task("tick")
    def sweep() -> None:
        calls.append(clock.now())

    queue.enqueue(sweep)
    for _ in range(13):
        worker.run(burst=True)
        clock.advance(20)
    assert calls == [0, 100, 120, 200, 240]
    assert [task.data["task"] for task in queue.tube(SCHEDULES).select()] == ["tick"]
    assert queue.tube(TASKS).join(0)


def test_scheduled_calls_wait_in_a_separate_tube(queue: tubes.Queue, clock: ManualClock) -> None:
    worker = Worker(queue)
    calls: list[str] = []
    worker.task("job")(lambda: calls.append("job"))
    worker.every(60, "sweep")(lambda: calls.append("sweep"))
    queue.enqueue("job")
    assert worker.run(burst=True) == Summary(acked=1)
    assert queue.tube(TASKS).join(0)
    assert not queue.tube(SCHEDULES).join(0)
    clock.advance(60)
    assert worker.run(burst=True) == Summary(acked=1)
    assert calls == ["job", "sweep"]


def test_enqueued_scheduled_function_runs_from_the_schedules_tube(queue: tubes.Queue) -> None:
    worker = Worker(queue)
    calls: list[str] = []

    @worker.every(60)
    def sweep() -> None:
        calls.append(current_task().tube)

    queue.enqueue(sweep)
    worker.run(burst=True)
    assert calls == [SCHEDULES]


def test_scheduled_function_keeps_its_task_options(queue: tubes.Queue, clock: ManualClock) -> None:
    worker = Worker(queue)
    worker.every(60)(worker.task("pid", process=True)(os.getpid))
    (route,) = [route for route in worker._routes if route.tubes == (SCHEDULES,)]
    assert isinstance(route.target, dict)
    assert route.target["pid"].process
    worker.run(burst=True)
    clock.advance(60)
    assert worker.run(burst=True) == Summary(acked=1)


def test_async_functions_can_be_scheduled(queue: tubes.Queue, clock: ManualClock) -> None:
    worker = Worker(queue)
    calls: list[float] = []

    @worker.every(60)
    async def sweep() -> None:
        calls.append(clock.now())

    worker.run(burst=True)
    clock.advance(60)
    assert worker.run(burst=True) == Summary(acked=1)
    assert calls == [60]


def test_missed_calls_are_made_once_and_the_next_is_on_time(queue: tubes.Queue, clock: ManualClock) -> None:
    program = Program(queue)
    program.run()
    clock.advance(1000)
    program.run()
    assert program.calls == [960]
    clock.advance(19)
    program.run()
    assert program.calls == [960]
    clock.advance(1)
    program.run()
    assert program.calls == [960, 1020]


def test_late_call_is_made_until_the_next_is_due(queue: tubes.Queue, clock: ManualClock) -> None:
    program = Program(queue)
    program.run()
    clock.advance(119)
    program.run()
    assert program.calls == [60]
    clock.advance(1)
    program.run()
    assert program.calls == [60, 120]


def test_failed_call_is_retried_and_the_next_call_is_made(queue: tubes.Queue, clock: ManualClock) -> None:
    queue.create_tube(TASKS, "fifottl", max_attempts=2, backoff=[90])
    program = Program(queue)
    program.run()
    program.fails = True
    clock.advance(60)
    assert program.run() == Summary(released=1)
    clock.advance(60)
    program.fails = False
    program.run()
    clock.advance(30)
    program.run()
    assert program.calls == [60, 120, 60]


# -- dying workers -----------------------------------------------------------------------------------------------------


def test_call_of_a_dead_worker_is_made_late_by_another(queue: tubes.Queue, clock: ManualClock) -> None:
    program = Program(queue)
    program.run()
    clock.advance(60)
    dying = queue.session()
    assert dying.tube(TASKS).take(0) is not None
    clock.advance(60)  # The dead worker did not put the next occurrence.
    program.run()
    dying.close()
    clock.advance(60)
    program.run()
    assert sorted(program.calls) == [60, 180]


def test_running_worker_restores_a_removed_call(
    queue: tubes.Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_MIN_SLEEP", 0.01)
    monkeypatch.setattr(scheduler, "_MAX_SLEEP", 0.02)
    program = Program(queue)
    with running(program.worker):
        tube = queue._task_tube(TASKS)
        for _ in range(3):
            assert eventually(lambda: [task.key for task in tube.select()] == ["sweep@1970-01-01T00:01:00+00:00"])
            tube.truncate()
        tube.drop(force=True)
        assert eventually(lambda: TASKS in queue.tubes() and queue.tube(TASKS).select().count() == 1)
        clock.advance(60)
        assert eventually(lambda: program.calls == [60])


def test_a_schedule_may_be_added_while_a_worker_runs(queue: tubes.Queue, clock: ManualClock) -> None:
    program = Program(queue, interval=None)
    with running(program.worker):
        program.worker.every(60, "other")(program.sweep)
        assert eventually(lambda: SCHEDULES in queue.tubes() and queue.tube(SCHEDULES).select().count() == 1)
        clock.advance(60)
        assert eventually(lambda: program.calls == [60])


def test_very_late_put_does_not_repeat_a_call(queue: tubes.Queue, clock: ManualClock) -> None:
    program = Program(queue)
    for _ in range(12):
        program.run()
        clock.advance(60)
    calls = [*program.calls]
    assert len(calls) == 11
    program.run()
    # A process that was suspended puts this occurrence only now, when its key has expired.
    queue.tube(TASKS).put({"task": "sweep", "at": 60.0}, key="sweep@1970-01-01T00:01:00+00:00")
    program.run()
    assert program.calls == [*calls, 720]
    assert queue.tube(TASKS).select().count() == 1


# -- other versions ----------------------------------------------------------------------------------------------------


def test_changed_schedule_makes_its_pending_call_once(queue: tubes.Queue, clock: ManualClock) -> None:
    Program(queue, 60).run()
    new = Program(queue, 100)
    for _ in range(16):
        new.run()
        clock.advance(20)
    assert new.calls == [60, 100, 200, 300]


def test_removed_schedule_makes_its_pending_call_once(queue: tubes.Queue, clock: ManualClock) -> None:
    Program(queue, 60).run()
    new = Program(queue, None)
    for _ in range(5):
        new.run()
        clock.advance(60)
    assert new.calls == [60]
    assert [*queue.tube(TASKS).select()] == []


def test_call_of_a_removed_function_waits_for_a_week(queue: tubes.Queue, clock: ManualClock) -> None:
    Program(queue, 60).run()
    new = Program(queue, None, name="other")
    for _ in range(6):
        clock.advance(60)
        new.run()
    (left,) = queue.tube(TASKS).select()
    assert (left.state, left.attempts) == ("~", 0)
    clock.advance(7 * 86400)
    new.run()
    assert [*queue.tube(TASKS).select()] == []


# -- tubes -------------------------------------------------------------------------------------------------------------


def test_call_in_a_lane_waits_for_the_previous_call(queue: tubes.Queue, clock: ManualClock) -> None:
    tube = queue.create_tube("ticks", "utubettl", ttr=600)
    program = Program(queue, 60, "ticks")
    program.run()
    clock.advance(60)
    slow = tube.take(0)
    assert slow is not None
    assert slow.utube == "sweep"
    program.run()
    clock.advance(60)
    assert program.run() == Summary()
    slow.ack()
    program.run()
    assert program.calls == [120]


def test_tube_without_delays_is_logged(queue: tubes.Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.create_tube("plain", "fifo")
    program = Program(queue, 60, "plain")
    assert program.run() == Summary()
    assert "the next call of 'sweep' could not be put yet: driver 'fifo' has no option 'delay'" in caplog.text


def test_skipped_call_is_logged(queue: tubes.Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tubes.worker")
    program = Program(queue)
    program.run()
    clock.advance(1000)
    program.run()
    assert "'sweep' is not called for 1970-01-01T00:01:00+00:00: a later call is due" in caplog.text


BAD: list[Callable[[Worker], Any]] = [
    lambda worker: worker.every(60, "")(lambda: None),
    lambda worker: worker.every(60)(lambda: None),
    lambda worker: worker.every(60, "a", tube="mail")(lambda: None),
    lambda worker: worker.every(60, "taken", tube=TASKS)(lambda: None),
    lambda worker: worker.every(60, "a", timeout=0)(lambda: None),
]


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_refused(queue: tubes.Queue, bad: Any) -> None:
    worker = Worker(queue)
    worker.on(queue.create_tube("mail"), lambda task: None)
    worker.task("taken")(lambda: 1)
    with pytest.raises(InvalidOption):
        bad(worker)


@pytest.mark.parametrize("at", [-1, 1e300, 253_370_764_801, 10**400])
def test_call_with_an_impossible_time_is_buried_at_once(queue: tubes.Queue, at: float) -> None:
    program = Program(queue)
    tube = queue.create_tube(TASKS, "fifottl", max_attempts=3)
    tube.put({"task": "sweep", "args": [], "kwargs": {}, "at": at})
    assert program.run().buried == 1
    (dead,) = tube.select("buried")
    assert (dead.reason or "").startswith("ValueError: at=")
    assert (dead.attempts, program.calls) == (1, [])
