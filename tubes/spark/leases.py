"""The stream source: takes tasks in batches, and acks a batch when Spark has committed it.

**How it works.** An offset is `{"consumer": name, "seq": n}`: the consumer, and the last batch that it has taken. The
server stores each batch when it is taken, and the lease keeps its tasks even if the driver crashes. Spark plans batch
n+1 only when n is in its commit log: then n is acked. After a crash Spark asks for its last planned batch again; its
tasks whose lease has ended are taken again, unless other consumers hold them.

If Spark asks for full batches in quick succession, two steps run in a background thread: batch n is acked while Spark
logs n+1, and batch n+2 is taken while Spark works on n+1. Executors read tasks by id, skip tasks that other consumers
have taken since, and report the skipped tasks, so that an ack ends only delivered tasks.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from tubes.errors import Facts, InvalidOption, TaskNotFound, TubesError, Unreadable
from tubes.spark.arrow import RecordBatch
from tubes.spark.columns import Columns
from tubes.spark.replay import Replay, ReplayPartition
from tubes.spark.server.bulk_read import BulkReader, Table
from tubes.spark.server.streams import Chunk, Claim, Stream
from tubes.spark.workers import ShortErrors, find_slots, freeze_loaded

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tubes.spark.settings import Settings
    from tubes.sync import Queue, Tube

#: Maximum partitions of a batch if `numPartitions` is not set and the number of Spark's slots is unknown.
_PARTITIONS: Final = max(2, min(4, os.cpu_count() or 1))
#: Tasks per partition: a partition costs Spark as much as some thousand tasks.
_PARTITION_SIZE: Final = 2_500
#: Default maximum number of tasks in a batch.
_MAX_TASKS: Final = 50_000
#: Take the next batch ahead if Spark asked for two batches within this many seconds. A slower query would only keep the
#: tasks from other consumers.
_AHEAD_WINDOW: Final = 10.0
#: Spark's offset: `consumer`, the batch number `seq`, and `replay` if the stream started in the past.
_Offset: TypeAlias = Facts


def _offset(consumer: str, batch: int, replay: Replay | None) -> _Offset:
    return {"consumer": consumer, "seq": batch, **({} if replay is None else replay.to_offset())}


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="tubes-stream")


def _stop_on_signal() -> None:
    """Let SIGTERM, by which Spark ends this process, raise SystemExit: then Spark's code calls `LeaseReader.stop`."""
    if current_thread() is main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _frame: object) -> None:
    sys.exit(128 + number)


@dataclass
class LeasePartition(InputPartition):
    """A partition: taken tasks, each with its attempt and its take number."""

    claim: Claim
    ids: list[int]
    attempts: list[int]
    takes: list[int]
    #: Number of Spark tasks that run at a time; None: the driver does not know it yet.
    slots: int | None


