"""Waits until what was written is on the disk, too: one `fsync` for all who wait meanwhile."""

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
    """Brings the log of a database onto the disk.

    Commits do not wait for the disk, and are numbered under the store's lock. Outside of it whoever needs one of them
    to be on the disk brings all there that are written by then; those who come meanwhile wait, and then look first.
    """

    def __init__(self, log: Path, fail: Callable[[OSError], StoreFailed]) -> None:
        self._log: Final = log
        self._fail: Final = fail
        #: The number of the last commit.
        self.written = 0
        self._synced = 0
        # The first failed sync. The operating system reports a failure once, so a later sync would succeed falsely.
        self._error: OSError | None = None
        #: How often it has waited for the disk, and for how many seconds.
        self.spent = 0, 0.0
        self._turn: Final = threading.Lock()
        self._file: int | None = None
        self._asked: Final[SimpleQueue[Callable[[], object] | None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_synced(self) -> bool:
        """Whether all that is written is on the disk."""
        return self._synced >= self.written

    def wait(self) -> None:
        """Return when all that is written by now is on the disk. Raises the error of the store if that fails."""
        wanted = self.written
        if self._synced >= wanted:
            return
        with self._turn:
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
        self.spent = self.spent[0] + 1, self.spent[1] + time.perf_counter() - began
        self._synced = written

    def later(self, call: Callable[[], object]) -> None:
        """Call this in another thread when all that is written by now is on the disk, or the store has failed."""
        self._asked.put(call)
        if self._thread is None:
            with self._turn:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="tubes-sync", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        while (call := self._asked.get()) is not None:
            calls = [call]
            while True:
                try:
                    more = self._asked.get_nowait()
                except Empty:
                    break
                if more is None:
                    self._asked.put(None)
                    break
                calls.append(more)
            with suppress(StoreFailed):  # Those who wait are told by the store.
                self.wait()
            for each in calls:
                each()

    def close(self, *, sync: bool) -> None:
        """End the thread; `sync`: sync all commits first. Under the lock."""
        if sync:
            with self._turn:
                if self._synced < self.written:
                    self._sync()
        self._asked.put(None)

    def __del__(self) -> None:
        # Not sooner: somebody may be syncing.
        if self._file is not None:
            os.close(self._file)
