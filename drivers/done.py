"""Done tasks that are kept for some time after their ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from sortedcontainers import SortedList

from tubes.drivers.moves import State
from tubes.drivers.options import NO_LANE
from tubes.drivers.timers import NEVER

if TYPE_CHECKING:
    from tubes.drivers.entry import Entry, More

#: Larger than every id.
_LAST_ID: Final = NEVER
#: How many one call forgets at most, and how many microseconds later the next ones go.
_SOME: Final = 500
_REST: Final = 1000


class Done:
    """A done task that is kept: what can be seen of it, and nothing that only living tasks need. It never changes."""

    __slots__ = (
        "attempts", "created", "data", "dead", "ended", "id", "more", "pri", "result", "ttl", "ttr", "until", "utube",
        "why",
    )  # fmt: skip

    id: int
    data: Any
    created: int
    attempts: int
    pri: int
    utube: str | None
    ttl: int | None
    ttr: int | None
    dead: int
    more: More | None
    #: When it ended, why (the move), and with which result.
    ended: int
    why: str
    result: Any
    #: When it is forgotten.
    until: int
    # As every task has it.
    state: Final = State.DONE
    due: Final = NEVER
    hold: Final = None
    take: Final = 0

    @classmethod
    def of(cls, entry: Entry, now: int, why: str, result: Any, span: int) -> Done:
        """A task that is about to end now, and is kept for so long."""
        done = cls()
        done.id, done.data, done.created, done.attempts = entry.id, entry.data, entry.created, entry.attempts
        done.pri, done.utube, done.more = entry.pri, entry.utube, entry.more
        # Where the driver knows no times there are none.
        done.ttl, done.ttr = getattr(entry, "ttl", None), getattr(entry, "ttr", None)
        done.dead = getattr(entry, "dead", NEVER)
        done.ended, done.why, done.result, done.until = now, why, result, now + span
        return done


class DoneTasks:
    """The done tasks of a tube that are kept, in the order in which they are forgotten.

    It stands in the timers of its tube, like a task, as long as there is any.
    """

    __slots__ = ("_by_id", "_order", "changed", "due", "id", "queued")

    def __init__(self) -> None:
        self._by_id: Final[dict[int, Done]] = {}
        self._order: Final[SortedList[tuple[int, int]]] = SortedList()
        #: The ids of those that were added or forgotten since a journal has looked; None: there is no journal.
        self.changed: set[int] | None = None
        # Smaller than those of all others in the timers.
        self.id: Final = -NEVER - 1
        self.due = self.queued = NEVER

    def add(self, done: Done, most: int) -> None:
        """Keep a task. `most`: so many are kept, and the first of them are forgotten; 0: no limit. Cost: O(log n)."""
        self._by_id[done.id] = done
        self._order.add((done.until, done.id))
        self._note(done.id)
        if most:
            self.trim(most)
        self._watch()

    def trim(self, most: int) -> bool:
        """Forget the first of them, some at a time, where there are more than this; whether there still are."""
        over = len(self._order) - most
        if over > 0:
            self._forget(min(over, _SOME))
        return over > _SOME

    def find(self, now: int, id: int) -> Done | None:
        """The task of this id, if it is kept. Cost: O(1)."""
        done = self._by_id.get(id)
        return done if done is not None and done.until > now else None

    def remove(self, id: int) -> None:
        """Forget a task. Cost: O(log n)."""
        done = self._by_id.pop(id, None)
        if done is not None:
            self._order.discard((done.until, id))
            self._note(id)
            self._watch()

    def expire(self, now: int) -> None:
        """Forget those whose time is over: some now, the others a moment later. Nobody finds them meanwhile."""
        over = self._order.bisect((now, _LAST_ID))
        self._forget(min(over, _SOME))
        if over > _SOME:
            self.due = now + _REST

    def _forget(self, count: int) -> None:
        """Forget so many, in their order."""
        for _, id in self._order[:count]:
            del self._by_id[id]
            self._note(id)
        del self._order[:count]
        self._watch()

    def after(self, now: int, last: tuple[int, int] | None, limit: int, utube: str | None) -> list[Done]:
        """Up to so many, those first that are forgotten last; `last`: after this end and id. Cost: O(limit)."""
        order: Iterator[tuple[int, int]] = self._order.irange(
            (now + 1, -1), last, inclusive=(True, last is None), reverse=True
        )
        found: Iterator[Done] = (self._by_id[id] for _, id in order)
        if utube is not None:
            found = (done for done in found if (NO_LANE if done.utube is None else done.utube) == utube)
        return list(islice(found, limit))

    def count(self, now: int) -> int:
        """How many are kept. Cost: O(log n)."""
        return len(self._order) - self._order.bisect((now, _LAST_ID))

    def all(self) -> list[Done]:
        """All that are stored."""
        return list(self._by_id.values())

    def clear(self) -> None:
        """Forget all."""
        if self.changed is not None:
            self.changed.update(self._by_id)
        self._by_id.clear()
        self.rebuild()

    def rebuild(self) -> None:
        """Make the order anew. The timers are new."""
        self.queued = NEVER
        self._order.clear()
        self._order.update((done.until, done.id) for done in self._by_id.values())
        self._watch()

    def _note(self, id: int) -> None:
        if self.changed is not None:
            self.changed.add(id)

    def _watch(self) -> None:
        self.due = self._order[0][0] if self._order else NEVER
