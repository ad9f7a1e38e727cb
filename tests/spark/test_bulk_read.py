"""Tests for `BulkReader`, which reads many tasks without taking them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import redis

import tubes
from tubes import TubeNotFound
from tubes.spark.server.bulk_read import BulkReader, Row, Table
from tubes.testing import LocalServer


def rows_of(tables: Iterable[Table]) -> list[Row]:
    return [row for table in tables for row in table.rows()]


def test_record_matches_peek(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", "utubettl", ttr=60)
        tube.put("ready", utube="a", pri=3)
        tube.put("taken", ttl=900)
        tube.put("delayed", delay=50, max_attempts=4, context={"trace": "5"})
        tube.put("buried", key="k").bury("no such page")
        tube.put("gone").delete()
        tube.put("again", pri=1)
        first, _ = tube.take(timeout=0), tube.take(timeout=0)
        assert first is not None
        first.release()
        rows = rows_of(BulkReader(tube).read_range(0, 100))
        assert [row.id for row in rows] == [0, 1, 2, 3, 5]
        for row in rows:
            task = tube.peek(row.id)
            assert row.data == b'"%s"' % task.data.encode()
            for name in ("state", "utube", "pri", "attempts", "reason", "key", "max_attempts"):
                assert getattr(row, name) == getattr(task, name), (row, name)
            assert (row.context or {}) == task.context
            moments = [None if at is None else at / 1_000_000 for at in (row.created, row.due, row.expires)]
            assert moments == [task.created, task.due, task.expires]
        assert rows_of(BulkReader(tube).of([3, 4, 0])) == [rows[3], rows[0]]


def test_heads_are_records_without_data(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", "utubettl", ttr=60)
        long = "l" * 300
        tube.put("plain")
        tube.put(long, utube=long, pri=3, ttl=900, key=long, key_ttl=50, max_attempts=7, context={"a": long, "b": ""})
        tube.put("replaced", key="k")
        tube.put("replaces", key="k", on_duplicate="replace", ttr=5)
        tube.put("delayed", delay=50)
        tube.put("buried").bury(long)
        rows: list[Row] = []
        for _ in range(2):  # No task is taken in the first pass, and one in the second.
            rows = rows_of(BulkReader(tube).read_range(0, 10))
            assert rows_of(BulkReader(tube).read_heads(range(10))) == [row._replace(data=b"") for row in rows]
            assert {row.state for row in rows} >= {"r", "~", "!"}
            tube.take(timeout=0).release()  # type: ignore[union-attr]
            tube.take(timeout=0)
        assert {row.state for row in rows} == set("rt~!")


def test_heads_of_large_data_come_in_small_parts(url: str) -> None:
    with tubes.connect(url, codec="raw") as queue:
        tube = queue.create_tube("t")
        tube.put_many([b"x" * 1_000_000] * 5)
        assert [table.size for table in BulkReader(tube).read_heads(range(9))] == [2, 2, 1]


@pytest.mark.sample(3)
@pytest.mark.parametrize("driver", ["fifo", "fifottl", "utubettl", tubes.Driver("lifo", order="-id")])
def test_ids_are_found_by_states(url: str, driver: str | tubes.Driver) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", driver)
        tube.put_many(range(6000))
        for id in range(1000, 1003):
            tube.bury(id)
        taken = {task.id for task in tube.take_many(2, timeout=0)}
        records = BulkReader(tube)
        assert records.ids("!") == [1000, 1001, 1002]
        assert set(records.ids("t")) == taken
        assert set(records.ids("t!")) == {1000, 1001, 1002, *taken}
        assert records.ids("r!") == list(range(6000))
        if "delay" in tube.driver.options:
            assert records.ids("~") == []
            delayed = tube.put("x", delay=50)
            assert records.ids("~") == [delayed.id]


def test_all_ids_are_found(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        tube.put_many(range(12_000))
        tube.delete_many(range(100, 11_900))
        records = BulkReader(tube)
        assert records.ids() == [*range(100), *range(11_900, 12_000)]
        assert records.extent()[::2] == (200, 12_000)
        assert len(rows_of(records.read_range(0, 12_000))) == 200


def test_extent_skips_removed_ids(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", "fifo")
        records = BulkReader(tube)
        tube.put_many(range(2000))
        assert records.extent() == (2000, 0, 2000)
        tube.ack_many(tube.take_many(500, timeout=0))
        assert records.extent() == (1500, 500, 2000)
        mine = tube.take_many(100, timeout=0)
        assert records.extent() == (1500, 500, 2000), "taken tasks are counted, too"
        tube.ack_many(mine[10:])
        assert records.extent() == (1410, 500, 2000)
        mine[3].release()
        assert len(rows_of(records.read_range(*records.extent()[1:]))) == 1410
        mine[4].bury()
        assert len(rows_of(records.read_range(*records.extent()[1:]))) == 1410
        tube.truncate()
        assert records.extent() == (0, 2000, 2000)
        tube.put("first")
        assert records.extent() == (1, 2000, 2001)
        assert tube.admin.oldest_ready_age() is not None


def test_each_read_shows_current_task_states(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", "fifottl")
        tube.put_many(range(10))
        records = BulkReader(tube)
        assert {row.state for row in rows_of(records.read_range(0, 10))} == {"r"}
        task = tube.take(timeout=0)
        assert [row.state for row in rows_of(records.read_range(0, 10))] == ["t", *"r" * 9]
        assert task is not None
        task.ack()
        assert {row.state for row in rows_of(records.read_range(0, 10))} == {"r"}


def test_uniform_and_mixed_tasks_are_read_alike(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        tube.put_many(range(10))
        plain = rows_of(BulkReader(tube).read_range(0, 10))
        tube.take_many(5, timeout=0)
        taken = rows_of(BulkReader(tube).read_range(0, 5))
        tube.put("with an option", max_attempts=3)
        rows = rows_of(BulkReader(tube).read_range(0, 11))
        assert rows[5:10] == plain[5:]
        assert rows[:5] == taken
        assert [row._replace(state="r", attempts=0, take=None) for row in taken] == plain[:5]


def test_large_data_are_read_in_small_parts(url: str) -> None:
    with tubes.connect(url, codec="raw") as queue:
        tube = queue.create_tube("t")
        tube.put_many([b"x" * 100_000] * 300)
        parts = list(BulkReader(tube).read_range(0, 300))
        assert sum(part.size for part in parts) == 300
        assert max(part.size for part in parts[1:]) <= 5


def test_flushed_scripts_are_loaded_again(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url) as queue, redis.Redis.from_url(valkey.url) as client:
        tube = queue.create_tube("t")
        tube.put_many(range(10))
        for _ in range(2):
            client.script_flush()
            assert len(rows_of(BulkReader(tube).read_range(0, 10))) == 10


def test_reading_dropped_tube_raises_tube_not_found(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        tube.put("x")
        records = BulkReader(tube)
        tube.drop()
        for call in (
            records.extent, lambda: rows_of(records.read_range(0, 5)), lambda: rows_of(records.of([0, 3])),
            lambda: rows_of(records.read_heads([0, 3])),
        ):  # fmt: skip
            with pytest.raises(TubeNotFound):
                call()


def test_large_tasks_after_many_small_ones_are_read_in_small_parts(url: str) -> None:
    with tubes.connect(url, codec="raw") as queue:
        tube = queue.create_tube("t")
        tube.put_many([b"x"] * 2222)
        for _ in range(10):
            tube.put_many([b"y" * 100_000] * 100)
        sizes = [sum(len(row.data) for row in part.rows()) for part in BulkReader(tube).read_range(0, 3222)]
    assert sum(sizes) == 2222 + 100_000_000
    assert max(sizes) < 10_000_000
