"""The list of running workers, in memory and on a server, read by both APIs."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import threading
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.contract.faces import Face
from tests.worker.test_worker_running import running
from tubes.backend.selecting import Scan
from tubes.sync.selection import Selection
from tubes.testing import ManualClock
from tubes.values import codecs
from tubes.values.task_data import SCHEDULES
from tubes.values.timings import MAX_LISTED_TIMINGS, Timings, durations_of, timings_in
from tubes.values.worker_info import (
    HEARTBEAT_TTL,
    WORKERS,
    HeldTask,
    ScheduleInfo,
    UnknownFunction,
    WorkerInfo,
    functions_of_no_worker,
    info_of,
)
from tubes.worker import Worker, presence
from tubes.worker.timekeeping import Timekeeper


@pytest.fixture(autouse=True)
def short_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make workers store their description more often."""
    monkeypatch.setattr(presence, "HEARTBEAT", 0.05)


def test_running_worker_is_listed_with_its_tasks_in_hand(queue: tubes.Queue, clock: ManualClock) -> None:
    tube = queue.create_tube("mail", "fifottl", ttr=60)
    done, go_on = threading.Event(), threading.Event()

    def send(task: tubes.Task) -> None:
        if task.data == "first":
            done.set()
        else:
            go_on.wait(20)

    worker = Worker(queue, concurrency=2)
    queue.create_tube("urgent")
    worker.on(["mail", "urgent"], send)
    tube.put("first")
    with running(worker) as run:
        assert done.wait(20)
        tube.put("second")
        assert eventually(lambda: [(one.in_hand, one.acked) for one in queue.admin.workers()] == [(1, 1)])
        (info,) = queue.admin.workers()
        assert (info.host, info.pid) == (socket.gethostname(), os.getpid())
        (handler,) = info.handlers
        assert handler.name.endswith("send")
        assert (handler.tubes, handler.concurrency, info.concurrency) == (("mail", "urgent"), 2, 2)
        assert (info.acked, info.released, info.buried, info.lost, info.stopping) == (1, 0, 0, 0, False)
        (held,) = info.tasks
        assert held == HeldTask("mail", 1, 1, held.since)
        assert info.started == info.seen == clock.now()
        assert abs(held.since - clock.now()) < 30
        worker.stop()
        assert eventually(lambda: [one.stopping for one in queue.admin.workers()] == [True])
        go_on.set()
        run.end()
    assert queue.admin.workers() == []
    assert queue.tubes() == ["mail", "urgent"]


def test_functions_of_workers_and_functions_of_no_worker_are_listed(queue: tubes.Queue, clock: ManualClock) -> None:
    one, other, done, go_on = Worker(queue), Worker(queue), threading.Event(), threading.Event()

    @one.task
    def wait() -> None:
        done.set()
        go_on.wait(20)

    one.task("later")(lambda: None)
    other.task("resize")(lambda: None)

    def unknown() -> list[UnknownFunction]:
        return functions_of_no_worker(queue.admin.workers())

    with running(other):
        queue.enqueue("resiez")
        assert eventually(lambda: unknown() == [UnknownFunction("tasks", "resiez")])
        queue.enqueue("wait")
        assert eventually(lambda: UnknownFunction("tasks", "wait") in unknown())
        with running(one):
            assert eventually(lambda: bool(clock.advance(30)) or done.is_set())  # type: ignore[func-returns-value]
            assert eventually(lambda: unknown() == [UnknownFunction("tasks", "resiez")])
            assert eventually(lambda: any(info.tasks for info in queue.admin.workers()))
            held = {("wait", "later"): ["wait"], ("resize",): []}

            def lists() -> dict[tuple[str, ...], list[str | None]]:
                infos = queue.admin.workers()
                return {info.handlers[0].functions: [held.function for held in info.tasks] for info in infos}

            # A heartbeat may have expired as the clock was advanced.
            assert eventually(lambda: lists() == held)
            go_on.set()


@pytest.mark.parametrize("name", ["\\ud83d", "x" * 200_000])
def test_odd_name_of_an_unknown_function_does_not_hide_its_worker(queue: tubes.Queue, place: str, name: str) -> None:
    worker = Worker(queue)
    worker.task("known")(lambda: None)
    tube, raw = queue.create_tube("tasks"), f'{{"task": "{name}"}}'
    try:
        tube.put(json.loads(raw))
    except tubes.CodecError:  # Another program may put it on a server.
        with tubes.connect(place, codec="raw") as other:
            other.tube("tasks").put(raw.encode())
    with running(worker):
        assert eventually(lambda: bool(functions_of_no_worker(queue.admin.workers())))
        (unknown,) = functions_of_no_worker(queue.admin.workers())
        assert len(unknown.name) <= 200


