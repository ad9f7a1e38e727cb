"""The source of streams: tasks taken batch by batch, and acked when Spark has committed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from tubes.redis.records import Part, Records
from tubes.redis.streams import Chunk, Stream
from tubes.spark.arrow import RecordBatch
from tubes.spark.columns import Columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tubes.spark.settings import Settings
    from tubes.sync import Queue

#: Partitions of a batch, unless `numPartitions` says how many; and tasks for which one more is worth its overhead.
_PARTITIONS: Final = 4
_WORTHWHILE: Final = 2_500
#: Tasks of a batch where nobody says how many.
_MOST: Final = 50_000


@dataclass
class Taken(InputPartition):
    """Tasks that were taken for a consumer, and by which attempt each."""

    consumer: str
    ids: list[int]
    attempts: list[int]

    def those_of(self, part: Part) -> Part:
        """Those that are still as they were taken."""
        each = set(self.attempts)
        ours = part.having("state", "tr").having("attempts", each)
        if len(each) == 1:
            return ours
        by = dict(zip(self.ids, self.attempts, strict=True))
        facts = zip(ours.values("id"), ours.values("attempts"), strict=True)
        return ours.where([attempts == by[id] for id, attempts in facts])


class LeaseReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes tasks for a query.

    An offset names the consumer and the last of its batches: `{"consumer": …, "seq": 7}`. A batch that was taken is
    written down on the server and stays the consumer's, through a crash of the driver too, as long as its lease lasts.
    Spark plans batch n+1 only when n is in its commit log: then n is acked.
    """

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings: Final = settings
        self._columns: Final = Columns(settings, schema)
        self._named: Final = settings.consumer or uuid4().hex
        self._queue: Queue | None = None
        self._stream: Stream | None = None
        #: What this process has taken and Spark has not planned yet, by batch, and when.
        self._fresh: dict[int, tuple[float, list[Chunk]]] = {}
        #: How many tasks a query that takes what is available now may still take.
        self._budget: int | None = None
        with settings.connect() as queue:
            settings.find(queue)

    def __getstate__(self) -> dict[str, Any]:
        # Copies of it read, on executors: those need no connection of the driver's.
        return {**self.__dict__, "_queue": None, "_stream": None, "_fresh": {}}

    # -- on the driver -------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: a consumer that is named may have been at work before."""
        done = self._open(self._named).first - 1 if self._settings.consumer else 0
        return {"consumer": self._named, "seq": done}

    def getDefaultReadLimit(self) -> ReadLimit:
        """As many tasks as the option `maxTasksPerTrigger` allows."""
        return ReadMaxRows(self._settings.max_tasks or _MOST)

    def prepareForTriggerAvailableNow(self) -> None:
        """The query is to end when it has taken as many tasks as are ready now."""
        with self._settings.connect() as queue:
            self._budget = self._settings.find(queue).statistics().tasks["ready"]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Take the next batch. All before it are done: Spark asks when it has committed them."""
        stream = self._open(start["consumer"])
        stream.ack(start["seq"])
        batch = max(start["seq"] + 1, stream.first)
        most = self._settings.max_tasks or _MOST
        if isinstance(limit, ReadMaxRows):
            most = min(most, limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            most = min(most, _MOST)
        waits = batch <= stream.last  # It was taken, and never planned.
        if waits:
            return {"consumer": stream.name, "seq": batch}
        if self._budget is not None:
            most = min(most, self._budget)
        now = time.monotonic()
        chunks = stream.take(batch, most) if most else []
        if not chunks:
            return start
        if self._budget is not None:
            self._budget -= sum(len(chunk.ids) for chunk in chunks)
        self._fresh[batch] = now, chunks
        return {"consumer": stream.name, "seq": batch}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the progress of the query: how many tasks are ready behind its last batch."""
        if self._stream is None:
            return None
        tasks = self._stream.tube.statistics().tasks
        behind = {"ready": tasks["ready"], "taken": tasks["taken"]}
        return {"consumer": self._stream.name, "seq": self._stream.last, **behind}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Cut batches into parts. After a crash what the lease has lost is taken again, if nobody else took it."""
        stream = self._open(end["consumer"])
        done = start["seq"] if start["consumer"] == end["consumer"] else 0
        ids: list[int] = []
        attempts: list[int] = []
        for batch in range(max(done + 1, stream.first), end["seq"] + 1):
            since, chunks = self._fresh.pop(batch, (0.0, []))
            if not chunks or time.monotonic() - since > self._settings.lease / 2:
                chunks = stream.retake(batch)
            for chunk in chunks:
                ids += chunk.ids
                attempts += chunk.attempts
        count = min(self._settings.num_partitions or min(_PARTITIONS, -(-len(ids) // _WORTHWHILE)), len(ids))
        edges = [len(ids) * number // count for number in range(count + 1)] if ids else []
        return [Taken(stream.name, ids[first:last], attempts[first:last]) for first, last in pairwise(edges)]

    def commit(self, end: dict[str, Any]) -> None:
        """Spark will not ask for these batches again."""
        self._open(end["consumer"]).ack(end["seq"])

    def stop(self) -> None:
        """Leave the tasks to whoever goes on with the query: its lease says for how long."""
        queue, self._queue, self._stream = self._queue, None, None
        if queue is not None:
            queue.detach()

    def _open(self, consumer: str) -> Stream:
        if self._stream is None or self._stream.name != consumer:
            self.stop()
            self._queue = self._settings.connect(lease=self._settings.lease)
            self._stream = Stream.open(self._queue, self._settings.tube, consumer)
        return self._stream

    # -- on executors --------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """The tasks of a part, but for those that somebody else has taken since."""
        assert isinstance(partition, Taken)
        with self._settings.connect() as queue:
            tube = self._settings.find(queue)

            def delivered() -> Iterator[Part]:
                for part in Records(tube).of(partition.ids):
                    ours = partition.those_of(part)
                    if ours.size < part.size:
                        # An ack counts for what was delivered and for nothing else.
                        left_out = set(part.values("id")) - set(ours.values("id"))
                        Stream.skip(tube, partition.consumer, sorted(left_out))
                    yield ours

            yield from self._columns.batches(delivered())
