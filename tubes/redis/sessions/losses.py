"""Tells the sessions of a process at once that they have lost a task, for example because it was cancelled.

A function that takes a task away from its holder publishes that on the channel `:lost` of the tube. One thread with one
connection receives these messages for all tubes of a store. Messages are lost while the connection is down: after each
subscription the callbacks are called with None, and look at their tasks themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import WeakKeyDictionary

from tubes.drivers.entry import Loss
from tubes.errors import ConnectionLost
from tubes.redis.library.replies import bytes_of
from tubes.redis.task_codec import decode_reason
from tubes.redis.transport.subscription import Subscription
from tubes.redis.transport.wire import Wire, pack

if TYPE_CHECKING:
    from tubes.redis.library.replies import Reply
    from tubes.redis.transport.server import Server

_Callback: TypeAlias = Callable[[Loss | None], object]


class Losses(Subscription):
    """The callbacks of the ports of one store. The subscription lasts as long as there are callbacks."""

    def __init__(self, server: Server) -> None:
        super().__init__("tubes-losses", "cancelled tasks are noticed late")
        self._server: Final = server
        self._callbacks: Final[dict[bytes, WeakKeyDictionary[object, _Callback]]] = {}
        self._key = ""

    def set(self, key: str, port: object, callback: _Callback | None) -> None:
        """Set or remove the callback of a port; `key`: the key of its tube."""
        channel = f"{key}:lost".encode()
        with self._lock:
            callbacks = self._callbacks.get(channel)
            if callback is None:
                if callbacks is not None:
                    callbacks.pop(port, None)
                    if not callbacks:
                        del self._callbacks[channel]
                if not self._callbacks:
                    self._close()
                return
            if callbacks is None:
                callbacks = self._callbacks[channel] = WeakKeyDictionary()
            callbacks[port] = callback
            self._key = key
            self._start()
            self._subscribe(channel)

    def _subscribe(self, *channels: bytes) -> None:
        """Subscribe to channels if the connection is up; a new one subscribes to all. The caller holds the lock."""
        if self._wire is not None and channels:
            with suppress(ConnectionLost):
                self._wire.send(pack("SUBSCRIBE", *channels))

    def _connect(self) -> Wire:
        return Wire(self._server, self._key)  # In a cluster a message reaches all nodes.

    def _handle_connection(self) -> None:
        self._subscribe(*self._callbacks)

    def _handle(self, message: list[Reply]) -> None:
        kind, channel, *content = message
        if kind not in (b"message", b"subscribe"):
            return
        loss: Loss | None = None
        if kind == b"message":
            with suppress(ValueError):  # Any client may publish on this channel: look at the tasks.
                event, id, take, reason = bytes_of(content[0]).split(b" ", 3)
                loss = Loss(int(id), int(take), event.decode(), decode_reason(reason) if reason else None)
        with self._lock:
            found = self._callbacks.get(bytes_of(channel))
            callbacks = [] if found is None else list(found.values())
        for callback in callbacks:
            callback(loss)
