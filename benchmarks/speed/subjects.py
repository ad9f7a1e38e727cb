"""The measured subjects: tubes of every driver and the queues for comparison, filled with waiting tasks."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Protocol

import tubes
import tubes.aio
from benchmarks.shared.tasks import PAYLOAD, TTL, TTR

#: The utubes, unless each task has a separate one.
UTUBES: Final = tuple(f"host-{number}" for number in range(1000))

#: The options of each of the next puts.
Batch = Sequence[dict[str, Any]]
_NO_OPTIONS: Final[dict[str, Any]] = {}


class Stage(Protocol):
    """A queue with waiting tasks. It contains the loops too, so that a call costs the same as in a program."""

    def batch(self, count: int) -> Batch:
        """Return the options of the next `count` puts."""
        ...

    def put(self, batch: Batch) -> None: ...
    def take_ack(self, batch: Batch) -> None: ...
    def cycle(self, batch: Batch) -> None: ...
    def close(self) -> None: ...


class TubeStage:
    """A tube whose tasks are put without options."""

    def __init__(self, driver: str, tube_options: dict[str, Any]) -> None:
        self._queue = tubes.connect()
        self._tube: Any = self._queue.create_tube("benchmark", driver, **tube_options)

    def batch(self, count: int) -> Batch:
        return [_NO_OPTIONS] * count

    def put(self, batch: Batch) -> None:
        put = self._tube.put
        for _ in batch:
            put(PAYLOAD)

    def take_ack(self, batch: Batch) -> None:
        take, ack = self._tube.take, self._tube.ack
        for _ in batch:
            ack(take(timeout=0))

    def cycle(self, batch: Batch) -> None:
        put, take, ack = self._tube.put, self._tube.take, self._tube.ack
        for _ in batch:
            put(PAYLOAD)
            ack(take(timeout=0))

    def close(self) -> None:
        self._tube.truncate()
        self._queue.close()


class OptionsStage(TubeStage):
    """A tube whose tasks are put with options: `options` returns them for the number of the put.

    The puts pass their options as keywords, as a program does.
    """

    def __init__(self, driver: str, tube_options: dict[str, Any], options: Callable[[int], dict[str, Any]]) -> None:
        super().__init__(driver, tube_options)
        self._options = options
        self._puts = 0

    def batch(self, count: int) -> Batch:
        first, self._puts = self._puts, self._puts + count
        return [self._options(number) for number in range(first, first + count)]


class UtubeStage(OptionsStage):
    """A tube whose tasks have a utube."""

    def put(self, batch: Batch) -> None:
        put = self._tube.put
        for options in batch:
            put(PAYLOAD, utube=options["utube"])

    def cycle(self, batch: Batch) -> None:
        put, take, ack = self._tube.put, self._tube.take, self._tube.ack
        for options in batch:
            put(PAYLOAD, utube=options["utube"])
            ack(take(timeout=0))


class TimedStage(OptionsStage):
    """A tube whose tasks have a ttl, a ttr and a priority."""

    def put(self, batch: Batch) -> None:
        put = self._tube.put
        for options in batch:
            put(PAYLOAD, pri=options["pri"], ttl=TTL, ttr=TTR)

    def cycle(self, batch: Batch) -> None:
        put, take, ack = self._tube.put, self._tube.take, self._tube.ack
        for options in batch:
            put(PAYLOAD, pri=options["pri"], ttl=TTL, ttr=TTR)
            ack(take(timeout=0))


class TimedUtubeStage(OptionsStage):
    """A tube whose tasks have all four options."""

    def put(self, batch: Batch) -> None:
        put = self._tube.put
        for options in batch:
            put(PAYLOAD, utube=options["utube"], pri=options["pri"], ttl=TTL, ttr=TTR)

    def cycle(self, batch: Batch) -> None:
        put, take, ack = self._tube.put, self._tube.take, self._tube.ack
        for options in batch:
            put(PAYLOAD, utube=options["utube"], pri=options["pri"], ttl=TTL, ttr=TTR)
            ack(take(timeout=0))


class QueueStage:
    """`queue.Queue`: the yardstick."""

    def __init__(self) -> None:
        self._queue: queue.Queue[str] = queue.Queue()

    def batch(self, count: int) -> Batch:
        return [_NO_OPTIONS] * count

    def put(self, batch: Batch) -> None:
        put = self._queue.put
        for _ in batch:
            put(PAYLOAD)

    def take_ack(self, batch: Batch) -> None:
        get, done = self._queue.get, self._queue.task_done
        for _ in batch:
            get()
            done()

    def cycle(self, batch: Batch) -> None:
        put, get, done = self._queue.put, self._queue.get, self._queue.task_done
        for _ in batch:
            put(PAYLOAD)
            get()
            done()

    def close(self) -> None:
        self._queue.queue.clear()


class SimpleQueueStage:
    """`queue.SimpleQueue`: written in C, without acknowledgements."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()

    def batch(self, count: int) -> Batch:
        return [_NO_OPTIONS] * count

    def put(self, batch: Batch) -> None:
        put = self._queue.put
        for _ in batch:
            put(PAYLOAD)

    def take_ack(self, batch: Batch) -> None:
        get = self._queue.get
        for _ in batch:
            get()

    def cycle(self, batch: Batch) -> None:
        put, get = self._queue.put, self._queue.get
        for _ in batch:
            put(PAYLOAD)
            get()

    def close(self) -> None: ...


