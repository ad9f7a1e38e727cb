"""The file of a store: its tables, its pragmas, and one transaction at a time."""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from tubes.durable.folder import Folder
from tubes.durable.rows import FULL, SHORT, ids_of
from tubes.errors import StoreFailed

#: The version of the tables, and what says that they are ours: "tube".
VERSION: Final = 2
_APPLICATION: Final = 0x74756265
# A row of a new task has only `key`, `data`, `created` and `crc`.
_TASKS: Final = FULL.replace("key", "key INTEGER PRIMARY KEY", 1).replace(
    "state, attempts, moved", "state DEFAULT 0, attempts DEFAULT 0, moved DEFAULT 0"
)
#: Changes of the columns are changes of `tubes.durable.pages`, too.
SCHEMA: Final = f"""
CREATE TABLE store(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE tubes(number INTEGER PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, driver TEXT NOT NULL,
    options TEXT NOT NULL, epoch INTEGER NOT NULL, facts TEXT NOT NULL, UNIQUE(namespace, name));
CREATE TABLE tasks({_TASKS}, crc);
CREATE TABLE keys(tube INTEGER, key INTEGER, id INTEGER, until INTEGER, PRIMARY KEY(tube, key)) WITHOUT ROWID;
CREATE TABLE lanes(tube INTEGER, name BLOB, facts TEXT, PRIMARY KEY(tube, name)) WITHOUT ROWID;
CREATE TABLE done(key INTEGER PRIMARY KEY, data, result, until INTEGER, facts TEXT);
PRAGMA application_id={_APPLICATION};
PRAGMA user_version={VERSION};
"""
#: Small pages: most calls write one, and tasks are small. The log is folded into the file every 4 MiB.
PAGE: Final = 1024
_LOG_PAGES, _CACHE_KIB = 4096, 16 * 1024

#: Offset of the byte that is 2 if the file may have a log: https://sqlite.org/fileformat2.html#the_database_header.
_LOGGED: Final = 18

#: The name of the file in its folder.
NAME: Final = "tubes.db"
#: Why nothing can be read.
NO_STORE: Final = "there is no store in this folder"

#: The numbers of tubes that are not there any more, and whose rows may be.
_GONE: Final = "gone "
GIVEN_UP: Final = f"FROM store WHERE name LIKE '{_GONE}%'"
#: What tells the rows of a tube, and how many of them are removed at a time.
_KEYS: Final = {"tasks": "key", "done": "key", "keys": "tube, key", "lanes": "tube, name"}
_SWEPT: Final = 1000

PUT_NEW: Final = "REPLACE INTO tasks(key, data, created, crc) VALUES (?,?,?,?)"
PUT_SHORT: Final = f"REPLACE INTO tasks({SHORT}, crc) VALUES ({','.join('?' * 7)})"
PUT_FULL: Final = f"REPLACE INTO tasks({FULL}, crc) VALUES ({','.join('?' * 14)})"
PUT_DONE: Final = "REPLACE INTO done VALUES (?,?,?,?,?)"


