"""Samples of the counts of tubes over the last hour, for charts."""

from __future__ import annotations

import asyncio
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final

from starlette.exceptions import HTTPException

from tubes.errors import TubesError
from tubes.serve.namespaces import NO_NAMESPACE, Namespaces
from tubes.serve.recent import Recent
from tubes.values.overview import Overview

#: Seconds between two samples, unless reading all tubes takes more than 1 % of this time: see `Recent`.
INTERVAL: Final = 5.0
#: Maximum samples of a tube: an hour.
SAMPLES: Final = 720
#: Maximum tubes with a buffer.
_MAX_BUFFERS: Final = 1000
#: Seconds without a change after which a tube's buffer may go to another tube.
_IDLE: Final = 60.0
#: Seconds for which a namespace is sampled after a request for its history.
_WANTED: Final = 30.0
#: Samples beyond `SAMPLES` after which the oldest are removed from a buffer, all at once.
_SPARE: Final = 80
#: What a sample has: counts, and then changes per second.
COUNTS: Final = ("ready", "taken", "delayed", "buried")
RATES: Final = ("put", "done", "failed")
_COLUMNS: Final = (*COUNTS, *RATES)
#: Numbers of a sample in a buffer: that of the sample, the counts, and the changes since the previous sample.
_WIDTH: Final = 1 + len(_COLUMNS)
_MAX: Final = 2**32 - 1


class _Tube:
    """The last counts of a tube, and a buffer of its samples, or None.

    `since`: the number of the first sample that is known. `changed`: the time of the last change.
    """

    __slots__ = ("buffer", "changed", "row", "since")

    def __init__(self, row: tuple[int, ...], since: int) -> None:
        self.row = row
        self.since = since
        self.changed = 0.0
        self.buffer: array[int] | None = None

    def add(self, row: tuple[int, ...], number: int, at: float) -> None:
        """Add sample `number` to the buffer."""
        if self.buffer is None:
            self.buffer = array("I", self.first())
        counts = (min(count, _MAX) for count in row[: len(COUNTS)])
        # A count goes down if a put is undone, or if the tube was created again.
        changes = (
            min(max(new - old, 0), _MAX) for new, old in zip(row[len(COUNTS) :], self.row[len(COUNTS) :], strict=True)
        )
        self.buffer.extend((number, *counts, *changes))
        if len(self.buffer) > (SAMPLES + _SPARE) * _WIDTH:
            del self.buffer[: -(SAMPLES + 1) * _WIDTH]
        self.row, self.changed = row, at

    def first(self) -> tuple[int, ...]:
        """Return the sample with which the buffer starts."""
        counts = (min(count, _MAX) for count in self.row[: len(COUNTS)])
        return (self.since, *counts, *(0 for _ in RATES))


#: The tubes of all namespaces that have a buffer, longest unchanged first.
Buffers = dict[_Tube, None]


