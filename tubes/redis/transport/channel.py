"""A channel to a server for threads: one call at a time, sent again until there is an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVarTuple

from tubes.errors import ConnectionLost, ServerRefused, TubesError
from tubes.redis.scripts.replies import ANY, MARKER
from tubes.redis.transport import script_call
from tubes.redis.transport.script_call import ScriptCall, WaitForLock
from tubes.redis.transport.wire import ErrorReply, Reply, Wire, Word, pack

if TYPE_CHECKING:
    from tubes.redis.transport.server import Server

About = TypeVarTuple("About")

# Seconds for which a finalizer waits for the channel.
_PAUSE: Final = 0.05
# Refusals of a call behind a command that waits, after which it is sent once more.
_AGAIN: Final = script_call.PASSING | script_call.NOT_YET
# Errors of a command that waits, or was waiting when the server became another one's replica.
_ENDED: Final = script_call.PASSING | {"UNBLOCKED"}


class _Wait:
    """A command that waits, which was sent, and a call behind it."""

    __slots__ = ("call", "key", "wire")

    def __init__(self, key: str, call: ScriptCall | None) -> None:
        self.key: Final = key
        self.call: Final = call
        #: Where the replies come; None: nothing could be sent.
        self.wire: Wire | None = None


class ThreadChannel:
    """The calls of one connection, for threads: one at a time."""

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

    def is_idle(self) -> bool:
        """Whether nobody uses the channel, now or in a moment: a finalizer may come in the middle of a call."""
        until = time.monotonic() + _PAUSE
        while self._lock.locked() and time.monotonic() < until:
            time.sleep(WaitForLock.SECONDS)
        return not self._lock.locked()

    def call(self, call: ScriptCall) -> Reply:
        """The reply to a call. Raises `ConnectionLost` when no server has replied for `PATIENCE` seconds."""
        with self._lock:
            call.begin(self.slot)
            first: ErrorReply | ConnectionLost | None = None
            began = time.monotonic()
            try:
                packed = call.pack(moving=self._server.moving)
                if self._only is not None:
                    try:
                        reply = self._only.call(packed, call.answers, call.replies)
                        if type(reply) is not ErrorReply:
                            return reply
                        first = reply
                    except ConnectionLost as lost:
                        first = lost
                return self._until_answered(packed, call.key, call, first, began)
            except TubesError:
                raise
            except BaseException:
                self._forget_wires()
                self._orphan(call)
                raise

    @property
    def waiting(self) -> bool:
        """Whether a wait was begun that has not ended."""
        return self._wait is not None

    def begin_wait(self, key: str, words: tuple[Word, ...], call: ScriptCall | None, sent: Callable[[], None]) -> None:
        """Send a plain command that waits, and a call behind it, if there is one.

        Both go out at once: a server does what comes behind a command that waits as soon as that is over. `call`: has
        its slot and its number already. `sent`: called when they are on their way. Until `end_wait`, perhaps in another
        thread, nobody else uses the channel.
        """
        self._lock.acquire()
        self._wait = wait = _Wait(key, call)
        try:
            packed = pack(*words)
            if call is not None:
                packed += call.pack(moving=self._server.moving)
            try:
                wait.wire = self._wire(key)
                wait.wire.send(packed)
            except ConnectionLost:
                wait.wire = None
            else:
                sent()
        except Exception:  # Nothing was sent.
            self._wait = None
            self._lock.release()
            raise
        except BaseException:
            self.abandon_wait()
            raise

    def end_wait(self, patience: float | None) -> tuple[Reply, Reply] | None:
        """The reply to the command that waits (True: nobody knows), and that to the call behind it, if there is one.

        `patience`: None if nothing has come after so many seconds; then the wait goes on. Where the connection is lost
        the command is not sent again: what it was to get may have been lost with it, so whoever waits is to look first.
        """
        wait = self._wait
        assert wait is not None
        try:
            if patience is not None and wait.wire is not None and not wait.wire.comes(patience):
                return None
            answers = self._end(wait)
        except Exception:  # Whoever waits asks again.
            self._wait = None
            self._lock.release()
            raise
        except BaseException:
            self.abandon_wait()
            raise
        self._wait = None
        self._lock.release()
        return answers

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

    def abandon_wait(self) -> None:
        """Interrupted: nobody is to hear of a wait that was begun, if there is one. What its call did is undone."""
        wait, self._wait = self._wait, None
        if wait is None:
            return
        try:
            self._forget_wires()
            if wait.call is not None:
                self._orphan(wait.call)
        finally:
            self._lock.release()

    def exchange(
        self,
        key: str,
        head: bytes,
        tail: bytes,
        answers: frozenset[type],
        again: Callable[[int, *About], ScriptCall],
        *about: *About,
    ) -> Reply:
        """The reply to a request that was packed ahead: what stands before its number, and what stands after it.

        `answers`: the kinds of replies to it. `again`: makes a call by that number, of what it is `about`, if it must
        be sent once more. Until there is a reply nobody else uses the channel: the slot with its answer is not written
        over.
        """
        with self._lock:
            number = next(script_call.numbers)
            try:
                reply = (self._only or self._wire(key)).call(b"%b%d%b" % (head, number, tail), answers)
                if type(reply) is not ErrorReply or reply.code in script_call.CERTAIN:
                    return reply
                call = again(number, *about)
                call.resent = reply.code not in script_call.NOT_YET
                first = None if call.resent else reply
            except ConnectionLost:
                self._forget_wires()
                call, first = again(number, *about), None
            except TubesError:  # Nothing was sent.
                raise
            except BaseException:
                self._forget_wires()
                self._orphan(again(number, *about))
                raise
            reply = self._until_answered(call.pack(), key, call, first)
            if call.resent and type(reply) is ErrorReply and reply.code == "SESSIONGONE":
                raise ConnectionLost(url=self._server.url, why=script_call.UNSURE)
            return reply

    def _orphan(self, call: ScriptCall) -> None:
        """Interrupted: whether it was done nobody knows yet; if so, somebody may want to undo it."""
        if call.orphaned is not None:
            call.resent = True
            with suppress(TubesError):
                call.orphaned(self._until_answered(call.pack(moving=self._server.moving), call.key, call))

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
        if wire is None:
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
