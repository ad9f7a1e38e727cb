"""Lists of the tasks of a tube: all tasks by id, or the tasks in one state in the order of their next moves."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tubes.drivers.entry import Entry
from tubes.drivers.moves import State

if TYPE_CHECKING:
    from tubes.drivers.driver import Driver
    from tubes.drivers.engine import Engine

_READY, _TAKEN, _BURIED, _DELAYED, _DONE = State.READY, State.TAKEN, State.BURIED, State.DELAYED, State.DONE


class Place(NamedTuple):
    """The start of a page: after the task with this id, rank and end of its delay."""

    id: int = -1
    rank: Any = None
    due: int = 0


#: Before all tasks.
START: Final = Place()


def is_by_id(driver: Driver, state: State | None) -> bool:
    """Return True if tasks in this state are listed by id. Ready tasks in lanes can be listed only by id."""
    return state is None or state is _TAKEN or (state is _READY and driver.lane is not None)


def count_unordered(engine: Engine) -> int:
    """Return the number of ready tasks that are in a heap: a page of ready tasks looks at all of them."""
    offers: Any = engine._offers
    return len(offers._back) if engine.driver.lane is None else 0


def tasks_after(
    engine: Engine,
    place: Place,
    limit: int,
    state: State | None = None,
    *,
    newest_first: bool = False,
) -> list[Entry]:
    """List up to `limit` tasks in a state (None: any), after a place in their order.

    `newest_first`: in the reverse order; only for buried tasks.

    By id the cost is O(limit) if few ids between them are missing or have other states, otherwise O(n); for taken tasks
    O(n) of them. For other states the cost is O(limit), and for delayed tasks O(1) for each earlier timer.
    """
    found: Iterable[Entry]
    if state is _TAKEN:
        taken = (entry for hold in engine._holds.values() for entry in hold.values() if entry.id > place.id)
        found = sorted(taken, key=lambda entry: entry.id)
    elif is_by_id(engine.driver, state):
        found = _by_id(engine, place.id + 1)
    elif state is _BURIED:
        if newest_first:
            ranks = engine._buried.irange(None, place.rank, inclusive=(True, False), reverse=True)
        else:
            ranks = engine._buried.irange(place.rank, inclusive=(False, True))
        found = (engine._buried[rank] for rank in ranks)
    elif state is _DELAYED:
        found = (one for one in engine.timers.iterate_after(place.due, place.id) if isinstance(one, Entry))
    else:
        offers: Any = engine._offers  # A tube without lanes has a `Ready`.
        found = offers.iterate_after(place.rank, limit)
    if state is not None:
        found = (entry for entry in found if entry.state is state)
    return list(islice(found, limit))


def _by_id(engine: Engine, first: int) -> Iterable[Entry]:
    tasks = engine.tasks
    if engine.next_id - first > 4 * len(tasks):
        return (entry for id, entry in tasks.items() if id >= first)
    return (tasks[id] for id in range(first, engine.next_id) if id in tasks)
