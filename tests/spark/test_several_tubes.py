"""Reads, streams and writes of several tubes, with the objects that Spark calls."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import tubes
from tests.support.internals import port_of
from tubes import InvalidOption, OptionNotSupported, TubeFull, TubeNotFound
from tubes.errors import StreamFenced, WriteAborted
from tubes.spark.many_leases import ManyLeases, share_out
from tubes.spark.server import bulk_write
from tubes.testing import LocalServer

from .objects import batch_of, copy_by_pickle, read, rows_of, schema, source, write

ROW = "tube string, data string"


@pytest.fixture
def several(url: str) -> dict[str, str]:
    return {"url": url, "tubes": "crawl.*,mail"}


@pytest.fixture
def filled(queue: tubes.Queue) -> dict[str, tubes.Tube]:
    """Tubes of different sizes, and one that the option does not select."""
    sizes = {"crawl.a": 100, "crawl.b": 10, "mail": 3, "other": 5}
    made = {name: queue.create_tube(name, "fifo") for name in sizes}
    for name, tube in made.items():
        tube.put_many([f"{name} {number}" for number in range(sizes[name])])
    return made


def selected(filled: dict[str, tubes.Tube]) -> list[str]:
    return [
        f"{name} {number}" for name, size in (("crawl.a", 100), ("crawl.b", 10), ("mail", 3)) for number in range(size)
    ]


def test_read_of_several_tubes_names_the_tube_of_each_row(
    filled: dict[str, tubes.Tube], several: dict[str, str]
) -> None:
    rows = read(several)
    assert sorted(row["data"] for row in rows) == sorted(selected(filled))
    assert all(row["data"].startswith(row["tube"] + " ") for row in rows)
    assert Counter(row["tube"] for row in read({**several, "ids": "0-4"})) == {"crawl.a": 5, "crawl.b": 5, "mail": 3}


def test_small_tubes_share_partitions(queue: tubes.Queue, url: str) -> None:
    for number in range(20):
        queue.create_tube(f"t{number}").put_many(range(number + 1))
    options = {"url": url, "tubes": "t*"}
    reader = source(options).reader(schema("tube string, id bigint"))
    assert len(reader.partitions()) == 1
    reader = source({**options, "numPartitions": "4"}).reader(schema("tube string, id bigint"))
    parts = reader.partitions()
    assert len(parts) == 4
    assert len(rows_of(reader, parts)) == 210
    assert {len(rows_of(reader, [part])) for part in parts} <= {*range(45, 60)}


def test_single_tube_has_column_tube_only_on_request(filled: dict[str, tubes.Tube], url: str) -> None:
    assert "tube" not in read({"url": url, "tube": "mail"})[0]
    assert read({"url": url, "tube": "mail"}, "tube string, id bigint")[0] == {"tube": "mail", "id": 0}


def test_named_tube_must_exist(filled: dict[str, tubes.Tube], url: str) -> None:
    options = {"url": url, "tubes": "crawl.*,gone"}
    with pytest.raises(TubeNotFound, match="gone"):
        read(options)
    with pytest.raises(TubeNotFound, match="gone"):
        source(options).streamReader(schema(ROW))


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"tubes": "a", "tube": "b"}, "cannot be used with the option tube"),
        ({"tubes": "a,,b"}, "must be names or patterns"),
        ({}, "is required"),
    ],
)
def test_bad_choice_of_tubes_is_refused(url: str, options: dict[str, str], rule: str) -> None:
    with pytest.raises(InvalidOption, match=rule):
        source({"url": url, **options}).reader(schema("id bigint"))


def test_replay_of_several_tubes_is_refused(filled: dict[str, tubes.Tube], several: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match="reads one tube"):
        source({**several, "startingTime": "2026-01-01"}).streamReader(schema(ROW))


# -- streams -----------------------------------------------------------------------------------------------------------


class Query:
    """Runs a query over several tubes like Spark: its offset log, commit log and sink survive a crash."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.offsets: list[dict[str, Any]] = []
        self.committed = 0
        self.sink: list[list[dict[str, Any]]] = []
        self.start()

    def start(self) -> None:
        reader = source(self.options).streamReader(schema(ROW))
        assert isinstance(reader, ManyLeases)
        self.reader = reader
        if not self.offsets:
            self.reader.initialOffset()
            self.offsets.append(self.reader.initialOffset())

    def crash(self) -> None:
        """Kill the driver: nothing is given back, and the lease is not renewed."""
        for reader in self.reader._readers.values():
            if reader._stream is not None:
                port_of(reader._stream.tube).connection.close(lost=True)

    def restart(self) -> None:
        self.crash()
        self.start()

    def plan(self, limit: int = 50_000) -> bool:
        if self.committed == len(self.offsets) - 1:
            start = self.offsets[-1]
            latest = self.reader.latestOffset(start, ReadMaxRows(limit))
            if latest == start:
                return False
            self.offsets.append(latest)
            self.reader.commit(start)
        return True

    def deliver(self) -> None:
        parts = self.reader.partitions(self.offsets[-2], self.offsets[-1])
        rows = rows_of(self.reader, parts)
        del self.sink[len(self.offsets) - 2 :]
        self.sink.append(rows)

    def commit(self) -> None:
        self.committed = len(self.offsets) - 1

    def step(self, limit: int = 50_000) -> bool:
        if not self.plan(limit):
            return False
        self.deliver()
        self.commit()
        return True

    def data(self) -> list[str]:
        return sorted(row["data"] for rows in self.sink for row in rows)


