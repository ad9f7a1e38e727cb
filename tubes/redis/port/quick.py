"""The methods of inner loops for threads: requests are packed in advance, and no flow runs.

Each method does the same as the method of this name in `TubePort`, and falls back to it in special cases: a lost
connection, an ended session, waiters in this process, or a test's clock.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tubes.backend.port import mark_finished
from tubes.drivers.moves import State
from tubes.drivers.timers import NEVER
from tubes.errors import ServerRefused, TubesError
from tubes.redis import task_codec
from tubes.redis.library import text
from tubes.redis.library.functions import FUNCTIONS
from tubes.redis.library.replies import BYTES
from tubes.redis.port import puts, takes
from tubes.redis.port.base import PortConnection, Request, has_end_effects, lane_word
from tubes.redis.port.methods import TubePort
from tubes.redis.port.puts import NEEDS_OTHER_SCRIPT
from tubes.redis.transport.script_call import ScriptCall
from tubes.redis.transport.wire import ErrorReply, Reply, Word, pack
from tubes.values.options import put_options
from tubes.values.task import F, TaskView

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.backend.interface import Options
    from tubes.drivers.driver import Driver
    from tubes.redis.options_version import TubeSession
    from tubes.redis.transport.channel import ThreadChannel
    from tubes.redis.waiting.shared_tube import RedisTube

T = TypeVar("T")
_TAKEN: Final = State.TAKEN
#: Types of the replies.
_PUT_REPLY: Final = FUNCTIONS["put"].reply_types
_TAKE_REPLY: Final = FUNCTIONS["take"].reply_types
_ACK_REPLY: Final = FUNCTIONS["ack"].reply_types
# The process id, cached because it is a system call and every method needs it.
_process = os.getpid()


def _after_fork() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


class _PackedRequests:
    """The packed parts of requests for one session in a tube, made with the options that this session knows."""

    def __init__(self, port: ThreadPort, session: TubeSession, slot: int | str) -> None:
        self.session: Final = session
        self.version: Final = session.version
        self._port: Final = port
        self._slot: Final = slot
        self._put_words: Final = _put_word_count(port.shared.driver, self.version.room)
        self.plain_end: Final = self.end_of_put(self.version.plain)
        self.put: Final = self._head("put", self._put_words)
        self.take: Final = self._head("take", 0)
        ack_words = 3 + (port.shared.driver.lane is not None)
        self.ack: Final = self._head("ack", ack_words)
        self.next: Final = self._head("next", ack_words)

    def _head(self, name: str, count: int) -> bytes:
        """Return the request up to the number of the call; b"": the user lacks a right.

        `count`: the number of the function's own words.
        """
        number, token, caller, version = self.session
        try:
            version.function(name)
        except ServerRefused:
            return b""
        field = f"a{token}.{caller}.{self._slot}"
        head = pack("FCALL", text.function_name(name), 1, self._port.shared.key, number, token, field)
        # The nine words: these seven, the number of the call and the time.
        return b"*%d" % (9 + count) + head[head.index(b"\r") :] + b"$16\r\n"

    def end_of_put(self, new: task_codec.NewTask) -> bytes:
        """Return the last words of a put."""
        return _pack_words(*(new.due, new.pri, new.lane, self.version.room)[: self._put_words - 2])

    def repeat_call(self, number: int, name: str, words: Any, undo: Callable[[Reply], None] | None) -> ScriptCall:
        """Return the call of this number, to send it again."""
        words = puts.put_words(self._port, self.version, *words) if name == "put" else words
        known, sent = self.version.function(name), (self._slot, number)
        return ScriptCall(known, self._port.shared.key, words, self.session, undo=undo, sent=sent)


class ThreadPort(TubePort[F]):
    """A port for threads."""

    def __init__(self, connection: PortConnection, shared: RedisTube, channel: ThreadChannel) -> None:
        super().__init__(connection, shared)
        self._channel: Final = channel
        self._pid: Final = _process
        # In a cluster a call names all its keys; with a test's clock it passes the time.
        self._manual: Final = connection.store.manual
        self._server: Final = connection.store.server
        self._can_pack: Final = not self._manual and not connection.store.server.moving
        self._packed: _PackedRequests | None = None

    def _packed_requests(self) -> _PackedRequests | None:
        """Return the packed requests of the session; None if a special case needs a flow."""
        shared, session, packed = self.shared, self.session, self._packed
        queue = shared.queue
        if (
            queue.take_waiters
            or queue.put_waiters
            or queue.stale is not None
            or self.closed_error is not None
            or session is None
        ):
            return None
        if not self._can_pack or not self._server.has_functions or self._pid != _process:
            return None
        if packed is None or packed.session is not session:
            packed = self._packed = _PackedRequests(self, session, self._channel.slot)
        return packed

    def call(self, name: str, request: Request[T], *, changes: bool = True) -> T:
        """Call a function without a flow, or with one in a special case or to open the tube again."""
        session, stale = self.session, self.shared.queue.stale
        if (
            session is None
            or stale is not None
            or self.closed_error is not None
            or self._manual
            or self._pid != _process
            or session.version.lacks
        ):
            return super().call(name, request, changes=changes)
        decode, args, lease = request
        call = ScriptCall(session.version.function(name), self.shared.key, args, self.session_of(lease, session))
        reply = self._channel.call(call)
        if type(reply) is ErrorReply and not self.run(self.settle(name, reply, call.session, resent=call.resent)):
            return super().call(name, request, changes=changes)
        return decode(reply)

    def put(self, data: object, options: Options, *usual: Any) -> F | None:
        """Add a task; return None if the tube is full."""
        options = put_options(options, *usual)
        packed = self._packed_requests()
        if packed is None or not packed.put or (options and not NEEDS_OTHER_SCRIPT.isdisjoint(options)):
            return super().put(data, options)
        new, end = packed.version.plain, packed.plain_end
        raw, options = self.prepare(data, options)
        if options:
            new = packed.version.write(options)
            end = packed.end_of_put(new)
        value = new.header + raw
        tail = b"\r\n$0\r\n\r\n$1\r\n%b\r\n$%d\r\n%b\r\n%b" % (new.flags, len(value), value, end)
        reply = self._channel.exchange(
            self.shared.key, packed.put, tail, _PUT_REPLY, packed.repeat_call, "put", (new, raw)
        )
        if type(reply) is bytes:
            return puts.show_put(self, reply, new, raw)
        if reply is None:
            return None
        if type(reply) is ErrorReply:
            self.run(self.settle("put", reply, packed.session))
        return self.connection.run(puts.put_encoded(self, raw, options, waits=False))

    def take(self) -> F | None:
        """Take the first available task; return None if no task is available."""
        packed = self._packed_requests()
        if packed is None or not packed.take:
            return super().take()
        head, tail = packed.take, b"\r\n$0\r\n\r\n"
        reply: Reply = None
        try:
            reply = self._channel.exchange(
                self.shared.key, head, tail, _TAKE_REPLY, packed.repeat_call, "take", (), self.undo_take
            )
            if type(reply) is bytes:
                return self.decode(task_codec.parse(reply))
            if type(reply) is int:
                return None
            if type(reply) is ErrorReply:
                self.run(self.settle("take", reply, packed.session))
        except TubesError:  # An unreadable task stays taken: after a release it would be the first task again.
            raise
        except BaseException:  # After an interrupt the caller does not get the task.
            self._channel.undos.append((self.undo_take, reply))
            self._channel.run_undos()
            raise
        return super().take()

    def ack(self, task: object) -> F:
        """Acknowledge a held task."""
        packed = self._packed_requests()
        if packed is None or not packed.ack or not isinstance(task, TaskView):
            return super().ack(task)  # pyright: ignore[reportUnknownArgumentType]
        if task._tube is not self.tube or task._state is not _TAKEN or has_end_effects(task):  # pyright: ignore[reportUnknownArgumentType]
            return super().ack(task)  # pyright: ignore[reportUnknownArgumentType]
        words, tail = self._ack_words(task)  # pyright: ignore[reportUnknownArgumentType]
        head = packed.ack
        reply = self._channel.exchange(self.shared.key, head, tail, _ACK_REPLY, packed.repeat_call, "ack", words)
        if type(reply) is int:
            done = task_codec.make_task(self.kind, self.tube, task._record, State.DONE, task._attempts, NEVER)
        elif type(reply) is bytes:
            done = self.decode(task_codec.parse(reply), task._record.data)
        else:
            if type(reply) is ErrorReply:
                self.run(self.settle("ack", reply, packed.session))
            return super().ack(task)  # pyright: ignore[reportUnknownArgumentType]
        mark_finished(task)  # pyright: ignore[reportUnknownArgumentType]
        return done

    def next(self, task: F) -> F | None:
        """Acknowledge a held task and take the next one; return None if no task is available."""
        packed = self._packed_requests()
        if packed is None or not packed.next or task._take < 0 or has_end_effects(task):
            return super().next(task)
        words, tail = self._ack_words(task)
        reply = self._channel.exchange(self.shared.key, packed.next, tail, BYTES, packed.repeat_call, "next", words)
        if type(reply) is bytes:
            return takes.show_next(self, task, reply)
        if type(reply) is ErrorReply:
            self.run(self.settle("next", reply, packed.session))
        return super().next(task)

    def _ack_words(self, task: TaskView) -> tuple[tuple[Word, ...], bytes]:
        """Return a function's arguments for the ack of a task, and their packed form, which ends the request."""
        id, take, known = b"%d" % task._record.id, b"%d" % task._take, self.known_facts_word(task).encode()
        tail = b"\r\n$0\r\n\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$1\r\n%b\r\n" % (len(id), id, len(take), take, known)
        if self._driver.lane is None:
            return (id, take, known), tail
        lane = lane_word(task)
        return (id, take, known, lane), tail + b"$%d\r\n%b\r\n" % (len(lane), lane)


def _put_word_count(driver: Driver, room: object) -> int:
    """Return the number of a put's own words: trailing words that no task of this tube uses are left out."""
    if room:
        return 6
    if driver.lane is not None:
        return 5
    if "pri" in driver.options:
        return 4
    return 2 if driver.options.isdisjoint({"ttl", "delay"}) else 3


def _pack_words(*words: Word) -> bytes:
    """Pack words for the wire."""
    # redis-py treats the first word of a command as its name, so a dummy name is cut off.
    return pack("WORDS", *words).partition(b"WORDS\r\n")[2]
