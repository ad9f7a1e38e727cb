"""Channels to a server for event loops, which pipeline all calls if possible.

How pipelining works: `LoopChannel` has one `_Pipe` per cluster node. Calls of one iteration of the loop gather in
`_out` and are written at once; `sent` has the calls in flight, whose replies arrive in the same order. An invalid reply
or a lost connection ends the pipe, and every call without a reply is sent again on a new one, with its own number (see
`script_call.py`). While a pipe connects, its calls wait in `_backlog`. `ThreadedChannel` serves connections that
cannot be pipelined here: TLS, and redis-py's own parser.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from tubes.backend.flow import run_async
from tubes.backend.waiters import PENDING
from tubes.errors import ConnectionLost, TubesError
from tubes.redis.transport import attempt
from tubes.redis.transport.attempt import Attempt, Step
from tubes.redis.transport.channel import ThreadChannel
from tubes.redis.transport.script_call import Load, ScriptCall
from tubes.redis.transport.wire import ErrorReply, Reply, foreign, hiredis

if TYPE_CHECKING:
    from tubes.redis.transport.script_call import Flow, Slots
    from tubes.redis.transport.server import Server

T = TypeVar("T")


def _orphan(call: ScriptCall, done: asyncio.Future[Reply]) -> None:
    """Undo a call whose caller was cancelled: now, or when its reply arrives."""
    if not done.done():
        done.cancel()
    elif not done.cancelled() and done.exception() is None and call.undo is not None:
        call.undo(done.result())


class Receiver(Protocol):
    """The receiver of the reply to a call: a future or a similar object."""

    def done(self) -> bool: ...

    def set_result(self, result: Reply, /) -> None: ...

    def set_exception(self, exception: TubesError, /) -> None: ...


class _Request:
    """A call in flight."""

    __slots__ = ("attempt", "call", "packed", "receiver", "reply", "slot")

    def __init__(self, call: ScriptCall, slot: int, receiver: Receiver, server: Server) -> None:
        self.call: Final = call
        self.slot: Final = slot
        self.receiver: Final = receiver
        call.begin(slot)
        self.attempt: Final = Attempt(call, server, time.monotonic(), call.patience, confirms=call.grows)
        #: The packed request; empty: pack it when it is written.
        self.packed = b"" if call.grows else call.pack(server)
        #: The reply, or `PENDING`; None if it has failed.
        self.reply: object = PENDING


class _LoadReceiver:
    """The receiver of the reply to a `Load`, which is sent before the call that it was made for."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Attempt) -> None:
        self._attempt: Final = attempt

    def done(self) -> bool:
        return False

    def set_result(self, result: Reply) -> None:
        self._attempt.end_load(result)

    def set_exception(self, exception: TubesError) -> None:
        """Ignore it: the call gets the same error."""


