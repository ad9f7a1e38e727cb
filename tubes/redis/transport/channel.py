"""A channel to a server for threads: one call at a time, sent again until there is an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from tubes.backend.flow import run
from tubes.errors import ConnectionLost, ServerRefused, TubesError
from tubes.redis.scripts.replies import ANY, MARKER
from tubes.redis.transport import script_call
from tubes.redis.transport.script_call import ScriptCall, WaitForLock
from tubes.redis.transport.wire import ErrorReply, Reply, Wire, Word, pack

if TYPE_CHECKING:
    from tubes.redis.transport.script_call import Flow
    from tubes.redis.transport.server import Server

T = TypeVar("T")
#: A function that undoes an interrupted call, and its arguments. It may run twice.
Debt: TypeAlias = tuple[Any, ...]

# Seconds for which a finalizer waits for the channel.
_PAUSE: Final = 0.05
# Refusals of a call behind a command that waits, after which it is sent once more.
_AGAIN: Final = script_call.PASSING | script_call.NOT_YET
# Errors of a command that waits, or was waiting when the server became another one's replica.
_ENDED: Final = script_call.PASSING | {"UNBLOCKED"}


def pay(owed: list[Debt]) -> None:
    """Undo interrupted calls."""
    while owed:
        undo, *about = owed[0]
        undo(*about)
        del owed[0]


class _Wait:
    """A command that waits, which was sent, and a call behind it."""

    __slots__ = ("call", "key", "wire")

    def __init__(self, key: str, call: ScriptCall | None) -> None:
        self.key: Final = key
        self.call: Final = call
        #: Where the replies come; None: nothing could be sent.
        self.wire: Wire | None = None


class ThreadChannel:
    """The calls of one connection, for threads: one at a time.

    A call and its repair may be interrupted at any moment, by KeyboardInterrupt for example. CPython raises it when a
    function begins, after a call of a built-in function, and when a loop jumps back: an `except` block that begins with
    `owed.append(...)` always does that much. The interrupted caller tries to pay what is owed, and the next caller does
    so before its own call. A wire that is still `busy` is replaced.
    """

    def __init__(
        self,
        server: Server,
        slot: int | str = 0,
        patience: float | None = None,
        closed: Callable[[], TubesError] | None = None,
    ) -> None:
        self._server: Final = server
        # What is raised once it is closed, if that is not as where a connection is lost.
        self._why_closed: Final = closed
        self.slot: Final = slot
        # So many seconds instead of the usual ones, also to connect.
        self._patience: Final = patience
        self._lock: Final = threading.Lock()
        self._wires: Final[dict[str, Wire]] = {}
        # Where there is one server, its connection.
        self._only: Wire | None = None
        self._closed = False
        self._wait: _Wait | None = None
        #: Interrupted calls that have to be undone, in order.
        self.owed: Final[list[Debt]] = []

    def is_idle(self) -> bool:
        """Whether nobody uses the channel, now or in a moment: a finalizer may come in the middle of a call."""
        until = time.monotonic() + _PAUSE
        while self._lock.locked() and time.monotonic() < until:
            time.sleep(WaitForLock.SECONDS)
        return not self._lock.locked()

    def run(self, flow: Flow[T]) -> T:
        """The result of a flow. If it is interrupted, its last call is undone, even if its reply was read."""
        last: Debt = ()

        def ask(call: ScriptCall) -> Reply:
            nonlocal last
            reply = self.call(call)
            last = call, reply
            return reply

        try:
            return run(flow, ask)
        except TubesError:
            raise
        except BaseException:
            if last:
                self.owed.append((self._undo, *last))
                self.repay()
            raise

    def call(self, call: ScriptCall) -> Reply:
        """The reply to a call. Raises `ConnectionLost` when no server has replied for `PATIENCE` seconds."""
        reply: Reply = None
        try:
            with self._lock:
                if self.owed:
                    pay(self.owed)
                call.begin(self.slot)
                first: ErrorReply | ConnectionLost | None = None
                began = time.monotonic()
                packed = call.pack(moving=self._server.moving)
                wire = self._only
                if wire is not None and not wire.busy:
                    try:
                        reply = wire.call(packed, call.answers, call.replies)
                        if type(reply) is not ErrorReply:
                            return reply
                        first = reply
                    except ConnectionLost as lost:
                        first = lost
                reply = self._until_answered(packed, call.key, call, first, began)
            return reply  # noqa: RET504 (the lock is released first, and an interrupt there must find the reply)
        except TubesError:
            raise
        except BaseException:
            if call.orphaned is not None:
                self.owed.append((self._undo, call, reply))
                self.repay()
            raise

    def _undo(self, call: ScriptCall, reply: Reply) -> None:
        """Undo an interrupted call; `reply`: if it was read. If not, the call is sent again by its number."""
        if not call.number or call.orphaned is None:  # It was not sent, or it may stay.
            return
        if reply is None or type(reply) is ErrorReply:
            call.resent = True
            reply = self._until_answered(call.pack(moving=self._server.moving), call.key, call)
        call.orphaned(reply)

    def repay(self) -> None:
        """Undo the interrupted calls; if no server replies, the next call has to."""
        with suppress(TubesError), self._lock:
            pay(self.owed)

    @property
    def waiting(self) -> bool:
        """Whether a wait was begun that has not ended."""
        return self._wait is not None

    def begin_wait(self, key: str, words: tuple[Word, ...], call: ScriptCall | None, sent: Callable[[], None]) -> None:
        """Send a plain command that waits, and a call behind it, if there is one.

        Both go out at once: a server does what comes behind a command that waits as soon as that is over. `call`: has
        its slot and its number already. `sent`: called when they are on their way. Until `end_wait` only `hang_up` may
        be called.
        """
        wait = _Wait(key, call)
        with self._lock:
            packed = pack(*words)
            if call is not None:
                packed += call.pack(moving=self._server.moving)
            self._wait = wait
            try:
                wait.wire = self._wire(key)
                wait.wire.send(packed)
            except ConnectionLost:
                wait.wire = None
            except Exception:  # Nothing was sent.
                self._wait = None
                raise
            else:
                sent()

    def end_wait(self) -> tuple[Reply, Reply]:
        """The reply to the command that waits (True: unknown), and that to the call behind it, if there is one.

        If the connection is lost, the command is not sent again: its reply may have been lost, so look for tasks first.
        """
        wait = self._wait
        assert wait is not None
        with self._lock:
            try:
                return self._end(wait)
            finally:
                self._wait = None

    def _end(self, wait: _Wait) -> tuple[Reply, Reply]:
        call, key = wait.call, wait.key
        reply: Reply = None
        try:
            if wait.wire is None:
                raise ConnectionLost(url=self._server.url, why="nothing could be sent")
            answered = wait.wire.receive(MARKER, last=call is None)
            if call is not None:
                reply = wait.wire.receive(call.answers, last=True)
            if type(answered) is ErrorReply and answered.code in _ENDED:
                raise ConnectionLost(url=self._server.url, why=answered)
        except ConnectionLost:
            self._server.moved()
            self._forget_wires()
            if call is None:
                raise
            call.resent = True
            return True, self._until_answered(call.pack(moving=self._server.moving), key, call)
        if call is not None and type(reply) is ErrorReply and reply.code in _AGAIN:
            reply = self._until_answered(call.pack(moving=self._server.moving), key, call)
        return answered, reply

    def exchange(
        self,
        key: str,
        head: bytes,
        tail: bytes,
        answers: frozenset[type],
        again: Callable[[int, str, Any, Callable[[Reply], None] | None], ScriptCall],
        verb: str,
        words: Any,
        orphaned: Callable[[Reply], None] | None = None,
    ) -> Reply:
        """The reply to a request that was packed ahead: what stands before its number, and what stands after it.

        `answers`: the kinds of replies to it. `again`: makes the call by its number, of `verb` and `words`, if it must
        be sent once more. `orphaned`: undoes it if it is interrupted. Until there is a reply no other call uses the
        channel: the slot with its answer is not written over.
        """
        number, reply = 0, None
        try:
            with self._lock:
                if self.owed:
                    pay(self.owed)
                number = next(script_call.numbers)
                wire = self._only
                try:
                    if wire is None or wire.busy:
                        wire = self._wire(key)
                    reply = wire.call(b"%b%d%b" % (head, number, tail), answers)
                    if type(reply) is not ErrorReply or reply.code in script_call.CERTAIN:
                        return reply
                    call = again(number, verb, words, orphaned)
                    call.resent = reply.code not in script_call.NOT_YET
                    first = None if call.resent else reply
                except ConnectionLost:
                    self._forget_wires()
                    call, first = again(number, verb, words, orphaned), None
                reply = self._until_answered(call.pack(), key, call, first)
                if call.resent and type(reply) is ErrorReply and reply.code == "SESSIONGONE":
                    raise ConnectionLost(url=self._server.url, why=script_call.UNSURE)
            return reply
        except TubesError:
            raise
        except BaseException:
            if orphaned is not None:
                self.owed.append((self._undo_exchange, reply, again, number, verb, words, orphaned))
                self.repay()
            raise

    def _undo_exchange(self, reply: Reply, again: Callable[..., ScriptCall], number: int, *about: Any) -> None:
        if number:
            self._undo(again(number, *about), reply)

    def request(self, key: str, *words: Word) -> Reply:
        """The reply to a plain command, which may be done twice."""
        with self._lock:
            return self._until_answered(pack(*words), key)

    def _until_answered(
        self,
        packed: bytes,
        key: str,
        call: ScriptCall | None = None,
        first: ErrorReply | ConnectionLost | None = None,
        began: float | None = None,
    ) -> Reply:
        """Send a request until there is an answer. `first`: what came of the first try, which `began` then."""
        until = (began or time.monotonic()) + (self._patience or script_call.PATIENCE)
        answers, replies = (ANY, 1) if call is None else (call.answers, call.replies)
        failures = 0
        while True:
            try:
                if first is None:
                    reply = self._wire(key).call(packed, answers, replies)
                else:
                    tried, first = first, None
                    if isinstance(tried, ConnectionLost):
                        raise tried
                    reply = tried
                if type(reply) is not ErrorReply:
                    return reply
                if reply.code == "NOSCRIPT" and call is not None:
                    reply = self._wire(key).call(call.pack(whole=True, moving=self._server.moving), answers, replies)
                if type(reply) is not ErrorReply:
                    return reply
                if reply.code == script_call.FIRST and call is not None:
                    if self._closed:
                        raise self._over()
                    continue
                if reply.code == script_call.DUE and call is not None:
                    if self._closed:
                        raise self._over()
                    refused = self._tick(call)
                    if refused is None:
                        continue
                    reply = refused
                if reply.code not in script_call.PASSING:
                    reply.sha = reply.sha or (b"" if call is None else call.script.sha)
                    return reply
                self._server.moved()
                self._forget_wires()
                lost = ConnectionLost(url=self._server.url, why=reply)
            except ConnectionLost as error:
                # Looking again who has what may take long where a server hangs: no work for a channel that has no time.
                if self._patience is None:
                    self._server.moved()
                self._forget_wires()
                lost = error
            except ServerRefused as error:
                if call is None or not call.resent:
                    raise
                raise ConnectionLost(url=self._server.url, why=f"{error}; {script_call.UNHEARD}") from error
            if self._closed:
                raise self._over(lost)
            if time.monotonic() > until:
                raise lost
            if call is not None:
                call.resent = True
                packed = call.pack(moving=self._server.moving)
            failures += 1
            time.sleep(script_call.RETRY.delay(failures))

    def _tick(self, call: ScriptCall) -> ErrorReply | None:
        """Let happen what is due before a call; the error if the server refuses that."""
        tick, moving = call.tick(), self._server.moving
        wire = self._wire(call.key)
        reply = wire.call(tick.pack(moving=moving), tick.answers)
        if type(reply) is ErrorReply and reply.code == "NOSCRIPT":
            reply = wire.call(tick.pack(whole=True, moving=moving), tick.answers)
        if type(reply) is not ErrorReply or reply.code in script_call.OF_CALLS_TOO:
            return None
        reply.sha = tick.script.sha
        return reply

    def _over(self, lost: TubesError | None = None) -> TubesError:
        """What is raised once it is closed; `lost`: in the middle of a call."""
        if self._why_closed is not None:
            return self._why_closed()
        return lost or ConnectionLost(url=self._server.url, why="it was closed")

    def _wire(self, key: str) -> Wire:
        if self._closed:
            raise self._over()
        node = self._server.node(key)
        wire = self._wires.get(node)
        if wire is None or wire.busy:
            if wire is not None:
                wire.close()
            wire = self._wires[node] = Wire(self._server, key, self._patience)
            if not node:
                self._only = wire
        return wire

    def _forget_wires(self) -> None:
        self._only = None
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    def hang_up(self) -> None:
        """End the channel, whoever is using it."""
        self._closed = True
        for wire in list(self._wires.values()):
            wire.hang_up()

    def close(self) -> None:
        """End the channel, when nobody uses it any more."""
        with self._lock:
            self._closed = True
            self._forget_wires()
