"""The SQLite file of a store: schema, pragmas, transactions, copies and backups."""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from tubes.durable.folder import Folder
from tubes.durable.rows import FULL, SHORT, ids_of
from tubes.errors import StoreFailed

#: The version of the schema, and the application id of our files: "tube" in ASCII.
VERSION: Final = 3
_APPLICATION: Final = 0x74756265
# `PUT_NEW` writes only `key`, `data`, `created` and `crc` of a new task.
_TASKS: Final = FULL.replace("key", "key INTEGER PRIMARY KEY", 1).replace(
    "state, attempts, moved", "state DEFAULT 0, attempts DEFAULT 0, moved DEFAULT 0"
)
#: A change of the columns requires a change of `tubes.durable.pages`.
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
#: Pages are small, since tasks are small and most calls write one page. A checkpoint comes every 4 MiB of log.
PAGE: Final = 1024
_LOG_PAGES, _CACHE_KIB = 4096, 16 * 1024

#: Offset of the byte that is 2 in WAL mode and 1 otherwise: https://sqlite.org/fileformat2.html#the_database_header.
_FORMAT_OFFSET: Final = 18

#: The name of the file in its folder.
NAME: Final = "tubes.db"
#: The error for a folder without a store.
NO_STORE: Final = "there is no store in this folder"

#: Prefix, in the table `store`, of the numbers of dropped tubes whose rows may still exist.
_DROPPED: Final = "gone "
FROM_DROPPED: Final = f"FROM store WHERE name LIKE '{_DROPPED}%'"
#: The primary key of each table with rows of tubes, and the number of rows that `sweep` removes at a time.
_KEY_COLUMNS: Final = {"tasks": "key", "done": "key", "keys": "tube, key", "lanes": "tube, name"}
_SWEEP_LIMIT: Final = 1000

PUT_NEW: Final = "REPLACE INTO tasks(key, data, created, crc) VALUES (?,?,?,?)"
PUT_SHORT: Final = f"REPLACE INTO tasks({SHORT}, crc) VALUES ({','.join('?' * 7)})"
PUT_FULL: Final = f"REPLACE INTO tasks({FULL}, crc) VALUES ({','.join('?' * 14)})"
PUT_DONE: Final = "REPLACE INTO done VALUES (?,?,?,?,?)"


