"""The source of streams: tasks taken batch by batch, and acked when Spark has committed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from tubes.errors import TaskNotFound, TubesError, Unreadable
from tubes.spark.arrow import RecordBatch
from tubes.spark.columns import Columns
from tubes.spark.replay import Kept, Replay
from tubes.spark.server.bulk_read import BulkReader, Table
from tubes.spark.server.streams import Chunk, Claim, Stream
from tubes.spark.workers import find_slots, freeze_loaded

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tubes.spark.settings import Settings
    from tubes.sync import Queue, Tube

#: Partitions of a batch, if `numPartitions` is not given and no executor has said how many tasks Spark runs at a time.
#: Each costs as much as some thousand tasks of a tube.
_PARTITIONS: Final = max(2, min(4, os.cpu_count() or 1))
_WORTHWHILE: Final = 2_500
#: Tasks of a batch, if no option says how many.
_MOST: Final = 50_000
#: If Spark asks for the next batch within so many seconds, one is taken ahead; else its tasks would be kept from other
#: consumers for nothing.
_AT_ONCE: Final = 10.0
#: Spark's offset of a batch: `consumer`, the number of the batch, `seq`, and `replay` if it has started in the past.
_Offset: TypeAlias = dict[str, Any]


def _offset(consumer: str, batch: int, replay: Replay | None) -> _Offset:
    return {"consumer": consumer, "seq": batch, **({} if replay is None else replay.named())}


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="tubes-stream")


@dataclass
class Taken(InputPartition):
    """Tasks that were taken for a consumer, each with its attempt and its take number."""

    claim: Claim
    ids: list[int]
    attempts: list[int]
    takes: list[int]
    #: How many tasks Spark runs at a time, as far as the driver knows.
    slots: int | None


class LeaseReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes tasks for a query.

    An offset names the consumer and the last of its batches: `{"consumer": …, "seq": 7}`. The server stores each batch
    that was taken. The consumer keeps it as long as its lease lasts, even if the driver crashes. Spark plans batch n+1
    only when n is in its commit log: then n is acked.

    If full batches follow each other at once, n is acked while Spark logs n+1, and n+2 is taken while Spark works on
    n+1.
    """

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings: Final = settings
        self._columns: Final = Columns(settings, schema)
        self._named: Final = settings.consumer or uuid4().hex
        self._queue: Queue | None = None
        self._stream: Stream | None = None
        #: Batches that this process has taken and Spark has not planned yet, and when they were taken.
        self._fresh: dict[int, tuple[float, list[Chunk]]] = {}
        #: How many tasks each batch had when it was planned, until it is acked.
        self._planned: dict[int, int] = {}
        #: The work in the background, in order: an ack, and a take. Nothing else uses the stream meanwhile.
        self._acking: Future[None] | None = None
        self._taking: Future[None] | None = None
        #: The last batch whose ack is done or under way, and when Spark last asked for a batch.
        self._acked = 0
        self._asked = -_AT_ONCE
        #: When Spark last got a batch.
        self._given = time.monotonic()
        #: How many tasks a query with the trigger availableNow may still take.
        self._budget: int | None = None
        with settings.connect() as queue:
            settings.find(queue)

    def __getstate__(self) -> dict[str, object]:
        # Copies of it read on executors. They do not need the driver's connection.
        return {**self.__dict__, "_queue": None, "_stream": None, "_fresh": {}, "_acking": None, "_taking": None}

    # -- on the driver -------------------------------------------------------------------------------------------------

    def initialOffset(self) -> _Offset:
        """The offset of a new query: a named consumer may have worked before, and done tasks may come first."""
        done = self._open(self._named).first - 1 if self._settings.consumer else 0
        since = self._settings.starting_time
        return _offset(self._named, done, None if since is None else Replay.begin(self._open(self._named).tube, since))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Let a batch read as many tasks as the option `maxTasksPerTrigger` allows."""
        return ReadMaxRows(self._settings.max_tasks or _MOST)

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query when it has taken as many tasks as are ready now."""
        with self._settings.connect() as queue:
            self._budget = self._settings.find(queue).statistics().tasks["ready"]

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:
        """Take the next batch. Spark has committed all before it."""
        stream = self._open(start["consumer"])
        self._wait()
        done, now = start["seq"], time.monotonic()
        at_once, self._asked = now - self._asked < _AT_ONCE, now
        replay = Replay.of(start)
        batch = max(done + 1, stream.first)
        most = self._settings.max_tasks or _MOST
        if isinstance(limit, ReadMaxRows):
            most = min(most, limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            most = min(most, _MOST)
        if replay is not None and replay.read is not None:
            return _offset(stream.name, done, replay.page(stream.tube, most))
        if batch > stream.last:  # Else it was taken, in the background or before a crash, and never planned.
            self._ack(stream, done)
            self._take(stream, batch, most)
            if batch > stream.last:
                return start
        _, chunks = self._fresh.get(batch, (now, []))
        if at_once and not stream.lanes and sum(len(chunk.ids) for chunk in chunks) >= most:
            self._acked = max(self._acked, done)
            self._acking = _pool().submit(self._ack, stream, done)
            self._taking = _pool().submit(self._take, stream, batch + 1, most)
        else:
            self._ack(stream, done)
        self._given = time.monotonic()
        return _offset(stream.name, batch, replay)

    def _take(self, stream: Stream, batch: int, most: int) -> None:
        if self._budget is not None:
            most = min(most, self._budget)
        elif self._has_too_few(stream):
            return
        now = time.monotonic()
        chunks = stream.take(batch, most, self._settings.max_bytes) if most else []
        if not chunks:
            return
        if self._budget is not None:
            self._budget -= sum(len(chunk.ids) for chunk in chunks)
        self._fresh[batch] = now, chunks

    def _has_too_few(self, stream: Stream) -> bool:
        """Whether more tasks are to be waited for."""
        fewest = self._settings.min_tasks
        if fewest is None or time.monotonic() - self._given >= self._settings.max_delay:
            return False
        return stream.tube.statistics().tasks["ready"] < fewest

    def _ack(self, stream: Stream, batch: int) -> None:
        done = stream.ack(batch)
        planned = sum(self._planned.pop(number) for number in [*self._planned] if number <= batch)
        stream.left_out += max(planned - done, 0)
        self._acked = max(self._acked, batch)

    def _wait_for_ack(self) -> None:
        """Raises its error: then nothing is taken."""
        acking, self._acking = self._acking, None
        if acking is not None:
            acking.result()

    def _wait(self) -> None:
        """Wait for the work in the background. Raises its error."""
        try:
            self._wait_for_ack()
        finally:
            taking, self._taking = self._taking, None
            if taking is not None:
                taking.result()

    def reportLatestOffset(self) -> _Offset | None:
        """What is behind the last batch: the progress of a query has nothing else of a source in Python."""
        stream = self._stream
        return None if stream is None else {"consumer": stream.name, "seq": stream.last, **stream.progress()}

    def partitions(self, start: _Offset, end: _Offset) -> list[InputPartition]:
        """Cut batches into parts. After a crash, take tasks again that the lease has lost, if they are free."""
        stream = self._open(end["consumer"])
        # At most one batch is committed and not acked, whatever happens.
        self._wait_for_ack()
        done = start["seq"] if start["consumer"] == end["consumer"] else 0
        if done > self._acked:  # After a crash Spark continues with the batch that it had planned.
            self._ack(stream, done)
        ids: list[int] = []
        attempts: list[int] = []
        takes: list[int] = []
        for batch in range(max(done + 1, stream.first), end["seq"] + 1):
            since, chunks = self._fresh.pop(batch, (0.0, []))
            if not chunks or time.monotonic() - since > self._settings.lease / 2:
                self._wait()
                chunks = stream.retake(batch, counts=self._settings.count_retakes)
            self._planned[batch] = sum(len(chunk.ids) for chunk in chunks)
            for chunk in chunks:
                ids += chunk.ids
                attempts += chunk.attempts
                takes += chunk.takes
        parts: list[InputPartition] = [
            Taken(stream.claim, ids[cut], attempts[cut], takes[cut], stream.slots)
            for cut in self._cuts(len(ids), stream.slots)
        ]
        replay = Replay.of(end)
        if replay is not None:
            done_ids = replay.ids(stream.tube, Replay.of(start))
            parts += [Kept(replay, done_ids[cut]) for cut in self._cuts(len(done_ids), stream.slots)]
        return parts

    def _cuts(self, tasks: int, slots: int | None) -> list[slice]:
        """Where to cut so many tasks into parts."""
        most = slots or _PARTITIONS
        count = min(self._settings.num_partitions or min(most, -(-tasks // _WORTHWHILE)), tasks)
        edges = [tasks * number // count for number in range(count + 1)] if tasks else []
        return [slice(*cut) for cut in pairwise(edges)]

    def commit(self, end: _Offset) -> None:
        """Spark will not ask for these batches again."""
        stream = self._open(end["consumer"])
        if end["seq"] > self._acked:
            self._wait()
            self._ack(stream, end["seq"])

    def stop(self) -> None:
        """Leave the tasks to the next run of the query, as long as the lease lasts."""
        queue, self._queue, self._stream = self._queue, None, None
        with suppress(TubesError):
            self._wait()
        if queue is not None:
            queue.detach()

    def _open(self, consumer: str) -> Stream:
        if self._stream is None or self._stream.name != consumer:
            self.stop()
            self._queue = self._settings.connect(lease=self._settings.lease)
            self._stream = Stream.open(self._queue, self._settings.tube, consumer)
            self._acked = self._stream.first - 1
            self._planned.clear()
        return self._stream

    # -- on executors --------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """The tasks of a part, without those that others have taken since.

        Raises `StreamFenced` at the end if another query continues the stream: tasks that it took again may be missing.
        """
        freeze_loaded()
        if isinstance(partition, Kept):
            with self._settings.share() as queue:
                yield from self._columns.batches(partition.tables(self._settings.find(queue)))
            return
        assert isinstance(partition, Taken)
        claim = partition.claim
        ids, takes = partition.ids, partition.takes
        by = dict(zip(ids, partition.attempts, strict=True))
        take_of = dict(zip(ids, takes, strict=True))
        with self._settings.share() as queue:
            tube = self._settings.find(queue)
            reader = BulkReader(tube)
            before = {id for id, take in claim.skipped(tube) if take_of.get(id) == take}

            def still_ours(table: Table) -> Table:
                ours = table.having("state", "tr")
                known = zip(*map(ours.values, ("id", "attempts", "take")), strict=True)
                # If the lease has lost a task and nobody took it, its attempts are as they were before the take.
                return ours.where(
                    [
                        (tries == by[id] - 1 if take is None else take == take_of[id]) and id not in before
                        for id, tries, take in known
                    ]
                )

            def delivered() -> Iterator[Table]:
                found: list[int] = []
                for table in reader.of(ids):
                    part = slice(len(found), len(found) + table.size)
                    found += table.values("id")
                    # Nearly always nothing has happened to them, which whole columns show at once.
                    is_untouched = not before and found[part] == ids[part] and list(table.values("take")) == takes[part]
                    ours = table if is_untouched else still_ours(table)
                    if self._settings.bad_rows == "bury":
                        ours = self._bury_undecodable(tube, ours)
                    if ours.size < table.size:
                        # An ack is only for delivered tasks.
                        left_out = set(table.values("id")) - set(ours.values("id"))
                        claim.skip(tube, [(id, take_of[id]) for id in sorted(left_out - before)])
                    yield ours
                # What is no task can neither be delivered nor buried, and must not be acked.
                missing = sorted(set(ids).difference(found)) if len(found) < len(ids) else []
                for id in reader.stored(missing)[:1]:
                    raise Unreadable(what=f"tube {tube.name!r}: task {id}", why="it is none; see `tubes repair`")

            yield from self._columns.batches(delivered())
            claim.check(tube)
            slots = find_slots()
            if slots is not None and slots != partition.slots:
                claim.note_slots(tube, slots)

    def _bury_undecodable(self, tube: Tube, table: Table) -> Table:
        """Bury those of these tasks whose data cannot be decoded; returns the others."""
        bad = set(self._columns.undecodable(table))
        for id in bad:
            with suppress(TaskNotFound):
                tube.bury(id, f"bad row: codec {self._settings.codec!r} cannot decode the data")
        return table.where([id not in bad for id in table.values("id")]) if bad else table
