"""Connections to a store in a folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from typing_extensions import override

from tubes.backend.clock import system_clock
from tubes.drivers.options import one_of
from tubes.durable.port import AsyncSyncedPort, ReadOnlyPort, SyncedPort
from tubes.durable.shared_tube import DurableTube
from tubes.durable.store import DurableStore
from tubes.errors import InvalidOption, StoreReadOnly
from tubes.memory.calls import CallPort
from tubes.memory.connection import MemoryConnection
from tubes.memory.store import check_clock, check_same
from tubes.values.codecs import find as find_codec

if TYPE_CHECKING:
    from tubes.backend.clock import Clock
    from tubes.backend.interface import ApiKind, IfExists, Options
    from tubes.drivers.driver import Driver
    from tubes.memory.shared_tube import MemoryTube
    from tubes.values.codecs import Codec
    from tubes.values.overview import FolderUsage
    from tubes.values.problem import Problem


class DurableConnection(MemoryConnection):
    """One connection of a `Queue` to a store in a folder."""

    store: DurableStore  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    @override
    def is_read_only(self) -> bool:
        return self.store.read_only

    @override
    def make_port(self, shared: MemoryTube) -> CallPort:
        if self.store.read_only and (shared.is_listed or "#" in shared.name):
            reader: ReadOnlyPort = ReadOnlyPort(self, shared, self.session.hold(shared))
            reader.kind, reader.tube = self.api.task, self.api.tube(reader)
            return reader
        syncer = self.store.syncer
        if syncer is None or not isinstance(shared, DurableTube):
            return super().make_port(shared)
        hold = self.session.hold(shared)
        if self.api.awaited:
            port: CallPort = CallPort(self, shared, hold)
            port.kind, port.tube = self.api.task, self.api.tube(AsyncSyncedPort(port, syncer))
            return port
        synced: SyncedPort = SyncedPort(self, shared, hold)
        synced.syncer = syncer
        synced.kind, synced.tube = self.api.task, self.api.tube(synced)
        return synced

    @override
    def open_hidden(self, name: str, driver: str, idle: float, kept: bool) -> CallPort:
        if self.store.read_only:
            raise StoreReadOnly(url=self.store.url)
        return super().open_hidden(name, driver, idle, kept)

    @override
    def open_part(self, name: str, driver: Driver, temporary: bool, options: Options) -> Any:
        port, syncer = super().open_part(name, driver, temporary, options), self.store.syncer
        return port if syncer is None or not self.api.awaited else AsyncSyncedPort(port, syncer)

    @override
    def folder_usage(self) -> FolderUsage:
        return self.store.usage()

    @override
    def examine(self, name: str, repairs: bool) -> list[Problem]:
        if repairs and self.store.read_only:
            raise StoreReadOnly(url=self.store.url)
        return super().examine(name, repairs)

    @override
    def create(
        self, name: str, driver: str | Driver, if_exists: IfExists, temporary: bool, options: Options
    ) -> CallPort:
        if self.store.read_only and temporary:
            raise StoreReadOnly(url=self.store.url)
        port = super().create(name, driver, if_exists, temporary, options)
        if self.store.syncer is not None:
            self.store.syncer.wait()
        return port


_mode: Final = one_of("own", "read")
_sync: Final = one_of("normal", "full")
#: The open stores of this process by folder, and the lock under which one is opened.
_stores: Final[WeakValueDictionary[Path, DurableStore]] = WeakValueDictionary()
_open_lock = threading.Lock()


def connect(
    path: Path,
    namespace: str,
    clock: Clock | None,
    codec: str | Codec | None,
    lease: int,
    api: ApiKind,
    sync: str | None = None,
    mode: str | None = None,
) -> DurableConnection:
    """Connect to the store of this folder. A process opens a store once, and its connections share it."""
    check_clock(clock)
    checked_sync = None if sync is None else _sync("sync", sync)
    found = find_codec("json" if codec is None else codec)
    path = Path(os.path.realpath(path))
    if mode is not None and _mode("mode", mode) == "read":
        snapshot = DurableStore(path, clock or system_clock, found, read_only=True)
        return DurableConnection(snapshot.open_namespace(namespace), lease, api)
    with _open_lock:
        while True:
            store = _stores.get(path)
            if store is not None and not store.is_open:  # Wait until another thread has closed it.
                store.lock.acquire()
                store.lock.token[0] = True
            if store is None or not store.is_open:
                store = _stores[path] = DurableStore(path, clock or system_clock, found)
                if checked_sync == "full":
                    store.sync()
            check_same(store, clock, codec)
            if checked_sync is not None and (checked_sync == "full") != (store.syncer is not None):
                raise InvalidOption(option="sync", value=sync, rule=f"{store.url} is already open with another value")
            connection = DurableConnection(store.open_namespace(namespace), lease, api)
            if store.is_open:  # Another thread may just have ended its last session.
                return connection


def _after_fork() -> None:
    global _open_lock
    _stores.clear()
    _open_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
