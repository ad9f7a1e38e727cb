"""The next step after each sending of a call, and after an error reply.

How a call is sent: a channel packs the call (`Attempt.pack`), sends it, and passes the outcome to `Attempt.next`: the
reply, or the error of the connection. The attempt returns the next step or raises the error of the call. It does no
I/O and reads no clock, so `ThreadChannel` and `LoopChannel` share it.

| outcome | next step |
|---|---|
| a value, or an error that ends the call | DONE: return `reply` |
| NOSCRIPT | SEND_TEXT: send the call with the text of its script |
| AGAIN | SEND: the script did other work first, and did not run the call |
| DUE | TICK: a task or lane is due first; run the script `tick`, then send the call |
| DUE after an error of the `tick` | DONE: return that error; sending the call again would change nothing |
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
| NOPERM in the middle of a script, whose writes stay | MARK: mark the tube as damaged, and raise the error |
| AGAIN, DUE from the target of a move | TICK: run the script `tick` there, and make a new call |
| any other error | RAISE |
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Final

from tubes.backend.retry import RetryPolicy
from tubes.errors import ConnectionLost, ServerRefused, TubesError
from tubes.redis.scripts.replies import ErrorReply, Reply

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
    {"NOTTAKEN", "NOTFOUND", "DUPLICATE", "FULL", "LANEFULL", "STATE", "KEEP", "STAGEGONE", "FENCED", "ABORTED"}
)
#: Errors after which the call has certainly not run. Any other error may come from a proxy.
CERTAIN: Final = frozenset({"SESSIONGONE", "ALTERED", "TUBEGONE", "OOM", "NOPERM", "MISCONF", "NOREPLICAS", "NOTTAKEN"})
#: The text of the error for a call whose reply was lost and whose session has ended.
UNSURE: Final = "the session has ended since, so the call may or may not have been done"
# Scripts without effect after their session has ended.
_HOLDER_SCRIPTS: Final = frozenset(
    {"ack", "ack_many", "ack_with", "checkpoint", "decline", "release", "release_many", "renew_many", "set_ttr"}
    | {"touch", "untake", "unput", "disarm", "leave"}
)
# Scripts that may have run before their session ended, if the call was sent twice.
_UNREPEATABLE: Final = frozenset(
    {"put", "put_many", "put_keyed", "put_limited", "again", "take", "take_many", "take_for", "take_task", "next"}
    | {"ack", "ack_many", "ack_with", "act_some", "kick_task", "bury", "cancel", "update", "delete", "delete_many"}
)
# The error of a command that the ACL forbids, in a script that has run up to this command.
_IN_SCRIPT: Final = re.compile(r"user_script|[Ss]cript:|in script|executing the script")
# Added to the error if a server refuses the connection on which a call would be sent again.
_REFUSED_RETRY: Final = "the call may or may not have been done before"


#: The next step of a channel.
Step = Enum("Step", "DONE SEND SEND_TEXT TICK RECONNECT")
#: The step of a port after an error reply.
PortStep = Enum("PortStep", "RETURN END RENEW REPAIR MARK TICK RAISE RAISE_UNSURE")
_PORT_STEPS: Final = {
    "SESSIONGONE": PortStep.RENEW,
    "ALTERED": PortStep.RENEW,
    "DAMAGED": PortStep.REPAIR,
    "AGAIN": PortStep.TICK,
    "DUE": PortStep.TICK,
}


def port_step(name: str, reply: Reply, *, resent: bool = False, leased: bool = False) -> PortStep:
    """Return the step of a port after the reply of a script. `leased`: it was called with the session of a lease."""
    if type(reply) is not ErrorReply:
        return PortStep.RETURN
    code = reply.code
    if code in RESULTS or (code == "TUBEGONE" and name == "drop" and resent):
        return PortStep.RETURN
    if code == "SESSIONGONE" and resent and name in _UNREPEATABLE:
        return PortStep.RAISE_UNSURE
    if code == "SESSIONGONE" and (leased or name in _HOLDER_SCRIPTS):
        return PortStep.END
    if code == "NOPERM" and _IN_SCRIPT.search(str(reply)):
        return PortStep.MARK
    return _PORT_STEPS.get(code, PortStep.RAISE)


class Attempt:
    """The attempt to get the reply to a call."""

    #: The last reply; None after a lost connection.
    reply: Reply = None
    #: Seconds to wait before the next sending.
    pause = 0.0
    _failures = 0
    _sends_text = False
    # The error of the last `tick`, if it failed.
    _tick_error: ErrorReply | None = None

    def __init__(
        self, call: ScriptCall, url: str, now: float, patience: float | None = None, *, confirms: bool = False
    ) -> None:
        """`confirms`: after an error that is not `CERTAIN`, send the call once more to get the kept reply if it ran."""
        self.call: Final = call
        self._url: Final = url
        self._until: Final = now + (patience or PATIENCE)
        self._confirms: Final = confirms

    def pack(self, *, moving: bool) -> bytes:
        """Return the request for the next sending."""
        return self.call.pack(with_text=self._sends_text, moving=moving)

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
        elif code == "AGAIN":
            step = Step.SEND
        elif code == "DUE":
            if self._tick_error is None:
                step = Step.TICK
            else:
                self.reply = outcome = self._tick_error
        elif self._confirms and code not in CERTAIN and not call.resent:
            step, call.resent = Step.SEND, True
        if step is Step.DONE:
            outcome.sha = outcome.sha or call.script.sha
        elif closed is not None:
            raise closed
        return step

    def _reconnect(self, lost: ConnectionLost, now: float, closed: TubesError | None) -> Step:
        self.call.resent = True
        if closed is not None:
            raise closed
        if now > self._until:
            raise lost
        self._failures += 1
        self.pause = RETRY.delay(self._failures)
        return Step.RECONNECT

    def end_tick(self, reply: Reply) -> None:
        """Record the reply to the `tick`; if it failed, the call gets this error if work is still due."""
        self._tick_error = reply if type(reply) is ErrorReply else None
