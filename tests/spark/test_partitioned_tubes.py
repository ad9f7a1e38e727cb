"""Reads, streams and writes of tubes with partitions, with the objects that Spark calls."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tubes
from tubes import InvalidOption, TubeFull, TubeNotFound
from tubes.errors import WriteAborted
from tubes.spark.server import bulk_write

from .objects import batch_of, copy_by_pickle, read, rows_of, schema, source, write
from .test_several_tubes import Query

TEXTS = sorted(f"{number}" for number in range(40))


@pytest.fixture
def tube(queue: tubes.Queue) -> tubes.Tube:
    return queue.create_tube("t", "fifo", partitions=4)


@pytest.fixture
def filled(tube: tubes.Tube) -> tubes.Tube:
    tube.put_many(TEXTS)
    return tube


def places(tube: tubes.Tube) -> Counter[int | None]:
    return Counter(task.partition for task in tube.select())


# -- reads -------------------------------------------------------------------------------------------------------------


def test_read_has_the_tasks_of_all_partitions(filled: tubes.Tube, options: dict[str, str]) -> None:
    found = {row["id"]: (row["tube"], row["data"]) for row in read(options, "tube string, id bigint, data string")}
    assert found == {task.id: ("t", task.data) for task in filled.select()}


def test_each_partition_of_a_read_is_one_of_the_tube(filled: tubes.Tube, options: dict[str, str]) -> None:
    reader = source({**options, "numPartitions": "4"}).reader(schema("id bigint"))
    found = [{row["id"] % 2**14 for row in rows_of(reader, [part])} for part in reader.partitions()]
    by_partition = sorted(number for numbers in found for number in numbers)
    assert by_partition == sorted([*range(4)] * (len(by_partition) // 4))
    assert len(source({**options, "numPartitions": "2"}).reader(schema("id bigint")).partitions()) == 2


def test_ids_are_those_of_the_whole_tube(filled: tubes.Tube, options: dict[str, str]) -> None:
    ids = sorted(task.id for task in filled.select())
    for wanted in (f"{ids[3]}", f"0-{ids[20]}", f"{ids[7]}-{ids[30]}", f"{ids[25]}-"):
        first, _, last = wanted.partition("-")
        end = int(last) if last else ids[-1] if "-" in wanted else int(first)
        found = sorted(row["id"] for row in read({**options, "ids": wanted}, "id bigint"))
        assert found == [id for id in ids if int(first) <= id <= end]


def test_tube_that_nobody_has_used_is_empty(tube: tubes.Tube, options: dict[str, str]) -> None:
    assert read(options) == []


def test_pattern_selects_tubes_with_and_without_partitions(filled: tubes.Tube, queue: tubes.Queue, url: str) -> None:
    queue.create_tube("u", "fifo").put("plain")
    several = {"url": url, "tubes": "*"}
    assert Counter(row["tube"] for row in read(several)) == {"t": 40, "u": 1}
    query = Query(several)
    assert query.step()
    assert query.data() == sorted([*TEXTS, "plain"])
    query.reader.stop()


# -- streams -----------------------------------------------------------------------------------------------------------


def test_stream_takes_each_task_once_and_acks_it(filled: tubes.Tube, options: dict[str, str]) -> None:
    query = Query(options)
    query.step(10)
    assert len(query.sink[0]) == 10
    assert {row["tube"] for row in query.sink[0]} == {"t"}
    while query.step(15):
        pass
    assert query.data() == TEXTS
    assert filled.statistics().tasks["total"] == 0
    query.reader.stop()


def test_stream_continues_after_a_crash(filled: tubes.Tube, options: dict[str, str]) -> None:
    query = Query({**options, "consumer": "nightly"})
    query.step(12)
    query.plan(12)
    query.restart()
    query.deliver()
    query.commit()
    while query.step():
        pass
    assert query.data() == TEXTS
    assert filled.statistics().tasks["total"] == 0
    query.reader.stop()


def test_stream_takes_tasks_put_later(tube: tubes.Tube, options: dict[str, str]) -> None:
    query = Query(options)
    assert not query.step()
    tube.put_many(TEXTS)
    assert query.step()
    query.reader.stop()
    assert query.data() == TEXTS


def test_stream_continues_with_a_tube_of_other_partitions(filled: tubes.Tube, queue: tubes.Queue, url: str) -> None:
    query = Query({"url": url, "tubes": "t*"})
    query.step()
    for partitions in (2, None):
        filled.drop(force=True)
        filled = queue.create_tube("t", "fifo", partitions=partitions)
        filled.put_many(["again"] * 4)
        for _ in range(4):
            query.step()
    assert query.data() == sorted([*TEXTS, *["again"] * 8])
    query.reader.stop()


def test_progress_counts_all_partitions(filled: tubes.Tube, options: dict[str, str]) -> None:
    query = Query(options)
    query.step(10)
    report: Any = query.reader.reportLatestOffset()
    assert (report["ready"], report["taken"]) == (30, 10)
    assert {*report["tubes"]} == {f"t#{number}" for number in range(4)}
    query.reader.stop()


def test_replay_is_refused(filled: tubes.Tube, options: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match="reads one tube without partitions"):
        source({**options, "startingTime": "2026-01-01"}).streamReader(schema("data string"))


# -- writes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_rows_are_spread(tube: tubes.Tube, options: dict[str, str], delivery: str) -> None:
    rows = [{"data": text} for text in TEXTS]
    write({**options, "delivery": delivery}, [rows[:20], rows[20:]], "data string")
    assert sorted(task.data for task in tube.select()) == TEXTS
    assert places(tube) == dict.fromkeys(range(4), 10)


def test_rows_with_different_options_are_spread(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("t", "fifottl", partitions=4)
    write(options, [[{"data": "x", "pri": number} for number in range(40)]], "data string, pri int")
    assert places(tube) == dict.fromkeys(range(4), 10)


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_rows_of_a_lane_stay_in_order_in_its_partition(
    queue: tubes.Queue, options: dict[str, str], delivery: str
) -> None:
    tube = queue.create_tube("t", "utubettl", partitions=4)
    rows = [{"data": number, "utube": f"{number % 7}"} for number in range(70)]
    write({**options, "delivery": delivery}, [rows], "data int, utube string")
    for lane in map(str, range(7)):
        tasks = [*tube.select(lane=lane)]
        assert [task.data for task in tasks] == [*range(int(lane), 70, 7)]
        assert {task.partition for task in tasks} == {tube.put(0, utube=lane).partition}


def test_key_of_a_row_stays_unique(tube: tubes.Tube, options: dict[str, str]) -> None:
    rows = [{"data": "row", "key": f"{number % 5}"} for number in range(10)]
    write(options, [rows], "data string, key string")
    assert not any(tube.put("later", key=f"{number}").created_now for number in range(5))
    assert tube.statistics().tasks["total"] == 5


def test_bad_row_without_lane_is_buried_where_its_lane_is(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("t", "utubettl", partitions=4)
    write({**options, "badRows": "bury"}, [[{"data": "x", "pri": 1 << 62}]], "data string, pri bigint")
    (buried,) = tube.select("buried")
    assert buried.partition == tube.put("no lane").partition


def test_write_id_puts_rows_once(tube: tubes.Tube, queue: tubes.Queue, options: dict[str, str]) -> None:
    other = queue.create_tube("other", "fifo", partitions=2)
    for name in ("t", "t", "other"):
        write({**options, "tube": name, "writeId": "1"}, [[{"data": "x"}] * 10], "data string")
    assert (tube.statistics().tasks["total"], other.statistics().tasks["total"]) == (10, 10)


def test_failed_write_puts_no_row(tube: tubes.Tube, options: dict[str, str]) -> None:
    write(options, [[{"data": "x"}] * 10], "data string", ends="abort")
    assert tube.statistics().tasks["total"] == 0


def test_full_partition_refuses_the_whole_write(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("t", "fifo", partitions=4, capacity=8)
    with pytest.raises(TubeFull):
        write({**options, "timeout": "0"}, [[{"data": "x"}] * 12], "data string")
    assert tube.statistics().tasks["total"] == 0


@pytest.mark.parametrize("puts", range(4))
def test_interrupted_write_is_finished_in_all_partitions(
    tube: tubes.Tube, options: dict[str, str], puts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, done = bulk_write.Writer._put, 0

    def put_some(self: bulk_write.Writer, *args: Any) -> int:
        nonlocal done
        if done == puts:
            raise KeyboardInterrupt
        done += 1
        return put(self, *args)

    monkeypatch.setattr(bulk_write.Writer, "_put", put_some)
    rows = [{"data": text} for text in TEXTS]
    with pytest.raises(KeyboardInterrupt):
        write({**options, "writeId": "1"}, [rows], "data string")
    monkeypatch.undo()
    write({**options, "writeId": "1"}, [rows], "data string")
    assert sorted(task.data for task in tube.select()) == TEXTS


def test_dropped_tube_stops_a_write(tube: tubes.Tube, queue: tubes.Queue, options: dict[str, str]) -> None:
    writer = source(options).writer(schema("data string"), overwrite=False)
    message = copy_by_pickle(writer).write(iter([batch_of([{"data": "x"}] * 8, "data string")]))
    tube.drop()
    with pytest.raises(TubeNotFound):
        writer.commit([message])
    again = queue.create_tube("t", "fifo", partitions=4)
    with pytest.raises(WriteAborted):
        writer.commit([message])
    assert again.statistics().tasks["total"] == 0


def test_stream_sink_puts_each_micro_batch_in_all_partitions(tube: tubes.Tube, options: dict[str, str]) -> None:
    writer = source({**options, "delivery": "at-least-once"}).streamWriter(schema("data string"), overwrite=False)
    message = copy_by_pickle(writer).write(iter([batch_of([{"data": text} for text in TEXTS], "data string")]))
    writer.commit([message], 0)
    assert places(tube) == dict.fromkeys(range(4), 10)