class Link:
    """The driver's connection of a query. All its streams share the session that holds their tasks."""

    def __init__(self, settings: Settings) -> None:
        self._settings: Final = settings
        self._queue: Queue | None = None
        self.consumer = ""

    def open(self, tube: str, consumer: str) -> Stream:
        """Open the stream of a consumer in a tube. It ends the streams of another consumer."""
        if self._queue is None or consumer != self.consumer:
            self.close()
            _stop_on_signal()
            self._queue, self.consumer = self._settings.connect(lease=self._settings.lease), consumer
        return Stream.open(self._queue, tube, consumer, shares=bool(self._settings.tubes))

    def close(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.admin.detach()


def check_offset(offset: _Offset, kind: type, of: str) -> None:
    if not isinstance(offset["seq"], kind):
        rule = f"belongs to a query of {of}, or another checkpoint"
        raise InvalidOption(option="checkpointLocation", value=offset, rule=rule)


def default_limit(settings: Settings) -> ReadLimit:
    return ReadMaxRows(settings.max_tasks or _MAX_TASKS)


def bound(settings: Settings, limit: ReadLimit) -> int:
    """Return the maximum number of tasks in a batch."""
    count = settings.max_tasks or _MAX_TASKS
    if isinstance(limit, ReadMaxRows):
        return min(count, limit.max_rows)
    return count if isinstance(limit, ReadAllAvailable) else min(count, _MAX_TASKS)


def count_partitions(settings: Settings, tasks: int, slots: int | None) -> int:
    """Return the number of partitions for a batch."""
    return min(settings.num_partitions or min(slots or _PARTITIONS, -(-tasks // _PARTITION_SIZE)), tasks)


class LeaseReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes tasks of one tube for a streaming query.

    `link` connects it; `takes_ahead`: take the next batch while Spark works on one.
    """

    def __init__(
        self, settings: Settings, schema: StructType, link: Link | None = None, *, takes_ahead: bool = True
    ) -> None:
        self._settings: Final = settings
        self._columns: Final = Columns(settings, schema)
        self._consumer: Final = settings.consumer or uuid4().hex
        self._link = link or Link(settings)
        self._takes_ahead: Final = takes_ahead
        self._stream: Stream | None = None
        #: Batch -> when this process took it, and its chunks, until Spark plans it.
        self._unplanned: dict[int, tuple[float, list[Chunk]]] = {}
        #: Batch -> the number of its tasks when it was planned, until it is acked.
        self._planned_sizes: dict[int, int] = {}
        #: Background work: an ack, followed by a take. No other call uses the stream until both are done.
        self._ack_future: Future[None] | None = None
        self._take_future: Future[None] | None = None
        #: The last batch whose ack is done or in progress.
        self._last_acked = 0
        #: The last batch that Spark knows.
        self._last_offered = 0
        #: When Spark last asked for a batch, and when it last got one.
        self._last_request = -_AHEAD_WINDOW
        self._last_batch = time.monotonic()
        #: Tasks that a query with the trigger availableNow may still take.
        self.budget: int | None = None
        #: Maximum size of a batch in bytes.
        self.max_bytes = settings.max_bytes

    def __getstate__(self) -> dict[str, object]:
        # Executors get copies, which do not need the driver's connection or its background work.
        driver_only = dict.fromkeys(("_link", "_stream", "_ack_future", "_take_future"))
        return {**self.__dict__, **driver_only, "_unplanned": {}}

    # -- on the driver -------------------------------------------------------------------------------------------------

    def initialOffset(self) -> _Offset:
        """Return the offset of a new query. A named consumer continues where it stopped; a replay comes first."""
        done = self._open(self._consumer).first - 1 if self._settings.consumer else 0
        since = self._settings.starting_time
        replay = None if since is None else Replay.begin(self._open(self._consumer).tube, since)
        return _offset(self._consumer, done, replay)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Limit a batch to `maxTasksPerTrigger` tasks."""
        return default_limit(self._settings)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end after as many tasks as are ready now."""
        with self._settings.connect() as queue:
            self.budget = self._settings.find(queue).statistics().tasks["ready"]

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:
        """Take the next batch. Spark has committed all batches up to `start`."""
        check_offset(start, int, "several tubes: use the option tubes")
        stream = self._open(start["consumer"])
        self._join_background()
        done, now = start["seq"], time.monotonic()
        is_fast, self._last_request = now - self._last_request < _AHEAD_WINDOW, now
        replay = Replay.from_offset(start)
        batch = max(done + 1, stream.first)
        count = bound(self._settings, limit)
        if replay is not None and replay.read is not None:
            return _offset(stream.name, done, replay.page(stream.tube, count))
        if batch > stream.last:  # Otherwise it was taken in the background or before a crash, but never planned.
            self._ack(stream, done)
            self._take(stream, batch, count)
            if batch > stream.last:
                return start
        _, chunks = self._unplanned.get(batch, (now, []))
        if is_fast and not stream.lanes and sum(len(chunk.ids) for chunk in chunks) >= count:
            self._last_acked = max(self._last_acked, done)
            self._ack_future = _pool().submit(self._ack, stream, done)
            if self._takes_ahead:
                self._take_future = _pool().submit(self._take, stream, batch + 1, count)
        else:
            self._ack(stream, done)
        self._last_batch = time.monotonic()
        self._last_offered = batch
        return _offset(stream.name, batch, replay)

    def look(self, start: _Offset) -> tuple[int, bool]:
        """Return the number of ready tasks (0: the tube is paused), and True if a batch was taken, but not planned."""
        stream = self._open(start["consumer"])
        found = stream.tube.statistics()
        return 0 if found.paused else found.tasks["ready"], stream.last > max(start["seq"], stream.first - 1)

    def check(self) -> None:
        """Raise `StreamFenced` if another query has opened the stream."""
        if self._stream is not None:
            self._stream.claim.check(self._stream.tube)

    def _take(self, stream: Stream, batch: int, count: int) -> None:
        if self.budget is not None:
            count = min(count, self.budget)
        elif self._should_wait(stream):
            return
        now = time.monotonic()
        chunks = stream.take(batch, count, self.max_bytes) if count else []
        if not chunks:
            return
        if self.budget is not None:
            self.budget -= sum(len(chunk.ids) for chunk in chunks)
        self._unplanned[batch] = now, chunks

    def _should_wait(self, stream: Stream) -> bool:
        """Return True if fewer than `minTasksPerTrigger` tasks are ready and `maxTriggerDelay` has not passed."""
        minimum = self._settings.min_tasks
        if minimum is None or time.monotonic() - self._last_batch >= self._settings.max_delay:
            return False
        return stream.tube.statistics().tasks["ready"] < minimum

    def _ack(self, stream: Stream, batch: int) -> None:
        done = stream.ack(batch)
        planned = sum(self._planned_sizes.pop(number) for number in [*self._planned_sizes] if number <= batch)
        stream.left_out += max(planned - done, 0)
        self._last_acked = max(self._last_acked, batch)

    def _join_ack(self) -> None:
        """Wait for the ack in the background, and raise its error."""
        future, self._ack_future = self._ack_future, None
        if future is not None:
            future.result()

    def _join_background(self) -> None:
        """Wait for the ack and the take in the background, and raise their error."""
        try:
            self._join_ack()
        finally:
            future, self._take_future = self._take_future, None
            if future is not None:
                future.result()

    def reportLatestOffset(self) -> _Offset | None:
        """Return the last batch and the backlog: Spark's progress report has only this field for sources in Python."""
        stream = self._stream
        return None if stream is None else {"consumer": stream.name, "seq": stream.last, **stream.progress()}

    def partitions(self, start: _Offset, end: _Offset) -> list[InputPartition]:
        """Split batches into partitions. After a crash, take tasks again that the lease has lost, if they are free."""
        check_offset(end, int, "several tubes: use the option tubes")
        stream = self._open(end["consumer"])
        # Never plan a batch before the ack of the last one: at most one committed batch is not acked.
        self._join_ack()
        done = start["seq"] if start["consumer"] == end["consumer"] else 0
        if done > self._last_acked:  # After a crash Spark continues with the batch that it had planned.
            self._ack(stream, done)
        ids: list[int] = []
        attempts: list[int] = []
        takes: list[int] = []
        for batch in range(max(done + 1, stream.first), end["seq"] + 1):
            since, chunks = self._unplanned.pop(batch, (0.0, []))
            if not chunks or time.monotonic() - since > self._settings.lease / 2:
                self._join_background()
                chunks = stream.retake(batch, counts=self._settings.count_retakes)
            self._planned_sizes[batch] = sum(len(chunk.ids) for chunk in chunks)
            for chunk in chunks:
                ids += chunk.ids
                attempts += chunk.attempts
                takes += chunk.takes
        parts: list[InputPartition] = [
            LeasePartition(stream.claim, ids[cut], attempts[cut], takes[cut], stream.slots)
            for cut in self._cut(len(ids), stream.slots)
        ]
        replay = Replay.from_offset(end)
        if replay is not None:
            done_ids = replay.ids(stream.tube, Replay.from_offset(start))
            parts += [ReplayPartition(replay, done_ids[cut]) for cut in self._cut(len(done_ids), stream.slots)]
        return parts

    def _cut(self, tasks: int, slots: int | None) -> list[slice]:
        """Return slices that split `tasks` tasks into partitions of about equal size."""
        count = count_partitions(self._settings, tasks, slots)
        edges = [tasks * number // count for number in range(count + 1)] if tasks else []
        return [slice(*cut) for cut in pairwise(edges)]

    def commit(self, end: _Offset) -> None:
        """Ack all batches up to `end`, which Spark will not ask for again."""
        stream = self._open(end["consumer"])
        if end["seq"] > self._last_acked:
            self._join_background()
            self._ack(stream, end["seq"])

    def stop(self) -> None:
        """Leave the tasks to the next run of the query, as long as the lease lasts. Return those of the batch ahead."""
        self.leave()
        self._link.close()

    def leave(self) -> None:
        """Forget the stream. Return the tasks of the batch ahead."""
        stream, self._stream = self._stream, None
        with suppress(TubesError):
            self._join_background()
            if stream is not None and self._last_offered < stream.last in self._unplanned:
                stream.give_back(stream.last)
        self._unplanned.clear()

    def _open(self, consumer: str) -> Stream:
        if self._stream is None or self._stream.name != consumer:
            self.leave()
            self._stream = self._link.open(self._settings.tube, consumer)
            self._last_acked = self._stream.first - 1
            self._planned_sizes.clear()
        return self._stream

    # -- on executors --------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the tasks of a partition, except those taken by other consumers since.

        Raises `StreamFenced` at the end if another query has opened the stream: tasks that it took may be missing.
        """
        freeze_loaded()
        if isinstance(partition, ReplayPartition):
            with ShortErrors(), self._settings.share() as queue:
                yield from self._columns.batches(partition.tables(self._settings.find(queue)))
            return
        assert isinstance(partition, LeasePartition)
        claim = partition.claim
        ids, takes = partition.ids, partition.takes
        attempts_by_id = dict(zip(ids, partition.attempts, strict=True))
        take_by_id = dict(zip(ids, takes, strict=True))
        with ShortErrors(), self._settings.share() as queue:
            tube = self._settings.find(queue)
            reader = BulkReader(tube)
            skipped = {id for id, take in claim.skipped(tube) if take_by_id.get(id) == take}

            def select_ours(table: Table) -> Table:
                ours = table.select("state", "tr")
                rows = zip(*map(ours.values, ("id", "attempts", "take")), strict=True)
                # If the lease has lost a task and no other consumer took it, the take no longer counts as an attempt.
                return ours.filter(
                    [
                        (attempts == attempts_by_id[id] - 1 if take is None else take == take_by_id[id])
                        and id not in skipped
                        for id, attempts, take in rows
                    ]
                )

            def read_tables() -> Iterator[Table]:
                found: list[int] = []
                for table in reader.of(ids):
                    part = slice(len(found), len(found) + table.size)
                    found += table.values("id")
                    # In the usual case all tasks are still ours: compare whole columns.
                    is_unchanged = (
                        not skipped and found[part] == ids[part] and list(table.values("take")) == takes[part]
                    )
                    ours = table if is_unchanged else select_ours(table)
                    if self._settings.bad_rows == "bury":
                        ours = self._bury_undecodable(tube, ours)
                    if ours.size < table.size:
                        # Only delivered tasks may be acked.
                        left_out = set(table.values("id")) - set(ours.values("id"))
                        claim.skip(tube, [(id, take_by_id[id]) for id in sorted(left_out - skipped)])
                    yield ours
                # A value that is not a task can be neither delivered nor buried, and must not be acked.
                missing = sorted(set(ids).difference(found)) if len(found) < len(ids) else []
                for id in reader.find_stored(missing)[:1]:
                    raise Unreadable(
                        what=f"tube {tube.name!r}: task {id}", why="its value is not a task; see `tubes repair`"
                    )

            yield from self._columns.batches(read_tables())
            claim.check(tube)
            slots = find_slots()
            if slots is not None and slots != partition.slots:
                claim.note_slots(tube, slots)

    def _bury_undecodable(self, tube: Tube, table: Table) -> Table:
        """Bury the tasks whose data cannot be decoded, and return the others."""
        bad = set(self._columns.find_undecodable(table))
        for id in bad:
            with suppress(TaskNotFound):
                tube.bury(id, f"bad row: codec {self._settings.codec!r} cannot decode the data")
        return table.filter([id not in bad for id in table.values("id")]) if bad else table
