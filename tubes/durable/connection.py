"""Connections to a store in a folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tubes.backend.clock import system_clock
from tubes.durable.store import DurableStore
from tubes.memory.connection import Connection
from tubes.memory.store import check_clock, check_same
from tubes.values.codecs import find as find_codec

if TYPE_CHECKING:
    from tubes.backend.clock import Clock
    from tubes.backend.interface import ApiKind
    from tubes.values.codecs import Codec


#: The stores that this process has open, by folder, and who may open another one.
_open: Final[dict[Path, DurableStore]] = {}
_opening = threading.Lock()


def connect(
    path: Path, namespace: str, clock: Clock | None, codec: str | Codec | None, lease: int, api: ApiKind
) -> Connection:
    """A connection to the store of this folder, which a process opens once."""
    check_clock(clock)
    found = find_codec("json" if codec is None else codec)
    path = Path(os.path.realpath(path))
    with _opening:
        while True:
            store = _open.get(path)
            if store is None or not store.is_open:
                store = _open[path] = DurableStore(path, clock or system_clock, found)
            check_same(store, clock, codec)
            connection = Connection(store.within(namespace), lease, api)
            if store.is_open:  # Its last session may have ended meanwhile.
                return connection


def _after_fork() -> None:
    global _opening
    _open.clear()
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
