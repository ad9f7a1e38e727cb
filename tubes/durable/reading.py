"""Reads a tube as `Journal` has written it: when its store is opened, and to undo what could not be written."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tubes.drivers.timers import NEVER
from tubes.durable import rows
from tubes.durable.engine import ACK, PUT, TAKE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

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
    """The rows of all tubes, or of some of them."""
    return [TubeRow(*row) for row in database.execute(f"SELECT {', '.join(TubeRow._fields)} FROM tubes {where}")]


def read_engine(
    engine: JournaledEngine, database: Database, tube: TubeRow, now: int, hold: Hold, known: Mapping[int, Entry]
) -> None:
    """Bring all that is written of a tube into an engine, and forget what it has. The indexes are up to the caller.

    The tasks that are taken are in this hold. `known`: entries to use again.
    """
    execute, number = database.execute, tube.number
    ids = rows.ids_of(number)
    engine.options = rows.read_options(tube.options)
    engine.read_options()
    engine.forget_all()
    tasks = f"SELECT {rows.FULL}, crc FROM tasks WHERE key BETWEEN ? AND ? ORDER BY key"
    rows.read_entries(engine, execute(tasks, ids), hold, known)
    facts = rows.read_facts(tube.facts)
    _count(engine, database, facts, tube.epoch, ids)
    for digest, id, until in execute("SELECT key, id, until FROM keys WHERE tube=?", (number,)):
        if until > now:
            engine.remembers = True
            engine._keys.remember(now, digest, id, until)
    for raw, text in execute("SELECT name, facts FROM lanes WHERE tube=?", (number,)):
        engine.throttled = True
        name = rows.read_name(raw)
        engine.rates.add(name)
        rate = engine.lanes.rates.make(name, None)
        rows.read_rate(rate, text)
        if rate.capacity is not None:
            engine.bounded = engine.lanes_bounded = True
    if engine.driver.lane:
        engine.lanes.rates.last_number = facts["number"]
    for row in execute("SELECT * FROM done WHERE key BETWEEN ? AND ?", ids):
        done = rows.read_done(row)
        engine.done.add(done, 0)
        engine.dated = engine.dated or done.ttl is not None or done.ttr is not None
    engine.done_changed.clear()  # The rows say so.
    pause = facts["pause"]
    if pause is not None and pause > now:
        engine.pause.begin(now, None if pause == NEVER else pause - now)
    else:
        engine.pause.end()


def _count(
    engine: JournaledEngine, database: Database, facts: dict[str, Any], epoch: int, ids: tuple[int, int]
) -> None:
    """Count what the facts of the tube say, and what has happened in its last epoch."""
    rows.read_uses(engine, facts["uses"])
    most: int | None = database.execute("SELECT max(key) FROM tasks WHERE key BETWEEN ? AND ?", ids).fetchone()[0]
    # Numbers that were given once are not given again, also if their call was undone.
    engine.next_id = max(engine.next_id, facts["next_id"], 0 if most is None else most - ids[0] + 1)
    next_take = facts["next_take"]
    counted = "SELECT moved & 7, count(*) FROM tasks WHERE key BETWEEN ? AND ? AND moved>>3=? GROUP BY 1"
    for moves, count in database.execute(counted, (*ids, epoch)):
        for move, step in ((PUT, engine._put), (TAKE, engine._take), (ACK, engine._ack)):
            step.uses += count if moves & move else 0
        # Leases of the time before are of no take from now on.
        next_take += count if moves & TAKE else 0
    engine.born, engine.next_take = facts["born"], max(engine.next_take, next_take)
