"""Deadlines of tasks, lanes and pauses, in chronological order.

Most deadlines never come: the task is acked first. So setting a deadline only adds the item to the slot of that time, a
slot for each 65 ms. When its time comes, a slot is opened: its items go to a heap, some at a time. An item is in one
slot, the one that `item.queued` names. If its deadline is postponed, it stays there, and moves on when the slot is
opened. An item in the heap or the opened slot counts only if `item.queued` still equals its key there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, Protocol, TypeVar

#: Later than every deadline.
NEVER: Final = 1 << 62
# Deadlines that differ only in this many low bits share a slot.
_BITS: Final = 16
_SPAN: Final = 1 << _BITS
#: A mask: `moment & SLOT` is the start of the slot of a moment.
SLOT: Final = -_SPAN
# The maximum number of items of a slot that go to the heap at a time.
_STEP: Final = 10
# Stale items and empty slots are removed when they outnumber the others by more than this.
_STALE: Final = 64


class Timed(Protocol):
    """An item with a deadline."""

    #: The deadline.
    due: int
    #: The time at which the timers check the item next; they set it.
    queued: int

    @property
    def id(self) -> int:
        """A unique number that orders items with the same deadline."""
        ...


T = TypeVar("T", bound=Timed)


class Timers(Generic[T]):
    """Items by their deadline `due`. Setting or removing one is O(1); O(log n) if it is the only one within 65 ms."""

    __slots__ = ("_empty", "_horizon", "_max_heap_size", "_next", "_slots", "_starts", "soonest")

    def __init__(self) -> None:
        # Earlier deadlines are in the heap, later ones in slots.
        self._horizon = 0
        self._next: list[tuple[int, int, T]] = []
        # Stale items are removed from a larger heap.
        self._max_heap_size = _STALE
        self._slots: dict[int, set[T]] = {}
        # The start times of the slots, a heap.
        self._starts: list[int] = []
        # The number of empty slots.
        self._empty = 0
        #: A lower bound of all deadlines.
        self.soonest = NEVER

    def add(self, entry: T, due: int) -> None:
        """Queue the entry for the time `due`, which is before `entry.queued`."""
        if entry.queued != NEVER:
            self.remove(entry)
        if due < self._horizon:
            self._push(entry, due)
            return
        start = entry.queued = due & SLOT
        slot = self._slots.get(start)
        if slot is None:
            slot = self._add_slot(start)
        elif not slot:
            self._empty -= 1
        slot.add(entry)

    def remove(self, entry: T) -> None:
        if entry.queued >= self._horizon:
            slot = self._slots[entry.queued]
            slot.remove(entry)
            if not slot:
                self._note_empty()
        entry.queued = NEVER

    def watch(self, entry: T) -> None:
        """Follow a change of `entry.due`; NEVER removes the entry."""
        if entry.due < entry.queued:
            self.add(entry, entry.due)
        elif entry.due == NEVER and entry.queued != NEVER:
            self.remove(entry)

    def pop(self, now: int) -> T | None:
        """Remove and return the first due entry, ties by id; None: repeat the call while `soonest` is due. O(log n)."""
        if self.soonest > now:
            return None
        if not self._next or (self._starts and self._starts[0] <= self._next[0][0]):
            self._open_slot()
        else:
            due, _, entry = heappop(self._next)
            self._note_soonest()
            if entry.queued == due:
                entry.queued = NEVER
                if entry.due == due:
                    return entry
                if entry.due != NEVER:
                    self.add(entry, entry.due)
        return None

    def iterate_after(self, due: int, id: int) -> Iterator[T]:
        """Yield the entries after this deadline and id, in order. O(log n) for each, and O(1) for each earlier one."""
        last = due, id
        later: list[tuple[int, int, T]] = []
        found: Iterable[T] = [entry for queued, _, entry in self._next if queued == entry.queued]
        starts = self._starts.copy()
        while True:
            for entry in found:
                if due <= entry.due < NEVER and last < (entry.due, entry.id):
                    heappush(later, (entry.due, entry.id, entry))
            end = starts[0] if starts else NEVER
            while later and later[0][0] < end:
                *key, entry = heappop(later)
                if tuple(key) != last:  # The heap may contain an entry twice.
                    last = entry.due, entry.id
                    yield entry
            if not starts:
                return
            start = heappop(starts)
            found = (entry for entry in self._slots[start] if entry.due >= due and entry.queued == start)

    def _push(self, entry: T, due: int) -> None:
        """Push an entry that is due before the horizon onto the heap."""
        if len(self._next) > self._max_heap_size:
            self._next = [item for item in self._next if item[0] == item[2].queued]
            heapify(self._next)
            self._max_heap_size = 2 * len(self._next) + _STALE
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
        # Empty slots are often used again, so they are removed only when there are many.
        self._empty += 1
        if self._empty > _STALE and self._empty * 2 > len(self._slots):
            self._slots = {start: slot for start, slot in self._slots.items() if slot}
            self._starts = sorted(self._slots)
            self._empty = 0
            self._note_soonest()

    def _open_slot(self) -> None:
        """Move some entries of the first slot to the heap."""
        start = self._starts[0]
        self._horizon = start + _SPAN
        slot = self._slots[start]
        if not slot:
            self._empty -= 1
        for _ in range(min(_STEP, len(slot))):
            entry = slot.pop()
            if entry.queued == start:
                entry.queued = NEVER
                if entry.due != NEVER:
                    self.add(entry, entry.due)
        if not slot:
            del self._slots[heappop(self._starts)]
        self._note_soonest()

    def _note_soonest(self) -> None:
        soonest = self._next[0][0] if self._next else NEVER
        self.soonest = self._starts[0] if self._starts and self._starts[0] < soonest else soonest
