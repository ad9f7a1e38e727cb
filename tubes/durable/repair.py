"""Find damage in the files of a store, and save all readable rows."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from tubes.drivers.driver import Driver
from tubes.drivers.entry import NO_EXTRAS
from tubes.drivers.moves import State
from tubes.drivers.registry import Registry
from tubes.drivers.timers import NEVER
from tubes.durable import rows
from tubes.durable.database import (
    FROM_DROPPED,
    NAME,
    NO_STORE,
    PAGE,
    SCHEMA,
    check,
    copy,
    is_damage,
    make,
    put_in_place,
)
from tubes.durable.folder import Folder
from tubes.durable.pages import Found, Pages, read_image
from tubes.errors import DriverNotFound, StoreFailed
from tubes.values.problem import Problem

if TYPE_CHECKING:
    from pathlib import Path

_EXAMPLES: Final = 5
#: Selects the numbers of tubes that may have rows.
_KNOWN: Final = f"SELECT number FROM tubes UNION SELECT value {FROM_DROPPED}"
#: Selects the numbers of tubes that have tasks, but whose own rows are missing.
_MISSING_TUBES: Final = f"SELECT DISTINCT key>>{rows.ID_BITS} FROM tasks WHERE key>>{rows.ID_BITS} NOT IN ({_KNOWN}) "
#: Exceptions of sqlite3; UnicodeDecodeError if the message quotes a damaged file.
_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
#: The reason of tasks that `repair` buries.
_REASON: Final = "repair: the task may be damaged"
#: Added to counters that are lost, for example the next id, so that no number is used twice.
_GAP: Final = 1_000_000


#: The number of a tube, and an example of a problem.
_Place = tuple[int, str]


def examine(folder: Path, url: str) -> list[Problem]:
    """Return the problems of a store. Its owner may keep using it. Cost: O(n), and memory for the file."""
    file, found = _load(_find(folder, url), url)
    with closing(file):
        return [*_check_reserve(folder, fix=False), *found, *_check_rows(file, fix=False)]


def repair(folder: Path, url: str) -> list[Problem]:
    """Repair a damaged store and return its problems. No process may have it open.

    The old files are copied to the folder `damaged-1`, or the next free number. Cost: O(n), and memory for the file.
    """
    place = _find(folder, url)
    owned = Folder(folder, url)
    try:
        file, found = _load(place, url)
        with closing(file):
            found += _check_rows(file, fix=True)
            if any(problem.kind != "lost" for problem in found):
                found.append(Problem("kept", 1, (_replace_files(folder, file).name,), repaired=True))
        found = [*_check_reserve(folder, fix=True), *found]
        return [replace(problem, repaired=True) for problem in found]
    except (*_ERRORS, OSError) as error:
        raise StoreFailed(url=url, why=f"it cannot be repaired: {error}") from error
    finally:
        owned.close()


def _find(folder: Path, url: str) -> Path:
    """Return the path of the file. Raises `StoreFailed` if it is missing, or this release cannot repair it."""
    try:
        if not check(folder / NAME, url):
            raise StoreFailed(url=url, why=NO_STORE)
    except OSError as error:
        raise StoreFailed(url=url, why=str(error)) from error
    except sqlite3.Error as error:
        if not is_damage(error):
            raise StoreFailed(url=url, why=str(error)) from error
    return folder / NAME


def _load(place: Path, url: str) -> tuple[sqlite3.Connection, list[Problem]]:
    """Copy all readable rows to a new database in memory; return it with the problems of the file."""
    file = _create_database()
    try:
        check(place, url)  # The log may hide a damaged header.
        copy(place, file, damaged=True)
        messages = [text for (text,) in file.execute(f"PRAGMA integrity_check({_EXAMPLES})")]
        if messages == ["ok"]:
            with closing(_create_database()) as intact:
                intact.executescript(SCHEMA)
                changed = _definitions(intact) - _definitions(file)
            if not changed:
                return file, _missing_tasks(file, 0, 0)
            messages = [f"the definition of table {name} is damaged" for name, _ in sorted(changed)]
        wrong = [line for text in messages for line in text.splitlines() if not line.startswith("***")]
        image = file.serialize()
        image += read_image(place)[len(image) :]  # The header may have too small a number of pages.
    except _ERRORS as error:
        wrong, image = [str(error) or "its length is damaged"], read_image(place)
    file.close()
    pages, file = Pages(image), _create_database()
    file.executescript(SCHEMA)
    _insert(file, pages.rows())
    saved: int = file.execute(f"SELECT count(*) FROM tasks WHERE state IS NOT {rows.REMOVED}").fetchone()[0]
    if not saved and not file.execute("SELECT count(*) FROM tubes").fetchone()[0]:
        raise StoreFailed(url=url, why=f"none of its tubes and tasks can be read: restore a backup of {NAME!r}")
    found = [
        Problem("file", len(wrong), tuple(wrong[:_EXAMPLES]), repaired=False),
        Problem("saved", saved, (), repaired=False),
        *_missing_tasks(file, pages.lost_pages, pages.lost_cells),
    ]
    return file, found


def _definitions(file: sqlite3.Connection) -> set[tuple[str, str]]:
    """Return the names of the tables with the texts that created them."""
    return set(file.execute("SELECT name, sql FROM sqlite_schema WHERE type='table'"))


def _create_database() -> sqlite3.Connection:
    file = sqlite3.connect(":memory:", isolation_level=None)
    file.execute(f"PRAGMA page_size={PAGE}")
    file.text_factory = _decode
    return file


def _insert(file: sqlite3.Connection, found: Iterable[Found]) -> None:
    """Insert rows. If two rows have one key, keep the certain one. Clear the checksum of an uncertain task."""
    for table, row, certain in sorted(found, key=lambda row: not row.certain):
        put = f"INSERT OR IGNORE INTO {table} VALUES ({','.join('?' * len(row))})"
        with suppress(*_ERRORS, OverflowError):  # The row is not ours: its columns have other types.
            file.execute(put, row if certain or table != "tasks" else (*row[:-1], None))


def _missing_tasks(file: sqlite3.Connection, pages: int, cells: int) -> list[Problem]:
    """Return the number of missing rows of tasks, from the numbers of rows in the facts of tubes.

    A tube writes its facts at the end of each epoch. Every id since then has a row, even if its task was removed.
    """
    found: list[Problem] = []
    names = _tube_names(file)
    for number, stored in file.execute("SELECT number, facts FROM tubes").fetchall():
        with suppress(*rows.UNREADABLE):
            facts = rows.read_facts(stored)
            first, last = rows.ids_of(number)
            select = "SELECT count(*), coalesce(max(key), ?) FROM tasks WHERE key BETWEEN ? AND ?"
            row_count, last_key = file.execute(select, (first - 1, first, last)).fetchone()
            count = facts["rows"] + max(last_key - first + 1 - facts["next_id"], 0) - row_count
            if count > 0:
                found.append(Problem("lost", count, (), repaired=False, tube=names[number]))
    unreadable = {"unreadable pages": pages, "unreadable rows": cells}
    return [*found, *(Problem(kind, count, (), repaired=False) for kind, count in unreadable.items() if count)]


def _tube_names(file: sqlite3.Connection) -> dict[int, str]:
    """Return the names of the tubes by number; for an unreadable name, the name that `repair` assigns."""
    tubes = {number: f"recovered-{number}" for (number,) in file.execute(_MISSING_TUBES)}
    for number, namespace, name in file.execute("SELECT number, namespace, name FROM tubes"):
        known = name if isinstance(name, str) else f"recovered-{number}"
        tubes[number] = f"{namespace}:{known}" if namespace else known
    return tubes


def _check_reserve(folder: Path, *, fix: bool) -> list[Problem]:
    """Find, and rename, a path in place of the reserve file that is not a regular file."""
    place = folder / "reserve"
    if not place.exists() or place.is_file():
        return []
    if fix:
        place.rename(_free_path(folder, "reserve-"))
    return [Problem("reserve", 1, ("reserve",), repaired=fix)]


def _free_path(folder: Path, name: str) -> Path:
    """Return the first unused path that begins with `name` and ends with a number."""
    number = 1
    while (folder / f"{name}{number}").exists():
        number += 1
    return folder / f"{name}{number}"


def _replace_files(folder: Path, file: sqlite3.Connection) -> Path:
    """Replace the damaged files by a database in memory; return the folder with their copies."""
    place, kept = folder / NAME, _free_path(folder, "damaged-")
    kept.mkdir()
    for name in (NAME, f"{NAME}-wal"):
        with suppress(FileNotFoundError):
            shutil.copy2(folder / name, kept / name)
    new_file = make(folder)
    with closing(sqlite3.connect(new_file)) as new:
        file.backup(new)
    # The log belongs to the old file: run a checkpoint, so that it is not used with the new one.
    with closing(sqlite3.connect(place, isolation_level=None)) as old, suppress(*_ERRORS):
        old.execute("PRAGMA writable_schema=ON")
        old.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for name in (f"{NAME}-wal", f"{NAME}-shm"):
        (folder / name).unlink(missing_ok=True)
    put_in_place(new_file, place)
    return kept


def _check_rows(file: sqlite3.Connection, *, fix: bool) -> list[Problem]:
    """Find, and repair, invalid rows of a readable file."""
    if fix:  # A time in the future would look like a clock that was set back.
        file.execute("DELETE FROM store WHERE name='now'")
    ids = [*_find_wrong_tasks(file, fix=fix), *_find_wrong_extras(file, fix=fix)]
    facts = [*_find_wrong_tubes(file, fix=fix), *_find_wrong_others(file, fix=fix)]
    if fix:
        _bury(file, ids)
        _write_counts(file)
    names, found = _tube_names(file), dict[tuple[str, str], list[str]]()
    for kind, places in (("uncertain", map(_place_of, dict.fromkeys(ids))), ("facts", facts)):
        for number, example in places:
            found.setdefault((kind, names.get(number, "")), []).append(example)
    return [
        Problem(kind, len(wrong), tuple(wrong[:_EXAMPLES]), repaired=fix, tube=tube)
        for (kind, tube), wrong in found.items()
    ]


def _write_counts(file: sqlite3.Connection) -> None:
    """Write the current number of rows to the facts of each tube, so that the next check finds no missing rows."""
    for number, text in file.execute("SELECT number, facts FROM tubes").fetchall():
        facts = rows.read_facts(text)
        first, last = rows.ids_of(number)
        select = "SELECT count(*) FROM tasks WHERE key BETWEEN ? AND ? AND key<?"
        (facts["rows"],) = file.execute(select, (first, last, first + facts["next_id"])).fetchone()
        file.execute("UPDATE tubes SET facts=? WHERE number=?", (json.dumps(facts), number))


def _find_wrong_tasks(file: sqlite3.Connection, *, fix: bool) -> list[int]:
    select = f"SELECT key, data, crc, {rows.DAMAGED} FROM tasks"
    found = [key for key, data, crc, wrong in file.execute(select) if wrong or crc != rows.checksum(key, data)]
    if found and fix:
        for column, (rule, new) in rows.RULES.items():
            if column != "data":
                file.execute(f"UPDATE tasks SET {column}={new} WHERE NOT ({rule})")
        file.execute(f"DELETE FROM tasks WHERE NOT ({rows.RULES['data'][0]})")
    return found


def _bury(file: sqlite3.Connection, ids: Iterable[int]) -> None:
    """Bury uncertain tasks without a ttl, and write their data as bytes with a new checksum."""
    # `created` in the future would look like a clock that was set back.
    bury = (
        "UPDATE tasks SET state=?, until=NULL, ttl=NULL, dead=NULL, created=min(created, ?), more=?, data=?, crc=?"
        " WHERE key=?"
    )
    now = time.time_ns() // 1000
    for key in ids:
        select = "SELECT data, more FROM tasks WHERE key=? AND data IS NOT NULL"
        for data, text in file.execute(select, (key,)).fetchall():
            extras = rows.format_extras((rows.parse_extras(text) if text else NO_EXTRAS)._replace(reason=_REASON))
            raw = data if isinstance(data, bytes) else data.encode()
            file.execute(bury, (rows.CODES[State.BURIED], now, extras, raw, rows.checksum(key, raw), key))
    file.execute("UPDATE tasks SET crc=NULL WHERE data IS NULL")


def _find_wrong_extras(file: sqlite3.Connection, *, fix: bool) -> list[int]:
    found: list[int] = []
    for column, kind, read in (("more", "text", rows.parse_extras), ("lane", "blob", rows.decode_name)):
        select = f"SELECT key, {column} FROM tasks WHERE typeof({column})='{kind}'"
        wrong = [key for key, value in file.execute(select) if not _is_valid(read, value)]
        found += wrong
        if fix:
            file.executemany(f"UPDATE tasks SET {column}=NULL WHERE key=?", [(key,) for key in wrong])
    return found


def _find_wrong_tubes(file: sqlite3.Connection, *, fix: bool) -> list[_Place]:
    """Find, and repair, invalid rows of tubes, and missing rows of tubes that have tasks."""
    found: list[_Place] = []
    registry = Registry()

    def read_driver(text: str) -> None:
        with suppress(DriverNotFound):
            rows.read_driver(text, registry)

    parts: list[tuple[str, Callable[[Any], object], Callable[[int], object]]] = [
        ("namespace", _check_text, lambda number: "recovered"),
        ("name", _check_text, lambda number: f"recovered-{number}"),
        ("driver", read_driver, lambda number: _likely_driver(file, number)),
        ("options", rows.read_options, lambda number: "{}"),
        ("epoch", _check_int, lambda number: _GAP),
        ("facts", rows.read_facts, lambda number: _likely_facts(file, number)),
    ]
    for number, *values in file.execute(
        f"SELECT number, {', '.join(name for name, *_ in parts)} FROM tubes"
    ).fetchall():
        wrong = [part for part, value in zip(parts, values, strict=True) if not _is_valid(part[1], value)]
        if wrong:
            found.append((number, "its row"))
        if fix:
            for column, _, likely in wrong:
                file.execute(f"UPDATE tubes SET {column}=? WHERE number=?", (likely(number), number))
    for (number,) in file.execute(_MISSING_TUBES).fetchall():
        found.append((number, "its row"))
        if fix:
            row = (number, "", *(likely(number) for _, _, likely in parts[1:]))
            file.execute("INSERT INTO tubes VALUES (?,?,?,?,?,?,?)", row)
    return found


def _place_of(key: int) -> _Place:
    return key >> rows.ID_BITS, str(key & ((1 << rows.ID_BITS) - 1))


def _find_wrong_others(file: sqlite3.Connection, *, fix: bool) -> list[_Place]:
    """Find, and remove, invalid rows of keys, lanes and done tasks."""
    known = f"tube IN ({_KNOWN})"
    sound = "typeof(key)='integer' AND typeof(id)='integer' AND typeof(until)='integer'"
    fits = f"{sound} AND id>=0 AND until>=0 AND {known}"
    keys = file.execute(f"SELECT tube, key FROM keys WHERE ({fits}) IS NOT TRUE").fetchall()
    lanes = [
        (tube, name)
        for tube, name, text, fits in file.execute(
            f"SELECT tube, name, facts, typeof(name)='blob' AND {known} FROM lanes"
        )
        if not (fits and _is_valid(rows.decode_name, name) and _is_valid(rows.check_rate, text))
    ]
    done = [row[0] for row in file.execute("SELECT * FROM done") if not _is_valid(rows.read_done, row)]
    if fix:
        file.executemany("DELETE FROM keys WHERE tube IS ? AND key IS ?", keys)
        file.executemany("DELETE FROM lanes WHERE tube IS ? AND name IS ?", lanes)
        file.executemany("DELETE FROM done WHERE key=?", [(key,) for key in done])
    found = [*((tube, f"key {key!r}") for tube, key in keys), *((tube, f"lane {name!r}") for tube, name in lanes)]
    return [*found, *((tube, f"done task {id}") for tube, id in map(_place_of, done))]


def _is_valid(read: Callable[[Any], object], value: object) -> bool:
    try:
        read(value)
    except rows.UNREADABLE:
        return False
    return True


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _check_text(value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"must be a str, got {type(value).__name__}")


def _check_int(value: object) -> None:
    if value.__class__ is not int:
        raise TypeError(f"must be an int, got {type(value).__name__}")


def _likely_driver(file: sqlite3.Connection, number: int) -> str:
    """Return a driver in place of an unreadable one: `utubettl` if tasks have lanes, else `fifottl`."""
    select = f"SELECT count(lane) FROM tasks WHERE key>>{rows.ID_BITS}=?"
    name = "utubettl" if file.execute(select, (number,)).fetchone()[0] else "fifottl"
    driver: Driver = Registry().find(name)
    return rows.driver_text(driver)


def _likely_facts(file: sqlite3.Connection, number: int) -> str:
    """Reconstruct the facts of a tube from its tasks. No id is reused."""
    select = (
        f"SELECT total(state<{rows.REMOVED}), max(key), max(created), count(*) FROM tasks WHERE key>>{rows.ID_BITS}=?"
    )
    # Otherwise tasks of the last epoch would be counted twice.
    file.execute("UPDATE tubes SET epoch=? WHERE number=?", (_GAP, number))
    count, last_key, now, row_count = file.execute(select, (number,)).fetchone()
    last = 0 if last_key is None else last_key & ((1 << rows.ID_BITS) - 1)
    return json.dumps(
        {
            "born": uuid4().int >> 64,
            "next_id": last + _GAP,
            "next_take": _GAP,
            "uses": {"put ": int(count)},
            "pause": None,
            "rows": row_count,
            "number": _GAP,
            "now": now or 0,
            "scheduled": -NEVER,
        }
    )
