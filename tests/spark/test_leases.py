"""The stream source, with the objects that Spark calls: its guarantees in crashes of the driver."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import tubes
from tests.support.internals import port_of
from tubes.errors import StreamFenced
from tubes.spark import leases
from tubes.spark.leases import LeaseReader
from tubes.spark.server import streams
from tubes.testing import LocalServer

from .objects import read, rows_of, schema, source


class Query:
    """Runs a query like Spark: with an offset log, a commit log, and the rows of a sink, which survive a crash."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.offsets: list[dict[str, Any]] = []
        self.committed = 0
        self.sink: list[list[str]] = []
        self.start()

    def start(self) -> None:
        reader = source(self.options).streamReader(schema("id bigint, data string"))
        assert isinstance(reader, LeaseReader)
        self.reader = reader
        if not self.offsets:
            self.reader.initialOffset()
            self.offsets.append(self.reader.initialOffset())

    def crash(self, seconds: float = 0.0) -> None:
        """Kill the driver, so that its lease is not renewed."""
        stream = self.reader._stream
        if stream is not None:
            port_of(stream.tube).connection.close(lost=True)
        time.sleep(seconds)

    def plan(self, limit: Any = None) -> bool:
        """Add a batch to the offset log. Return False if there is no new batch."""
        if self.committed == len(self.offsets) - 1:
            start = self.offsets[-1]
            latest = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
            if latest == start:
                return False
            self.offsets.append(latest)
            self.reader.commit(start)
        return True

    def deliver(self) -> None:
        """Deliver the last planned batch to the sink. A repeated delivery replaces the batch."""
        parts = self.reader.partitions(self.offsets[-2], self.offsets[-1])
        rows = [row["data"] for row in rows_of(self.reader, parts)]
        del self.sink[len(self.offsets) - 2 :]
        self.sink.append(rows)

    def commit(self) -> None:
        self.committed = len(self.offsets) - 1

    def finish(self) -> None:
        """Commit the last batch, process all others, and check that each task was delivered once."""
        self.commit()
        self.run()
        assert sorted(self.delivered, key=int) == EVERYTHING

    def step(self) -> None:
        """Plan, deliver and commit one batch."""
        self.plan()
        self.deliver()
        self.commit()

    def run(self, limit: Any = None) -> None:
        """Process batches until the tube is empty."""
        while self.plan(limit):
            self.deliver()
            self.commit()

    @property
    def delivered(self) -> list[str]:
        return [row for batch in self.sink for row in batch]


@pytest.fixture
def tube(queue: tubes.Queue) -> tubes.Tube:
    tube = queue.create_tube("t")
    tube.put_many([f"{number}" for number in range(100)])
    return tube


@pytest.fixture
def query(tube: tubes.Tube, options: dict[str, str]) -> Query:
    return Query({**options, "maxTasksPerTrigger": "30", "lease": "1"})


EVERYTHING = [f"{number}" for number in range(100)]


def test_query_delivers_each_task_once_and_acks_it(query: Query, tube: tubes.Tube) -> None:
    query.run()
    assert [len(batch) for batch in query.sink] == [30, 30, 30, 10]
    assert query.delivered == EVERYTHING
    assert tube.statistics().tasks["total"] == 0
    assert tube.statistics().calls["ack"] == 100


def test_batch_is_acked_only_after_commit(query: Query, tube: tubes.Tube) -> None:
    query.plan()
    query.deliver()
    assert tube.statistics().tasks["taken"] == 30
    query.commit()
    query.plan()
    query.reader._join_background()
    assert tube.statistics().tasks["done"] == 30


def test_full_batches_in_succession_are_taken_ahead(query: Query, tube: tubes.Tube) -> None:
    query.plan()
    assert tube.statistics().tasks["taken"] == 30, "the first batch is not taken ahead"
    query.deliver()
    query.commit()
    query.plan()
    query.reader._join_background()
    tasks = tube.statistics().tasks
    assert (tasks["done"], tasks["taken"]) == (30, 60)
    query.run()
    assert [len(batch) for batch in query.sink] == [30, 30, 30, 10]
    assert query.delivered == EVERYTHING


