"""What a channel does after each outcome of a sending."""

from __future__ import annotations

import pytest

from tubes.errors import ConnectionLost, QueueClosed, ServerRefused, TubesError
from tubes.redis.library import text
from tubes.redis.library.functions import FUNCTIONS
from tubes.redis.library.replies import ErrorReply, Reply
from tubes.redis.transport import attempt
from tubes.redis.transport.attempt import PATIENCE, RESULTS, UNSURE, Attempt, PortStep, Step, port_step
from tubes.redis.transport.script_call import Command, ScriptCall

URL = "redis://here"
DONE, SEND, SEND_TEXT, LOAD, RECONNECT = Step
LOST = ConnectionLost(url=URL, why="it broke")
REFUSED = ServerRefused(url=URL, why="WRONGPASS no")
CLOSED = QueueClosed(why="close() was called")


def error(code: str) -> ErrorReply:
    return ErrorReply(f"{code} some text")


class FakeServer:
    """A server that has functions until it is told otherwise."""

    url = URL
    moving = False
    has_functions = True
    why_scripts = ""

    def use_scripts(self, why: str) -> None:
        self.has_functions, self.why_scripts = False, why


def make_attempt(
    server: FakeServer | None = None, *, resent: bool = False, confirms: bool = False, patience: float | None = None
) -> Attempt:
    call = ScriptCall(FUNCTIONS["tick"], "key", ())
    call.resent = resent
    return Attempt(call, server or FakeServer(), 0.0, patience, confirms=confirms)


@pytest.mark.parametrize(
    ("outcome", "step", "resent"),
    [
        (None, DONE, False),
        (7, DONE, False),
        (b"task", DONE, False),
        (error("NOSCRIPT"), SEND_TEXT, False),
        (error("AGAIN"), SEND, False),
        (ErrorReply("ERR Function not found"), LOAD, False),
        *((error(code), RECONNECT, True) for code in sorted(attempt.PASSING)),
        (LOST, RECONNECT, True),
        *((error(code), DONE, False) for code in ("SESSIONGONE", "ALTERED", "TUBEGONE", "FULL", "OOM", "ERR")),
    ],
    ids=repr,
)
def test_first_outcome(outcome: Reply | TubesError, step: Step, resent: bool) -> None:
    state = make_attempt()
    assert state.next(outcome, 0.0) is step
    assert state.call.resent is resent
    if step is DONE:
        assert state.reply is outcome


@pytest.mark.parametrize(
    ("outcomes", "steps"),
    [
        # A server that asks for the text again has not understood it.
        (("NOSCRIPT", "NOSCRIPT"), (SEND_TEXT, DONE)),
        # The scripts of the server were flushed meanwhile.
        (("NOSCRIPT", "AGAIN", "NOSCRIPT"), (SEND_TEXT, SEND, SEND_TEXT)),
        (("LOADING", "LOADING", "AGAIN"), (RECONNECT, RECONNECT, SEND)),
    ],
)
def test_sequence_of_errors(outcomes: tuple[str, ...], steps: tuple[Step, ...]) -> None:
    state = make_attempt()
    assert tuple(state.next(error(code), 0.0) for code in outcomes) == steps


@pytest.mark.parametrize(
    ("code", "resent", "step"),
    [
        *((code, False, DONE) for code in sorted(attempt.CERTAIN)),
        ("ERR", False, SEND),
        ("ERR", True, DONE),
        ("NOSCRIPT", False, SEND_TEXT),
    ],
)
def test_uncertain_error_is_confirmed_by_a_second_sending(code: str, resent: bool, step: Step) -> None:
    state = make_attempt(resent=resent, confirms=True)
    assert state.next(error(code), 0.0) is step
    assert state.call.resent is (resent or step is SEND)


