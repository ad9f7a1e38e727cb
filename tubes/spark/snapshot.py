"""Batch reads: the tasks that a tube has now. Nothing is taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tubes.spark.arrow import RecordBatch
from tubes.spark.columns import Columns
from tubes.spark.server.bulk_read import BulkReader
from tubes.spark.workers import freeze_loaded

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tubes.spark.settings import Settings

#: Tasks of one partition, if `numPartitions` is not given.
_PARTITION: Final = 250_000


@dataclass
class Between(InputPartition):
    """Tasks with ids from `first` to before `end`."""

    first: int
    end: int


@dataclass
class Named(InputPartition):
    """Tasks with these ids."""

    ids: list[int]


class SnapshotReader(DataSourceReader):
    """Reads all tasks of a tube, each once, with its state at that moment.

    If at least every fourth id is in use, the ids are cut into ranges, by one call of the driver. Else the driver asks
    the server for all ids first, some microseconds each.
    """

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings: Final = settings
        self._columns: Final = Columns(settings, schema)
        with settings.connect() as queue:
            settings.find(queue)

    def partitions(self) -> list[InputPartition]:
        """The tasks, cut into parts of about the same size."""
        with self._settings.connect() as queue:
            records = BulkReader(self._settings.find(queue))
            extent = records.extent()
            count = self._settings.num_partitions or -(-extent.tasks // _PARTITION)
            count = min(count, extent.tasks) or 1
            span = extent.next - extent.lowest
            if extent.tasks * 4 >= span:
                edges = [extent.lowest + span * number // count for number in range(count + 1)]
                return [Between(first, end) for first, end in pairwise(edges)]
            ids = records.ids()
        edges = [len(ids) * number // count for number in range(count + 1)]
        return [Named(ids[first:end]) for first, end in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """The tasks of a part, on an executor."""
        freeze_loaded()
        states = self._settings.states
        with self._settings.connect() as queue:
            records = BulkReader(self._settings.find(queue))
            if isinstance(partition, Between):
                tables = records.between(partition.first, partition.end)
            else:
                assert isinstance(partition, Named)
                tables = records.of(partition.ids)
            yield from self._columns.batches(table.having("state", states) for table in tables)
