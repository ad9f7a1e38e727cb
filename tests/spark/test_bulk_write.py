"""Tests for `Writer`: immediate and transactional writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis

import tubes
from tests.support.internals import port_of
from tubes import TubeFull, TubeNotFound
from tubes.errors import WriteAborted
from tubes.spark.server import bulk_write
from tubes.spark.server.bulk_write import StagedChunk, Writer
from tubes.testing import LocalServer

ROWS = [b'"%d"' % number for number in range(25)]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_write, "CHUNK_WITH_LANES", 5)


@pytest.fixture
def tube(url: str) -> Iterator[tubes.Tube]:
    with tubes.connect(url) as queue:
        yield queue.create_tube("t")


def stage(writer: Writer, write: str, rows: list[bytes] = ROWS, **options: object) -> list[StagedChunk]:
    head = writer.head(writer.tube._port.shared.driver.check_put(options))
    return [writer.stage(write, chunk) for chunk in writer.chunks([(head, rows)], 10)]


def seal(writer: Writer, name: str, number: int, staged: list[StagedChunk]) -> None:
    writer._seal(name, number, staged, writer._extend_expiry(staged))


def put_partially(tube: tubes.Tube, done: int) -> tuple[Writer, list[StagedChunk]]:
    """Seal a write and put only the first `done` chunks. Return the writer and the staged chunks."""
    writer = Writer(tube)
    staged = stage(writer, "load-1")
    seal(writer, "load", 1, staged)
    for chunk in staged[:done]:
        writer._put(chunk.keyed, chunk.tasks, chunk.name, chunk.words, (), 0.0)
    return writer, staged


def data(tube: tubes.Tube) -> list[Any]:
    return [task.data for task in tube.take_many(1000, timeout=0)]


def leftovers(server: LocalServer, url: str) -> set[str]:
    """Return the kinds of keys on the server, except those of every tube with tasks."""
    with redis.Redis.from_url(server.url) as client:
        keys = {key.decode() for key in client.scan_iter(f"{url.partition('=')[2]}:*")}
    kinds = {key.partition("}:")[2].partition(":")[0] for key in keys if "}:" in key}
    return kinds - {"tasks", "ready", "leases", "keys"}


def test_chunks_are_small_and_keep_the_order(tube: tubes.Tube) -> None:
    writer = Writer(tube)
    plain, keyed = writer.head({}), writer.head({"key": "k"})
    chunks = list(writer.chunks([(plain, ROWS), (plain, ROWS), (keyed, ROWS[:1]), (plain, ROWS[:1])], 20))
    assert [chunk.tasks for chunk in chunks] == [20, 20, 10, 2]
    assert [chunk.keyed for chunk in chunks] == [False, False, False, True]
    for chunk in chunks:
        writer.put(chunk)
    assert data(tube) == [raw.decode().strip('"') for raw in [*ROWS, *ROWS, ROWS[0], ROWS[0]]]


def test_chunks_are_limited_by_bytes(tube: tubes.Tube) -> None:
    writer = Writer(tube)
    large = [b"x" * (bulk_write.BYTES // 3)] * 7 + [b"x" * bulk_write.BYTES * 2]
    chunks = list(writer.chunks([(writer.head({}), large)]))
    assert sum(chunk.tasks for chunk in chunks) == 8
    sizes = [sum(len(word) for word in chunk.words if isinstance(word, bytes)) for chunk in chunks]
    assert [size > bulk_write.BYTES + 100 for size in sizes] == [False, False, False, True]


def test_staged_chunks_are_invisible_until_published(tube: tubes.Tube, valkey: LocalServer, url: str) -> None:
    writer = Writer(tube)
    staged = stage(writer, "w")
    assert tube.statistics().tasks["total"] == 0
    assert writer.publish_once("w", staged) == 25
    assert data(tube) == [str(number) for number in range(25)]
    assert leftovers(valkey, url) <= {"taken"}


@pytest.mark.parametrize("driver", ["fifo", "fifottl", "utube", "utubettl"])
def test_published_task_equals_put_task(url: str, driver: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", driver)
        options: dict[str, Any] = {"key": "k", "max_attempts": 3}
        options |= {"pri": 2, "ttl": 60, "ttr": 5, "delay": 1} if "ttl" in driver else {}
        options |= {"utube": "lane"} if driver.startswith("utube") else {}
        writer = Writer(tube)
        writer.publish_once("w", stage(writer, "w", [b'"x"'], **options))
        published = tube.peek(0)
        options["key"] = "other"
        tube.put("x", **options)
        put = tube.peek(1)
        for name in ("data", "state", "utube", "pri", "ttl", "ttr", "max_attempts", "attempts"):
            assert getattr(published, name) == getattr(put, name), name
        assert published.key == "k"


def test_repeated_write_is_put_once(tube: tubes.Tube, valkey: LocalServer, url: str) -> None:
    writer = Writer(tube)
    assert writer.publish("load", 1, stage(writer, "load-1")) == 25
    assert writer.publish("load", 1, stage(writer, "load-1")) == 0
    assert writer.publish("load", 0, stage(writer, "load-0")) == 0
    assert writer.publish("load", 2, stage(writer, "load-2")) == 25
    assert tube.statistics().tasks["total"] == 50
    assert leftovers(valkey, url) == {"written"}


@pytest.mark.parametrize("done", range(4))
def test_next_writer_finishes_interrupted_publish(tube: tubes.Tube, done: int) -> None:
    _, staged = put_partially(tube, done)
    writer = Writer(tube)
    assert writer.publish("load", 1, stage(writer, "load-1")) == 25 - sum(chunk.tasks for chunk in staged[:done])
    assert data(tube) == [str(number) for number in range(25)]


def test_later_write_finishes_unfinished_write(tube: tubes.Tube) -> None:
    writer = Writer(tube)
    seal(writer, "load", 1, stage(writer, "load-1", [b"1"]))
    assert writer.publish("load", 2, stage(writer, "load-2", [b"2"])) == 2
    assert data(tube) == [1, 2]


def test_abandoned_sealed_write_is_finished_by_another_write(
    tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch, valkey: LocalServer, url: str
) -> None:
    writer = Writer(tube)
    seal(writer, "lost", 0, stage(writer, "lost"))
    assert writer.publish_once("w", stage(writer, "w", [b"1"])) == 1
    monkeypatch.setattr(bulk_write, "ABANDONED", 0)
    assert writer.publish_once("v", stage(writer, "v", [b"2"])) == 26
    assert "sealed" not in leftovers(valkey, url)


def test_aborted_write_removes_chunks_and_refuses_more(tube: tubes.Tube, valkey: LocalServer, url: str) -> None:
    writer = Writer(tube)
    stage(writer, "w")
    writer.clean("w", aborted=True)
    with pytest.raises(WriteAborted, match="given up"):
        stage(writer, "w")
    assert leftovers(valkey, url) == {"chunks"}  # The server remembers the abort for a day.


def test_write_with_missing_chunks_puts_nothing(tube: tubes.Tube) -> None:
    writer = Writer(tube)
    staged = stage(writer, "w")
    writer.clean("w")
    with pytest.raises(WriteAborted, match="gone"):
        writer.publish_once("w", staged)
    assert tube.statistics().tasks["total"] == 0


def test_empty_write_counts_as_done(tube: tubes.Tube) -> None:
    writer = Writer(tube)
    assert writer.publish("load", 1, []) == 0
    assert writer.publish("load", 1, stage(writer, "load-1")) == 0


def test_write_beyond_capacity_raises_tube_full(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", capacity=12)
        writer = Writer(tube)
        staged = stage(writer, "load-1")
        with pytest.raises(TubeFull, match="capacity is 12"):
            writer.publish("load", 1, staged)
        assert tube.statistics().tasks["total"] == 10
        with pytest.raises(TubeFull):
            writer.put(next(writer.chunks([(writer.head({}), ROWS)])))


def test_write_to_dropped_tube_raises_tube_not_found(tube: tubes.Tube) -> None:
    writer = Writer(tube)
    tube.drop()
    with pytest.raises(TubeNotFound):
        stage(writer, uuid4().hex)


@pytest.mark.parametrize("done", range(3))
def test_sealed_write_is_put_despite_later_abort(tube: tubes.Tube, done: int) -> None:
    dead, _ = put_partially(tube, done)
    dead.clean("load-1", aborted=True)
    Writer(tube).publish("load", 1, [])
    assert data(tube) == [str(number) for number in range(25)]


def test_write_of_many_chunks_is_sealed_in_short_calls(tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_write, "_KEEP_BATCH", 2)
    writer = Writer(tube)
    staged = stage(writer, "w")
    with pytest.raises(WriteAborted, match="are gone"):
        writer.publish_once("w", [*staged, staged[0]._replace(name="never staged")])
    assert tube.statistics().tasks["total"] == 0
    assert writer.publish_once("w", staged) == 25


def test_sealed_chunks_outlive_staged_chunks(tube: tubes.Tube, valkey: LocalServer) -> None:
    _, staged = put_partially(tube, 1)
    with redis.Redis.from_url(valkey.url) as client:
        left = [client.pttl(f"{port_of(tube).shared.key}:staged:{chunk.name}") for chunk in staged]
    assert left[0] == -2
    assert min(left[1:]) > bulk_write.CHUNK_EXPIRY


def test_dropping_tube_removes_sealed_write(tube: tubes.Tube, valkey: LocalServer, url: str) -> None:
    put_partially(tube, 1)
    assert "staged" in leftovers(valkey, url)
    tube.drop()
    assert leftovers(valkey, url) <= {"chunks"}


def test_rows_with_and_without_keys_share_chunks(tube: tubes.Tube) -> None:
    writer = Writer(tube)
    rows = [(writer.head({"key": f"{number}"} if number % 2 else {}), [b"%d" % number]) for number in range(100)]
    chunks = list(writer.chunks(rows, 1000))
    assert [chunk.tasks for chunk in chunks[:4]] == [
        1,
        5,
        1,
        5,
    ]  # A chunk has at most five tasks with keys in this test.
    assert sum(chunk.tasks for chunk in chunks) == 100
    writer.publish_once("w", [writer.stage("w", chunk) for chunk in chunks])
    tasks = tube.take_many(1000, timeout=0)
    assert [(task.data, task.key) for task in tasks] == [(n, f"{n}" if n % 2 else None) for n in range(100)]


def test_write_without_room_does_not_block_other_writes(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", capacity=30)
        writer = Writer(tube)
        large = [writer.stage("large-1", chunk) for _ in range(2) for chunk in writer.chunks([(writer.head({}), ROWS)])]
        assert max(chunk.tasks for chunk in large) <= 30
        with pytest.raises(TubeFull):
            writer.publish("large", 1, large)
        with redis.Redis.from_url(valkey.url) as client:
            client.zadd(f"{port_of(tube).shared.key}:sealed", {"large": 1})  # Sealed long ago.
        tube.truncate()
        tube.put_many(range(20))
        assert writer.publish("small", 1, stage(writer, "small-1", ROWS[:5])) == 5


def test_chunks_of_dropped_tube_are_not_put_into_its_successor(url: str) -> None:
    with tubes.connect(url) as queue:
        writer = Writer(queue.create_tube("t", "utubettl"))
        staged = stage(writer, "w", utube="lane", pri=5)
        writer.tube.drop()
        tube = queue.create_tube("t")
        with pytest.raises(WriteAborted, match="made again"):
            Writer(tube).publish_once("w", staged)
        assert tube.statistics().tasks["total"] == 0


def test_publish_once_needs_room_for_whole_write(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", capacity=30)
        writer = Writer(tube)
        tube.put_many(range(10))
        for staged in (stage(writer, "w"), [*stage(writer, "v"), *stage(writer, "v")]):
            with pytest.raises(TubeFull):
                writer.publish_once("w", staged)
            assert tube.statistics().tasks["total"] == 10
        tube.truncate()
        assert writer.publish_once("w", stage(writer, "w")) == 25