@pytest.mark.parametrize("size", [30, 2500])
def test_stop_returns_the_batch_ahead_and_keeps_the_planned_one(
    queue: tubes.Queue, tube: tubes.Tube, options: dict[str, str], size: int
) -> None:
    tube.put_many([f"{number}" for number in range(100, 3 * size + 10)])
    query = Query({**options, "maxTasksPerTrigger": f"{size}", "lease": "60"})
    query.step()
    query.plan()
    query.reader.stop()
    tasks = tube.statistics().tasks
    assert (tasks["taken"], tasks["ready"]) == (size, 100 - 2 * size if size == 30 else size + 10)
    assert [task.attempts for task in tube.select("ready", limit=3)] == [0] * 3
    assert queue.admin.check("t") == []
    query.start()
    query.run()
    assert query.delivered == [f"{number}" for number in range(max(100, 3 * size + 10))]
    assert tube.statistics().tasks["total"] == 0


def test_stop_keeps_a_batch_that_spark_may_have_planned(query: Query, tube: tubes.Tube) -> None:
    query.plan()
    query.reader.stop()
    assert tube.statistics().tasks["taken"] == 30


def test_late_or_partial_batch_prevents_taking_ahead(query: Query, tube: tubes.Tube) -> None:
    query.step()
    query.reader._last_request -= 60
    query.plan()
    query.reader._join_background()
    assert tube.statistics().tasks["taken"] == 30
    query.run()
    tube.put_many(["a", "b"])
    query.plan()
    tube.put_many(["c", "d"])
    query.reader._join_background()
    assert tube.statistics().tasks["taken"] == 2


BROKEN = b"\xc1"
#: A MessagePack extension, which JSON cannot represent.
EXTENSION = b"\xd4\x05x"


def create_undecodable(url: str, **more: str) -> tuple[tubes.Tube, dict[str, str]]:
    """Create a tube whose tasks 3 and 7 have undecodable data."""
    tube = tubes.connect(url, codec="raw").create_tube("bad")
    tube.put_many([{3: BROKEN, 7: EXTENSION}.get(number, b"\xa1x") for number in range(10)])
    return tube, {"url": url, "tube": "bad", "codec": "msgpack", "lease": "1", **more}


def test_undecodable_data_fails_query_and_names_task(url: str) -> None:
    _, overrides = create_undecodable(url)
    query = Query(overrides)
    query.plan()
    with pytest.raises(tubes.Unreadable, match="tube 'bad': the data of task 3"):
        query.deliver()


def test_bad_rows_option_buries_undecodable_data(url: str) -> None:
    tube, overrides = create_undecodable(url, badRows="bury")
    query = Query(overrides)
    query.plan()
    query.deliver()
    query.crash()
    query.start()
    query.run()
    assert query.delivered == ["x"] * 8
    assert [(task.id, task.reason) for task in tube.select("buried")] == [
        (id, "bad row: codec 'msgpack' cannot decode the data") for id in (3, 7)
    ]
    assert tube.statistics().tasks["total"] == 2


def test_batch_read_of_undecodable_data_fails_or_yields_null(url: str) -> None:
    _, overrides = create_undecodable(url)
    del overrides["lease"]
    with pytest.raises(tubes.Unreadable, match="tube 'bad': the data of task 3"):
        read(overrides)
    assert [row["id"] for row in read({**overrides, "badRows": "null"}) if row["data"] is None] == [3, 7]


@pytest.mark.parametrize("bad_rows", ["fail", "bury"])
def test_corrupt_record_fails_query_and_names_task(
    tube: tubes.Tube, options: dict[str, str], valkey: LocalServer, bad_rows: str
) -> None:
    query = Query({**options, "badRows": bad_rows})
    client: Any = valkey.client()
    client.hset(f"{port_of(tube).shared.key}:tasks", 5, b"\0")
    query.plan()
    with pytest.raises(tubes.Unreadable, match="tube 't': task 5"):
        query.deliver()


