"""The open files of a store, which all of its namespaces share, and the handling of failed writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from tubes.drivers.options import SECOND
from tubes.durable.database import NAME, NO_STORE, Database, check, is_damage, is_full, is_too_large
from tubes.durable.folder import Folder, Reserve
from tubes.durable.rows import UNREADABLE
from tubes.durable.syncer import Syncer
from tubes.errors import StoreFailed, StoreFull, TubesError
from tubes.values.overview import FolderUsage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tubes.memory.lock import Lock

#: Keeps open stores alive until they are closed.
_open_files: Final[set[Files]] = set()


class Files:
    """The folder and the database of a store, until it is closed or fails."""

    def __init__(
        self, path: Path, url: str, on_failure: Callable[[StoreFailed], None], lock: Lock, *, read_only: bool
    ) -> None:
        self._url: Final = url
        self._when_failed: Final = on_failure
        self._lock: Final = lock
        #: Syncs commits before a method returns; None: leave that to the operating system.
        self.syncer: Syncer | None = None
        self._path: Final = path / NAME
        self._log: Final = path / f"{NAME}-wal"
        self._folder: Folder | None = None
        try:
            if not check(path / NAME, url) and read_only:
                raise StoreFailed(url=url, why=NO_STORE)
            if not read_only:
                self._folder = Folder(path, url)
            self.database: Final = _open_database(path / NAME, read_only=read_only)
            #: None for a read-only store.
            self.reserve: Final = None if read_only else Reserve(path / NAME, url, self.database.read_number)
        except BaseException as error:
            self._unlock()
            if isinstance(error, (sqlite3.Error, UnicodeDecodeError, MemoryError, OSError)):
                raise StoreFailed(url=url, why=_describe_error(error, url)) from error
            raise
        self.is_open = True
        if not read_only:
            _open_files.add(self)
        self._failed: StoreFailed | None = None

    def write(self, commit: Callable[[int], bool], now: int) -> None:
        """Run `commit`, which returns True if it has written something. Call it under the lock.

        Raises `StoreFull` if the disk is full or a task is too large, and rolls the transaction back. Any other error
        closes the store, since the state of the file is unknown: all calls raise `StoreFailed` until the store is
        opened again.
        """
        self.database.reset()
        try:
            written = commit(now)
        except (sqlite3.Error, OverflowError) as error:
            written = self._retry_write(commit, now, error)
        if written:
            if self.syncer is not None:
                self.syncer.written += 1
            database = self.database
            if not 0 <= now - database.last_time < SECOND or database.dropped_numbers:
                self._write_upkeep(now)

    def _write_upkeep(self, now: int) -> None:
        """Write the current time and remove some rows of dropped tubes: no call depends on it."""
        database = self.database
        with suppress(StoreFull):
            for write in (database.write_time, database.sweep):
                try:
                    write(now)
                except sqlite3.Error as error:
                    self._retry_write(write, now, error)

    def _retry_write(self, commit: Callable[[int], bool], now: int, error: sqlite3.Error | OverflowError) -> bool:
        """Retry a write after an error of a full disk: first after a checkpoint, then with room from the reserve.

        Raises `StoreFull` if a row is too large or the reserve is used up; fails the store for other errors.
        """
        if is_too_large(error):
            raise StoreFull(url=self._url, limit=self.database.row_limit) from error
        while is_full(error):
            self.database.checkpoint()
            try:
                return commit(now)
            except sqlite3.Error as retry_error:
                error = retry_error
            if self.reserve is None or not self.reserve.release():
                raise StoreFull(url=self._url) from error
        raise self.fail(error) from error

    def usage(self) -> FolderUsage:
        about = self._path.stat()
        size = about.st_size
        for other in (self._log, self._path.with_name("reserve")):
            with suppress(FileNotFoundError):
                size += other.stat().st_size
        # Its mtime is the time of the last checkpoint: other writes go to the log.
        syncs, seconds = (0, 0.0) if self.syncer is None else self.syncer.totals
        return FolderUsage(size, about.st_mtime, syncs, seconds)

    def sync(self) -> None:
        """Sync commits before methods return, from now on."""
        self.syncer = Syncer(self._log, self._fail_to_sync)
        self.syncer.written = 1

    def _fail_to_sync(self, error: OSError) -> StoreFailed:
        self._lock.acquire()
        try:
            return self._failed or self.fail(error)
        finally:
            self._lock.token[0] = True

    @contextmanager
    def reading(self) -> Generator[None]:
        """Fail the store if the block reads invalid rows. Call it under the lock, or before the store is shared."""
        try:
            yield
        except TubesError:
            raise
        except (sqlite3.Error, MemoryError, *UNREADABLE) as error:
            raise self.fail(error) from error

    def fail(self, error: BaseException) -> StoreFailed:
        """Close the files after an error; return the error that all calls raise from now on. Call it under the lock."""
        self._failed = StoreFailed(url=self._url, why=_describe_error(error, self._url))
        self._when_failed(self._failed)
        self.close()
        return self._failed

    def check(self) -> None:
        if self._failed is not None:
            raise StoreFailed(**self._failed.facts)

    def close(self) -> None:
        """Close the files: another process may open them."""
        if self.is_open:
            self.is_open = False
            _open_files.discard(self)
            if self.syncer is not None:
                self.syncer.close(sync=self._failed is None)
            self.database.close()
            self._unlock()

    def _unlock(self) -> None:
        if self._folder is not None:
            self._folder.close()


def _describe_error(error: BaseException, url: str) -> str:
    if isinstance(error, MemoryError):  # A damaged length may request any amount.
        return f"memory is exhausted, or its file {NAME!r} is damaged: run 'tubes check --url {url}'"
    if isinstance(error, UNREADABLE) or (isinstance(error, sqlite3.Error) and is_damage(error)):
        return f"its file {NAME!r} is damaged ({error}): 'tubes repair --url {url}' saves all readable rows"
    return f"{error}; completed calls are kept: connect again"


def _open_database(file: Path, *, read_only: bool) -> Database:
    """Open the file; if the disk is full, with room from the reserve: SQLite creates a file of 32 KiB for this."""
    try:
        return Database(file, read_only=read_only)
    except sqlite3.OperationalError:
        if read_only or not Reserve.release_some(file):
            raise
        return Database(file, read_only=read_only)
