"""Unique keys: which living task has which, and which are remembered after their task has gone."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tubes.drivers.entry import Entry


class Keys:
    """The keys of one tube. What is remembered too long is forgotten whenever a key is looked for."""

    def __init__(self) -> None:
        self.living: Final[dict[str, Entry]] = {}
        # The id of the task that has gone, and until when its key is remembered.
        self._gone: Final[dict[str, tuple[int, int]]] = {}
        self._ends: Final[list[tuple[int, str]]] = []

    def find(self, now: int, key: str) -> Entry | int | None:
        """The living task of this key, or the id of the one that is remembered. Cost: O(1), amortized O(log n)."""
        while self._ends and self._ends[0][0] <= now:
            until, ended = self._ends[0]
            if self._gone.get(ended, (0, 0))[1] == until:
                del self._gone[ended]
            heappop(self._ends)
        return self.living.get(key) or self._gone.get(key, (None,))[0]

    def add(self, key: str, entry: Entry) -> None:
        """A task of this key lives."""
        self._gone.pop(key, None)
        self.living[key] = entry

    def leave(self, now: int, entry: Entry, *, remember: bool = True) -> None:
        """A task has gone; its key is remembered for as long as the task said."""
        more = entry.more
        if more is None or more.key is None or self.living.get(more.key) is not entry:
            return
        if more.key_ttl and remember:
            heappush(self._ends, (now + more.key_ttl, more.key))
            self._gone[more.key] = entry.id, now + more.key_ttl
        del self.living[more.key]

    def clear(self) -> None:
        """Forget all."""
        self.living.clear()
        self._gone.clear()
        self._ends.clear()
