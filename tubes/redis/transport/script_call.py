"""A call of a Lua function, and the numbers that make it run only once.

How a call runs once: each call has a slot and a number. The server keeps the last number and reply of each slot in a
field of the tube's meta hash, `a<session>.<caller>.<slot>`. If the connection breaks before the reply arrives, the
channel sends the same call again with the same number: a call that finds its number in the field returns the kept
reply and does nothing else. A slot has one call in flight, so that the next call may overwrite the kept reply. A thread
uses one slot; an event loop takes one from `Slots` for each call. Numbers grow, so a call also detects a request that
its own retry has overtaken.

`attempt.py` decides when a call is sent again.
"""

from __future__ import annotations

import heapq
import os
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import count
from random import SystemRandom
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeAlias, TypeVar

from tubes.backend import flow
from tubes.redis.library import text
from tubes.redis.library.functions import Function
from tubes.redis.library.replies import ANY, LIST
from tubes.redis.transport.wire import Reply, Word, pack

P = ParamSpec("P")
R = TypeVar("R", bound="FlowRunner")
T = TypeVar("T")
#: The session that makes a call: a `TubeSession`, as far as calls use it.
SessionFields: TypeAlias = "tuple[Word, str, str, Scripts]"
#: A method as a generator: yields calls, receives their replies, and returns its result.
Flow: TypeAlias = "flow.Flow[ScriptCall, T]"


class Library(Protocol):
    """How a server runs the functions of the library."""

    #: True if it may have them as functions; else their text runs as a script.
    has_functions: bool
    #: True if keys may move to another node while they are in use.
    moving: bool


class Scripts(Protocol):
    """An object that has the functions of a tube, as far as the user may call them."""

    def function(self, name: str, /) -> Function: ...


class FlowRunner(Protocol):
    """An object that runs flows, in the calling thread or in an event loop."""

    def run(self, flow: Flow[T], /) -> T: ...


