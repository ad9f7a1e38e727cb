"""The store of a folder: it restores its tubes when it is opened, and creates and removes tubes."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from tubes.drivers.invariants import rebuild_indexes
from tubes.drivers.timers import NEVER
from tubes.durable import rows
from tubes.durable.database import PUT_DONE
from tubes.durable.engine import JournaledEngine
from tubes.durable.files import Files
from tubes.durable.journal import Journal
from tubes.durable.reading import TubeRow, read_engine, read_tubes
from tubes.durable.shared_tube import DurableTube
from tubes.errors import DriverNotFound, InvalidOption, StoreFull, StoreReadOnly
from tubes.memory.shared_tube import MemoryTube
from tubes.memory.store import MemoryStore
from tubes.values.codecs import name_of

if TYPE_CHECKING:
    from tubes.backend.clock import Clock
    from tubes.backend.interface import IfExists, Options
    from tubes.drivers.driver import Driver
    from tubes.durable.syncer import Syncer
    from tubes.errors import StoreFailed
    from tubes.memory.lock import Lock
    from tubes.memory.store import MemorySession
    from tubes.values.codecs import Codec
    from tubes.values.overview import FolderUsage


@contextmanager
def _pause_gc() -> Generator[None]:
    """Disable garbage collection: all new objects survive, and repeated scans would take a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class DurableStore(MemoryStore):
    """Tubes and sessions of a folder, or of one of its namespaces. It closes when its last session ends."""

    codec: Codec  # type: ignore[misc]

    def __init__(
        self,
        path: Path,
        clock: Clock,
        codec: Codec,
        home: DurableStore | None = None,
        namespace: str = "",
        *,
        read_only: bool = False,
    ) -> None:
        super().__init__(f"file:{path}", clock, codec, home, namespace)
        self._path: Final = path
        #: True for a read-only snapshot.
        self.read_only: Final[bool] = read_only if home is None else home.read_only
        #: Tubes in the file whose drivers are not registered.
        self._unloaded: Final[dict[str, TubeRow]] = {}
        if home is not None:
            self.lock: Lock = home.lock  # type: ignore[misc]
            self._files: Files = home._files
            return
        self._files = Files(path, self.url, self._fail_tubes, self.lock, read_only=read_only)
        try:
            with self._files.reading():
                self._check_codec(codec)
                with _pause_gc():
                    self._load_all()
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """True until it is closed or fails; then it must be opened again."""
        return self._files.is_open

    @property
    def syncer(self) -> Syncer | None:
        """Syncs commits before a method returns; None: commits are not synced."""
        return self._files.syncer

    def usage(self) -> FolderUsage:
        return self._files.usage()

    def sync(self) -> None:
        """Sync commits before methods return. Call it before the store is shared."""
        self._files.sync()

    def _check_codec(self, codec: Codec) -> None:
        """Raise `InvalidOption` if another codec has written the data."""
        name = name_of(codec)
        self._files.database.execute("INSERT OR IGNORE INTO store VALUES ('codec', ?)", (name,))
        known = self._files.database.execute("SELECT value FROM store WHERE name='codec'").fetchone()[0]
        if known != name:
            raise InvalidOption(option="codec", value=name, rule=f"must be {known!r}, the codec of {self.url}")

    def _load_all(self) -> None:
        """Load all tubes of all namespaces whose drivers are registered."""
        database = self._files.database
        with suppress(StoreFull):  # Without the correction delays last longer, by the time that the clock was set back.
            self._files.write(self._correct_times, self.clock.micros())
        database.find_numbers()
        for tube in read_tubes(database):
            store = self.open_namespace(tube.namespace)
            store._unloaded[tube.name] = tube
            with suppress(DriverNotFound):
                store._load_tube(tube)

    def _correct_times(self, now: int) -> bool:
        """If the clock was set back since the last change, make all times earlier, so that remaining times are kept."""
        execute = self._files.database.execute
        tubes = execute("SELECT number, facts FROM tubes").fetchall()
        written = [execute("SELECT max(created) FROM tasks").fetchone()[0] or 0]
        written += [rows.read_facts(facts)["now"] for _, facts in tubes]
        written += [now for (now,) in execute("SELECT value FROM store WHERE name='now'")]
        span = max(written) - now
        if span <= 0:
            return False
        with self._files.database.transaction():
            execute("UPDATE store SET value=value-? WHERE name='now'", (span,))
            execute("UPDATE keys SET until=until-?", (span,))
            execute("UPDATE tasks SET created=created-?", (span,))
            for moment in ("until", "dead"):
                execute(f"UPDATE tasks SET {moment}={moment}-? WHERE {moment}<{NEVER}", (span,))
            for row in execute("SELECT * FROM done").fetchall():
                base = row[0] >> rows.ID_BITS << rows.ID_BITS
                execute(PUT_DONE, rows.shift_done(base, rows.read_done(row), span))
            for number, facts in tubes:
                execute("UPDATE tubes SET facts=? WHERE number=?", (rows.shift_facts(facts, span), number))
            for number, name, facts in execute("SELECT tube, name, facts FROM lanes").fetchall():
                shifted = rows.shift_rate(facts, span)
                execute("UPDATE lanes SET facts=? WHERE tube=? AND name=?", (shifted, number, name))
        return True

    def _load_tube(self, tube: TubeRow) -> None:
        """Load a tube. Call it under the lock, or before the store is shared."""
        now, database = self.clock.micros(), self._files.database
        driver = rows.read_driver(tube.driver, self.registry)
        engine = JournaledEngine(tube.name, driver, rows.read_options(tube.options))
        hold = engine.open_hold()
        read_engine(engine, database, tube, now, hold, {})
        rebuild_indexes(engine, now)
        if self.read_only:
            self.shared_tubes[tube.name] = MemoryTube(self.clock, self.lock, engine)
            del self._unloaded[tube.name]
            return
        # The former holders of tasks no longer exist.
        engine.close_hold(now, hold)
        engine.expire(now)
        engine.reserve = self._files.reserve
        journal = Journal(database, engine, tube.number, self.namespace, tube.epoch)
        shared = DurableTube(self.clock, self.lock, engine, journal, self._files)
        with suppress(StoreFull):  # These changes are repeated when the store is opened again.
            shared.serve(now)
        self.shared_tubes[tube.name] = shared
        del self._unloaded[tube.name]

    @override
    def make_tube(self, name: str, driver: Driver, options: Options, temporary: bool) -> MemoryTube:
        if temporary or (self.read_only and "#" in name):  # A partition that nobody has used yet.
            return super().make_tube(name, driver, options, temporary)
        if self.read_only:
            raise StoreReadOnly(url=self.url)
        engine = JournaledEngine(name, driver, options)
        engine.reserve = self._files.reserve
        engine.check_room()
        journal = Journal(self._files.database, engine, self._files.database.next_number(), self.namespace)
        self._files.write(journal.commit, self.clock.micros())
        return DurableTube(self.clock, self.lock, engine, journal, self._files)

    @override
    def remove_tube(self, shared: MemoryTube) -> None:
        if not isinstance(shared, DurableTube):
            super().remove_tube(shared)
            return
        try:
            self._files.write(shared.journal.drop, self.clock.micros())
            super().remove_tube(shared)
        except BaseException:
            shared.journal.dropped = shared.name not in self.shared_tubes
            raise

    @override
    def remove_session(self, session: MemorySession) -> None:
        super().remove_session(session)
        home = self._home or self
        if not any(store.sessions for store in (home, *home._namespaces.copy().values())):
            self.close()

    @property
    @override
    def _is_empty(self) -> bool:
        return super()._is_empty and not self._unloaded

    @override
    def open_namespace(self, namespace: str) -> DurableStore:
        home: Any = self._home or self
        if not namespace:
            return home  # type: ignore[no-any-return]
        found: DurableStore | None = home._namespaces.get(namespace)
        made = found or DurableStore(self._path, self.clock, self.codec, home, namespace)
        kept: DurableStore = home._namespaces.setdefault(namespace, made)
        return kept

    @override
    def names(self) -> list[str]:
        self._files.check()
        return sorted([*super().names(), *self._unloaded])

    @override
    def find(self, name: str) -> MemoryTube:
        self._ensure_loaded(name)
        return super().find(name)

    @override
    def create(
        self, name: str, driver: str | Driver, if_exists: IfExists, temporary: bool, options: Options
    ) -> MemoryTube:
        if name in self._unloaded and not isinstance(driver, str):
            self.registry.register(driver)
        self._ensure_loaded(name)
        return super().create(name, driver, if_exists, temporary, options)

    def _ensure_loaded(self, name: str) -> None:
        """Load a tube whose driver was registered after the store was opened. Raises the error of a failed store."""
        self._files.check()
        if name in self._unloaded:
            self.lock.acquire()
            try:
                if name in self._unloaded:
                    with self._files.reading():
                        self._load_tube(self._unloaded[name])
            finally:
                self.lock.token[0] = True

    def close(self) -> None:
        """Close the files, which all namespaces share: another process may open the store. Call it under the lock."""
        for shared in self._durable_tubes():
            shared.close()
        self._files.close()

    def _fail_tubes(self, error: StoreFailed) -> None:
        for shared in self._durable_tubes():
            shared.fail(error)

    def _durable_tubes(self) -> list[DurableTube]:
        """Return the persistent tubes of all namespaces."""
        home = self._home or self
        found = (
            shared for store in (home, *home._namespaces.copy().values()) for shared in store.shared_tubes.values()
        )
        return [shared for shared in found if isinstance(shared, DurableTube)]
