"""The waiters of one tube of a server in this process: two queues, the state of each waiter, and all transitions."""

from __future__ import annotations

import threading
from collections import OrderedDict
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tubes.backend.waiters import PENDING
from tubes.drivers.options import SECOND
from tubes.errors import ConnectionLost
from tubes.values.batch import lanes_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.backend.waiters import Waiter
    from tubes.redis.transport.script_call import ScriptCall


class WaitState(StrEnum):
    """The state of a waiter."""

    #: In its queue; no request was sent for it.
    QUEUED = "queued"
    #: The server has a take for it, which runs when a task is available.
    ARMED = "armed"
    #: Its put was sent.
    SENT = "sent"
    #: Its put was sent and its timeout has passed: it still waits for the reply.
    OVERDUE = "overdue"
    #: In its queue after the reply to its put was lost: the put may or may not have been done.
    UNSURE = "unsure"
    #: Like `SENT` and `OVERDUE`, after an earlier put that may or may not have been done.
    SENT_AGAIN = "sent again"
    OVERDUE_AGAIN = "overdue again"
    #: It has a task or an error.
    FINISHED = "finished"
    #: It has left its queue without a result.
    WITHDRAWN = "withdrawn"

    # The hash of an Enum is slow Python code, and every move looks up a state.
    __hash__ = str.__hash__


class WaitMove(NamedTuple):
    """One row of the table: the next state and the effects."""

    to: WaitState
    #: Wake the waiter.
    wakes: bool = False
    #: Give the waiter the error that its put may or may not have been done.
    warns: bool = False


_QUEUED, _ARMED, _FINISHED, _WITHDRAWN = WaitState.QUEUED, WaitState.ARMED, WaitState.FINISHED, WaitState.WITHDRAWN
_SENT, _OVERDUE, _UNSURE = WaitState.SENT, WaitState.OVERDUE, WaitState.UNSURE
_SENT_AGAIN, _OVERDUE_AGAIN = WaitState.SENT_AGAIN, WaitState.OVERDUE_AGAIN
_IN_LINE = (_QUEUED, _ARMED, _SENT, _OVERDUE, _UNSURE, _SENT_AGAIN, _OVERDUE_AGAIN)

#: Event -> state (None: a new waiter) -> move. An event has no effect in a state without a row.
WAIT_MOVES: Final[dict[str, dict[WaitState | None, WaitMove]]] = {
    "enlist": {None: WaitMove(_QUEUED)},
    # A take is sent ahead for the first waiter; later its result is known.
    "arm": {_QUEUED: WaitMove(_ARMED)},
    "disarm": {_ARMED: WaitMove(_QUEUED)},
    # The put of the first waiter is sent. If it was sent before, its thread was interrupted.
    "send": {
        **dict.fromkeys((_QUEUED, _SENT), WaitMove(_SENT)),
        **dict.fromkeys((_UNSURE, _SENT_AGAIN), WaitMove(_SENT_AGAIN)),
    },
    # The reply to a put: the tube is full. An earlier put of the same task may have used the room.
    "no_room": {
        _SENT: WaitMove(_QUEUED),
        _SENT_AGAIN: WaitMove(_UNSURE),
        _OVERDUE: WaitMove(_WITHDRAWN, wakes=True),
        _OVERDUE_AGAIN: WaitMove(_FINISHED, wakes=True, warns=True),
    },
    # The reply to a put is lost.
    "lose": {
        **dict.fromkeys((_SENT, _SENT_AGAIN), WaitMove(_UNSURE)),
        **dict.fromkeys((_OVERDUE, _OVERDUE_AGAIN), WaitMove(_FINISHED, wakes=True, warns=True)),
    },
    # Its timeout passes after its put was sent: an error about a full tube might be wrong.
    "keep": {
        **dict.fromkeys((_SENT, _OVERDUE), WaitMove(_OVERDUE)),
        **dict.fromkeys((_SENT_AGAIN, _OVERDUE_AGAIN), WaitMove(_OVERDUE_AGAIN)),
    },
    # It gets a task or an error; "wake_failed": the waiter could not be woken.
    "give": dict.fromkeys(
        (_QUEUED, _ARMED, _SENT, _OVERDUE, _SENT_AGAIN, _OVERDUE_AGAIN), WaitMove(_FINISHED, wakes=True)
    ),
    "wake_failed": {_FINISHED: WaitMove(_WITHDRAWN)},
    # Its tube is gone or its queue is closed: it gets the error.
    "dismiss": dict.fromkeys(_IN_LINE, WaitMove(_FINISHED, wakes=True)),
    # The server refuses a command of the wait: the waiter gets this error unless its put may have been done.
    "refuse": {
        **dict.fromkeys((_QUEUED, _ARMED, _SENT, _OVERDUE), WaitMove(_FINISHED, wakes=True)),
        **dict.fromkeys((_UNSURE, _SENT_AGAIN, _OVERDUE_AGAIN), WaitMove(_FINISHED, wakes=True, warns=True)),
    },
    # It leaves: its timeout has passed, or it was cancelled or interrupted.
    "leave": {
        **dict.fromkeys((_QUEUED, _ARMED, _SENT, _OVERDUE), WaitMove(_WITHDRAWN)),
        **dict.fromkeys((_UNSURE, _SENT_AGAIN, _OVERDUE_AGAIN), WaitMove(_FINISHED, warns=True)),
    },
    # Its timeout passes by a test's clock, which does not wake waiters by itself.
    "end": {
        **dict.fromkeys((_QUEUED, _ARMED), WaitMove(_WITHDRAWN, wakes=True)),
        _UNSURE: WaitMove(_FINISHED, wakes=True, warns=True),
    },
}


