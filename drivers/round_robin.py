"""One task per lane, in the order in which the lanes have started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedDict

if TYPE_CHECKING:
    from tubes.drivers.entry import Entry


class RoundRobin:
    """The tasks on offer, like `Ready`; the lane whose last start is the oldest comes first.

    A lane without a start counts from the time at which it got a ready task. O(log n); nearly O(1) at the end, where a
    lane goes after its start, and at the front, from which tasks are taken.
    """

    __slots__ = ("_by_number",)

    def __init__(self) -> None:
        self._by_number: SortedDict[Any, Entry] = SortedDict()

    def push(self, entry: Entry) -> None:
        """Offer an entry for its lane, which has no other entry on offer."""
        entry.index = self
        self._by_number[_number(entry)] = entry

    def pop(self) -> Entry | None:
        """Remove and return the first entry; return None if empty."""
        if not self._by_number:
            return None
        entry: Entry = self._by_number.popitem(0)[1]
        entry.index = None
        return entry

    def discard(self, entry: Entry) -> None:
        entry.index = None
        del self._by_number[_number(entry)]


def _number(entry: Entry) -> int:
    return entry.lane.place()  # type: ignore[union-attr]