def check(path: Path, url: str) -> bool:
    """Check the file of a store before it is opened; return False if it is missing.

    Raises `StoreFailed` if this release cannot use the file, and `sqlite3.Error` if it is damaged. It writes nothing:
    `immutable` reads the file without its log and its locks.
    """
    log = Path(f"{path}-wal")
    if path.is_symlink():  # SQLite would put the log next to the target of the link.
        raise StoreFailed(url=url, why=f"its file {NAME!r} is a symbolic link: link the folder instead")
    if not path.exists():
        if log.exists():
            why = f"there is a log but no file {NAME!r}: restore the file, or remove {log.name!r}"
            raise StoreFailed(url=url, why=why)
        return False
    if not path.stat().st_size:
        raise StoreFailed(url=url, why=f"its file {NAME!r} is empty: restore a backup to another folder")
    _check_log(path, log, url)
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as file:
        # Without this a file that its owner is writing may seem too short.
        file.execute("PRAGMA writable_schema=ON")
        application, version = (
            file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
    if application != _APPLICATION:
        raise StoreFailed(url=url, why="it was written by another program")
    if version != VERSION:
        release = "a newer" if version > VERSION else "an older"
        why = f"{release} release wrote it: its format is {version}, this release uses {VERSION}"
        advice = "export its tasks with that release, and import them with this one"
        raise StoreFailed(url=url, why=f"{why}; {advice}")
    return True


def _check_log(path: Path, log: Path, url: str) -> None:
    """Raise `StoreFailed` if the log belongs to another file."""
    with _open_lock:
        # Do not open and close a file in use: this would drop the locks that SQLite holds in this process.
        if any(database.path == path for database in _instances) or not (log.exists() and log.stat().st_size):
            return
        with path.open("rb") as file:
            if file.read(_FORMAT_OFFSET + 1)[_FORMAT_OFFSET:] == b"\1":
                why = f"its file {NAME!r} is a backup next to the log of another file: restore it to an empty folder"
                raise StoreFailed(url=url, why=why)


def make(folder: Path) -> Path:
    """Create an empty database under a temporary name; return its path. `put_in_place` renames it, atomically."""
    path = folder / "tubes.new"
    for leftover in (path, Path(f"{path}-journal")):
        leftover.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute(f"PRAGMA page_size={PAGE}")
        file.executescript(f"BEGIN;{SCHEMA}COMMIT;")
    return path


def put_in_place(made: Path, path: Path) -> None:
    """Rename a new file to its final name, durably."""
    made.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Transaction:
    """See `Database.transaction`.

    It is not a generator: an interrupted generator may be closed at any later moment, and would roll back then.
    """

    def __init__(self, database: Database) -> None:
        self._database: Final = database
        self._is_nested: Final = database.in_transaction

    def __enter__(self) -> None:
        database = self._database
        if not self._is_nested:
            database.rollback()
            database.execute("BEGIN IMMEDIATE")
            database.in_transaction = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        database = self._database
        if self._is_nested:
            return
        try:
            if error is None:
                database.execute("COMMIT")
        finally:
            database.in_transaction = False
            database.rollback()


class Database:
    """An open file. Not thread-safe: the caller ensures that calls do not overlap."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        if not read_only and not path.exists():
            put_in_place(make(path.parent), path)
        #: In autocommit mode, except within `transaction`.
        self.connection: Final = sqlite3.connect(
            ":memory:" if read_only else path,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
            timeout=10,
        )
        self._is_inherited = self.in_transaction = False
        #: The path; None for a read-only copy.
        self.path: Final = None if read_only else path
        with _open_lock:  # The first statement below locks the file.
            _instances.add(self)
        self._cursors: Final = self.connection.cursor(), self.connection.cursor()
        self.execute: Final = self._cursors[0].execute
        self.executemany: Final = self._cursors[1].executemany
        if read_only:
            copy(path, self.connection)
        else:
            self._configure()
        self.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        #: The largest number of a tube.
        self._newest = 0
        #: The numbers of dropped tubes whose rows still exist.
        self.dropped_numbers: Final[list[int]] = []
        #: The last time in the file: it is at most a second older than the last change.
        self.last_time = 0

    def leak(self) -> None:
        """Never close the connection: for the child of a fork.

        A close could remove the log, which may belong to a newer owner.
        See https://sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork_.
        """
        self._is_inherited = True
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.connection))

    def _configure(self) -> None:
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=NORMAL")
        self.execute(f"PRAGMA wal_autocheckpoint={_LOG_PAGES}")
        # Truncate the log after a larger transaction that failed because the disk was full.
        self.execute(f"PRAGMA journal_size_limit={_LOG_PAGES * PAGE}")

    @property
    def row_limit(self) -> int:
        """The maximal size of a row, in bytes."""
        return self.connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)

    def read_number(self, statement: str) -> int:
        """Return the single number that a statement selects."""
        found: Any = self.execute(statement).fetchone()[0]
        return int(found)

    def transaction(self) -> Transaction:
        """Return a context whose block runs in a transaction; a nested block joins the outer transaction."""
        return Transaction(self)

    def next_number(self) -> int:
        """Return a number for a new tube that no tube with remaining rows has."""
        self._newest += 1
        return self._newest

    def find_numbers(self) -> None:
        self.read_dropped()
        self._newest = max((self.read_number("SELECT coalesce(max(number), 0) FROM tubes"), *self.dropped_numbers))

    def remove_tube(self, namespace: str, name: str) -> None:
        """Remove a tube, but leave its rows to `sweep`. Call it within a transaction, and `read_dropped` after that."""
        tube = "FROM tubes WHERE namespace=? AND name=?"
        self.execute(f"REPLACE INTO store SELECT '{_DROPPED}' || number, number {tube}", (namespace, name))
        self.execute(f"DELETE {tube}", (namespace, name))

    def read_dropped(self) -> None:
        """Read the numbers of dropped tubes whose rows still exist."""
        self.dropped_numbers[:] = (number for (number,) in self.execute(f"SELECT value {FROM_DROPPED}").fetchall())

    def sweep(self, now: int) -> bool:
        """Remove some rows of dropped tubes: few, so as to need little disk space. Return False after the last one."""
        if not self.dropped_numbers:
            return False
        number = self.dropped_numbers[0]
        for table, keys in _KEY_COLUMNS.items():
            column = keys.partition(",")[0]
            ends = ids_of(number) if column == "key" else (number, number)
            some = f"SELECT {keys} FROM {table} WHERE {column} BETWEEN ? AND ? LIMIT {_SWEEP_LIMIT}"
            if self.execute(f"DELETE FROM {table} WHERE ({keys}) IN ({some})", ends).rowcount:
                return True
        self.execute("DELETE FROM store WHERE name=?", (f"{_DROPPED}{number}",))
        del self.dropped_numbers[0]
        return True

    def write_time(self, now: int) -> bool:
        self.execute("REPLACE INTO store VALUES ('now', ?)", (now,))
        self.last_time = now
        return False

    def reset(self) -> None:
        """Roll back a transaction if an interrupt came in the middle of its rollback."""
        self.in_transaction = False
        self.rollback()

    def rollback(self) -> None:
        if self.connection.in_transaction:
            self.execute("ROLLBACK")

    def checkpoint(self) -> None:
        """Run a checkpoint: move the log into the file, if there is room, so that the log need not grow."""
        with suppress(sqlite3.Error):
            self.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Move the log into the file, and close both. Pages that cannot be moved stay in the log."""
        if self._is_inherited:
            return
        with suppress(sqlite3.Error):
            self.rollback()
        # SQLite keeps the files open until all statements are closed.
        for item in (*self._cursors, self.connection):
            with suppress(sqlite3.Error):
                item.close()
        _instances.discard(self)


_instances: Final[WeakSet[Database]] = WeakSet()
_open_lock = threading.Lock()


#: The maximal number of attempts to copy a file while its owners open and close it.
_MAX_ATTEMPTS: Final = 10


def _after_fork() -> None:
    global _open_lock
    _open_lock = threading.Lock()
    for database in [*_instances]:
        database.leak()


os.register_at_fork(after_in_child=_after_fork)


def copy(path: Path, target: sqlite3.Connection, *, damaged: bool = False) -> None:
    """Copy a consistent snapshot of a file without changing it. Its owner may write at the same time.

    `damaged`: accept a file that is too short.
    """
    log = Path(f"{path}-wal")
    attempts = 0
    while True:
        attempts += 1
        # Without a log the file is not in use. `immutable` keeps SQLite from creating a log and using locks.
        stat_before = None if log.exists() else _get_stat(path)
        query = "mode=ro" if stat_before is None else "mode=ro&immutable=1"
        if Path(f"{path}-shm").exists():
            # Otherwise a reader that finds this file unlocked truncates it. Its owner maps the file, and loses its
            # locks when it closes another descriptor of it, for example to copy the folder: it would die from SIGBUS.
            query += "&readonly_shm=1"
        failure: sqlite3.Error | None = None
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{query}", uri=True, timeout=10)) as file:
                file.execute(f"PRAGMA writable_schema={damaged:d}")
                file.backup(target)
        except sqlite3.Error as error:
            failure = error
            # The owner has just closed the store and removed the log, or changed the log while it was read.
            passing = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR)
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in passing and attempts < _MAX_ATTEMPTS:
                continue
        if stat_before is None or (stat_before == _get_stat(path) and not log.exists()):
            if failure is not None:
                raise failure
            return
        # A process has just begun to write: try again.


