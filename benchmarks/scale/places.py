"""The places of the measured tubes: this process, or a separate Valkey."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, Protocol, Self

import tubes
from benchmarks.shared.tasks import PAYLOAD
from tubes.testing import LocalServer, ManualClock

#: Tasks per call when filling a tube.
BATCH = 4_000
#: The length of the server's slow log.
_LOGGED = 100_000


class Place(Protocol):
    """A place for tubes."""

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
    """Tubes in this process; times are those of the whole call."""

    name = "memory"
    payload = PAYLOAD
    by_server = False

    def connect(self, clock: ManualClock | None = None) -> tubes.Queue:
        return tubes.connect(clock=clock)

    def connect_aio(self) -> tubes.aio.AsyncQueue:
        return tubes.aio.connect()

    def seconds(self, act: Callable[[], object]) -> float:
        """Return the time of the calls."""
        began = time.perf_counter()
        act()
        return time.perf_counter() - began

    def longest_script(self) -> None:
        """Return None: a tube in memory runs no scripts."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class Folder(Memory):
    """Tubes of this process in a folder."""

    name = "folder"

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="folder-")

    def connect(self, clock: ManualClock | None = None) -> tubes.Queue:
        return tubes.connect(f"file:{self._folder.name}/store", clock=clock)

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


class Server:
    """Tubes on a Valkey; times are those of the scripts. A round trip costs the same at any size and would hide them.

    The client shares a core with the server if the system allows it.
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
        """Return the server's time in scripts."""
        self._client.config_resetstat()
        act()
        return float(self._client.info("commandstats")["cmdstat_evalsha"]["usec"]) / 1e6

    def longest_script(self) -> float | None:
        """Return the seconds of the longest script since the last call, during which no other client was served."""
        entries = self._client.slowlog_get(_LOGGED)
        # The slow log also contains its own slow reads and resets, hence the filter.
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
    """Put many tasks in batches."""
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
    """Yield a function that makes the garbage collector ignore all tasks put before.

    The collector is off until then and on afterwards. Without this, the tasks of several queues in one process would
    make it slower than in a program with one queue.
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
