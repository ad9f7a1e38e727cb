"""The sink of streams: the rows of micro-batches become tasks. It needs Spark 4.1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from tubes.spark.arrow import RecordBatch
from tubes.spark.server.bulk_write import Writer
from tubes.spark.sink import Brought, Sink

#: Properties of a Spark task that name its micro-batch.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


class StreamWriter(Sink, DataSourceStreamArrowWriter):
    """Writes micro-batches: with `delivery` exactly-once each batch once, even if Spark repeats it."""

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """On an executor: put rows, or upload them."""
        if self._settings.delivery != "exactly-once":
            return Brought("", "", self._bring(iterator, ""))
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY) if context is not None else None
        batch = context.getLocalProperty(_BATCH) if context is not None else None
        if query is None or batch is None:
            raise RuntimeError("Spark does not name the query and batch, which delivery exactly-once needs")
        write = f"query:{query}-{batch}"
        return Brought(write, f"query:{query}", self._bring(iterator, write))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All Spark tasks are done: put what they have uploaded, unless the batch was put before."""
        brought = [message for message in messages if isinstance(message, Brought) and message.write]
        if not brought:
            return
        chunks = [chunk for message in brought for chunk in message.chunks]
        with self._settings.share() as queue:
            writer = Writer(self._settings.find(queue))
            writer.publish(brought[0].query, batchId, chunks, self._settings.timeout)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The micro-batch has failed, and nothing of it is put.

        Spark repeats it under its number, so later chunks are not refused.
        """
        writes = {message.write for message in messages if isinstance(message, Brought) and message.write}
        with self._settings.share() as queue:
            writer = Writer(self._settings.find(queue))
            for write in writes:
                writer.clean(write)
