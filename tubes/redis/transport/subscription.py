"""A thread that receives the messages of some channels of a server."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Final

from tubes.backend.retry import Outage
from tubes.errors import ConnectionLost
from tubes.redis.transport.wire import ErrorReply, Reply, Wire, error_of, pack

#: Seconds of silence after which the connection is tested.
SILENCE: Final = 15.0


class Subscription(ABC):
    """One connection with a thread that passes its messages on. It reconnects after any error, with growing delays.

    Messages are lost while the connection is down, so subclasses look for changes in `_handle_connection`.
    """

    def __init__(self, thread_name: str, consequence: str) -> None:
        """`consequence`: what an outage means to users, for the log."""
        self._thread_name: Final = thread_name
        self._consequence: Final = consequence
        self._lock: Final = threading.Lock()
        self._outage: Final = Outage()
        self._wire: Wire | None = None
        # Stops the thread; None without a thread.
        self._stop: threading.Event | None = None

    @abstractmethod
    def _connect(self) -> Wire:
        """Return a new connection."""

    @abstractmethod
    def _handle_connection(self) -> None:
        """Handle a new connection of the thread. The caller holds the lock."""

    @abstractmethod
    def _handle(self, message: list[Reply]) -> None:
        """Handle a message."""

    def _start(self) -> None:
        """Start the thread unless it runs. The caller holds the lock."""
        if self._stop is None:
            self._stop = stop = threading.Event()
            try:
                threading.Thread(target=self._run, args=(stop,), name=self._thread_name, daemon=True).start()
            except RuntimeError:  # The process cannot start threads now.
                self._stop = None
                raise

    def close(self) -> None:
        """End the thread and the connection."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        """Do the work of `close`. The caller holds the lock."""
        if self._stop is not None:
            self._stop.set()
            self._stop = None
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.disconnect()

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                wire = self._open(stop)
                try:
                    self._receive(wire, stop)
                finally:
                    with self._lock:
                        if self._wire is wire:
                            self._wire = None
                    wire.close()
            except Exception as error:  # All users in this process depend on this thread.
                if not stop.is_set():
                    stop.wait(self._outage.next_delay(self._consequence, error))

    def _open(self, stop: threading.Event) -> Wire:
        """Return the connection; open one if there is none."""
        with self._lock:
            if self._wire is not None and not stop.is_set():
                return self._wire
        wire = self._connect()
        with self._lock:
            if not stop.is_set():
                if self._wire is None:
                    self._wire = wire
                    self._handle_connection()
                else:  # A listener has connected meanwhile.
                    wire.close()
                    wire = self._wire
        return wire

    def _receive(self, wire: Wire, stop: threading.Event) -> None:
        is_pinged = False
        while not stop.is_set():
            message = wire.poll(SILENCE)
            if message is None:
                if is_pinged:
                    raise ConnectionLost(url=wire.url, why="it did not reply in time")
                with self._lock:
                    wire.send(pack("PING"))
            is_pinged = message is None
            if type(message) is ErrorReply:
                raise error_of(message, wire.url)
            if type(message) is list:
                self._outage.end()
                self._handle(message)
