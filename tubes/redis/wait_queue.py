"""The waiters of one tube of a server in this process: two lines, and the state of each waiter."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from tubes.backend.waiters import PENDING
from tubes.errors import ConnectionLost
from tubes.redis.wait_states import WAIT_MOVES, WaitState
from tubes.values.batch import lanes_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.backend.waiters import Waiter
    from tubes.redis.transport.script_call import ScriptCall

#: Waiters in the order of arrival. A waiter in no line is answered or gone.
Waiters: TypeAlias = "OrderedDict[Waiter, WaitState]"

_QUEUED, _ARMED, _ANSWERED, _GONE = WaitState.QUEUED, WaitState.ARMED, WaitState.ANSWERED, WaitState.GONE
#: The reason of the error for a waiter whose put may have been done.
_UNSURE: Final = "there was no reply, so the put may or may not have been done"


class TakeAhead(NamedTuple):
    """A take that was sent before there is a task: its waiter, and its port."""

    waiter: Waiter
    port: Any
    call: ScriptCall


class WaitQueue:
    """The waiters of one tube. `now`: the time after which a deadline is over; `url`: of the server, for errors."""

    def __init__(self, now: Callable[[], int], url: str) -> None:
        self._now: Final = now
        self._url: Final = url
        self.lock: Final = threading.RLock()
        #: The waiters for a task, and those for room.
        self.take_waiters: Final[Waiters] = OrderedDict()
        self.put_waiters: Final[Waiters] = OrderedDict()
        #: Waiters that are not counted yet: nobody has looked for their tasks.
        self.arriving: Final[set[Waiter]] = set()
        #: The take that was sent ahead, as long as its task may go to a waiter.
        self.ahead: TakeAhead | None = None
        #: One for which nobody waits any more, until the server knows that. It may take a task that others look for.
        self.stale: TakeAhead | None = None

    def is_empty(self) -> bool:
        """Whether nobody waits."""
        return not self.take_waiters and not self.put_waiters

    def waiters(self, owner: object = None) -> list[Waiter]:
        """All waiters; `owner`: through this port."""
        with self.lock:
            found = [*self.take_waiters, *self.put_waiters]
        return found if owner is None else [waiter for waiter in found if waiter.owner is owner]

    def enlist(self, waiter: Waiter) -> bool:
        """Put a waiter at the end of its line; returns whether it is the first there."""
        with self.lock:
            line = self.take_waiters if waiter.request is None else self.put_waiters
            line[waiter] = WAIT_MOVES["enlist"][None].to
            return len(line) == 1

    def state(self, waiter: Waiter) -> WaitState:
        """The state of a waiter that has been put into its line."""
        line = self.take_waiters if waiter.request is None else self.put_waiters
        return line.get(waiter) or (_GONE if waiter.result is PENDING else _ANSWERED)

    def move(self, waiter: Waiter, why: str, answer: object = PENDING) -> bool:
        """Move a waiter by the table; `answer`: its result, if the move has one.

        Returns False if the table has no row for its state, and nothing was done, or if there was nobody to wake.
        """
        with self.lock:
            line = self.take_waiters if waiter.request is None else self.put_waiters
            if waiter.result is not PENDING and waiter in line:  # The thread that answered it was interrupted.
                waiter.wake()
                line.pop(waiter)
            move = WAIT_MOVES[why].get(line.get(waiter) or self.state(waiter))
            if move is None:
                return False
            to, wakes, warns = move
            if to is not _ANSWERED and to is not _GONE:
                line[waiter] = to
                return True
            if warns:
                answer = ConnectionLost(url=self._url, why=_UNSURE)
            waiter.result = answer if to is _ANSWERED else PENDING
            is_heard = not wakes or waiter.wake()
            line.pop(waiter, None)
            if not is_heard:
                self.move(waiter, "unheard")
            return is_heard

    def give(self, waiter: Waiter, answer: object) -> bool:
        """Hand over a task or an error; False if the waiter has gone: then the caller gives the task back."""
        with self.lock:
            if waiter.lost():
                self.move(waiter, "leave")
                return False
            return self.move(waiter, "give", answer)

    def first(self, line: Waiters, full: set[object] | None = None) -> Waiter | None:
        """The first waiter in a line for which no take was sent ahead. Removes waiters that have gone.

        `full`: lanes whose waiters are left out.
        """
        now = self._now()
        with self.lock:
            for waiter in list(line):
                late = waiter.deadline is not None and waiter.deadline < now
                if waiter.result is not PENDING or waiter.lost() or waiter.is_gone() or late:
                    self.move(waiter, "leave")
                elif line[waiter] is not _ARMED and not (
                    full and full & lanes_of(waiter.owner.shared.driver, waiter.request)
                ):
                    return waiter
            return None

    def receiver(self, call: ScriptCall) -> Waiter | None:
        """The waiter for a task that was taken ahead: the first one, even if its time has just ended.

        Only waiters of that session get it, and only until the take counts as stale.
        """
        with self.lock:
            ahead = self.ahead
            first = next((waiter for waiter in self.take_waiters if not waiter.lost() and not waiter.is_gone()), None)
            if ahead is None or ahead.call is not call or first is None or first.owner is not ahead.port:
                return None
            return first if ahead.port.session == call.session else None

    def note_stale(self) -> bool:
        """Note that nobody waits for the take that was sent ahead, if that is so; returns whether there is one."""
        with self.lock:
            if self.take_waiters or self.ahead is None:
                return False
            self.stale, self.ahead = self.ahead, None
            return True

    def forget_ahead(self, ahead: TakeAhead | None) -> None:
        """The server has no take of this process any more, or never had it."""
        with self.lock:
            if self.ahead is ahead:
                self.ahead = None
            if self.stale is ahead:
                self.stale = None

    def ask_first_putter(self, full: set[object]) -> Waiter | None:
        """The first of the waiters for room, except those of `full` lanes. Its put is under way from now on."""
        with self.lock:
            waiter = self.first(self.put_waiters, full)
            if waiter is not None:
                self.move(waiter, "ask")
            return waiter

    def count(self) -> int:
        """How many wait in this process."""
        with self.lock:
            number = 0
            for waiter in (*self.take_waiters, *self.put_waiters):
                number += not waiter.is_gone() and waiter not in self.arriving
            return number

    def has_taker(self) -> bool:
        """Whether a caller waits for a task. A waiter that has its task may still be in the line for a moment."""
        if not self.take_waiters:
            return False
        with self.lock:
            return any(waiter.result is PENDING for waiter in self.take_waiters)

    def has_unserved(self) -> bool:
        """Whether the server has no take yet for some waiter for a task."""
        if not self.take_waiters:
            return False
        with self.lock:
            return any(state is _QUEUED for state in self.take_waiters.values())
