"""Tests for `Stream`: batches outlive the process that took them."""

from __future__ import annotations

from typing import Any

import pytest

import tubes
from tests.support.internals import port_of
from tubes import TaskNotTaken
from tubes.errors import StreamFenced
from tubes.spark.server import streams
from tubes.spark.server.streams import Chunk, Stream
from tubes.testing import LocalServer, ManualClock

LEASE = 30.0


class Harness:
    """A tube, and the processes that open its streams."""

    def __init__(self, url: str, clock: ManualClock) -> None:
        self._url, self._clock = url, clock
        self.other = tubes.connect(url, clock=clock)

    def tube(self, driver: str, tasks: int, **options: Any) -> tubes.Tube:
        tube = self.other.create_tube("t", driver, **options)
        laned = driver.startswith("utube")
        tube.put_many(
            tubes.Item(number, utube=f"lane {number}") if laned else tubes.Item(number) for number in range(tasks)
        )
        return tube

    def open(self, name: str = "s") -> Stream:
        return Stream.open(tubes.connect(self._url, clock=self._clock, session_ttl=LEASE), "t", name)

    def crash(self, stream: Stream, seconds: float = 0.0) -> None:
        """Kill the process of a stream, and let `seconds` pass."""
        port_of(stream.tube).connection.close(lost=True)
        self._clock.advance(seconds)


