"""Describes a worker, as long as it runs, for `Queue.workers`."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tubes.drivers.options import SECOND
from tubes.errors import QueueClosed, TubeNotFound, TubesError
from tubes.values.worker_info import BEAT, FORGOTTEN, WorkerInfo, fields_of
from tubes.worker.logs import log

if TYPE_CHECKING:
    from tubes.sync import Queue, Task, Tube


class Presence:
    """A thread that stores a worker's description every few seconds; it expires by itself if the process dies.

    A thread, since handlers may block the event loop. `describe`: makes the description, in the thread.
    """

    def __init__(self, queue: Queue, describe: Callable[[WorkerInfo], WorkerInfo]) -> None:
        self._queue: Final = queue
        self._describe: Final = describe
        self._ended: Final = threading.Event()
        self._thread: threading.Thread | None = None
        self._session = ""
        self._started = 0.0
        self._tube: Tube | None = None
        self._written: Task | None = None
        self._failed = False

    def begin(self, session: str, *, at_once: bool) -> None:
        """Store it from now on; `at_once`: not only after the worker has run for a while."""
        self._session = session
        self._started = self._queue._connection.micros() / SECOND
        thread = threading.Thread(target=self._run, args=(at_once,), name="tubes-worker-presence", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.warning("%s: this worker is not in the list of workers", error)
        else:
            self._thread = thread

    def end(self) -> None:
        """Remove the description, and wait a moment for that."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self, at_once: bool) -> None:
        if not at_once and self._ended.wait(BEAT):
            return
        while True:
            try:
                self._write()
                self._failed = False
            except QueueClosed:
                return
            except TubesError as error:
                # The worker can work without it. Missing permissions are logged once.
                level = logging.DEBUG if self._failed else logging.INFO
                log.log(level, "this worker is not in the list of workers: %s", error)
                self._failed = True
            except Exception:  # What it describes is the user's: names of handlers, for example.
                log.exception("this worker is not in the list of workers")
                return
            if self._ended.wait(BEAT):
                break
        try:
            if self._written is not None:
                self._written.delete()
        except TubesError:
            log.debug("a worker stays in the list of workers for some more seconds", exc_info=True)

    def _write(self) -> None:
        info = self._describe(WorkerInfo(self._session, socket.gethostname(), os.getpid(), self._started))
        if self._tube is None:
            self._tube = self._queue._workers_tube()
        fields = fields_of(info)
        try:
            self._written = self._tube.put(fields, key=self._session, on_duplicate="replace", ttl=FORGOTTEN)
        except TubeNotFound:  # The server has lost it: the next time it is created again.
            self._tube = None
