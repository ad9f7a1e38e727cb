"""Batch writes: rows become tasks, at once or all or none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from tubes.spark.arrow import RecordBatch
from tubes.spark.server.bulk_write import Staged, Writer
from tubes.spark.workers import freeze_loaded

if TYPE_CHECKING:
    from tubes.spark.payload import Payload
    from tubes.spark.settings import Settings


@dataclass
class Brought(WriterCommitMessage):
    """The chunks that a Spark task has uploaded for a write, and not put yet."""

    write: str
    query: str
    chunks: list[Staged]


class Sink:
    """The common part of batch and stream writes."""

    def __init__(self, settings: Settings, payload: Payload) -> None:
        self._settings: Final = settings
        self._payload: Final = payload

    def _bring(self, batches: Iterator[RecordBatch], write: str) -> list[Staged]:
        """On an executor: upload rows for a write; without one, put them."""
        freeze_loaded()
        staged: list[Staged] = []
        with self._settings.share() as queue:
            writer = Writer(self._settings.find(queue))
            buries = self._settings.bad_rows == "bury"
            runs = (self._payload.runs_or_buried if buries else self._payload.runs)(writer, batches)
            for chunk in writer.chunks(runs, self._settings.batch_size):
                if write:
                    staged.append(writer.stage(write, chunk))
                else:
                    writer.put(chunk, self._settings.timeout)
        return staged

    def _give_up(self, writes: set[str]) -> None:
        """Remove the chunks of these writes: nothing of them is put."""
        with self._settings.share() as queue:
            writer = Writer(self._settings.find(queue))
            for write in writes:
                writer.clean(write, aborted=True)


class BatchWriter(Sink, DataSourceArrowWriter):
    """Writes a frame: all of it or nothing, once, unless `delivery` is at-least-once."""

    def __init__(self, settings: Settings, payload: Payload) -> None:
        super().__init__(settings, payload)
        named = f"batch:{settings.write_id}" if settings.write_id else uuid4().hex
        self._name: Final = named
        # The next run must not get chunks of a failed one.
        self._write: Final = "" if settings.delivery == "at-least-once" else f"{named}-{uuid4().hex}"

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """On an executor: upload rows, or put them."""
        return Brought(self._write, "", self._bring(iterator, self._write))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All Spark tasks are done: put what they have uploaded."""
        if not self._write:
            return
        chunks = [chunk for message in messages if isinstance(message, Brought) for chunk in message.chunks]
        with self._settings.share() as queue:
            writer = Writer(self._settings.find(queue))
            if self._settings.write_id:
                writer.publish(self._name, 0, chunks, self._settings.timeout)
            else:
                writer.publish_once(self._name, chunks, self._settings.timeout)
            writer.clean(self._write, put=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The job has failed: nothing is put."""
        if self._write:
            self._give_up({self._write})
