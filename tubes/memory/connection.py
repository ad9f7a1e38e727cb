"""Connections to a store in memory."""

from __future__ import annotations

import asyncio
import os
import sys
from _thread import start_new_thread
from collections import Counter, deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, cast

from tubes.backend.port import ConnectionBase, check_session_uuid
from tubes.drivers.driver import check_stored_name, check_tube_name
from tubes.drivers.invariants import check_engine
from tubes.drivers.options import flag, micros
from tubes.errors import QueueClosed, SessionNotFound, TubeNotFound, TubesError
from tubes.memory import selecting
from tubes.memory.port import run_parts
from tubes.memory.quick import make_port
from tubes.memory.store import MemorySession
from tubes.values.codecs import JsonCodec
from tubes.values.overview import exact_names, match_names
from tubes.values.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator
    from uuid import UUID

    from tubes.backend.interface import ApiKind, IfExists, Options
    from tubes.drivers.driver import Driver
    from tubes.memory.calls import CallPort
    from tubes.memory.shared_tube import MemoryTube
    from tubes.memory.store import MemoryStore
    from tubes.values.overview import Overview


class MemoryConnection(ConnectionBase):
    """One connection of a `Queue` to a store."""

    store: MemoryStore

    def __init__(self, store: MemoryStore, lease: int, api: ApiKind) -> None:
        super().__init__(store.url)
        self.store = store
        self._lease: Final = lease
        self.api = api
        self.awaited = api.awaited
        self._ports: Final[dict[MemoryTube, CallPort]] = {}
        while not self._start_session():  # The last session of the namespace has just ended.
            self.store = self.store.current()  # pyright: ignore[reportIncompatibleVariableOverride]

    def _start_session(self) -> bool:
        """Start a session; return False if the store is forgotten."""
        self.store.lock.acquire()
        try:
            if not self.store.is_forgotten:
                self.session = MemorySession(self.store)
                self.session.join(self._lease)
                self.store.sessions[self.session.uuid] = self.session
            return not self.store.is_forgotten
        finally:
            self.store.lock.token[0] = True

    def sibling(
        self, api: ApiKind | None = None, namespace: str | None = None, session_ttl: float | None = None
    ) -> MemoryConnection:
        """Open another connection, with its own session; the defaults are those of this connection."""
        self.check()
        lease = self._lease if session_ttl is None else micros("session_ttl", session_ttl)
        store = self.store if namespace is None else self.store.open_namespace(namespace)
        return type(self)(store, lease, api or self.api)

    def register(self, driver: Driver) -> None:
        """Allow tubes with this driver."""
        self.check()
        self.store.registry.register(driver)

    def find(self, name: str) -> CallPort:
        """Return the port of an existing tube."""
        self.check()
        return self._port(self.store.find(check_tube_name(name)))

    def _port(self, shared: MemoryTube) -> CallPort:
        """Return this connection's port for a tube, made on first use. The tube may have been dropped by now."""
        self.store.lock.acquire()
        try:
            if self.closed is not None:
                raise self.closed()
            if self.store.shared_tubes.get(shared.name) is not shared:
                raise TubeNotFound(name=shared.name)
            port: CallPort | None = self._ports.get(shared)
            if port is None:
                port = self.make_port(shared)
                shared.ports.add(port)
                self._ports[shared] = port
            return port
        finally:
            self.store.lock.token[0] = True

    def make_port(self, shared: MemoryTube) -> CallPort:
        """Make the port for a tube. Under the lock."""
        port: CallPort = make_port(self, shared, self.session.hold(shared))
        port.kind, port.tube = self.api.task, self.api.tube(port)
        return port

    def create(
        self, name: str, driver: str | Driver, if_exists: IfExists, temporary: bool, options: Options
    ) -> CallPort:
        """Return the port of a new tube, or of the existing one if `if_exists` allows it."""
        self.check()
        name = check_tube_name(name)
        while True:
            shared = self.store.create(name, driver, if_exists, temporary, options)
            with suppress(TubeNotFound):  # The tube has just been dropped: try again.
                port = self._port(shared)
                if if_exists == "update":
                    altered: Any = port.tube._port.alter(shared.driver.fill(options))
                    if asyncio.iscoroutine(altered):
                        return cast("CallPort", _port_after(altered, port))
                return port

    def micros(self) -> int:
        """Return the time of the store's clock."""
        return self.store.clock.micros()

    def open_replies(self, name: str) -> CallPort:
        """Return the port of a new hidden fifo."""
        return self._port(self.store.create(name, "fifo", "raise", True, {}))

    def open_hidden(self, name: str, driver: str, idle: float, kept: bool) -> CallPort:
        """Return the port of a hidden tube of the library. Its data is JSON if the store encodes data.

        `kept`: a store in a folder keeps it in its file.
        """
        self.check()
        shared = self.store.create(name, driver, "same", not kept, {})
        return self._port(shared).use_codec(JsonCodec())

    def open_part(self, name: str, driver: Driver, temporary: bool, options: Options) -> CallPort:
        """Return the port of a partition, which is created if needed."""
        self.check()
        return self._port(self.store.create(name, driver, "keep", temporary, options))

    def is_reachable(self, name: str) -> bool:
        """Return True: a store in this process always replies."""
        return True

    @property
    def joins_all_lines(self) -> bool:
        """True if a caller that waits for a task of a partitioned tube is in the line of each partition."""
        return True

    def sleepers(self, name: str, born: int, parts: list[str]) -> None:
        """Return None: a waiting caller is in the line of each partition."""

    def find_part(self, name: str) -> CallPort:
        """Return the port of an existing partition."""
        self.check()
        return self._port(self.store.find(name))

    def find_replies(self, name: str) -> CallPort:
        """Return the port of a caller's reply tube. Raises `TubeNotFound` once the caller has stopped waiting."""
        self.check()
        return self._port(self.store.find(name))

    def forget(self, shared: MemoryTube) -> None:
        """Forget a dropped tube. Under the lock."""
        self._ports.pop(shared, None)

    def names(self) -> list[str]:
        """List the names of all tubes."""
        self.check()
        return self.store.names()

    def namespaces(self) -> list[str]:
        """List the namespaces that have tubes."""
        self.check()
        return self.store.namespaces()

    def overview(self, ages: bool, patterns: Collection[str] = ("*",)) -> Any:
        """Return an overview of each tube whose name matches, in parts."""
        self.check()
        flag("ages", ages)
        found: dict[str, Overview] = {}
        names = exact_names(patterns) or match_names(self.names(), patterns)
        return run_parts(self._look(names, ages, found), lambda: found, self.api)

    def _look(self, names: list[str], ages_too: bool, found: dict[str, Overview]) -> Iterator[bool]:
        """Add the overviews of tubes to `found`, a part for each step."""
        for name in names:
            shared = self.store.shared_tubes.get(name)
            if shared is None or not (shared.is_listed or "#" in name):
                continue
            seen: list[Overview] = []
            ages, lanes = list[float](), Counter[str]()

            def look(now: int, shared: MemoryTube = shared, seen: list[Overview] = seen) -> None:
                sessions = sum(shared in session.holds for session in self.store.sessions.values())
                seen.append(shared.overview(now, sessions))

            acts: list[Any] = [look, selecting.count_lanes(shared.engine, lanes)]
            for act in [*acts, selecting.find_oldest(shared.engine, ages)] if ages_too else acts:
                yield from iter(partial(shared.do_part, act), False)
            if seen:  # Otherwise the tube has just been dropped.
                seen.append(replace(seen[0], lanes=lanes["lanes"], throttled_lanes=lanes["throttled_lanes"]))
                found[name] = replace(seen[1], oldest_ready_age=ages[0]) if ages else seen[1]
            yield True

    def examine(self, name: str, repairs: bool) -> list[Problem]:
        """Return the problems of a tube; with `repairs`, repair them."""
        self.check()
        shared = self.store.find(check_stored_name(name))
        self.store.lock.acquire()
        try:
            if shared.engine.busy:
                shared.repair()
            check_engine(shared.engine)
        except AssertionError:
            if repairs:
                shared.engine.busy = shared.engine.next_take
                shared.repair()
            return [Problem("memory", 1, (name,), repairs, name)]
        finally:
            self.store.lock.token[0] = True
        return []

    def identify(self, uuid: str | UUID | None, create: bool = False) -> Any:
        """Move to the session `uuid`, if given, and return the session's uuid. With `create` the session may be new."""
        self.check()
        wanted = check_session_uuid(uuid, create)
        if wanted is None:
            return self.session.uuid
        return self._end_after(partial(self._move, wanted, create), wanted)

    def _move(self, wanted: str, create: bool) -> MemorySession:
        """Move to the session `wanted`; return the former one."""
        self.store.lock.acquire()
        try:
            if self.closed is not None:
                raise self.closed()
            old, new = self.session, self.store.sessions.get(wanted)
            if new is None or new.is_ending:
                if not create:
                    raise SessionNotFound(uuid=wanted)
                new = MemorySession(self.store, wanted)
            if new is old:
                return old
            holds = [new.hold(shared) for shared in self._ports]
            move = map(setattr, self._ports.values(), repeat("hold"), holds)
            try:
                # An interrupt can come only before the body of `join`, or after `deque` has moved all ports.
                new.join(self._lease)
                self.session = self.store.sessions[wanted] = new
                deque(move, maxlen=0)
                old.leave(self.store.clock.micros())
            except BaseException:
                if self.session is new:  # Use another thread, which signals do not interrupt.
                    start_new_thread(self._leave, (old,))
                raise
        finally:
            self.store.lock.token[0] = True
        return old

    def _leave(self, session: MemorySession) -> None:
        """Leave a session that this connection has moved away from."""
        self.store.lock.acquire()
        try:
            session.leave(self.store.clock.micros())
        finally:
            self.store.lock.token[0] = True
        deque(session.end(), maxlen=0)

    def _end_after(self, leave: Callable[[], MemorySession], result: object) -> Any:
        """Call `leave`, and end the session that it returns if it ends; return `result` as `run_parts` does."""
        try:
            return run_parts(leave().end(), lambda: result, self.api)
        except KeyboardInterrupt:  # Use another thread, which signals do not interrupt.
            start_new_thread(self.store.end_sessions, ())
            raise

    def close(self, *, lost: bool = False) -> Any:
        """End this connection; waiting callers get `QueueClosed`. `lost`: its session lives until its lease ends."""
        if self.closed is not None and not self.session.is_ending:  # A close that was interrupted is repeated.
            return None
        if self.replies is not None:
            self.replies.close()
        if self._pid != os.getpid():
            self.closed = self._make_forked_error
            return None
        return self._end_after(partial(self._close, lost), None)

    def _close(self, lost: bool) -> MemorySession:
        """Close the ports of this connection, and leave its session; return the session."""
        self.store.lock.acquire()
        try:
            if self.closed is not None:
                return self.session
            for shared, port in self._ports.items():
                port.closed_error = _make_closed_error
                shared.dismiss(set(port.waiters), _make_closed_error)
                if shared.put_waiters:  # The next put may need less room than a dismissed one.
                    shared.run(shared.serve, self.store.clock.micros())
                shared.listen(port, None)
                shared.ports.discard(port)
            self.session.leave(self.store.clock.micros(), lost=lost)
            self.closed = _make_closed_error
            self._ports.clear()
        finally:
            self.store.lock.token[0] = True
        return self.session

    def __del__(self) -> None:
        # When the process ends, released tasks are of no use, and no thread can be started.
        if sys.is_finalizing() or not hasattr(self, "session") or self.closed is not None or self._pid != os.getpid():
            return
        self.session.lost_connections.append(None)
        self.session.call_soon()


async def _port_after(altered: Awaitable[object], port: CallPort) -> CallPort:
    await altered
    return port


def _make_closed_error() -> TubesError:
    return QueueClosed(why="close() was called")
