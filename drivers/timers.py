"""Deadlines of tasks, and of lanes that cool down, in the order in which they fall due."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, Protocol, TypeVar

#: Later than every deadline.
NEVER: Final = 1 << 62
# Deadlines that differ only in so many low bits share a slot.
_BITS: Final = 16
_SPAN: Final = 1 << _BITS
#: Of a moment it leaves the beginning of its slot.
SLOT: Final = -_SPAN
# Deadlines that no longer count are removed when they are more than the others, and more than this.
_STALE: Final = 64


class Timed(Protocol):
    """What can fall due."""

    #: Its deadline.
    due: int
    #: The earliest moment at which the timers look at it; they set it.
    queued: int

    @property
    def id(self) -> int:
        """Orders those that fall due at one moment: no two have the same."""
        ...


T = TypeVar("T", bound=Timed)


class Timers(Generic[T]):
    """A deadline per entry, `entry.due`. Setting and removing it is O(1), O(log n) if it is the only one within 65 ms.

    Most deadlines never fall due: the task is acked first. So an entry is just thrown into the slot of its moment, and
    the entries of a slot are put in order only when its time has come: they go to the heap `_next`. An entry stands in
    one slot at most, where `entry.queued` says. When its deadline is put off it stays there, and moves on when the slot
    is opened; what the heap has of it counts if `entry.queued` agrees.
    """

    __slots__ = ("_empty", "_horizon", "_most", "_next", "_slots", "_starts", "soonest")

    def __init__(self) -> None:
        # Deadlines before it are in the heap, the others in the slots.
        self._horizon = 0
        self._next: list[tuple[int, int, T]] = []
        # With more than so many, those that no longer count are removed.
        self._most = _STALE
        self._slots: dict[int, set[T]] = {}
        # The moments at which the slots begin: a heap.
        self._starts: list[int] = []
        # How many slots are empty.
        self._empty = 0
        #: No deadline is before this moment.
        self.soonest = NEVER

    def add(self, entry: T, due: int) -> None:
        """Look at the entry when it is due, sooner than `entry.queued` says."""
        if entry.queued != NEVER:
            self.remove(entry)
        if due < self._horizon:
            self._hurry(entry, due)
            return
        start = entry.queued = due & SLOT
        slot = self._slots.get(start)
        if slot is None:
            slot = self._add_slot(start)
        elif not slot:
            self._empty -= 1
        slot.add(entry)

    def remove(self, entry: T) -> None:
        """Look at the entry no more."""
        if entry.queued >= self._horizon:
            slot = self._slots[entry.queued]
            slot.remove(entry)
            if not slot:
                self._note_empty()
        entry.queued = NEVER

    def watch(self, entry: T) -> None:
        """Look at the entry when it is due; NEVER: no more."""
        if entry.due < entry.queued:
            self.add(entry, entry.due)
        elif entry.due == NEVER and entry.queued != NEVER:
            self.remove(entry)

    def pop(self, now: int) -> T | None:
        """Take out the entry that fell due first, by `now`; ties go by id. None if none is due."""
        while self.soonest <= now:
            if not self._next or (self._starts and self._starts[0] <= self._next[0][0]):
                self._open_slot()
                continue
            due, _, entry = heappop(self._next)
            self._note_soonest()
            if entry.queued == due:
                entry.queued = NEVER
                if entry.due == due:
                    return entry
                if entry.due != NEVER:
                    self.add(entry, entry.due)
        return None

    def after(self, due: int, id: int) -> Iterator[T]:
        """What is due after this moment, or then and has a greater id, in the order in which it falls due.

        O(log n) for each, and O(1) for each that is due before.
        """
        last = due, id
        later: list[tuple[int, int, T]] = []
        found: Iterable[T] = [entry for queued, _, entry in self._next if queued == entry.queued]
        starts = self._starts.copy()
        while True:
            for entry in found:
                if last < (entry.due, entry.id) and entry.due != NEVER:
                    heappush(later, (entry.due, entry.id, entry))
            end = starts[0] if starts else NEVER
            while later and later[0][0] < end:
                *this, entry = heappop(later)
                if tuple(this) != last:  # The heap may have an entry twice.
                    last = entry.due, entry.id
                    yield entry
            if not starts:
                return
            found = self._slots[heappop(starts)]

    def _hurry(self, entry: T, due: int) -> None:
        """Put an entry that is due soon into the order."""
        if len(self._next) > self._most:
            self._next = [item for item in self._next if item[0] == item[2].queued]
            heapify(self._next)
            self._most = 2 * len(self._next) + _STALE
        entry.queued = due
        heappush(self._next, (due, entry.id, entry))
        if due < self.soonest:
            self.soonest = due

    def _add_slot(self, start: int) -> set[T]:
        slot: set[T] = set()
        self._slots[start] = slot
        heappush(self._starts, start)
        self._note_soonest()
        return slot

    def _note_empty(self) -> None:
        # Empty slots are often used again: they are removed only when there are many.
        self._empty += 1
        if self._empty > _STALE and self._empty * 2 > len(self._slots):
            self._slots = {start: slot for start, slot in self._slots.items() if slot}
            self._starts = sorted(self._slots)
            self._empty = 0
            self._note_soonest()

    def _open_slot(self) -> None:
        """The time of the first slot has come."""
        start = heappop(self._starts)
        self._horizon = start + _SPAN
        slot = self._slots.pop(start)
        if not slot:
            self._empty -= 1
        next, horizon = self._next, self._horizon
        for entry in slot:
            due = entry.due
            if due < horizon:
                entry.queued = due
                next.append((due, entry.id, entry))
            else:
                entry.queued = NEVER
                if due != NEVER:
                    self.add(entry, due)
        # In order it is a heap, and one from which the first are taken quickly.
        next.sort()
        self._note_soonest()

    def _note_soonest(self) -> None:
        self.soonest = min(self._next[0][0] if self._next else NEVER, self._starts[0] if self._starts else NEVER)
