"""Batch writes: put rows as tasks, either immediately or in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from tubes.spark.arrow import RecordBatch
from tubes.spark.payload import Payload, Writers
from tubes.spark.server.bulk_write import StagedChunk
from tubes.spark.workers import ShortErrors, freeze_loaded

if TYPE_CHECKING:
    from tubes.spark.settings import Settings


@dataclass
class Uploaded(WriterCommitMessage):
    """The chunks that a Spark task has staged for a write."""

    write: str
    query: str
    chunks: list[StagedChunk]


class Sink:
    """The common base of batch and stream writers."""

    def __init__(self, settings: Settings, payload: Payload) -> None:
        self._settings: Final = settings
        self._payload: Final = payload

    def _upload(self, batches: Iterator[RecordBatch], write: str) -> list[StagedChunk]:
        """Stage rows for a write, or put them if `write` is empty. Runs on executors."""
        freeze_loaded()
        chunks: list[StagedChunk] = []
        with ShortErrors(), self._settings.share() as queue:
            writers = Writers(self._settings, queue)
            buries = self._settings.bad_rows == "bury"
            runs = (self._payload.runs_or_buried if buries else self._payload.runs)(writers, batches)
            for tube, part in groupby(runs, key=lambda run: run[0].tube):
                writer = writers.by_name(tube)
                for chunk in writer.chunks(part, self._settings.batch_size):
                    if write:
                        chunks.append(writer.stage(write, chunk))
                    else:
                        writer.put(chunk, self._settings.timeout)
        return chunks

    def _discard(self, writes: set[str], *, aborted: bool) -> None:
        with self._settings.share() as queue:
            writer = self._settings.writer(queue)
            for write in writes:
                writer.clean_all(write, self._settings.existing(queue), aborted=aborted)


class BatchWriter(Sink, DataSourceArrowWriter):
    """Writes a frame in one transaction, exactly once, unless `delivery` is at-least-once."""

    def __init__(self, settings: Settings, payload: Payload) -> None:
        super().__init__(settings, payload)
        # Writes to other tubes have names of their own.
        self._name = uuid4().hex
        #: True if an earlier job has uploaded all rows of this `writeId`.
        self._is_known = False
        if settings.write_id:
            with settings.share() as queue:
                names = settings.tubes or (settings.tube,) * settings.is_several(queue)
                scope = "".join(f"{name}," for name in sorted(names))
                self._name = f"batch:{scope}{settings.write_id}"
                self._is_known = settings.writer(queue).is_sealed(self._name, 0)
        # The random part keeps the chunks of a failed run out of the next run.
        self._write: Final = "" if settings.delivery == "at-least-once" else f"{self._name}-{uuid4().hex}"

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Stage rows, or put them with `delivery` at-least-once. Runs on executors."""
        if self._is_known:
            for _ in iterator:  # Spark does not use a process again that has left rows unread.
                pass
            return Uploaded(self._write, "", [])
        return Uploaded(self._write, "", self._upload(iterator, self._write))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Put all staged rows. Called when all Spark tasks have succeeded."""
        if not self._write:
            return
        chunks = [chunk for message in messages if isinstance(message, Uploaded) for chunk in message.chunks]
        with self._settings.share() as queue:
            writer = self._settings.writer(queue)
            if self._settings.write_id:
                writer.publish(self._name, 0, chunks, self._settings.timeout)
            else:
                writer.publish_once(self._name, chunks, self._settings.timeout)
            writer.clean_all(self._write, (chunk.tube for chunk in chunks), put=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard all staged rows. Called when the job has failed."""
        if self._write:
            self._discard({self._write}, aborted=True)
