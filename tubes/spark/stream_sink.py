"""The stream sink: puts the rows of micro-batches as tasks. It needs Spark 4.1."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from tubes.spark.arrow import RecordBatch
from tubes.spark.sink import Sink, Uploaded
from tubes.spark.workers import INTERNAL


class StreamWriter(Sink, DataSourceStreamArrowWriter):
    """Writes micro-batches. With `delivery` exactly-once each is put once, even if Spark repeats it."""

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Put rows, or stage them with `delivery` exactly-once. Runs on executors."""
        if self._settings.delivery != "exactly-once":
            return Uploaded("", "", self._upload(iterator, ""))
        context = TaskContext.get()
        query, batch = map(context.getLocalProperty, INTERNAL) if context is not None else (None, None)
        if query is None or batch is None:
            raise RuntimeError("delivery exactly-once needs the ids of query and batch, which Spark did not pass")
        write = f"query:{query}-{batch}"
        return Uploaded(write, f"query:{query}", self._upload(iterator, write))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Put all staged rows, unless the batch was put before. Called when all Spark tasks have succeeded."""
        uploads = [message for message in messages if isinstance(message, Uploaded) and message.write]
        if not uploads:
            return
        chunks = [chunk for message in uploads for chunk in message.chunks]
        with self._settings.share() as queue:
            writer = self._settings.writer(queue)
            writer.publish(uploads[0].query, batchId, chunks, self._settings.timeout)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Discard the staged rows. Called when the micro-batch has failed.

        Spark repeats a micro-batch under the same number, so chunks staged later are accepted.
        """
        writes = {message.write for message in messages if isinstance(message, Uploaded) and message.write}
        self._discard(writes, aborted=False)
