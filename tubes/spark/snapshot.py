"""Batch reads: the tasks that a tube has now. Nothing is taken."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tubes.spark.arrow import RecordBatch
from tubes.spark.columns import Columns
from tubes.spark.selection import Selection
from tubes.spark.server.bulk_read import BulkReader, Table
from tubes.spark.workers import freeze_loaded

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from tubes.spark.settings import Settings

#: Tasks of one partition, if `numPartitions` is not given.
_PARTITION: Final = 250_000
#: Tasks of the first record batch: a query with a limit may need no more.
_FIRST: Final = 100
#: Tasks that are looked at before data are read of those that are wanted.
_LOOKS: Final = 2_000
#: The program by which Spark gives filters to a reader.
_HANDS_OVER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


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
        self._wanted = Selection(settings.states)
        with settings.share() as queue:
            settings.find(queue)

    def partitions(self) -> list[InputPartition]:
        """The tasks, cut into parts of about the same size."""
        wanted = self._wanted
        if wanted.ids is not None:
            return self._named(sorted(wanted.ids))
        with self._settings.share() as queue:
            records = BulkReader(self._settings.find(queue))
            if "r" not in wanted.states:
                return self._named(records.ids(wanted.states))
            extent = records.extent()
            first = max(extent.lowest, wanted.first)
            span = max(min(extent.next, wanted.end) - first, 0)
            if extent.tasks * 4 < span:
                return self._named(records.ids())
        return [Between(first + low, first + high) for low, high in self._cuts(span, min(extent.tasks, span))]

    def _named(self, ids: list[int]) -> list[InputPartition]:
        ids = self._wanted.within(ids)
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
                tables: Iterable[Table] = map(self._wanted.of, records.heads_of(ids))
            else:
                tables = records.of(ids) if self._wanted.is_by_id else self._chosen(records, ids)
            yield from self._columns.batches(tables, first=_FIRST)

    def _chosen(self, records: BulkReader, ids: Sequence[int]) -> Iterator[Table]:
        """The wanted ones among these tasks. Where they are few, data are read of these alone."""
        are_few = True
        for start in range(0, len(ids), _LOOKS):
            some = ids[start : start + _LOOKS]
            looked = len(some)
            if are_few:
                some = [id for table in records.heads_of(some) for id in self._wanted.of(table).values("id")]
            found = 0
            for table in records.of(some):
                # Again: it may have changed since.
                chosen = self._wanted.of(table)
                found += chosen.size
                yield chosen
            are_few = found * 2 < looked


class FilteringReader(SnapshotReader):
    """A reader that is told what the query asks for. Spark refuses it unless its configuration allows that."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Read only what all these are true for; returns those that Spark is to look at itself."""
        for filter in filters:
            narrowed = self._wanted.narrowed(filter)
            if narrowed is None:
                yield filter
            else:
                self._wanted = narrowed


def snapshot_reader(settings: Settings, schema: StructType) -> SnapshotReader:
    """A reader that takes Spark's filters, if Spark is about to give some.

    A reader with a method `pushFilters` makes every read fail where `spark.sql.python.filterPushdown.enabled` is false,
    which is the default. Spark does not say whether it is; but it runs a program of its own to hand over filters.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    is_told = _HANDS_OVER in sys.modules or (main is not None and main.name == _HANDS_OVER)
    return (FilteringReader if is_told else SnapshotReader)(settings, schema)