class _Pipe(asyncio.Protocol):
    """A connection with many calls in flight."""

    def __init__(self, channel: LoopChannel, loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._loop = loop
        self._transport: asyncio.WriteTransport | None = None
        self._reader = hiredis.Reader(replyError=ErrorReply)
        self._out: list[_Request] = []
        self.sent: deque[_Request] = deque()
        self.last_reply_at = time.monotonic()
        #: The last call that sends the library as well: others that miss it are sent again behind this one.
        self.loader: _Request | None = None
        #: True while requests are sent and while replies are read. If that is interrupted, they may no longer match.
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Cast: the transports of other loops, for example uvloop, are not instances of this class.
        self._transport = cast("asyncio.WriteTransport", transport)

    def send(self, request: _Request) -> None:
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(request)

    def flush(self) -> None:
        """Write the gathered calls; end the connection if it was interrupted."""
        if self.busy:
            self._channel.handle_loss(self, None)
            return
        self.busy = True
        packed = b"".join([request.packed or request.attempt.pack() for request in self._out])
        self.sent.extend(self._out)
        self._out = []
        if self._transport is not None:
            self._transport.write(packed)
        self.busy = False

    def calls(self) -> list[_Request]:
        """Return the calls without a reply, in order."""
        return [*dict.fromkeys((*self.sent, *self._out))]

    def drop_calls(self) -> None:
        """Drop the calls: they are sent on another connection."""
        self.sent.clear()
        self._out.clear()

    def data_received(self, data: bytes) -> None:
        if self.busy:
            self._channel.handle_loss(self, None)
            return
        self.busy = True
        self.last_reply_at = time.monotonic()
        reader, sent = self._reader, self.sent
        reader.feed(data)
        try:
            replies: list[Reply] = []
            while (reply := reader.gets()) is not False:
                replies.append(reply)
            # Check all replies before any is delivered: the bytes after a reply may show that it was garbled.
            extra = len(replies) - len(sent)
            if extra > 0 or (extra == 0 and reader.has_data()):
                raise foreign(replies[-1] if replies else b"")
            for reply in replies:
                if type(reply) not in sent[0].call.reply_types:
                    raise foreign(reply)
                self._channel.handle_reply(self, sent[0], reply)
                sent.popleft()
        except Exception as error:  # A reply is invalid or has no call: all later ones may be wrong, too.
            self._channel.handle_loss(self, error)
        self.busy = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel.handle_loss(self, exc)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class LoopChannel:
    """Calls of the tasks of one event loop, pipelined: one write per iteration of the loop.

    Each call in flight has a slot of its own. The server keeps its reply in it until another call uses the slot.
    """

    def __init__(
        self, server: Server, loop: asyncio.AbstractEventLoop, slots: Slots, closed: Callable[[], TubesError]
    ) -> None:
        self.server: Final = server
        # Makes the error for calls after `close`.
        self._make_closed_error: Final = closed
        self.loop: Final = loop
        #: Calls that may still grow, by key.
        self.growing: Final[dict[str, ScriptCall]] = {}
        self._slots: Final = slots
        self._pipes: Final[dict[str, _Pipe]] = {}
        self._connecting: Final[dict[str, asyncio.Task[None]]] = {}
        self._backlog: Final[dict[str, list[_Request]]] = {}
        self._closed = False
        self._watchdog: asyncio.TimerHandle | None = None

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow and return its result; undo its last call if it is cancelled."""
        last: tuple[ScriptCall, asyncio.Future[Reply]] | None = None

        def send(call: ScriptCall) -> asyncio.Future[Reply]:
            nonlocal last
            future: asyncio.Future[Reply] = self.loop.create_future()
            last = call, future
            self.submit(call, future)
            return future

        try:
            return await run_async(flow, send)
        except TubesError:
            raise
        except BaseException:  # The reply to the last call may have arrived already.
            if last is not None:
                _orphan(*last)
            raise

    def submit(self, call: ScriptCall, receiver: Receiver) -> None:
        """Send a call. `receiver`: receives the reply, or `ConnectionLost`."""
        if self._closed:
            receiver.set_exception(self._make_closed_error())
            return
        # A put that is submitted after this call must not join a call before it.
        if call.grows:
            self.growing[call.key] = call
        elif self.growing:
            self.growing.pop(call.key, None)
        request = _Request(call, self._slots.take(), receiver, self.server)
        if call.patience is not None:
            late = ConnectionLost(url=self.server.url, why="it did not reply in time")
            # In two steps: after a block of the loop, read the reply first.
            half = call.patience / 2
            self.loop.call_later(half, self.loop.call_later, half, self._fail, request, late)
        self._send(request)

    def _send(self, request: _Request) -> None:
        node = ""
        if request.reply is not PENDING:  # Its time is over.
            return
        if self._closed:
            self._fail(request, self._make_closed_error())
            return
        if len(self._pipes) == 1 and "" in self._pipes:
            self._pipes[""].send(request)
            return
        try:
            node = self.server.node(request.call.key)
        except ConnectionLost as error:
            self._fail(request, error)
            return
        pipe = self._pipes.get(node)
        if pipe is not None:
            pipe.send(request)
            return
        self._backlog.setdefault(node, []).append(request)
        if node not in self._connecting:
            self._connecting[node] = self.loop.create_task(self._connect(node, request.call.key))

    async def _connect(self, node: str, key: str) -> None:
        """Connect, and send the backlog."""
        pipe, outcome = None, None
        try:
            pipe = await self._open(key)
        except (TubesError, OSError) as error:
            outcome = error if isinstance(error, TubesError) else ConnectionLost(url=self.server.url, why=error)
            if isinstance(outcome, ConnectionLost):
                await asyncio.to_thread(self.server.rediscover)
        finally:
            del self._connecting[node]
        backlog = self._backlog.pop(node, [])
        if pipe is None:
            for request in backlog:
                self._advance(request, outcome)
        elif self._closed:
            pipe.close()
        else:
            self._pipes[node] = pipe
            for request in backlog:
                pipe.send(request)
            self._start_watchdog()

    async def _open(self, key: str) -> _Pipe:
        connecting = self.loop.run_in_executor(None, self.server.connect, key)
        try:
            connection = await asyncio.shield(connecting)
        except asyncio.CancelledError:  # The loop ends: close the connection when it is made.
            connecting.add_done_callback(
                lambda done: done.cancelled() or done.exception() or done.result().disconnect()
            )
            raise
        sock = connection._sock.dup()
        connection._sock.close()
        sock.setblocking(False)
        _, pipe = await self.loop.create_connection(lambda: _Pipe(self, self.loop), sock=sock)
        return pipe

    def handle_reply(self, pipe: _Pipe, request: _Request, reply: Reply) -> None:
        """Handle a reply: deliver it, or send the call again."""
        if request.reply is not PENDING:  # It was sent again although it already had a reply.
            return
        if type(reply) is not ErrorReply:
            self._resolve(request, reply)
            return
        if reply.code in attempt.OTHER_SERVER:
            pipe.close()
        self._advance(request, reply, pipe)

    def _advance(self, request: _Request, outcome: Reply | TubesError, pipe: _Pipe | None = None) -> None:
        """Take the next step of a call: deliver its reply, send it again, or fail it."""
        state = request.attempt
        try:
            step = state.next(outcome, time.monotonic(), self._make_closed_error() if self._closed else None)
        except TubesError as error:
            self._fail(request, error)
            return
        if step is Step.DONE:
            self._resolve(request, state.reply)
            return
        request.packed = b""
        if step in (Step.LOAD, Step.SEND_TEXT) and pipe is not None:
            loader = pipe.loader
            if loader is None or loader.reply is not PENDING:
                pipe.loader = request
            elif loader is not request:
                step = state.skip_load()
        if step is Step.LOAD:
            self.submit(Load(request.call.key), _LoadReceiver(state))
        elif step is Step.RECONNECT:
            if state.reply is not None:
                self.server.rediscover()
            if state.pause:
                self.loop.call_later(state.pause, self._send, request)
                return
        self._send(request)

    def _resolve(self, request: _Request, reply: Reply) -> None:
        request.reply = reply
        try:
            self._deliver(request)
        except ValueError:  # The reply to coalesced puts is garbled: send them again.
            request.reply = PENDING
            raise
        self._slots.free(request.slot)

    @staticmethod
    def _deliver(request: _Request) -> None:
        """Deliver a reply, unless the caller has one; undo the call if the caller was cancelled."""
        if not request.receiver.done():
            request.receiver.set_result(cast(Reply, request.reply))
        elif request.call.undo is not None and cast("asyncio.Future[Reply]", request.receiver).cancelled():
            request.call.undo(cast(Reply, request.reply))

    def _fail(self, request: _Request, error: TubesError) -> None:
        if request.reply is not PENDING:
            return
        request.reply = None
        give_up = request.call.give_up
        if give_up is None or not isinstance(error, ConnectionLost):
            self._slots.free(request.slot)
        else:  # The call keeps its slot.
            give_up(request.call)
        if not request.receiver.done():
            request.receiver.set_exception(error)

    def handle_loss(self, pipe: _Pipe, error: Exception | None) -> None:
        """Handle a connection that ended or was interrupted: send its calls without a reply on the next one."""
        pipe.close()
        node = next((name for name, known in self._pipes.items() if known is pipe), None)
        if node is not None:
            del self._pipes[node]
        waiting = pipe.calls()
        if waiting:
            self.server.rediscover()
        for request in waiting:
            if request.reply is PENDING:
                why = error or "the connection was closed"
                self._advance(request, ConnectionLost(url=self.server.url, why=why))
            else:
                self._deliver(request)
        pipe.drop_calls()

    def _start_watchdog(self) -> None:
        if self._watchdog is None and not self._closed:
            self._watchdog = self.loop.call_later(1.0, self._check_pipes)

    def _check_pipes(self) -> None:
        """Close connections that were interrupted, or received no reply for `PATIENCE` seconds."""
        self._watchdog = self.loop.call_later(1.0, self._check_pipes) if self._pipes else None
        for node, pipe in list(self._pipes.items()):
            pipe.flush()
            if pipe.sent and time.monotonic() - pipe.last_reply_at > attempt.PATIENCE:
                self.server.dead[node] = time.monotonic()  # `rediscover` must not wait for it in this loop.
                pipe.close()
            elif not pipe.sent:
                pipe.last_reply_at = time.monotonic()

    def close(self) -> None:
        """Close the channel."""
        self._closed = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        for pipe in list(self._pipes.values()):
            pipe.close()
        self._pipes.clear()
        for backlog in self._backlog.values():
            for request in backlog:
                self._fail(request, self._make_closed_error())
        self._backlog.clear()


class ThreadedChannel:
    """Calls of an event loop that cannot be pipelined: over TLS, and without hiredis.

    Each call in flight has a thread and a `ThreadChannel` of its own.
    """

    def __init__(self, server: Server, slots: Slots, closed: Callable[[], TubesError]) -> None:
        self._server: Final = server
        self._slots: Final = slots
        # Makes the error for calls after `close`.
        self._make_closed_error: Final = closed
        self._closed = False
        self._channels: Final[dict[int, ThreadChannel]] = {}

    def run(self, flow: Flow[T]) -> Coroutine[object, None, T]:
        """Run a flow and return its result."""
        return run_async(flow, self._ask)

    async def _ask(self, call: ScriptCall) -> Reply:
        if self._closed:
            raise self._make_closed_error()
        slot = self._slots.take()
        channel = self._channels.get(slot)
        if channel is None:
            channel = self._channels[slot] = ThreadChannel(self._server, slot, closed=self._make_closed_error)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().run_in_executor(None, channel.call, call)
        future.add_done_callback(lambda _: self._slots.free(slot))
        try:
            return await asyncio.shield(future)
        except BaseException:
            future.add_done_callback(lambda done: _orphan(call, done))
            raise

    def close(self) -> None:
        """Close the channels."""
        self._closed = True
        for channel in list(self._channels.values()):
            channel.disconnect()  # Otherwise the loop would wait for the thread that uses it.
            channel.close()
