"""The stream source of several tubes, or partitions: a `LeaseReader` per tube, whose batches form one batch.

An offset is `{"consumer": name, "seq": {tube: n}}`: the consumer, and the last batch of each tube. Tubes are listed for
each batch, so the query also takes from tubes that were created since. Of a batch's tasks each tube gets an equal
share; what a tube does not need goes to the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from tubes.errors import Facts, StreamFenced, TubeNotFound
from tubes.spark.arrow import RecordBatch
from tubes.spark.leases import LeasePartition, LeaseReader, Link, bound, check_offset, count_partitions, default_limit
from tubes.spark.snapshot import Parts

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tubes.spark.settings import Settings

#: Field of a progress report -> the function that combines the values of all tubes.
_COUNTS: Final = "ready", "taken", "delayed", "buried", "leftOut"
_COMBINE: Final[dict[str, Callable[[list[Any]], Any]]] = {
    **dict.fromkeys(_COUNTS, sum), "oldest": max, "lease": min,
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
        #: Tubes that were dropped while this query used them.
        self._dropped: set[str] = set()

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
        wanted = self._look(start)
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
        idle = [name for name, number in seq.items() if number <= start["seq"].get(name, 0)]
        if len(idle) == len(seq):
            if self._budgets is None or not any(shares.values()):
                return start
            for name in idle:  # Other consumers have taken the tasks of these tubes, so the others get the shares.
                if shares[name]:
                    self._reader(name).budget = 0
            return self.latestOffset(start, limit)
        self._last_batch = time.monotonic()
        return {"consumer": start["consumer"], "seq": {name: number for name, number in seq.items() if number}}

    def _look(self, start: Facts) -> dict[str, int]:
        """Return how many tasks each tube may give."""
        check_offset(start, dict, "one tube: use the option tube")
        with self._settings.share() as queue:
            names = self._settings.names(queue, self._readers) if self._budgets is None else [*self._budgets]
        if not self._readers.keys() >= {*names}:
            # Another query of this consumer must not lose the tubes that this one has not opened yet.
            for reader in self._readers.values():
                with suppress(TubeNotFound):
                    reader.check()
                    break
        for name in start["seq"].keys() - names - self._dropped:  # The query was restarted with other tubes.
            with self._unless_dropped(name):
                self._reader(name).commit(_offset_of(start, name))
        ready: dict[str, int] = {}
        is_pending = False
        for name in names:
            with self._unless_dropped(name):
                ready[name], has_batch = self._reader(name).look(_offset_of(start, name))
                is_pending |= has_batch
        budgets = {name: self._readers[name].budget for name in ready}
        wanted = {name: count if (left := budgets[name]) is None else left for name, count in ready.items()}
        # A batch that was taken before a crash comes alone, so that the limit holds.
        if is_pending or self._should_wait(sum(wanted.values())):
            return dict.fromkeys(wanted, 0)
        return wanted

    def _count_ready(self) -> dict[str, int]:
        ready: dict[str, int] = {}
        with self._settings.share() as queue:
            for name in self._settings.names(queue):
                with self._unless_dropped(name):
                    ready[name] = self._settings.of(name).find(queue).statistics().tasks["ready"]
        return ready

    def _should_wait(self, ready: int) -> bool:
        minimum, delay = self._settings.min_tasks, self._settings.max_delay
        if minimum is None or self._budgets is not None:
            return False
        return ready < minimum and time.monotonic() - self._last_batch < delay

    def partitions(self, start: Facts, end: Facts) -> list[InputPartition]:
        """Split the batches of all tubes into partitions, and combine the parts of small batches."""
        parts: list[tuple[str, LeasePartition]] = []
        check_offset(end, dict, "one tube: use the option tube")
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
        busy = {name: found for name, found in tubes.items() if any(found[key] for key in _COUNTS)}
        return {"consumer": self._link.consumer, **totals, "tubes": busy}

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
        """Forget a tube that is dropped during the block. If it was created again, the next batch continues with it.

        Raises `TubeNotFound` if the option names it, and it does not exist any more.
        """
        try:
            yield
        except TubeNotFound:
            exists = self._exists(name)
            if name.partition("#")[0] in self._settings.named and not exists:
                raise
            reader = self._readers.pop(name, None)
            if reader is not None:
                reader.leave()
            if not exists:
                self._dropped.add(name)
            _log.warning("tube %r was dropped%s", name, ", and created again" if exists else "")

    def _exists(self, name: str) -> bool:
        with self._settings.share() as queue:
            return name in replace(self._settings, tube=name.partition("#")[0], tubes=()).existing(queue)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the tasks of a partition: see `LeaseReader.read`. Runs on executors."""
        assert isinstance(partition, Parts)
        for name, part in partition.parts:
            with self._unless_dropped(name):
                with self._settings.share() as queue:
                    part.claim.check(self._settings.of(name).find(queue))
                try:
                    yield from LeaseReader(self._settings.of(name), self._schema).read(part)
                except TubeNotFound:
                    if not self._exists(name):
                        raise
                    # Rows of another tube of this name may have been read.
                    raise StreamFenced(stream=part.claim.stream, tube=name) from None


def _offset_of(offset: Facts, tube: str) -> Facts:
    """Return the offset of the reader of one tube."""
    return {"consumer": offset["consumer"], "seq": offset["seq"].get(tube, 0)}