def _get_stat(path: Path) -> tuple[int, int, int]:
    """Return values that change when the file is written or replaced."""
    about = path.stat()
    return about.st_ino, about.st_mtime_ns, about.st_size


def back_up(folder: Path, target: Path, url: str) -> None:
    """Copy a consistent snapshot of a store to another folder."""
    owned: Folder | None = None
    try:
        if not check(folder / NAME, url):
            raise StoreFailed(url=url, why=NO_STORE)
        owned = Folder(target, f"file:{target}")  # Lock the target: it may be an open store.
        partial = make(target)
        try:
            with closing(sqlite3.connect(partial)) as other:
                copy(folder / NAME, other)
                other.execute("PRAGMA journal_mode=DELETE")  # Lets `_check_log` detect a foreign log.
            put_in_place(partial, target / NAME)
        finally:
            partial.unlink(missing_ok=True)
    except (sqlite3.Error, OSError) as error:
        raise StoreFailed(url=url, why=f"it cannot be copied to {target}: {error}") from error
    finally:
        if owned is not None:
            owned.close()


def is_full(error: sqlite3.Error | OverflowError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL


def is_too_large(error: sqlite3.Error | OverflowError) -> bool:
    """True if a row exceeds `Database.row_limit`. Python itself raises OverflowError for values of 2 GiB."""
    return isinstance(error, OverflowError) or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_TOOBIG


def is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    # A missing table or column is SQLITE_ERROR.
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
