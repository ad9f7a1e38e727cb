"""Batch reads: read the current tasks of a tube without taking them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tubes.drivers.moves import State
from tubes.spark.arrow import RecordBatch
from tubes.spark.columns import Columns
from tubes.spark.server.bulk_read import BulkReader, Table
from tubes.spark.workers import ShortErrors, freeze_loaded

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tubes.spark.settings import Settings
    from tubes.sync import Tube

#: Default number of ids per partition.
_PARTITION: Final = 250_000
#: Rows in the first record batch, which is often enough for a query with a limit.
_FIRST: Final = 100
#: Tasks per page when a read filters by state or lane.
_PAGE: Final = 2_000


@dataclass
class IdRange:
    """A part of a tube: tasks with ids from `first` up to, not including, `end`. Some of the ids may not exist yet."""

    first: int
    end: int


@dataclass
class Parts(InputPartition):
    """A partition: parts of tubes, each with the name of its tube."""

    parts: list[tuple[str, Any]]

    @classmethod
    def combine(cls, parts: Sequence[tuple[str, Any]], sizes: Sequence[int], count: int) -> list[Self]:
        """Distribute parts over at most `count` partitions of about equal size."""
        if count >= len(parts):
            return [cls([part]) for part in parts]
        combined = [cls([]) for _ in range(count)]
        totals = [(0, number) for number in range(count)]
        for size, part in sorted(zip(sizes, parts, strict=True), key=lambda sized: -sized[0]):
            total, number = totals[0]
            combined[number].parts.append(part)
            heapq.heapreplace(totals, (total + size, number))
        return combined


class SnapshotReader(DataSourceReader):
    """Reads all tasks of one or several tubes, each once, with its state at the time of the read."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings: Final = settings
        self._schema: Final = schema
        Columns(settings, schema)
        with settings.share() as queue:
            settings.names(queue)

    def partitions(self) -> list[InputPartition]:
        """Split the selected ids of each tube into ranges, and combine the ranges of small tubes."""
        parts: list[tuple[str, IdRange]] = []
        sizes: list[int] = []
        with self._settings.share() as queue:
            for name in self._settings.names(queue):
                snapshot = _Snapshot(self._settings.of(name), self._schema)
                for part, size in snapshot.ranges(self._settings.of(name).find(queue)):
                    parts.append((name, part))
                    sizes.append(size)
        count = self._settings.num_partitions or -(-sum(sizes) // _PARTITION) or 1
        # For an empty list Spark would read a partition of its own.
        return [*Parts.combine(parts, sizes, count)] or [Parts([])]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the tasks of a partition. Runs on executors."""
        freeze_loaded()
        assert isinstance(partition, Parts)
        with ShortErrors(), self._settings.share() as queue:
            for name, part in partition.parts:
                settings = self._settings.of(name)
                yield from _Snapshot(settings, self._schema).read(settings.find(queue), part)


class _Snapshot:
    """Reads the tasks of one tube.

    Spark plans the partitions of a frame once, and reads them whenever the frame is used. So partitions are ranges of
    ids, of about equal size when they are planned, and the last one is open-ended. Each read looks up the tasks again.

    The server sends data only for tasks selected by state and lane, and only if the frame has a column `data`. Done
    tasks are stored separately, so they are read after the others.
    """

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings: Final = settings
        self._columns: Final = Columns(settings, schema)

    def ranges(self, tube: Tube) -> list[tuple[IdRange, int]]:
        """Split the selected ids into ranges, each with the number of its ids."""
        settings = self._settings
        ids = self._ids(tube, settings.ids.start, settings.ids.stop)
        count = min(settings.num_partitions or -(-len(ids) // _PARTITION), len(ids)) or 1
        cuts = [ids[len(ids) * number // count] for number in range(1, count)]
        edges = pairwise([settings.ids.start, *cuts, settings.ids.stop])
        return [(IdRange(first, end), len(ids) // count) for first, end in edges]

    def _ids(self, tube: Tube, first: int, end: int) -> Sequence[int]:
        """Return the ids from `first` up to, not including, `end` that the selected tasks may have now.

        If few of many ids exist, ask the server for the list of ids, at some microseconds each.
        """
        states, records = self._settings.states - {"-"}, BulkReader(tube)
        if not states:
            return self._list_kept(records, first, end)
        tasks, lowest, next_id = records.extent()
        candidates = range(max(first, lowest), min(end, next_id))
        if "r" not in states:
            counts = tube.statistics().tasks
            tasks = sum(counts[State(state)] for state in states)
        if len(candidates) <= tasks * 4:
            return candidates
        return [id for id in records.ids(states) if id in candidates]

    def read(self, tube: Tube, part: IdRange) -> Iterator[RecordBatch]:
        """Yield the tasks of a range."""
        yield from self._columns.batches(self._tables(tube, part), first=_FIRST)

    def _tables(self, tube: Tube, part: IdRange) -> Iterator[Table]:
        """Yield open tasks, then done tasks, except tasks that were already read as open."""
        states, records = self._settings.states, BulkReader(tube)
        seen: set[int] = set()
        if states - {"-"}:
            for table in self._read_open(records, self._ids(tube, part.first, part.end)):
                if "-" in states:
                    seen.update(table.values("id"))
                yield table
        if "-" in states:
            ids = [id for id in self._list_kept(records, part.first, part.end) if id not in seen]
            since = (self._settings.starting_time or 0) - 1
            yield from map(self._select, records.done(ids, data="data" in self._columns.names, since=since))

    def _list_kept(self, records: BulkReader, first: int, end: int) -> list[int]:
        return [id for id in records.list_kept() if first <= id < end]

    def _read_open(self, records: BulkReader, ids: Sequence[int]) -> Iterable[Table]:
        """Read the selected tasks among these ids."""
        if "data" not in self._columns.names:
            return map(self._select, records.read_heads(ids))
        return records.of(ids) if self._settings.is_by_id else self._read_selected(records, ids)

    def _read_selected(self, records: BulkReader, ids: Sequence[int]) -> Iterator[Table]:
        """Read the selected tasks among these ids. If few are selected, filter first, and then read only their data."""
        are_few = True
        for start in range(0, len(ids), _PAGE):
            page = ids[start : start + _PAGE]
            size = len(page)
            if are_few:
                page = [id for table in records.read_heads(page) for id in self._select(table).values("id")]
            found = 0
            for table in records.of(page):
                # Filter again: a task may have changed since.
                selected = self._select(table)
                found += selected.size
                yield selected
            are_few = found * 2 < size

    def _select(self, table: Table) -> Table:
        """Return the tasks in the requested states and lane."""
        found, lane = table.select("state", self._settings.states), self._settings.lane
        return found if lane is None else found.select("utube", {lane})
