"""The folder of a store, which one process owns."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from tubes.errors import StoreBusy


class Folder:
    """The folder of a store, while this process owns it.

    The lock is one of the operating system: it ends with the process, however that ends, and a child does not inherit
    it. It ends, too, when the process closes the file in any other place: so nobody else opens that.
    """

    def __init__(self, path: Path, url: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path: Final = path
        self._lock: Final = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip() or "?"
            os.close(self._lock)
            raise StoreBusy(url=url, pid=owner) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let another process own it."""
        with suppress(OSError):
            os.close(self._lock)
