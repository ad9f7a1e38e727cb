"""The store of one `memory://` URL: its tubes and sessions, under one lock."""

from __future__ import annotations

import os
import threading
from collections import deque
from functools import partial
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4
from weakref import WeakSet

from tubes.backend.alarms import Alarm
from tubes.backend.clock import fire_soon, system_clock
from tubes.backend.url import add_namespace
from tubes.drivers.driver import Driver, check_name
from tubes.drivers.engine import DUE_PART, Engine
from tubes.drivers.options import flag
from tubes.drivers.registry import Registry
from tubes.drivers.tube_options import WAYS_TO_USE_IT, difference, drop_reset_options, other_driver
from tubes.errors import InvalidOption, QueueForked, TubeExists, TubeNotFound
from tubes.memory.lock import Lock
from tubes.memory.shared_tube import MemoryTube
from tubes.values.codecs import are_same_codecs
from tubes.values.codecs import find as find_codec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tubes.backend.clock import Clock
    from tubes.backend.interface import IfExists, Options
    from tubes.drivers.entry import Hold
    from tubes.values.codecs import Codec


class MemorySession:
    """The holder of taken tasks: one connection, or several that share its uuid."""

    def __init__(self, store: MemoryStore, uuid: str | None = None) -> None:
        self.uuid: Final = uuid or uuid4().hex
        self.members = 0
        #: True from the moment when it ends until `end` has released its tasks.
        self.is_ending = False
        self.holds: Final[dict[MemoryTube, Hold]] = {}
        #: The session outlives a lost last connection by this many microseconds; `join` sets it.
        self.lease = 0
        #: One item per lost connection. Finalizers append to it, since they must not acquire the lock.
        self.lost_connections: Final[deque[None]] = deque()
        self._store: Final = store
        self._ends_at: int | None = None
        self._alarm: Final = Alarm(store.clock, self._fire)
        self._call: Final = Alarm(store.clock, self._fire)

    def hold(self, shared: MemoryTube) -> Hold:
        """Return the tasks of a tube that this session holds."""
        hold = self.holds.get(shared)
        if hold is None:
            hold = self.holds[shared] = shared.engine.open_hold()
        return hold

    def join(self, lease: int) -> None:
        """Add a connection. Under the lock. It calls no function, so it cannot be interrupted halfway."""
        self.members += 1
        if lease > self.lease:
            self.lease = lease
        self._ends_at = None

    def leave(self, now: int, *, lost: bool = False) -> None:
        """Remove a connection. The last one ends the session, at once or after its lease. Under the lock."""
        if self.members == 1:
            if lost and self.lease:
                self._ends_at = now + self.lease
                self._alarm.set(self._ends_at)
            else:
                self._begin_end()
        # Last, so that an interrupted call can be repeated.
        self.members -= 1

    def call_soon(self) -> None:
        """Let the alarm thread remove lost connections. Safe to call at any moment, also from finalizers."""
        fire_soon(self._call)

    def _begin_end(self) -> None:
        self.is_ending = True
        for hold in self.holds.values():
            hold.is_ended = True

    def end(self) -> Iterator[bool]:
        """Release the tasks of the session if it ends: a part for each step. Not under the lock; it may be repeated.

        If the steps are interrupted, the alarm thread does the others.
        """
        if not self.is_ending:
            return
        try:
            for shared, hold in sorted(self.holds.items(), key=lambda item: item[0].name):
                release = partial(_release_some, shared, hold, iter(sorted(hold)))
                yield from iter(partial(shared.do_part, release), False)
            self._store.lock.acquire()
            try:
                if self.is_ending:
                    self._store.remove_session(self)
                    self.holds.clear()
                    self.is_ending = False
            finally:
                self._store.lock.token[0] = True
        except (GeneratorExit, KeyboardInterrupt):
            self.call_soon()
            raise

    def _fire(self, now: int) -> None:
        self._store.lock.acquire()
        try:
            now = self._store.clock.micros()
            self._alarm.cancel()
            self._call.cancel()
            while self.lost_connections:
                self.leave(now, lost=True)
                self.lost_connections.pop()
            if self._ends_at is not None:
                if self._ends_at <= now:
                    self._begin_end()
                    self._ends_at = None
                else:
                    self._alarm.set(self._ends_at)
        finally:
            self._store.lock.token[0] = True
        deque(self.end(), maxlen=0)


