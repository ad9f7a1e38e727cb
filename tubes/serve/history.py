"""Samples of the counts of tubes, for charts."""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, TypeAlias

from starlette.exceptions import HTTPException

from tubes.errors import TubesError
from tubes.serve.namespaces import NO_NAMESPACE, Namespaces
from tubes.serve.recent import Recent
from tubes.values.overview import Overview

_log: Final = logging.getLogger("tubes.serve")
#: Seconds between two samples. They are farther apart if reading all tubes takes long: see `Recent`.
INTERVAL: Final = 5.0
#: Maximum samples of a tube.
SAMPLES: Final = 720
#: Maximum tubes with a buffer.
_MAX_BUFFERS: Final = 1000
#: Seconds without a change after which another tube may get the buffer of a tube.
_IDLE: Final = 60.0
#: Seconds for which a namespace is sampled after a request for its history.
_SAMPLED_FOR: Final = 30.0
#: The columns of a sample: counts, and changes per second.
COUNTS: Final = ("ready", "taken", "delayed", "buried")
RATES: Final = ("put", "done", "failed")
_COLUMNS: Final = (*COUNTS, *RATES)
_SAMPLE: Final = Struct(f"={len(_COLUMNS)}f")


@dataclass(eq=False, slots=True)
class _Tube:
    """A tube of a history."""

    #: Its last counts, and the totals from which the rates are computed.
    row: tuple[int, ...]
    #: The number of its first sample.
    since: int
    #: The time of its last change.
    changed: float = 0.0
    #: Its samples; None: its counts have been the same in all samples.
    buffer: array[float] | None = None

    def new_buffer(self) -> array[float]:
        """Return a buffer in which all samples have the last counts."""
        return array("f", (*self.row[: len(COUNTS)], *(0 for _ in RATES))) * SAMPLES


