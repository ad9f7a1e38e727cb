"""The folder of a store, which one process locks, and the reserve of disk space in it."""

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
    """The folder of a store, locked by this process.

    The lock is a `flock` of the operating system, which ends with the process even if it is killed. It belongs to the
    open file, not to the process: so the process cannot open its folder twice, but may read it in other ways. The
    child of a fork closes it.
    """

    def __init__(self, path: Path, url: str) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            _instances.add(self)
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
        """Unlock the folder: another process may open it."""
        lock, self._lock = self._lock, -1
        with suppress(OSError):
            os.close(lock)


_instances: Final[WeakSet[Folder]] = WeakSet()


def _after_fork() -> None:
    for folder in [*_instances]:
        folder.close()


os.register_at_fork(after_in_child=_after_fork)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


class Reserve:
    """A file that reserves disk space, so that tasks can be acked when the disk is full."""

    # Twice the size of the log before a checkpoint. It is released in steps, since other programs may use the room.
    _SIZE: Final = 8 * 2**20
    _STEP: Final = 2**20

    def __init__(self, file: Path, url: str, read_number: Callable[[str], int]) -> None:
        self._file: Final = file
        self._path: Final = file.with_name("reserve")
        self._url: Final = url
        #: `Database.read_number`.
        self._read_number: Final = read_number
        #: True if some of the room was released.
        self.missing = True
        with suppress(StoreFull):
            self._allocate()

    def release(self) -> bool:
        """Release some of the room for a write; return False if it was used up."""
        self.missing = True
        return self.release_some(self._file)

    @classmethod
    def release_some(cls, file: Path) -> bool:
        """Release some of the room to let SQLite open the file; return False if it was used up."""
        path = file.with_name("reserve")
        size = _size(path)
        with suppress(OSError):
            if size > cls._STEP:
                os.truncate(path, size - cls._STEP)
            else:
                path.unlink()
        return size > 0

    def restore(self) -> None:
        """Reserve the room again before a put. Raises `StoreFull` if the disk is still full.

        Free pages in the file also count as room: puts may use them while they are more than an eighth of the file.
        """
        read_number = self._read_number
        with suppress(sqlite3.Error):
            if read_number("PRAGMA freelist_count") * 8 > read_number("PRAGMA page_count"):
                return
        self._allocate()

    def check_optional(self) -> None:
        """Raise `StoreFull` if most of the room is used: for optional writes, and for kept done tasks."""
        free, growth = self._measure()
        if free - growth < self._SIZE // 4:
            self.restore()

    def check_batch(self) -> None:
        """Raise `StoreFull` if the disk lacks room for a transaction, first in the log and then in the file.

        If the log had the transaction, but a checkpoint could not move it to the file, all later writes would fail.
        """
        free, growth = self._measure()
        if free < 2 * growth:
            raise StoreFull(url=self._url)

    def _measure(self) -> tuple[int, int]:
        """Return the free bytes, including the reserve, and the bytes that a checkpoint would add to the file."""
        disk, read_number = os.statvfs(self._file), self._read_number
        size = read_number("PRAGMA page_count") * read_number("PRAGMA page_size")
        return disk.f_bavail * disk.f_frsize + _size(self._path), size - os.path.getsize(self._file)

    def _allocate(self) -> None:
        left = _size(self._path)
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
