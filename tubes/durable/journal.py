"""Writes the changes of one tube to the database.

**How the journal works.** A tube has one row in the table `tubes`: driver, options, an epoch, and its facts (counters,
next id, pause) as JSON. Each task has a row in `tasks`; keys, lanes and kept done tasks have tables of their own. The
keys of all these rows begin with the number of the tube. The engine notes its changes (`JournaledEngine`). At the end
of each critical section `Journal.commit` writes them in one transaction, and clears the notes.

A short commit writes only rows of tasks. Most calls put, take or ack one task, and their commit is one statement. The
column `moved` holds the epoch of the tube and three bits: the task was put, taken or acked in this epoch. When the
store is opened, `read_engine` counts these bits, and adds them to the counters in the facts. The row of a removed task
stays until the end of the epoch, so that its moves are counted and its id is not reused.

A full commit also writes facts, keys and lanes, deletes the rows of removed tasks, and begins the next epoch. It is
needed if a change is not in the rows of tasks (`facts_changed`), if the lanes of the tube have rate limits, if deferred
changes are pending, and after 500 moves.

Changes by time (a delay, ttr or ttl ends) and by the end of a session are deferred: a restart repeats them, so they
need not be written with the call that notices them. They are written after it, 500 at a time, or later if the disk is
full.

Failures. (1) If the disk is full or a row is too large, the transaction is rolled back, and the tube calls `undo`,
which reads it from the database again. (2) If an interrupt ends a commit, the notes remain, and the next commit writes
them. (3) If the process is killed, SQLite rolls the transaction back. Taken tasks become ready when the store is opened
again.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from tubes.drivers.invariants import rebuild_indexes
from tubes.drivers.moves import State
from tubes.drivers.options import NO_LANE
from tubes.durable.database import PUT_DONE, PUT_FULL, PUT_NEW, PUT_SHORT
from tubes.durable.engine import PUT
from tubes.durable.reading import read_engine, read_tubes
from tubes.durable.rows import (
    CODES,
    ID_BITS,
    REMOVED,
    done_row,
    driver_text,
    encode_name,
    facts_text,
    full_row,
    ids_of,
    options_text,
    rate_text,
)
from tubes.errors import StoreFull

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tubes.drivers.entry import Entry, Hold
    from tubes.durable.database import Database
    from tubes.durable.engine import JournaledEngine
    from tubes.durable.rows import Row

#: An epoch ends after the moves of this many tasks.
_TASKS: Final = 500
#: The number of low bits of `moved` that hold moves; the other bits are the epoch.
MOVES_BITS: Final = 3


class Journal:
    """Writes the changes that the engine of a tube has noted, in one transaction."""

    def __init__(
        self, database: Database, engine: JournaledEngine, number: int, namespace: str, epoch: int = 0
    ) -> None:
        self._database: Final = database
        self._engine: Final = engine
        self._number = number
        self._namespace: Final = namespace
        self._base = number << ID_BITS
        self._epoch = epoch
        # The engine's `next_id` at the last commit.
        self._next_id = engine.next_id
        #: True after the tube was dropped: then the journal writes nothing.
        self.dropped = False
        #: During `undo`: the holds at the last commit, and the tasks in memory.
        self.undo_state: tuple[dict[int, tuple[Hold, int]], dict[int, Entry]] | None = None
        # True until the first full commit, which deletes the rows of tasks and keys that were removed earlier.
        self._is_new = True

    def drop(self, now: int) -> bool:
        """Remove the tube, but leave its rows to `Database.sweep`: a drop needs little disk space."""
        engine, database = self._engine, self._database
        # After an interrupt here, the next commit writes the tube as a new one.
        engine.facts_changed = engine.truncated = True
        try:
            with database.transaction():
                database.remove_tube(self._namespace, engine.name)
        except sqlite3.Error:
            engine.facts_changed = engine.truncated = False
            raise
        self.dropped = True
        database.read_dropped()
        return True

    def undo(self, now: int) -> None:
        """Undo unwritten changes after a failed commit: read the tube from the database again. Cost: O(n).

        It may be repeated after an interrupt; the caller clears `undo_state` at the end.
        """
        engine, database = self._engine, self._database
        self.undo_state = self.undo_state or (engine.get_written_holds(), engine.tasks | engine.dirty)
        held, known = self.undo_state
        (tube,) = read_tubes(database, f"WHERE number={self._number}")
        hold = engine.open_hold()
        read_engine(engine, database, tube, now, hold, known)
        engine.restore_holds(held)
        rebuild_indexes(engine, now)
        engine.deferred.clear()
        engine.clear_notes()
        moved = f"SELECT key, moved & 7 FROM tasks WHERE key BETWEEN ? AND ? AND moved>>{MOVES_BITS}=?"
        for key, moves in database.execute(moved, (*ids_of(self._number), self._epoch)):
            engine.moves[key - self._base] = moves
        self._next_id = engine.next_id
        # Repeat the deferred changes.
        while engine.expire(now):
            pass
        engine.close_hold(now, hold)

    def request_cleanup(self) -> None:
        """If tasks have changed, make the next commit a full one, which deletes the rows of removed tasks."""
        if self._engine.dirty:
            self._engine.facts_changed = True

    def commit(self, now: int) -> bool:
        """Write all changes since the last commit; return False without changes. Cost: one row per task."""
        engine = self._engine
        dirty, moves = engine.dirty, engine.moves
        if engine.next_id != self._next_id:
            self._note_puts()
        if engine.facts_changed or engine.has_rate_limits or engine.deferred.tasks or len(moves) > _TASKS:
            if self.dropped or not self.has_changes:
                return False
            self._commit_fully(now)
            return True
        if not dirty and not engine.dirty_done:
            return False
        epoch = self._epoch << MOVES_BITS
        if len(dirty) == 1 and not engine.dirty_done:
            ((id, entry),) = dirty.items()
            row = self._row(self._base, entry, epoch | moves.get(id, 0))
            self._database.execute(PUT_SHORT if len(row) == 7 else PUT_FULL, row)
        else:
            with self._database.transaction():
                base = self._base
                self._put([self._row(base, entry, epoch | moves.get(id, 0)) for id, entry in dirty.items()])
                self._write_done(self._base, now)
            engine.dirty_done.clear()
        self._next_id = engine.next_id
        dirty.clear()
        engine.previous_holds.clear()
        return True

    def commit_both(self, other: Journal, now: int) -> bool:
        """Write the changes of this tube and another one in one transaction."""
        both = self, other
        with self._database.transaction():
            for journal in both:
                journal._note_puts()
            numbers = [journal._write_all(now) for journal in both]
        for journal, number in zip(both, numbers, strict=True):
            journal._start_epoch(number)
        return True

    @property
    def has_changes(self) -> bool:
        """True if a call has made changes that are not written yet."""
        engine = self._engine
        changed = engine.dirty or engine.facts_changed or engine.dirty_done
        return bool(changed) or engine.next_id != self._next_id

    def commit_deferred(self, ids: Iterable[int], now: int) -> bool:
        """Write the deferred changes of these tasks. Raises `StoreFull` if calls need the remaining space."""
        engine, deferred = self._engine, self._engine.deferred
        if self.dropped:
            return False
        engine.note([deferred.tasks[id] for id in ids if id in deferred.tasks])
        engine.dirty_done.update(deferred.done.intersection(ids))
        try:
            is_kept = any(id in engine.tasks or engine.done.find(now, id) for id in ids)
            if is_kept and engine.reserve is not None and engine.reserve.missing:
                engine.reserve.check_optional()
            self._commit_fully(now)
        except (sqlite3.Error, StoreFull):
            engine.dirty.clear()
            engine.dirty_done.clear()
            engine.facts_changed = False
            raise
        return True

    def _note_puts(self) -> None:
        engine = self._engine
        new = range(self._next_id, engine.next_id)
        tasks, deferred = engine.tasks, engine.deferred.tasks
        engine.dirty.update((id, deferred[id]) for id in new if id in deferred)
        engine.dirty.update((id, tasks[id]) for id in new if id in tasks)
        if len(new) == 1 and new[0] in engine.dirty:
            engine.moves[new[0]] = engine.moves.get(new[0], 0) | PUT
        else:
            engine.facts_changed = True

    def _row(self, base: int, entry: Entry, moved: int) -> Row:
        engine = self._engine
        id = entry.id
        current = engine.tasks.get(id)
        if current is None:
            return base | id, None, 0, REMOVED, entry.attempts, moved, None
        crc = crc32(current.data, id)  # Like `rows.checksum`, but faster.
        if current.extras is None and not engine.has_deadlines and not engine.has_extras:
            code = CODES[current.state]  # type: ignore[index]
            return base | id, current.data, current.created, code, current.attempts, moved, crc
        return *full_row(base, current, moved, has_times=engine.has_times), crc

    def _put(self, rows: list[Row]) -> None:
        for statement, length in ((PUT_SHORT, 7), (PUT_FULL, 14)):
            some = [row for row in rows if len(row) == length]
            if some:
                self._database.executemany(statement, some)

    def _commit_fully(self, now: int) -> None:
        """Write all changes with the facts of the tube, and begin a new epoch."""
        with self._database.transaction():
            number = self._write_all(now)
        self._start_epoch(number)

    def _write_all(self, now: int) -> int:
        """Write all changes within a transaction; return the number of the tube after it."""
        engine, database, number = self._engine, self._database, self._number
        engine.merge_deferred()
        if self._is_new:
            removed = f"DELETE FROM tasks WHERE key BETWEEN ? AND ? AND state={REMOVED}"
            database.execute(removed, ids_of(number))
            database.execute("DELETE FROM keys WHERE tube=? AND until<=?", (number, now))
        if engine.truncated:
            # Renumber the tube instead of deleting its rows: this needs almost no disk space.
            engine.note_everything()
            number = database.next_number()
            database.remove_tube(self._namespace, engine.name)
        base = number << ID_BITS
        self._write_tasks(base)
        self._write_done(base, now)
        self._write_keys(number, now)
        self._write_lanes(number)
        about = number, self._namespace, engine.name, driver_text(engine.driver), options_text(engine.options)
        row = *about, self._epoch + 1, facts_text(engine, now)
        database.execute("REPLACE INTO tubes VALUES (?,?,?,?,?,?,?)", row)
        if len(engine.dirty) > _TASKS and engine.reserve is not None:
            engine.reserve.check_batch()
        return number

    def _start_epoch(self, number: int) -> None:
        """Update the state of the journal after the transaction of `_write_all`."""
        engine = self._engine
        if engine.truncated:
            engine.deferred.clear()
            self._database.read_dropped()
        self._number, self._base = number, number << ID_BITS
        self._is_new = False
        self._epoch += 1
        self._next_id = engine.next_id
        engine.clear_notes()

    def _write_tasks(self, base: int) -> None:
        engine, tasks = self._engine, self._engine.tasks
        found = [tasks[id] for id in sorted(engine.dirty) if id in tasks]
        if not engine.has_deadlines and not engine.has_extras:
            ready = State.READY
            new: list[Row] = []
            others: list[Entry] = []
            for entry in found:
                if entry.state is ready and not entry.attempts and entry.extras is None:
                    new.append((base | entry.id, entry.data, entry.created, crc32(entry.data, entry.id)))
                else:
                    others.append(entry)
            self._database.executemany(PUT_NEW, new)
            found = others
        self._put([self._row(base, entry, 0) for entry in found])
        moved = engine.dirty.keys() | (engine.moves.keys() - engine.deferred.tasks.keys())
        removed = [(base | id,) for id in moved if id not in tasks]
        if removed and not engine.truncated:
            self._database.executemany("DELETE FROM tasks WHERE key=?", removed)

    def _write_done(self, base: int, now: int) -> None:
        find = self._engine.done.find
        removed: list[Row] = []
        kept: list[Row] = []
        for id in self._engine.dirty_done:
            done = find(now, id)
            if done is None:
                removed.append((base | id,))
            else:
                kept.append(done_row(base, done))
        self._database.executemany("DELETE FROM done WHERE key=?", removed)
        self._database.executemany(PUT_DONE, kept)

    def _write_keys(self, number: int, now: int) -> None:
        engine = self._engine
        if not engine.keys:
            return
        removed: list[Row] = []
        remembered: list[Row] = []
        for digest in engine.keys:
            found = engine._keys.find_known(digest)
            if found is None or found[1] <= now:
                removed.append((number, digest))
            else:
                remembered.append((number, digest, *found))
        self._database.executemany("DELETE FROM keys WHERE tube=? AND key=?", removed)
        self._database.executemany("REPLACE INTO keys VALUES (?,?,?,?)", remembered)

    def _write_lanes(self, number: int) -> None:
        engine = self._engine
        names = set(engine.rates)
        if engine.has_rate_limits and engine.driver.lane:
            names |= {NO_LANE if entry.utube is None else entry.utube for entry in engine.dirty.values()}
        for name in names:
            raw = encode_name(name)
            rate: Any = engine.lanes.known_rate(name)
            if rate is None:
                self._database.execute("DELETE FROM lanes WHERE tube=? AND name=?", (number, raw))
            else:
                self._database.execute("REPLACE INTO lanes VALUES (?,?,?)", (number, raw, rate_text(rate)))
