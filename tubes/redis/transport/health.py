"""Which nodes of a cluster reply, for calls that concern many tubes: they leave out the tubes of a dead node.

A node that has just replied to a PING counts as living. A node that does not reply for `PATIENCE` seconds counts as
dead: from then on no caller waits for it, and a thread sends it one PING per second. Calls on one tube do not use
this: they are sent again for their usual time.

Takes from partitions do not wait for a dead node either (`limit`). Such a take may have run, or may run later, because
a stopped node reads its connections when it continues. So a thread sends the take again, with the same number, until
the node replies, and undoes it.
"""

from __future__ import annotations

import threading
import time
from _thread import start_new_thread
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tubes.errors import ConnectionLost, TubesError
from tubes.redis.transport.channel import ThreadChannel
from tubes.redis.transport.script_call import Command, ScriptCall

if TYPE_CHECKING:
    from tubes.redis.transport.script_call import Flow
    from tubes.redis.transport.server import Server
    from tubes.redis.transport.wire import Reply

#: Seconds to wait for a reply.
PATIENCE: Final = 1.0
#: Seconds for which a reply shows that a node lives, and seconds between two PINGs to a dead node.
_LIVING: Final = 0.1
_DEAD: Final = 1.0
#: Seconds without a PING after which a dead node may live again: the next call sends one.
_UNKNOWN: Final = 60.0
#: The number of keys that are tried to find a living node.
_KEYS: Final = 50


class NodeHealth:
    """The nodes of one cluster. A single server always counts as living."""

    def __init__(self, server: Server) -> None:
        self._server: Final = server
        # The time until which a living node needs no PING.
        self._living: Final[dict[str, float]] = {}
        self._lock: Final = threading.Lock()
        # The calls that have to be undone when their node replies again.
        self._lost: Final[list[ScriptCall]] = []
        self._is_undoing = False
        self._closed = False

    def replies(self, key: str) -> Flow[bool]:
        """Return False if the node of a key is dead."""
        if not self._server.moving:
            return True
        node, now = self._server.node(key), time.monotonic()
        due = self._server.dead.get(node)
        if due is not None and now < due + _UNKNOWN:
            if now >= due:
                self._server.dead[node] = now + _DEAD
                start_new_thread(self._probe, (key, node))
            return False
        if now >= self._living.get(node, 0.0):
            if (yield from self._send(Command(key, "PING"))) is None:
                return False
            self._living[node] = time.monotonic() + _LIVING
            self._server.dead.pop(node, None)
        return True

    def ask(self, call: ScriptCall) -> Flow[Reply]:
        """Return the reply to a call that changes nothing; None if its node is dead."""
        if not self._server.moving:
            reply: Reply = yield call
            return reply
        return (yield from self._send(call)) if (yield from self.replies(call.key)) else None

    def _send(self, call: ScriptCall) -> Flow[Reply]:
        node = self._server.node(call.key)
        call.patience = PATIENCE
        try:
            reply: Reply = yield call
        except ConnectionLost:
            self._server.dead[node] = time.monotonic()
            return None
        return reply

    def limit(self, call: ScriptCall) -> None:
        """Let a call fail after `PATIENCE` seconds. It is undone when its node replies again."""
        call.patience, call.give_up = PATIENCE, self._give_up

    def _give_up(self, call: ScriptCall) -> None:
        call.patience = call.give_up = None
        with suppress(ConnectionLost):
            self._server.dead[self._server.node(call.key)] = time.monotonic()
        with self._lock:
            self._lost.append(call)
            if not self._is_undoing:
                self._is_undoing = True
                start_new_thread(self._undo_lost, ())

    def _undo_lost(self) -> None:
        """Send the lost calls again until their nodes reply, and undo them. Runs in a thread."""
        channel = ThreadChannel(self._server, "p", PATIENCE)
        while self._is_undoing:
            time.sleep(_DEAD)
            self._server.rediscover()
            for call in list(self._lost):
                with suppress(TubesError):
                    reply = channel.call(call)
                    if call.undo is not None:
                        call.undo(reply)
                    self._lost.remove(call)
            with self._lock:
                self._is_undoing = bool(self._lost) and not self._closed
        channel.close()

    def close(self) -> None:
        """End the thread that undoes calls: the end of their session releases the tasks."""
        self._closed = True

    def living_key(self, prefix: str) -> Flow[str]:
        """Return a key on a living node of a cluster, for commands that any node can run; '' if there is none."""
        for number in range(_KEYS if self._server.moving else 0):
            key = f"{prefix}:{number}"
            if (yield from self.replies(key)):
                return key
        return ""

    def _probe(self, key: str, node: str) -> None:
        """Find out if a dead node lives again, or another node has its keys. Runs in a thread, so no caller waits."""
        self._server.rediscover()
        channel = ThreadChannel(self._server, "p", PATIENCE)
        with suppress(TubesError):
            channel.request(key, "PING")
            self._server.dead.pop(node, None)
        channel.close()
