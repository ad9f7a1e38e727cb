"""Unique keys: which living task has which, and which are remembered after their task has gone."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tubes.drivers.entry import Entry


# Ends that are out of date are removed when they are more than the others, and more than this.
_STALE: Final = 64
# How many expired keys are removed whenever one is looked for or remembered.
_FORGOTTEN: Final = 10


class Keys:
    """The keys of one tube. Expired ones do not count, and are removed bit by bit."""

    def __init__(self) -> None:
        self.living: Final[dict[str, Entry]] = {}
        # The id of the last task, and until when its key is remembered.
        self._gone: Final[dict[str, tuple[int, int]]] = {}
        self._ends: Final[list[tuple[int, str]]] = []

    def find(self, now: int, key: str) -> Entry | int | None:
        """Find the task that has this key, or the id of the one that had it. Cost: O(log n)."""
        self._forget(now)
        if (living := self.living.get(key)) is not None:
            return living
        id, until = self._gone.get(key, (None, 0))
        return id if until > now else None

    def add(self, key: str, entry: Entry) -> None:
        """Note that a task of this key lives."""
        self._gone.pop(key, None)
        self.living[key] = entry

    def leave(self, now: int, entry: Entry, *, remember: bool = True) -> None:
        """Note that a task has gone, and remember its key for its `key_ttl`."""
        more = entry.more
        if more is None or more.key is None or self.living.get(more.key) is not entry:
            return
        if more.key_ttl and remember:
            self._remember(more.key, entry.id, now + more.key_ttl)
            self._forget(now)
        del self.living[more.key]

    def _remember(self, key: str, id: int, until: int) -> None:
        self._gone[key] = id, until
        heappush(self._ends, (until, key))
        if len(self._ends) > 2 * len(self._gone) + _STALE:
            self._ends[:] = [(until, key) for key, (_, until) in self._gone.items()]
            heapify(self._ends)

    def _forget(self, now: int) -> None:
        for _ in range(_FORGOTTEN):
            if not self._ends or self._ends[0][0] > now:
                return
            until, key = self._ends[0]
            if self._gone.get(key, (0, 0))[1] == until:
                del self._gone[key]
            heappop(self._ends)