def test_tasks_in_lanes_are_not_taken_ahead(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("lanes", "utube")
    for number in range(9):
        tube.put(f"{number}", utube=f"{number}")
    query = Query({**options, "tube": "lanes", "maxTasksPerTrigger": "3"})
    for _ in range(2):
        query.step()
    query.plan()
    query.reader._join_background()
    assert tube.statistics().tasks["taken"] == 3


def test_batch_taken_ahead_survives_driver_crash(query: Query, tube: tubes.Tube) -> None:
    for _ in range(2):
        query.step()
    query.reader.latestOffset(query.offsets[-1], ReadMaxRows(30))  # takes the third batch, and the fourth ahead
    query.reader._join_background()
    assert tube.statistics().tasks["taken"] == 40
    query.crash()
    query.start()
    query.run()
    assert [len(batch) for batch in query.sink] == [30, 30, 30, 10]
    assert query.delivered == EVERYTHING
    assert tube.statistics().tasks["total"] == 0


def raise_connection_lost(*_: object) -> None:
    raise tubes.ConnectionLost(url="redis://nowhere", why="it is gone")


def test_failed_take_ahead_is_raised_on_next_plan(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        query.step()
    query.reader._join_background()
    with monkeypatch.context() as patched:
        patched.setattr(query.reader._stream, "take", raise_connection_lost)
        query.plan()  # The third batch was taken ahead; the next take fails.
        query.deliver()
        query.commit()
        with pytest.raises(tubes.ConnectionLost):
            query.plan()
    query.run()
    assert query.delivered == EVERYTHING


def test_batch_is_not_delivered_until_previous_batch_is_acked(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        query.step()
    query.reader._join_background()
    monkeypatch.setattr(query.reader._stream, "ack", raise_connection_lost)
    query.plan()
    with pytest.raises(tubes.ConnectionLost):
        query.deliver()


@pytest.mark.sample(3)
@pytest.mark.parametrize("stage", ["claimed", "planned", "delivered", "committed"])
@pytest.mark.parametrize("down", [0.0, 1.3], ids=["within the lease", "longer than it"])
def test_driver_crash_at_any_stage_loses_and_repeats_nothing(
    query: Query, tube: tubes.Tube, stage: str, down: float
) -> None:
    query.step()
    if stage == "claimed":  # The batch is taken, but not in the offset log.
        query.reader.latestOffset(query.offsets[-1], ReadMaxRows(30))
    else:
        query.plan()
    if stage in ("delivered", "committed"):
        query.deliver()
    if stage == "committed":
        query.commit()
    query.crash(down)
    query.start()
    if query.committed < len(query.offsets) - 1:  # Spark repeats a batch that is planned, but not committed.
        query.deliver()
    query.finish()
    assert tube.statistics().tasks["total"] == 0


@pytest.mark.full
def test_repeatedly_failing_row_buries_no_tasks(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("poison", max_attempts=3)
    tube.put_many([f"{number}" for number in range(100)])
    query = Query({**options, "tube": "poison", "lease": "1"})
    for _ in range(4):
        query.plan()
        query.deliver()  # A function of the user fails, so the batch is not committed.
        query.crash(1.3)
        query.start()
    assert [*tube.select("buried")] == []
    query.run()
    assert query.sink == [EVERYTHING]
    assert tube.statistics().tasks["total"] == 0


@pytest.mark.full
def test_count_retakes_option_counts_restarts_as_attempts(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("poison", max_attempts=2)
    tube.put_many(["a", "b"])
    query = Query({**options, "tube": "poison", "lease": "1", "countRetakes": "true"})
    for _ in range(2):
        query.plan()
        query.deliver()
        query.crash(1.3)
        query.start()
    query.run()
    assert [task.reason for task in tube.select("buried")] == ["max_attempts: session"] * 2


def test_only_tasks_taken_meanwhile_are_delivered_twice(query: Query, tube: tubes.Tube) -> None:
    query.plan()
    query.deliver()  # The sink has stored the batch; the commit log does not contain it.
    query.crash(1.3)
    stolen = [task.data for task in tube.take_many(7, timeout=0)]
    query.start()
    query.sink.append([])  # The sink keeps the batch, and the next delivery does not replace it.
    query.committed = len(query.offsets) - 1
    query.run()
    assert sorted([*query.delivered, *stolen], key=int) == sorted([*EVERYTHING, *stolen], key=int)


def test_second_query_with_same_consumer_fences_first_query(tube: tubes.Tube, options: dict[str, str]) -> None:
    overrides = {**options, "maxTasksPerTrigger": "30", "consumer": "nightly"}
    first = Query(overrides)
    first.plan()
    second = Query(overrides)
    assert second.offsets == [{"consumer": "nightly", "seq": 0}]
    second.plan()
    with pytest.raises(StreamFenced, match="'nightly'"):
        first.reader.commit(first.offsets[-1])
    second.deliver()
    second.commit()
    second.run()
    assert second.delivered == EVERYTHING


def test_named_consumer_continues_with_new_checkpoint(tube: tubes.Tube, options: dict[str, str]) -> None:
    overrides = {**options, "maxTasksPerTrigger": "30", "consumer": "nightly"}
    first = Query(overrides)
    first.step()
    first.plan()
    first.crash()
    second = Query(overrides)
    assert second.offsets[0]["seq"] == 1
    second.run()
    assert second.delivered == EVERYTHING[30:]


def test_old_checkpoint_does_not_repeat_done_batches(tube: tubes.Tube, options: dict[str, str]) -> None:
    query = Query({**options, "maxTasksPerTrigger": "30"})
    query.run()
    query.reader.commit(query.offsets[-1])
    query.crash()
    query.offsets, query.sink, query.committed = query.offsets[:1], [], 0
    tube.put("new")
    query.start()
    query.run()
    assert query.delivered == ["new"]


def test_trigger_limit_bounds_batch(query: Query) -> None:
    query.run(ReadMaxRows(12))
    assert {len(batch) for batch in query.sink} == {12, 4}


def test_unlimited_trigger_is_bounded_by_option(query: Query) -> None:
    query.run(ReadAllAvailable())
    assert [len(batch) for batch in query.sink] == [30, 30, 30, 10]


def test_batch_is_bounded_by_max_bytes_per_trigger(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("large")
    tube.put_many(["x" * 1000] * 200)
    query = Query({**options, "tube": "large", "maxBytesPerTrigger": "50k"})
    query.run()
    assert [len(batch) for batch in query.sink] == [50, 50, 50, 50]
    tube.put_many(["x" * 100_000] * 3)
    query.run()
    assert query.delivered[200:] == ["x" * 100_000] * 3, "a batch has one task at least"


@pytest.mark.parametrize("driver", ["fifo", "fifottl", "utube"])
@pytest.mark.parametrize("loose", [False, True])
def test_batch_exceeds_max_bytes_by_at_most_one_task(
    queue: tubes.Queue, options: dict[str, str], driver: str, loose: bool
) -> None:
    tube = queue.create_tube("sizes", driver)
    sizes = [1] * 60 + [100_000] * 40 + [1] * 60
    lanes: list[dict[str, Any]] = [{"utube": f"{n}"} if driver == "utube" else {} for n in range(len(sizes))]
    tube.put_many(tubes.Item("x" * size, **lane) for size, lane in zip(sizes, lanes, strict=True))
    if loose:  # Released tasks, so that the ready tasks are not in the order of their ids.
        tube.release_many(tube.take_many(5, timeout=0))
    query = Query({**options, "tube": "sizes", "maxBytesPerTrigger": "250k"})
    query.run()
    assert [len(row) for row in query.delivered] == sizes
    assert all(sum(map(len, batch[:-1])) < 250 * 1024 for batch in query.sink)
    assert len(query.sink) < 25, "and it is not much smaller"
    assert queue.admin.check("sizes") == []


def test_interrupted_batch_is_filled_up_to_its_bytes(
    query: Query, tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CHUNK", 10)
    stream = query.reader._open("again")
    tube.truncate()
    tube.put_many(["x" * 1000] * 100)
    stream.take(1, 20)
    assert [len(chunk.ids) for chunk in stream.take(1, 100, 40_000)] == [10, 10, 10, 9]


def test_query_waits_for_min_tasks_or_max_delay(
    tube: tubes.Tube, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query({**options, "minTasksPerTrigger": "80", "maxTasksPerTrigger": "90", "maxTriggerDelay": "1h"})
    query.step()
    assert not query.plan()
    assert tube.statistics().tasks == {**tube.statistics().tasks, "done": 90, "ready": 10, "taken": 0}
    tube.put_many(["more"] * 70)
    assert query.plan()
    query.deliver()
    query.commit()
    tube.put("last")
    assert not query.plan()
    query.reader._last_batch -= 3600
    assert query.plan()


def test_available_now_does_not_wait_for_min_tasks(tube: tubes.Tube, options: dict[str, str]) -> None:
    query = Query({**options, "minTasksPerTrigger": "1000"})
    query.reader.prepareForTriggerAvailableNow()
    query.run()
    assert query.delivered == EVERYTHING


def test_available_now_takes_only_tasks_ready_at_start(query: Query, tube: tubes.Tube) -> None:
    query.reader.prepareForTriggerAvailableNow()
    tube.put_many([f"{number}" for number in range(100, 150)])
    query.run()
    assert query.delivered == EVERYTHING
    assert tube.statistics().tasks["ready"] == 50
    assert tube.statistics().tasks["taken"] == 0, (
        "tasks taken ahead would be lost until the lease ends when Spark ends the process"
    )


def test_available_now_includes_pending_batch(query: Query, tube: tubes.Tube) -> None:
    query.reader.latestOffset(query.offsets[-1], ReadMaxRows(30))
    query.crash()
    query.start()
    query.reader.prepareForTriggerAvailableNow()
    query.run()
    assert query.delivered == EVERYTHING


@pytest.mark.full
def test_lease_is_renewed_while_batch_runs(query: Query, tube: tubes.Tube) -> None:
    query.plan()
    time.sleep(2.5)
    assert tube.statistics().tasks["taken"] == 30
    query.deliver()
    assert query.delivered == EVERYTHING[:30]


def test_partitions_have_equal_size(tube: tubes.Tube, options: dict[str, str]) -> None:
    query = Query({**options, "numPartitions": "4"})
    query.plan()
    assert [len(vars(part)["ids"]) for part in query.reader.partitions(*query.offsets)] == [25] * 4


def test_number_of_partitions_matches_spark_slots(
    queue: tubes.Queue, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_PARTITION_SIZE", 10)
    monkeypatch.setattr(leases, "find_slots", lambda: 7)
    queue.create_tube("wide").put_many(range(220))
    query = Query({**options, "tube": "wide", "maxTasksPerTrigger": "100"})
    parts: list[int] = []
    while query.plan():
        query.reader.reportLatestOffset()
        parts.append(len(query.reader.partitions(query.offsets[-2], query.offsets[-1])))
        query.deliver()
        query.commit()
    assert parts == [leases._PARTITIONS, 7, 2]


def test_task_taken_elsewhere_after_planning_is_not_delivered(query: Query, tube: tubes.Tube) -> None:
    query.plan()
    parts = query.reader.partitions(*query.offsets)
    query.crash(1.3)
    stolen = [task.id for task in tube.take_many(1, timeout=0)]
    assert [row["id"] for row in rows_of(query.reader, parts)] == list(range(1, 30))
    assert stolen == [0]


def test_progress_of_a_stream_reports_tasks_by_state(query: Query) -> None:
    assert query.reader.reportLatestOffset() is None
    query.plan()
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert report["oldest"] > 0
    assert 0 < report["lease"] <= 1
    counts = {name: report[name] for name in report.keys() - {"consumer", "oldest", "lease"}}
    assert counts == {"seq": 1, "ready": 70, "taken": 30, "delayed": 0, "buried": 0, "leftOut": 0}


def test_resumed_batch_with_fewer_tasks_is_logged(
    query: Query, tube: tubes.Tube, caplog: pytest.LogCaptureFixture
) -> None:
    query.plan()
    query.deliver()
    query.crash(1.3)
    tube.take_many(7, timeout=0)
    tube.bury(20)
    query.start()
    query.deliver()
    (message,) = (record.getMessage() for record in caplog.records if "lacks" in record.getMessage())
    assert "batch 1 lacks 8 of its 30 tasks, which others have taken or ended" in message
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert report["leftOut"] == 8
    tube.bury(21)
    query.commit()
    query.run()
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert (report["leftOut"], report["buried"], report["oldest"]) == (9, 2, None)


def test_stopped_reader_leaves_tasks_to_next_reader(query: Query, tube: tubes.Tube) -> None:
    query.plan()
    query.reader.stop()
    assert tube.statistics().tasks["taken"] == 30
    query.start()
    query.deliver()
    query.commit()
    query.run()
    assert query.delivered == EVERYTHING


def test_batch_stays_complete_after_restart_with_smaller_limit(tube: tubes.Tube, options: dict[str, str]) -> None:
    query = Query({**options, "maxTasksPerTrigger": "80", "lease": "1", "consumer": "c"})
    query.plan()
    query.crash()
    other = Query({**options, "maxTasksPerTrigger": "7", "lease": "1", "consumer": "c"})
    other.run()
    assert other.delivered == EVERYTHING
    assert tube.statistics().tasks["total"] == 0


def test_undelivered_task_is_not_acked(query: Query, tube: tubes.Tube) -> None:
    query.plan()
    tube.bury(3)
    query.deliver()
    tube.select("buried", limit=1).kick()
    query.finish()
    assert tube.statistics().tasks["total"] == 0


def test_batch_whose_lease_expired_before_planning_is_taken_again(query: Query, tube: tubes.Tube) -> None:
    latest = query.reader.latestOffset(query.offsets[-1], ReadMaxRows(30))
    query.crash(1.3)
    query.start()
    assert query.reader.latestOffset(query.offsets[-1], ReadMaxRows(30)) == latest
    assert len(query.reader.partitions(query.offsets[-1], latest)) == 1
    assert tube.statistics().tasks["taken"] == 30


@pytest.mark.parametrize("lease", ["0.5", "1000000"])
def test_lease_out_of_range_is_refused(tube: tubes.Tube, options: dict[str, str], lease: str) -> None:
    with pytest.raises(tubes.InvalidOption, match="1 second to 3 days"):
        Query({**options, "lease": lease})


def plan_and_crash(query: Query) -> list[Any]:
    """Return the partitions of a batch whose driver has lost its lease after planning."""
    query.plan()
    parts = query.reader.partitions(query.offsets[-2], query.offsets[-1])
    query.crash(1.3)
    return parts


def restart_elsewhere(query: Query) -> Query:
    """Start another driver with the same checkpoint."""
    second = Query(query.options)
    second.offsets, second.committed = list(query.offsets), query.committed
    second.start()
    return second


def test_driver_whose_lease_expired_delivers_nothing(query: Query, tube: tubes.Tube) -> None:
    old = plan_and_crash(query)
    second = restart_elsewhere(query)
    second.deliver()
    with pytest.raises(StreamFenced):
        rows_of(query.reader, old)
    second.commit()
    second.run()
    assert second.delivered == EVERYTHING


def test_partitions_of_dropped_tube_do_not_read_its_successor(
    query: Query, queue: tubes.Queue, tube: tubes.Tube
) -> None:
    query.plan()
    parts = query.reader.partitions(query.offsets[-2], query.offsets[-1])
    tube.drop(force=True)
    again = queue.create_tube("t")
    again.put_many(["new"] * 30)
    again.take_many(30, timeout=0)
    with pytest.raises(tubes.TubeNotFound):
        rows_of(query.reader, parts)


def test_skipped_task_is_delivered_once_in_another_batch(query: Query, tube: tubes.Tube) -> None:
    query.plan()
    tube.bury(3)
    query.deliver()
    query.crash()
    query.start()
    query.deliver()  # the same batch without task 3
    query.commit()
    tube.select("buried", limit=1).kick()
    while query.plan():
        query.deliver()
        query.commit()
        if "3" in query.sink[-1]:
            query.crash(1.3)
            query.start()
    assert sorted(query.delivered, key=int) == EVERYTHING


def test_spark_task_retry_skips_same_tasks(query: Query, tube: tubes.Tube) -> None:
    query.plan()
    parts = query.reader.partitions(query.offsets[-2], query.offsets[-1])
    tube.bury(3)
    assert len(rows_of(query.reader, parts)) == 29
    tube.select("buried", limit=1).kick()
    query.deliver()
    assert "3" not in query.delivered
    query.finish()


def test_task_missing_from_stored_batch_is_delivered_later(query: Query, tube: tubes.Tube) -> None:
    query.plan()
    tube.bury(3)
    query.deliver()  # The sink keeps these rows even if the batch is delivered again.
    kept = query.sink[-1]
    query.crash()
    tube.select("buried", limit=1).kick()
    query.start()
    query.deliver()
    assert query.sink[-1] == kept
    query.finish()


@pytest.mark.full
def test_dropping_tube_forgets_skipped_tasks(queue: tubes.Queue, tube: tubes.Tube, options: dict[str, str]) -> None:
    overrides = {**options, "consumer": "nightly", "lease": "1"}
    first = Query(overrides)
    first.plan()
    tube.bury(3)
    first.deliver()
    first.crash(1.3)
    tube.drop(force=True)
    queue.create_tube("t").put_many([f"{number}" for number in range(10)])
    query = Query(overrides)
    query.step()
    query.crash(1.3)
    query.start()
    query.run()
    assert sorted(query.delivered) == [f"{number}" for number in range(10)]


def test_fenced_query_does_not_shorten_lease_of_its_successor(tube: tubes.Tube, options: dict[str, str]) -> None:
    first = Query({**options, "consumer": "n", "lease": "1", "maxTasksPerTrigger": "30"})
    first.plan()
    second = Query({**options, "consumer": "n", "lease": "60", "maxTasksPerTrigger": "30"})
    second.plan()
    first.reader.stop()
    time.sleep(1.3)
    assert tube.statistics().tasks["taken"] == 30


def test_stale_executor_does_not_affect_next_driver(query: Query, tube: tubes.Tube) -> None:
    old = plan_and_crash(query)
    second = restart_elsewhere(query)
    parts = second.reader.partitions(second.offsets[-2], second.offsets[-1])
    with pytest.raises(StreamFenced):
        rows_of(query.reader, old)
    assert len(rows_of(second.reader, parts)) == 30
    second.deliver()
    second.commit()
    second.run()
    assert second.delivered == EVERYTHING


def test_stale_attempt_does_not_skip_tasks_of_next_batch(query: Query, tube: tubes.Tube) -> None:
    query.plan()
    old = query.reader.partitions(query.offsets[-2], query.offsets[-1])
    tube.bury(3)
    query.sink.append([row["data"] for row in rows_of(query.reader, old)])
    tube.select("buried", limit=1).kick()
    query.commit()
    query.plan()
    rows_of(query.reader, old)
    query.deliver()
    query.finish()


def test_executor_of_dead_driver_does_not_skip_retaken_tasks(query: Query, tube: tubes.Tube) -> None:
    query.plan()
    old = query.reader.partitions(query.offsets[-2], query.offsets[-1])
    query.crash()
    tube.bury(3)
    tube.select("buried", limit=1).kick()
    second = restart_elsewhere(query)
    parts = second.reader.partitions(second.offsets[-2], second.offsets[-1])
    with pytest.raises(StreamFenced):
        rows_of(query.reader, old)
    second.sink.append([row["data"] for row in rows_of(second.reader, parts)])
    second.finish()


def test_task_skipped_in_one_batch_and_taken_in_next_is_delivered(query: Query, tube: tubes.Tube) -> None:
    for _ in range(2):
        query.step()
    query.reader._join_background()
    query.plan()  # the third
    parts = query.reader.partitions(query.offsets[-2], query.offsets[-1])
    query.reader._join_background()
    tube.bury(63)
    query.sink.append([row["data"] for row in rows_of(query.reader, parts)])
    tube.select("buried", limit=1).kick()
    query.commit()
    query.plan()
    query.reader._join_background()
    rows_of(query.reader, parts)  # Read again after the stream's next batch has taken task 63.
    query.crash()
    query.start()
    query.deliver()
    query.finish()


def test_restart_acks_committed_batch_before_delivering_next(query: Query, tube: tubes.Tube) -> None:
    query.step()
    stream = query.reader._stream
    assert stream is not None
    query.offsets.append({"consumer": stream.name, "seq": 2})
    stream.take(2, 30)  # Batch 2 is planned, and the driver dies before it has acked batch 1.
    query.crash()
    query.start()
    query.deliver()
    assert tube.statistics().tasks["taken"] == 30
    query.commit()
    query.run()
    assert query.delivered == EVERYTHING


@pytest.mark.full
def test_batch_taken_ahead_does_not_get_tasks_of_expired_batch(query: Query, tube: tubes.Tube) -> None:
    query.step()
    query.plan()
    query.reader._join_background()
    stream = query.reader._stream
    assert stream is not None
    before = stream.last
    query.crash(1.3)
    assert tube.statistics().tasks["taken"] == 0
    second = restart_elsewhere(query)
    stream = second.reader._open(second.offsets[-1]["consumer"])
    assert stream.take(before + 1, 30) == []
    second.deliver()
    second.commit()
    second.run()
    assert second.delivered == EVERYTHING[30:]