def test_query_takes_each_task_of_several_tubes_once(
    filled: dict[str, tubes.Tube], several: dict[str, str], queue: tubes.Queue
) -> None:
    query = Query(several)
    while query.step(20):
        assert len(query.sink[-1]) <= 20
    assert query.data() == sorted(selected(filled))
    assert all(row["data"].startswith(row["tube"] + " ") for rows in query.sink for row in rows)
    assert {name: tube.statistics().tasks["total"] for name, tube in filled.items()} == {
        "crawl.a": 0, "crawl.b": 0, "mail": 0, "other": 5,
    }  # fmt: skip
    query.reader.stop()


def test_limit_is_shared_fairly_by_all_tubes(filled: dict[str, tubes.Tube], several: dict[str, str]) -> None:
    query = Query(several)
    query.step(23)
    assert Counter(row["tube"] for row in query.sink[0]) == {"crawl.a": 10, "crawl.b": 10, "mail": 3}
    query.step(23)
    assert Counter(row["tube"] for row in query.sink[1]) == {"crawl.a": 23}
    query.reader.stop()


def test_each_tube_gets_its_turn_if_the_limit_is_smaller_than_their_number(
    filled: dict[str, tubes.Tube], several: dict[str, str]
) -> None:
    query = Query(several)
    for _ in range(6):
        query.step(1)
    assert Counter(rows[0]["tube"] for rows in query.sink) == {"crawl.a": 2, "crawl.b": 2, "mail": 2}
    query.reader.stop()


@pytest.mark.parametrize(
    ("total", "wanted", "turn", "shares"),
    [
        (10, {}, 0, {}),
        (10, {"a": 0}, 3, {"a": 0}),
        (10, {"a": 4, "b": 4}, 0, {"a": 4, "b": 4}),
        (10, {"a": 40, "b": 40, "c": 1}, 0, {"a": 4, "b": 5, "c": 1}),
        (2, {"a": 9, "b": 9, "c": 9}, 1, {"a": 0, "b": 1, "c": 1}),
        (0, {"a": 9}, 0, {"a": 0}),
    ],
)
def test_shares_leave_no_task_that_a_tube_wants(
    total: int, wanted: dict[str, int], turn: int, shares: dict[str, int]
) -> None:
    assert share_out(total, wanted, turn) == shares


def test_query_takes_from_tubes_created_since(
    filled: dict[str, tubes.Tube], several: dict[str, str], queue: tubes.Queue
) -> None:
    query = Query(several)
    query.step()
    queue.create_tube("crawl.c", "utube").put_many(["new 1", "new 2"], utube="x")
    while query.step():
        pass
    assert query.data() == sorted([*selected(filled), "new 1", "new 2"])
    query.reader.stop()


