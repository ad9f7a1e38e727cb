"""What a channel does after each outcome of a sending."""

from __future__ import annotations

import pytest

from tubes.errors import ConnectionLost, QueueClosed, ServerRefused, TubesError
from tubes.redis.scripts.assembly import Script
from tubes.redis.scripts.replies import ANY, ErrorReply, Reply
from tubes.redis.transport import attempt
from tubes.redis.transport.attempt import PATIENCE, RESULTS, UNSURE, Attempt, PortStep, Step, port_step
from tubes.redis.transport.script_call import Command, ScriptCall

URL = "redis://here"
DONE, SEND, SEND_TEXT, TICK, RECONNECT = Step
LOST = ConnectionLost(url=URL, why="it broke")
REFUSED = ServerRefused(url=URL, why="WRONGPASS no")
CLOSED = QueueClosed(why="close() was called")


def error(code: str) -> ErrorReply:
    return ErrorReply(f"{code} some text")


def make_attempt(*, resent: bool = False, confirms: bool = False, patience: float | None = None) -> Attempt:
    call = ScriptCall(Script(b"return 1", b"sha", ANY), "key", ())
    call.resent = resent
    return Attempt(call, URL, 0.0, patience, confirms=confirms)


@pytest.mark.parametrize(
    ("outcome", "step", "resent"),
    [
        (None, DONE, False),
        (7, DONE, False),
        (b"task", DONE, False),
        (error("NOSCRIPT"), SEND_TEXT, False),
        (error("AGAIN"), SEND, False),
        (error("DUE"), TICK, False),
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
        (("DUE", "DUE", "AGAIN"), (TICK, TICK, SEND)),
        (("LOADING", "LOADING", "DUE"), (RECONNECT, RECONNECT, TICK)),
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
        ("DUE", False, TICK),
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


@pytest.mark.parametrize("outcome", [LOST, *map(error, ("LOADING", "NOSCRIPT", "AGAIN", "DUE"))], ids=repr)
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


@pytest.mark.parametrize(
    ("tick_reply", "step"),
    [
        (None, TICK),
        *((error(code), DONE) for code in ("SESSIONGONE", "ALTERED", "TUBEGONE", "NOPERM")),
    ],
    ids=repr,
)
def test_failed_tick_ends_a_call_that_still_needs_it(tick_reply: Reply, step: Step) -> None:
    state = make_attempt()
    assert state.next(error("DUE"), 0.0) is TICK
    state.end_tick(tick_reply)
    assert state.next(error("DUE"), 0.0) is step
    if step is DONE:
        assert state.reply is tick_reply


def test_request_contains_the_text_once() -> None:
    state = make_attempt()
    assert b"EVALSHA" in state.pack(moving=False)
    state.next(error("NOSCRIPT"), 0.0)
    assert b"return 1" in state.pack(moving=False)
    state.next(error("AGAIN"), 0.0)
    assert b"return 1" not in state.pack(moving=False)


def test_error_has_the_hash_of_its_script() -> None:
    state = make_attempt()
    reply = error("ERR")
    assert state.next(reply, 0.0) is DONE
    assert reply.sha == b"sha"


def test_plain_command_is_packed_once() -> None:
    state = Attempt(Command("key", "HDEL", "key", "field"), URL, 0.0)
    assert state.next(LOST, 0.0) is RECONNECT
    assert state.pack(moving=True) == b"*3\r\n$4\r\nHDEL\r\n$3\r\nkey\r\n$5\r\nfield\r\n"


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
        ("put_keyed", "DUE", PortStep.TICK),
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
