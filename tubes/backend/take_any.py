"""Callers that wait on several tubes at once.

The caller has one waiter, with a `SubWaiter` in the line of each tube. The first one that gets a task wins. The others
count as gone: a task for one of them is given back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from tubes.backend.waiters import PENDING
from tubes.drivers.options import flag, one_of
from tubes.errors import InvalidOption

if TYPE_CHECKING:
    from tubes.backend.interface import AnyConnection, AnyPort
    from tubes.backend.waiters import Waiter

P = TypeVar("P", bound="AnyPort")
T = TypeVar("T", bound="AnyTube")

_order: Final = one_of("tubes", "pri")
# Numbers of fair calls.
_calls: Final = count(1)


class AnyTube(Protocol):
    """A tube of either API."""

    @property
    def _port(self) -> AnyPort: ...


def listed(
    tubes: object, fair: bool, kind: type[T], connection: AnyConnection, order: object = "tubes"
) -> list[T | str]:
    """Check the tubes of a `take_any`, and list them: each is a tube of the caller's queue, or a name."""
    connection.check()
    flag("fair", fair)
    if _order("order", order) == "pri" and fair:
        raise InvalidOption(option="order", value=order, rule="is not for a call with fair=True")
    if isinstance(tubes, (str, kind)) or not isinstance(tubes, Iterable):
        raise InvalidOption(option="tubes", value=tubes, rule="must be a list of tubes or tube names")
    named: list[object] = [*tubes]
    chosen: list[T | str] = []
    if not named:
        raise InvalidOption(option="tubes", value=named, rule="must name at least one tube")
    for tube in named:
        if not isinstance(tube, (str, kind)):
            raise InvalidOption(option="tubes", value=tube, rule="must be a tube of this queue, or a name")
        if not isinstance(tube, str) and tube._port.connection is not connection:
            raise InvalidOption(option="tubes", value=tube, rule="belongs to another queue")
        chosen.append(tube)
    return chosen


def in_turn(ports: Iterable[P], fair: bool) -> list[P]:
    """The ports in the order in which they are asked, each once.

    `fair`: the first is the one that was first longest ago. So calls with one list begin with each of its tubes in
    turn, whatever other calls do.
    """
    order = list(dict.fromkeys(ports))
    if fair:
        first = min(order, key=lambda port: int(port.tube._first_in))
        first.tube._first_in = next(_calls)
        place = order.index(first)
        order = order[place:] + order[:place]
    return order


class AnyOf:
    """Lets one caller wait on several tubes."""

    def __init__(self, ports: Sequence[AnyPort]) -> None:
        self._ports: Final = ports
        self._sub_waiters: list[SubWaiter] = []
        self._lock: Final = threading.Lock()
        self._winner: SubWaiter | None = None
        # How many sub-waiters still have time.
        self._left = len(ports)
        self._woken = False

    def enlist(self, waiter: Waiter) -> None:
        """Put a sub-waiter in the line of each tube, until one is answered."""
        clock = self._ports[0].clock
        if waiter.timeout is not None:
            waiter.deadline = clock.micros() + waiter.timeout
        for port in self._ports:
            if self.lost(waiter):
                return
            sub_waiter = SubWaiter(self, waiter, port)
            self._sub_waiters.append(sub_waiter)
            port.enlist(sub_waiter)
        # A test may have advanced its clock meanwhile, which does not ring for the past. Each tube
        # looks once more: what became ready at that moment still counts.
        if (
            waiter.deadline is not None
            and clock.patience(waiter.deadline) is None
            and waiter.deadline <= clock.micros()
        ):
            for port in self._ports:
                port.shared.ring(clock.micros())

    def withdraw(self, waiter: Waiter, *, undo: bool) -> object:
        """Take the sub-waiters out of their lines; returns what the winner was given, if there is one."""
        for sub_waiter in self._sub_waiters:
            sub_waiter.owner.withdraw(sub_waiter, undo=undo)
        return None if self._winner is None else self._winner.answer

    def keeps(self, waiter: Waiter) -> bool:
        """Takes that come too late are undone."""
        return False

    def abandon(self, waiter: Waiter) -> None:
        """Withdraw and undo, a moment later."""
        for sub_waiter in self._sub_waiters:
            sub_waiter.owner.abandon(sub_waiter)

    def lost(self, waiter: Waiter) -> bool:
        """Whether the caller needs no more results."""
        return self._winner is not None or waiter.lost()

    def answered(self, waiter: Waiter, sub_waiter: SubWaiter) -> bool:
        """A sub-waiter has a result, or no more time; False if its result comes too late."""
        with self._lock:
            if sub_waiter.answer is PENDING:
                # A task that becomes ready at the same moment in another tube still counts: the last one ends the wait.
                self._left -= 1
                return self._left > 0 or self._wake(waiter)
            if self._winner is None:
                self._winner = sub_waiter
            return self._winner is sub_waiter and self._wake(waiter)

    def _wake(self, waiter: Waiter) -> bool:
        if self._woken:  # Twice would be an error.
            return True
        self._woken = waiter.wake()
        return self._woken


class SubWaiter:
    """Stands in the line of one tube for a caller that waits on several."""

    __slots__ = ("_any_of", "_parent", "answer", "deadline", "owner", "request", "timeout")

    def __init__(self, any_of: AnyOf, parent: Waiter, port: AnyPort) -> None:
        self._any_of: Final = any_of
        self._parent: Final = parent
        self.answer: object = PENDING
        # All have the same one, which is set already.
        self.timeout: Final = None
        self.deadline: int | None = parent.deadline
        self.owner: AnyPort = port
        self.request: Final = None

    def lost(self) -> bool:
        """Whether another sub-waiter was answered, or the caller's time is over, or it was cancelled."""
        return self._any_of.lost(self._parent)

    def is_gone(self) -> bool:
        """Whether nobody waits here any more, although the sub-waiter stands in a line."""
        return self._any_of.lost(self._parent) or self._parent.is_gone()

    def wake(self) -> bool:
        """End the wait of all; False if another sub-waiter was answered first, or the caller is gone for good."""
        return self._any_of.answered(self._parent, self)