def check(path: Path, url: str) -> bool:
    """Return whether there is a file.

    Raises `StoreFailed` if this release cannot use it, and `sqlite3.Error` if it is damaged. Nothing is written:
    `immutable` reads the file itself, without its log and its locks.
    """
    log = Path(f"{path}-wal")
    if path.is_symlink():  # SQLite puts the log beside the target, but the lock is in this folder.
        raise StoreFailed(url=url, why=f"its file {NAME!r} is a symbolic link: link the folder instead")
    if not path.exists():
        if log.exists():
            why = f"there is a log, and no file {NAME!r}: put it back, or remove {log.name!r}"
            raise StoreFailed(url=url, why=why)
        return False
    if not path.stat().st_size:
        raise StoreFailed(url=url, why=f"its file {NAME!r} is empty: restore a backup to another folder")
    _check_log(path, log, url)
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as file:
        # Else a file to which its process writes may seem to be too short.
        file.execute("PRAGMA writable_schema=ON")
        application, version = (
            file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
    if application != _APPLICATION:
        raise StoreFailed(url=url, why="it was written by another program")
    if version != VERSION:
        release = "a newer" if version > VERSION else "an older"
        why = f"{release} release wrote it: its format is {version}, and this one's {VERSION}"
        way = "export its tasks with the release that wrote it, and import them with this one"
        raise StoreFailed(url=url, why=f"{why}; {way}")
    return True


def _check_log(path: Path, log: Path, url: str) -> None:
    """Raise `StoreFailed` if the log belongs to another file."""
    with _opening:
        # Closing the file would drop the locks that SQLite has in this process.
        if any(each.path == path for each in _in_use) or not (log.exists() and log.stat().st_size):
            return
        with path.open("rb") as file:
            if file.read(_LOGGED + 1)[_LOGGED:] == b"\1":
                why = f"its file {NAME!r} is a backup beside the log of another one: restore it to an empty folder"
                raise StoreFailed(url=url, why=why)


def make(folder: Path) -> Path:
    """Make an empty file, which is not in its place yet: so it is there whole, or not at all."""
    path = folder / "tubes.new"
    for left in (path, Path(f"{path}-journal")):
        left.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute(f"PRAGMA page_size={PAGE}")
        file.executescript(f"BEGIN;{SCHEMA}COMMIT;")
    return path


def put_in_place(made: Path, path: Path) -> None:
    """Put a new file where it is looked for, also if the power goes now."""
    made.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Database:
    """One open file. Its user sees to it that there is one call at a time."""

    def __init__(self, path: Path, *, reads: bool = False) -> None:
        if not reads and not path.exists():
            put_in_place(make(path.parent), path)
        #: Each statement is a transaction, unless one has begun.
        self.connection: Final = sqlite3.connect(
            ":memory:" if reads else path,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
            timeout=10,
        )
        self._is_inherited = self._inside = False
        #: The file, unless it is only read.
        self.path: Final = None if reads else path
        with _opening:  # The first statement locks the file.
            _in_use.add(self)
        self._cursors: Final = self.connection.cursor(), self.connection.cursor()
        self.execute: Final = self._cursors[0].execute
        self.executemany: Final = self._cursors[1].executemany
        if reads:
            copy(path, self.connection)
        else:
            self._begin_to_write()
        self.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        #: The number of the newest tube.
        self._newest = 0
        #: The numbers of tubes that are not there any more, and whose rows are.
        self.given_up: Final[list[int]] = []
        #: The last moment of which the file says that it was: it may be a second before the last change.
        self.told = 0

    def give_up(self) -> None:
        """Never close it: in a child of a fork.

        Where nobody else has the file open SQLite would remove the log, though it may be that of a newer owner.
        See https://sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork_.
        """
        self._is_inherited = True
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.connection))

    def _begin_to_write(self) -> None:
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=NORMAL")
        self.execute(f"PRAGMA wal_autocheckpoint={_LOG_PAGES}")
        # A change that is larger, and for which a full disk had no room, gives back what it has used.
        self.execute(f"PRAGMA journal_size_limit={_LOG_PAGES * PAGE}")

    @property
    def row_limit(self) -> int:
        """The largest size of a row, in bytes."""
        return self.connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)

    def number(self, statement: str) -> int:
        """The number that a statement gives."""
        found: Any = self.execute(statement).fetchone()[0]
        return int(found)

    @contextmanager
    def transaction(self) -> Generator[None]:
        """All of the block, or nothing. Inside of another one it is a part of that."""
        if self._inside:
            yield
            return
        self.rollback()
        self._inside = True
        try:
            self.execute("BEGIN IMMEDIATE")
            yield
            self.execute("COMMIT")
        except BaseException:
            self.rollback()
            raise
        finally:
            self._inside = False

    def next_number(self) -> int:
        """The number of a new tube, which no other one has had since the rows of that were removed."""
        self._newest += 1
        return self._newest

    def find_numbers(self) -> None:
        """Find out which numbers are in use."""
        self.find_given_up()
        self._newest = max((self.number("SELECT coalesce(max(number), 0) FROM tubes"), *self.given_up))

    def remove_tube(self, namespace: str, name: str) -> None:
        """Remove a tube, and leave its rows to `sweep`. Within a transaction; `find_given_up` is for after it."""
        tube = "FROM tubes WHERE namespace=? AND name=?"
        self.execute(f"REPLACE INTO store SELECT '{_GONE}' || number, number {tube}", (namespace, name))
        self.execute(f"DELETE {tube}", (namespace, name))

    def find_given_up(self) -> None:
        """Note the tubes that are not there any more, and whose rows are."""
        self.given_up[:] = (number for (number,) in self.execute(f"SELECT value {GIVEN_UP}").fetchall())

    def sweep(self, now: int) -> bool:
        """Remove some rows of tubes that are not there any more: so few that this needs little room; False: no more."""
        if not self.given_up:
            return False
        number = self.given_up[0]
        for table, keys in _KEYS.items():
            column = keys.partition(",")[0]
            ends = ids_of(number) if column == "key" else (number, number)
            some = f"SELECT {keys} FROM {table} WHERE {column} BETWEEN ? AND ? LIMIT {_SWEPT}"
            if self.execute(f"DELETE FROM {table} WHERE ({keys}) IN ({some})", ends).rowcount:
                return True
        self.execute("DELETE FROM store WHERE name=?", (f"{_GONE}{number}",))
        del self.given_up[0]
        return True

    def tell(self, now: int) -> bool:
        """Write what time it is."""
        self.execute("REPLACE INTO store VALUES ('now', ?)", (now,))
        self.told = now
        return False

    def reset(self) -> None:
        """Roll back a transaction whose end was interrupted."""
        self._inside = False
        self.rollback()

    def rollback(self) -> None:
        """Forget a transaction that was broken off."""
        if self.connection.in_transaction:
            self.execute("ROLLBACK")

    def fold(self) -> None:
        """Fold the log into the file, if there is room: it begins again, and need not grow."""
        with suppress(sqlite3.Error):
            self.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Fold the log into the file, and close both. What could not be written stays in the log."""
        if self._is_inherited:
            return
        with suppress(sqlite3.Error):
            self.rollback()
        # SQLite keeps the files open as long as there is a statement.
        for each in (*self._cursors, self.connection):
            with suppress(sqlite3.Error):
                each.close()
        _in_use.discard(self)


_in_use: Final[WeakSet[Database]] = WeakSet()
_opening = threading.Lock()


#: How often a copy is tried while owners open and close the folder.
_TRIES: Final = 10


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()
    for each in [*_in_use]:
        each.give_up()


os.register_at_fork(after_in_child=_after_fork)


def copy(path: Path, target: sqlite3.Connection, *, damaged: bool = False) -> None:
    """Copy a file as it is at one moment, and change nothing. Its process may go on meanwhile.

    `damaged`: also one that is too short.
    """
    log = Path(f"{path}-wal")
    tries = 0
    while True:
        tries += 1
        # Without a log nobody writes: then SQLite must not make one, and looks at no lock.
        before = None if log.exists() else _look(path)
        how = "mode=ro" if before is None else "mode=ro&immutable=1"
        if Path(f"{path}-shm").exists():
            # A reader that finds this file unlocked truncates it otherwise. A process that maps it loses its locks when
            # it closes another descriptor of it, for example to copy the folder, and would die by SIGBUS.
            how += "&readonly_shm=1"
        torn: sqlite3.Error | None = None
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=10)) as file:
                file.execute(f"PRAGMA writable_schema={damaged:d}")
                file.backup(target)
        except sqlite3.Error as error:
            torn = error
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CANTOPEN and tries < _TRIES:
                continue  # The owner has just closed the folder, and removed the log.
        if before is None or (before == _look(path) and not log.exists()):
            if torn is not None:
                raise torn
            return
        # Somebody has begun to write.


def _look(path: Path) -> tuple[int, int, int]:
    """What changes when the file is written to, or is another one."""
    about = path.stat()
    return about.st_ino, about.st_mtime_ns, about.st_size


def back_up(folder: Path, target: Path, url: str) -> None:
    """Copy a store to another folder, as it is at one moment."""
    owned: Folder | None = None
    try:
        if not check(folder / NAME, url):
            raise StoreFailed(url=url, why=NO_STORE)
        owned = Folder(target, f"file:{target}")  # Lock the target: it may be an open store.
        half = make(target)
        try:
            with closing(sqlite3.connect(half)) as other:
                copy(folder / NAME, other)
                other.execute("PRAGMA journal_mode=DELETE")  # So `check` knows that a log beside it is not its own.
            put_in_place(half, target / NAME)
        finally:
            half.unlink(missing_ok=True)
    except (sqlite3.Error, OSError) as error:
        raise StoreFailed(url=url, why=f"it cannot be copied to {target}: {error}") from error
    finally:
        if owned is not None:
            owned.close()


def is_full(error: sqlite3.Error | OverflowError) -> bool:
    """Whether the disk is full."""
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL


def is_too_large(error: sqlite3.Error | OverflowError) -> bool:
    """Whether a row exceeds `Database.row_limit`. Python itself refuses values of 2 GiB with an OverflowError."""
    return isinstance(error, OverflowError) or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_TOOBIG


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is not as it was written."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    # A table or column that is not there is SQLITE_ERROR.
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
