"""A channel to a server for threads: one call at a time, sent again until a reply arrives.

How a call is sent: `call` and `exchange` send it on the open connection. Unless that gives the reply, an `Attempt`
says what to do next (see `attempt.py`), and `_complete` does it.

How waiting works: `begin_wait` sends a blocking command, such as BZPOPMIN, and a take behind it; `end_wait` reads both
replies. The server runs the take as soon as the command ends. `disconnect` ends a wait from another thread.

How a cluster works: `NodeChannels` has a channel for each node.

How interrupts work: `undos` lists the interrupted calls that have to be undone, in order, each as a function with its
arguments. The interrupted caller tries to undo them at once; if that fails, the next call does it first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from tubes.backend.flow import run
from tubes.errors import ConnectionLost, TubesError
from tubes.redis.library.replies import MARKER
from tubes.redis.transport import script_call
from tubes.redis.transport.attempt import PASSING, Attempt, Step
from tubes.redis.transport.script_call import Command, Load, ScriptCall, WaitForLock
from tubes.redis.transport.server import REPLY_TIMEOUT
from tubes.redis.transport.wire import ErrorReply, Reply, Wire, Word, pack

if TYPE_CHECKING:
    from tubes.redis.transport.script_call import Flow
    from tubes.redis.transport.server import Server

T = TypeVar("T")
#: A function that undoes an interrupted call, and its arguments. It may be called twice.
Undo: TypeAlias = tuple[Any, ...]

# Seconds for which a finalizer waits until the channel is idle.
_IDLE_TIMEOUT: Final = 0.05
# Errors that end a blocking command. UNBLOCKED: the server became a replica meanwhile.
_WAIT_ERRORS: Final = PASSING | {"UNBLOCKED"}


def run_undos(undos: list[Undo]) -> None:
    """Undo interrupted calls."""
    while undos:
        undo, *args = undos[0]
        undo(*args)
        del undos[0]


class ThreadChannel:
    """Calls of threads to a server, one at a time.

    A call and its undo may be interrupted at any moment, for example by KeyboardInterrupt. CPython raises it when a
    function begins, after a call of a built-in function, and when a loop jumps back. So an `except` block that begins
    with `undos.append(...)` always completes that line. A wire that is still `busy` is replaced.
    """

    def __init__(
        self,
        server: Server,
        slot: int | str = 0,
        patience: float | None = None,
        closed: Callable[[], TubesError] | None = None,
    ) -> None:
        self._server: Final = server
        # Makes the error for calls after `close`; None: they raise `ConnectionLost`.
        self._make_closed_error: Final = closed
        self.slot = slot
        # Seconds for a call and for connecting; None: the usual limits.
        self._patience: Final = patience
        self._lock: Final = threading.Lock()
        self._wires: Final[dict[str, Wire]] = {}
        # The connection, if there is only one server.
        self._only: Wire | None = None
        self._closed = False
        # The wire of a wait (None: the request could not be sent), and the call behind it.
        self._wait: tuple[Wire | None, ScriptCall | None] | None = None
        #: Interrupted calls that have to be undone, in order.
        self.undos: Final[list[Undo]] = []

    def is_idle(self) -> bool:
        """Return True if the channel is unused within `_IDLE_TIMEOUT`: a finalizer may run in the middle of a call."""
        until = time.monotonic() + _IDLE_TIMEOUT
        while self._lock.locked() and time.monotonic() < until:
            time.sleep(WaitForLock.SECONDS)
        return not self._lock.locked()

    def run(self, flow: Flow[T]) -> T:
        """Run a flow and return its result. If it is interrupted, undo its last call, even if the reply was read."""
        last: tuple[Any, ...] = ()

        def send(call: ScriptCall) -> Reply:
            nonlocal last
            channel = self._channel_of(call)
            last = channel, call, None
            reply = channel.call(call)
            last = channel, call, reply
            return reply

        try:
            return run(flow, send)
        except TubesError:
            raise
        except BaseException:
            if last:
                last[0].undos.append((last[0]._undo, *last[1:]))
                last[0].run_undos()
            raise

    def _channel_of(self, call: ScriptCall) -> ThreadChannel:
        """Return the channel that sends a call."""
        return self

    def call(self, call: ScriptCall) -> Reply:
        """Send a call and return its reply. Raises `ConnectionLost` if no server replies for `PATIENCE` seconds."""
        with self._lock:
            if self.undos:
                run_undos(self.undos)
            if call.patience is not None and self._server.dead:
                self._check_node(call.key, call.patience)
            call.begin(self.slot)
            started, wire = time.monotonic(), self._only
            if wire is None or wire.busy:
                return self._complete(self._attempt(call))
            outcome: Reply | TubesError
            try:  # Most calls need no attempt, which costs 2 us.
                outcome = wire.call(call.pack(self._server), call.reply_types, call.replies)
                if type(outcome) is not ErrorReply:
                    return outcome
            except ConnectionLost as lost:
                outcome = lost
            return self._continue(call, outcome, started)

    def call_all(self, calls: list[ScriptCall]) -> list[Reply]:
        """Send calls to one node in one round trip and return their replies. They use no session, and may run twice."""
        outcomes: list[Reply | TubesError] = []
        with self._lock:
            try:
                wire = self._wire(calls[0].key)
                wire.send(b"".join([call.pack(self._server) for call in calls]))
                for call in calls:
                    outcomes.append(wire.receive(call.reply_types, last=call is calls[-1]))
            except ConnectionLost as lost:
                outcomes += [lost] * (len(calls) - len(outcomes))
            return [
                self._continue(call, outcome) if isinstance(outcome, ErrorReply | TubesError) else outcome
                for call, outcome in zip(calls, outcomes, strict=True)
            ]

    def _check_node(self, key: str, patience: float) -> None:
        """Raise `ConnectionLost` if other calls have just found that the node of a call is dead."""
        dead_since = self._server.dead.get(self._server.node(key))
        if dead_since is not None and time.monotonic() < dead_since + patience:
            raise ConnectionLost(url=self._server.url, why="the node does not reply")

    def _undo(self, call: ScriptCall, reply: Reply) -> None:
        """Undo an interrupted call. `reply`: None if it was not read; the call is sent again to get the kept reply."""
        if not call.number or call.undo is None:  # It was not sent, or needs no undo.
            return
        if reply is None or type(reply) is ErrorReply:
            call.resent = True
            try:
                reply = self._complete(self._attempt(call))
            except ConnectionLost:
                if call.give_up is None:
                    raise
                return
        call.undo(reply)

    def run_undos(self) -> None:
        """Undo the interrupted calls; if no server replies, leave them to the next call."""
        with suppress(TubesError), self._lock:
            run_undos(self.undos)

    @property
    def waiting(self) -> bool:
        """True between `begin_wait` and the end of `end_wait`."""
        return self._wait is not None

    def begin_wait(self, key: str, words: tuple[Word, ...], call: ScriptCall | None, sent: Callable[[], None]) -> None:
        """Send a blocking command, and a call behind it if one is given.

        Both are sent at once: the server runs the call as soon as the command ends. `call` already has its slot and its
        number. `sent`: called once they are sent. Until `end_wait` only `disconnect` may be called.
        """
        with self._lock:
            packed = pack(*words)
            if call is not None:
                packed += call.pack(self._server)
            wire = None
            try:
                wire = self._wire(key)
                wire.send(packed)
                sent()
            except ConnectionLost:
                wire = None
            self._wait = wire, call

    def end_wait(self) -> tuple[Reply, Reply]:
        """Return the reply to the blocking command (True: unknown), and the reply to the call behind it, if any.

        If the connection is lost, do not send the command again: its reply may be lost, so the caller takes first.
        """
        assert self._wait is not None
        with self._lock:
            try:
                return self._end_wait(*self._wait)
            finally:
                self._wait = None

    def _end_wait(self, wire: Wire | None, call: ScriptCall | None) -> tuple[Reply, Reply]:
        reply: Reply = None
        try:
            if wire is None:
                raise ConnectionLost(url=self._server.url, why="nothing could be sent")
            marker_reply = wire.receive(MARKER, last=call is None)
            if call is not None:
                reply = wire.receive(call.reply_types, last=True)
            if type(marker_reply) is ErrorReply and marker_reply.code in _WAIT_ERRORS:
                raise ConnectionLost(url=self._server.url, why=marker_reply)
        except ConnectionLost as lost:
            if call is None:
                self._server.rediscover()
                self._forget_wires()
                raise
            return True, self._continue(call, lost)
        if call is not None and type(reply) is ErrorReply:
            reply = self._continue(call, reply)
        return marker_reply, reply

    def exchange(
        self,
        key: str,
        head: bytes,
        tail: bytes,
        kinds: frozenset[type],
        make_call: Callable[[int, str, Any, Callable[[Reply], None] | None], ScriptCall],
        script: str,
        words: Any,
        undo: Callable[[Reply], None] | None = None,
    ) -> Reply:
        """Send a request that was packed in advance and return its reply.

        `head`, `tail`: the bytes before and after its number. `kinds`: the expected types of the reply.
        `make_call`: makes a call from its number, `script` and `words`, if the request must be sent again. `undo`:
        undoes it if it is interrupted. The channel is locked until the reply arrives, so that no other call overwrites
        the kept reply.
        """
        number, reply = 0, None
        try:
            with self._lock:
                if self.undos:
                    run_undos(self.undos)
                number = next(script_call.numbers)
                wire = self._only
                outcome: Reply | TubesError
                try:
                    if wire is None or wire.busy:
                        wire = self._wire(key)
                    outcome = reply = wire.call(b"%b%d%b" % (head, number, tail), kinds)
                    if type(reply) is not ErrorReply:
                        return reply
                except ConnectionLost as lost:
                    outcome = lost
                return self._continue(make_call(number, script, words, undo), outcome, confirms=True)
        except TubesError:
            raise
        except BaseException:
            if undo is not None:
                self.undos.append((self._undo_exchange, reply, make_call, number, script, words, undo))
                self.run_undos()
            raise

    def _undo_exchange(self, reply: Reply, make_call: Callable[..., ScriptCall], number: int, *args: Any) -> None:
        if number:
            self._undo(make_call(number, *args), reply)

    def request(self, key: str, *words: Word) -> Reply:
        """Send a plain command and return its reply. The command may run twice."""
        with self._lock:
            return self._complete(self._attempt(Command(key, *words)))

    def _attempt(self, call: ScriptCall, started: float | None = None, *, confirms: bool = False) -> Attempt:
        now = time.monotonic() if started is None else started
        return Attempt(call, self._server, now, call.patience or self._patience, confirms=confirms)

    def _continue(
        self, call: ScriptCall, outcome: Reply | TubesError, started: float | None = None, *, confirms: bool = False
    ) -> Reply:
        """Return the reply to a call after its first sending, which had this outcome."""
        attempt = self._attempt(call, started, confirms=confirms)
        return self._complete(attempt, self._next(attempt, outcome))

    def _next(self, attempt: Attempt, outcome: Reply | TubesError) -> Step:
        return attempt.next(outcome, time.monotonic(), self._closed_error() if self._closed else None)

    def _complete(self, attempt: Attempt, step: Step = Step.SEND) -> Reply:
        """Take the steps of an attempt until its reply arrives, and return the reply."""
        try:
            return self._take_steps(attempt, step)
        except ConnectionLost:
            if attempt.call.give_up is not None:
                attempt.call.give_up(attempt.call)
                self.slot = f"l{attempt.call.number}"  # The call keeps its slot.
            raise

    def _take_steps(self, attempt: Attempt, step: Step) -> Reply:
        call = attempt.call
        patience = call.patience or self._patience
        while step is not Step.DONE:
            if step is Step.RECONNECT:
                # Finding the servers again takes long if one of them hangs: channels with a short limit skip it.
                if patience is None or attempt.reply is not None:
                    self._server.rediscover()
                self._forget_wires()
                time.sleep(attempt.pause)
            elif step is Step.LOAD:
                attempt.end_load(self._complete(self._attempt(Load(call.key))))
            outcome: Reply | TubesError
            try:
                packed = attempt.pack()
                wire = self._wire(call.key, patience)
                if call.patience != self._patience:
                    wire.set_timeout(patience or REPLY_TIMEOUT)
                outcome = wire.call(packed, call.reply_types, call.replies)
                if call.patience != self._patience:
                    wire.set_timeout(self._patience or REPLY_TIMEOUT)
            except TubesError as error:
                outcome = error
            step = self._next(attempt, outcome)
        return attempt.reply

    def _closed_error(self) -> TubesError:
        """Make the error for a closed channel."""
        if self._make_closed_error is not None:
            return self._make_closed_error()
        return ConnectionLost(url=self._server.url, why="it was closed")

    def _wire(self, key: str, patience: float | None = None) -> Wire:
        if self._closed:
            raise self._closed_error()
        patience = patience or self._patience
        node = self._server.node(key, patience)
        wire = self._wires.get(node)
        if wire is None or wire.busy:
            if wire is not None:
                wire.close()
            wire = self._wires[node] = Wire(self._server, key, patience)
            if not node:
                self._only = wire
        return wire

    def _forget_wires(self) -> None:
        self._only = None
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    def disconnect(self) -> None:
        """Close the channel from any thread: a call in flight fails."""
        self._closed = True
        for wire in list(self._wires.values()):
            wire.disconnect()

    def close(self) -> None:
        """Close the channel after the call in flight."""
        with self._lock:
            self._closed = True
            self._forget_wires()


class NodeChannels(ThreadChannel):
    """Calls of threads to a cluster: one at a time to each node, so that no call waits for one to a dead node.

    Calls with `patience` have connections of their own: they do not wait for calls without.
    """

    def __init__(self, server: Server, closed: Callable[[], TubesError]) -> None:
        super().__init__(server, closed=closed)
        # By the name of each node, and whether the calls have `patience`.
        self._channels: Final[dict[tuple[str, bool], ThreadChannel]] = {}

    def _channel_of(self, call: ScriptCall) -> ThreadChannel:
        if self.undos:
            self.run_undos()
        try:
            node = self._server.node(call.key)
        except ConnectionLost:  # The call finds the nodes again.
            node = ""
        place = node, call.patience is not None
        channel = self._channels.get(place)
        if channel is None:
            with self._lock:
                # A slot of its own: a key may move to another node while a call on it is sent again.
                new = ThreadChannel(self._server, len(self._channels), call.patience, self._make_closed_error)
                channel = self._channels.setdefault(place, new)
        return channel

    def call(self, call: ScriptCall) -> Reply:
        return self._channel_of(call).call(call)

    def call_all(self, calls: list[ScriptCall]) -> list[Reply]:
        return self._channel_of(calls[0]).call_all(calls)

    def request(self, key: str, *words: Word) -> Reply:
        return self.call(Command(key, *words))

    def is_idle(self) -> bool:
        return all(channel.is_idle() for channel in list(self._channels.values()))

    def close(self) -> None:
        super().close()
        for channel in list(self._channels.values()):
            channel.close()