@pytest.mark.parametrize(
    ("resent", "confirms", "is_raised"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_lost_reply_and_ended_session(resent: bool, confirms: bool, is_raised: bool) -> None:
    state = make_attempt(resent=resent, confirms=confirms)
    if is_raised:
        with pytest.raises(ConnectionLost, match=UNSURE):
            state.next(error("SESSIONGONE"), 0.0)
    else:
        assert state.next(error("SESSIONGONE"), 0.0) is DONE


@pytest.mark.parametrize("outcome", [LOST, error("LOADING")], ids=repr)
@pytest.mark.parametrize(("patience", "limit"), [(None, PATIENCE), (0.5, 0.5)])
def test_patience_ends(outcome: Reply | TubesError, patience: float | None, limit: float) -> None:
    state = make_attempt(patience=patience)
    assert state.next(outcome, limit) is RECONNECT
    with pytest.raises(ConnectionLost):
        state.next(outcome, limit + 0.001)
    # A late reply still counts.
    assert state.next(1, limit + 1) is DONE


@pytest.mark.parametrize("outcome", [LOST, *map(error, ("LOADING", "NOSCRIPT", "AGAIN"))], ids=repr)
def test_closed_channel_does_not_send_again(outcome: Reply | TubesError) -> None:
    with pytest.raises(QueueClosed):
        make_attempt().next(outcome, 0.0, CLOSED)


@pytest.mark.parametrize("reply", [1, error("FULL")], ids=repr)
def test_closed_channel_returns_the_reply(reply: Reply) -> None:
    assert make_attempt().next(reply, 0.0, CLOSED) is DONE


def test_refused_connection_ends_the_call() -> None:
    with pytest.raises(ServerRefused):
        make_attempt().next(REFUSED, 0.0)
    with pytest.raises(ConnectionLost, match="may or may not have been done before"):
        make_attempt(resent=True).next(REFUSED, 0.0)


def test_pauses_grow() -> None:
    state, pauses = make_attempt(), list[float]()
    for _ in range(9):
        assert state.next(LOST, 0.0) is RECONNECT
        pauses.append(state.pause)
    assert pauses[:2] == [0.0, 0.01]
    assert pauses == sorted(pauses)
    assert pauses[-2:] == [0.8, 0.8]


@pytest.mark.parametrize("reply", [b"tubes_1", error("ERR Library 'tubes_1' already exists")], ids=repr)
def test_missing_library_is_loaded(reply: Reply) -> None:
    state = make_attempt()
    assert b"FCALL" in state.pack()
    assert state.next(ErrorReply("ERR Function not found"), 0.0) is LOAD
    state.end_load(reply)
    assert b"FCALL" in state.pack()


@pytest.mark.parametrize(
    "refusal", ["ERR unknown command 'FUNCTION', with args beginning with", "NOPERM no permission", "OOM not allowed"]
)
def test_library_runs_as_a_script_if_it_cannot_be_loaded(refusal: str) -> None:
    server = FakeServer()
    state = make_attempt(server)
    state.next(ErrorReply("ERR Function not found"), 0.0)
    state.end_load(ErrorReply(refusal))
    assert server.why_scripts == refusal
    assert b"EVALSHA" in state.pack()
    assert state.next(error("NOSCRIPT"), 0.0) is SEND_TEXT
    assert text.script() in state.pack()
    assert state.next(error("AGAIN"), 0.0) is SEND
    assert text.script() not in state.pack()


@pytest.mark.parametrize(
    "refusal", ["ERR unknown command 'FCALL', with args", "NOPERM User x has no permissions to run the 'fcall' command"]
)
def test_library_runs_as_a_script_where_functions_cannot_be_called(refusal: str) -> None:
    server = FakeServer()
    state = make_attempt(server)
    assert state.next(ErrorReply(refusal), 0.0) is SEND
    assert not server.has_functions


@pytest.mark.parametrize(
    "refusal",
    ["ERR unknown command 'EVALSHA', with args", "NOPERM User x has no permissions to run the 'evalsha' command"],
)
def test_next_call_tries_functions_again_if_scripts_are_refused_too(refusal: str) -> None:
    server = FakeServer()
    state = make_attempt(server)
    assert state.next(ErrorReply("ERR Function not found"), 0.0) is LOAD
    state.end_load(error("NOPERM"))
    assert state.next(ErrorReply(refusal), 0.0) is DONE
    assert str(state.reply) == f"{refusal}; {error('NOPERM')}"
    assert b"FCALL" in make_attempt(server).pack()


@pytest.mark.parametrize(
    "reply", ["ERR Function not found", "NOPERM User x has no permissions to run the 'fcall' command"]
)
def test_function_call_in_flight_becomes_a_script_with_the_others(reply: str) -> None:
    server = FakeServer()
    state = make_attempt(server)
    server.use_scripts("another thread was refused")
    assert state.next(ErrorReply(reply), 0.0) is SEND
    assert b"EVALSHA" in state.pack()


def test_plain_command_is_packed_once() -> None:
    state = Attempt(Command("key", "HDEL", "key", "field"), FakeServer(), 0.0)
    assert state.next(LOST, 0.0) is RECONNECT
    assert state.pack() == b"*3\r\n$4\r\nHDEL\r\n$3\r\nkey\r\n$5\r\nfield\r\n"


@pytest.mark.parametrize(
    ("name", "error_text", "step"),
    [
        *(("take", code, PortStep.RETURN) for code in sorted(RESULTS)),
        ("drop", "TUBEGONE", PortStep.RAISE),
        ("put", "SESSIONGONE", PortStep.RENEW),
        ("tasks", "SESSIONGONE", PortStep.RENEW),
        ("ack", "SESSIONGONE", PortStep.END),
        ("leave", "SESSIONGONE", PortStep.END),
        ("ack", "ALTERED", PortStep.RENEW),
        ("put", "DAMAGED", PortStep.REPAIR),
        ("put_keyed", "AGAIN", PortStep.TICK),
        ("put", "NOPERM this user may not run 'zadd' script: 0a", PortStep.MARK),
        ("put", "NOPERM this user may not run 'evalsha'", PortStep.RAISE),
        ("put", "TUBEGONE", PortStep.RAISE),
        ("put", "OOM", PortStep.RAISE),
    ],
)
def test_step_of_port(name: str, error_text: str, step: PortStep) -> None:
    assert port_step(name, ErrorReply(error_text)) is step


@pytest.mark.parametrize(
    ("name", "code", "step"),
    [
        ("drop", "TUBEGONE", PortStep.RETURN),
        ("put", "TUBEGONE", PortStep.RAISE),
        *((name, "SESSIONGONE", PortStep.RAISE_UNSURE) for name in ("put", "take", "ack", "next", "delete_many")),
        ("release", "SESSIONGONE", PortStep.END),
        ("tasks", "SESSIONGONE", PortStep.RENEW),
        ("put", "ALTERED", PortStep.RENEW),
    ],
)
def test_step_of_port_after_a_lost_reply(name: str, code: str, step: PortStep) -> None:
    assert port_step(name, error(code), resent=True) is step


def test_ended_lease_ends_the_call() -> None:
    assert port_step("bury", error("SESSIONGONE")) is PortStep.RENEW
    assert port_step("bury", error("SESSIONGONE"), leased=True) is PortStep.END