def test_durations_of_functions_and_handlers_are_reported(queue: tubes.Queue, clock: ManualClock, face: Face) -> None:
    worker, now = Worker(queue, concurrency=4), threading.Event()
    queue.create_tube("mail", "fifottl", max_attempts=2)
    worker.on("mail", lambda task: 1 / 0)
    worker.task("nap")(lambda: now.wait(0.2))
    worker.every(60, "sweep")(lambda: None)
    queue.tube("mail").put("to ann", delay=100)
    for _ in range(3):
        queue.enqueue("nap")
    clock.advance(100)
    with running(worker):
        assert eventually(lambda: sum(one.count for one in queue.admin.durations() if one.function is None) >= 5)
        mine = face.connect(queue)
        found = {(one.tube, one.function): one for one in mine.admin.durations()}
        mine.close()
        mail, nap = found["mail", None], found["tasks", "nap"]
        assert (mail.count, nap.count) == (2, 3)
        assert mail.wait_p50 == mail.wait_p99 == pytest.approx(100, rel=0.06)  # The retry has not waited.
        assert nap.run_p50 == pytest.approx(0.2, rel=0.3)
        assert (mail.run_p99 or 1) < 0.2 < (nap.wait_p50 or 0) == pytest.approx(100, rel=0.06)
        clock.advance(60)
        assert eventually(lambda: any(one.function == "sweep" for one in queue.admin.durations()))
        (sweep,) = (one for one in queue.admin.durations() if one.function == "sweep")
        assert sweep.wait_p50 == pytest.approx(40, rel=0.06)  # From its time at 120 s, not from its put.
    assert queue.admin.durations() == []


@pytest.mark.parametrize(
    "timings",
    [
        7,
        ["t", "f", [], [100_000, 1]],
        ["t", "f", [], [-1, 1]],
        ["t", "f", [], [1, 0.5]],
        ["t", "f", [], [1]],
        ["t", "f", [1, 1]],
        ["t", "\ud800", [], [1, 1]],
        ["\ud800", "f", [], [1, 1]],
        ["t", "", [], [1, 1]],
        ["t", 7, [], [1, 1]],
        ["t", "f", [], {"1": 1}],
    ],
)
def test_unreadable_timings_are_left_out(timings: object) -> None:
    good = Timings("mail", "send", {3: 1}, {3: 1})
    assert timings_in({"timings": [timings, good.fields]}) == [good]


def test_unreadable_descriptions_do_not_hide_the_durations_of_others(queue: tubes.Queue) -> None:
    entries = queue.admin._workers_tube()
    broken: list[object] = [7, "x", [], {}, {"timings": 7}, {"timings": {"a": 1}}]
    entries.put_many(broken)
    entries.put({"timings": [Timings("mail", "send", {3: 1}, {3: 1}).fields]})
    assert [(one.tube, one.function) for one in queue.admin.durations()] == [("mail", None), ("mail", "send")]
    assert queue.admin.workers() == []


def test_task_that_comes_back_uncounted_has_waited_only_once() -> None:
    keeper = Timekeeper()
    for wait in (1.0, 50.0, 90.0):
        keeper.record("tasks", "f", 7, wait, 0.1, comes_back=wait < 90)
    keeper.record("tasks", "f", 7, 2.0, 0.1)
    (timings,) = keeper.recent()
    assert (sum(timings.wait.values()), sum(timings.run.values())) == (2, 4)


def test_sketches_bound_the_functions_and_forget_old_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    keeper = Timekeeper()
    for number in range(500):
        keeper.record("tasks", f"f{number:03}", number, None, 1e-9 if number else 1e9)
    assert len(keeper.recent()) == MAX_LISTED_TIMINGS
    now += 240
    keeper.record("tasks", "f000", 0, 2.0, 3.0)
    (_, first, *_) = durations_of(keeper.recent())
    assert (first.function, first.count) == ("f000", 2)
    assert first.run_p50 == pytest.approx(3, rel=0.06)
    assert first.wait_p99 == pytest.approx(2, rel=0.06)
    now += 120
    (left,) = keeper.recent()
    assert (left.function, sum(left.run.values())) == ("f000", 1)
    now += 600
    assert keeper.recent() == []


