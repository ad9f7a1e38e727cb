"""Finds what is damaged in the files of a store, and saves what can be read."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from tubes.drivers.driver import Driver
from tubes.drivers.moves import State
from tubes.drivers.registry import Registry
from tubes.durable import rows
from tubes.durable.database import GIVEN_UP, NAME, check, copy, make, put_in_place
from tubes.durable.folder import Folder
from tubes.errors import DriverNotFound, StoreFailed
from tubes.values.problem import Problem

if TYPE_CHECKING:
    from pathlib import Path

_EXAMPLES: Final = 5
#: The tubes that may have rows.
_KNOWN: Final = f"SELECT number FROM tubes UNION SELECT value {GIVEN_UP}"
#: What sqlite3 raises; the texts of its errors may quote a damaged file.
_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
#: So many ids are looked for at a time.
_RANGE: Final = 1 << 10
#: So many times of a tube, and so many pieces are tried that cannot be read.
_RANGES: Final = 1 << 18
_TRIES: Final = 100_000
#: How many ids are left out where nobody knows the last one.
_GAP: Final = 1_000_000


def examine(folder: Path, url: str) -> list[Problem]:
    """What is damaged in the files of a store, whose process may go on. Cost: O(n), and memory for the file."""
    with closing(sqlite3.connect(":memory:")) as file:
        return _examine(folder, url, file)


def _examine(folder: Path, url: str, file: sqlite3.Connection) -> list[Problem]:
    try:
        if not check(folder / NAME):
            raise StoreFailed(url=url, why=f"there is no file {NAME!r}")
    except (sqlite3.Error, OSError) as error:
        raise StoreFailed(url=url, why=str(error)) from error
    found = _reserve(folder, mends=False)
    file.text_factory = _some_text
    try:
        copy(folder / NAME, file, damaged=True)
        said = "\n".join(text for (text,) in file.execute(f"PRAGMA integrity_check({_EXAMPLES})"))
        if said == "ok":
            return found + _rows(file, mends=False)
        wrong = [line for line in said.splitlines() if not line.startswith("***")]
    except _ERRORS as error:
        wrong = [str(error)]
    return [*found, Problem("file", len(wrong), tuple(wrong[:_EXAMPLES]), mended=False)]


def repair(folder: Path, url: str) -> list[Problem]:
    """Save what can be read, if something is damaged; says what was wrong. Nobody may have the store open.

    The old files stay in the folder `damaged-1`, or the next number. Cost: O(n).
    """
    owned = Folder(folder, url)
    try:
        found = examine(folder, url)
        _reserve(folder, mends=True)
        if any(problem.kind != "reserve" for problem in found):
            made = _save(folder, url)
            found = [problem for problem in found if problem.kind in ("file", "reserve")] + made
        return [Problem(problem.kind, problem.count, problem.examples, mended=True) for problem in found]
    except (*_ERRORS, OSError) as error:
        raise StoreFailed(url=url, why=f"it cannot be repaired: {error}") from error
    finally:
        owned.close()


def _reserve(folder: Path, *, mends: bool) -> list[Problem]:
    """What stands where the reserve should be."""
    place = folder / "reserve"
    if not place.exists() or place.is_file():
        return []
    if mends:
        place.rename(_free(folder, "reserve-"))
    return [Problem("reserve", 1, ("reserve",), mended=mends)]


def _free(folder: Path, name: str) -> Path:
    """A path that begins so, and where nothing stands."""
    number = 1
    while (folder / f"{name}{number}").exists():
        number += 1
    return folder / f"{name}{number}"


def _save(folder: Path, url: str) -> list[Problem]:
    """Put a file with all that can be read in the place of one that is damaged."""
    place, kept = folder / NAME, _free(folder, "damaged-")
    kept.mkdir()
    for name in (NAME, f"{NAME}-wal"):
        with suppress(FileNotFoundError):
            shutil.copy2(folder / name, kept / name)
    half = make(folder)
    # Opened to write: so the log is folded into it, and not left for the file that comes in its place.
    with (
        closing(sqlite3.connect(place, isolation_level=None)) as old,
        closing(sqlite3.connect(half, isolation_level=None)) as new,
    ):
        old.text_factory = new.text_factory = _some_text
        old.execute("PRAGMA writable_schema=ON")
        new.execute("BEGIN")
        with suppress(*_ERRORS):
            old.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if not _copy_rows(old, new):
            kept.rename(_free(folder, "unreadable-"))
            raise StoreFailed(url=url, why=f"none of its tubes and tasks can be read: restore a backup of {NAME!r}")
        found = _rows(new, mends=True)
        new.execute("COMMIT")
    for name in (f"{NAME}-wal", f"{NAME}-shm"):
        (folder / name).unlink(missing_ok=True)
    put_in_place(half, place)
    return found


def _copy_rows(old: sqlite3.Connection, new: sqlite3.Connection) -> int:
    """Copy what can be read, as it is; returns how many tubes and tasks that were."""
    before = new.total_changes
    for table, width in (("store", 2), ("keys", 4), ("lanes", 3), ("done", 5), ("tubes", 7), ("tasks", 13)):
        if table == "tubes":
            before = new.total_changes
        select, put = f"SELECT * FROM {table}", f"INSERT OR IGNORE INTO {table} VALUES ({','.join('?' * width)})"
        key = {"store": "name", "tubes": "number", "tasks": "key", "done": "key"}.get(table, "tube")
        try:
            new.executemany(put, old.execute(f"{select} ORDER BY {key}"))
        except _ERRORS:
            with suppress(*_ERRORS):  # From the other end until it cannot be read.
                new.executemany(put, old.execute(f"{select} ORDER BY {key} DESC"))
            if table == "tasks":
                new.executemany(put, _tasks_between(old, new))
    return new.total_changes - before


def _tasks_between(old: sqlite3.Connection, new: sqlite3.Connection) -> Generator[rows.Row]:
    """The tasks between those that were read from both ends, and some of these again.

    A range that cannot be read is cut in halves, until what is left is single tasks. No range is large: it ends where a
    damaged row has too large a key.
    """
    tries = 0
    found = new.execute(f"SELECT key>>{rows.ID_BITS}, min(key), max(key) FROM tasks GROUP BY 1").fetchall()
    ends = {number: (least, most) for number, least, most in found}
    for number, facts in new.execute("SELECT number, facts FROM tubes").fetchall():
        base = number << rows.ID_BITS
        with suppress(*rows.UNREADABLE):
            ends[number] = ends.get(number, (base, 0))[0], base | rows.read_facts(facts)["next_id"]
    for least, most in ends.values():
        for start in range(least, min(most + 1, least + _RANGE * _RANGES), _RANGE):
            ranges = [(start, start + _RANGE - 1)]
            while ranges and tries < _TRIES:
                first, last = ranges.pop()
                select = f"SELECT {rows.FULL} FROM tasks WHERE key BETWEEN ? AND ?"
                try:
                    for row in old.execute(select, (first, last)):
                        if first <= row[0] < last:
                            first = row[0] + 1
                        yield row
                except _ERRORS:
                    tries += 1
                    if first < last:
                        middle = (first + last) // 2
                        ranges += [(middle + 1, last), (first, middle)]


def _rows(file: sqlite3.Connection, *, mends: bool) -> list[Problem]:
    """The rows of a sound file that make no sense."""
    if mends:  # One that lies ahead would count as a clock that was set back.
        file.execute("DELETE FROM store WHERE name='now'")
    ids = [*_wrong_tasks(file, mends=mends), *_wrong_mores(file, mends=mends)]
    facts = [*_wrong_tubes(file, mends=mends), *_wrong_others(file, mends=mends)]
    found = {"row": [_task(key) for key in ids], "facts": facts}
    return [Problem(kind, len(wrong), tuple(wrong[:_EXAMPLES]), mended=mends) for kind, wrong in found.items() if wrong]


def _wrong_tasks(file: sqlite3.Connection, *, mends: bool) -> list[int]:
    found = [key for (key,) in file.execute(f"SELECT key FROM tasks WHERE {rows.DAMAGED}")]
    if found and mends:
        for column, (rule, new) in rows.RULES.items():
            if column != "data":
                file.execute(f"UPDATE tasks SET {column}={new} WHERE NOT ({rule})")
        file.execute(f"DELETE FROM tasks WHERE NOT ({rows.RULES['data'][0]})")
        # A moment that has not come yet would count as a clock that was set back.
        now = time.time_ns() // 1000
        file.execute("UPDATE tasks SET created=? WHERE created>?", (now, now))
        # Nobody knows when its delay would be over.
        file.execute(f"UPDATE tasks SET state=0 WHERE state={rows.CODES[State.DELAYED]} AND until IS NULL")
    return found


def _wrong_mores(file: sqlite3.Connection, *, mends: bool) -> list[int]:
    found: list[int] = []
    for column, kind, read in (("more", "text", rows.read_more), ("lane", "blob", rows.read_name)):
        select = f"SELECT key, {column} FROM tasks WHERE typeof({column})='{kind}'"
        wrong = [key for key, value in file.execute(select) if not _can(read, value)]
        found += wrong
        if mends:
            file.executemany(f"UPDATE tasks SET {column}=NULL WHERE key=?", [(key,) for key in wrong])
    return found


def _wrong_tubes(file: sqlite3.Connection, *, mends: bool) -> list[str]:
    """Tubes whose rows make no sense, and those of tasks that are in no tube."""
    found: list[str] = []
    registry = Registry()

    def read_driver(text: str) -> None:
        with suppress(DriverNotFound):
            rows.read_driver(text, registry)

    parts: list[tuple[str, Callable[[Any], object], Callable[[int], object]]] = [
        ("namespace", _text, lambda number: "recovered"),
        ("name", _text, lambda number: f"recovered-{number}"),
        ("driver", read_driver, lambda number: _likely_driver(file, number)),
        ("options", rows.read_options, lambda number: "{}"),
        ("epoch", _whole, lambda number: _GAP),
        ("facts", rows.read_facts, lambda number: _likely_facts(file, number)),
    ]
    for number, *values in file.execute(
        f"SELECT number, {', '.join(name for name, *_ in parts)} FROM tubes"
    ).fetchall():
        wrong = [part for part, value in zip(parts, values, strict=True) if not _can(part[1], value)]
        if wrong:
            found.append(f"tube {values[1]!r}")
        if mends:
            for column, _, likely in wrong:
                file.execute(f"UPDATE tubes SET {column}=? WHERE number=?", (likely(number), number))
    lost = f"SELECT DISTINCT key>>{rows.ID_BITS} FROM tasks WHERE key>>{rows.ID_BITS} NOT IN ({_KNOWN})"
    for (number,) in file.execute(lost).fetchall():
        found.append(f"tube {number}")
        if mends:
            row = (number, "", *(likely(number) for _, _, likely in parts[1:]))
            file.execute("INSERT INTO tubes VALUES (?,?,?,?,?,?,?)", row)
    return found


def _task(key: int) -> str:
    return f"{key >> rows.ID_BITS}/{key & ((1 << rows.ID_BITS) - 1)}"


def _wrong_others(file: sqlite3.Connection, *, mends: bool) -> list[str]:
    """Keys, lanes and done tasks whose rows make no sense, which are left out."""
    known = f"tube IN ({_KNOWN})"
    sound = f"typeof(key)='blob' AND typeof(id)='integer' AND typeof(until)='integer' AND {known}"
    keys = [
        (tube, key)
        for tube, key, fits in file.execute(f"SELECT tube, key, {sound} FROM keys")
        if not (fits and _can(rows.read_name, key))
    ]
    lanes = [
        (tube, name)
        for tube, name, text, fits in file.execute(
            f"SELECT tube, name, facts, typeof(name)='blob' AND {known} FROM lanes"
        )
        if not (fits and _can(rows.read_name, name) and _can(rows.check_rate, text))
    ]
    done = [row[0] for row in file.execute("SELECT * FROM done") if not _can(rows.read_done, row)]
    if mends:
        file.executemany("DELETE FROM keys WHERE tube IS ? AND key IS ?", keys)
        file.executemany("DELETE FROM lanes WHERE tube IS ? AND name IS ?", lanes)
        file.executemany("DELETE FROM done WHERE key=?", [(key,) for key in done])
    names = [*(f"key {key!r}" for _, key in keys), *(f"lane {name!r}" for _, name in lanes)]
    return [*names, *(f"done task {_task(key)}" for key in done)]


def _can(read: Callable[[Any], object], value: object) -> bool:
    """Whether this can be read."""
    try:
        read(value)
    except rows.UNREADABLE:
        return False
    return True


def _some_text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _text(value: object) -> None:
    if not isinstance(value, str):
        raise TypeError("no text")


def _whole(value: object) -> None:
    if value.__class__ is not int:
        raise TypeError("no whole number")


def _likely_driver(file: sqlite3.Connection, number: int) -> str:
    """The driver that fits most tasks, if nobody knows theirs."""
    select = f"SELECT count(lane) FROM tasks WHERE key>>{rows.ID_BITS}=?"
    name = "utubettl" if file.execute(select, (number,)).fetchone()[0] else "fifottl"
    driver: Driver = Registry().find(name)
    return rows.driver_text(driver)


def _likely_facts(file: sqlite3.Connection, number: int) -> str:
    """What is known of a tube from its tasks. No id is given twice."""
    select = f"SELECT total(state<{rows.GONE}), max(key), max(created) FROM tasks WHERE key>>{rows.ID_BITS}=?"
    # Otherwise those of the last epoch are counted twice.
    file.execute("UPDATE tubes SET epoch=? WHERE number=?", (_GAP, number))
    count, most, now = file.execute(select, (number,)).fetchone()
    last = 0 if most is None else most & ((1 << rows.ID_BITS) - 1)
    return json.dumps(
        {
            "born": uuid4().int >> 64,
            "next_id": last + _GAP,
            "next_take": _GAP,
            "uses": {"put ": int(count)},
            "pause": None,
            "number": _GAP,
            "now": now or 0,
        }
    )
