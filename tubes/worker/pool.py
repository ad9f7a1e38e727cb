"""Threads for handlers: as many as there is work at a time, and none that keeps a process from ending."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from tubes.worker.logs import log


class Pool:
    """Daemon threads. A job never waits for a thread: where all are busy, or hang, one more is started."""

    def __init__(self) -> None:
        self._jobs: Final[SimpleQueue[Callable[[], object] | None]] = SimpleQueue()
        self._lock: Final = threading.Lock()
        self._idle = 0
        self._threads = 0

    def submit(self, job: Callable[[], object]) -> None:
        """Have a thread do this, with the context variables of the caller.

        Raises `RuntimeError` where the system has no more threads: then it is not done.
        """
        context = contextvars.copy_context()
        with self._lock:
            starts = self._idle == 0
            if not starts:
                self._idle -= 1
        if starts:
            threading.Thread(target=self._run, name="tubes-handler", daemon=True).start()
            with self._lock:
                self._threads += 1
        self._jobs.put(lambda: context.run(job))

    def close(self) -> None:
        """Let the threads end when they have nothing to do any more."""
        with self._lock:
            threads = self._threads
        for _ in range(threads):
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException:
                log.exception("a job of a worker failed")
            del job
            with self._lock:
                self._idle += 1