def _release_some(shared: MemoryTube, hold: Hold, ids: Iterator[int], now: int) -> bool:
    """Release the next tasks of an ended session; return True if it has more."""
    has_more = shared.engine.close_hold(now, hold, [*islice(ids, DUE_PART)] or None)
    shared.serve(now)
    return has_more


class MemoryStore:
    """Tubes and sessions of one `memory://` URL.

    Each namespace is a separate store with its own lock. Its `home` is the store of the tubes without a namespace.
    """

    def __init__(
        self, url: str, clock: Clock, codec: Codec | None, home: MemoryStore | None = None, namespace: str = ""
    ) -> None:
        self.url: Final = add_namespace(url, namespace)
        self.clock: Final = clock
        self.codec: Final = codec
        self.registry: Final[Registry] = Registry() if home is None else home.registry
        self._home: Final = home
        self.namespace: Final = namespace
        #: True once the last session of an empty namespace has ended.
        self.is_forgotten = False
        # The stores of all namespaces, if this is a home.
        self._namespaces: Final[dict[str, MemoryStore]] = {}
        self.lock: Final = Lock()
        #: True if this is the copy, in a forked process, of a store that belongs to the parent.
        self.forked = False
        self.shared_tubes: Final[dict[str, MemoryTube]] = {}
        self.sessions: Final[dict[str, MemorySession]] = {}
        _stores.add(self)

    def open_namespace(self, namespace: str) -> MemoryStore:
        """Return the store of a namespace, created on first use; '' is the store of the tubes without a namespace."""
        home = self._home or self
        if not namespace:
            return home
        found = home._namespaces.get(namespace)
        # Two threads may create a store here; `setdefault` keeps one.
        return found or home._namespaces.setdefault(
            namespace, MemoryStore(home.url, home.clock, home.codec, home, namespace)
        )

    def current(self) -> MemoryStore:
        """Return the current store of the same namespace; it is another one if this store is forgotten."""
        return self.open_namespace(self.namespace)

    @property
    def _is_empty(self) -> bool:
        return not self.shared_tubes

    def namespaces(self) -> list[str]:
        """List the namespaces that have tubes."""
        home = self._home or self
        return sorted(name for name, store in home._namespaces.copy().items() if store.names())

    def names(self) -> list[str]:
        """List the names of all tubes."""
        self.lock.acquire()
        try:
            return sorted(name for name, shared in self.shared_tubes.items() if shared.is_listed)
        finally:
            self.lock.token[0] = True

    def keep_out(self, lock: Any) -> None:
        """Let the `acquire` of another lock decide which thread may use the store."""
        self.lock.attempts = map(lock.acquire, repeat(False))

    def create(
        self, name: str, driver: str | Driver, if_exists: IfExists, temporary: bool, options: Options
    ) -> MemoryTube:
        """Return a new tube, or the existing one if `if_exists` allows it. The caller updates its options."""
        flag("temporary", temporary)
        if not isinstance(driver, Driver):
            driver = self._named_driver(name, driver, if_exists)
        self.registry.check_new(driver)
        checked = driver.check_tube(options)
        self.lock.acquire()
        try:
            shared = self.shared_tubes.get(name)
            if shared is None:
                self.registry.register(driver)
                shared = self.shared_tubes[name] = self.make_tube(name, driver, checked, temporary)
                shared.temporary = temporary
            elif if_exists == "raise":
                raise TubeExists(name=name, why=WAYS_TO_USE_IT)
            elif shared.driver != driver:
                raise TubeExists(name=name, why=other_driver(shared.driver.name, driver.name))
            elif if_exists == "same" and drop_reset_options(shared.options) != drop_reset_options(checked):
                raise TubeExists(name=name, why=difference(shared.options, checked))
            return shared
        finally:
            self.lock.token[0] = True

    def make_tube(self, name: str, driver: Driver, options: Options, temporary: bool) -> MemoryTube:
        """Make a tube from checked options. Under the lock."""
        return MemoryTube(self.clock, self.lock, Engine(name, driver, options))

    def remove_tube(self, shared: MemoryTube) -> None:
        """Remove a dropped tube. Under the lock."""
        del self.shared_tubes[shared.name]

    def end_sessions(self) -> None:
        """End the sessions whose end was interrupted."""
        for session in [*self.sessions.values()]:
            deque(session.end(), maxlen=0)

    def remove_session(self, session: MemorySession) -> None:
        """Remove an ended session. The last session of an empty namespace removes the namespace too. Under the lock."""
        if self.sessions.get(session.uuid) is session:
            del self.sessions[session.uuid]
        if self._home is not None and not self.sessions and self._is_empty:
            self.is_forgotten = True
            self._home._namespaces.pop(self.namespace, None)

    def _named_driver(self, tube: str, name: str, if_exists: IfExists) -> Driver:
        """Find a driver by its name. If the tube exists with another driver, that error comes first."""
        name = check_name("driver", name)
        self.lock.acquire()
        try:
            shared = self.shared_tubes.get(tube)
        finally:
            self.lock.token[0] = True
        if shared is not None and if_exists != "raise" and shared.driver.name != name:
            raise TubeExists(name=tube, why=f"with driver {shared.driver.name!r}, not {name!r}")
        return self.registry.find(name)

    def find(self, name: str) -> MemoryTube:
        """Find a tube by its name."""
        self.lock.acquire()
        try:
            return self.shared_tubes[name]
        except KeyError:
            raise TubeNotFound(name=name) from None
        finally:
            self.lock.token[0] = True