class AwaitedTubeStage:
    """A fifo tube in an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._queue, self._tube = self._loop.run_until_complete(self._open())

    @staticmethod
    async def _open() -> tuple[tubes.aio.AsyncQueue, Any]:
        queue = tubes.aio.connect()
        return queue, await queue.create_tube("benchmark")

    def batch(self, count: int) -> Batch:
        return [_NO_OPTIONS] * count

    def put(self, batch: Batch) -> None:
        async def run() -> None:
            put = self._tube.put
            for _ in batch:
                await put(PAYLOAD)

        self._loop.run_until_complete(run())

    def take_ack(self, batch: Batch) -> None:
        async def run() -> None:
            take, ack = self._tube.take, self._tube.ack
            for _ in batch:
                await ack(await take(timeout=0))

        self._loop.run_until_complete(run())

    def cycle(self, batch: Batch) -> None:
        async def run() -> None:
            put, take, ack = self._tube.put, self._tube.take, self._tube.ack
            for _ in batch:
                await put(PAYLOAD)
                await ack(await take(timeout=0))

        self._loop.run_until_complete(run())

    def close(self) -> None:
        self._loop.run_until_complete(self._tube.truncate())
        self._loop.run_until_complete(self._queue.close())
        self._loop.close()


class AsyncioQueueStage:
    """`asyncio.Queue`: the yardstick of awaited calls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._queue: asyncio.Queue[str] = asyncio.Queue()

    def batch(self, count: int) -> Batch:
        return [_NO_OPTIONS] * count

    def put(self, batch: Batch) -> None:
        async def run() -> None:
            put = self._queue.put
            for _ in batch:
                await put(PAYLOAD)

        self._loop.run_until_complete(run())

    def take_ack(self, batch: Batch) -> None:
        async def run() -> None:
            get, done = self._queue.get, self._queue.task_done
            for _ in batch:
                await get()
                done()

        self._loop.run_until_complete(run())

    def cycle(self, batch: Batch) -> None:
        async def run() -> None:
            put, get, done = self._queue.put, self._queue.get, self._queue.task_done
            for _ in batch:
                await put(PAYLOAD)
                await get()
                done()

        self._loop.run_until_complete(run())

    def close(self) -> None:
        self._loop.close()


def fill(stage: Stage, waiting: int) -> float:
    """Put `waiting` tasks and return the seconds of the puts."""
    spent = 0.0
    for start in range(0, waiting, 1000):
        batch = stage.batch(min(1000, waiting - start))
        begin = perf_counter()
        stage.put(batch)
        spent += perf_counter() - begin
    return spent


@dataclass(frozen=True)
class Peer:
    """A queue of the standard library."""

    name: str
    stage: Callable[[], Stage]


@dataclass(frozen=True)
class Subject:
    """A measured tube, and the limit of its cycle as a multiple of its yardstick's."""

    name: str
    stage: Callable[[], Stage]
    yardstick: Peer
    goal: float | None = None
    later: float | None = None
    #: True for tubes, whose cost must not grow with the number of waiting tasks.
    must_stay_flat: bool = True


QUEUE: Final = Peer("queue.Queue", QueueStage)
ASYNCIO_QUEUE: Final = Peer("asyncio.Queue", AsyncioQueueStage)

_SPANS: Final = {"ttl": TTL, "ttr": TTR}


def _pri(number: int) -> dict[str, Any]:
    return {"pri": number % 10}


def _utube(number: int) -> dict[str, Any]:
    return {"utube": UTUBES[number % len(UTUBES)]}


def _utube_and_pri(number: int) -> dict[str, Any]:
    # Shift the priority after each cycle over the utubes, so that each utube gets all ten priorities.
    turn, utube = divmod(number, len(UTUBES))
    return {"pri": (utube + turn) % 10, "utube": UTUBES[utube]}


def _alone(number: int) -> dict[str, Any]:
    return {"utube": f"host-{number}"}


def _plain(driver: str, **tube_options: Any) -> Callable[[], Stage]:
    return lambda: TubeStage(driver, tube_options)


def _given(
    stage: type[OptionsStage], options: Callable[[int], dict[str, Any]], driver: str, **tube_options: Any
) -> Callable[[], Stage]:
    return lambda: stage(driver, tube_options, options)


#: Each way to use a driver.
TUBES: Final = (
    Subject("fifo", _plain("fifo"), QUEUE, 1.8, 1.2),
    Subject("fifottl", _plain("fifottl"), QUEUE, 2.5),
    Subject("fifottl, ttl and ttr of the tube", _plain("fifottl", **_SPANS), QUEUE, 2.5),
    Subject("fifottl, own ttl, ttr, 10 priorities", _given(TimedStage, _pri, "fifottl"), QUEUE, 2.5),
    Subject("utube, 1000 utubes", _given(UtubeStage, _utube, "utube"), QUEUE, 2.5),
    Subject("utube, a utube per task", _given(UtubeStage, _alone, "utube"), QUEUE),
    Subject("utubettl, 1000 utubes", _given(UtubeStage, _utube, "utubettl"), QUEUE, 3.5, 2.2),
    Subject("utubettl, ttl and ttr of the tube", _given(UtubeStage, _utube, "utubettl", **_SPANS), QUEUE, 3.5, 2.2),
    Subject(
        "utubettl, own ttl, ttr, 10 priorities", _given(TimedUtubeStage, _utube_and_pri, "utubettl"), QUEUE, 3.5, 2.2
    ),
    Subject("utubettl, a utube per task", _given(UtubeStage, _alone, "utubettl"), QUEUE),
)

SUBJECTS: Final = (
    *TUBES,
    Subject("fifo, awaited", AwaitedTubeStage, ASYNCIO_QUEUE),
    Subject("queue.SimpleQueue", SimpleQueueStage, QUEUE, must_stay_flat=False),
    Subject("asyncio.Queue", AsyncioQueueStage, QUEUE, must_stay_flat=False),
)
