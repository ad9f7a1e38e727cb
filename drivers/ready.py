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

# The maximum number of priorities with a line; tasks with other priorities go to the heap.
_LINES: Final = 32
# A lane with up to this many tasks has no lines: most lanes of a crawler are short.
_SHORT: Final = 8
# Entries that have left are removed when they outnumber the others by more than this.
_STALE: Final = 64

_NO_LINES: Final[dict[Any, deque[Entry]]] = {}
_RANK: Final[Any] = attrgetter("rank")


class Ready:
    """Entries by rank. Push and pop are O(1) for tasks in order, O(log n) for tasks that return.

    New tasks of one priority arrive in the order of their rank, so each priority has a line that grows at its end. A
    task that returns to its place goes to the heap `_back`. `pop` compares the heap with the first line. A task that
    leaves from the middle of a line stays there, and is skipped later: it counts only if `entry.index` is this object.
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
        entry.index = self
        line = self._lines.get(entry.line)
        if line is None and (self._lines is not _NO_LINES or len(self._back) >= _SHORT):
            line = self._open(entry.line)
        if line is not None and (not line or (line[-1].rank < entry.rank) is self._rising):
            line.append(entry)
        else:
            heappush(self._back, (entry.rank, entry))

    def push_all(self, entries: list[Entry]) -> None:
        """Add entries in the order of their rank, without priorities."""
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
        """Remove and return the entry with the smallest rank; return None if empty."""
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
        """Remove and return the first entry of the heap or of the lines, the one with the smaller rank."""
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

    def first(self) -> Entry | None:
        """Return the entry that `pop` would return, and remove those before it that have left. O(1), amortized."""
        back, first = self._back, None
        while back and back[0][1].index is not self:
            heappop(back)
            self._stale -= 1
        if back:
            first = back[0][1]
        end = 0 if self._rising else -1
        for line in self._order:
            while line and line[end].index is not self:
                line.popleft() if self._rising else line.pop()
                self._stale -= 1
            if line:
                return line[end] if first is None or line[end].rank < first.rank else first
        return first

    def discard(self, entry: Entry) -> None:
        """Remove an entry. O(1), amortized."""
        entry.index = None
        self._stale += 1
        line = self._lines.get(entry.line)
        # Remove the entries that have left at both ends of the line.
        while line and line[0].index is not self:
            line.popleft()
            self._stale -= 1
        while line and line[-1].index is not self:
            line.pop()
            self._stale -= 1
        while self._back and self._back[0][1].index is not self:
            heappop(self._back)
            self._stale -= 1
        if self._stale > _STALE and self._stale * 2 > self.count_stored():
            self._compact()

    def iterate_after(self, rank: Any, limit: int) -> Iterable[Entry]:
        """Yield the entries with greater ranks (None: all) in order, up to `limit` of the heap.

        O(1) for each, O(n) of the heap, and some nanoseconds for each earlier entry of a line.
        """
        returned = {key: entry for key, entry in self._back if entry.index is self and (rank is None or key > rank)}
        back = [returned[key] for key in nsmallest(limit, returned)]
        last: Entry | None = None
        for entry in merge(
            chain.from_iterable(self._iterate_line(line, rank) for line in self._order), back, key=_RANK
        ):
            # An entry of the heap may also still be in its line.
            if entry.index is self and entry is not last:
                last = entry
                yield entry

    def _iterate_line(self, line: deque[Entry], rank: Any) -> Iterable[Entry]:
        """Return the entries of a line after a rank, including entries that have left."""
        if self._rising:
            return line if rank is None else islice(line, bisect_right(line, rank, key=_RANK), None)
        passed = 0 if rank is None else len(line) - bisect_left(line, -rank, key=lambda entry: -entry.rank)
        return islice(reversed(line), passed, None)

    def count_stored(self) -> int:
        """Count the stored entries, including entries that have left."""
        return len(self._back) + sum(map(len, self._lines.values()))

    def count(self) -> int:
        return self.count_stored() - self._stale

    def _open(self, key: Any) -> deque[Entry] | None:
        """Open a line for this key, unless there are too many lines. There is no line for None."""
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
        """Set the lines and their order."""
        self._lines = lines
        self._order = [lines[key] for key in sorted(lines)]

    def _compact(self) -> None:
        seen: set[int] = set()

        def is_current(entry: Entry) -> bool:
            if entry.index is not self or entry.id in seen:
                return False
            seen.add(entry.id)
            return True

        self._arrange({key: deque(filter(is_current, line)) for key, line in self._lines.items()})
        self._back = [pair for pair in self._back if is_current(pair[1])]
        heapify(self._back)
        self._stale = 0
