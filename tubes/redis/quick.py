"""The verbs of every program's inner loop, for threads: packed ahead, without a flow.

Each does what its namesake in `verbs.py` does, as long as nothing is in the way. A lost connection, a session that has
ended, callers that wait in this process and time in a test's hands go there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tubes.backend.port import mark_finished
from tubes.drivers.moves import State
from tubes.drivers.timers import NEVER
from tubes.errors import Unreadable
from tubes.redis import task_codec
from tubes.redis.batch_port import BatchPort
from tubes.redis.port import PortConnection, Request
from tubes.redis.scripts.replies import BYTES, answers_of
from tubes.redis.task_codec import ScriptReply
from tubes.redis.transport.script_call import ScriptCall
from tubes.redis.transport.wire import ErrorReply, Word, pack
from tubes.values.task import F, TaskView

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.backend.interface import Options
    from tubes.drivers.driver import Driver
    from tubes.redis.shared_tube import SharedTube
    from tubes.redis.transport.channel import ThreadChannel
    from tubes.redis.transport.script_call import TubeSession

T = TypeVar("T")
_TAKEN: Final = State.TAKEN
#: The kinds of replies: to a put without a key, as to one of many; to a take; to an ack.
_OF_PUT: Final = answers_of("put_many")
_OF_TAKE: Final = answers_of("take")
_OF_ACK: Final = answers_of("ack")
# Asking for it is a system call, and is done at every verb.
_process = os.getpid()


def _after_fork() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


class ThreadPort(BatchPort[F]):
    """A port for threads."""

    def __init__(self, connection: PortConnection, shared: SharedTube, channel: ThreadChannel) -> None:
        super().__init__(connection, shared)
        self._channel: Final = channel
        self._pid: Final = _process
        # In a cluster a call names all its keys; a clock in a test's hands tells it the time.
        self._manual: Final = connection.store.manual
        self._packs: Final = not self._manual and not connection.store.server.moving
        # The session for which requests are packed ahead.
        self._packed_for: TubeSession | None = None
        self._heads: dict[str, bytes] = {}
        self._plain: Final = task_codec.write(shared.driver, shared.options, {})
        self._room: Final = shared.options.get("capacity") or ""
        self._of_put: Final = _words_of_put(shared.driver, self._room)
        self._plain_end: Final = self._end_of_put(self._plain)

    def _is_plain(self) -> bool:
        """Whether nothing is in the way."""
        shared = self.shared
        if shared.queue.takers or shared.queue.putters or self.gone is not None or self.session is None:
            return False
        if self.session is not self._packed_for:
            self._pack_ahead(self.session)
        return self._packs and self._pid == _process

    def call(self, verb: str, request: Request[T], *, changes: bool = True) -> T:
        """Call the script of a verb without a flow; where anything is in the way, and for a session anew, with one."""
        session = self.session
        if session is None or self.gone is not None or self._manual or self._pid != _process:
            return super().call(verb, request, changes=changes)
        show, args = request
        call = ScriptCall(self.shared.script(verb), self.shared.key, args, session)
        reply = self._channel.call(call)
        if type(reply) is ErrorReply and not self.is_final(call, verb, reply):
            return super().call(verb, request, changes=changes)
        return show(reply)

    def _pack_ahead(self, session: TubeSession) -> None:
        number, token, caller = session
        field = f"a{token}.{caller}.{self._channel.slot}"
        for verb, count in {"put": self._of_put, "take": 0, "ack": 3, "next": 2}.items():
            head = pack("EVALSHA", self.shared.script(verb).sha, 1, self.shared.key, number, token, field)
            # These seven words, the number of the call, the time, and the verb's own.
            self._heads[verb] = b"*%d" % (9 + count) + head[head.index(b"\r") :] + b"$16\r\n"
        self._packed_for = session

    def _end_of_put(self, new: task_codec.NewTask) -> bytes:
        return _words(*(new.due, new.pri, new.lane, self._room)[: self._of_put - 2])

    def _again(self, number: int, verb: str, words: Any, orphaned: Callable[[ScriptReply], None] | None) -> ScriptCall:
        """The call by that number, to send it again."""
        words = self.put_words(*words, waits=False) if verb == "put" else words
        known, sent = self.shared.script(verb), (self._channel.slot, number)
        return ScriptCall(known, self.shared.key, words, self._packed_for, orphaned=orphaned, sent=sent)

    def put(self, data: object, options: Options) -> F | None:
        """Add a task; None if there is no room."""
        if not self._is_plain():
            return super().put(data, options)
        new, end = self._plain, self._plain_end
        if options and "key" in options:
            return super().put(data, options)
        raw, options = self.prepare(data, options)
        if options:
            new = task_codec.write(self.shared.driver, self.shared.options, options)
            end = self._end_of_put(new)
        value = new.header + raw
        tail = b"\r\n$0\r\n\r\n$1\r\n%b\r\n$%d\r\n%b\r\n%b" % (new.flags, len(value), value, end)
        reply = self._channel.exchange(
            self.shared.key, self._heads["put"], tail, _OF_PUT, self._again, "put", (new, raw), None
        )
        if type(reply) is bytes:
            return self.show_put(reply, new, raw, options)
        if reply is None:
            return None
        return self.connection.run(self.put_encoded(raw, options, waits=False))

    def take(self) -> F | None:
        """The first task that may be taken; None if there is none."""
        if not self._is_plain():
            return super().take()
        head, tail = self._heads["take"], b"\r\n$0\r\n\r\n"
        reply = self._channel.exchange(self.shared.key, head, tail, _OF_TAKE, self._again, "take", (), self.untake)
        if type(reply) is int:
            return None
        if type(reply) is not bytes:
            return super().take()
        try:
            return self.show(task_codec.parse(reply))
        except Unreadable:  # It stays taken: given back it would be the first again.
            raise
        except BaseException:  # Interrupted: nobody gets to see it.
            self.untake(reply)
            raise

    def ack(self, task: object) -> F:
        """A held task is done."""
        if not isinstance(task, TaskView) or not self._is_plain():
            return super().ack(task)
        if task._tube is not self.tube or task._state is not _TAKEN or task.key is not None:
            return super().ack(task)
        id, take = _named(task)
        tail = b"\r\n$0\r\n\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$1\r\n1\r\n" % (len(id), id, len(take), take)
        head, words = self._heads["ack"], (id, take, "1")
        reply = self._channel.exchange(self.shared.key, head, tail, _OF_ACK, self._again, "ack", words, None)
        if type(reply) is int:
            done = task_codec.shown(self.kind, self.tube, task._record, State.DONE, task._attempts, NEVER)
        elif type(reply) is bytes:
            done = self.show(task_codec.parse(reply), task._record.data)
        else:
            return super().ack(task)
        mark_finished(task)
        return done

    def next(self, task: F) -> F | None:
        """A held task is done, and the next one is taken; None if there is none."""
        if task._take < 0 or task.key is not None or not self._is_plain():
            return super().next(task)
        id, take = _named(task)
        tail = b"\r\n$0\r\n\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(id), id, len(take), take)
        head = self._heads["next"]
        reply = self._channel.exchange(self.shared.key, head, tail, BYTES, self._again, "next", (id, take), self.unnext)
        if type(reply) is not bytes:
            return super().next(task)
        return self.show_next(task, reply)


def _words_of_put(driver: Driver, room: object) -> int:
    """How many words of its own a put has: those at the end that no task of this tube has are left out."""
    if room:
        return 6
    if driver.lane is not None:
        return 5
    if "pri" in driver.options:
        return 4
    return 2 if driver.options.isdisjoint({"ttl", "delay"}) else 3


def _named(task: TaskView) -> tuple[bytes, bytes]:
    """Which task, by which take."""
    return b"%d" % task._record.id, b"%d" % task._take


def _words(*words: Word) -> bytes:
    """Words as they go over the wire."""
    # The first word of a command is none of them: redis-py takes it for a name.
    return pack("WORDS", *words).partition(b"WORDS\r\n")[2]
