"""The store of one `memory://` URL: its tubes and sessions, under one lock."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from tubes.backend.clock import system_clock
from tubes.drivers.driver import Driver, check_name
from tubes.drivers.options import difference, flag
from tubes.drivers.registry import Registry
from tubes.errors import InvalidOption, QueueForked, TubeExists, TubeNotFound
from tubes.memory.shared_tube import SharedTube
from tubes.values.codecs import find as find_codec
from tubes.values.codecs import same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tubes.backend.clock import Clock
    from tubes.memory.connection import Session
    from tubes.values.codecs import Codec


class MemoryStore:
    """Tubes and sessions of one `memory://` URL."""

    def __init__(self, url: str, clock: Clock, codec: Codec | None) -> None:
        self.url: Final = url
        self.clock: Final = clock
        self.codec: Final = codec
        #: Whether sleepers are woken by the clock rather than by real time.
        self.rings_sleepers: Final = clock.patience(clock.micros()) is None
        self.registry: Final = Registry()
        self.keep_out(threading.Lock())
        #: Whether this is a fork's copy of a store that belongs to the parent.
        self.forked = False
        self.shared_tubes: Final[dict[str, SharedTube]] = {}
        self.sessions: Final[dict[str, Session]] = {}
        _stores.add(self)

    def keep_out(self, lock: Any) -> None:
        """Go by this lock."""
        self.lock = lock
        #: Its next item is True, once the lock is acquired. Interrupts come after calls and where loops begin anew:
        #: hence not between `for held in store.entering: break` and the note of it in `held`, nor between
        #: `held = False` and the `store.lock.release()` behind it. `with` is as safe, and a cycle of verbs takes a
        #: tenth longer by it.
        self.entering: Iterator[bool] = iter(lock.acquire, False)

    def create(
        self, name: str, driver: str | Driver, if_not_exists: bool, temporary: bool, options: dict[str, Any]
    ) -> SharedTube:
        """A new tube; with `if_not_exists` the living one, if it is what was asked for."""
        name = check_name("tube", name)
        flag("if_not_exists", if_not_exists)
        flag("temporary", temporary)
        if not isinstance(driver, Driver):
            driver = self._named_driver(name, driver, if_not_exists)
        self.registry.admit(driver)
        checked = driver.check_tube(options)
        with self.lock:
            shared = self.shared_tubes.get(name)
            if shared is None:
                self.registry.register(driver)
                shared = self.shared_tubes[name] = SharedTube(self, name, driver, checked)
            elif not if_not_exists:
                raise TubeExists(name=name, why="pass if_not_exists=True to use it")
            elif shared.driver != driver:
                raise TubeExists(name=name, why=f"with driver {shared.driver.name!r}, not {driver.name!r}")
            elif shared.options != checked:
                raise TubeExists(name=name, why=difference(shared.options, checked))
            return shared

    def _named_driver(self, tube: str, name: str, if_not_exists: bool) -> Driver:
        """The driver of this name; that a living tube has another one is said first, whether it is known or not."""
        name = check_name("driver", name)
        with self.lock:
            shared = self.shared_tubes.get(tube)
        if shared is not None and if_not_exists and shared.driver.name != name:
            raise TubeExists(name=tube, why=f"with driver {shared.driver.name!r}, not {name!r}")
        return self.registry.find(name)

    def find(self, name: str) -> SharedTube:
        """The living tube of this name."""
        name = check_name("tube", name)
        with self.lock:
            try:
                return self.shared_tubes[name]
            except KeyError:
                raise TubeNotFound(name=name) from None


_stores: WeakSet[MemoryStore] = WeakSet()
_named: dict[str, MemoryStore] = {}
_naming = threading.Lock()


def named() -> frozenset[str]:
    """The names of the stores that this process shares by name."""
    with _naming:
        return frozenset(_named)


def open_store(name: str, clock: Clock | None, codec: str | Codec | None) -> MemoryStore:
    """The store of this name, which lives as long as the process; without a name, a new one."""
    found = None if codec is None else find_codec(codec)
    if clock is not None and not all(hasattr(clock, name) for name in ("micros", "schedule", "patience")):
        raise InvalidOption(option="clock", value=clock, rule="must be a Clock, as tubes.testing.ManualClock() is")
    if not name:
        return MemoryStore("memory://", clock or system_clock, found)
    check_name("url", name)
    with _naming:
        store = _named.get(name)
        if store is None:
            store = _named[name] = MemoryStore(f"memory://{name}", clock or system_clock, found)
    if clock is not None and clock is not store.clock:
        raise InvalidOption(option="clock", value=clock, rule=f"{store.url} goes by another clock already")
    if found is not None and not same(found, store.codec):
        raise InvalidOption(option="codec", value=codec, rule=f"{store.url} was made with another codec")
    return store


class _ForkedLock:
    """Stands in a forked child for the lock of a store that belongs to the parent."""

    def __init__(self, parent: int) -> None:
        self._parent: Final = parent

    def acquire(self, *_: object, **__: object) -> None:
        raise QueueForked(parent=self._parent, child=os.getpid())

    __enter__ = acquire

    def release(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _after_fork() -> None:
    global _naming
    for store in _stores:
        store.keep_out(_ForkedLock(os.getppid()))
        store.forked = True
    _stores.clear()
    _named.clear()
    _naming = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
