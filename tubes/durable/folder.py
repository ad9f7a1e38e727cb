"""The folder of a store, which one process owns."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from tubes.errors import StoreBusy, StoreFailed, StoreFull

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Folder:
    """The folder of a store, while this process owns it.

    The lock is one of the operating system: it ends with the process, however that ends. It belongs to the open file,
    not to the process, which may read its folder in other ways, and not open it twice. A child that is forked closes
    it.
    """

    def __init__(self, path: Path, url: str) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            _in_use.add(self)
        except OSError as error:
            raise StoreFailed(url=url, why=f"its folder cannot be made or written to: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip() or "?"
            self.close()
            raise StoreBusy(url=url, pid=owner) from None
        except OSError as error:
            self.close()
            raise StoreFailed(url=url, why=f"its folder cannot be locked: {error.strerror}") from error
        with suppress(OSError):  # A full disk may have no room for the process id.
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let another process own it."""
        lock, self._lock = self._lock, -1
        with suppress(OSError):
            os.close(lock)


_in_use: Final[WeakSet[Folder]] = WeakSet()


def _after_fork() -> None:
    for each in [*_in_use]:
        each.close()


os.register_at_fork(after_in_child=_after_fork)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


class Reserve:
    """Room on the disk that is kept free, so that tasks can be acked when the disk is full."""

    # For the log, which is folded into the file first, and as much again. It is given away in steps, since others may
    # take what is given.
    _SIZE: Final = 8 * 2**20
    _STEP: Final = 2**20

    def __init__(self, file: Path, url: str, number: Callable[[str], int]) -> None:
        self._file: Final = file
        self._path: Final = file.with_name("reserve")
        self._url: Final = url
        #: Asks the database for a number.
        self._number: Final = number
        #: Whether the room was given away.
        self.missing = True
        with suppress(StoreFull):
            self._keep()

    def give(self) -> bool:
        """Give some of the room to what must be written now; False: there is none left."""
        self.missing = True
        return self.give_to_open(self._file)

    @classmethod
    def give_to_open(cls, file: Path) -> bool:
        """Give some of the room to SQLite, which needs it to open the file; False: there is none left."""
        path = file.with_name("reserve")
        size = _size(path)
        with suppress(OSError):
            if size > cls._STEP:
                os.truncate(path, size - cls._STEP)
            else:
                path.unlink()
        return size > 0

    def _left(self) -> int:
        return _size(self._path)

    def need(self) -> None:
        """Keep the room again, before a put; raises `StoreFull` if there is none.

        What tasks that are done have left in the file is room, too: puts may have all but an eighth of the file.
        """
        number = self._number
        with suppress(sqlite3.Error):
            if number("PRAGMA freelist_count") * 8 > number("PRAGMA page_count"):
                return
        self._keep()

    def spare_rest(self) -> None:
        """Raise `StoreFull` if most of the room has been used: for what is not needed, and done tasks that are kept."""
        free, growth = self._look()
        if free - growth < self._SIZE // 4:
            self.need()

    def check_batch(self) -> None:
        """Raise `StoreFull` if what a transaction has added has no room, first in the log and then in the file.

        If it was in the log, and could not be folded into the file, nothing could be written any more.
        """
        free, growth = self._look()
        if free < 2 * growth:
            raise StoreFull(url=self._url)

    def _look(self) -> tuple[int, int]:
        """How many bytes are free, with the reserve, and by how many the file grows when the log is folded into it."""
        disk, number = os.statvfs(self._file), self._number
        size = number("PRAGMA page_count") * number("PRAGMA page_size")
        return disk.f_bavail * disk.f_frsize + self._left(), size - os.path.getsize(self._file)

    def _keep(self) -> None:
        left = self._left()
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise StoreFull(url=self._url) from None
            why = f"its file 'reserve' is damaged, remove it: {error.strerror}"
            raise StoreFailed(url=self._url, why=why) from error
        try:
            os.posix_fallocate(file, 0, self._SIZE)
        except OSError:
            os.ftruncate(file, left)
            raise StoreFull(url=self._url) from None
        finally:
            os.close(file)
        self.missing = False
