"""Calls of scripts, and how each is done only once."""

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
R = TypeVar("R", bound="Runs")
T = TypeVar("T")
#: How a script is told who calls: see `TubeSession`, of which this is all that counts here.
Speaker: TypeAlias = "tuple[Word, str, str, Scripts]"
#: A method as a flow: yields calls, gets replies, and returns its result.
Flow: TypeAlias = "flow.Flow[ScriptCall, T]"


class Scripts(Protocol):
    """What has the scripts of a tube."""

    def script(self, verb: str, /) -> Script: ...


class Runs(Protocol):
    """What runs flows: here, or in the event loop."""

    def run(self, flow: Flow[T], /) -> T: ...


def verb(flow: Callable[Concatenate[R, P], Flow[T]]) -> Callable[Concatenate[R, P], T]:
    """Make a verb of a flow: a method that runs it."""

    @wraps(flow)
    def run(port: R, /, *args: P.args, **named: P.kwargs) -> T:
        return port.run(flow(port, *args, **named))

    return run


#: The slot of whoever serves the waiters: one at a time in a process and tube, on a channel of any session.
SERVING: Final = "w"
#: The slot of the take that is sent ahead for who waits: it is on its way for seconds, and others serve meanwhile.
AHEAD: Final = "v"
#: For how many seconds a call is tried again if no server replies.
PATIENCE: Final = 10.0
#: The reason of the error for a call that was sent again without a reply.
UNSURE: Final = "the session has ended since, so the call may or may not have been done"
#: Added to the error if a server refuses a connection before it has replied.
UNHEARD: Final = "the call may or may not have been done before"
#: How long to rest in between.
RETRY: Final = RetryPolicy((0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8))
#: Errors of servers that are about to be well again, or of the wrong server.
PASSING: Final = frozenset({"LOADING", "BUSY", "READONLY", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"})
#: There was other work first, and the call was not done, or not yet. It is sent again with its own number: if it was
#: done by a request whose reply was lost, it is not done twice.
FIRST: Final = "AGAIN"
#: Something is due first, as a delay: the script `tick` lets it happen, and the call is sent again, as after `FIRST`.
DUE: Final = "DUE"
#: Those to a call that is sent for the first time after which nothing was done so far.
NOT_YET: Final = frozenset({FIRST, DUE, "NOSCRIPT"})
#: Errors of a `tick` that the call behind it gets too, or that go away when it is sent again.
OF_CALLS_TOO: Final = frozenset({FIRST, "SESSIONGONE", "ALTERED", "TUBEGONE"})
#: Errors that mean that nothing was done. After any other, which may not be the server's, a call is sent again with its
#: number: if it was done, it gets its reply then.
CERTAIN: Final = frozenset({"SESSIONGONE", "ALTERED", "TUBEGONE", "OOM", "NOPERM", "MISCONF", "NOREPLICAS", "NOTTAKEN"})
#: Those after which the same address may lead to another server.
ELSEWHERE: Final = frozenset({"READONLY", "MASTERDOWN"})


class ScriptCall:
    """A script with its arguments.

    `slot`: where its answer is kept, if not in a slot of the channel: for calls for another session than the channel's.
    """

    #: How many replies come; the last one counts, unless one is an error.
    replies: int = 1
    #: Whether it is packed only when it goes out: until then more may come to it.
    grows = False
    #: Errors that end it. After any other it is sent once more; None: whatever the error.
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
        session: Speaker | None = None,
        now: int | str = "",
        orphaned: Callable[[Reply], None] | None = None,
        slot: str | None = None,
        sent: tuple[int | str, int] | None = None,
        parts: tuple[str, ...] = (),
    ) -> None:
        self.script = script
        #: The kinds of replies to it.
        self.answers = script.answers
        self.key: Final = key
        self.args = args
        self.session: Final[Any] = session
        self.now: Final = now
        #: What to do with a reply for which nobody waits any more.
        self.orphaned: Final = orphaned
        #: What else it uses besides `key`; with a session whatever a tube has.
        self.parts: Final = parts if session is None else PARTS + parts
        # Where its answer is kept, if not in the slot of whoever sends it.
        self._own_slot: Final = slot
        #: Whether it may have been done already. `sent`: it was sent before, from that slot and by that number.
        self.resent = sent is not None
        self.slot: int | str = ""
        self.number = 0
        if sent is not None:
            self.slot, self.number = sent

    def begin(self, slot: int | str) -> None:
        """Give the call its slot and its number before it is sent for the first time; keep those of one sent before."""
        if not self.resent:
            self.slot, self.number = slot if self._own_slot is None else self._own_slot, next(numbers)

    def tick(self) -> ScriptCall:
        """The call that lets happen what is due before this one."""
        scripts: Scripts = self.session[3]
        tick = ScriptCall(scripts.script("tick"), self.key, (), self.session, self.now)
        tick.begin(self.slot)
        return tick

    def pack(self, *, whole: bool = False, moving: bool = False) -> bytes:
        """The request; `whole`: with the script itself.

        `moving`: with all keys that it uses. In a cluster a hash slot moves to another node key by key; a script that
        finds in its middle that some are there already ends half done, unless it names them, and is refused.
        """
        what = ("EVAL", self.script.text) if whole else ("EVALSHA", self.script.sha)
        keys: tuple[Word, ...] = (1, self.key)
        if moving:
            keys = (1 + len(self.parts), self.key, *(f"{self.key}:{part}" for part in self.parts))
        if self.session is None:
            return pack(*what, *keys, *self.args)
        number, token, caller, _ = self.session
        field = f"a{token}.{caller}.{self.slot}"
        return pack(*what, *keys, number, token, field, self.number, self.now, *self.args)


class ScriptLook(ScriptCall):
    """Read-only commands and a script, all at one moment: returns all replies."""

    __slots__ = ("_commands", "replies")

    def __init__(self, commands: Sequence[bytes], script: Script, key: str) -> None:
        super().__init__(script, key, ())
        #: As they go over the wire.
        self._commands: Final = commands
        self.replies: int = len(commands) + 3
        self.answers = LIST

    def pack(self, *, whole: bool = False, moving: bool = False) -> bytes:
        """The request, as a transaction."""
        return b"".join((pack("MULTI"), *self._commands, super().pack(whole=whole, moving=moving), pack("EXEC")))


class WaitForLock(flow.Sleep):
    """A moment in which another flow may give back `lock`."""

    #: Seconds between two looks.
    SECONDS: Final = 0.0002
    #: A thread sleeps until the lock is free, at most so long: many threads that poll would slow down all.
    MOST: Final = 0.1

    __slots__ = ("_lock",)

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__(self.SECONDS)
        self._lock: Final = lock

    def sleep(self) -> None:
        """Wait for the lock in a thread."""
        if self._lock.acquire(timeout=self.MOST):
            self._lock.release()


#: A number is never used again in this process, on any channel. All have 16 digits, and are below 2**53, for Lua. Each
#: process begins at a random one, so that a server that has lost its last writes does not confuse two calls.
numbers = count()


def _begin_numbers() -> None:
    global numbers
    numbers = count(SystemRandom().randrange(10**15, 8 * 10**15))


_begin_numbers()
os.register_at_fork(after_in_child=_begin_numbers)


class Slots:
    """The slots for a connection's last replies: one per call on its way, the lowest free ones first."""

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
        """Free a slot: the reply to its call has come."""
        with self._lock:
            heapq.heappush(self._free, slot)
