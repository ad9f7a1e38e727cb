"""Tells the sessions of a process at once that they have lost a task, for example because it was cancelled.

A script that takes a task away from its holder publishes that on the channel `:lost` of the tube. One thread with one
connection receives these messages for all tubes of a store. Messages are lost while the connection is down: after each
subscription the callbacks are called with None, and look at their tasks themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from tubes.backend.retry import Outage
from tubes.drivers.entry import Loss
from tubes.errors import ConnectionLost
from tubes.redis.transport.wire import ErrorReply, Wire, error_of, pack

if TYPE_CHECKING:
    from tubes.redis.scripts.replies import Reply
    from tubes.redis.transport.server import Server

_Callback: TypeAlias = Callable[[Loss | None], object]


class _Port(Protocol):
    @property
    def shared(self) -> Any: ...


#: Seconds of silence after which the connection is tested.
_SILENCE: Final = 15.0


class Losses:
    """The callbacks of the ports of one store, and their subscription. It starts with the first callback."""

    def __init__(self, server: Server) -> None:
        self._server: Final = server
        self._lock: Final = threading.Lock()
        self._callbacks: Final[dict[bytes, WeakKeyDictionary[_Port, _Callback]]] = {}
        self._key = ""
        self._wire: Wire | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def set(self, port: _Port, callback: _Callback | None) -> None:
        """Set or remove the callback of a port."""
        channel = f"{port.shared.key}:lost".encode()
        with self._lock:
            callbacks = self._callbacks.get(channel)
            if callback is None:
                if callbacks is not None:
                    callbacks.pop(port, None)
                    if not callbacks:
                        del self._callbacks[channel]
                if not self._callbacks:
                    self._stop()
                return
            if callbacks is None:
                callbacks = self._callbacks[channel] = WeakKeyDictionary()
            callbacks[port] = callback
            self._key = port.shared.key
            if self._thread is None:
                self._stopped = threading.Event()
                thread = threading.Thread(target=self._run, args=(self._stopped,), name="tubes-losses", daemon=True)
                thread.start()
                self._thread = thread
            else:
                self._send("SUBSCRIBE", channel)

    def _send(self, command: str, *channels: bytes) -> None:
        """Send a command if the connection is up; a new connection subscribes to all channels. Under the lock."""
        if self._wire is not None and channels:
            with suppress(ConnectionLost):
                self._wire.send(pack(command, *channels))

    def close(self) -> None:
        """End the subscription."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        """End the thread. Under the lock. It keeps the channels of tubes that are no longer used until then."""
        self._stopped.set()
        self._thread = None
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.disconnect()

    def _run(self, stopped: threading.Event) -> None:
        outage = Outage()
        while not stopped.is_set():
            wire: Wire | None = None
            try:
                # In a cluster a message reaches all nodes.
                wire = Wire(self._server, self._key)
                with self._lock:
                    if stopped.is_set():
                        break
                    self._wire = wire
                    self._send("SUBSCRIBE", *self._callbacks)
                self._receive(wire, outage, stopped)
            except Exception as error:  # All workers of this process depend on this thread.
                if not stopped.is_set():
                    stopped.wait(outage.next_delay("cancelled tasks are noticed late", error))
            finally:
                with self._lock:
                    if self._wire is wire:
                        self._wire = None
                if wire is not None:
                    wire.close()

    def _receive(self, wire: Wire, outage: Outage, stopped: threading.Event) -> None:
        is_pinged = False
        while not stopped.is_set():
            message = wire.poll(_SILENCE)
            if message is None:
                if is_pinged:
                    raise ConnectionLost(url=wire.url, why="it did not reply in time")
                with self._lock:
                    wire.send(pack("PING"))
            is_pinged = message is None
            if type(message) is ErrorReply:
                raise error_of(message, wire.url)
            if type(message) is list:
                outage.end()
                self._report(message)

    def _report(self, message: list[Reply]) -> None:
        kind, channel, *rest = message
        if kind not in (b"message", b"subscribe"):
            return
        loss: Loss | None = None
        if kind == b"message" and rest[0]:
            try:
                event, id, take, reason = bytes(rest[0]).decode("utf-8", "surrogatepass").split(" ", 3)  # type: ignore[arg-type]
                loss = Loss(int(id), int(take), event, reason or None)
            except ValueError:  # Any client may publish on this channel: look at the tasks.
                pass
        with self._lock:
            callbacks = list(self._callbacks.get(bytes(channel), {}).values())  # type: ignore[arg-type]
        for callback in callbacks:
            callback(loss)