@pytest.fixture
def harness(url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Harness:
    monkeypatch.setattr(streams, "CHUNK", 10)
    monkeypatch.setattr(streams, "CHUNK_WITH_LANES", 5)
    return Harness(url, clock)


def take(tube: tubes.Tube) -> tubes.Task:
    task = tube.take(timeout=0)
    assert task is not None
    return task


def ids(chunks: list[Chunk]) -> list[int]:
    return [id for chunk in chunks for id in chunk.ids]


def take_of(chunks: list[Chunk], id: int) -> int:
    return next(take for chunk in chunks for some, take in zip(chunk.ids, chunk.takes, strict=True) if some == id)


every_driver = pytest.mark.parametrize("driver", ["fifo", "fifottl", "utube", "utubettl"])


@every_driver
def test_batch_is_taken_once_and_removed_by_ack(harness: Harness, driver: str) -> None:
    tube = harness.tube(driver, 60)
    stream = harness.open()
    assert ids(stream.take(1, 25)) == list(range(25))
    assert ids(stream.take(1, 25)) == list(range(25))
    assert ids(stream.take(2, 25)) == list(range(25, 50))
    assert stream.ack(1) == 25
    assert stream.ack(1) == 0
    assert tube.statistics().tasks["taken"] == 25
    assert stream.ack(2) == 25
    assert tube.statistics().tasks["total"] == 10
    assert (stream.first, stream.last) == (3, 2)


@every_driver
def test_next_take_repeats_ack_lost_by_server(harness: Harness, driver: str, valkey: LocalServer) -> None:
    tube = harness.tube(driver, 60)
    stream = harness.open()
    assert ids(stream.take(1, 25)) == list(range(25))
    client: Any = valkey.client()
    keys = [key for key in client.scan_iter(match=f"{port_of(tube).shared.key}*") if not key.endswith(b":leases")]
    before = {key: client.dump(key) for key in keys}
    assert stream.ack(1) == 25
    for key, dumped in before.items():
        client.restore(key, 0, dumped, replace=True)
    assert ids(stream.take(2, 25)) == list(range(25, 50))
    assert stream.ack(2) == 50
    assert tube.statistics().tasks == {**tube.statistics().tasks, "taken": 0, "total": 10}
    assert ids(harness.open().take(3, 25)) == list(range(50, 60))


def test_reopened_stream_is_fenced_even_if_server_lost_the_opening(harness: Harness, valkey: LocalServer) -> None:
    tube = harness.tube("fifo", 60)
    harness.open()
    client: Any = valkey.client()
    key = f"{port_of(tube).shared.key}:stream:s"
    before = client.dump(key)
    lost = harness.open()
    client.restore(key, 0, before, replace=True)
    stream = harness.open()
    assert ids(stream.take(1, 5)) == list(range(5))
    with pytest.raises(StreamFenced):
        lost.take(2, 1)
    assert stream.ack(1) == 5


@every_driver
def test_repeated_take_returns_original_batch(harness: Harness, driver: str) -> None:
    tube = harness.tube(driver, 3)
    stream = harness.open()
    assert ids(stream.take(1, 100)) == [0, 1, 2]
    tube.put("late")
    assert ids(stream.take(1, 100)) == [0, 1, 2]
    assert ids(stream.take(2, 100)) == [3]
    assert stream.take(3, 100) == []


@every_driver
def test_restart_within_lease_finds_taken_batch(harness: Harness, driver: str) -> None:
    tube = harness.tube(driver, 60)
    before = harness.open()
    taken = before.take(1, 25)
    harness.crash(before, LEASE - 1)
    stream = harness.open()
    assert (stream.first, stream.last) == (1, 1)
    assert tube.statistics().tasks["taken"] == 25
    assert stream.retake(1) == taken
    assert stream.ack(1) == 25


@every_driver
def test_take_reports_attempts_of_each_task(harness: Harness, driver: str) -> None:
    tube = harness.tube(driver, 12)
    for task in [take(tube) for _ in range(3)]:
        task.release()
    take(tube).ack()
    stream = harness.open()
    attempts = {id: by for chunk in stream.take(1, 8) for id, by in zip(chunk.ids, chunk.attempts, strict=True)}
    assert sorted(attempts.values()) == [1, 1, 1, 1, 1, 1, 2, 2]
    assert stream.ack(1) == 8
    assert [by for chunk in stream.take(2, 8) for by in chunk.attempts] == [1, 1, 1]
    assert stream.ack(2) == 3


@every_driver
def test_retake_after_expired_lease_skips_tasks_taken_elsewhere(harness: Harness, driver: str) -> None:
    tube = harness.tube(driver, 60)
    before = harness.open()
    before.take(1, 25)
    harness.crash(before, LEASE + 1)
    assert tube.statistics().tasks["taken"] == 0
    stolen = take(tube)
    stream = harness.open()
    assert ids(stream.retake(1)) == list(range(1, 25))
    assert {attempts for chunk in stream.retake(1) for attempts in chunk.attempts} == {1}
    assert stream.ack(1) == 24
    stolen.ack()
    assert tube.statistics().tasks["total"] == 35


@every_driver
def test_ack_after_expired_lease_applies_to_tasks_not_taken_since(harness: Harness, driver: str) -> None:
    tube = harness.tube(driver, 60)
    before = harness.open()
    before.take(1, 25)
    harness.crash(before, LEASE + 1)
    stolen, given_back = take(tube), take(tube)
    given_back.release()
    assert harness.open().ack(1) == 23
    assert stolen.ack().state == "done"
    assert tube.peek(given_back.id).state == "ready"


@every_driver
def test_interrupted_ack_is_finished_by_next_reader(harness: Harness, driver: str) -> None:
    tube = harness.tube(driver, 60)
    before = harness.open()
    chunks = before.take(1, 25)
    before._run("stream_ack", before._epoch, 1)  # acks only one of the chunks
    harness.crash(before)
    stream = harness.open()
    assert ids(stream.retake(1)) == ids(chunks[:-1])
    assert stream.ack(1) == 25 - len(chunks[-1].ids)
    assert tube.statistics().tasks["total"] == 35


def test_interrupted_take_is_completed_by_next_reader(harness: Harness) -> None:
    harness.tube("fifo", 60)
    before = harness.open()
    before.take(1, 10)
    harness.crash(before)
    assert ids(harness.open().take(1, 25)) == list(range(25))


def test_ttr_does_not_apply_to_tasks_taken_by_stream(harness: Harness, clock: ManualClock) -> None:
    tube = harness.tube("fifottl", 5, ttr=1)
    stream = harness.open()
    stream.take(1, 5)
    clock.advance(10)
    assert tube.take(timeout=0) is None
    assert tube.statistics().calls["ttr"] == 0
    assert stream.ack(1) == 5


def test_expired_task_is_not_acked_with_its_batch(harness: Harness, clock: ManualClock) -> None:
    harness.tube("fifottl", 5, ttl=60)
    stream = harness.open()
    stream.take(1, 5)
    clock.advance(61)
    assert stream.ack(1) == 0


def test_batch_contains_one_task_per_lane(harness: Harness) -> None:
    tube = harness.other.create_tube("t", "utube")
    tube.put_many([tubes.Item(number, utube=f"{number % 3}") for number in range(9)])
    stream = harness.open()
    assert ids(stream.take(1, 9)) == [0, 1, 2]
    assert stream.take(2, 9) == []
    stream.ack(1)
    assert ids(stream.take(2, 9)) == [3, 4, 5]


def test_retake_skips_tasks_of_busy_lane(harness: Harness) -> None:
    tube = harness.other.create_tube("t", "utube")
    tube.put_many([tubes.Item(number, utube="same") for number in range(2)])
    before = harness.open()
    before.take(1, 9)
    harness.crash(before, LEASE + 1)
    first = take(tube)
    first.release()
    second = take(tube)
    assert (first.id, second.id) == (0, 0)
    assert ids(harness.open().retake(1)) == []


@every_driver
@pytest.mark.parametrize("ends", ["lease", "release_all"])
def test_lost_lease_uses_no_attempt(harness: Harness, driver: str, ends: str) -> None:
    tube = harness.tube(driver, 12, max_attempts=1)
    for round in range(3):
        stream = harness.open()
        chunks = stream.retake(1) if round else stream.take(1, 12)
        assert ids(chunks) == list(range(12))
        assert {attempts for chunk in chunks for attempts in chunk.attempts} == {1}
        harness.crash(stream, LEASE + 1 if ends == "lease" else 0)
        if ends == "release_all":
            tube.admin.release_all()
        assert [tube.peek(id).attempts for id in range(12)] == [0] * 12
    assert harness.open().ack(1) == 12
    assert [*tube.select("buried")] == []


def test_lost_lease_uses_no_attempt_if_later_batch_takes_task(harness: Harness) -> None:
    tube = harness.other.create_tube("t", "utube", max_attempts=1)
    tube.put_many([tubes.Item(number, utube="same") for number in range(2)])
    stream = harness.open()
    stream.take(1, 1)
    harness.crash(stream, LEASE + 1)
    stolen = take(tube)
    stream = harness.open()
    assert ids(stream.retake(1)) == []
    stolen.bury()
    stream.ack(1)
    tube.select("buried", limit=1).kick(attempts=1)
    assert [(chunk.ids, chunk.attempts) for chunk in stream.take(2, 1)] == [([0], [2])], (
        "only the other consumer's attempt counts"
    )


@every_driver
def test_lost_lease_counts_as_attempt_on_request(harness: Harness, driver: str) -> None:
    tube = harness.tube(driver, 3, max_attempts=2)
    stream = harness.open()
    stream.take(1, 3)
    harness.crash(stream, LEASE + 1)
    stream = harness.open()
    assert [chunk.attempts for chunk in stream.retake(1, counts=True)] == [[2, 2, 2]]
    harness.crash(stream, LEASE + 1)
    stream = harness.open()
    assert ids(stream.retake(1, counts=True)) == []
    assert stream.ack(1) == 0
    assert [task.reason for task in tube.select("buried")] == ["max_attempts: session"] * 3


@every_driver
def test_task_lost_by_two_streams_is_delivered_by_one_of_them(harness: Harness, driver: str) -> None:
    tube = harness.tube(driver, 3)
    one = harness.open("one")
    one.take(1, 3)
    harness.crash(one, LEASE + 1)
    other = harness.open("other")
    assert ids(other.take(1, 3)) == [0, 1, 2]
    assert ids(harness.open("one").retake(1)) == []
    harness.crash(other, LEASE + 1)
    other = harness.open("other")
    assert ids(other.retake(1)) == [0, 1, 2]
    assert harness.open("one").ack(1) == 0
    assert other.ack(1) == 3
    assert tube.statistics().tasks["total"] == 0


def test_opening_stream_fences_previous_reader(harness: Harness) -> None:
    harness.tube("fifo", 60)
    before = harness.open()
    before.take(1, 25)
    stream = harness.open()
    for act in (lambda: before.take(2, 25), lambda: before.retake(1), lambda: before.ack(1)):
        with pytest.raises(StreamFenced, match="stream 's' of tube 't'"):
            act()
    assert stream.ack(1) == 25


def test_streams_with_different_names_are_independent(harness: Harness) -> None:
    harness.tube("fifo", 60)
    one, two = harness.open("one"), harness.open("two")
    assert ids(one.take(1, 5)) == [0, 1, 2, 3, 4]
    assert ids(two.take(1, 5)) == [5, 6, 7, 8, 9]
    assert one.ack(1) == 5
    assert ids(two.retake(1)) == [5, 6, 7, 8, 9]


def test_recreated_tube_has_no_streams_of_its_predecessor(harness: Harness) -> None:
    harness.tube("fifo", 60)
    harness.open().take(1, 5)
    tube = harness.other.tube("t")
    tube.truncate()
    tube.drop()
    harness.tube("fifo", 3)
    stream = harness.open()
    assert (stream.first, stream.last) == (1, 0)
    assert ids(stream.take(1, 5)) == [0, 1, 2]


def test_task_of_stream_cannot_be_acked_by_tube(harness: Harness) -> None:
    tube = harness.tube("fifo", 3)
    harness.open().take(1, 1)
    with pytest.raises(TaskNotTaken):
        tube.ack(0)


@every_driver
def test_taken_batch_stays_complete_with_smaller_limit(harness: Harness, driver: str) -> None:
    harness.tube(driver, 60)
    stream = harness.open()
    stream.take(1, 35)
    harness.crash(stream)
    assert ids(harness.open().take(1, 12)) == list(range(35))


def test_batch_that_lost_tasks_is_not_refilled(harness: Harness) -> None:
    tube = harness.tube("fifo", 60)
    stream = harness.open()
    stream.take(1, 35)
    harness.crash(stream, LEASE + 1)
    thief = [take(tube).id for _ in range(3)]
    stream = harness.open()
    assert ids(stream.retake(1)) == ids(stream.take(1, 35)) == [id for id in range(35) if id not in thief]
    assert stream.ack(1) == 32
    assert tube.statistics().tasks["taken"] == 3


@pytest.mark.parametrize("how", ["kicked", "released later"])
def test_ack_excludes_skipped_tasks(harness: Harness, how: str, clock: ManualClock) -> None:
    tube = harness.tube("fifottl", 20)
    stream = harness.open()
    chunks = stream.take(1, 20)
    if how == "kicked":
        tube.bury(4)
        stream.claim.skip(tube, [(4, take_of(chunks, 4))])
        tube.select("buried", limit=1).kick()
    else:
        harness.crash(stream, LEASE + 1)
        tube.update(4, delay=60)
        stream.claim.skip(tube, [(4, take_of(chunks, 4))])
        clock.advance(60)
        stream = harness.open()
    assert stream.ack(1) == 19
    assert [task.id for task in tube.take_many(100, timeout=0)] == [4]


@every_driver
def test_skipped_task_stays_out_of_its_batch_and_joins_another(harness: Harness, driver: str) -> None:
    tube = harness.tube(driver, 5)
    stream = harness.open()
    left_out = (4, take_of(stream.take(1, 5), 4))
    stream.claim.skip(tube, [left_out])
    assert stream.claim.skipped(tube) == {left_out}
    harness.crash(stream, LEASE + 1)
    stream = harness.open()
    assert ids(stream.retake(1)) == [0, 1, 2, 3]
    assert stream.ack(1) == 4
    assert ids(stream.take(2, 5)) == [4]
    assert stream.claim.skipped(tube) == frozenset()
    assert stream.ack(2) == 1


def test_batch_numbers_may_have_gaps(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.tube("fifo", 30)
    stream = harness.open()
    assert ids(stream.take(300_000, 10)) == list(range(10))
    assert (stream.first, stream.last) == (300_000, 300_000)
    harness.crash(stream)
    stream = harness.open()
    calls: list[str] = []
    run = stream._run

    def record_call(method: str, *args: Any) -> Any:
        calls.append(method)
        return run(method, *args)

    monkeypatch.setattr(stream, "_run", record_call)
    assert stream.ack(300_000) == 10
    assert calls == ["stream_ack"]
