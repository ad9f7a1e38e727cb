"""Batch reads: the tasks that a tube has now. Nothing is taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tubes.spark.arrow import RecordBatch
from tubes.spark.columns import Columns
from tubes.spark.server.bulk_read import BulkReader, Table
from tubes.spark.workers import freeze_loaded

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tubes.spark.settings import Settings

#: Tasks of one partition, if `numPartitions` is not given.
_PARTITION: Final = 250_000
#: Tasks of the first record batch: a query with a limit may need no more.
_FIRST: Final = 100
#: Tasks that are looked at before data are read of those that are wanted.
_LOOKS: Final = 2_000


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
    the server for all ids first, some microseconds each; so it does where only tasks are asked for that are not ready.

    Data stay on the server that are not asked for: those of tasks that are not wanted, and all if there is no column
    `data` to fill.
    """

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings: Final = settings
        self._columns: Final = Columns(settings, schema)
        with settings.share() as queue:
            settings.find(queue)

    def partitions(self) -> list[InputPartition]:
        """The tasks, cut into parts of about the same size."""
        states, wanted = self._settings.states, self._settings.ids
        with self._settings.share() as queue:
            records = BulkReader(self._settings.find(queue))
            if "r" not in states:
                return self._named(records.ids(states))
            extent = records.extent()
            around = range(max(extent.lowest, wanted.start), min(extent.next, wanted.stop))
            if extent.tasks * 4 < len(around):
                return self._named(records.ids())
        cuts = self._cuts(len(around), min(extent.tasks, len(around)))
        return [Between(around.start + low, around.start + high) for low, high in cuts]

    def _named(self, ids: list[int]) -> list[InputPartition]:
        ids = [id for id in ids if id in self._settings.ids]
        return [Named(ids[first:end]) for first, end in self._cuts(len(ids), len(ids))]

    def _cuts(self, size: int, tasks: int) -> Iterable[tuple[int, int]]:
        count = min(self._settings.num_partitions or -(-tasks // _PARTITION), tasks) or 1
        return pairwise(size * number // count for number in range(count + 1))

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """The tasks of a part, on an executor."""
        freeze_loaded()
        if isinstance(partition, Between):
            ids: Sequence[int] = range(partition.first, partition.end)
        else:
            assert isinstance(partition, Named)
            ids = partition.ids
        with self._settings.share() as queue:
            records = BulkReader(self._settings.find(queue))
            if "data" not in self._columns.names:
                tables: Iterable[Table] = map(self._wanted, records.heads_of(ids))
            elif self._settings.is_by_id:
                tables = records.of(ids)
            else:
                tables = self._chosen(records, ids)
            yield from self._columns.batches(tables, first=_FIRST)

    def _chosen(self, records: BulkReader, ids: Sequence[int]) -> Iterator[Table]:
        """The wanted ones among these tasks. Where they are few, data are read of these alone."""
        are_few = True
        for start in range(0, len(ids), _LOOKS):
            some = ids[start : start + _LOOKS]
            looked = len(some)
            if are_few:
                some = [id for table in records.heads_of(some) for id in self._wanted(table).values("id")]
            found = 0
            for table in records.of(some):
                # Again: it may have changed since.
                chosen = self._wanted(table)
                found += chosen.size
                yield chosen
            are_few = found * 2 < looked

    def _wanted(self, table: Table) -> Table:
        """Those of these tasks that are in the states and in the lane that are asked for."""
        found, lane = table.having("state", self._settings.states), self._settings.lane
        return found if lane is None else found.having("utube", {lane})
