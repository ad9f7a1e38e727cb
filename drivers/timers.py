"""Deadlines of tasks, in the order in which they fall due."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tubes.drivers.entry import Entry

#: Later than every deadline.
NEVER: Final = 1 << 62
# So many durations get a line of their own; the others share the heap.
_LINES: Final = 8
# A duration is in common use when it comes again while so many others were seen at most.
_SEEN: Final = 64
# Deadlines that no longer hold are forgotten when there are more than these per task.
_STALE: Final = 64


class Timers:
    """A deadline per entry, `entry.due`. Setting it is O(1) for durations in common use, O(log n) for others.

    Deadlines of one duration fall due in the order in which they were set, so each duration has a line; the others
    go to a heap. Most deadlines never fall due (the task is acked first), so they are not looked for when they
    change: an entry whose deadline moved back is set anew when the old moment comes, and the rest is passed over.
    """

    __slots__ = ("_heap", "_kept", "_lines", "_seen", "soonest")

    def __init__(self) -> None:
        self._lines: dict[int, deque[tuple[int, int, Entry]]] = {}
        self._heap: list[tuple[int, int, Entry]] = []
        self._seen: set[int] = set()
        self._kept = 0
        #: No deadline is before this moment.
        self.soonest = NEVER

    def set(self, entry: Entry, due: int, now: int, living: int) -> None:
        """Look at the entry when it is due, sooner than `entry.queued` says; `living`: how many tasks there are."""
        entry.queued = due
        span = due - now
        item = (due, entry.id, entry)
        line = self._lines.get(span)
        if line is None:
            line = self._open(span)
        if line is not None and (not line or line[-1] < item):
            line.append(item)
        else:
            heappush(self._heap, item)
        if due < self.soonest:
            self.soonest = due
        self._kept += 1
        if self._kept > 2 * living + _STALE:
            self._compact()

    def pop(self, now: int) -> Entry | None:
        """Take out the entry that fell due first, by `now`; ties go by id. None if none is due."""
        while self.soonest <= now:
            item = self._pop_item()
            if item is None:
                break
            due, _, entry = item
            if entry.queued != due:
                continue
            entry.queued = None
            if entry.due == due:
                return entry
            if entry.due is not None:
                self.set(entry, entry.due, now, self._kept)
        return None

    def _pop_item(self) -> tuple[int, int, Entry] | None:
        """Take out what is first of all, and note what is first then."""
        heads = [line for line in self._lines.values() if line]
        best = min(heads, key=lambda line: line[0][:2], default=None)
        heap = self._heap
        if best is None and not heap:
            self.soonest = NEVER
            return None
        if heap and (best is None or heap[0][:2] < best[0][:2]):
            item = heappop(heap)
        else:
            assert best is not None
            item = best.popleft()
        self._kept -= 1
        self._note_soonest()
        return item

    def _note_soonest(self) -> None:
        first = [line[0][0] for line in self._lines.values() if line]
        if self._heap:
            first.append(self._heap[0][0])
        self.soonest = min(first, default=NEVER)

    def _open(self, span: int) -> deque[tuple[int, int, Entry]] | None:
        if span not in self._seen:
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            self._seen.add(span)
            return None
        if len(self._lines) >= _LINES:
            for empty in [other for other, line in self._lines.items() if not line]:
                del self._lines[empty]
            if len(self._lines) >= _LINES:
                return None
        line = self._lines[span] = deque()
        return line

    def _compact(self) -> None:
        seen: set[int] = set()

        def holds(item: tuple[int, int, Entry]) -> bool:
            due, id, entry = item
            if entry.due is None or entry.queued != due or id in seen:
                return False
            seen.add(id)
            return True

        for span, line in self._lines.items():
            self._lines[span] = deque(filter(holds, line))
        self._heap = list(filter(holds, self._heap))
        heapify(self._heap)
        self._kept = len(self._heap) + sum(map(len, self._lines.values()))
        self._note_soonest()
