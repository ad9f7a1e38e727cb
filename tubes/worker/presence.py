"""Publishes the description of a running worker for `QueueAdmin.workers`."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from tubes.backend.port import connection_of
from tubes.drivers.options import SECOND
from tubes.errors import QueueClosed, TubeNotFound, TubesError
from tubes.values.timings import Timings
from tubes.values.worker_info import HEARTBEAT, HEARTBEAT_TTL, WorkerInfo
from tubes.worker.logs import log

if TYPE_CHECKING:
    from tubes.sync import Queue, Task, Tube


class Presence:
    """A thread that stores a worker's description every few seconds. If the process dies, the description expires.

    It is a thread because handlers may block the event loop. `describe`: called in the thread; completes the
    description. `timings`: called in the thread; returns the sketches of durations.
    """

    def __init__(
        self, queue: Queue, describe: Callable[[WorkerInfo], WorkerInfo], timings: Callable[[], list[Timings]]
    ) -> None:
        self._queue: Final = queue
        self._describe: Final = describe
        self._timings: Final = timings
        self._ended: Final = threading.Event()
        self._thread: threading.Thread | None = None
        self._session = ""
        self._started = 0.0
        self._tube: Tube | None = None
        self._entry: Task | None = None
        self._failed = False

    def begin(self, session: str, *, at_once: bool) -> None:
        """Start to store the description. `at_once`: now, instead of after one interval."""
        self._session = session
        self._started = connection_of(self._queue).micros() / SECOND
        thread = threading.Thread(target=self._run, args=(at_once,), name="tubes-worker-presence", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.warning("this worker is not in the list of workers, no thread could be started: %s", error)
        else:
            self._thread = thread

    def end(self) -> None:
        """Remove the description; wait for that at most a second."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self, at_once: bool) -> None:
        if not at_once and self._ended.wait(HEARTBEAT):
            return
        while True:
            try:
                self._write()
                self._failed = False
            except QueueClosed:
                return
            except TubesError as error:
                # The worker can run without it. An error that lasts is logged once, for example a missing permission.
                level = logging.DEBUG if self._failed else logging.INFO
                log.log(level, "this worker is not in the list of workers: %s", error)
                self._failed = True
            except Exception:  # The names of handlers come from the user's code, which may raise anything.
                log.exception("this worker is not in the list of workers")
                return
            if self._ended.wait(HEARTBEAT):
                break
        try:
            if self._entry is not None:
                self._entry.delete()
        except TubesError:
            log.debug("a worker stays in the list of workers until its entry expires", exc_info=True)

    def _write(self) -> None:
        info = self._describe(WorkerInfo(self._session, socket.gethostname(), os.getpid(), self._started))
        if self._tube is None:
            self._tube = self._queue.admin._workers_tube()
        fields = asdict(info) | {"timings": [one.fields for one in self._timings()]}
        try:
            self._entry = self._tube.put(fields, key=self._session, on_duplicate="replace", ttl=HEARTBEAT_TTL)
        except TubeNotFound:  # The server lost the tube: the next write creates it again.
            self._tube = None
