"""Kept done tasks: batch reads, and streams that start with a replay of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import tubes
from tests.support.taking import take_task
from tubes import InvalidOption
from tubes.spark.server.bulk_read import BulkReader

from .objects import read, rows_of, schema, source
from .test_leases import Query

LONG_AGO = "2020-01-01"


def moment(seconds: float | None) -> datetime:
    assert seconds is not None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=round(seconds * 1_000_000))


@pytest.fixture
def tube(queue: tubes.Queue) -> tubes.Tube:
    """A tube with six kept tasks, which ended in different ways; two tasks are ready, and one is taken."""
    tube = queue.create_tube("t", "utubettl", keep_done=3600)
    for number in range(5):
        tube.put(f"{number}", utube=f"lane {number % 2}", pri=number)
    for result in ("a text", {"pages": [1]}, None):
        take_task(tube).ack(result)
    tube.delete(3)
    tube.put("forgotten", keep_done=0).delete()
    tube.put("rich", ttl=900, key="k", max_attempts=4, context={"trace": "5"}).delete()
    tube.put("long " * 100).delete()
    tube.put("ready", utube="lane 1")
    tube.put("ready")
    assert tube.take(timeout=0) is not None
    return tube


def test_done_task_rows_match_peek(tube: tubes.Tube, options: dict[str, str]) -> None:
    rows = read({**options, "state": "done"})
    assert [row["id"] for row in rows] == sorted(task.id for task in tube.select("done")) == [0, 1, 2, 3, 6, 7]
    assert [row["result"] for row in rows[:4]] == ["a text", '{"pages":[1]}', None, None]
    for row in rows:
        task = tube.peek(row["id"])
        assert row["state"] == task.state.letter == "-"
        for name in ("data", "utube", "pri", "attempts", "key", "max_attempts", "why"):
            assert row[name] == getattr(task, name), (row, name)
        assert dict(row["context"] or {}) == task.context
        assert (row["created"], row["ended"]) == (moment(task.created), moment(task.ended))
    current = read(options)
    assert {row["id"] for row in current}.isdisjoint({row["id"] for row in rows})
    assert all(row["result"] is row["why"] is row["ended"] is None for row in current)


@pytest.mark.parametrize(
    ("overrides", "ids"),
    [
        ({"state": "-", "ids": "1-6"}, [1, 2, 3, 6]),
        ({"state": "done", "lane": "lane 1"}, [1, 3]),
        ({"state": "done", "numPartitions": "4"}, [0, 1, 2, 3, 6, 7]),
        ({"state": "ready,done", "ids": "3-9"}, [4, 9, 3, 6, 7]),
        ({"state": "r,t,!,~,-", "lane": "lane 0"}, [4, 0, 2]),
        ({"state": "done", "startingTime": LONG_AGO}, [0, 1, 2, 3, 6, 7]),
        ({"state": "done", "startingTime": "2100-01-01T00:00+01:00"}, []),
    ],
)
def test_filters_apply_to_done_tasks(
    tube: tubes.Tube, options: dict[str, str], overrides: dict[str, str], ids: list[int]
) -> None:
    for columns in ("id bigint", "id bigint, data string"):
        assert [row["id"] for row in read({**options, **overrides}, columns)] == ids


def test_read_includes_task_that_ended_at_starting_time(tube: tubes.Tube, options: dict[str, str]) -> None:
    since = moment(tube.peek(2).ended).isoformat()
    assert [row["id"] for row in read({**options, "state": "done", "startingTime": since})] == [2, 3, 6, 7]


def test_data_of_done_tasks_is_not_fetched_unless_needed(tube: tubes.Tube) -> None:
    records = BulkReader(tube)
    whole, heads = (
        [row for table in records.done(range(9), data=data) for row in table.rows()] for data in (True, False)
    )
    assert heads == [row._replace(data=b"") for row in whole]
    assert any(row.data for row in whole)


def test_expired_or_repeated_done_tasks_are_not_read(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("t")
    kept, expired = tube.put("kept", keep_done=60), tube.put("over", keep_done=0.001)
    tube.ack_many(tube.take_many(2, timeout=0))
    while queue.tube("t").statistics().kept > 1:
        pass
    assert [row["id"] for row in read({**options, "state": "done"})] == [kept.id] != [expired.id]
    tube.kick(task=kept)
    assert read({**options, "state": "done"}) == []


def test_results_are_read_with_other_codecs(url: str) -> None:
    for codec, result, column in (("raw", b"\xff", b"\xff"), ("msgpack", {"a": [1]}, '{"a":[1]}')):
        with tubes.connect(url, codec=codec) as queue:
            tube = queue.create_tube(codec, keep_done=60)
            tube.put(b"data")
            take_task(tube).ack(result)
        (row,) = read(
            {"url": url, "tube": codec, "codec": codec, "state": "done"},
            f"result {'binary' if codec == 'raw' else 'string'}",
        )
        assert row["result"] == column


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (
            {"startingTime": LONG_AGO},
            "startingTime='2020-01-01': selects done tasks, so the option state must contain done",
        ),
        (
            {"state": "done", "startingTime": "yesterday"},
            "startingTime='yesterday': must be an ISO 8601 date or time",
        ),
        ({"state": "gone"}, "state='gone': must be one of ready, taken, buried, delayed, done"),
    ],
)
def test_bad_options_are_refused(
    tube: tubes.Tube, options: dict[str, str], overrides: dict[str, str], match: str
) -> None:
    with pytest.raises(InvalidOption, match=match):
        source({**options, **overrides}).reader(schema("id bigint"))


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(queue: tubes.Queue) -> tubes.Tube:
    """A tube with 100 done tasks, acked in groups of ten, and ten ready tasks."""
    tube = queue.create_tube("t", keep_done=3600)
    for first in range(0, 100, 10):
        tube.put_many([f"{number}" for number in range(first, first + 10)])
        tube.ack_many(tube.take_many(10, timeout=0))
    tube.put_many([f"{number}" for number in range(100, 110)])
    return tube


def replay_query(options: dict[str, str], since: str = LONG_AGO, **more: str) -> Query:
    return Query({**options, "startingTime": since, "maxTasksPerTrigger": "30", "lease": "1", **more})


def test_stream_replays_done_tasks_then_reads_ready_tasks(log: tubes.Tube, options: dict[str, str]) -> None:
    query = replay_query(options, numPartitions="4")
    query.run()
    assert [len(batch) for batch in query.sink if batch] == [30, 30, 30, 10, 10]
    assert sorted(query.delivered, key=int) == [f"{number}" for number in range(110)]
    log.put("new")
    query.run()
    assert query.sink[-1] == ["new"]
    # Tasks that end after the replay are not replayed.
    assert log.statistics().kept == 111
    query.start()
    assert not query.plan()


def test_replay_covers_tasks_done_from_starting_time_until_its_start(log: tubes.Tube, options: dict[str, str]) -> None:
    query = replay_query(options, moment(log.peek(70).ended).isoformat())
    for task in log.take_many(10, timeout=0):
        task.ack()
    query.run()
    assert query.delivered == [f"{number}" for number in range(70, 100)]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_interrupted_replay_resumes_with_same_tasks(log: tubes.Tube, options: dict[str, str], steps: int) -> None:
    query = replay_query(options)
    for _ in range(steps):
        query.step()
    query.plan()
    query.deliver()
    before = query.sink[-1]
    query.crash()
    if not steps:  # Spark stores no start offset for a query that has not completed its first batch.
        query.options["startingTime"] = "2020-01-02"
        query.offsets[0] = source(query.options).streamReader(schema("id bigint, data string")).initialOffset()
        query.offsets[0]["consumer"] = query.offsets[1]["consumer"]
    query.start()
    query.deliver()
    assert query.sink[-1] == before
    query.commit()
    query.run()
    assert sorted(query.delivered, key=int) == [f"{number}" for number in range(110)]


def test_tasks_no_longer_kept_are_not_replayed(log: tubes.Tube, options: dict[str, str]) -> None:
    query = replay_query(options)
    query.step()
    log.select("done").delete()
    query.run()
    assert sorted(query.delivered, key=int) == [f"{number}" for number in [*range(30), *range(100, 110)]]


def test_started_stream_ignores_starting_time(log: tubes.Tube, options: dict[str, str]) -> None:
    query = Query(options)
    query.run()
    query.options = {**options, "startingTime": LONG_AGO}
    query.start()
    query.run()
    assert sorted(query.delivered, key=int) == [f"{number}" for number in range(100, 110)]


def test_replay_rows_match_read_rows(log: tubes.Tube, options: dict[str, str]) -> None:
    data_source = source({**options, "startingTime": LONG_AGO})
    reader: Any = data_source.streamReader(schema(str(data_source.schema())))
    start = reader.initialOffset()
    rows = rows_of(reader, reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit())))
    assert sorted(rows, key=lambda row: row["id"]) == read({**options, "state": "done"})
    reader.stop()
