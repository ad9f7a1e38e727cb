"""The next step after each sending of a call, and after an error reply.

How a call is sent: a channel packs the call (`Attempt.pack`), sends it, and passes the outcome to `Attempt.next`: the
reply, or the error of the connection. The attempt returns the next step or raises the error of the call. It does no
I/O and reads no clock, so `ThreadChannel` and `LoopChannel` share it.

| outcome | next step |
|---|---|
| a value, or an error that ends the call | DONE: return `reply` |
| Function not found | LOAD: load the library, then send the call |
| a server that refuses FCALL or FUNCTION LOAD | SEND: the library runs as a script from now on |
| a server that refuses EVALSHA, too | DONE: the next call tries the function again, which somebody may have loaded |
| NOSCRIPT | SEND_TEXT: send the call with the text of the script |
| AGAIN | SEND: the call did other work first, and its method did not run |
| `PASSING`, such as LOADING or MOVED; a lost connection | RECONNECT: find the server, wait `pause` seconds, connect |

The call keeps its number, so it runs once however often it is sent (see `script_call.py`). It fails if no server
replies within `PATIENCE` seconds, if the channel is closed, or if a server refuses the connection.

The port of a tube takes the next step after an error reply (`port_step`):

| error | next step |
|---|---|
| `RESULTS`, such as NOTTAKEN; TUBEGONE if a `drop` was sent twice | RETURN: the method turns it into its result |
| SESSIONGONE, if only the ended session could do the call | END: return it; the next call opens the tube again |
| SESSIONGONE, if the call was sent twice and may have run | RAISE_UNSURE |
| any other SESSIONGONE; ALTERED | RENEW: open the tube again, and make a new call |
| DAMAGED | REPAIR: repair the tube, and make a new call |
| NOPERM in the middle of a call, whose writes stay | MARK: mark the tube as damaged, and raise the error |
| AGAIN from the target of a move | TICK: run the function `tick` there, and make a new call |
| any other error | RAISE |
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from tubes.backend.retry import RetryPolicy
from tubes.errors import ConnectionLost, ServerRefused, TubesError
from tubes.redis.library.functions import FUNCTIONS
from tubes.redis.library.replies import ErrorReply, Reply

if TYPE_CHECKING:
    from tubes.redis.transport.script_call import ScriptCall

#: Seconds for which a call is sent again if no server replies.
PATIENCE: Final = 10.0
#: Delays before the next sending, in seconds.
RETRY: Final = RetryPolicy((0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8))
#: Transient errors and redirects: find the server again, and retry.
PASSING: Final = frozenset({"LOADING", "BUSY", "READONLY", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"})
#: Errors after which the same address may lead to another server.
OTHER_SERVER: Final = frozenset({"READONLY", "MASTERDOWN"})
#: Errors that a method turns into its result.
RESULTS: Final = frozenset(
    {"NOTTAKEN", "NOTFOUND", "DUPLICATE", "FULL", "LANEFULL", "STATE", "STAGEGONE", "FENCED", "ABORTED"}
)
#: Errors after which the call has certainly not run. Any other error may come from a proxy.
CERTAIN: Final = frozenset({"SESSIONGONE", "ALTERED", "TUBEGONE", "OOM", "NOPERM", "MISCONF", "NOREPLICAS", "NOTTAKEN"})
#: The text of the error for a call whose reply was lost and whose session has ended.
UNSURE: Final = "the session has ended since, so the call may or may not have been done"
# The error of a command that the ACL forbids, in a function that has run up to this command.
_IN_SCRIPT: Final = re.compile(r"user_script|user_function|[Ss]cript:|in script|executing the script")
# The error for a function that the server does not have, and errors for users and servers that cannot call functions or
# run scripts. The parser of redis-py removes the prefix ERR; hiredis keeps it.
_NO_FUNCTION: Final = "Function not found"
_NO_FCALL: Final = re.compile(r"(NOPERM|(ERR )?unknown command|(ERR )?This user).*\bfcall\b", re.IGNORECASE)
_NO_EVAL: Final = re.compile(r"(NOPERM|(ERR )?unknown command|(ERR )?This user).*\beval(sha)?\b", re.IGNORECASE)
# Added to the error if a server refuses the connection on which a call would be sent again.
_REFUSED_RETRY: Final = "the call may or may not have been done before"


#: The next step of a channel.
Step = Enum("Step", "DONE SEND SEND_TEXT LOAD RECONNECT")
#: The step of a port after an error reply.
PortStep = Enum("PortStep", "RETURN END RENEW REPAIR MARK TICK RAISE RAISE_UNSURE")
_PORT_STEPS: Final = {
    "SESSIONGONE": PortStep.RENEW,
    "ALTERED": PortStep.RENEW,
    "DAMAGED": PortStep.REPAIR,
    "AGAIN": PortStep.TICK,
}


def port_step(name: str, reply: Reply, *, resent: bool = False, leased: bool = False) -> PortStep:
    """Return the step of a port after the reply of a function. `leased`: it was called with the session of a lease."""
    if type(reply) is not ErrorReply:
        return PortStep.RETURN
    code = reply.code
    if code in RESULTS or (code == "TUBEGONE" and name == "drop" and resent):
        return PortStep.RETURN
    traits = FUNCTIONS[name].traits
    if code == "SESSIONGONE" and resent and "once" in traits:
        return PortStep.RAISE_UNSURE
    if code == "SESSIONGONE" and (leased or "held" in traits):
        return PortStep.END
    if code == "NOPERM" and _IN_SCRIPT.search(str(reply)):
        return PortStep.MARK
    return _PORT_STEPS.get(code, PortStep.RAISE)


class LibraryServer(Protocol):
    """The server of an attempt."""

    url: str
    moving: bool
    has_functions: bool
    why_scripts: str

    def use_scripts(self, why: str, /) -> None:
        """Run the library as a script from now on."""
        ...


class Attempt:
    """The attempt to get the reply to a call."""

    #: The last reply; None after a lost connection.
    reply: Reply = None
    #: Seconds to wait before the next sending.
    pause = 0.0
    _failures = 0
    _sends_text = False

    def __init__(
        self,
        call: ScriptCall,
        server: LibraryServer,
        now: float,
        patience: float | None = None,
        *,
        confirms: bool = False,
    ) -> None:
        """`confirms`: after an error that is not `CERTAIN`, send the call once more to get the kept reply if it ran."""
        self.call: Final = call
        self._server: Final = server
        self._url: Final = server.url
        self._until: Final = now + (patience or PATIENCE)
        self._confirms: Final = confirms

    def pack(self) -> bytes:
        """Return the request for the next sending."""
        return self.call.pack(self._server, with_text=self._sends_text)

    def next(self, outcome: Reply | TubesError, now: float, closed: TubesError | None = None) -> Step:
        """Return the step after an outcome, or raise the error of the call. `closed`: the error of a closed channel."""
        call, sent_text = self.call, self._sends_text
        self._sends_text = False
        if isinstance(outcome, TubesError):
            self.reply = None
            if isinstance(outcome, ServerRefused) and call.resent:
                raise ConnectionLost(url=self._url, why=f"{outcome}; {_REFUSED_RETRY}") from outcome
            if not isinstance(outcome, ConnectionLost):
                raise outcome
            return self._reconnect(outcome, now, closed)
        self.reply = outcome
        if type(outcome) is not ErrorReply:
            return Step.DONE
        code = outcome.code
        if code in PASSING:
            return self._reconnect(ConnectionLost(url=self._url, why=outcome), now, closed)
        if code == "SESSIONGONE" and self._confirms and call.resent:
            raise ConnectionLost(url=self._url, why=UNSURE)
        step = Step.DONE
        if code == "NOSCRIPT" and not sent_text:
            step, self._sends_text = Step.SEND_TEXT, True
        elif str(outcome).removeprefix("ERR ") == _NO_FUNCTION:
            # Another thread may have found meanwhile that the library cannot be loaded.
            step = Step.LOAD if self._server.has_functions else Step.SEND
        elif _NO_FCALL.match(str(outcome)):
            self._server.use_scripts(str(outcome))
            step = Step.SEND
        elif _NO_EVAL.match(str(outcome)):
            self._server.has_functions = True
            self.reply = ErrorReply(f"{outcome}; {self._server.why_scripts}")
        elif code == "AGAIN":
            step = Step.SEND
        elif self._confirms and code not in CERTAIN and not call.resent:
            step, call.resent = Step.SEND, True
        if step is not Step.DONE and closed is not None:
            raise closed
        return step

    def _reconnect(self, lost: ConnectionLost, now: float, closed: TubesError | None) -> Step:
        self.call.resent = True
        if closed is not None:
            raise closed
        if now > self._until:
            raise lost
        self._failures += 1
        self.pause = min(RETRY.delay(self._failures), self._until - now)
        return Step.RECONNECT

    def skip_load(self) -> Step:
        """Send the call without the library, which another call has just sent on the same connection."""
        self._sends_text = False
        return Step.SEND

    def end_load(self, reply: Reply) -> None:
        """Record the reply to FUNCTION LOAD: if the server has no library, its text runs as a script."""
        if type(reply) is ErrorReply and "already exists" not in str(reply):
            self._server.use_scripts(str(reply))