_stores: WeakSet[MemoryStore] = WeakSet()
_named: dict[str, MemoryStore] = {}
_naming = threading.Lock()


def list_store_names() -> frozenset[str]:
    """Return the names of the stores that this process shares by name."""
    with _naming:
        return frozenset(_named)


def open_store(name: str, clock: Clock | None, codec: str | Codec | None) -> MemoryStore:
    """Return the store of this name, which lives as long as the process; without a name, a new store."""
    found = None if codec is None else find_codec(codec)
    check_clock(clock)
    if not name:
        return MemoryStore("memory://", clock or system_clock, found)
    check_name("url", name)
    with _naming:
        store = _named.get(name)
        if store is None:
            store = _named[name] = MemoryStore(f"memory://{name}", clock or system_clock, found)
    check_same(store, clock, codec)
    return store


def check_clock(clock: Clock | None) -> None:
    """Raise `InvalidOption` if this is not a clock."""
    if clock is not None and not all(hasattr(clock, name) for name in ("micros", "schedule", "patience")):
        raise InvalidOption(option="clock", value=clock, rule="must be a Clock, like tubes.testing.ManualClock()")


def check_same(store: MemoryStore, clock: Clock | None, codec: str | Codec | None) -> None:
    """Raise `InvalidOption` if an open store has another clock or codec."""
    if clock is not None and clock is not store.clock:
        raise InvalidOption(option="clock", value=clock, rule=f"{store.url} already uses another clock")
    if codec is not None and not are_same_codecs(find_codec(codec), store.codec):
        raise InvalidOption(option="codec", value=codec, rule=f"{store.url} already uses another codec")


class _ForkedLock:
    """Replaces the lock of the parent's store in a forked child: each call raises `QueueForked`."""

    def __init__(self, parent: int) -> None:
        self._parent: Final = parent

    def acquire(self, blocking: bool) -> bool:
        raise QueueForked(parent=self._parent, child=os.getpid())


def _after_fork() -> None:
    global _naming
    for store in _stores:
        store.keep_out(_ForkedLock(os.getppid()))
        store.forked = True
    _stores.clear()
    _named.clear()
    _naming = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
