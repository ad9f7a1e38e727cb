"""One task per lane, in the order in which the lanes have started."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tubes.drivers.entry import Entry

# Numbers that have left are removed when they outnumber the others by more than this.
_STALE: Final = 64


class RoundRobin:
    """The tasks on offer, like `Ready`; the lane whose last start is the oldest comes first.

    A lane without a start counts from the time at which it got a ready task. O(log n); nearly O(1) at the end, where a
    lane goes after its start.
    """

    __slots__ = ("_by_number", "_numbers")

    def __init__(self) -> None:
        self._by_number: dict[float, Entry] = {}
        # A heap of these numbers, and of numbers whose entry has left.
        self._numbers: list[float] = []

    def push(self, entry: Entry) -> None:
        """Offer an entry for its lane, which has no other entry on offer."""
        entry.index = self
        number = entry.lane.place()  # type: ignore[union-attr]
        self._by_number[number] = entry
        heappush(self._numbers, number)

    def pop(self) -> Entry | None:
        """Remove and return the first entry; return None if empty."""
        while self._numbers:
            entry = self._by_number.pop(heappop(self._numbers), None)
            if entry is not None:
                entry.index = None
                return entry
        return None

    def discard(self, entry: Entry) -> None:
        entry.index = None
        del self._by_number[entry.lane.place()]  # type: ignore[union-attr]
        if len(self._numbers) > 2 * len(self._by_number) + _STALE:
            self._numbers = sorted(self._by_number)
