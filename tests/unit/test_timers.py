"""Deadlines: due entries are returned in order, once, and only if they are still due."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tests.support.entries import entry
from tubes.drivers.entry import FullEntry
from tubes.drivers.timers import NEVER, Timers

SLOT_SPAN = 1 << 16
#: Longer than a slot of the timers.
FAR = 1_000_000


@pytest.fixture
def timers() -> Timers[FullEntry]:
    return Timers()


def add_entry(timers: Timers[FullEntry], id: int, due: int) -> FullEntry:
    made = entry(id, due=due)
    timers.add(made, due)
    return made


def pop_due(timers: Timers[FullEntry], now: int) -> list[int]:
    """Return the ids of all due entries."""
    ids: list[int] = []
    while timers.soonest <= now:
        if (one := timers.pop(now)) is not None:
            assert one.queued == NEVER
            ids.append(one.id)
    return ids


def test_empty_timers_have_nothing_due(timers: Timers[FullEntry]) -> None:
    assert timers.pop(NEVER - 1) is None
    assert timers.soonest == NEVER


def test_due_entries_come_by_deadline_then_id(timers: Timers[FullEntry]) -> None:
    for id, due in ((1, 3 * FAR), (4, FAR), (3, FAR), (2, 2 * FAR), (0, FAR + 1)):
        add_entry(timers, id, due)
    assert pop_due(timers, 3 * FAR) == [3, 4, 0, 2, 1]


def test_entry_does_not_come_before_its_deadline(timers: Timers[FullEntry]) -> None:
    add_entry(timers, 0, FAR)
    assert pop_due(timers, FAR - 1) == []
    assert pop_due(timers, FAR) == [0]
    assert pop_due(timers, FAR) == []


def test_soonest_is_a_lower_bound_of_all_deadlines(timers: Timers[FullEntry]) -> None:
    add_entry(timers, 0, 5 * FAR)
    add_entry(timers, 1, 3 * FAR)
    assert 2 * FAR < timers.soonest <= 3 * FAR
    assert pop_due(timers, 3 * FAR) == [1]
    assert 4 * FAR < timers.soonest <= 5 * FAR
    assert pop_due(timers, 5 * FAR) == [0]
    assert timers.soonest == NEVER


def test_removed_entry_does_not_come(timers: Timers[FullEntry]) -> None:
    removed = add_entry(timers, 0, FAR)
    add_entry(timers, 1, FAR)
    timers.remove(removed)
    assert removed.queued == NEVER
    assert pop_due(timers, FAR) == [1]


def test_entry_removed_after_its_slot_was_opened_does_not_come(timers: Timers[FullEntry]) -> None:
    removed = add_entry(timers, 1, FAR + 1)
    add_entry(timers, 0, FAR)
    assert pop_due(timers, FAR) == [0]
    timers.remove(removed)
    assert pop_due(timers, 2 * FAR) == []


def test_full_slot_is_opened_some_entries_at_a_time(timers: Timers[FullEntry]) -> None:
    rng = random.Random(1)
    entries = [add_entry(timers, id, FAR + rng.randrange(10)) for id in range(1000)]
    sizes, expected = [0], list[tuple[int, int]]()
    while not (due := timers.pop(FAR + 10)):
        sizes.append(len(timers._next))
        if len(sizes) == 10:  # Half open: entries that are elsewhere now come in their new place.
            timers.remove(entries[500])
            entries[501].due += FAR
            entries[502].due = timers._horizon - SLOT_SPAN
            timers.add(entries[502], entries[502].due)
            add_entry(timers, 1000, FAR + 3)
            waiting = [one for one in entries if one is not entries[500]]
            expected = sorted((one.due, one.id) for one in [*waiting, entry(1000, due=FAR + 3)])
            assert [(one.due, one.id) for one in timers.iterate_after(0, -1)] == expected
    assert max(after - before for before, after in pairwise(sizes)) <= 20
    assert [due.id, *pop_due(timers, FAR + 10)] == [id for due, id in expected if due < 2 * FAR]
    assert pop_due(timers, 3 * FAR) == [501]


def test_a_deadline_that_comes_sooner_replaces_the_later_one(timers: Timers[FullEntry]) -> None:
    hurried = add_entry(timers, 0, 3 * FAR)
    hurried.due = FAR
    timers.add(hurried, FAR)
    assert pop_due(timers, FAR) == [0]
    assert pop_due(timers, 3 * FAR) == []


def test_postponed_deadline_is_checked_again_when_reached(timers: Timers[FullEntry]) -> None:
    late = add_entry(timers, 0, FAR)
    late.due = 2 * FAR
    assert pop_due(timers, 2 * FAR - 1) == []
    assert pop_due(timers, 2 * FAR) == [0]


def test_cancelled_deadline_never_comes(timers: Timers[FullEntry]) -> None:
    add_entry(timers, 0, FAR).due = NEVER
    assert pop_due(timers, 2 * FAR) == []
    assert timers.soonest == NEVER


def test_overdue_entry_added_late_comes_in_order(timers: Timers[FullEntry]) -> None:
    add_entry(timers, 0, FAR)
    add_entry(timers, 1, FAR + 20)
    assert pop_due(timers, FAR) == [0]
    add_entry(timers, 2, FAR + 10)
    add_entry(timers, 3, FAR - 10)
    assert timers.soonest == FAR - 10
    assert pop_due(timers, FAR + 20) == [3, 2, 1]


def test_watch_follows_the_current_deadline(timers: Timers[FullEntry]) -> None:
    watched = entry(0, due=2 * FAR)
    timers.watch(watched)
    watched.due = FAR
    timers.watch(watched)
    assert pop_due(timers, FAR) == [0]
    watched.due = 3 * FAR
    timers.watch(watched)
    watched.due = NEVER
    timers.watch(watched)
    assert watched.queued == NEVER
    assert pop_due(timers, 4 * FAR) == []


def test_slots_that_have_become_empty_are_forgotten(timers: Timers[FullEntry]) -> None:
    for id in range(1000):
        timers.remove(add_entry(timers, id, (id + 1) * FAR))
    assert len(timers._slots) < 200
    assert len(timers._starts) == len(timers._slots)


def test_entry_added_repeatedly_is_kept_once(timers: Timers[FullEntry]) -> None:
    add_entry(timers, 0, FAR)
    assert pop_due(timers, FAR) == [0]
    again = add_entry(timers, 1, FAR)
    for _ in range(1000):
        timers.remove(again)
        timers.add(again, FAR)
    assert len(timers._next) < 200
    assert pop_due(timers, FAR) == [1]


def test_random_deadlines_come_in_order() -> None:
    rng = random.Random(7)
    timers: Timers[FullEntry] = Timers()
    waiting: dict[int, FullEntry] = {}
    now = 0
    for id in range(3000):
        made = waiting[id] = add_entry(timers, id, now + rng.randrange(1, 5 * FAR))
        if rng.random() < 0.3:
            timers.remove(waiting.pop(rng.choice(sorted(waiting))))
        if rng.random() < 0.3:
            made.due += rng.randrange(FAR)
        now += rng.randrange(FAR // 10)
        due = sorted((one.due, one.id) for one in waiting.values() if one.due <= now)
        assert pop_due(timers, now) == [each for _, each in due]
        for _, each in due:
            del waiting[each]
