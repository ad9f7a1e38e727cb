"""Batch reads: the tasks that a tube has now. Nothing is taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tubes.drivers.moves import State
from tubes.spark.arrow import RecordBatch
from tubes.spark.columns import Columns
from tubes.spark.server.bulk_read import BulkReader, Table
from tubes.spark.workers import freeze_loaded

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tubes.spark.settings import Settings
    from tubes.sync import Tube

#: Ids of one partition, if `numPartitions` is not given.
_PARTITION: Final = 250_000
#: Tasks of the first record batch: a query with a limit may need no more.
_FIRST: Final = 100
#: Tasks that are looked at before data are read of those that are wanted.
_LOOKS: Final = 2_000


@dataclass
class Between(InputPartition):
    """Tasks with ids from `first` to before `end`, which may not have been given yet."""

    first: int
    end: int


class SnapshotReader(DataSourceReader):
    """Reads all tasks of a tube, each once, with its state at that moment.

    Spark plans the partitions of a frame once, and reads them whenever the frame is used. So they are ranges of ids, of
    about the same size when they are planned, and the last one has no end. What is there is found out by each read.

    Data stay on the server that are not asked for: those of tasks that are not wanted, and all if there is no column
    `data` to fill. Done tasks are kept apart from the others, and read after them.
    """

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings: Final = settings
        self._columns: Final = Columns(settings, schema)
        with settings.share() as queue:
            settings.find(queue)

    def partitions(self) -> list[InputPartition]:
        """The ids that are asked for, cut into ranges."""
        settings = self._settings
        with settings.share() as queue:
            ids = self._ids(settings.find(queue), settings.ids.start, settings.ids.stop)
        count = min(settings.num_partitions or -(-len(ids) // _PARTITION), len(ids)) or 1
        cuts = [ids[len(ids) * number // count] for number in range(1, count)]
        return [Between(first, end) for first, end in pairwise([settings.ids.start, *cuts, settings.ids.stop])]

    def _ids(self, tube: Tube, first: int, end: int) -> Sequence[int]:
        """The ids from `first` to before `end` where the wanted tasks are now.

        Where these are few among many ids, the server is asked for all of theirs, some microseconds each.
        """
        states, records = self._settings.states - {"-"}, BulkReader(tube)
        if not states:
            return self._kept(records, first, end)
        tasks, lowest, following = records.extent()
        around = range(max(first, lowest), min(end, following))
        if "r" not in states:
            counts = tube.statistics().tasks
            tasks = sum(counts[State(state)] for state in states)
        if len(around) <= tasks * 4:
            return around
        return [id for id in records.ids(states) if id in around]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """The tasks of a part, on an executor."""
        freeze_loaded()
        assert isinstance(partition, Between)
        with self._settings.share() as queue:
            tables = self._tables(self._settings.find(queue), partition)
            yield from self._columns.batches(tables, first=_FIRST)

    def _tables(self, tube: Tube, part: Between) -> Iterator[Table]:
        """Tasks that are not done, then done ones; one that is done meanwhile comes once."""
        states, records = self._settings.states, BulkReader(tube)
        seen: set[int] = set()
        if states - {"-"}:
            for table in self._living(records, self._ids(tube, part.first, part.end)):
                if "-" in states:
                    seen.update(table.values("id"))
                yield table
        if "-" in states:
            ids = [id for id in self._kept(records, part.first, part.end) if id not in seen]
            since = (self._settings.starting_time or 0) - 1
            yield from map(self._wanted, records.done(ids, data="data" in self._columns.names, since=since))

    def _kept(self, records: BulkReader, first: int, end: int) -> list[int]:
        return [id for id in records.kept() if first <= id < end]

    def _living(self, records: BulkReader, ids: Sequence[int]) -> Iterable[Table]:
        """The wanted ones among these tasks."""
        if "data" not in self._columns.names:
            return map(self._wanted, records.heads_of(ids))
        return records.of(ids) if self._settings.is_by_id else self._chosen(records, ids)

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
