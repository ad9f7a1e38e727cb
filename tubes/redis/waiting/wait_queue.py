"""The waiters of one tube of a server in this process: two queues, and the state of each waiter."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from tubes.backend.waiters import PENDING
from tubes.errors import ConnectionLost
from tubes.redis.waiting.wait_states import WAIT_MOVES, WaitState
from tubes.values.batch import lanes_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.backend.waiters import Waiter
    from tubes.redis.transport.script_call import ScriptCall

#: Waiters in the order of arrival. A waiter in neither queue has its result or has left.
Waiters: TypeAlias = "OrderedDict[Waiter, WaitState]"

_QUEUED, _ARMED, _ANSWERED, _GONE = WaitState.QUEUED, WaitState.ARMED, WaitState.ANSWERED, WaitState.GONE
#: The reason of the error for a waiter whose put may have been done.
_UNSURE: Final = "there was no reply, so the put may or may not have been done"


class TakeAhead(NamedTuple):
    """A take that was sent before a task is available: its waiter and its port."""

    waiter: Waiter
    port: Any
    call: ScriptCall


class WaitQueue:
    """The waiters of one tube. `now`: the time after which deadlines are over; `url`: the server, for errors."""

    def __init__(self, now: Callable[[], int], url: str) -> None:
        self._now: Final = now
        self._url: Final = url
        self.lock: Final = threading.RLock()
        #: The waiters for a task, and the waiters for room.
        self.take_waiters: Final[Waiters] = OrderedDict()
        self.put_waiters: Final[Waiters] = OrderedDict()
        #: Waiters that do not count yet, before their first look for a task.
        self.arriving: Final[set[Waiter]] = set()
        #: The take that was sent ahead, while its task may go to a waiter.
        self.ahead: TakeAhead | None = None
        #: A take without a waiter, until the server knows that. It may take a task that other callers look for.
        self.stale: TakeAhead | None = None

    def is_empty(self) -> bool:
        """Return True without waiters."""
        return not self.take_waiters and not self.put_waiters

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
        return line.get(waiter) or (_GONE if waiter.result is PENDING else _ANSWERED)

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
            if state is not _ANSWERED and state is not _GONE:
                line[waiter] = state
                return True
            if warns:
                result = ConnectionLost(url=self._url, why=_UNSURE)
            waiter.result = result if state is _ANSWERED else PENDING
            was_woken = not wakes or waiter.wake()
            line.pop(waiter, None)
            if not was_woken:
                self.move(waiter, "unheard")
            return was_woken

    def give(self, waiter: Waiter, answer: object) -> bool:
        """Hand over a task or an error; return False if the waiter has left: then the caller gives the task back."""
        with self.lock:
            if waiter.is_done():
                self.move(waiter, "leave")
                return False
            return self.move(waiter, "give", answer)

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

    def receiver(self, call: ScriptCall) -> Waiter | None:
        """Return the waiter for a task that was taken ahead: the first one, even if its timeout has just passed.

        Only waiters of the same session get the task, and only until the take is stale.
        """
        with self.lock:
            ahead = self.ahead
            first = next(
                (waiter for waiter in self.take_waiters if not waiter.is_done() and not waiter.has_left()), None
            )
            if ahead is None or ahead.call is not call or first is None or first.owner is not ahead.port:
                return None
            return first if ahead.port.session == call.session else None

    def note_stale(self) -> bool:
        """Mark the take that was sent ahead as stale if no waiter is left; return whether it was marked."""
        with self.lock:
            if self.take_waiters or self.ahead is None:
                return False
            self.stale, self.ahead = self.ahead, None
            return True

    def forget_ahead(self, ahead: TakeAhead | None) -> None:
        """Record that the server has no take of this process, or never had it."""
        with self.lock:
            if self.ahead is ahead:
                self.ahead = None
            if self.stale is ahead:
                self.stale = None

    def ask_first_putter(self, full: set[object]) -> Waiter | None:
        """Return the first waiter for room outside the `full` lanes, and record that its put is being sent."""
        with self.lock:
            waiter = self.first(self.put_waiters, full)
            if waiter is not None:
                self.move(waiter, "ask")
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
        """Return True if the server has no take yet for some waiter for a task."""
        if not self.take_waiters:
            return False
        with self.lock:
            return any(state is _QUEUED for state in self.take_waiters.values())
