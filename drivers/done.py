"""Done tasks that are kept for some time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from sortedcontainers import SortedList

from tubes.drivers.moves import State
from tubes.drivers.timers import NEVER

if TYPE_CHECKING:
    from tubes.drivers.entry import Entry, Extras

#: Larger than every id.
_LAST_ID: Final = NEVER
#: The maximum number of tasks that one call forgets, and the microseconds until the next batch is forgotten.
_BATCH: Final = 500
_PAUSE: Final = 1000


class Done:
    """The immutable record of a kept done task: everything that users can see of it."""

    __slots__ = (
        "attempts",
        "created",
        "data",
        "dead",
        "ended",
        "extras",
        "id",
        "pri",
        "result",
        "ttl",
        "ttr",
        "until",
        "utube",
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
    extras: Extras | None
    #: The time of its end, how it ended ("ack", "delete", "ttl" or "cancelled"), and its result.
    ended: int
    why: str
    result: Any
    #: The time at which it is forgotten.
    until: int
    # The same fields as in `Entry`.
    state: Final = State.DONE
    due: Final = NEVER
    hold: Final = None
    take: Final = 0

    @classmethod
    def of(cls, entry: Entry, now: int, why: str, result: Any, span: int) -> Done:
        """Make the record of a task that ends now and is kept for `span` microseconds."""
        done = cls()
        done.id, done.data, done.created, done.attempts = entry.id, entry.data, entry.created, entry.attempts
        done.pri, done.utube, done.extras = entry.pri, entry.utube, entry.extras
        # Entries of drivers without times lack these fields.
        done.ttl, done.ttr = getattr(entry, "ttl", None), getattr(entry, "ttr", None)
        done.dead = getattr(entry, "dead", NEVER)
        done.ended, done.why, done.result, done.until = now, why, result, now + span
        return done


class DoneTasks:
    """The kept done tasks of a tube, in the order in which they are forgotten.

    While there are any, this object is an item of the tube's timers, as a task is.
    """

    __slots__ = ("_by_id", "_order", "changed", "due", "id", "queued")

    def __init__(self) -> None:
        self._by_id: Final[dict[int, Done]] = {}
        self._order: Final[SortedList[tuple[int, int]]] = SortedList()
        #: The ids added or forgotten since the journal last read this set; None: there is no journal.
        self.changed: set[int] | None = None
        # Smaller than the id of any other item of the timers.
        self.id: Final = -NEVER - 1
        self.due = self.queued = NEVER

    def add(self, done: Done, most: int) -> None:
        """Keep a task, and forget the tasks beyond `most` that expire first; 0: no limit. Cost: O(log n)."""
        self._by_id[done.id] = done
        self._order.add((done.until, done.id))
        self._note(done.id)
        if most:
            self.trim(most)
        self._watch()

    def trim(self, most: int) -> bool:
        """Forget up to one batch of the tasks beyond `most`; return True if more remain."""
        excess = len(self._order) - most
        if excess > 0:
            self._forget(min(excess, _BATCH))
        return excess > _BATCH

    def find(self, now: int, id: int) -> Done | None:
        """Return the kept task with this id, or None. Cost: O(1)."""
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
        """Forget expired tasks, one batch now and the others a moment later. `find` no longer returns them."""
        excess = self._order.bisect((now, _LAST_ID))
        self._forget(min(excess, _BATCH))
        if excess > _BATCH:
            self.due = now + _PAUSE

    def _forget(self, count: int) -> None:
        for _, id in self._order[:count]:
            del self._by_id[id]
            self._note(id)
        del self._order[:count]
        self._watch()

    def list_page(self, now: int, last: tuple[int, int] | None, limit: int) -> list[Done]:
        """List up to `limit` tasks, from the last to be forgotten to the first, after `last`. Cost: O(limit)."""
        order: Iterator[tuple[int, int]] = self._order.irange(
            (now + 1, -1), last, inclusive=(True, last is None), reverse=True
        )
        return [self._by_id[id] for _, id in islice(order, limit)]

    def count(self, now: int) -> int:
        """Count the kept tasks. Cost: O(log n)."""
        return len(self._order) - self._order.bisect((now, _LAST_ID))

    def all(self) -> list[Done]:
        return list(self._by_id.values())

    def clear(self) -> None:
        if self.changed is not None:
            self.changed.update(self._by_id)
        self._by_id.clear()
        self.rebuild()

    def rebuild(self) -> None:
        """Rebuild the order, after the timers were rebuilt."""
        self.queued = NEVER
        self._order.clear()
        self._order.update((done.until, done.id) for done in self._by_id.values())
        self._watch()

    def _note(self, id: int) -> None:
        if self.changed is not None:
            self.changed.add(id)

    def _watch(self) -> None:
        self.due = self._order[0][0] if self._order else NEVER
