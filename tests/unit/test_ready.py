"""Ready tasks: the first one has the smallest rank, after any sequence of puts, takes and returns."""

from __future__ import annotations

import random

import pytest

from tests.support.entries import entry
from tubes.drivers.entry import Entry
from tubes.drivers.ready import Ready


def make_ready(*entries: Entry, newest_first: bool = False, short: bool = False) -> Ready:
    ready = Ready(newest_first=newest_first, short=short)
    for each in entries:
        ready.push(each)
    return ready


def drain(ready: Ready) -> list[int]:
    """Take all entries and return their ids in order."""
    ids: list[int] = []
    while (one := ready.first()) is not None:
        assert ready.pop() is one
        assert one.index is None
        ids.append(one.id)
    assert ready.pop() is None
    return ids


def newest(id: int) -> Entry:
    made = entry(id)
    made.rank = -id
    return made


def test_pop_without_ready_tasks_returns_nothing() -> None:
    assert Ready().pop() is None
    assert Ready().count() == 0


@pytest.mark.parametrize("short", [False, True])
def test_the_smallest_rank_comes_first(short: bool) -> None:
    ready = make_ready(*(entry(id, pri) for id, pri in enumerate([2, 0, 1, 0, 2, 1])), short=short)
    assert ready.count() == 6
    assert drain(ready) == [1, 3, 2, 5, 0, 4]
    assert ready.count() == 0


@pytest.mark.parametrize("short", [False, True])
def test_newest_task_comes_first_with_newest_first(short: bool) -> None:
    ready = make_ready(*map(newest, range(20)), newest_first=True, short=short)
    assert drain(ready) == list(reversed(range(20)))


def test_returned_task_regains_its_place() -> None:
    first, second, third = entry(0), entry(1), entry(2)
    ready = make_ready(first, second, third)
    assert ready.pop() is first
    assert ready.pop() is second
    ready.push(second)
    ready.push(first)
    assert drain(ready) == [0, 1, 2]


def test_returned_task_precedes_tasks_of_lower_priority() -> None:
    back = entry(0, 1)
    ready = make_ready(back, entry(1, 0), entry(2, 2))
    assert ready.pop() is not None
    assert ready.pop() is back
    ready.push(back)
    ready.push(entry(3, 1))
    assert drain(ready) == [0, 3, 2]


def test_entry_knows_the_index_that_contains_it() -> None:
    one = entry(0)
    ready = make_ready(one)
    assert one.index is ready
    ready.discard(one)
    assert one.index is None


@pytest.mark.parametrize("discarded", range(5))
def test_a_task_that_was_discarded_does_not_come(discarded: int) -> None:
    entries = [entry(id) for id in range(5)]
    ready = make_ready(*entries)
    ready.discard(entries[discarded])
    assert ready.count() == 4
    assert drain(ready) == [id for id in range(5) if id != discarded]


def test_task_pushed_again_after_discard_comes_once() -> None:
    entries = [entry(id) for id in range(5)]
    ready = make_ready(*entries)
    ready.discard(entries[2])
    ready.push(entries[2])
    assert drain(ready) == [0, 1, 2, 3, 4]


def test_returned_task_that_was_discarded_does_not_come() -> None:
    first = entry(0)
    ready = make_ready(first, entry(1))
    assert ready.pop() is first
    ready.push(first)
    ready.discard(first)
    assert ready.count() == 1
    assert drain(ready) == [1]


def test_removed_tasks_are_forgotten() -> None:
    entries = [entry(id) for id in range(1000)]
    ready = make_ready(*entries)
    for discarded in entries[1:-1]:
        ready.discard(discarded)
    assert ready.count() == 2
    assert ready.count_stored() < 200
    assert drain(ready) == [0, 999]


def test_more_priorities_than_lines_come_in_order() -> None:
    ready = make_ready(*(entry(id, 99 - id) for id in range(100)))
    assert ready.count() == 100
    assert drain(ready) == list(reversed(range(100)))


def test_lines_that_have_become_empty_make_room_for_others() -> None:
    ready = Ready()
    for pri in range(100):
        ready.push(entry(pri, pri))
        assert drain(ready) == [pri]
    assert not ready._back
    ready.push(entry(0, 1000))
    assert not ready._back


def test_tasks_without_a_line_come_by_rank() -> None:
    entries = [entry(id) for id in range(50)]
    for each in entries:
        each.line, each.rank = None, (each.id * 7 % 50, each.id)
    ids = [each.id for each in sorted(entries, key=lambda each: each.rank)]
    assert drain(make_ready(*entries)) == ids


def test_short_queue_that_grows_keeps_its_order() -> None:
    ready = make_ready(*(entry(id) for id in range(30)), short=True)
    assert ready.count() == 30
    assert drain(ready) == list(range(30))


@pytest.mark.parametrize("newest_first", [False, True])
def test_entries_pushed_together_come_in_order(newest_first: bool) -> None:
    make = newest if newest_first else entry
    ready = Ready(newest_first=newest_first)
    ready.push_all([make(id) for id in range(5)])
    ready.push_all([make(id) for id in range(5, 8)])
    assert ready.count() == 8
    ids = list(range(8))
    assert drain(ready) == (ids[::-1] if newest_first else ids)


def test_random_tasks_come_in_order() -> None:
    rng = random.Random(3)
    ready = Ready()
    here: dict[int, Entry] = {}
    left: list[Entry] = []
    for id in range(4000):
        step = rng.random()
        if step < 0.5:
            here[id] = entry(id, rng.randrange(50))
            ready.push(here[id])
        elif step < 0.65 and left:
            back = left.pop(rng.randrange(len(left)))
            here[back.id] = back
            ready.push(back)
        elif step < 0.75 and here:
            discarded = here.pop(rng.choice(sorted(here)))
            ready.discard(discarded)
            left.append(discarded)
        else:
            first = min(here.values(), key=lambda each: each.rank, default=None)
            assert ready.pop() is first
            if first is not None:
                left.append(here.pop(first.id))
        assert ready.count() == len(here)