def flow_method(flow: Callable[Concatenate[R, P], Flow[T]]) -> Callable[Concatenate[R, P], T]:
    """Make a method that runs the flow."""

    @wraps(flow)
    def run(port: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return port.run(flow(port, *args, **kwargs))

    return run


#: The slot of the thread that serves the waiters of a tube, on the channel of any session; a process has one at a time.
SERVING: Final = "w"
#: The slot of the take that is sent ahead for a waiter. It is in flight for seconds, while `SERVING` is used as well.
AHEAD: Final = "v"
_NO_FUNCTION: Final = Function("", ANY, frozenset())


class ScriptCall:
    """A Lua function with its arguments.

    `slot`: the slot that keeps its reply; None: the slot that the channel passes to `begin`.
    """

    #: The number of replies to the request. The last one is the result, unless one is an error.
    replies: int = 1
    #: True if the call may grow until it is sent: it is packed as late as possible.
    grows = False

    __slots__ = (
        "_own_slot", "args", "function", "give_up", "key", "now", "number", "patience", "reply_types", "resent",
        "session", "slot", "undo",
    )  # fmt: skip

    def __init__(
        self,
        function: Function,
        key: str,
        args: tuple[Word, ...],
        session: SessionFields | None = None,
        now: int | str = "",
        undo: Callable[[Reply], None] | None = None,
        slot: str | None = None,
        sent: tuple[int | str, int] | None = None,
    ) -> None:
        self.function = function
        #: The expected types of its reply.
        self.reply_types = function.reply_types
        self.key: Final = key
        self.args = args
        self.session: Final[Any] = session
        self.now: Final = now
        #: Receives the reply if the caller was interrupted or cancelled, and undoes the call.
        self.undo: Final = undo
        self._own_slot: Final = slot
        #: Seconds to try; None: as long as the channel does. A call that has no reply in this time may still run
        #: later: either it changes nothing, or `give_up` gets it.
        self.patience: float | None = None
        self.give_up: Callable[[ScriptCall], None] | None = None
        #: True if it may have run already.
        self.resent = False
        #: `sent`: the slot and the number with which it was sent before.
        self.slot, self.number = ("", 0) if sent is None else sent

    def begin(self, slot: int | str) -> None:
        """Set the slot and the number before the first request; a call that has a number keeps it."""
        if not self.number:
            self.slot, self.number = slot if self._own_slot is None else self._own_slot, next(numbers)

    def pack(self, server: Library, *, with_text: bool = False) -> bytes:
        """Encode the request; `with_text`: send the text of the library as a script instead of its hash.

        A call names the meta hash; the function adds the suffixes of the tube's other keys. In a cluster a hash slot
        moves to another node key by key, and a script that misses a key would stop halfway. So a call also names a key
        that never exists: while the slot moves, the server refuses a call that names a missing key.
        """
        name = self.function.name
        last: tuple[Word, ...] = ()
        command: tuple[Word, ...]
        if server.has_functions:
            command = "FCALL", text.function_name(name)
        else:
            command = ("EVAL", text.script()) if with_text else ("EVALSHA", text.script_sha())
            last = (name,)
        keys: tuple[Word, ...] = (1, self.key) if self.key else (0,)
        if server.moving and self.key and "alone" not in self.function.traits:
            keys = (2, self.key, f"{self.key}:")
        if self.session is None:
            return pack(*command, *keys, *self.args, *last)
        number, token, caller, _ = self.session
        field = f"a{token}.{caller}.{self.slot}"
        return pack(*command, *keys, number, token, field, self.number, self.now, *self.args, *last)


class ScriptLook(ScriptCall):
    """Read-only commands and a function in one transaction. The result is the list of all replies."""

    __slots__ = ("_commands", "replies")

    def __init__(self, commands: Sequence[bytes], function: Function, key: str) -> None:
        super().__init__(function, key, ())
        #: Packed.
        self._commands: Final = commands
        self.replies: int = len(commands) + 3
        self.reply_types = LIST

    def pack(self, server: Library, *, with_text: bool = False) -> bytes:
        """Encode the transaction."""
        packed = super().pack(server, with_text=with_text)
        return b"".join((pack("MULTI"), *self._commands, packed, pack("EXEC")))


class Command(ScriptCall):
    """A plain command, such as HDEL. It may run twice."""

    __slots__ = ("_packed",)

    def __init__(self, key: str, *words: Word) -> None:
        super().__init__(_NO_FUNCTION, key, ())
        self._packed: Final = pack(*words)

    def pack(self, server: Library, *, with_text: bool = False) -> bytes:
        """Return the packed command."""
        return self._packed


class Load(Command):
    """Load the library. It may run twice: the second one is refused, and has no effect."""

    __slots__ = ()

    def __init__(self, key: str) -> None:
        super().__init__(key, "FUNCTION", "LOAD", text.library())


class WaitForLock(flow.Sleep):
    """A short sleep in which another flow may release `lock`."""

    #: Seconds between two attempts in an event loop.
    SECONDS: Final = 0.0002
    #: A thread blocks until the lock is free, at most this many seconds: many polling threads would slow down all.
    MOST: Final = 0.1

    __slots__ = ("_lock",)

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__(self.SECONDS)
        self._lock: Final = lock

    def sleep(self) -> None:
        """Block the thread until the lock is free."""
        if self._lock.acquire(timeout=self.MOST):
            self._lock.release()


#: The numbers of calls. A process never uses a number twice, on any channel. All have 16 digits and are below 2**53,
#: the exact range of Lua. Each process begins at a random number, so that a server that lost its last writes does not
#: take one call for another.
numbers = count()


def _begin_numbers() -> None:
    global numbers
    numbers = count(SystemRandom().randrange(10**15, 8 * 10**15))


_begin_numbers()
os.register_at_fork(after_in_child=_begin_numbers)


class Slots:
    """The slots of a connection: one per call in flight, the lowest free one first."""

    def __init__(self) -> None:
        self._free: Final[list[int]] = []
        self._count = 0
        self._lock: Final = threading.Lock()

    def take(self) -> int:
        """Reserve a free slot and return it."""
        with self._lock:
            if self._free:
                return heapq.heappop(self._free)
            self._count += 1
            return self._count - 1

    def free(self, slot: int) -> None:
        """Release a slot after the reply to its call has arrived."""
        with self._lock:
            heapq.heappush(self._free, slot)
