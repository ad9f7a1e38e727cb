"""Which partitions a process asks for tasks, and when its callers may sleep.

**How it works.** For a process each partition is in one state:

- *hot*: it probably has a task. It has woken this process, its last take said that it has more
  tasks, or a task is due there.
- *cold*: it is unknown whether it has a task.
- *sent*: the take of a caller is on the way. Only one caller at a time asks there.
- *standing*: it had no task, and this process stands in its line: a call that makes a task available there wakes one
  process of the line, and removes it from the line.
- *silent*: it had no task, and it cannot wake this process, which has no subscription to it (yet).

A caller asks the hot partitions, then the cold ones. Every second time it begins with a cold one. It sleeps only if
neither is left: then the process stands in every line that can wake it, or another of its callers asks there. Silent
partitions become cold after `SILENCE`. A wake-up may get lost with a process that was stopped, so a partition becomes
cold when this process has stood there for `LOOK`, and where it is registered as waiting for `HOME`.

Without lines (in memory, in a folder) no partition is standing or silent, and takes use the order of hot and cold ones.

All times are microseconds of one clock, which the caller passes. `order`, `note_take`, `has_hot` and `is_hot` take the
lock; callers of the other methods hold it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from enum import Enum
from itertools import islice
from typing import Any, Final

from tubes.drivers.options import SECOND

#: Microseconds after which a partition is asked again although it woke nobody; `HOME`: where the process is registered
#: as waiting. The server forgets a process later than that (`Call.WATCHED` and `STANDING` in drivers/lua).
LOOK: Final = 20 * SECOND
HOME: Final = 5 * SECOND
#: Microseconds between two takes from a partition to which this process has no subscription.
SILENCE: Final = SECOND
#: Every so many times a caller begins with a partition that is not hot.
_COLD_TURN: Final = 2


class _Sent(Enum):
    """What has happened since a take was sent."""

    SUBSCRIBED = "the process has been subscribed to the partition"
    UNSUBSCRIBED = "the process was not subscribed to it all the time"
    WOKEN = "the partition has woken the process"


class _Hot(Enum):
    """Why a partition is hot. Others in its line have to learn of the last two if this process has no use for them."""

    MORE = "its last take has said so"
    DUE = "a task is due there"
    WOKEN = "it has woken the process, and nobody has asked it since"


class Looks:
    """What one process knows of the partitions of a tube. `home`: the partition where it is registered as waiting."""

    def __init__(self, count: int, home: int = 0) -> None:
        self.home: Final = home
        self.lock: Final = threading.RLock()
        self._turns = 0
        self._subscribed: Final[set[int]] = set()
        # The partitions of each state, in the order in which they are asked. Of standing and silent ones: the time of
        # the last take.
        self._hot: Final[OrderedDict[int, _Hot]] = OrderedDict()
        self._cold: Final[OrderedDict[int, None]] = OrderedDict.fromkeys(range(count))
        self._sent: Final[OrderedDict[int, _Sent]] = OrderedDict()
        self._sent_at: Final[dict[int, int]] = {}
        self._standing: Final[OrderedDict[int, int]] = OrderedDict()
        self._silent: Final[OrderedDict[int, int]] = OrderedDict()
        self._states: Final[tuple[OrderedDict[int, Any], ...]] = (
            self._hot, self._cold, self._sent, self._standing, self._silent
        )  # fmt: skip
        # The next due time of partitions that had one at their last take.
        self._due: Final[dict[int, int]] = {}

    # -- the next partition --------------------------------------------------------------------------------------------

    def next(self, now: int) -> tuple[int, bool] | None:
        """Return the partition that a caller asks now, and whether it has woken the process; None: it may sleep."""
        if self.may_sleep(now):
            return None
        self._turns += 1
        states = (self._hot, self._cold) if self._turns % _COLD_TURN else (self._cold, self._hot)
        number = next(iter(states[0] or states[1]))
        was_woken = self._hot.get(number) is _Hot.WOKEN
        self._sent_at[number] = now
        self._move(number, self._sent, _Sent.SUBSCRIBED if number in self._subscribed else _Sent.UNSUBSCRIBED)
        return number, was_woken

    def may_sleep(self, now: int) -> bool:
        """Return True if no partition has to be asked."""
        self.update(now)
        return not self._hot and not self._cold

    def order(self) -> list[int]:
        """Return the partitions in the order of a take that stands in no line."""
        with self.lock:
            hot, cold = list(self._hot), list(self._cold)
            self._turns += 1
            if cold and self._turns % _COLD_TURN == 0:
                hot.insert(0, cold.pop(0))
            return [*hot, *cold, *self._silent, *self._sent, *self._standing]

    def update(self, now: int) -> None:
        """Move the partitions where a task is due, and those that were asked too long ago."""
        for number in [number for number, due in self._due.items() if due <= now]:
            if number in self._standing or number in self._silent:
                self._move(number, self._hot, _Hot.DUE)
        # A caller that was interrupted may have left its partition behind.
        for state, span in ((self._standing, LOOK), (self._silent, SILENCE), (self._sent_at, LOOK)):
            while state:
                number, asked_at = next(iter(state.items()))
                if now < asked_at + span:
                    break
                self._move(number, self._cold, None)
        if now >= self._standing.get(self.home, now) + HOME:
            self._move(self.home, self._cold, None)

    def wake_time(self) -> int | None:
        """Return when a sleeping caller has to ask again although nothing wakes it; None: never."""
        times = [due for number, due in self._due.items() if number in self._standing or number in self._silent]
        for state, span in ((self._standing, LOOK), (self._silent, SILENCE)):
            times += [asked_at + span for asked_at in islice(state.values(), 1)]
        if self.home in self._standing:
            times.append(self._standing[self.home] + HOME)
        return min(times, default=None)

    def has_hot(self) -> bool:
        """Return True if a partition probably has a task."""
        with self.lock:
            return bool(self._hot)

    def is_hot(self, number: int) -> bool:
        """Return True if this partition probably has a task."""
        with self.lock:
            return number in self._hot

    # -- what is learned -----------------------------------------------------------------------------------------------

    def note(self, number: int, due: int | None, now: int) -> None:
        """Record the reply to the take of a caller that got the partition by `next`.

        `due`: None: more tasks can be taken now; otherwise none can be taken before then (0: no task is due), and the
        process stands in line.
        """
        before = self._sent.get(number, _Sent.UNSUBSCRIBED)  # Absent: the take lasted longer than `LOOK`.
        self._due.pop(number, None)
        if due:
            self._due[number] = due
        if due is None or before is _Sent.WOKEN:  # That may have been for a later task.
            self._move(number, self._hot, _Hot.WOKEN if before is _Sent.WOKEN else _Hot.MORE)
        elif before is _Sent.SUBSCRIBED:
            self._move(number, self._standing, now)
        elif number in self._subscribed:
            self._move(number, self._cold, None)
        else:
            self._move(number, self._silent, now)

    def note_failure(self, number: int, now: int) -> None:
        """Record that this take has failed."""
        if number in self._sent:
            self._move(number, self._silent, now)

    def give_up(self, number: int) -> None:
        """Record that the caller has left before the reply."""
        if number in self._sent:
            self._move(number, self._cold, None)

    def note_take(self, number: int, *, found: bool) -> None:
        """Record a take that stands in no line."""
        with self.lock:
            if number in self._sent:
                return
            if found:
                self._move(number, self._hot, self._hot.get(number, _Hot.MORE))
            elif number in self._hot or number in self._cold:
                self._move(number, self._cold, None)

    def note_wakeup(self, number: int) -> None:
        """Record that a partition has woken the process, which does not stand there any more."""
        if number in self._sent:
            self._sent[number] = _Sent.WOKEN
        else:
            self._move(number, self._hot, _Hot.WOKEN)

    def note_subscribed(self, number: int) -> None:
        """Record that a partition can wake the process from now on."""
        self._subscribed.add(number)
        self.leave(number)

    def note_unsubscribed(self, number: int) -> None:
        """Record that a partition cannot wake the process any more."""
        self._subscribed.discard(number)
        if number in self._sent and self._sent[number] is _Sent.SUBSCRIBED:
            self._sent[number] = _Sent.UNSUBSCRIBED
        self.leave(number)

    def pass_on(self) -> list[tuple[int, bool]]:
        """Return the partitions whose tasks are left to the other processes in their lines, and whether each has
        woken this process."""
        found = [(number, why is _Hot.WOKEN) for number, why in self._hot.items() if why is not _Hot.MORE]
        for number, _ in found:
            self._move(number, self._cold, None)
        return found

    def postpone(self, number: int, due: int, now: int) -> None:
        """Record that a task that seemed to be due is due later: the clocks differ."""
        if number in self._cold:
            self._due[number] = due
            self._move(number, self._standing, now)

    def leave(self, number: int) -> None:
        """Record that the process may not stand there any more."""
        if number in self._standing or number in self._silent:
            self._move(number, self._cold, None)

    def _move(self, number: int, state: OrderedDict[int, Any], value: object) -> None:
        """Move a partition to the end of a state. After an interrupt it may be in two states, but never in none."""
        state[number] = value
        state.move_to_end(number)
        for one in self._states:
            if one is not state:
                one.pop(number, None)
        if state is not self._sent:
            self._sent_at.pop(number, None)
