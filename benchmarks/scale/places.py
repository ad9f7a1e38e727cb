"""Where tubes are while they are measured: in this process, or on a Valkey of their own."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, Protocol, Self

import tubes
from benchmarks.shared.tasks import PAYLOAD
from tubes.testing import LocalServer, ManualClock

#: Tasks of a call while a tube is filled.
BATCH = 4_000
#: So many of the latest calls that were slow are kept by the server.
_LOGGED = 100_000


class Place(Protocol):
    """Where tubes are."""

    name: str
    payload: Any
    by_server: bool

    def connect(self, clock: ManualClock | None = None) -> tubes.Queue: ...
    def connect_aio(self) -> tubes.aio.AsyncQueue: ...
    def seconds(self, act: Callable[[], object]) -> float: ...
    def longest_script(self) -> float | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class Memory:
    """In this process: time is that of the call."""

    name = "memory"
    payload = PAYLOAD
    by_server = False

    def connect(self, clock: ManualClock | None = None) -> tubes.Queue:
        return tubes.connect(clock=clock)

    def connect_aio(self) -> tubes.aio.AsyncQueue:
        return tubes.aio.connect()

    def seconds(self, act: Callable[[], object]) -> float:
        """What the calls took."""
        began = time.perf_counter()
        act()
        return time.perf_counter() - began

    def longest_script(self) -> None:
        """None runs here."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class Server:
    """On a Valkey: time is what the server spends on scripts. A trip costs the same at any size, and would hide it.

    The client shares a core with the server, where the system allows it.
    """

    name = "valkey"
    payload = PAYLOAD.encode()
    by_server = True

    def __init__(self) -> None:
        self._server = LocalServer(slowlog_log_slower_than=100, slowlog_max_len=_LOGGED)
        self._client: Any = self._server.client()
        self._cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
        if self._cores:
            os.sched_setaffinity(0, {max(self._cores)})
            os.sched_setaffinity(self._server.pid, {max(self._cores)})

    def connect(self, clock: ManualClock | None = None) -> tubes.Queue:
        return tubes.connect(self._server.url, codec="raw", clock=clock)

    def connect_aio(self) -> tubes.aio.AsyncQueue:
        return tubes.aio.connect(self._server.url, codec="raw")

    def seconds(self, act: Callable[[], object]) -> float:
        """What the server spent on scripts."""
        self._client.config_resetstat()
        act()
        return float(self._client.info("commandstats")["cmdstat_evalsha"]["usec"]) / 1e6

    def longest_script(self) -> float | None:
        """Seconds of the longest script since the last call of this: so long nobody else was served."""
        entries = self._client.slowlog_get(_LOGGED)
        # Looking at a long log, and emptying it, is logged too.
        longest = max((entry["duration"] for entry in entries if entry["command"].startswith(b"EVAL")), default=0)
        self._client.slowlog_reset()
        return float(longest) / 1e6

    def close(self) -> None:
        self._client.close()
        self._server.close()
        if self._cores:
            os.sched_setaffinity(0, self._cores)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def fill(tube: tubes.Tube, items: Iterable[Any], **options: Any) -> None:
    """Put many tasks, by the batch."""
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == BATCH:
            tube.put_many(batch, **options)
            batch.clear()
    if batch:
        tube.put_many(batch, **options)


@contextmanager
def mark_finished() -> Generator[Callable[[], None]]:
    """What is put before the call of what this gives is passed over by the collector.

    It is off until then, and on afterwards: several queues that wait side by side in this process would make it
    slower than in a program that has one.
    """

    def freeze_tasks() -> None:
        gc.freeze()
        gc.enable()

    gc.collect()
    gc.disable()
    try:
        yield freeze_tasks
    finally:
        gc.enable()
        gc.unfreeze()
        gc.collect()