#: Waiters in the order of arrival. A waiter in neither queue has its result or has left.
Waiters: TypeAlias = "OrderedDict[Waiter, WaitState]"

#: The reason of the error for a waiter whose put may have been done.
_NO_REPLY: Final = "there was no reply, so the put may or may not have been done"
#: Microseconds for which a process relies on its registration as waiting, which the server keeps twice as long.
_REGISTERED: Final = 5 * SECOND


class TakeAhead:
    """A take that was sent before a task is available, for a waiter."""

    __slots__ = ("call", "is_open", "port", "waiter")

    def __init__(self, waiter: Waiter, call: ScriptCall) -> None:
        self.waiter: Final = waiter
        self.port: Final = waiter.owner
        self.call: Final = call
        #: True while its task may go to a waiter.
        self.is_open = True


class WaitQueue:
    """The waiters of one tube. `now`: returns the time with which deadlines are compared; `url`: for errors."""

    def __init__(self, now: Callable[[], int], url: str) -> None:
        self._now: Final = now
        self._url: Final = url
        self.lock: Final = threading.RLock()
        #: The waiters for a task, and the waiters for room.
        self.take_waiters: Final[Waiters] = OrderedDict()
        self.put_waiters: Final[Waiters] = OrderedDict()
        #: Waiters that do not count yet: they have not looked for a task so far.
        self.arriving: Final[set[Waiter]] = set()
        #: The take that was sent ahead, until its result is known.
        self.ahead: TakeAhead | None = None
        #: A take whose waiters have left, until the server knows. It may take a task that other callers look for.
        self.stale: TakeAhead | None = None
        #: The next due time of the tube (0: none) if its last reply said that no task is available; None: unknown.
        self.soonest: int | None = None
        # Until then the server pushes a marker if a task becomes available.
        self._registered_until = 0

    def note_reply(self, soonest: int | None, *, registers: bool = False) -> None:
        """Record a reply to a take of a waiter; `registers`: it has registered this process as waiting."""
        self.soonest = soonest
        if registers:
            self._registered_until = self._now() + _REGISTERED

    def knows_none(self) -> bool:
        """Return True if no task is available unless the server has pushed a marker."""
        return self.soonest is not None and self._registered_until > self._now() > 0

    def is_empty(self) -> bool:
        """Return True if there are no waiters."""
        return not self.take_waiters and not self.put_waiters

    def markers(self) -> list[str]:
        """Return the marker keys on which the waiters wait."""
        with self.lock:
            lines = (("marker", self.take_waiters), ("room", self.put_waiters))
            return [marker for marker, line in lines if line]

    def waiters(self, owner: object = None) -> list[Waiter]:
        """Return all waiters; with `owner` only the waiters of this port."""
        with self.lock:
            found = [*self.take_waiters, *self.put_waiters]
        return found if owner is None else [waiter for waiter in found if waiter.owner is owner]

    def enlist(self, waiter: Waiter) -> bool:
        """Append a waiter to its queue; return whether it is the first there."""
        with self.lock:
            line = self.take_waiters if waiter.request is None else self.put_waiters
            line[waiter] = WAIT_MOVES["enlist"][None].to
            return len(line) == 1

    def state(self, waiter: Waiter) -> WaitState:
        """Return the state of a waiter that was enlisted."""
        line = self.take_waiters if waiter.request is None else self.put_waiters
        return line.get(waiter) or (_WITHDRAWN if waiter.result is PENDING else _FINISHED)

    def move(self, waiter: Waiter, event: str, result: object = PENDING) -> bool:
        """Move a waiter by the table; `result`: its result, if the move has one.

        Return False if the table has no row for its state, or if the waiter could not be woken.
        """
        with self.lock:
            line = self.take_waiters if waiter.request is None else self.put_waiters
            if waiter.result is not PENDING and waiter in line:  # The thread that set the result was interrupted.
                waiter.wake()
                line.pop(waiter)
            move = WAIT_MOVES[event].get(line.get(waiter) or self.state(waiter))
            if move is None:
                return False
            state, wakes, warns = move
            if state is not _FINISHED and state is not _WITHDRAWN:
                line[waiter] = state
                return True
            if warns:
                result = ConnectionLost(url=self._url, why=_NO_REPLY)
            waiter.result = result if state is _FINISHED else PENDING
            was_woken = not wakes or waiter.wake()
            line.pop(waiter, None)
            if not was_woken:
                self.move(waiter, "wake_failed")
            return was_woken

    def give(self, waiter: Waiter, result: object) -> bool:
        """Hand over a task or an error; return False if the waiter has left: then the caller gives the task back."""
        with self.lock:
            if waiter.is_done():
                self.move(waiter, "leave")
                return False
            return self.move(waiter, "give", result)

    def first(self, line: Waiters, full: set[object] | None = None) -> Waiter | None:
        """Return the first waiter without a take that was sent ahead, and remove waiters that have left.

        `full`: skip the waiters for these lanes.
        """
        now = self._now()
        with self.lock:
            for waiter in list(line):
                is_overdue = waiter.deadline is not None and waiter.deadline < now
                if waiter.result is not PENDING or waiter.is_done() or waiter.has_left() or is_overdue:
                    self.move(waiter, "leave")
                elif line[waiter] is not _ARMED and not (
                    full and full & lanes_of(waiter.owner.shared.driver, waiter.request)
                ):
                    return waiter
            return None

    def give_ahead(self, ahead: TakeAhead, task: object) -> bool:
        """Give a task that was taken ahead to the first waiter, even if its timeout has just passed.

        Return False if the take is stale, or differs from the one of the first waiter in its session or its ttr.
        """
        with self.lock:
            first = next(
                (waiter for waiter in self.take_waiters if not waiter.is_done() and not waiter.has_left()), None
            )
            if not ahead.is_open or first is None or first.owner is not ahead.port or first.span != ahead.waiter.span:
                return False
            if ahead.port.session != ahead.call.session or not self.give(first, task):
                return False
            ahead.is_open = False
            return True

    def note_stale(self) -> bool:
        """Mark the take that was sent ahead as stale if no waiter is left; return whether it was marked."""
        with self.lock:
            if self.take_waiters or self.ahead is None or not self.ahead.is_open:
                return False
            self.ahead.is_open = False
            self.stale = self.ahead
            return True

    def forget_ahead(self) -> None:
        """Record that the result of the take that was sent ahead is known, or that it was not sent."""
        with self.lock:
            if self.ahead is not None:
                self.move(self.ahead.waiter, "disarm")
                self.forget_stale(self.ahead)
                self.ahead = None

    def forget_stale(self, ahead: TakeAhead) -> None:
        """Record that the server does not run this stale take any more."""
        with self.lock:
            if self.stale is ahead:
                self.stale = None

    def begin_first_put(self, full: set[object]) -> Waiter | None:
        """Return the first waiter for room outside the `full` lanes, and record that its put is being sent."""
        with self.lock:
            waiter = self.first(self.put_waiters, full)
            if waiter is not None:
                self.move(waiter, "send")
            return waiter

    def count(self) -> int:
        """Return the number of waiters in this process."""
        with self.lock:
            number = 0
            for waiter in (*self.take_waiters, *self.put_waiters):
                number += not waiter.has_left() and waiter not in self.arriving
            return number

    def has_take_waiter(self) -> bool:
        """Return True if a caller waits for a task; a waiter with a result may stay in the queue for a moment."""
        if not self.take_waiters:
            return False
        with self.lock:
            return any(waiter.result is PENDING for waiter in self.take_waiters)

    def has_unserved(self) -> bool:
        """Return True if a waiter for a task has no take on the server yet."""
        if not self.take_waiters:
            return False
        with self.lock:
            return any(state is _QUEUED for state in self.take_waiters.values())
