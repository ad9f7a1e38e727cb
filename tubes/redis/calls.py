"""Calls of scripts, and lines on which they are made: again until there is an answer, and never done twice."""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from tubes.errors import ConnectionLost
from tubes.redis.wire import ErrorReply, Wire, hiredis, pack

if TYPE_CHECKING:
    from tubes.redis.scripts import Script
    from tubes.redis.server import Server

T = TypeVar("T")
#: A session in a tube: see `Call`.
Session: TypeAlias = tuple[int, str, int]
#: A verb: asks for calls, gets replies, ends with its answer.
Flow: TypeAlias = "Generator[Call | Rest, Any, T]"

#: The slot of whoever serves those who wait: one at a time in a process and tube, on a line of any session.
SERVING: Final = "w"
#: The keys of a tube besides its meta hash.
PARTS: Final = (
    *("tasks", "ready", "taken", "due", "buried", "back", "offers", "behind", "lanes"),
    *("leases", "waiting", "marker", "room"),
)
#: For how many seconds a call is tried again where no server answers, and how long to rest in between.
PATIENCE: Final = 10.0
#: Why a call that was sent again was not answered.
UNSURE: Final = "the session has ended meanwhile, and whether the call was done is not known"
_RESTS: Final = (0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8)
#: Errors of servers that are about to be well again, or of the wrong server.
_PASSING: Final = frozenset({"LOADING", "BUSY", "READONLY", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"})
#: Those after which the same address may lead to another server.
_ELSEWHERE: Final = frozenset({"READONLY", "MASTERDOWN"})


class Call:
    """A script with its arguments.

    `session`: its number in the tube, the field that says that it lives, and the caller's number among its callers.
    `slot`: where its answer is kept, if not in a slot of the line: for calls for a session that is not the line's.
    """

    __slots__ = (
        "_own_slot", "args", "key", "now", "number", "orphaned", "parts", "resent", "script", "session", "slot",
    )  # fmt: skip

    def __init__(
        self,
        script: Script,
        key: str,
        args: tuple[Any, ...],
        session: Session | None = None,
        now: int | str = "",
        orphaned: Callable[[Any], None] | None = None,
        slot: str | None = None,
        sent: tuple[int | str, int] | None = None,
        parts: tuple[str, ...] = (),
    ) -> None:
        self.script: Final = script
        self.key: Final = key
        self.args: Final = args
        self.session: Final = session
        self.now: Final = now
        #: What to do with a reply for which nobody waits any more.
        self.orphaned: Final = orphaned
        #: What else it uses besides `key`; with a session whatever a tube has.
        self.parts: Final = parts if session is None else PARTS
        # Where its answer is kept, if not in the slot of whoever sends it.
        self._own_slot: Final = slot
        #: Whether it may have been done already. `sent`: it was sent before, from that slot and by that number.
        self.resent = sent is not None
        self.slot: int | str = ""
        self.number = 0
        if sent is not None:
            self.slot, self.number = sent

    def begin(self, slot: int | str) -> None:
        """It is about to be sent for the first time, unless it was before."""
        if not self.resent:
            self.slot, self.number = slot if self._own_slot is None else self._own_slot, next(numbers)

    def pack(self, *, whole: bool = False, moving: bool = False) -> bytes:
        """The request; `whole`: with the script itself.

        `moving`: with all keys that it uses. In a cluster a slot moves to another node key by key; a script that finds
        in its middle that some are there already ends half done, unless it names them, and is refused.
        """
        what = ("EVAL", self.script.text) if whole else ("EVALSHA", self.script.sha)
        keys: tuple[Any, ...] = (1, self.key)
        if moving:
            keys = (1 + len(self.parts), self.key, *(f"{self.key}:{part}" for part in self.parts))
        if self.session is None:
            return pack(*what, *keys, *self.args)
        session, token, caller = self.session
        field = f"a{token}.{caller}.{self.slot}"
        return pack(*what, *keys, session, token, field, self.number, self.now, *self.args)


class Rest:
    """Asked for by a flow that waits for another one: a moment."""


#: Seconds of such a moment.
_MOMENT: Final = 0.0002


def _rest() -> object:
    time.sleep(_MOMENT)
    return None


# Seconds for which a finalizer waits for the line.
_PAUSE: Final = 0.05
#: A number is never used again in this process, whichever line a session's calls go out on. All have 16 digits.
numbers: Final = count(10**15)


class Slots:
    """Where a connection's last answers are kept: one slot per call on its way, the lowest free ones first."""

    def __init__(self) -> None:
        self._free: Final[list[int]] = []
        self._made = 0
        self._lock: Final = threading.Lock()

    def take(self) -> int:
        """A slot that no call uses."""
        with self._lock:
            if self._free:
                return heapq.heappop(self._free)
            self._made += 1
            return self._made - 1

    def free(self, slot: int) -> None:
        """Its answer has come."""
        with self._lock:
            heapq.heappush(self._free, slot)


class ThreadLine:
    """The calls of one connection, for threads: one at a time."""

    def __init__(self, server: Server, slot: int | str = 0) -> None:
        self._server: Final = server
        self.slot: Final = slot
        self._lock: Final = threading.Lock()
        self._wires: Final[dict[str, Wire]] = {}
        # Where there is one server, its connection.
        self._only: Wire | None = None
        self._closed = False

    def run(self, flow: Flow[T]) -> T:
        """Run a verb."""
        try:
            call = next(flow)
            while True:
                try:
                    reply = self.call(call) if isinstance(call, Call) else _rest()
                except BaseException as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(reply)
        except StopIteration as end:
            answer: T = end.value
            return answer

    def is_idle(self) -> bool:
        """Whether nobody uses the line, now or in a moment: a finalizer may come in the middle of a call."""
        if self._lock.acquire(timeout=_PAUSE):
            self._lock.release()
            return True
        return False

    def call(self, call: Call) -> Any:
        """The reply to a call. Raises `ConnectionLost` when no server has answered for `PATIENCE` seconds."""
        with self._lock:
            call.begin(self.slot)
            try:
                return self._until_answered(call.pack(moving=self._server.moving), call.key, call)
            except ConnectionLost:
                raise
            except BaseException:
                self._forget_wires()
                self._orphan(call)
                raise

    def exchange(self, key: str, head: bytes, tail: bytes, again: Callable[[int], Call]) -> Any:
        """The reply to a request that was packed ahead: what stands before its number, and what stands after it.

        `again`: the same as a call by that number, if it must be sent once more. Until there is a reply nobody else
        uses the line: the slot with its answer is not written over.
        """
        with self._lock:
            number = next(numbers)
            try:
                return (self._only or self._wire(key)).call(b"%b%d%b" % (head, number, tail))
            except ConnectionLost:
                self._forget_wires()
                call = again(number)
            except BaseException:
                self._forget_wires()
                self._orphan(again(number))
                raise
            reply = self._until_answered(call.pack(), key, call)
            if reply.__class__ is ErrorReply and reply.code == "SESSIONGONE":
                raise ConnectionLost(url=self._server.url, why=UNSURE)
            return reply

    def _orphan(self, call: Call) -> None:
        """Interrupted: whether it was done nobody knows yet; if so, somebody may want to undo it."""
        if call.orphaned is not None:
            call.resent = True
            with suppress(ConnectionLost):
                call.orphaned(self._until_answered(call.pack(moving=self._server.moving), call.key, call))

    def request(self, key: str, *words: Any, once: bool = False) -> Any:
        """The reply to a plain command, which may be done twice; `once`: it is not tried again."""
        with self._lock:
            return self._until_answered(pack(*words), key, once=once)

    def _until_answered(self, packed: bytes, key: str, call: Call | None = None, *, once: bool = False) -> Any:
        patience = time.monotonic() + (0 if once else PATIENCE)
        tries = 0
        while True:
            try:
                wire = self._wire(key)
                reply = wire.call(packed)
                if reply.__class__ is not ErrorReply:
                    return reply
                if reply.code == "NOSCRIPT" and call is not None:
                    reply = wire.call(call.pack(whole=True, moving=self._server.moving))
                if reply.__class__ is not ErrorReply or reply.code not in _PASSING:
                    return reply
                self._server.moved()
                self._forget_wires()
                lost = ConnectionLost(url=self._server.url, why=reply)
            except ConnectionLost as error:
                self._server.moved()
                self._forget_wires()
                lost = error
            if time.monotonic() > patience or self._closed:
                raise lost
            if call is not None:
                call.resent = True
                packed = call.pack(moving=self._server.moving)
            time.sleep(_RESTS[min(tries, len(_RESTS) - 1)])
            tries += 1

    def _wire(self, key: str) -> Wire:
        if self._closed:
            raise ConnectionLost(url=self._server.url, why="it was closed")
        node = self._server.node(key)
        wire = self._wires.get(node)
        if wire is None:
            wire = self._wires[node] = Wire(self._server, key)
            if not node:
                self._only = wire
        return wire

    def _forget_wires(self) -> None:
        self._only = None
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    def hang_up(self) -> None:
        """End the line, whoever is using it."""
        self._closed = True
        for wire in list(self._wires.values()):
            wire.hang_up()

    def close(self) -> None:
        """End the line, when nobody uses it any more."""
        with self._lock:
            self._closed = True
            self._forget_wires()


class _Sent:
    """A call on its way."""

    __slots__ = ("_moving", "call", "future", "packed", "slot", "tries", "until")

    def __init__(self, call: Call, slot: int, future: asyncio.Future[Any], *, moving: bool) -> None:
        self._moving: Final = moving
        self.call = call
        self.slot = slot
        self.future = future
        call.begin(slot)
        self.packed = call.pack(moving=moving)
        self.tries = 0
        self.until = time.monotonic() + PATIENCE

    def again(self) -> None:
        """It may have been done: it is sent once more."""
        self.call.resent = True
        self.packed = self.call.pack(moving=self._moving)


class _Pipe(asyncio.Protocol):
    """A connection on which many calls are on their way at once."""

    def __init__(self, line: LoopLine, loop: asyncio.AbstractEventLoop) -> None:
        self._line = line
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._reader: Any = hiredis.Reader(replyError=ErrorReply)
        self._out: list[bytes] = []
        self.sent: deque[_Sent] = deque()
        self.heard = time.monotonic()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def send(self, one: _Sent) -> None:
        self.sent.append(one)
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(one.packed)

    def _flush(self) -> None:
        packed, self._out = b"".join(self._out), []
        if self._transport is not None:
            self._transport.write(packed)

    def data_received(self, data: bytes) -> None:
        self.heard = time.monotonic()
        reader = self._reader
        reader.feed(data)
        while (reply := reader.gets()) is not False:
            self._line.answered(self, self.sent.popleft(), reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._line.broken(self, exc)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class LoopLine:
    """The calls of one connection, for the tasks of one event loop: all on their way at once, one write per tick.

    Each call on its way has a slot of its own, in which the server keeps its answer until the slot is used again.
    """

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop, slots: Slots) -> None:
        self._server: Final = server
        self._loop: Final = loop
        self._slots: Final = slots
        self._pipes: Final[dict[str, _Pipe]] = {}
        self._connecting: Final[dict[str, asyncio.Task[None]]] = {}
        self._backlog: Final[dict[str, list[_Sent]]] = {}
        self._closed = False
        self._watch: asyncio.TimerHandle | None = None

    async def run(self, flow: Flow[T]) -> T:
        """Run a verb."""
        try:
            call = next(flow)
            while True:
                try:
                    reply = await (self.submit(call) if isinstance(call, Call) else asyncio.sleep(_MOMENT))
                except BaseException as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(reply)
        except StopIteration as end:
            answer: T = end.value
            return answer

    def submit(self, call: Call) -> asyncio.Future[Any]:
        """Send a call; its reply, or `ConnectionLost`, is the future's."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._closed:
            future.set_exception(ConnectionLost(url=self._server.url, why="it was closed"))
            return future
        self._send(_Sent(call, self._slots.take(), future, moving=self._server.moving))
        return future

    def _send(self, one: _Sent) -> None:
        node = ""
        if self._closed:
            self._resolve(one, ConnectionLost(url=self._server.url, why="it was closed"))
            return
        if len(self._pipes) == 1 and "" in self._pipes:
            self._pipes[""].send(one)
            return
        try:
            node = self._server.node(one.call.key)
        except ConnectionLost as error:
            self._resolve(one, error)
            return
        pipe = self._pipes.get(node)
        if pipe is not None:
            pipe.send(one)
            return
        self._backlog.setdefault(node, []).append(one)
        if node not in self._connecting:
            self._connecting[node] = self._loop.create_task(self._connect(node, one.call.key))

    async def _connect(self, node: str, key: str) -> None:
        """Connect, and send what has gathered meanwhile; give up after `PATIENCE`."""
        try:
            tries = 0
            patience = time.monotonic() + PATIENCE
            while not self._closed:
                try:
                    pipe = await self._open(key)
                except (ConnectionLost, OSError) as error:
                    lost = (
                        error if isinstance(error, ConnectionLost) else ConnectionLost(url=self._server.url, why=error)
                    )
                    if time.monotonic() > patience:
                        self._give_up(node, lost)
                        return
                    await asyncio.to_thread(self._server.moved)
                    await asyncio.sleep(_RESTS[min(tries, len(_RESTS) - 1)])
                    tries += 1
                    continue
                self._pipes[node] = pipe
                for one in self._backlog.pop(node, []):
                    pipe.send(one)
                self._set_watch()
                return
            self._give_up(node, ConnectionLost(url=self._server.url, why="it was closed"))
        finally:
            self._connecting.pop(node, None)

    async def _open(self, key: str) -> _Pipe:
        connection: Any = await asyncio.to_thread(self._server.connect, key)
        sock = connection._sock.dup()
        connection._sock.close()
        sock.setblocking(False)
        _, pipe = await self._loop.create_connection(lambda: _Pipe(self, self._loop), sock=sock)
        return pipe

    def _give_up(self, node: str, lost: ConnectionLost) -> None:
        for one in self._backlog.pop(node, []):
            self._resolve(one, lost)

    def answered(self, pipe: _Pipe, one: _Sent, reply: Any) -> None:
        """A reply has come."""
        if reply.__class__ is ErrorReply:
            code = reply.code
            if code == "NOSCRIPT":
                one.packed = one.call.pack(whole=True, moving=self._server.moving)
                pipe.send(one)
                return
            if code in _PASSING:
                if code in _ELSEWHERE:
                    pipe.close()
                self._send_again(one, reply, elsewhere=True)
                return
        self._resolve(one, reply)

    def _send_again(self, one: _Sent, why: object, *, elsewhere: bool = False) -> None:
        """Send a call again, after a rest that grows, until patience is over."""
        if self._closed or time.monotonic() > one.until:
            self._resolve(one, ConnectionLost(url=self._server.url, why=why))
            return
        one.again()
        rest = _RESTS[min(one.tries + elsewhere, len(_RESTS) - 1)]
        one.tries += 1
        if elsewhere:
            self._server.moved()
        if rest:
            self._loop.call_later(rest, self._send, one)
        else:
            self._send(one)

    def _resolve(self, one: _Sent, reply: Any) -> None:
        self._slots.free(one.slot)
        if one.future.done():
            if one.call.orphaned is not None and not isinstance(reply, Exception):
                one.call.orphaned(reply)
        elif isinstance(reply, ConnectionLost):
            one.future.set_exception(reply)
        else:
            one.future.set_result(reply)

    def broken(self, pipe: _Pipe, error: Exception | None) -> None:
        """A connection has ended: what has no answer yet goes out again on the next one."""
        node = next((name for name, known in self._pipes.items() if known is pipe), None)
        if node is not None:
            del self._pipes[node]
        waiting, pipe.sent = list(pipe.sent), deque()
        if waiting:
            self._server.moved()
        for one in waiting:
            self._send_again(one, error or "the connection was closed")

    def _set_watch(self) -> None:
        if self._watch is None and not self._closed:
            self._watch = self._loop.call_later(1.0, self._look)

    def _look(self) -> None:
        """A server that has not answered for long is given up."""
        self._watch = None
        for pipe in list(self._pipes.values()):
            if pipe.sent and time.monotonic() - pipe.heard > PATIENCE:
                pipe.close()
            elif not pipe.sent:
                pipe.heard = time.monotonic()
        if self._pipes:
            self._set_watch()

    def close(self) -> None:
        """End the line."""
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        for pipe in list(self._pipes.values()):
            pipe.close()
        self._pipes.clear()


class ThreadedLine:
    """The calls of one connection for an event loop where they cannot be pipelined: over TLS, and without hiredis.

    Each call has a thread and a line of its own while it is on its way.
    """

    def __init__(self, server: Server, slots: Slots) -> None:
        self._server: Final = server
        self._slots: Final = slots
        self._lines: Final[dict[int, ThreadLine]] = {}

    async def run(self, flow: Flow[T]) -> T:
        """Run a verb."""
        try:
            call = next(flow)
            while True:
                try:
                    reply = await (self._call(call) if isinstance(call, Call) else asyncio.sleep(_MOMENT))
                except BaseException as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(reply)
        except StopIteration as end:
            answer: T = end.value
            return answer

    async def _call(self, call: Call) -> Any:
        slot = self._slots.take()
        line = self._lines.get(slot)
        if line is None:
            line = self._lines[slot] = ThreadLine(self._server, slot)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().run_in_executor(None, line.call, call)
        answer.add_done_callback(lambda _: self._slots.free(slot))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(lambda done: _orphan(call, done))
            raise

    def close(self) -> None:
        """End the lines."""
        for line in self._lines.values():
            line.close()


def _orphan(call: Call, done: asyncio.Future[Any]) -> None:
    if not done.cancelled() and done.exception() is None and call.orphaned is not None:
        call.orphaned(done.result())