class History:
    """The samples of the tubes of a namespace.

    A tube gets a buffer of samples when it first changes. At most 1,000 tubes of a process have a buffer. A further
    tube gets the buffer of one that has not changed for a minute; if there is none, its samples begin at its last
    change.

    `buffers`: the tubes of all namespaces that have a buffer, longest unchanged first, with their histories.

    Memory: 20 kB for a buffer, and 0.3 kB for a tube without one. A count above 16 million is rounded to 24 bits.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers: Final = buffers
        self._tubes: dict[str, _Tube] = {}
        #: The times of the samples, and the number of the last one.
        self._moments: Final = deque[float](maxlen=SAMPLES)
        self._number = -1

    @property
    def at(self) -> float | None:
        """The time of the last sample."""
        return self._moments[-1] if self._moments else None

    @property
    def interval(self) -> float:
        """The mean number of seconds between two samples."""
        gaps = len(self._moments) - 1
        return INTERVAL if gaps < 1 else max(round((self._moments[-1] - self._moments[0]) / gaps, 1), 0.0)

    @property
    def has_tubes(self) -> bool:
        return bool(self._tubes)

    def add(self, at: float, tubes: Mapping[str, Overview]) -> None:
        """Add a sample of all tubes at this time."""
        elapsed = at - (self.at or 0)
        if elapsed <= 0:  # The clock was set back.
            elapsed = INTERVAL
        self._moments.append(at)
        self._number += 1
        dropped, self._tubes = self._tubes, {}
        for name, overview in tubes.items():
            tasks, calls = overview.statistics.tasks, overview.statistics.calls
            totals = (calls["put"], tasks["done"], calls["release"] + calls["bury"] + calls["ttr"])
            row = (tasks["ready"], tasks["taken"], tasks["delayed"], tasks["buried"], *totals)
            tube = self._tubes[name] = dropped.pop(name) if name in dropped else _Tube(row, self._number)
            if row != tube.row and not self._give_buffer(tube, at):
                tube.since = self._number
            if tube.buffer is not None:
                # A total goes down if a put is undone, or if the tube was created again.
                changes = zip(totals, tube.row[len(COUNTS) :], strict=True)
                rates = [max(new - old, 0) / elapsed for new, old in changes]
                _SAMPLE.pack_into(tube.buffer, self._number % SAMPLES * _SAMPLE.size, *row[: len(COUNTS)], *rates)
            tube.row = row
        for tube in dropped.values():
            self._buffers.pop(tube, None)

    def _give_buffer(self, tube: _Tube, at: float) -> bool:
        """Give a changed tube a buffer, unless it has one. Return False if none is left."""
        if tube.buffer is None:
            if len(self._buffers) >= _MAX_BUFFERS:
                idle = next(iter(self._buffers))
                if idle.changed > at - _IDLE:
                    return False
                owner = self._buffers.pop(idle)
                idle.buffer, idle.since = None, owner._number
            tube.buffer = tube.new_buffer()
        self._buffers.pop(tube, None)
        self._buffers[tube] = self
        tube.changed = at
        return True

    def read(self, name: str, count: int, columns: Collection[str] = _COLUMNS) -> dict[str, list[float]]:
        """Return up to `count` last samples of a tube by column, oldest first, with their times as `at`."""
        tube = self._tubes.get(name)
        if tube is None:
            return {"at": [], **{column: [] for column in columns}}
        size = min(count, SAMPLES, self._number - tube.since + 1)
        buffer, oldest = tube.buffer or tube.new_buffer(), (self._number + 1) % SAMPLES
        found: dict[str, list[float]] = {"at": list(self._moments)[-size:]}
        for index, column in enumerate(_COLUMNS):
            if column in columns:
                values = buffer[index :: len(_COLUMNS)]
                digits = None if column in COUNTS else 2
                found[column] = [round(value, digits) for value in (values[oldest:] + values[:oldest])[-size:]]
        return found


#: See `History`.
Buffers: TypeAlias = dict[_Tube, History]


@dataclass(eq=False)
class _Sampler:
    """The history of a namespace, and the streams that report its samples."""

    history: History
    task: asyncio.Task[None]
    sample_until: float = 0.0
    streams: set[asyncio.Queue[float]] = field(default_factory=set[asyncio.Queue[float]])


class Samplers:
    """Sample each namespace as long as a client reads its history, and keep the samples.

    `clock`: a function that returns the time in seconds.
    """

    def __init__(self, namespaces: Namespaces, recent: Recent, clock: Callable[[], float] = time.monotonic) -> None:
        self._namespaces: Final = namespaces
        self._recent: Final = recent
        self._clock: Final = clock
        self._buffers: Final[Buffers] = {}
        self._samplers: Final[dict[str, _Sampler]] = {}

    def keep_sampling(self, namespace: str) -> History:
        """Return the history of a namespace, and sample it for the next 30 seconds."""
        sampler = self._samplers.get(namespace)
        if sampler is None:
            task = asyncio.create_task(self._run(namespace))
            sampler = self._samplers[namespace] = _Sampler(History(self._buffers), task)
        elif sampler.task.done():
            sampler.task = asyncio.create_task(self._run(namespace))
        sampler.sample_until = self._clock() + _SAMPLED_FOR
        return sampler.history

    @contextmanager
    def watch(self, namespace: str) -> Generator[asyncio.Queue[float]]:
        """Sample a namespace during a block. Yield a queue of the times of its samples, with that of the last one."""
        moments: asyncio.Queue[float] = asyncio.Queue(1)
        if (at := self.keep_sampling(namespace).at) is not None:
            moments.put_nowait(at)
        streams = self._samplers[namespace].streams
        streams.add(moments)
        try:
            yield moments
        finally:
            streams.discard(moments)

    async def _run(self, namespace: str) -> None:
        sampler = self._samplers[namespace]
        while sampler.streams or self._clock() < sampler.sample_until:
            try:
                at, tubes = await self.read_recent_tubes(namespace)
                if at != sampler.history.at:  # It is a new one. Its time may be earlier if the clock was set back.
                    sampler.history.add(at, tubes)
                    for moments in sampler.streams:
                        if not moments.full():
                            moments.put_nowait(at)
            except (TubesError, HTTPException):
                pass  # Requests report the same error.
            except Exception:
                _log.exception("the counts of namespace %s were not sampled", namespace)
            await asyncio.sleep(INTERVAL)
        if not sampler.history.has_tubes:
            del self._samplers[namespace]

    async def read_recent_tubes(self, namespace: str, *, ages: bool = False) -> tuple[float, dict[str, Overview]]:
        """Return a recent overview of all tubes of a namespace, and its time by the clock of this process."""

        async def read() -> tuple[float, dict[str, Overview]]:
            async with self._namespaces.visit(namespace) as space:
                return time.time(), await space.read_all_tubes(ages=ages)

        return await self._recent.get(namespace, ("tubes", ages), read)

    async def run(self) -> None:
        """Sample all namespaces with tubes."""
        while True:
            names: Collection[str] = list(self._samplers)
            with suppress(TubesError):
                names = (NO_NAMESPACE, *await self._namespaces.names())
            for name in names:
                self.keep_sampling(name)
            await asyncio.sleep(INTERVAL)

    async def close(self) -> None:
        """Stop sampling."""
        tasks = [sampler.task for sampler in self._samplers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