def test_workers_of_all_connections_are_listed_to_both_apis(queue: tubes.Queue, face: Face) -> None:
    with queue.session() as other:
        first, second = Worker(queue), Worker(other)
        queue.create_tube("mail")
        for worker in (first, second):
            worker.on("mail", lambda task: None)
        with running(first), running(second):
            assert eventually(lambda: len(queue.admin.workers()) == 2)
            mine = face.connect(queue)
            seen = mine.admin.workers()
            mine.close()
            assert {info.id for info in seen} == {info.id for info in queue.admin.workers()}
        assert queue.admin.workers() == []


def test_schedules_are_listed_with_their_last_result(queue: tubes.Queue, clock: ManualClock) -> None:
    worker = Worker(queue)
    worker.every(60, "sweep")(lambda: None)
    worker.every(60, "fail")(lambda: 1 / 0)
    worker.cron("0 9 * * *", "report", timezone="Europe/Vienna")(lambda: None)

    def results() -> dict[str, str | None]:
        return {one.name: one.last_result for info in queue.admin.workers() for one in info.schedules}

    with running(worker):
        assert eventually(lambda: results() == {"sweep": None, "fail": None, "report": None})
        clock.advance(70)
        assert eventually(lambda: results() == {"sweep": "acked", "fail": "released", "report": None})
        (info,) = queue.admin.workers()
        assert info.schedules == (
            ScheduleInfo("sweep", SCHEDULES, "every 60 s", 120, 60, "acked"),
            ScheduleInfo("fail", SCHEDULES, "every 60 s", 120, 60, "released"),
            ScheduleInfo("report", SCHEDULES, "0 9 * * * Europe/Vienna", 28_800),
        )


def test_silent_worker_is_removed_from_the_list(
    queue: tubes.Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "HEARTBEAT", 3600)
    queue.create_tube("mail")
    worker = Worker(queue)
    worker.on("mail", lambda task: None)
    with running(worker):
        assert eventually(lambda: len(queue.admin.workers()) == 1)
        clock.advance(HEARTBEAT_TTL - 0.1)
        assert len(queue.admin.workers()) == 1
        clock.advance(0.1)
        assert queue.admin.workers() == []


def test_worker_registers_again_after_its_entry_was_lost(queue: tubes.Queue) -> None:
    queue.create_tube("mail")
    worker = Worker(queue)
    worker.on("mail", lambda task: None)
    with running(worker):
        assert eventually(lambda: len(queue.admin.workers()) == 1)
        queue.admin._workers_tube().drop(force=True)
        assert eventually(lambda: len(queue.admin.workers()) == 1)


def test_a_short_burst_is_not_listed(queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "HEARTBEAT", 3600)
    tube = queue.create_tube("mail")
    tube.put("ann")
    worker = Worker(queue)
    seen: list[Any] = []
    worker.on(tube, lambda task: seen.append(queue.admin.workers()))
    worker.run(burst=True)
    assert seen == [[]]


@pytest.mark.parametrize("codec", ["raw", "msgpack"])
@pytest.mark.parametrize("place", ["memory", "server"])
def test_workers_are_listed_with_any_codec(codec: str, place: str, request: pytest.FixtureRequest) -> None:
    url = "memory://" if place == "memory" else request.getfixturevalue("url")
    with tubes.connect(url, codec=codec) as queue:
        queue.create_tube("mail")
        worker = Worker(queue)
        worker.on("mail", lambda task: None)
        with running(worker):
            assert eventually(lambda: [one.pid for one in queue.admin.workers()] == [os.getpid()])


def test_worker_that_cannot_register_still_works(
    queue: tubes.Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "tubes.worker")
    with monkeypatch.context() as patch:  # An older version allowed this name.
        patch.setattr("tubes.drivers.driver.RESERVED", re.compile("(?!)"))
        queue.create_tube(WORKERS, "fifo", max_attempts=1)
    tube = queue.create_tube("mail")
    worker = Worker(queue)
    seen: list[Any] = []
    worker.on(tube, lambda task: seen.append(task.data))
    with running(worker):
        tube.put("ann")
        assert eventually(lambda: seen == ["ann"] and "not in the list of workers" in caplog.text)
    assert caplog.text.count("not in the list of workers") == 1


