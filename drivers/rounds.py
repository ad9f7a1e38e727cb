"""One task per lane, in the order in which the lanes have started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedDict

if TYPE_CHECKING:
    from tubes.drivers.entry import Entry


class Rounds:
    """The tasks on offer, like `Ready`, but the lane whose last start is longest ago comes first.

    A lane that has not started counts from when it got a ready task. O(log n) each; nearly O(1) at the end,
    where a lane that has just started goes, and at the front, from where the next one is taken.
    """

    __slots__ = ("_by_number",)

    def __init__(self) -> None:
        self._by_number: SortedDict[Any, Entry] = SortedDict()

    def push(self, entry: Entry) -> None:
        """Offer an entry for its lane, which has none on offer."""
        entry.index = self
        self._by_number[_number(entry)] = entry

    def pop(self) -> Entry | None:
        """Take out the first; None if there is none."""
        if not self._by_number:
            return None
        entry: Entry = self._by_number.popitem(0)[1]
        entry.index = None
        return entry

    def discard(self, entry: Entry) -> None:
        """Take out an entry."""
        entry.index = None
        del self._by_number[_number(entry)]


def _number(entry: Entry) -> int:
    return entry.lane.place()  # type: ignore[union-attr]
