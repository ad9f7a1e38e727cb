"""Takes that wait on several tubes at once.

The caller has one waiter, and a `SubWaiter` in the line of each tube. The first sub-waiter that gets a task wins. A
task that another sub-waiter gets is given back.
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
# Numbers the fair calls.
_calls: Final = count(1)


class AnyTube(Protocol):
    """A tube of either API."""

    @property
    def _port(self) -> AnyPort: ...


def check_tube_list(
    tubes: object, fair: bool, kind: type[T], connection: AnyConnection, order: object = "tubes"
) -> list[T | str]:
    """Check the tubes of a `take_any` and return them as a list of tubes of this queue, or names."""
    connection.check()
    flag("fair", fair)
    if _order("order", order) == "pri" and fair:
        raise InvalidOption(option="order", value=order, rule="cannot be combined with fair=True")
    if isinstance(tubes, (str, kind)) or not isinstance(tubes, Iterable):
        raise InvalidOption(option="tubes", value=tubes, rule="must be a list of tubes or tube names")
    items: list[object] = [*tubes]
    chosen: list[T | str] = []
    if not items:
        raise InvalidOption(option="tubes", value=items, rule="must name at least one tube")
    for tube in items:
        if not isinstance(tube, (str, kind)):
            raise InvalidOption(option="tubes", value=tube, rule="must be a tube of this queue, or a name")
        if not isinstance(tube, str) and tube._port.connection is not connection:
            raise InvalidOption(option="tubes", value=tube, rule="belongs to another queue")
        chosen.append(tube)
    return chosen


def order_ports(ports: Iterable[P], fair: bool) -> list[P]:
    """Return the distinct ports in the order in which `take_any` tries them.

    `fair`: start with the tube that was first the longest ago. So repeated calls with one list start with each of its
    tubes in turn, independently of calls with other lists.
    """
    order = list(dict.fromkeys(ports))
    if fair:
        first = min(order, key=lambda port: int(port.tube._last_fair_call))
        first.tube._last_fair_call = next(_calls)
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
        # The number of sub-waiters that have not timed out.
        self._pending = len(ports)
        self._is_woken = False

    def enlist(self, waiter: Waiter) -> None:
        """Put a sub-waiter in the line of each tube; stop once one of them has a result."""
        clock = self._ports[0].clock
        if waiter.timeout is not None and waiter.deadline is None:
            waiter.deadline = clock.micros() + waiter.timeout
        # A caller comes again after its `Look` found no task.
        self._sub_waiters.clear()
        self._winner, self._pending, self._is_woken = None, len(self._ports), False
        for port in self._ports:
            if self.is_done(waiter):
                return
            sub_waiter = SubWaiter(self, waiter, port)
            self._sub_waiters.append(sub_waiter)
            port.enlist(sub_waiter)
        # A test may just have advanced its clock past the deadline: then no alarm fires for it. Let each
        # tube serve its waiters once more, to find tasks that became ready in time.
        if (
            waiter.deadline is not None
            and clock.patience(waiter.deadline) is None
            and waiter.deadline <= clock.micros()
        ):
            for port in self._ports:
                port.shared.fire(clock.micros())

    def withdraw(self, waiter: Waiter, *, undo: bool) -> object:
        """Remove the sub-waiters from their lines; return the result of the winner, if there is one."""
        for sub_waiter in self._sub_waiters:
            sub_waiter.owner.withdraw(sub_waiter, undo=undo)
        return None if self._winner is None else self._winner.result

    def must_keep_waiting(self, waiter: Waiter) -> bool:
        """Return False: a take that comes after the timeout is undone."""
        return False

    def abandon(self, waiter: Waiter) -> None:
        """Withdraw and undo in another thread, for finalizers."""
        for sub_waiter in self._sub_waiters:
            sub_waiter.owner.abandon(sub_waiter)

    def is_done(self, waiter: Waiter) -> bool:
        """True if the caller needs no result any more."""
        return self._winner is not None or waiter.is_done()

    def is_served(self, waiter: Waiter, sub_waiter: SubWaiter) -> bool:
        """Handle the result or the timeout of a sub-waiter; return False if its result comes too late."""
        with self._lock:
            if sub_waiter.result is PENDING:
                # Only the last timeout ends the wait: another tube may have a task that becomes ready now.
                self._pending -= 1
                return self._pending > 0 or self._wake(waiter)
            if self._winner is None:
                self._winner = sub_waiter
                if isinstance(waiter, SubWaiter):  # The caller waits on several tubes, and one of them has partitions.
                    waiter.result = sub_waiter.result
            return self._winner is sub_waiter and self._wake(waiter)

    def _wake(self, waiter: Waiter) -> bool:
        if self._is_woken:  # A waiter must not be woken twice.
            return True
        self._is_woken = waiter.wake()
        return self._is_woken


class SubWaiter:
    """The waiter in the line of one tube for a caller that waits on several."""

    __slots__ = ("_any_of", "_parent", "deadline", "owner", "request", "result", "span", "timeout")

    def __init__(self, any_of: AnyOf, parent: Waiter, port: AnyPort) -> None:
        self._any_of: Final = any_of
        self._parent: Final = parent
        self.result: object = PENDING
        # All sub-waiters share the deadline, which is already set.
        self.timeout: Final = None
        self.deadline: int | None = parent.deadline
        self.owner: AnyPort = port
        self.request: Final = None
        self.span: Final = parent.span

    def is_done(self) -> bool:
        """True if another sub-waiter has won, or the caller has timed out or was cancelled."""
        return self._any_of.is_done(self._parent)

    def has_left(self) -> bool:
        """True if the caller has left, although this sub-waiter is still in a line."""
        return self._any_of.is_done(self._parent) or self._parent.has_left()

    def wake(self) -> bool:
        """End the wait of the caller; return False if another sub-waiter has won, or the caller has left."""
        return self._any_of.is_served(self._parent, self)
