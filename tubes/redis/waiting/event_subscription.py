"""The changes of a tube for all listeners of a process: one subscription, and one thread that calls the listeners."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from tubes.backend.listeners import notify_listener
from tubes.errors import ConnectionLost
from tubes.redis import task_codec
from tubes.redis.library.replies import LIST, Reply, bytes_of, number_of
from tubes.redis.transport.attempt import PASSING
from tubes.redis.transport.subscription import Subscription
from tubes.redis.transport.wire import ErrorReply, Wire, error_of, pack

if TYPE_CHECKING:
    from tubes.redis.transport.script_call import Flow
    from tubes.redis.waiting.emptiness import Emptiness
    from tubes.redis.waiting.protocols import Tube, WaitingPort

_log = logging.getLogger("tubes")


class EventSubscription(Subscription):
    """The subscription of one process to the changes of one tube. It lasts as long as the tube has listeners."""

    def __init__(self, tube: Tube, emptiness: Emptiness) -> None:
        super().__init__("tubes-events", f"changes of tube {tube.name!r} are not received")
        self._tube: Final = tube
        self._emptiness: Final = emptiness
        self._ports: Final[WeakKeyDictionary[WaitingPort, None]] = WeakKeyDictionary()
        # True after the warning about a message that no function has published.
        self._has_warned = False

    @property
    def listening(self) -> bool:
        """True if a listener is set, or a caller waits until the tube is empty."""
        return bool(self._ports) or self._emptiness.waiting

    def open(self, port: WaitingPort) -> Flow[None]:
        """Subscribe for a port to all later changes. Raises the server's error if it refuses."""
        try:
            soonest = yield from self.start(port)
        except BaseException:
            self.update_listener(port)
            raise
        self._ports[port] = None
        if soonest:
            self._tube.watch(soonest)

    def start(self, port: WaitingPort) -> Flow[int]:
        """Subscribe to all later changes; return the next due time, or 0.

        `port`: sends the request that makes functions publish changes.
        """
        with self._lock:
            if self._wire is None:  # This is the first listener, or the connection was lost.
                self._wire = self._connect()
            self._start()
        return number_of((yield from port.run_script("listen", (self._tube.store.span(),))))

    def update_listener(self, port: WaitingPort) -> None:
        """Record whether a port has a listener; the subscription ends with the last one."""
        self._ports.pop(port, None)
        if port.listener is not None and port.closed_error is None:
            self._ports[port] = None
        else:
            self.close_if_unused()

    def close_if_unused(self) -> None:
        """End the subscription if the tube has no listeners left."""
        if not self.listening:
            self.close()

    def _connect(self) -> Wire:
        wire = Wire(self._tube.store.server, self._tube.key)
        try:
            wire.send(pack("SUBSCRIBE", f"{self._tube.key}:events"))
            reply = wire.receive(LIST)
            if type(reply) is ErrorReply:
                raise ConnectionLost(url=wire.url, why=reply) if reply.code in PASSING else error_of(reply, wire.url)
        except BaseException:
            wire.close()
            raise
        return wire

    def _handle_connection(self) -> None:
        self._outage.end()
        self._emptiness.schedule_check()

    def _handle(self, message: list[Reply]) -> None:
        try:
            if message[0] == b"message":
                self._dispatch(bytes_of(message[2]))
        except Exception as error:  # Any client may publish on this channel.
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "ignored a message on the channel of tube %r, because it is not an event: %s",
                    self._tube.name,
                    type(error).__name__,
                )

    def _dispatch(self, message: bytes) -> None:
        if message == task_codec.ALL_GONE:
            self._emptiness.schedule_check()
            return
        event, reply = task_codec.parse_event(message)
        self._emptiness.handle_event(reply)
        if reply[4] >= 0:
            self._tube.watch(reply[4])
        for port in list(self._ports):
            callback = port.listener
            if callback is None:
                continue
            notify_listener(callback, port.decode(reply), event)
