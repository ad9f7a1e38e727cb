"""Ready tasks in the order of their rank."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from heapq import heapify, heappop, heappush, merge, nsmallest
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tubes.drivers.entry import Entry

# How many priorities get a line of their own; the others share the heap.
_LINES: Final = 32
# A lane with no more tasks than this needs no lines: most lanes of a crawler are short.
_SHORT: Final = 8
# Tasks that left are removed when they are more than the others, and more than this.
_STALE: Final = 64

_NO_LINES: Final[dict[Any, deque[Entry]]] = {}
_RANK: Final[Any] = attrgetter("rank")


class Ready:
    """Entries by rank. Push and pop are O(1) for tasks that come in order, O(log n) for the ones that come back.

    New tasks of one priority come in order, so each priority has a line that only grows at its end. A task that returns
    to its own place goes to the heap `back`, and the first of both comes first.
    A task that leaves from the middle stays where it is and is passed over later: `entry.index` says where it counts.
    """

    __slots__ = ("_back", "_lines", "_order", "_rising", "_stale")

    def __init__(self, *, newest_first: bool = False, short: bool = False) -> None:
        self._rising = not newest_first
        self._lines: dict[Any, deque[Entry]] = _NO_LINES if short else {}
        # The lines in the order of their keys.
        self._order: list[deque[Entry]] = []
        self._back: list[tuple[Any, Entry]] = []
        self._stale = 0

    def push(self, entry: Entry) -> None:
        """Add an entry."""
        entry.index = self
        line = self._lines.get(entry.line)
        if line is None and (self._lines is not _NO_LINES or len(self._back) >= _SHORT):
            line = self._open(entry.line)
        if line is not None and (not line or (line[-1].rank < entry.rank) is self._rising):
            line.append(entry)
        else:
            heappush(self._back, (entry.rank, entry))

    def push_all(self, entries: list[Entry]) -> None:
        """Add entries, of which each is younger than all before it, and none has a priority."""
        for entry in entries:
            entry.index = self
        line = self._lines.get(0)
        if line is None:
            line = self._open(0)
        if line is not None and self._rising and (not line or line[-1].rank < entries[0].rank):
            line.extend(entries)
        else:
            for entry in entries:
                self.push(entry)

    def pop(self) -> Entry | None:
        """Take out the entry with the smallest rank; None if there is none."""
        back = self._back
        if back:
            if self._order:
                return self._pop_best()
            while back:
                entry = heappop(back)[1]
                if entry.index is self:
                    entry.index = None
                    return entry
                self._stale -= 1
            return None
        for line in self._order:
            while line:
                entry = line.popleft() if self._rising else line.pop()
                if entry.index is self:
                    entry.index = None
                    return entry
                self._stale -= 1
        return None

    def _pop_best(self) -> Entry | None:
        """Take out the first that came back or the first of a line, whichever has the smaller rank."""
        back = self._back
        while back and back[0][1].index is not self:
            heappop(back)
            self._stale -= 1
        for line in self._order:
            while line:
                entry = line[0] if self._rising else line[-1]
                if entry.index is self and back and back[0][0] < entry.rank:
                    return self._pop_back()
                line.popleft() if self._rising else line.pop()
                if entry.index is self:
                    entry.index = None
                    return entry
                self._stale -= 1
        return self._pop_back() if back else None

    def _pop_back(self) -> Entry:
        entry = heappop(self._back)[1]
        entry.index = None
        return entry

    def discard(self, entry: Entry) -> None:
        """Take out an entry, wherever it stands. O(1), amortized."""
        entry.index = None
        self._stale += 1
        line = self._lines.get(entry.line)
        # Tasks that left are removed at the ends, and everywhere if all have left.
        while line and line[0].index is not self:
            line.popleft()
            self._stale -= 1
        while line and line[-1].index is not self:
            line.pop()
            self._stale -= 1
        while self._back and self._back[0][1].index is not self:
            heappop(self._back)
            self._stale -= 1
        if self._stale > _STALE and self._stale * 2 > self.kept():
            self._compact()

    def after(self, rank: Any, limit: int) -> Iterable[Entry]:
        """Entries with greater ranks (None: all), in their order; up to `limit` of those that came back.

        O(1) for each, O(n) of those that came back, and some nanoseconds for each that stands before in its line.
        """
        returned = {key: entry for key, entry in self._back if entry.index is self and (rank is None or key > rank)}
        back = [returned[key] for key in nsmallest(limit, returned)]
        last: Entry | None = None
        for entry in merge(chain.from_iterable(self._rest(line, rank) for line in self._order), back, key=_RANK):
            # One that came back may still stand in its line, too.
            if entry.index is self and entry is not last:
                last = entry
                yield entry

    def _rest(self, line: deque[Entry], rank: Any) -> Iterable[Entry]:
        """The entries of a line after a rank, those that have left included."""
        if self._rising:
            return line if rank is None else islice(line, bisect_right(line, rank, key=_RANK), None)
        passed = 0 if rank is None else len(line) - bisect_left(line, -rank, key=lambda entry: -entry.rank)
        return islice(reversed(line), passed, None)

    def kept(self) -> int:
        """How many entries are kept, those that have left included."""
        return len(self._back) + sum(map(len, self._lines.values()))

    def count(self) -> int:
        """How many entries there are."""
        return self.kept() - self._stale

    def _open(self, key: Any) -> deque[Entry] | None:
        """Open a line for this key, if it is worth its memory. A key of None never has one."""
        if key is None:
            return None
        if len(self._lines) >= _LINES:
            self._arrange({other: line for other, line in self._lines.items() if line})
            if len(self._lines) >= _LINES:
                return None
        line: deque[Entry] = deque()
        self._arrange(self._lines | {key: line})
        return line

    def _arrange(self, lines: dict[Any, deque[Entry]]) -> None:
        """Use these lines from now on."""
        self._lines = lines
        self._order = [lines[key] for key in sorted(lines)]

    def _compact(self) -> None:
        seen: set[int] = set()

        def stays(entry: Entry) -> bool:
            if entry.index is not self or entry.id in seen:
                return False
            seen.add(entry.id)
            return True

        self._arrange({key: deque(filter(stays, line)) for key, line in self._lines.items()})
        self._back = [pair for pair in self._back if stays(pair[1])]
        heapify(self._back)
        self._stale = 0