def test_entry_of_another_version_is_read_as_far_as_possible() -> None:
    fields = {"id": "a", "host": "h", "pid": 1, "started": 2.0, "news": 3}
    assert info_of(fields, 4.0) == WorkerInfo("a", "h", 1, 2.0, 4.0)
    for bad in (None, 7, {}, {**fields, "tasks": [{"tube": "x"}]}, {**fields, "handlers": 7}):
        assert info_of(bad, 4.0) is None


GOOD: dict[str, Any] = {"id": "good", "host": "h", "pid": 1, "started": 2.0}
SCHEDULE: dict[str, Any] = {"name": "n", "tube": "t", "schedule": "s", "next": 1, "last": None, "last_result": None}


def with_values(field: str, *values: object) -> list[dict[str, Any]]:
    return [GOOD | {field: value} for value in values]


BAD: list[object] = [
    *[[1], "pid", None, {"id": "x"}],
    *with_values("pid", "x", True, -1, 1.5, None, 10**30),
    *with_values("host", 5, None, ["x"]),
    *with_values("started", "x", None, 1e300, float("inf"), float("nan"), -1e300),
    *with_values("acked", "<script>", None, float("inf")),
    *with_values(
        "handlers", *([{"name": "n", "tubes": ["t"], "concurrency": bad}] for bad in (float("inf"), "9" * 5000))
    ),
    GOOD | {"tasks": [{"tube": "t", "id": float("inf"), "attempts": 1, "since": 1}]},
    GOOD | {"tasks": [{"tube": "t", "id": 1, "attempts": 1, "since": 1e300}]},
    *with_values("schedules", *([SCHEDULE | {name: []}] for name in SCHEDULE), [SCHEDULE | {"next": 1e300}]),
]


def test_invalid_entries_are_left_out(queue: tubes.Queue, subtests: pytest.Subtests) -> None:
    tube = queue.admin._workers_tube()
    tube.put(GOOD)
    for bad in BAD:
        with subtests.test(repr(bad)[:80]):
            entry = tube.put(bad) if tube._port.codec is None else put_raw(tube, json.dumps(bad).encode())
            assert [(one.id, one.pid) for one in queue.admin.workers()] == [("good", 1)]
            entry.delete()


@pytest.mark.parametrize("bad", [b"\xff{", b"[" * 100_000, b"9" * 5000])
def test_an_entry_that_is_not_json_is_left_out(url: str, bad: bytes) -> None:
    with tubes.connect(url) as queue:
        tube = queue.admin._workers_tube()
        tube.put(GOOD)
        put_raw(tube, bad)
        assert [one.id for one in queue.admin.workers()] == ["good"]


def put_raw(tube: tubes.Tube, raw: bytes) -> tubes.Task:
    port: Any = tube._port
    port.codec = codecs.find("raw")
    return tube.put(raw)


def test_workers_in_an_event_loop_are_listed(queue: tubes.Queue) -> None:
    async def main() -> None:
        async with tubes.aio.connect(queue) as mine:
            await mine.create_tube("mail")
            worker = Worker(mine)
            worker.on("mail", lambda task: None)
            run = asyncio.create_task(worker.run_async())
            found: list[tubes.WorkerInfo] = []
            for _ in range(2000):
                if found := await mine.admin.workers():
                    break
                await asyncio.sleep(0.01)
            assert [one.pid for one in found] == [os.getpid()]
            worker.stop()
            await run
            assert await mine.admin.workers() == []

    asyncio.run(main())


def test_worker_that_reports_while_the_list_is_read_is_listed_once(
    queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.create_tube("mail")
    worker = Worker(queue)
    worker.on("mail", lambda task: None)
    with running(worker):
        assert eventually(lambda: len(queue.admin.workers()) == 1)
        read_part = Selection._part
        parts: list[list[tubes.Task]] = []

        def read(selection: Any, scan: Any, filters: Any, size: int, **data: bool) -> list[tubes.Task]:
            if len(parts) == 1:  # The worker replaces its entry before the second part is read.
                assert eventually(
                    lambda: parts[0][0].id != read_part(selection, Scan(filters), filters, 1, **data)[0].id
                )
            parts.append(read_part(selection, scan, filters, 1, **data))
            return parts[-1]

        monkeypatch.setattr(Selection, "_part", read)
        assert len(queue.admin.workers()) == 1
        assert parts[0]
