"""Selections of tasks in memory, some at a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tubes.backend.selecting import encoded_data
from tubes.drivers.engine import DUE_PART
from tubes.drivers.lists import START, Place, count_unordered, is_by_id, tasks_after
from tubes.drivers.moves import State
from tubes.drivers.options import SECOND
from tubes.values.task_data import calls_function

if TYPE_CHECKING:
    from tubes.backend.selecting import Filters, Scan, Seen
    from tubes.drivers.done import Done
    from tubes.drivers.engine import Engine
    from tubes.drivers.entry import Entry, Hold
    from tubes.values.codecs import Codec

T = TypeVar("T")

#: The limits of one part: tasks, and bytes of data (approximate).
_LOOKS: Final = 1000
_BYTES: Final = 1_000_000
#: The methods of the engine that change a task.
_ACTS: Final = {"kick": "kick_task", "release": "release", "bury": "bury", "delete": "delete", "cancel": "cancel"}


def select(
    engine: Engine, now: int, filters: Filters, scan: Scan, most: int, codec: Codec | None
) -> list[Entry | Done]:
    """Return the next part of a selection: at most `most` tasks, perhaps none. `codec`: that of their data, if any."""
    if scan.bound is None:
        scan.bound = engine.next_id
    state, bound = filters.state, scan.bound
    is_large = filters.contains is not None and codec is None
    found: list[Entry | Done] = []
    size = 0
    for looks, task in enumerate(_remaining(engine, now, filters, scan), 1):
        if task is not None and task.id < bound and (state is None or task.state is state):
            is_found = filters.accepts(task, now)
            if is_found and filters.contains is not None:
                data: bytes = encoded_data(task.data) if codec is None else task.data
                size += len(data)
                is_found = filters.contains in data
            if is_found and filters.function is not None:
                size += 0 if codec is None else len(task.data)
                is_found = calls_function(task.data, filters.function, codec)
            if is_found and scan.is_new(task.id):
                found.append(task)
        if len(found) >= most or looks >= (_LOOKS // 4 if is_large else _LOOKS) or size > _BYTES:
            return found
    scan.ended = True
    return found


def _remaining(engine: Engine, now: int, filters: Filters, scan: Scan) -> Iterator[Entry | Done | None]:
    """Yield the remaining tasks in the order of the selection; `scan.cursor` is the place after each."""
    state = filters.state
    if state is State.DONE:
        if scan.cursor is None and scan.after is not None:
            scan.cursor = engine.find_done(now, scan.after).until, scan.after
        done: Done
        for done in engine.done.list_page(now, scan.cursor, _LOOKS):
            scan.cursor = done.until, done.id
            yield done
        return
    if scan.cursor is None:
        scan.cursor = _first(engine, filters, scan.after)
    elif isinstance(scan.cursor, Place) and state is not State.BURIED:
        # A page costs as much as there are timers or priorities, which is too much for each part.
        place: Any = scan.cursor
        last = place.due if state is State.DELAYED else place.rank, place.id
        scan.cursor = _in_order(engine, iter(engine.ids()), state, last)
    if isinstance(scan.cursor, Place):
        entry: Entry
        for entry in tasks_after(engine, scan.cursor, _LOOKS, state, newest_first=filters.newest_first):
            scan.cursor = _place(entry)
            yield entry
        return
    for id in scan.cursor:
        yield engine.tasks.get(id)


def _first(engine: Engine, filters: Filters, after: int | None) -> object:
    """Return the first cursor: a place in the order of a state, or an iterator of ids; -1 is not an id."""
    state = filters.state
    if filters.key is not None:
        known = engine.living_with(filters.key)
        return iter([] if known is None else [known.id])
    ids: Sequence[int]
    if state is State.TAKEN:
        ids = sorted(id for hold in engine.holds for id in hold)
    elif (by_id := is_by_id(engine.driver, state)) or (filters.newest_first and state is not State.BURIED):
        ids = engine.ids()
        if not by_id:
            last = None if after is None else engine.find(after)
            if last is not None and last.state is not state:
                return iter(())
            return _in_order(engine, iter(ids), state, None if last is None else _key_of(state)(last), reverse=True)
    elif after is None:
        if state is State.READY and count_unordered(engine) > _LOOKS:  # A page would look at all of them in one part.
            return _in_order(engine, iter(engine.ids()), state, None)
        return START
    else:
        return _place(engine.find(after))
    if after is not None:
        ids = ids[: bisect_left(ids, after)] if filters.newest_first else ids[bisect_right(ids, after) :]
    return iter(ids[::-1] if filters.newest_first else ids)


def _key_of(state: State | None) -> Callable[[Entry], tuple[Any, int]]:
    return attrgetter("due", "id") if state is State.DELAYED else attrgetter("rank", "id")


def _in_order(
    engine: Engine, ids: Iterator[int], state: State | None, last: tuple[Any, int] | None, *, reverse: bool = False
) -> Iterator[int]:
    """Collect the places in a state, with -1 for each task; then yield the ids after the place `last` in order."""
    runs: list[list[tuple[Any, int]]] = []
    key_of = _key_of(state)
    while part := [*islice(ids, _LOOKS)]:
        found = (engine.tasks[id] for id in part if id in engine.tasks)
        places = sorted((key_of(entry) for entry in found if entry.state is state), reverse=reverse)
        runs.append([place for place in places if last is None or (place < last if reverse else place > last)])
        yield from repeat(-1, _LOOKS)
    for _, id in merge(*runs, reverse=reverse):
        yield id


def _place(entry: Entry) -> Place:
    return Place(entry.id, entry.rank, entry.due if entry.state is State.DELAYED else 0)


def change(engine: Engine, now: int, act: str, seen: list[Seen], arguments: tuple[object, ...], by: Hold) -> list[bool]:
    """Change the tasks that are as they were seen; return for each whether it was changed. `by`: as for `bury`."""
    changed: list[bool] = []
    others = {"by": by} if act in ("bury", "delete") else {}
    for id, created, letter, attempts, take in seen:
        if letter == State.DONE.letter:
            task: Any = engine.done.find(now, id)
            is_same = task is not None and task.created == created
        else:
            task = engine.tasks.get(id)
            is_same = (
                task is not None
                and (task.created, task.attempts) == (created, attempts)
                and task.state.letter == letter
                and (task.state is not State.TAKEN or task.take == take)
            )
        changed.append(is_same)
        if is_same and task is not None:
            if act == "release":
                engine.tell_holder(task, act, by=by)
            getattr(engine, _ACTS[act])(now, task, *arguments, **others)
    return changed


def see(task: Entry | Done) -> Seen:
    """Return a task as a selection has seen it."""
    state: Any = task.state
    return task.id, task.created, state.letter, task.attempts, task.take if state is State.TAKEN else 0


def in_parts(items: Callable[[], Iterable[T]], act: Callable[[int, T], object]) -> Callable[[int], bool]:
    """Return a function that calls `act` with the next items, and returns True if more remain; its argument is `now`.

    The first part reads the items. The last one ends with an item for which `act` returns True.
    """
    remaining: Iterator[T] | None = None

    def act_on_some(now: int) -> bool:
        nonlocal remaining
        remaining = iter(items()) if remaining is None else remaining
        for count, item in enumerate(remaining, 1):
            if act(now, item):
                return False
            if count == DUE_PART:
                return True
        return False

    return act_on_some


def find_oldest(engine: Engine, ages: list[float]) -> Callable[[int], bool]:
    """Add the age of the oldest ready task to `ages`, if there is one, in parts."""

    def look(now: int, id: int) -> bool:
        entry = engine.tasks.get(id)
        if entry is not None and entry.state is State.READY:
            ages.append(max(now - entry.created, 0) / SECOND)
        return bool(ages)

    return in_parts(engine.ids, look)


def count_lanes(engine: Engine, counts: Counter[str]) -> Callable[[int], bool]:
    """Count the lanes in parts, by the names of the fields of `Overview`."""

    def look(now: int, name: str) -> None:
        if engine.lanes.is_listed(name):
            counts["lanes"] += 1
            counts["throttled_lanes"] += engine.lanes.is_throttled(name)

    return in_parts(lambda: engine.lanes.names() if engine.driver.lane else (), look)
