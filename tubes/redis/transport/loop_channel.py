"""Channels to a server for event loops: all calls on their way at once, where that is possible."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from tubes.backend.flow import run_async
from tubes.backend.waiters import PENDING
from tubes.errors import ConnectionLost, InvalidOption, ServerRefused, TubesError
from tubes.redis.transport import script_call
from tubes.redis.transport.channel import ThreadChannel, pay
from tubes.redis.transport.script_call import ScriptCall
from tubes.redis.transport.wire import ErrorReply, Reply, foreign, hiredis

if TYPE_CHECKING:
    from tubes.redis.transport.channel import Debt
    from tubes.redis.transport.script_call import Flow, Slots
    from tubes.redis.transport.server import Server

T = TypeVar("T")


def _orphan(call: ScriptCall, done: asyncio.Future[Reply]) -> None:
    """Undo a call whose caller is gone: now, or when its reply comes."""
    if not done.done():
        done.cancel()
    elif not done.cancelled() and done.exception() is None and call.orphaned is not None:
        call.orphaned(done.result())


class Answer(Protocol):
    """The receiver of the reply to a call: a future, or an object like one."""

    def done(self) -> bool: ...

    def set_result(self, result: Reply, /) -> None: ...

    def set_exception(self, exception: TubesError, /) -> None: ...


class _Sent:
    """A call on its way."""

    __slots__ = ("_moving", "call", "packed", "refused", "reply", "result", "slot", "tries", "until")

    def __init__(self, call: ScriptCall, slot: int, answer: Answer, *, moving: bool) -> None:
        self._moving: Final = moving
        self.call = call
        self.slot = slot
        self.result = answer
        call.begin(slot)
        self.packed = b"" if call.grows else call.pack(moving=moving)
        #: The reply, once there is one.
        self.reply: object = PENDING
        #: The error if the server refuses what is to happen before it.
        self.refused: ErrorReply | None = None
        self.tries = 0
        self.until = time.monotonic() + script_call.PATIENCE

    def pack(self) -> bytes:
        """Give the request of the call, as it goes out."""
        if not self.packed:
            self.packed = self.call.pack(moving=self._moving)
        return self.packed

    def again(self) -> None:
        """Prepare the call to be sent once more: it may have been done already."""
        self.call.resent = True
        self.packed = self.call.pack(moving=self._moving)


class _Tick:
    """Gets the reply to what is to happen before a call, which is on its way behind it."""

    __slots__ = ("_one",)

    def __init__(self, one: _Sent) -> None:
        self._one: Final = one

    def done(self) -> bool:
        return False

    def set_result(self, result: Reply) -> None:
        if type(result) is ErrorReply and result.code not in script_call.OF_CALLS_TOO:
            self._one.refused = result

    def set_exception(self, exception: TubesError) -> None:
        """The call gets one too."""


class _Pipe(asyncio.Protocol):
    """A connection on which many calls are on their way at once."""

    def __init__(self, channel: LoopChannel, loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._loop = loop
        self._transport: asyncio.WriteTransport | None = None
        self._reader = hiredis.Reader(replyError=ErrorReply)
        self._out: list[_Sent] = []
        self.sent: deque[_Sent] = deque()
        self.heard = time.monotonic()
        #: True while requests go out and while replies come in: if that was interrupted, they may not fit any more.
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Those of other loops, of uvloop for example, are no instances of it.
        self._transport = cast("asyncio.WriteTransport", transport)

    def send(self, one: _Sent) -> None:
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(one)

    def flush(self) -> None:
        """Send what has gathered; end the connection if it was interrupted."""
        if self.busy:
            self._channel.broken(self, None)
            return
        self.busy = True
        packed = b"".join([one.packed or one.pack() for one in self._out])
        self.sent.extend(self._out)
        self._out = []
        if self._transport is not None:
            self._transport.write(packed)
        self.busy = False

    def calls(self) -> list[_Sent]:
        """The calls without a reply, in order."""
        return [*dict.fromkeys((*self.sent, *self._out))]

    def forget(self) -> None:
        """The calls are sent on another connection."""
        self.sent.clear()
        self._out.clear()

    def data_received(self, data: bytes) -> None:
        if self.busy:
            self._channel.broken(self, None)
            return
        self.busy = True
        self.heard = time.monotonic()
        reader, sent = self._reader, self.sent
        reader.feed(data)
        try:
            replies: list[Reply] = []
            while (reply := reader.gets()) is not False:
                replies.append(reply)
            # Check all before any is delivered: the bytes behind a reply may show that it was garbled.
            extra = len(replies) - len(sent)
            if extra > 0 or (extra == 0 and reader.has_data()):
                raise foreign(replies[-1] if replies else b"")
            for reply in replies:
                if type(reply) not in sent[0].call.answers:
                    raise foreign(reply)
                self._channel.answered(self, sent[0], reply)
                sent.popleft()
        except Exception as error:  # An invalid reply, or one to no call: all later ones may be wrong, too.
            self._channel.broken(self, error)
        self.busy = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel.broken(self, exc)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class LoopChannel:
    """The calls of one connection, for the tasks of one event loop: all on their way at once, one write per tick.

    Each call on its way has a slot of its own, in which the server keeps its answer until the slot is used again.
    """

    def __init__(
        self,
        server: Server,
        loop: asyncio.AbstractEventLoop,
        slots: Slots,
        closed: Callable[[], TubesError],
        owed: list[Debt],
    ) -> None:
        self._server: Final = server
        # What is raised once it is closed.
        self._why_closed: Final = closed
        self.loop: Final = loop
        self._owed: Final = owed
        #: Calls to which more may come, by their key.
        self.growing: Final[dict[str, ScriptCall]] = {}
        self._slots: Final = slots
        self._pipes: Final[dict[str, _Pipe]] = {}
        self._connecting: Final[dict[str, asyncio.Task[None]]] = {}
        self._backlog: Final[dict[str, list[_Sent]]] = {}
        self._closed = False
        self._watch: asyncio.TimerHandle | None = None

    async def run(self, flow: Flow[T]) -> T:
        """Run a method."""
        last: tuple[ScriptCall, asyncio.Future[Reply]] | None = None

        def ask(call: ScriptCall) -> asyncio.Future[Reply]:
            nonlocal last
            future: asyncio.Future[Reply] = self.loop.create_future()
            last = call, future
            self.submit(call, future)
            return future

        try:
            return await run_async(flow, ask)
        except TubesError:
            raise
        except BaseException:  # The reply to the last call may have come already.
            if last is not None:
                self._owed.append((_orphan, *last))
                pay(self._owed)
            raise

    def submit(self, call: ScriptCall, answer: Answer) -> None:
        """Send a call. `answer`: gets its reply, or `ConnectionLost`."""
        if self._closed:
            answer.set_exception(self._why_closed())
            return
        # What comes later must not overtake this one.
        if call.grows:
            self.growing[call.key] = call
        elif self.growing:
            self.growing.pop(call.key, None)
        self._send(_Sent(call, self._slots.take(), answer, moving=self._server.moving))

    def _send(self, one: _Sent) -> None:
        node = ""
        if self._closed:
            self._fail(one, self._why_closed())
            return
        if len(self._pipes) == 1 and "" in self._pipes:
            self._pipes[""].send(one)
            return
        try:
            node = self._server.node(one.call.key)
        except ConnectionLost as error:
            self._fail(one, error)
            return
        pipe = self._pipes.get(node)
        if pipe is not None:
            pipe.send(one)
            return
        self._backlog.setdefault(node, []).append(one)
        if node not in self._connecting:
            self._connecting[node] = self.loop.create_task(self._connect(node, one.call.key))

    async def _connect(self, node: str, key: str) -> None:
        """Connect, and send what has gathered meanwhile; give up after `PATIENCE`."""
        try:
            failures = 0
            patience = time.monotonic() + script_call.PATIENCE
            while not self._closed:
                try:
                    pipe = await self._open(key)
                except (ServerRefused, InvalidOption) as error:
                    self._give_up(node, error)
                    return
                except (ConnectionLost, OSError) as error:
                    lost = (
                        error if isinstance(error, ConnectionLost) else ConnectionLost(url=self._server.url, why=error)
                    )
                    if time.monotonic() > patience:
                        self._give_up(node, lost)
                        return
                    await asyncio.to_thread(self._server.moved)
                    failures += 1
                    await asyncio.sleep(script_call.RETRY.delay(failures))
                    continue
                if self._closed:
                    pipe.close()
                    return
                self._pipes[node] = pipe
                for one in self._backlog.pop(node, []):
                    pipe.send(one)
                self._set_watch()
                return
        finally:
            self._connecting.pop(node, None)

    async def _open(self, key: str) -> _Pipe:
        connecting = self.loop.run_in_executor(None, self._server.connect, key)
        try:
            connection = await asyncio.shield(connecting)
        except asyncio.CancelledError:  # The loop ends meanwhile: what comes too late is not left open.
            connecting.add_done_callback(
                lambda done: done.cancelled() or done.exception() or done.result().disconnect()
            )
            raise
        sock = connection._sock.dup()
        connection._sock.close()
        sock.setblocking(False)
        _, pipe = await self.loop.create_connection(lambda: _Pipe(self, self.loop), sock=sock)
        return pipe

    def _give_up(self, node: str, lost: TubesError) -> None:
        for one in self._backlog.pop(node, []):
            unheard = one.call.resent and isinstance(lost, ServerRefused)
            why = f"{lost}; {script_call.UNHEARD}"
            self._fail(one, ConnectionLost(url=self._server.url, why=why) if unheard else lost)

    def answered(self, pipe: _Pipe, one: _Sent, reply: Reply) -> None:
        """A reply has come."""
        if one.reply is not PENDING:  # It was sent again although it had one.
            return
        if type(reply) is ErrorReply:
            code = reply.code
            if code == "NOSCRIPT":
                one.packed = one.call.pack(whole=True, moving=self._server.moving)
                pipe.send(one)
                return
            if code == script_call.FIRST:
                if self._closed:
                    self._fail(one, self._why_closed())
                else:
                    pipe.send(one)
                return
            if code == script_call.DUE:
                if self._closed:
                    self._fail(one, self._why_closed())
                elif one.refused is not None:
                    self._resolve(one, one.refused)
                else:
                    self.submit(one.call.tick(), _Tick(one))
                    pipe.send(one)
                return
            if code in script_call.PASSING:
                if code in script_call.ELSEWHERE:
                    pipe.close()
                self._send_again(one, reply, elsewhere=True)
                return
            if one.call.certain is not None and code not in one.call.certain and not one.call.resent:
                self._send_again(one, reply)
                return
            reply.sha = one.call.script.sha
        self._resolve(one, reply)

    def _send_again(self, one: _Sent, why: object, *, elsewhere: bool = False) -> None:
        """Send a call again, after a rest that grows, until patience is over."""
        if self._closed or time.monotonic() > one.until:
            self._fail(one, self._why_closed() if self._closed else ConnectionLost(url=self._server.url, why=why))
            return
        one.again()
        one.tries += 1
        rest = script_call.RETRY.delay(one.tries + elsewhere)
        if elsewhere:
            self._server.moved()
        if rest:
            self.loop.call_later(rest, self._send, one)
        else:
            self._send(one)

    def _resolve(self, one: _Sent, reply: Reply) -> None:
        one.reply = reply
        try:
            self._give(one)
        except ValueError:  # A garbled reply to coalesced puts: they are sent again.
            one.reply = PENDING
            raise
        self._slots.free(one.slot)

    @staticmethod
    def _give(one: _Sent) -> None:
        """Give a reply to the caller, if it has none; undo the call if it was cancelled."""
        if not one.result.done():
            one.result.set_result(cast(Reply, one.reply))
        elif one.call.orphaned is not None and cast("asyncio.Future[Reply]", one.result).cancelled():
            one.call.orphaned(cast(Reply, one.reply))

    def _fail(self, one: _Sent, error: TubesError) -> None:
        if not one.result.done():
            one.result.set_exception(error)
        self._slots.free(one.slot)

    def broken(self, pipe: _Pipe, error: Exception | None) -> None:
        """A connection has ended, or was interrupted: calls without a reply are sent again on the next one."""
        pipe.close()
        node = next((name for name, known in self._pipes.items() if known is pipe), None)
        if node is not None:
            del self._pipes[node]
        waiting = pipe.calls()
        if waiting:
            self._server.moved()
        for one in waiting:
            if one.reply is PENDING:
                self._send_again(one, error or "the connection was closed")
            else:
                self._give(one)
        pipe.forget()

    def _set_watch(self) -> None:
        if self._watch is None and not self._closed:
            self._watch = self.loop.call_later(1.0, self._look)

    def _look(self) -> None:
        """Give up a server that has not replied for long, and a connection that was interrupted."""
        self._watch = self.loop.call_later(1.0, self._look) if self._pipes else None
        for pipe in list(self._pipes.values()):
            pipe.flush()
            if pipe.sent and time.monotonic() - pipe.heard > script_call.PATIENCE:
                pipe.close()
            elif not pipe.sent:
                pipe.heard = time.monotonic()

    def close(self) -> None:
        """End the channel."""
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        for pipe in list(self._pipes.values()):
            pipe.close()
        self._pipes.clear()
        for node in list(self._backlog):
            self._give_up(node, self._why_closed())


class ThreadedChannel:
    """The calls of one connection for an event loop where they cannot be pipelined: over TLS, and without hiredis.

    Each call has a thread and a channel of its own while it is on its way.
    """

    def __init__(self, server: Server, slots: Slots, closed: Callable[[], TubesError]) -> None:
        self._server: Final = server
        self._slots: Final = slots
        # What is raised once it is closed.
        self._why_closed: Final = closed
        self._closed = False
        self._channels: Final[dict[int, ThreadChannel]] = {}

    def run(self, flow: Flow[T]) -> Coroutine[Any, Any, T]:
        """Run a verb."""
        return run_async(flow, self._ask)

    async def _ask(self, call: ScriptCall) -> Reply:
        if self._closed:
            raise self._why_closed()
        slot = self._slots.take()
        channel = self._channels.get(slot)
        if channel is None:
            channel = self._channels[slot] = ThreadChannel(self._server, slot, closed=self._why_closed)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().run_in_executor(None, channel.call, call)
        answer.add_done_callback(lambda _: self._slots.free(slot))
        try:
            return await asyncio.shield(answer)
        except BaseException:
            answer.add_done_callback(lambda done: _orphan(call, done))
            raise

    def close(self) -> None:
        """End the channels."""
        self._closed = True
        for channel in list(self._channels.values()):
            channel.hang_up()  # Else the loop would wait for whoever uses it.
            channel.close()
