"""The states of a caller that waits on a server, and all transitions.

Only `WaitQueue` moves waiters, by this table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class WaitState(StrEnum):
    """The state of a waiter."""

    #: In its queue; no request was sent for it.
    QUEUED = "queued"
    #: The server has a take for it, which runs when a task is available.
    ARMED = "armed"
    #: Its put was sent.
    IN_HAND = "in hand"
    #: Its put was sent and its timeout has passed: it still waits for the reply.
    LATE = "late"
    #: In its queue after the reply to its put was lost: the put may or may not have been done.
    UNSURE = "unsure"
    #: Like `IN_HAND` and `LATE`, after an earlier put that may or may not have been done.
    IN_HAND_AGAIN = "in hand again"
    LATE_AGAIN = "late again"
    #: It has a task or an error.
    ANSWERED = "answered"
    #: It has left its queue without a result.
    GONE = "gone"

    # Enum hashes in Python, and every move looks up a state.
    __hash__ = str.__hash__


class WaitMove(NamedTuple):
    """One row of the table: the next state and the effects."""

    to: WaitState
    #: Wake the waiter.
    wakes: bool = False
    #: Give the waiter the error that its put may or may not have been done.
    warns: bool = False


_QUEUED, _ARMED, _ANSWERED, _GONE = WaitState.QUEUED, WaitState.ARMED, WaitState.ANSWERED, WaitState.GONE
_IN_HAND, _LATE, _UNSURE = WaitState.IN_HAND, WaitState.LATE, WaitState.UNSURE
_IN_HAND_AGAIN, _LATE_AGAIN = WaitState.IN_HAND_AGAIN, WaitState.LATE_AGAIN
_IN_LINE = (_QUEUED, _ARMED, _IN_HAND, _LATE, _UNSURE, _IN_HAND_AGAIN, _LATE_AGAIN)

#: Event -> state (None: a new waiter) -> move. An event has no effect in a state without a row.
WAIT_MOVES: Final[dict[str, dict[WaitState | None, WaitMove]]] = {
    "enlist": {None: WaitMove(_QUEUED)},
    # A take is sent ahead for the first waiter; later its result is known.
    "arm": {_QUEUED: WaitMove(_ARMED)},
    "disarm": {_ARMED: WaitMove(_QUEUED)},
    # The put of the first waiter is sent. If it was sent before, its thread was interrupted.
    "ask": {
        **dict.fromkeys((_QUEUED, _IN_HAND), WaitMove(_IN_HAND)),
        **dict.fromkeys((_UNSURE, _IN_HAND_AGAIN), WaitMove(_IN_HAND_AGAIN)),
    },
    # The reply to a put: the tube is full. An earlier put of the same task may have used the room.
    "no_room": {
        _IN_HAND: WaitMove(_QUEUED),
        _IN_HAND_AGAIN: WaitMove(_UNSURE),
        _LATE: WaitMove(_GONE, wakes=True),
        _LATE_AGAIN: WaitMove(_ANSWERED, wakes=True, warns=True),
    },
    # The reply to a put is lost.
    "lose": {
        **dict.fromkeys((_IN_HAND, _IN_HAND_AGAIN), WaitMove(_UNSURE)),
        **dict.fromkeys((_LATE, _LATE_AGAIN), WaitMove(_ANSWERED, wakes=True, warns=True)),
    },
    # Its timeout passes after its put was sent: an error about a full tube might be wrong.
    "keep": {
        **dict.fromkeys((_IN_HAND, _LATE), WaitMove(_LATE)),
        **dict.fromkeys((_IN_HAND_AGAIN, _LATE_AGAIN), WaitMove(_LATE_AGAIN)),
    },
    # It gets a task or an error; "unheard": the waiter could not be woken.
    "give": dict.fromkeys(
        (_QUEUED, _ARMED, _IN_HAND, _LATE, _IN_HAND_AGAIN, _LATE_AGAIN), WaitMove(_ANSWERED, wakes=True)
    ),
    "unheard": {_ANSWERED: WaitMove(_GONE)},
    # Its tube is gone or its queue is closed: it gets the error.
    "dismiss": dict.fromkeys(_IN_LINE, WaitMove(_ANSWERED, wakes=True)),
    # The server refuses a command of the wait: the waiter gets this error unless its put may have been done.
    "refuse": {
        **dict.fromkeys((_QUEUED, _ARMED, _IN_HAND, _LATE), WaitMove(_ANSWERED, wakes=True)),
        **dict.fromkeys((_UNSURE, _IN_HAND_AGAIN, _LATE_AGAIN), WaitMove(_ANSWERED, wakes=True, warns=True)),
    },
    # It leaves: its timeout has passed, or it was cancelled or interrupted.
    "leave": {
        **dict.fromkeys((_QUEUED, _ARMED, _IN_HAND, _LATE), WaitMove(_GONE)),
        **dict.fromkeys((_UNSURE, _IN_HAND_AGAIN, _LATE_AGAIN), WaitMove(_ANSWERED, warns=True)),
    },
    # Its timeout passes by a test's clock, which does not wake waiters by itself.
    "end": {
        **dict.fromkeys((_QUEUED, _ARMED), WaitMove(_GONE, wakes=True)),
        _UNSURE: WaitMove(_ANSWERED, wakes=True, warns=True),
    },
}
