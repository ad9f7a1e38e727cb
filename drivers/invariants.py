"""The invariants of an engine between two calls: a check for tests, and a rebuild after an interrupt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tubes.drivers.moves import State
from tubes.drivers.options import NO_LANE
from tubes.drivers.timers import NEVER

if TYPE_CHECKING:
    from tubes.drivers.engine import Engine
    from tubes.drivers.entry import Entry
    from tubes.drivers.lanes import Lanes

_READY, _TAKEN, _BURIED, _DELAYED, _DONE = State.READY, State.TAKEN, State.BURIED, State.DELAYED, State.DONE


def rebuild_indexes(engine: Engine, now: int) -> None:
    """Rebuild all indexes from the tasks: their state, holder, lane and deadlines. Cost: O(n).

    An interrupted method either has moved a task or has not; the state of the task decides. An interrupted rebuild is
    run again: it keeps all data that it needs until its end.
    """
    if engine.pending_replacement is not None:
        old, new, step = engine.pending_replacement
        if old.state is _DONE and new.state is None:  # The old task has ended, so the new one is put.
            new.state = step.to
            step.uses += 1
        engine.pending_replacement = None
    engine.end_move()
    engine.done.rebuild()
    if engine.pending_end is not None and engine.pending_end[0].state is _DONE:
        engine.keep()
    engine.pending_end = None
    for entry in [entry for entry in engine._keys.living.values() if entry.state is _DONE]:
        engine._keys.leave(now, entry)
    for hold in engine._holds.values():
        for entry in hold.values():
            if engine.tasks.get(entry.id) is not entry:  # The task was truncated.
                entry.hold = None
        hold.clear()
    lanes = engine._lanes
    engine.read_options()
    engine._clear_indexes(lanes and (lanes.before or lanes))
    engine._keys.living.clear()
    for entry in list(engine.tasks.values()):
        if entry.state is _TAKEN and entry.hold is None:
            entry.state = _READY
        if entry.state is None or entry.state is _DONE:  # An interrupted put, or an interrupted end.
            del engine.tasks[entry.id]
        else:
            _enter(engine, entry)
    if engine._lanes is not None:
        engine._lanes.adopt()
    # Only now it is known which lanes are busy or in cooldown.
    for entry in engine.tasks.values():
        if entry.state is _READY:
            if entry.lane is None:
                engine._offers.push(entry)
            else:
                entry.lane.push(entry)
    if engine._lanes is not None:
        engine._lanes.before = None


def _enter(engine: Engine, entry: Entry) -> None:
    """Add an entry to all indexes except the ready tasks."""
    entry.index = None
    if engine._lanes is not None:
        name = NO_LANE if entry.utube is None else entry.utube
        entry.lane = engine._lanes.by_name.get(name) or engine._lanes.make(name)
        entry.lane.living += 1
        entry.lane.taken += entry.state is _TAKEN
    if entry.extras is not None:
        if entry.extras.key is not None:
            engine._keys.add(entry.extras.key, entry)
        if entry.state is not _BURIED and entry.extras.reason is not None:
            entry.extras = entry.extras._replace(reason=None)
    if entry.state is _TAKEN:
        entry.hold[entry.id] = entry  # type: ignore[index]
    else:
        entry.hold = None
    if entry.state is _BURIED:
        engine._buried[entry.rank] = entry
    elif entry.state is _DELAYED:
        engine._delayed += 1
    if engine.has_times:
        due = entry.until if entry.state is _TAKEN or entry.state is _DELAYED else entry.dead
        if entry.state is _TAKEN and engine._ends_taken:
            due = min(due, entry.dead)
        entry.due, entry.queued = due, NEVER
        if due != NEVER:
            engine.timers.add(entry, due)


def check_engine(engine: Engine) -> None:
    """Assert the invariants that hold between two calls. For tests. Cost: O(n)."""
    by_state: dict[State | None, list[Entry]] = {state: [] for state in State}
    for id, entry in engine.tasks.items():
        assert entry.id == id
        by_state[entry.state].append(entry)
    assert not by_state[_DONE]
    assert len(by_state[_TAKEN]) == engine.taken
    assert len(by_state[_DELAYED]) == engine._delayed
    assert by_state[_BURIED] == sorted(engine._buried.values(), key=lambda entry: entry.id)
    for entry in engine.tasks.values():
        assert (entry.hold is not None) == (entry.state is _TAKEN)
        assert entry.hold is None or entry.hold[entry.id] is entry
        assert (entry.index is not None) == (entry.state is _READY)
        assert not engine.has_times or entry.due == NEVER or engine.timers.soonest <= entry.queued <= entry.due
    for stop in (engine.pause, engine.bucket):
        assert stop.due == NEVER or engine.timers.soonest <= stop.queued <= stop.due
    keyed = {
        entry.extras.key: entry for entry in engine.tasks.values() if entry.extras and entry.extras.key is not None
    }
    assert keyed == engine._keys.living
    kept = {done.id: done for done in engine.done.all()}
    assert not kept.keys() & engine.tasks.keys()
    assert [id for _, id in engine.done._order] == sorted(kept, key=lambda id: (kept[id].until, id))
    assert engine.done.due == NEVER or engine.timers.soonest <= engine.done.queued <= engine.done.due
    assert engine.pending_end is None
    _check_offers(engine, by_state[_READY], by_state[_TAKEN])


def _check_offers(engine: Engine, ready: Iterable[Entry], taken: Iterable[Entry]) -> None:
    offered = {entry.id for entry in ready if entry.index is engine._offers}
    if engine._lanes is None:
        assert offered == {entry.id for entry in ready}
        return
    in_flight = Counter(entry.lane for entry in taken)
    for lane in engine._lanes.by_name.values():
        assert lane.taken == in_flight[lane]
    busy = {lane for lane in engine._lanes.by_name.values() if lane.taken >= lane.limit}
    best: dict[Any, Entry] = {}
    for entry in ready:
        if entry.lane not in busy and (entry.lane not in best or entry.rank < best[entry.lane].rank):
            best[entry.lane] = entry
    assert offered == {entry.id for entry in best.values()}
    _check_rates(engine, engine._lanes)


def _check_rates(engine: Engine, lanes: Lanes) -> None:
    # While changed limits are due, some lanes still have the former ones.
    is_altering = engine.timers.soonest <= lanes.queued <= lanes.due < NEVER
    rates = [lane.rate for lane in lanes.by_name.values() if lane.rate is not None]
    for lane in lanes.by_name.values():
        assert lane.living > 0
        limit = lanes.rates.max_in_flight if lane.rate is None else lane.rate.limit
        assert is_altering or lane.limit == limit
        assert lane.rate is None or (lane.rate.lane is lane and lane.rate.name == lane.name)
    for name, rate in lanes.rates.alone.items():
        assert rate.name == name
        assert rate.lane is None
        assert name not in lanes.by_name
    for rate in (*rates, *lanes.rates.alone.values()):
        moment = rate.full_at() if rate.is_free else rate.next_start()
        assert rate.due == NEVER or engine.timers.soonest <= rate.queued <= rate.due
        assert rate.due in (NEVER, moment) or is_altering
        assert rate.is_free or rate.due != NEVER
        has_limits = any(limit is not None for limit in rate.own_limits)
        assert (
            has_limits
            or rate.due != NEVER
            or (rate.lane is not None and (rate.lane.taken or rate.lane.head is not None))
        )
