"""The open files of a store: what its namespaces share, and what happens when they cannot be written."""

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

#: A store that is open lives, though nobody refers to it; one that is closed takes no memory.
_kept_open: Final[set[Files]] = set()


class Files:
    """The folder and the database of a store, from its opening until it is closed, or fails."""

    def __init__(
        self, path: Path, url: str, when_failed: Callable[[StoreFailed], None], lock: Lock, *, reads: bool
    ) -> None:
        self._url: Final = url
        self._when_failed: Final = when_failed
        self._lock: Final = lock
        #: Brings everything onto the disk before a method returns; None: the operating system does so in time.
        self.syncer: Syncer | None = None
        self._path: Final = path / NAME
        self._log: Final = path / f"{NAME}-wal"
        self._folder: Folder | None = None
        try:
            if not check(path / NAME, url) and reads:
                raise StoreFailed(url=url, why=NO_STORE)
            if not reads:
                self._folder = Folder(path, url)
            self.database: Final = _opened(path / NAME, reads=reads)
            #: None: the files are only read.
            self.reserve: Final = None if reads else Reserve(path / NAME, url, self.database.number)
        except BaseException as error:
            self._let_go()
            if isinstance(error, (sqlite3.Error, UnicodeDecodeError, MemoryError, OSError)):
                raise StoreFailed(url=url, why=_why(error, url)) from error
            raise
        self.is_open = True
        if not reads:
            _kept_open.add(self)
        self._failed: StoreFailed | None = None

    def write(self, commit: Callable[[int], bool], now: int) -> None:
        """Write something; `commit` says whether there was anything to write. Under the lock.

        Raises `StoreFull` if there is no room or a task is too large: then nothing is written. Any other error
        closes the store, since the state of the file is unknown: each call raises `StoreFailed` until the store is
        opened again.
        """
        self.database.reset()
        try:
            written = commit(now)
        except (sqlite3.Error, OverflowError) as error:
            written = self._write_again(commit, now, error)
        if written:
            if self.syncer is not None:
                self.syncer.written += 1
            database = self.database
            if not 0 <= now - database.told < SECOND or database.given_up:
                self._write_more(now)

    def _write_more(self, now: int) -> None:
        """Write what no call waits for."""
        database = self.database
        with suppress(StoreFull):
            for write in (database.tell, database.sweep):
                more = True
                while more:
                    try:
                        more = write(now)
                    except sqlite3.Error as error:
                        more = self._write_again(write, now, error)

    def _write_again(self, commit: Callable[[int], bool], now: int, error: sqlite3.Error | OverflowError) -> bool:
        """Retry a write after the disk was full: from the start of the log, then with the room of the reserve.

        Raises `StoreFull` if a row is too large, and any other error as it is.
        """
        if is_too_large(error):
            raise StoreFull(url=self._url, limit=self.database.row_limit) from error
        while is_full(error):
            self.database.fold()
            try:
                return commit(now)
            except sqlite3.Error as again:
                error = again
            if self.reserve is None or not self.reserve.give():
                raise StoreFull(url=self._url) from error
        raise self.fail(error) from error

    def usage(self) -> FolderUsage:
        """What they use of the disk."""
        about = self._path.stat()
        size = about.st_size
        for other in (self._log, self._path.with_name("reserve")):
            with suppress(FileNotFoundError):
                size += other.stat().st_size
        # Only a checkpoint writes to it: all else goes into the log.
        syncs, seconds = (0, 0.0) if self.syncer is None else self.syncer.spent
        return FolderUsage(size, about.st_mtime, syncs, seconds)

    def sync(self) -> None:
        """Let methods wait for the disk from now on."""
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
        """Fail if what is read in the block makes no sense. Under the lock, or before anybody else knows the store."""
        try:
            yield
        except TubesError:
            raise
        except (sqlite3.Error, MemoryError, *UNREADABLE) as error:
            raise self.fail(error) from error

    def fail(self, error: BaseException) -> StoreFailed:
        """Close the files after an error; returns what is raised from now on. Under the lock."""
        self._failed = StoreFailed(url=self._url, why=_why(error, self._url))
        self._when_failed(self._failed)
        self.close()
        return self._failed

    def check(self) -> None:
        """Raise the error of a store that has failed."""
        if self._failed is not None:
            raise StoreFailed(**self._failed.facts)

    def close(self) -> None:
        """Let another process open them."""
        if self.is_open:
            self.is_open = False
            _kept_open.discard(self)
            if self.syncer is not None:
                self.syncer.close(sync=self._failed is None)
            self.database.close()
            self._let_go()

    def _let_go(self) -> None:
        if self._folder is not None:
            self._folder.close()


def _why(error: BaseException, url: str) -> str:
    if isinstance(error, MemoryError):  # A damaged length may ask for any amount.
        return f"the memory is too small, or its file {NAME!r} is damaged: run 'tubes check --url {url}'"
    if isinstance(error, UNREADABLE) or (isinstance(error, sqlite3.Error) and is_damage(error)):
        return f"its file {NAME!r} is damaged ({error}): 'tubes repair --url {url}' saves what can be read"
    return f"{error}; what was returned is kept: connect again"


def _opened(file: Path, *, reads: bool) -> Database:
    """The file, opened; on a full disk with some of the reserve, since SQLite makes a file of 32 KiB for that."""
    try:
        return Database(file, reads=reads)
    except sqlite3.OperationalError:
        if reads or not Reserve.give_to_open(file):
            raise
        return Database(file, reads=reads)
