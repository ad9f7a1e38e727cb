"""Read the rows that `Journal` has written: when a store is opened, and to undo a failed commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tubes.drivers.timers import NEVER
from tubes.durable import rows
from tubes.durable.engine import ACK, PUT, TAKE
from tubes.errors import Facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tubes.drivers.entry import Entry, Hold
    from tubes.durable.database import Database
    from tubes.durable.engine import JournaledEngine


class TubeRow(NamedTuple):
    """The row of a tube."""

    number: int
    namespace: str
    name: str
    driver: str
    options: str
    epoch: int
    facts: str


def read_tubes(database: Database, where: str = "") -> list[TubeRow]:
    """Return the rows of all tubes, or of the tubes that a WHERE clause selects."""
    return [TubeRow(*row) for row in database.execute(f"SELECT {', '.join(TubeRow._fields)} FROM tubes {where}")]


def read_engine(
    engine: JournaledEngine, database: Database, tube: TubeRow, now: int, hold: Hold, known: Mapping[int, Entry]
) -> None:
    """Replace the state of an engine by the rows of a tube. The caller rebuilds the indexes.

    `hold`: the new hold of taken tasks. `known`: entries to reuse.
    """
    execute, number = database.execute, tube.number
    ids = rows.ids_of(number)
    engine.options = rows.read_options(tube.options)
    engine.read_options()
    engine.clear_tasks()
    tasks = f"SELECT {rows.FULL}, crc FROM tasks WHERE key BETWEEN ? AND ? ORDER BY key"
    rows.read_entries(engine, execute(tasks, ids), hold, known)
    facts = rows.read_facts(tube.facts)
    _count(engine, database, facts, tube.epoch, ids)
    for digest, id, until in execute("SELECT key, id, until FROM keys WHERE tube=?", (number,)):
        if until > now:
            engine.keys_outlive_tasks = True
            engine._keys.remember(now, digest, id, until)
    for raw, text in execute("SELECT name, facts FROM lanes WHERE tube=?", (number,)):
        engine.has_rate_limits = True
        name = rows.decode_name(raw)
        engine.rates.add(name)
        rate = engine.lanes.rates.make(name, None)
        rows.read_rate(rate, text)
        if rate.capacity is not None:
            engine.is_bounded = engine.has_bounded_lanes = True
    if engine.driver.lane:
        engine.lanes.rates.last_number = facts["number"]
    for row in execute("SELECT * FROM done WHERE key BETWEEN ? AND ?", ids):
        done = rows.read_done(row)
        engine.done.add(done, 0)
        engine.has_deadlines = engine.has_deadlines or done.ttl is not None or done.ttr is not None
    engine.dirty_done.clear()  # The file already has these rows.
    engine.bucket.scheduled = facts["scheduled"]
    engine.bucket.apply(now)
    pause = facts["pause"]
    if pause is not None and pause > now:
        engine.pause.begin(now, None if pause == NEVER else pause - now)
    else:
        engine.pause.end()


def _count(engine: JournaledEngine, database: Database, facts: Facts, epoch: int, ids: tuple[int, int]) -> None:
    """Restore the counters: the values in the facts, and the moves of the last epoch."""
    rows.read_uses(engine, facts["uses"])
    last: int | None = database.execute("SELECT max(key) FROM tasks WHERE key BETWEEN ? AND ?", ids).fetchone()[0]
    # Ids are never reused, even if the call that used them was undone.
    engine.next_id = max(engine.next_id, facts["next_id"], 0 if last is None else last - ids[0] + 1)
    next_take = facts["next_take"]
    counted = "SELECT moved & 7, count(*) FROM tasks WHERE key BETWEEN ? AND ? AND moved>>3=? GROUP BY 1"
    for moves, count in database.execute(counted, (*ids, epoch)):
        for move, step in ((PUT, engine._put), (TAKE, engine._take), (ACK, engine._ack)):
            step.uses += count if moves & move else 0
        # No new take gets the number of an old lease.
        next_take += count if moves & TAKE else 0
    engine.born, engine.next_take = facts["born"], max(engine.next_take, next_take)