class History:
    """The samples of the tubes of a namespace.

    A tube gets a buffer when it changes, and the buffer gets only the samples in which the tube has changed. At most
    1,000 tubes of a process have a buffer, those that changed last. A tube without a buffer seems new at each change.

    Memory: 27 MB for 1,000 buffers of tubes that always change, and 0.3 kB for a tube without a buffer.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers: Final = buffers
        self._tubes: dict[str, _Tube] = {}
        #: The times of the samples, one more than are shown.
        self._moments: Final = deque[float](maxlen=SAMPLES + 1)
        self._number = -1

    @property
    def at(self) -> float | None:
        """The time of the last sample."""
        return self._moments[-1] if self._moments else None

    @property
    def interval(self) -> float:
        """The mean number of seconds between two samples."""
        gaps = len(self._moments) - 1
        return INTERVAL if gaps < 1 else round((self._moments[-1] - self._moments[0]) / gaps, 1)

    def add(self, at: float, tubes: Mapping[str, Overview]) -> None:
        """Add a sample of all tubes at this time."""
        self._moments.append(at)
        self._number += 1
        known, self._tubes = self._tubes, {}
        for name, overview in tubes.items():
            tasks, calls = overview.statistics.tasks, overview.statistics.calls
            failed = calls["bury"] + calls["ttr"]
            row = (
                *(tasks["ready"], tasks["taken"], tasks["delayed"], tasks["buried"]),
                *(calls["put"], tasks["done"], failed),
            )
            tube = known.pop(name, None)
            if tube is None:
                tube = _Tube(row, self._number)
            elif row != tube.row:
                if self._has_buffer(tube, at):
                    tube.add(row, self._number, at)
                else:
                    tube.row, tube.since = row, self._number
            self._tubes[name] = tube
        for tube in known.values():
            self._buffers.pop(tube, None)

    def _has_buffer(self, tube: _Tube, at: float) -> bool:
        """True if the tube has a buffer, or may have one."""
        if tube not in self._buffers and len(self._buffers) >= _MAX_BUFFERS:
            idle = next(iter(self._buffers))
            if idle.changed > at - _IDLE:
                return False
            del self._buffers[idle]
            idle.buffer, idle.since = None, self._number
        self._buffers.pop(tube, None)
        self._buffers[tube] = None
        return True

    def forget(self) -> None:
        """Free the buffers of the namespace."""
        for tube in self._tubes.values():
            self._buffers.pop(tube, None)

    def read(self, name: str, count: int, columns: Collection[str] = _COLUMNS) -> dict[str, list[float]]:
        """Return the last samples of a tube, oldest first: by column, and as `at` their times."""
        tube = self._tubes.get(name)
        if tube is None:
            return {"at": [], **{column: [] for column in columns}}
        start = max(tube.since, self._number - count + 1)
        buffer = tube.first() if tube.buffer is None else tube.buffer
        numbers = buffer[::_WIDTH]
        first = max(bisect_right(numbers, start) - 1, 0)
        offset = self._number + 1 - len(self._moments)
        found: dict[str, list[float]] = {"at": list(islice(self._moments, start - offset, None))}
        for place, column in enumerate(_COLUMNS, 1):
            if column not in columns:
                continue
            values = found[column] = []
            for index, value in enumerate(buffer[first * _WIDTH + place :: _WIDTH], first):
                number = max(numbers[index], start)
                repeated = (numbers[index + 1] if index + 1 < len(numbers) else self._number + 1) - number
                if place <= len(COUNTS):
                    values += [value] * repeated
                    continue
                values += [0] * repeated
                if value and numbers[index] >= start:
                    elapsed = self._moments[number - offset] - self._moments[number - offset - 1]
                    values[-repeated] = round(value / elapsed, 2)
        return found


class _Sampler:
    """The history of a namespace, and who wants it."""

    def __init__(self, buffers: Buffers) -> None:
        self.history: Final = History(buffers)
        self.wanted_until = 0.0
        self.watchers: Final[set[asyncio.Queue[float]]] = set()
        self.task: asyncio.Task[None] | None = None
        self._last: Mapping[str, Overview] | None = None

    def add(self, tubes: Mapping[str, Overview]) -> None:
        """Add a sample and report it, unless it is the previous one."""
        at = next((overview.at for overview in tubes.values()), time.time())
        if tubes is not self._last and at > (self.history.at or 0):
            self._last = tubes
            self.history.add(at, tubes)
            for moments in self.watchers:
                if not moments.full():
                    moments.put_nowait(at)


class Samplers:
    """Sample each namespace as long as someone looks at its history; afterwards forget it.

    `clock`: a function that returns the time in seconds.
    """

    def __init__(self, namespaces: Namespaces, recent: Recent, clock: Callable[[], float] = time.monotonic) -> None:
        self._namespaces: Final = namespaces
        self._recent: Final = recent
        self._clock: Final = clock
        self._buffers: Final[Buffers] = {}
        self._samplers: Final[dict[str, _Sampler]] = {}

    def want(self, namespace: str) -> History:
        """Return the history of a namespace, and sample it for the next 30 seconds."""
        return self._want(namespace).history

    def _want(self, namespace: str) -> _Sampler:
        sampler = self._samplers.get(namespace)
        if sampler is None:
            sampler = self._samplers[namespace] = _Sampler(self._buffers)
            sampler.task = asyncio.create_task(self._run(namespace, sampler))
        sampler.wanted_until = self._clock() + _WANTED
        return sampler

    @contextmanager
    def watch(self, namespace: str) -> Generator[asyncio.Queue[float]]:
        """Sample a namespace during a block. Yield a queue of the times of its samples, with that of the last one."""
        moments: asyncio.Queue[float] = asyncio.Queue(1)
        sampler = self._want(namespace)
        if sampler.history.at is not None:
            moments.put_nowait(sampler.history.at)
        sampler.watchers.add(moments)
        try:
            yield moments
        finally:
            sampler.watchers.discard(moments)

    async def _run(self, namespace: str, sampler: _Sampler) -> None:
        try:
            while sampler.watchers or self._clock() < sampler.wanted_until:
                with suppress(TubesError, HTTPException):  # Requests report the same error.
                    sampler.add(await self.overview(namespace))
                await asyncio.sleep(INTERVAL)
        finally:
            sampler.history.forget()
            del self._samplers[namespace]

    async def overview(self, namespace: str, *, ages: bool = False) -> dict[str, Overview]:
        """Return a recent overview of all tubes of a namespace."""

        async def read() -> dict[str, Overview]:
            return await self._namespaces.overview_of(namespace, ages=ages)

        return await self._recent.get(namespace, ("overview", ages), read)

    async def run(self) -> None:
        """Sample all namespaces with tubes."""
        while True:
            names: Collection[str] = list(self._samplers)
            with suppress(TubesError):
                names = (NO_NAMESPACE, *await self._namespaces.names())
            for name in names:
                self._want(name)
            await asyncio.sleep(INTERVAL)

    async def close(self) -> None:
        """End all samples."""
        tasks = [sampler.task for sampler in self._samplers.values() if sampler.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
