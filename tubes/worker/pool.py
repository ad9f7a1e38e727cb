"""Threads for handlers: as many as there are jobs at a time. They are daemons, so the process may exit at any time."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from tubes.worker.logs import log


class Pool:
    """A pool of daemon threads. A job never waits: if all threads are busy or hang, a new one is started."""

    def __init__(self) -> None:
        self._jobs: Final[SimpleQueue[Callable[[], object] | None]] = SimpleQueue()
        self._lock: Final = threading.Lock()
        self._idle = 0
        self._threads = 0

    def submit(self, job: Callable[[], object]) -> None:
        """Run a job in a thread, with the context variables of the caller.

        Raises `RuntimeError` if a thread cannot be started; the job is not run then.
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
        """End each thread when it has no job left."""
        with self._lock:
            threads = self._threads
        for _ in range(threads):
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException:
                log.exception("a job in a thread of the worker failed")
            del job
            with self._lock:
                self._idle += 1
