"""A call of a script, and the numbers that make it run only once.

How a call runs once: each call has a slot and a number. The server keeps the last number and reply of each slot in a
field of the tube's meta hash, `a<session>.<caller>.<slot>`. If the connection breaks before the reply arrives, the
channel sends the same call again with the same number: a script that finds its number in the field returns the kept
reply and does nothing else. A slot has one call in flight, so that the next call may overwrite the kept reply. A thread
uses one slot; an event loop takes one from `Slots` for each call. Numbers grow, so a script also detects a request that
its own retry has overtaken.

An error reply has one of four meanings. Transient errors and redirects (`PASSING`): send the call again. Other work
comes first (`FIRST`, `DUE`): send it again with its number. The call certainly did nothing (`CERTAIN`): raise the
error. The session ended, and the call had been sent before: it is unknown if it ran (`UNSURE`).
"""

from __future__ import annotations

import heapq
import os
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import count
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeAlias, TypeVar

from tubes.backend import flow
from tubes.backend.retry import RetryPolicy
from tubes.redis.scripts.parts import PARTS
from tubes.redis.scripts.replies import LIST
from tubes.redis.transport.wire import Reply, Word, pack

if TYPE_CHECKING:
    from tubes.redis.scripts.assembly import Script

P = ParamSpec("P")
R = TypeVar("R", bound="FlowRunner")
T = TypeVar("T")
#: The session that makes a call: a `TubeSession`, as far as calls use it.
SessionFields: TypeAlias = "tuple[Word, str, str, Scripts]"
#: A method as a generator: yields calls, receives their replies, and returns its result.
Flow: TypeAlias = "flow.Flow[ScriptCall, T]"


class Scripts(Protocol):
    """An object that has the scripts of a tube."""

    def script(self, verb: str, /) -> Script: ...


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
#: Seconds for which a call is sent again if no server replies.
PATIENCE: Final = 10.0
#: The text of the error for a call whose reply was lost and whose session has ended.
UNSURE: Final = "the session has ended since, so the call may or may not have been done"
#: Added to the error if a server refuses the connection on which a call would be sent again.
REFUSED_RETRY: Final = "the call may or may not have been done before"
#: Delays between attempts, in seconds.
RETRY: Final = RetryPolicy((0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8))
#: Transient errors and redirects: find the server again, and retry.
PASSING: Final = frozenset({"LOADING", "BUSY", "READONLY", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"})
#: The script had other work to do first and did not run the call. Send it again with its own number: if an earlier
#: request whose reply was lost did run it, it does not run twice.
FIRST: Final = "AGAIN"
#: A task or lane is due first: a delay ended, for example. Run the script `tick`, then send the call again, as after
#: `FIRST`.
DUE: Final = "DUE"
#: Errors after which a call that is sent for the first time has certainly not run yet.
NOT_YET: Final = frozenset({FIRST, DUE, "NOSCRIPT"})
#: `tick` errors to ignore: the call that is sent again gets them too, or no longer.
IGNORED_TICK_ERRORS: Final = frozenset({FIRST, "SESSIONGONE", "ALTERED", "TUBEGONE"})
#: Errors after which the call has certainly not run. Any other error may come from a proxy: send the call again with
#: its number, and get the kept reply if it did run.
CERTAIN: Final = frozenset({"SESSIONGONE", "ALTERED", "TUBEGONE", "OOM", "NOPERM", "MISCONF", "NOREPLICAS", "NOTTAKEN"})
#: Errors after which the same address may lead to another server: connect again.
RECONNECT: Final = frozenset({"READONLY", "MASTERDOWN"})


class ScriptCall:
    """A script with its arguments.

    `slot`: the slot that keeps its reply, if not a slot of the channel: for a session other than the channel's.
    """

    #: The number of replies to the request. The last one is the result, unless one is an error.
    replies: int = 1
    #: True if the call may grow until it is sent: it is packed as late as possible.
    grows = False
    #: Errors that end the call. After any other it is sent once more. None: every error ends it.
    certain: frozenset[str] | None = None

    __slots__ = (
        "_own_slot", "answers", "args", "key", "now", "number", "orphaned", "parts", "resent", "script", "session",
        "slot",
    )  # fmt: skip

    def __init__(
        self,
        script: Script,
        key: str,
        args: tuple[Word, ...],
        session: SessionFields | None = None,
        now: int | str = "",
        orphaned: Callable[[Reply], None] | None = None,
        slot: str | None = None,
        sent: tuple[int | str, int] | None = None,
        parts: tuple[str, ...] = (),
    ) -> None:
        self.script = script
        #: The expected types of its reply.
        self.answers = script.answers
        self.key: Final = key
        self.args = args
        self.session: Final[Any] = session
        self.now: Final = now
        #: Receives the reply if the caller was interrupted or cancelled, and undoes the call.
        self.orphaned: Final = orphaned
        #: Other keys the script may touch; with a session, all keys of the tube.
        self.parts: Final = parts if session is None else PARTS + parts
        # The slot that keeps its reply, if not the slot that the channel passes to `begin`.
        self._own_slot: Final = slot
        #: True if it may have run already. `sent`: the slot and the number with which it was sent before.
        self.resent = sent is not None
        self.slot: int | str = ""
        self.number = 0
        if sent is not None:
            self.slot, self.number = sent

    def begin(self, slot: int | str) -> None:
        """Set the slot and the number before the first request; a call that was sent before keeps its own."""
        if not self.resent:
            self.slot, self.number = slot if self._own_slot is None else self._own_slot, next(numbers)

    def tick(self) -> ScriptCall:
        """Make the call that processes the due tasks and lanes before this one."""
        scripts: Scripts = self.session[3]
        tick = ScriptCall(scripts.script("tick"), self.key, (), self.session, self.now)
        tick.begin(self.slot)
        return tick

    def pack(self, *, whole: bool = False, moving: bool = False) -> bytes:
        """Encode the request; `whole`: with the text of the script instead of its hash.

        `moving`: name all keys that it may use. In a cluster a hash slot moves to another node key by key. A server
        refuses a script that names a key which has moved; without the names, the script would stop half way.
        """
        command = ("EVAL", self.script.text) if whole else ("EVALSHA", self.script.sha)
        keys: tuple[Word, ...] = (1, self.key)
        if moving:
            keys = (1 + len(self.parts), self.key, *(f"{self.key}:{part}" for part in self.parts))
        if self.session is None:
            return pack(*command, *keys, *self.args)
        number, token, caller, _ = self.session
        field = f"a{token}.{caller}.{self.slot}"
        return pack(*command, *keys, number, token, field, self.number, self.now, *self.args)


class ScriptLook(ScriptCall):
    """Read-only commands and a script in one transaction. The result is the list of all replies."""

    __slots__ = ("_commands", "replies")

    def __init__(self, commands: Sequence[bytes], script: Script, key: str) -> None:
        super().__init__(script, key, ())
        #: Packed.
        self._commands: Final = commands
        self.replies: int = len(commands) + 3
        self.answers = LIST

    def pack(self, *, whole: bool = False, moving: bool = False) -> bytes:
        """Encode the transaction."""
        return b"".join((pack("MULTI"), *self._commands, super().pack(whole=whole, moving=moving), pack("EXEC")))


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
