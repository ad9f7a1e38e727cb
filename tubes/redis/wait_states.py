"""The states of a caller that waits on a server, and every way from one to the next.

`WaitQueue` moves waiters by this table, and nothing else does.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class WaitState(StrEnum):
    """Where a waiter stands."""

    #: It is in its line, and no request is on its way for it.
    QUEUED = "queued"
    #: The server has a take for it already, which runs when there is a task.
    ARMED = "armed"
    #: Its put is on its way.
    IN_HAND = "in hand"
    #: Its put is on its way and its time is over: it still waits for the reply to the put.
    LATE = "late"
    #: The reply to its put was lost: the put may or may not have been done. It is in its line.
    UNSURE = "unsure"
    #: As `IN_HAND` and `LATE`, after an earlier put that may or may not have been done.
    IN_HAND_AGAIN = "in hand again"
    LATE_AGAIN = "late again"
    #: It has a task, or an error.
    ANSWERED = "answered"
    #: It has left its line without a result.
    GONE = "gone"

    # Enum hashes in Python; a state is the key of a lookup in every move.
    __hash__ = str.__hash__


class WaitMove(NamedTuple):
    """One row of the table: the state that follows, and what is done."""

    to: WaitState
    #: The waiter is woken.
    wakes: bool = False
    #: The waiter gets the error that its put may or may not have been done.
    warns: bool = False


_QUEUED, _ARMED, _ANSWERED, _GONE = WaitState.QUEUED, WaitState.ARMED, WaitState.ANSWERED, WaitState.GONE
_IN_HAND, _LATE, _UNSURE = WaitState.IN_HAND, WaitState.LATE, WaitState.UNSURE
_IN_HAND_AGAIN, _LATE_AGAIN = WaitState.IN_HAND_AGAIN, WaitState.LATE_AGAIN
_IN_LINE = (_QUEUED, _ARMED, _IN_HAND, _LATE, _UNSURE, _IN_HAND_AGAIN, _LATE_AGAIN)

#: Why a waiter moves -> from which state (None: it has just come) -> the move.
#: An event changes nothing in a state that has no row for it.
WAIT_MOVES: Final[dict[str, dict[WaitState | None, WaitMove]]] = {
    "enlist": {None: WaitMove(_QUEUED)},
    # A take is sent ahead for the first in line; later its result is known.
    "arm": {_QUEUED: WaitMove(_ARMED)},
    "disarm": {_ARMED: WaitMove(_QUEUED)},
    # The put of the first in line is sent. If it is in hand already, its thread was interrupted.
    "ask": {
        **dict.fromkeys((_QUEUED, _IN_HAND), WaitMove(_IN_HAND)),
        **dict.fromkeys((_UNSURE, _IN_HAND_AGAIN), WaitMove(_IN_HAND_AGAIN)),
    },
    # The reply to a put: there is no room. An earlier put may have used it.
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
    # Its time is over while its put is on its way. To say that there was no room might be wrong.
    "keep": {
        **dict.fromkeys((_IN_HAND, _LATE), WaitMove(_LATE)),
        **dict.fromkeys((_IN_HAND_AGAIN, _LATE_AGAIN), WaitMove(_LATE_AGAIN)),
    },
    # It gets a task or an error; and nobody was there to get it.
    "give": dict.fromkeys(
        (_QUEUED, _ARMED, _IN_HAND, _LATE, _IN_HAND_AGAIN, _LATE_AGAIN), WaitMove(_ANSWERED, wakes=True)
    ),
    "unheard": {_ANSWERED: WaitMove(_GONE)},
    # Its tube is gone, or its queue is closed: it gets that error.
    "dismiss": dict.fromkeys(_IN_LINE, WaitMove(_ANSWERED, wakes=True)),
    # The server refuses a command of the wait: it gets that error, unless its put may have been done.
    "refuse": {
        **dict.fromkeys((_QUEUED, _ARMED, _IN_HAND, _LATE), WaitMove(_ANSWERED, wakes=True)),
        **dict.fromkeys((_UNSURE, _IN_HAND_AGAIN, _LATE_AGAIN), WaitMove(_ANSWERED, wakes=True, warns=True)),
    },
    # It has gone away: its time is over, it was cancelled or interrupted.
    "leave": {
        **dict.fromkeys((_QUEUED, _ARMED, _IN_HAND, _LATE), WaitMove(_GONE)),
        **dict.fromkeys((_UNSURE, _IN_HAND_AGAIN, _LATE_AGAIN), WaitMove(_ANSWERED, warns=True)),
    },
    # Its time is over by a clock that wakes nobody by itself.
    "end": {
        **dict.fromkeys((_QUEUED, _ARMED), WaitMove(_GONE, wakes=True)),
        _UNSURE: WaitMove(_ANSWERED, wakes=True, warns=True),
    },
}
