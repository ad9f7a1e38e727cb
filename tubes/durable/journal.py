"""Writes what has changed in one tube."""

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
    GONE,
    ID_BITS,
    done_row,
    driver_text,
    facts_text,
    full_row,
    ids_of,
    name_row,
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

#: After the moves of so many tasks the facts of the tube are written, and the rows of tasks that have gone removed.
_TASKS: Final = 500
#: How many low bits of `moved` say which moves; the others are the epoch.
MOVES_BITS: Final = 3


class Journal:
    """Writes what the engine of a tube has noted: in one transaction, all or nothing.

    Most calls put, take or ack one task, and write nothing but its row. That is enough, since the row says by `moved`
    which of these three have happened to the task in this epoch, so that they are counted when the store is opened
    again; what it leaves out is the same as before. The row of a task that has gone stays until then: it keeps its id
    from being given again. All else writes the facts of the tube, too, and begins a new epoch.
    """

    def __init__(
        self, database: Database, engine: JournaledEngine, number: int, namespace: str, epoch: int = 0
    ) -> None:
        self._database: Final = database
        self._engine: Final = engine
        self._number = number
        self._namespace: Final = namespace
        self._base = number << ID_BITS
        self._epoch = epoch
        # The first id that is not written.
        self._next_id = engine.next_id
        #: Whether nothing is to be written any more.
        self.dropped = False
        #: During `undo`: who held which task at the last commit, and the tasks in memory.
        self.before: tuple[dict[int, tuple[Hold, int]], dict[int, Entry]] | None = None
        # Whether there may be rows of tasks and keys that had gone before the store was opened.
        self._is_new = True

    def drop(self, now: int) -> bool:
        """Remove the tube. Its rows are left to `Database.sweep`: so this needs little room."""
        engine, database = self._engine, self._database
        # Whatever interrupts this: the tube that is not dropped is written as a new one.
        engine.absolute = engine.truncated = True
        try:
            with database.transaction():
                database.remove_tube(self._namespace, engine.name)
        except sqlite3.Error:
            engine.absolute = engine.truncated = False
            raise
        self.dropped = True
        database.find_given_up()
        return True

    def undo(self, now: int) -> None:
        """Bring the tube back to what is written: the last change could not be. Cost: O(n).

        If it is interrupted, it can be run again; the caller clears `before` at the end.
        """
        engine, database = self._engine, self._database
        self.before = self.before or (engine.written_holds(), engine.tasks | engine.touched)
        held, known = self.before
        (tube,) = read_tubes(database, f"WHERE number={self._number}")
        hold = engine.open_hold()
        read_engine(engine, database, tube, now, hold, known)
        engine.hold_again(held)
        rebuild_indexes(engine, now)
        engine.late.clear()
        engine.forget_notes()
        moved = f"SELECT key, moved & 7 FROM tasks WHERE key BETWEEN ? AND ? AND moved>>{MOVES_BITS}=?"
        for key, moves in database.execute(moved, (*ids_of(self._number), self._epoch)):
            engine.moves[key - self._base] = moves
        self._next_id = engine.next_id
        # What was late is done again.
        engine.expire(now)
        engine.close_hold(now, hold)

    def free_room(self) -> None:
        """Let the next commit of a change remove the rows of all tasks that have gone."""
        if self._engine.touched:
            self._engine.absolute = True

    def commit(self, now: int) -> bool:
        """Write what has changed since the last commit; False if nothing has. Cost: one row per task."""
        engine = self._engine
        touched, moves = engine.touched, engine.moves
        if engine.next_id != self._next_id:
            self._note_puts()
        if engine.absolute or engine.throttled or engine.late.tasks or len(moves) > _TASKS:
            if self.dropped or not self.is_owed:
                return False
            self._settle(now)
            return True
        if not touched and not engine.done_changed:
            return False
        epoch = self._epoch << MOVES_BITS
        if len(touched) == 1 and not engine.done_changed:
            ((id, entry),) = touched.items()
            row = self._row(self._base, entry, epoch | moves.get(id, 0))
            self._database.execute(PUT_SHORT if len(row) == 7 else PUT_FULL, row)
        else:
            with self._database.transaction():
                base = self._base
                self._put([self._row(base, entry, epoch | moves.get(id, 0)) for id, entry in touched.items()])
                self._write_done(self._base, now)
            engine.done_changed.clear()
        self._next_id = engine.next_id
        touched.clear()
        engine.held_before.clear()
        return True

    def commit_with(self, other: Journal, now: int) -> bool:
        """Write what has changed in this tube and in another one: both in one transaction."""
        both = self, other
        with self._database.transaction():
            for each in both:
                each._note_puts()
            numbers = [each._write_all(now) for each in both]
        for each, number in zip(both, numbers, strict=True):
            each._note_written(number)
        return True

    @property
    def is_owed(self) -> bool:
        """Whether a call has changed something that is not written yet."""
        engine = self._engine
        changed = engine.touched or engine.absolute or engine.done_changed
        return bool(changed) or engine.next_id != self._next_id

    def commit_late(self, ids: Iterable[int], now: int) -> bool:
        """Write what time has done to these tasks. Raises `StoreFull` rather than to take the room of calls."""
        engine, late = self._engine, self._engine.late
        if self.dropped:
            return False
        engine.note([late.tasks[id] for id in ids if id in late.tasks])
        engine.done_changed.update(late.done.intersection(ids))
        try:
            is_kept = any(id in engine.tasks or engine.done.find(now, id) for id in ids)
            if is_kept and engine.reserve is not None and engine.reserve.missing:
                engine.reserve.spare_rest()
            self._settle(now)
        except (sqlite3.Error, StoreFull):
            engine.touched.clear()
            engine.done_changed.clear()
            engine.absolute = False
            raise
        return True

    def _note_puts(self) -> None:
        """Note the tasks that are new, however they came."""
        engine = self._engine
        new = range(self._next_id, engine.next_id)
        tasks, late = engine.tasks, engine.late.tasks
        engine.touched.update((id, late[id]) for id in new if id in late)
        engine.touched.update((id, tasks[id]) for id in new if id in tasks)
        if len(new) == 1 and new[0] in engine.touched:
            engine.moves[new[0]] = engine.moves.get(new[0], 0) | PUT
        else:
            engine.absolute = True

    def _row(self, base: int, entry: Entry, moved: int) -> Row:
        engine = self._engine
        id = entry.id
        now = engine.tasks.get(id)
        if now is None:
            return base | id, None, 0, GONE, entry.attempts, moved, None
        crc = crc32(now.data, id)  # As `rows.checksum`, but faster.
        if now.more is None and not engine.dated and not engine.rich:
            return base | id, now.data, now.created, CODES[now.state], now.attempts, moved, crc  # type: ignore[index]
        return *full_row(base, now, moved, timed=engine.timed), crc

    def _put(self, rows: list[Row]) -> None:
        for statement, length in ((PUT_SHORT, 7), (PUT_FULL, 14)):
            some = [row for row in rows if len(row) == length]
            if some:
                self._database.executemany(statement, some)

    def _settle(self, now: int) -> None:
        """Write all that may have changed, and the facts of the tube, and begin a new epoch."""
        with self._database.transaction():
            number = self._write_all(now)
        self._note_written(number)

    def _write_all(self, now: int) -> int:
        """Within a transaction; returns the number of the tube from then on."""
        engine, database, number = self._engine, self._database, self._number
        engine.join_late()
        if self._is_new:
            gone = f"DELETE FROM tasks WHERE key BETWEEN ? AND ? AND state={GONE}"
            database.execute(gone, ids_of(number))
            database.execute("DELETE FROM keys WHERE tube=? AND until<=?", (number, now))
        if engine.truncated:
            # The tube goes on with another number, so this needs little room, whatever there was.
            engine.note_all()
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
        if len(engine.touched) > _TASKS and engine.reserve is not None:
            engine.reserve.check_batch()
        return number

    def _note_written(self, number: int) -> None:
        """The transaction of `_write_all` has ended."""
        engine = self._engine
        if engine.truncated:
            engine.late.clear()
            self._database.find_given_up()
        self._number, self._base = number, number << ID_BITS
        self._is_new = False
        self._epoch += 1
        self._next_id = engine.next_id
        engine.forget_notes()

    def _write_tasks(self, base: int) -> None:
        engine, tasks = self._engine, self._engine.tasks
        found = [tasks[id] for id in sorted(engine.touched) if id in tasks]
        if not engine.dated and not engine.rich:
            ready = State.READY
            new: list[Row] = []
            others: list[Entry] = []
            for entry in found:
                if entry.state is ready and not entry.attempts and entry.more is None:
                    new.append((base | entry.id, entry.data, entry.created, crc32(entry.data, entry.id)))
                else:
                    others.append(entry)
            self._database.executemany(PUT_NEW, new)
            found = others
        self._put([self._row(base, entry, 0) for entry in found])
        moved = engine.touched.keys() | (engine.moves.keys() - engine.late.tasks.keys())
        gone = [(base | id,) for id in moved if id not in tasks]
        if gone and not engine.truncated:
            self._database.executemany("DELETE FROM tasks WHERE key=?", gone)

    def _write_done(self, base: int, now: int) -> None:
        """Write the done tasks that were added or forgotten."""
        find = self._engine.done.find
        gone: list[Row] = []
        kept: list[Row] = []
        for id in self._engine.done_changed:
            done = find(now, id)
            if done is None:
                gone.append((base | id,))
            else:
                kept.append(done_row(base, done))
        self._database.executemany("DELETE FROM done WHERE key=?", gone)
        self._database.executemany(PUT_DONE, kept)

    def _write_keys(self, number: int, now: int) -> None:
        engine = self._engine
        if not engine.keys:
            return
        gone: list[Row] = []
        remembered: list[Row] = []
        for digest in engine.keys:
            found = engine._keys.known(digest)
            if found is None or found[1] <= now:
                gone.append((number, digest))
            else:
                remembered.append((number, digest, *found))
        self._database.executemany("DELETE FROM keys WHERE tube=? AND key=?", gone)
        self._database.executemany("REPLACE INTO keys VALUES (?,?,?,?)", remembered)

    def _write_lanes(self, number: int) -> None:
        engine = self._engine
        names = set(engine.rates)
        if engine.throttled:
            names |= {NO_LANE if entry.utube is None else entry.utube for entry in engine.touched.values()}
        for name in names:
            raw = name_row(name)
            rate: Any = engine.lanes.known_rate(name)
            if rate is None:
                self._database.execute("DELETE FROM lanes WHERE tube=? AND name=?", (number, raw))
            else:
                self._database.execute("REPLACE INTO lanes VALUES (?,?,?)", (number, raw, rate_text(rate)))
