"""Group commit: one `fsync` syncs the commits of all callers that wait for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from tubes.errors import StoreFailed


class Syncer:
    """Syncs the log of a database.

    Commits are counted under the lock of the store, and do not wait for the disk. A caller then waits for its commit
    outside of that lock: the first caller runs `fsync` for all commits so far. Later callers wait for it, and run
    another one only if their commits came after its start.
    """

    def __init__(self, log: Path, fail: Callable[[OSError], StoreFailed]) -> None:
        self._log: Final = log
        self._fail: Final = fail
        #: The number of commits.
        self.written = 0
        self._synced = 0
        # The first failed sync. The operating system reports a failure once, so a later sync would succeed falsely.
        self._error: OSError | None = None
        #: The number of syncs, and their total duration in seconds.
        self.totals = 0, 0.0
        self._sync_lock: Final = threading.Lock()
        self._file: int | None = None
        self._callbacks: Final[SimpleQueue[Callable[[], object] | None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_synced(self) -> bool:
        """True if all commits are synced."""
        return self._synced >= self.written

    def wait(self) -> None:
        """Wait until all commits so far are synced. Raises the error of the store if a sync fails."""
        wanted = self.written
        if self._synced >= wanted:
            return
        with self._sync_lock:
            if self._synced < wanted:
                self._sync()
            error = None if self._synced >= wanted else self._error
        if error is not None:  # Raise after releasing the lock: a thread that closes the store may wait for it.
            raise self._fail(error) from error

    def _sync(self) -> None:
        if self._error is not None:
            return
        written = self.written
        try:
            if self._file is None:
                self._file = os.open(self._log, os.O_RDWR | os.O_CLOEXEC)
            began = time.perf_counter()
            os.fsync(self._file)
        except OSError as error:
            self._error = error
            return
        self.totals = self.totals[0] + 1, self.totals[1] + time.perf_counter() - began
        self._synced = written

    def call_after_sync(self, call: Callable[[], object]) -> None:
        """Call `call` in another thread once all commits so far are synced, or the store has failed."""
        self._callbacks.put(call)
        if self._thread is None:
            with self._sync_lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="tubes-sync", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        while (call := self._callbacks.get()) is not None:
            calls = [call]
            while True:
                try:
                    callback = self._callbacks.get_nowait()
                except Empty:
                    break
                if callback is None:
                    self._callbacks.put(None)
                    break
                calls.append(callback)
            with suppress(StoreFailed):  # The store notifies its waiters of the error.
                self.wait()
            for call in calls:
                call()

    def close(self, *, sync: bool) -> None:
        """End the thread; `sync`: sync all commits first. Under the lock."""
        if sync:
            with self._sync_lock:
                if self._synced < self.written:
                    self._sync()
        self._callbacks.put(None)

    def __del__(self) -> None:
        # `close` cannot do this: another thread may be in `fsync`.
        if self._file is not None:
            os.close(self._file)
