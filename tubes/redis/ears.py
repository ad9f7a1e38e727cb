"""Who listens to a tube in one process: one subscription and one thread, which tells all in order."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from tubes.errors import ConnectionLost
from tubes.listeners import tell
from tubes.redis.wire import Wire, pack

if TYPE_CHECKING:
    from tubes.redis.calls import Flow
    from tubes.redis.home import Home
    from tubes.redis.port import Port

_log = logging.getLogger("tubes")

#: Seconds between two attempts to subscribe again.
_REST: Final = 0.2
#: Seconds of silence after which the connection is tried out.
_SILENCE: Final = 15.0


class Ears:
    """Hears the changes of one tube."""

    def __init__(self, home: Home) -> None:
        self._home: Final = home
        self._lock: Final = threading.Lock()
        self._ports: Final[WeakKeyDictionary[Port[Any], None]] = WeakKeyDictionary()
        self._wire: Wire | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    @property
    def listening(self) -> bool:
        """Whether anybody does."""
        return bool(self._ports)

    def open(self, port: Port[Any]) -> Flow[None]:
        """Begin to hear: whatever happens after this is told."""
        store = self._home.store
        with self._lock:
            if self._thread is None:
                self._wire = self._subscribe()
                self._stopped = threading.Event()
                self._thread = threading.Thread(
                    target=self._hear, args=(self._stopped,), name="tubes-ears", daemon=True
                )
                self._thread.start()
        soonest = yield from port.ask("listen", store.span())
        self._ports[port] = None
        if soonest:
            self._home.watch(soonest)

    def note(self, port: Port[Any]) -> None:
        """Whether a port listens has changed."""
        self._ports.pop(port, None)
        if port.listener is not None:
            self._ports[port] = None
        elif not self._ports:
            self.close()

    def close(self) -> None:
        """Hear no more."""
        with self._lock:
            self._stopped.set()
            self._thread = None
            wire, self._wire = self._wire, None
        if wire is not None:
            wire.hang_up()

    def _subscribe(self) -> Wire:
        wire = Wire(self._home.store.server, self._home.key)
        wire.call(pack("SUBSCRIBE", f"{self._home.key}:events"))
        return wire

    def _hear(self, stopped: threading.Event) -> None:
        asked = False
        while not stopped.is_set():
            try:
                wire = self._wire
                if wire is None:
                    wire = self._subscribe()
                    with self._lock:
                        if stopped.is_set():
                            wire.close()
                            return
                        self._wire = wire
                message: Any = wire.hear(_SILENCE)
                silent = message is None
                if silent:
                    if asked:
                        wire.close()
                        raise ConnectionLost(url=wire.url, why="it did not answer in time")
                    wire.send(pack("PING"))
                asked = silent
                if message.__class__ is list and message[0] == b"message":
                    self._tell(message[2])
            except ConnectionLost:
                with self._lock:
                    if stopped.is_set():
                        return
                    self._wire = None
                asked = False
                stopped.wait(_REST)

    def _tell(self, message: bytes) -> None:
        event, id, state, attempts, due, raw = message.split(b" ", 5)
        if int(due) >= 0:
            self._home.watch(int(due))
        reply = int(id), state, int(attempts), int(due), raw
        for port in list(self._ports):
            callback = port.listener
            if callback is None:
                continue
            tell(callback, port.show(reply), event.decode())
