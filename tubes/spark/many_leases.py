"""The stream source of several tubes: one `LeaseReader` per tube, whose batches form one batch of the query.

An offset is `{"consumer": name, "seq": {tube: n}}`: the consumer, and the last batch of each tube. Tubes are listed for
each batch, so the query also takes from tubes that were created since. Of a batch's tasks each tube gets an equal
share; what a tube cannot use goes to the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from tubes.errors import Facts, TubeNotFound
from tubes.spark.arrow import RecordBatch
from tubes.spark.leases import LeasePartition, LeaseReader, Link, bound, count_partitions, default_limit
from tubes.spark.snapshot import Parts

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tubes.spark.settings import Settings

#: Field of a progress report -> the function that combines the values of all tubes.
_COMBINE: Final[dict[str, Callable[[list[Any]], Any]]] = {
    **dict.fromkeys(("ready", "taken", "delayed", "buried", "leftOut"), sum), "oldest": max, "lease": min,
}  # fmt: skip
_log = logging.getLogger("tubes")


def share_out(total: int, wanted: Mapping[str, int], turn: int) -> dict[str, int]:
    """Divide tasks among tubes: equal shares, but to none more than it wants, and no task is left while one wants it.

    If there are fewer tasks than tubes, `turn` is the first tube that gets one.

    >>> share_out(10, {"a": 2, "b": 100, "c": 100}, 0)
    {'a': 2, 'b': 4, 'c': 4}
    """
    names = [name for name, count in wanted.items() if count]
    start = turn % (len(names) or 1)
    names = sorted([*names[start:], *names[:start]][:total], key=wanted.__getitem__)
    shares = dict.fromkeys(wanted, 0)
    for number, name in enumerate(names):
        shares[name] = min(wanted[name], total // (len(names) - number))
        total -= shares[name]
    return shares


class ManyLeases(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes tasks of several tubes for a streaming query."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings: Final = settings
        self._schema: Final = schema
        self._consumer: Final = settings.consumer or uuid4().hex
        self._link = Link(settings)
        self._readers: dict[str, LeaseReader] = {}
        #: Tube -> the tasks that a query with the trigger availableNow may take; None: another trigger.
        self._budgets: dict[str, int] | None = None
        self._last_batch = time.monotonic()
        self._turn = 0

    def __getstate__(self) -> dict[str, object]:
        # Executors get copies, which do not need the driver's connection.
        return {**self.__dict__, "_link": None, "_readers": {}}

    def initialOffset(self) -> Facts:
        """Return the offset of a new query. A named consumer continues where it stopped."""
        return {"consumer": self._consumer, "seq": {}}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Limit a batch to `maxTasksPerTrigger` tasks of all tubes together."""
        return default_limit(self._settings)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end after as many tasks as are ready now, in tubes that exist now."""
        self._budgets = self._count_ready()

    def latestOffset(self, start: Facts, limit: ReadLimit) -> Facts:
        """Take the next batch of each tube. Spark has committed all batches up to `start`."""
        total = bound(self._settings, limit)
        if self._budgets is None:
            wanted = self._count_ready()
            if self._should_wait(sum(wanted.values())):
                wanted = dict.fromkeys(wanted, 0)
        else:
            wanted = {name: self._reader(name).budget or 0 for name in self._budgets}
        shares = share_out(total, wanted, self._turn)
        self._turn += total
        tubes = sum(map(bool, shares.values()))
        seq: dict[str, int] = {}
        for name, share in shares.items():
            reader = self._reader(name)
            if self._settings.max_bytes is not None:
                reader.max_bytes = max(self._settings.max_bytes // max(tubes, 1), 1)
            with self._unless_dropped(name):
                seq[name] = reader.latestOffset(_offset_of(start, name), ReadMaxRows(share))["seq"]
        if all(number <= start["seq"].get(name, 0) for name, number in seq.items()):
            return start
        self._last_batch = time.monotonic()
        return {"consumer": start["consumer"], "seq": {name: number for name, number in seq.items() if number}}

    def _count_ready(self) -> dict[str, int]:
        ready: dict[str, int] = {}
        with self._settings.share() as queue:
            for name in self._settings.names(queue):
                with self._unless_dropped(name):
                    ready[name] = queue.statistics(name).tasks["ready"]
        return ready

    def _should_wait(self, ready: int) -> bool:
        minimum, delay = self._settings.min_tasks, self._settings.max_delay
        return minimum is not None and ready < minimum and time.monotonic() - self._last_batch < delay

    def partitions(self, start: Facts, end: Facts) -> list[InputPartition]:
        """Split the batches of all tubes into partitions, and combine the parts of small batches."""
        parts: list[tuple[str, LeasePartition]] = []
        for name in end["seq"]:
            offsets = _offset_of(start, name), _offset_of(end, name)
            with self._unless_dropped(name):
                for part in self._reader(name).partitions(*offsets):
                    assert isinstance(part, LeasePartition)
                    parts.append((name, part))
        sizes = [len(part.ids) for _, part in parts]
        slots = max((part.slots or 0 for _, part in parts), default=0)
        return [*Parts.combine(parts, sizes, count_partitions(self._settings, sum(sizes), slots))]

    def commit(self, end: Facts) -> None:
        """Ack all batches up to `end`, which Spark will not ask for again."""
        for name in end["seq"]:
            with self._unless_dropped(name):
                self._reader(name).commit(_offset_of(end, name))

    def reportLatestOffset(self) -> Facts | None:
        """Return the last batches and the backlog, of all tubes together and of each."""
        tubes: dict[str, Facts] = {}
        for name, reader in [*self._readers.items()]:
            with self._unless_dropped(name):
                found = reader.reportLatestOffset()
                if found is not None:
                    tubes[name] = {key: found[key] for key in _COMBINE}
        if not tubes:
            return None
        known = {key: [found[key] for found in tubes.values() if found[key] is not None] for key in _COMBINE}
        totals = {key: combine(known[key]) if known[key] else None for key, combine in _COMBINE.items()}
        return {"consumer": self._link.consumer, **totals, "tubes": tubes}

    def stop(self) -> None:
        """Leave the tasks to the next run of the query, as long as the lease lasts."""
        for reader in self._readers.values():
            reader.leave()
        self._link.close()

    def _reader(self, name: str) -> LeaseReader:
        if name not in self._readers:
            settings = replace(self._settings.of(name), min_tasks=None)
            reader = self._readers[name] = LeaseReader(settings, self._schema, self._link, takes_ahead=False)
            reader.budget = None if self._budgets is None else self._budgets.get(name, 0)
        return self._readers[name]

    @contextmanager
    def _unless_dropped(self, name: str) -> Generator[None]:
        """Forget a tube that was selected by a pattern if it is dropped during the block."""
        try:
            yield
        except TubeNotFound:
            with self._settings.share() as queue:
                if name in self._settings.named or name in queue.tubes():
                    raise
            reader = self._readers.pop(name, None)
            if reader is not None:
                reader.leave()
            _log.warning("tube %r was dropped: the query continues without it", name)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the tasks of a partition: see `LeaseReader.read`. Runs on executors."""
        assert isinstance(partition, Parts)
        for name, part in partition.parts:
            with self._unless_dropped(name):
                yield from LeaseReader(self._settings.of(name), self._schema).read(part)


def _offset_of(offset: Facts, tube: str) -> Facts:
    """Return the offset of the reader of one tube."""
    return {"consumer": offset["consumer"], "seq": offset["seq"].get(tube, 0)}