def test_query_continues_without_a_dropped_tube(
    filled: dict[str, tubes.Tube], several: dict[str, str], queue: tubes.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(several)
    query.plan(20)
    filled["crawl.b"].drop(force=True)
    with caplog.at_level(logging.WARNING, "tubes"):
        query.deliver()
    assert "tube 'crawl.b' was dropped" in caplog.text
    query.commit()
    while query.step():
        pass
    assert query.data() == [text for text in sorted(selected(filled)) if not text.startswith("crawl.b")]
    filled["mail"].drop(force=True)
    with pytest.raises(TubeNotFound, match="mail"):  # The option names it.
        query.plan()
    query.reader.stop()


@pytest.mark.parametrize("stage", ["taken", "planned", "delivered", "committed"])
def test_crash_of_the_driver_loses_and_repeats_nothing(
    filled: dict[str, tubes.Tube], several: dict[str, str], stage: str
) -> None:
    query = Query(several)
    query.step(20)
    if stage == "taken":  # The offset was not logged.
        query.reader.latestOffset(query.offsets[-1], ReadMaxRows(20))
    else:
        query.plan(20)
    if stage in ("delivered", "committed"):
        query.deliver()
    if stage == "committed":
        query.commit()
    query.restart()
    if stage in ("planned", "delivered"):
        query.deliver()
        query.commit()
    while query.step(20):
        pass
    assert query.data() == sorted(selected(filled))
    query.reader.stop()


def test_planned_restart_keeps_the_tasks_of_all_tubes(filled: dict[str, tubes.Tube], several: dict[str, str]) -> None:
    query = Query({**several, "lease": "60"})
    query.step(20)
    query.plan(1)  # A batch of one tube, while the batches of the others are committed, but not acked.
    query.restart()
    query.deliver()
    assert set(query.reader._readers) == {"crawl.a", "crawl.b", "mail"}
    assert sum(tube.statistics().tasks["taken"] for tube in filled.values()) == 1
    query.crash()


def test_second_query_of_the_same_consumer_fences_the_first(
    filled: dict[str, tubes.Tube], several: dict[str, str]
) -> None:
    options = {**several, "consumer": "nightly"}
    first = Query(options)
    first.plan(20)
    second = Query(options)
    while second.step():
        pass
    with pytest.raises(StreamFenced):
        first.deliver()
    assert second.data() == sorted(selected(filled))
    first.crash()
    second.reader.stop()


def test_progress_reports_the_backlog_of_each_tube(filled: dict[str, tubes.Tube], several: dict[str, str]) -> None:
    query = Query(several)
    assert query.reader.reportLatestOffset() is None
    query.step(23)
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert {name: found["ready"] for name, found in report["tubes"].items()} == {"crawl.a": 90, "crawl.b": 0, "mail": 0}
    assert report["ready"] == 90
    assert report["oldest"] == report["tubes"]["crawl.a"]["oldest"] >= 0
    assert report["tubes"]["mail"]["oldest"] is None
    assert report["lease"] > 200
    query.reader.stop()


def test_available_now_takes_tasks_ready_at_start_of_all_tubes(
    filled: dict[str, tubes.Tube], several: dict[str, str], queue: tubes.Queue
) -> None:
    query = Query(several)
    query.reader.prepareForTriggerAvailableNow()
    filled["mail"].put("later")
    queue.create_tube("crawl.late").put("later")
    while query.step(20):
        pass
    assert query.data() == sorted(selected(filled))
    query.reader.stop()


def test_query_waits_for_min_tasks_of_all_tubes_together(
    filled: dict[str, tubes.Tube], several: dict[str, str]
) -> None:
    query = Query({**several, "minTasksPerTrigger": "114"})
    assert not query.plan()
    filled["mail"].put("one more")
    assert query.step()
    assert len(query.sink[0]) == 114
    query.reader.stop()


def test_bytes_of_a_batch_are_shared(filled: dict[str, tubes.Tube], several: dict[str, str]) -> None:
    query = Query({**several, "maxBytesPerTrigger": "300"})
    while query.step():
        assert sum(len(row["data"]) for row in query.sink[-1]) < 400
    assert query.data() == sorted(selected(filled))
    query.reader.stop()


@pytest.mark.parametrize("other", ["mail,crawl.*", "*", "crawl.*,mail,other"])
def test_restart_with_other_tubes_repeats_no_task(
    filled: dict[str, tubes.Tube], several: dict[str, str], other: str
) -> None:
    query = Query(several)
    query.step(20)
    query.plan(20)
    query.options = {**several, "tubes": other}
    query.restart()
    query.deliver()
    query.commit()
    while query.step():
        pass
    assert [text for text in query.data() if not text.startswith("other")] == sorted(selected(filled))
    query.reader.stop()


def test_tube_that_is_not_selected_after_a_restart_is_acked(
    filled: dict[str, tubes.Tube], several: dict[str, str]
) -> None:
    query = Query(several)
    query.step()
    query.options = {**several, "tubes": "other"}
    query.restart()
    query.step()
    assert all(tube.statistics().tasks["total"] == 0 for name, tube in filled.items() if name != "other")
    query.reader.stop()


def test_checkpoint_of_one_tube_and_of_several_cannot_be_exchanged(
    filled: dict[str, tubes.Tube], several: dict[str, str], url: str
) -> None:
    one = source({"url": url, "tube": "mail"}).streamReader(schema(ROW))
    many = source(several).streamReader(schema(ROW))
    of_one, of_many = one.initialOffset(), many.initialOffset()
    with pytest.raises(InvalidOption, match="belongs to a query of one tube: use the option tube"):
        many.latestOffset(of_one, ReadMaxRows(1))
    with pytest.raises(InvalidOption, match="belongs to a query of several tubes: use the option tubes"):
        one.partitions(of_many, of_many)


def test_fenced_query_takes_nothing_from_new_tubes(
    filled: dict[str, tubes.Tube], several: dict[str, str], queue: tubes.Queue
) -> None:
    options = {**several, "consumer": "nightly"}
    first, second = Query(options), Query(options)
    first.step()
    while second.step():
        pass
    queue.create_tube("crawl.new").put("x")
    with pytest.raises(StreamFenced):
        first.plan()
    assert second.step()
    first.crash()
    second.reader.stop()


def test_available_now_goes_on_if_others_have_taken_a_share(queue: tubes.Queue, several: dict[str, str]) -> None:
    made = {name: queue.create_tube(name) for name in ("crawl.a", "crawl.b", "mail")}
    made["crawl.a"].put("a")
    made["crawl.b"].put_many(["b"] * 5)
    query = Query(several)
    query.reader.prepareForTriggerAvailableNow()
    assert made["crawl.a"].take(timeout=0)
    while query.step(1):
        pass
    assert query.data() == ["b"] * 5
    query.reader.stop()


def test_batch_taken_before_a_crash_comes_alone(
    filled: dict[str, tubes.Tube], several: dict[str, str], queue: tubes.Queue
) -> None:
    query = Query(several)
    query.reader.latestOffset(query.offsets[-1], ReadMaxRows(20))
    queue.create_tube("crawl.c").put_many(["c"] * 50)
    query.restart()
    query.step(20)
    assert len(query.sink[0]) == 20
    query.crash()


def test_shares_ignore_paused_tubes(filled: dict[str, tubes.Tube], several: dict[str, str]) -> None:
    filled["crawl.a"].pause()
    query = Query(several)
    query.step(13)
    assert Counter(row["tube"] for row in query.sink[0]) == {"crawl.b": 10, "mail": 3}
    query.reader.stop()


def test_query_continues_with_a_tube_that_was_created_again(
    filled: dict[str, tubes.Tube], several: dict[str, str], queue: tubes.Queue
) -> None:
    query = Query(several)
    query.step()
    filled["crawl.b"].drop(force=True)
    queue.create_tube("crawl.b").put("again")
    for _ in range(2):
        query.step()
    assert query.data() == sorted([*selected(filled), "again"])
    query.reader.stop()


def test_pattern_without_a_tube_reads_nothing(queue: tubes.Queue, url: str) -> None:
    options = {"url": url, "tubes": "nothing.*"}
    assert read(options) == []
    query = Query(options)
    assert not query.plan()
    query.reader.stop()


@pytest.mark.parametrize("tubes_option", [r"orders\..*", "orders.(eu|us)", "a b", ""])
def test_regular_expression_is_refused(url: str, tubes_option: str) -> None:
    with pytest.raises(InvalidOption, match="must"):
        source({"url": url, "tubes": tubes_option}).reader(schema("id bigint"))


def test_user_of_some_tubes_needs_no_rights_to_list_all(queue: tubes.Queue, valkey: LocalServer, url: str) -> None:
    queue.create_tube("a.1").put("x")
    queue.create_tube("b.1", "fifo").put("y")
    client: Any = valkey.client()
    with client:
        prefix = url.partition("prefix=")[2]
        keys = [f"~{prefix}:tubes:{{{name}}}*" for name in ("b.1", "tubes.writes")]
        client.execute_command("ACL", "SETUSER", "spark", "on", ">secret", *keys, "&*", "+@all")
    for choice in ({"tube": "b.1"}, {"tubes": "b.1"}):
        options = {"url": url, **choice, "username": "spark", "password": "secret"}
        assert [row["data"] for row in read(options)] == ["y"]
        reader = source(options).streamReader(schema("data string"))
        reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
        reader.stop()
        writer = source(options).writer(
            schema("tube string, data string" if "tubes" in choice else "data string"), overwrite=False
        )
        writer.abort([None])


# -- writes ------------------------------------------------------------------------------------------------------------

ROWS = [{"tube": f"crawl.{'ab'[number % 2]}", "data": f"{number}"} for number in range(10)]


def stored(queue: tubes.Queue) -> dict[str, list[Any]]:
    return {name: [task.data for task in queue.tube(name).select()] for name in queue.tubes()}


EVEN, ODD = [f"{number}" for number in range(0, 10, 2)], [f"{number}" for number in range(1, 10, 2)]


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_column_tube_routes_rows(queue: tubes.Queue, several: dict[str, str], delivery: str) -> None:
    write({**several, "driver": "fifo", "delivery": delivery}, [ROWS[:5], ROWS[5:]], ROW)
    assert stored(queue) == {"crawl.a": EVEN, "crawl.b": ODD}


def test_rows_of_each_tube_and_lane_keep_their_order(queue: tubes.Queue, several: dict[str, str]) -> None:
    ddl = "tube string, utube string, data int"
    rows = [{"tube": f"crawl.{n % 2}", "utube": f"{n % 3}", "data": n} for n in range(60)]
    write({**several, "driver": "utube"}, [rows], ddl)
    for tube in (0, 1):
        for lane in ("0", "1", "2"):
            tasks = queue.tube(f"crawl.{tube}").select(lane=lane)
            assert [task.data for task in tasks] == [n for n in range(60) if n % 2 == tube and f"{n % 3}" == lane]


def test_other_columns_are_the_data_of_routed_rows(queue: tubes.Queue, several: dict[str, str]) -> None:
    write(
        {**several, "driver": "fifo"}, [[{"tube": "mail", "to": "ann", "size": 1}]], "tube string, to string, size int"
    )
    assert stored(queue) == {"mail": [{"to": "ann", "size": 1}]}


def test_column_tube_is_data_of_a_write_to_one_tube(queue: tubes.Queue, url: str) -> None:
    write({"url": url, "tube": "t", "driver": "fifo"}, [[{"tube": "a", "n": 1}]], "tube string, n int")
    assert stored(queue) == {"t": [{"tube": "a", "n": 1}]}


@pytest.mark.parametrize("tube", ["other", None])
@pytest.mark.parametrize("bad_rows", ["fail", "bury"])
def test_row_of_a_tube_that_is_not_selected_fails_the_write(
    queue: tubes.Queue, several: dict[str, str], tube: str | None, bad_rows: str
) -> None:
    with pytest.raises(InvalidOption, match="must match the option tubes") as error:
        write({**several, "driver": "fifo", "badRows": bad_rows}, [[ROWS[0], {"tube": tube, "data": "x"}]], ROW)
    assert error.value.facts["value"] == tube
    assert all(not tasks for tasks in stored(queue).values())


def test_row_of_a_missing_tube_fails_a_write_without_driver(
    filled: dict[str, tubes.Tube], several: dict[str, str]
) -> None:
    with pytest.raises(TubeNotFound, match=r"crawl\.x"):
        write(several, [[ROWS[0], {"tube": "crawl.x", "data": "x"}]], ROW)
    assert filled["crawl.a"].statistics().tasks["total"] == 100


def test_bad_row_is_buried_in_its_tube(queue: tubes.Queue, several: dict[str, str]) -> None:
    rows = [{"tube": "crawl.a", "pri": 1, "data": "good"}, {"tube": "crawl.b", "pri": 1 << 62, "data": "bad"}]
    write({**several, "driver": "fifottl", "badRows": "bury"}, [rows], "tube string, pri bigint, data string")
    assert [task.data for task in queue.tube("crawl.a").select("ready")] == ["good"]
    (buried,) = queue.tube("crawl.b").select("buried")
    assert buried.data["data"] == "bad"


def test_frame_without_column_tube_is_refused(url: str) -> None:
    with pytest.raises(InvalidOption, match="needs a column tube"):
        source({"url": url, "tubes": "*"}).writer(schema("data string"), overwrite=False)


def test_write_id_puts_rows_of_several_tubes_once(queue: tubes.Queue, several: dict[str, str]) -> None:
    options = {**several, "driver": "fifo", "writeId": "1"}
    for _ in range(2):
        write(options, [ROWS], ROW)
    write(options, [[{"tube": "mail", "data": "x"}]], ROW)
    assert stored(queue) == {"crawl.a": EVEN, "crawl.b": ODD}


def test_failed_write_puts_no_row_in_any_tube(queue: tubes.Queue, several: dict[str, str]) -> None:
    write({**several, "driver": "fifo"}, [ROWS], ROW, ends="abort")
    assert all(not tasks for tasks in stored(queue).values())


@pytest.mark.parametrize("puts", range(3))
def test_interrupted_write_is_finished_in_all_tubes(
    queue: tubes.Queue, several: dict[str, str], puts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**several, "driver": "fifo", "writeId": "1", "batchSize": "3"}
    put, done = bulk_write.Writer._put, 0

    def put_some(self: bulk_write.Writer, *args: Any) -> int:
        nonlocal done
        if done == puts:
            raise KeyboardInterrupt
        done += 1
        return put(self, *args)

    monkeypatch.setattr(bulk_write.Writer, "_put", put_some)
    with pytest.raises(KeyboardInterrupt):
        write(options, [ROWS], ROW)
    monkeypatch.undo()
    write(options, [ROWS], ROW)
    assert stored(queue) == {"crawl.a": EVEN, "crawl.b": ODD}


def test_abandoned_write_is_finished_by_the_next_one(
    queue: tubes.Queue, several: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**several, "driver": "fifo"}
    monkeypatch.setattr(bulk_write.Writer, "_put", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(options, [ROWS], ROW)
    monkeypatch.undo()
    monkeypatch.setattr(bulk_write, "ABANDONED", 0)
    write(options, [[{"tube": "mail", "data": "x"}]], ROW)
    assert stored(queue) == {"crawl.a": EVEN, "crawl.b": ODD, "mail": ["x"]}


def test_dropped_tube_does_not_stop_a_write_to_others(queue: tubes.Queue, several: dict[str, str]) -> None:
    options = {**several, "driver": "fifo"}
    writer = source(options).writer(schema(ROW), overwrite=False)
    message = copy_by_pickle(writer).write(iter([batch_of(ROWS, ROW)]))
    queue.tube("crawl.b").drop()
    queue.create_tube("crawl.b")
    with pytest.raises(WriteAborted):
        writer.commit([message])
    assert stored(queue) == {"crawl.a": [], "crawl.b": []}


def test_full_tube_refuses_a_write_to_several(queue: tubes.Queue, several: dict[str, str]) -> None:
    queue.create_tube("crawl.a", "fifo", capacity=4)
    queue.create_tube("crawl.b", "fifo")
    with pytest.raises(TubeFull):
        write({**several, "tubes": "crawl.*", "timeout": "0"}, [ROWS], ROW)
    assert stored(queue) == {"crawl.a": [], "crawl.b": []}


def test_stream_sink_routes_each_micro_batch_once(queue: tubes.Queue, several: dict[str, str]) -> None:
    options = {**several, "driver": "fifo", "delivery": "at-least-once"}
    writer = source(options).streamWriter(schema(ROW), overwrite=False)
    writer.commit([copy_by_pickle(writer).write(iter([batch_of(ROWS, ROW)]))], 0)
    assert stored(queue) == {"crawl.a": EVEN, "crawl.b": ODD}


def test_table_of_several_tubes_reads_and_routes(filled: dict[str, tubes.Tube], several: dict[str, str]) -> None:
    created = {"provider": "tubes", **several, **{f"option.{name}": value for name, value in several.items()}}
    table = source(created).schema()
    assert not isinstance(table, str)
    assert table["data"].metadata["comment"].startswith("tubes crawl.*,mail on ")
    writer = source({}).writer(table, overwrite=False)
    row = {"tube": "mail", "data": "to bob"}
    from pyspark.sql.pandas.types import to_arrow_schema

    from tubes.spark.arrow import pa

    batch = pa.RecordBatch.from_pylist([row], schema=to_arrow_schema(table, timezone="UTC"))
    writer.commit([writer.write(iter([batch]))])
    reader = source({}).reader(table)
    assert "to bob" in [row["data"] for row in rows_of(reader, reader.partitions()) if row["tube"] == "mail"]


def test_null_is_not_the_tube_none(queue: tubes.Queue, url: str) -> None:
    rows: list[dict[str, Any]] = [{"tube": "None", "data": "x"}, {"tube": None, "data": "lost"}]
    with pytest.raises(InvalidOption, match="tube=None: must match"):
        write({"url": url, "tubes": "*", "driver": "fifo"}, [rows], ROW)
    assert stored(queue) == {"None": []}


def test_write_id_belongs_to_the_tubes_of_its_write(queue: tubes.Queue, url: str) -> None:
    for name in ("a", "b"):
        options = {"url": url, "tubes": f"{name}.*", "driver": "fifo", "writeId": "2026-11-29"}
        write(options, [[{"tube": f"{name}.1", "data": name}]], ROW)
    assert stored(queue) == {"a.1": ["a"], "b.1": ["b"]}


def test_rows_of_a_dropped_tube_do_not_go_into_its_successor(
    queue: tubes.Queue, several: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**several, "driver": "fifo", "writeId": "1"}
    monkeypatch.setattr(bulk_write.Writer, "_put", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(options, [ROWS], ROW)
    monkeypatch.undo()
    queue.tube("crawl.b").drop()
    queue.create_tube("crawl.b", "fifo").put("mine")
    write(options, [ROWS], ROW)
    assert stored(queue) == {"crawl.a": EVEN, "crawl.b": ["mine"]}


def test_full_tube_does_not_stop_the_others_of_a_sealed_write(queue: tubes.Queue, several: dict[str, str]) -> None:
    queue.create_tube("crawl.a", "fifo", capacity=2)
    queue.create_tube("crawl.b", "fifo")
    options = {**several, "tubes": "crawl.*", "writeId": "1", "timeout": "0"}
    with pytest.raises(TubeFull):
        write(options, [ROWS], ROW)
    assert stored(queue)["crawl.b"] == ODD
    queue.tube("crawl.a").alter(capacity=None)
    write(options, [ROWS], ROW)
    assert stored(queue) == {"crawl.a": EVEN, "crawl.b": ODD}


def test_each_row_is_checked_by_the_driver_of_its_tube(queue: tubes.Queue, url: str) -> None:
    queue.create_tube("f", "fifo")
    queue.create_tube("u", "utube")
    options, ddl = {"url": url, "tubes": "f,u"}, "tube string, utube string, data string"
    write(options, [[{"tube": "f", "data": "1"}, {"tube": "u", "utube": "x", "data": "2"}]], ddl)
    assert stored(queue) == {"f": ["1"], "u": ["2"]}
    with pytest.raises(OptionNotSupported, match="for tube 'f'"):
        write(options, [[{"tube": "f", "utube": "x", "data": "1"}]], ddl)
