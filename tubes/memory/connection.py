"""Sessions, and the connections that they consist of."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

from tubes.backend.alarms import Alarm
from tubes.backend.clock import soon
from tubes.drivers.options import flag
from tubes.errors import InvalidOption, QueueClosed, QueueForked, SessionNotFound, TubeNotFound
from tubes.memory.overview import overview
from tubes.memory.quick import port_of
from tubes.values.problem import Problem

if TYPE_CHECKING:
    from tubes.backend.interface import Face
    from tubes.calls import Replies
    from tubes.drivers.driver import Driver
    from tubes.drivers.entry import Hold
    from tubes.errors import TubesError
    from tubes.memory.port import Port
    from tubes.memory.shared_tube import Home
    from tubes.memory.store import MemoryStore
    from tubes.values.overview import Overview


class Session:
    """Who tasks belong to: one connection, or several that share its uuid."""

    def __init__(self, store: MemoryStore) -> None:
        self.uuid: Final = uuid4().hex
        self.members = 0
        self.holds: Final[dict[Home, Hold]] = {}
        #: How long it outlives its last connection if that one was lost rather than closed; set when it joins.
        self.lease = 0
        #: One item per connection that was lost: appended by finalizers, which must not lock.
        self.lost: Final[deque[None]] = deque()
        self._store: Final = store
        self._ends_at: int | None = None
        self._alarm: Final = Alarm(store.clock, self._ring)
        self._call: Final = Alarm(store.clock, self._ring)

    def hold(self, home: Home) -> Hold:
        """What this session holds of a tube."""
        hold = self.holds.get(home)
        if hold is None:
            hold = self.holds[home] = home.engine.open_hold()
        return hold

    def join(self, lease: int) -> None:
        """One more connection. Under the lock."""
        self.members += 1
        self.lease = max(self.lease, lease)
        self._ends_at = None

    def leave(self, now: int, *, lost: bool = False) -> list[Home]:
        """One connection less; without any the session ends, at once or after its lease. Answers the tubes to tell."""
        homes: list[Home] = []
        if self.members == 1:
            if lost and self.lease:
                self._ends_at = now + self.lease
                self._alarm.set(self._ends_at)
            else:
                homes = self._end(now)
        # Last, so that it can be done again if it was interrupted.
        self.members -= 1
        return homes

    def call_soon(self) -> None:
        """Have the alarm thread look after lost connections. Safe in the middle of anything."""
        soon(self._call)

    def _end(self, now: int) -> list[Home]:
        self._store.sessions.pop(self.uuid, None)
        homes = sorted(self.holds, key=lambda home: home.name)
        for home in homes:
            home.engine.expire(now)
            home.engine.close_hold(now, self.holds[home])
            home.settle(now)
        self.holds.clear()
        return homes

    def _ring(self, now: int) -> None:
        homes: list[Home] = []
        with self._store.lock:
            now = self._store.clock.micros()
            self._alarm.silence()
            self._call.silence()
            while self.lost:
                self.lost.pop()
                homes += self.leave(now, lost=True)
            if self._ends_at is not None:
                if self._ends_at <= now:
                    self._ends_at = None
                    homes += self._end(now)
                else:
                    self._alarm.set(self._ends_at)
        for home in homes:
            home.tell()


class Member:
    """One connection to a store: what a `Queue` works through."""

    def __init__(self, store: MemoryStore, lease: int, face: Face) -> None:
        self.closed: Callable[[], TubesError] | None = None
        #: Where it gets the replies to its calls.
        self.replies: Replies | None = None
        self.store: Final = store
        self.url: Final = store.url
        self._lease: Final = lease
        self._face: Final = face
        self._ports: Final[dict[Home, Port[Any]]] = {}
        self._pid: Final = os.getpid()
        with store.lock:
            self.session = Session(store)
            self.session.join(lease)
            store.sessions[self.session.uuid] = self.session

    def sibling(self, face: Face | None = None) -> Member:
        """Another connection to the same store, with a session of its own; perhaps with another face."""
        self.check()
        return Member(self.store, self._lease, face or self._face)

    def register(self, driver: Driver) -> None:
        """Let tubes be created with this driver."""
        self.check()
        self.store.registry.register(driver)

    def check(self) -> None:
        """Raise `QueueClosed` if this connection is closed, `QueueForked` if it is another process's."""
        if self.closed is not None:
            raise self.closed()
        if self._pid != os.getpid():
            raise QueueForked(parent=self._pid, child=os.getpid())

    def find(self, name: str) -> Port[Any]:
        """The port of a living tube."""
        self.check()
        return self._port(self.store.find(name))

    def _port(self, home: Home) -> Port[Any]:
        """The port of this connection for a tube, made when it is first asked for; the tube may be dropped by now."""
        with self.store.lock:
            if self.closed is not None:
                raise self.closed()
            if self.store.homes.get(home.name) is not home:
                raise TubeNotFound(name=home.name)
            port: Port[Any] | None = self._ports.get(home)
            if port is None:
                port = port_of(self, home, self.session.hold(home))
                port.kind, port.tube = self._face.task, self._face.tube(port)
                self._ports[home] = port
                home.ports.add(port)
            return port

    def create(
        self, name: str, driver: str | Driver, if_not_exists: bool, temporary: bool, options: dict[str, Any]
    ) -> Port[Any]:
        """The port of a new tube; with `if_not_exists` of the living one, if it is what was asked for."""
        self.check()
        while True:
            home = self.store.create(name, driver, if_not_exists, temporary, options)
            with suppress(TubeNotFound):  # Dropped since by somebody else: once more.
                return self._port(home)

    def open_replies(self, name: str) -> Port[Any]:
        """The port of a new fifo that nobody sees."""
        home = self.store.create(name, "fifo", False, True, {})
        home.is_listed = False
        return self._port(home)

    def find_replies(self, name: str) -> Port[Any]:
        """The port of the same, for who answers; `TubeNotFound`: nobody waits any more."""
        return self.find(name)

    def forget(self, home: Home) -> None:
        """The tube was dropped. Under the lock."""
        self._ports.pop(home, None)

    def names(self) -> list[str]:
        """The names of all tubes."""
        self.check()
        with self.store.lock:
            return sorted(name for name, home in self.store.homes.items() if home.is_listed)

    def overview(self, ages: bool) -> dict[str, Overview]:
        """All tubes at a glance, one after the other."""
        flag("ages", ages)
        found: dict[str, Overview] = {}
        for name in self.names():
            with self.store.lock:
                home = self.store.homes.get(name)
                if home is None:
                    continue  # It was dropped meanwhile.
                try:
                    now = self.store.clock.micros()
                    home.settle(now)
                    found[name] = overview(home, now, ages=ages)
                except BaseException as error:
                    home.recover(error)
                    raise
            if home.events:
                home.tell()
        return found

    def examine(self, name: str, mends: bool) -> list[Problem]:
        """What is wrong with a tube; `mends`: it is mended."""
        self.check()
        home = self.store.find(name)
        with self.store.lock:
            try:
                home.engine._check()
            except AssertionError as error:
                if mends:
                    home.recover(error)
                return [Problem("memory", 1, (name,), mends)]
        return []

    def identify(self, uuid: str | UUID | None) -> str:
        """The session's uuid, after moving to another one if one is named."""
        self.check()
        if uuid is None:
            return self.session.uuid
        try:
            wanted = (uuid if isinstance(uuid, UUID) else UUID(hex=uuid)).hex
        except (ValueError, TypeError, AttributeError):
            raise InvalidOption(option="uuid", value=uuid, rule="must be 32 hexadecimal digits") from None
        with self.store.lock:
            if self.closed is not None:
                raise self.closed()
            old, new = self.session, self.store.sessions.get(wanted)
            if new is None:
                raise SessionNotFound(uuid=wanted)
            if new is old:
                return wanted
            self.session = new
            new.join(self._lease)
            for home, port in self._ports.items():
                port.hold = new.hold(home)
            homes = old.leave(self.store.clock.micros())
        for home in homes:
            home.tell()
        return wanted

    def close(self, *, lost: bool = False) -> None:
        """End this connection; waiting callers get `QueueClosed`. `lost`: its session lives on for its lease."""
        if self.closed is not None:
            return
        if self.replies is not None:
            self.replies.close()
        if self._pid != os.getpid():
            self.closed = lambda: QueueForked(parent=self._pid, child=os.getpid())
            return
        with self.store.lock:
            if self.closed is not None:
                return
            try:
                self.closed = _closed
                for home, port in self._ports.items():
                    port.gone = _closed
                    home.dismiss(set(port.waiters), _closed)
                    if home.putters:  # Who stood behind one of them may need less room.
                        home.settle(self.store.clock.micros())
                    home.listen(port, None)
                    home.ports.discard(port)
                homes = self.session.leave(self.store.clock.micros(), lost=lost)
                self._ports.clear()
            except BaseException as error:
                # It was interrupted, and can be closed again.
                self.closed = None
                for home in self.session.holds:
                    home.recover(error)
                raise
        for home in homes:
            home.tell()

    def __del__(self) -> None:
        # At the end of the process nobody is left to release tasks to, and no thread can be started any more.
        if sys.is_finalizing() or not hasattr(self, "session") or self.closed is not None or self._pid != os.getpid():
            return
        self.session.lost.append(None)
        self.session.call_soon()


def _closed() -> QueueClosed:
    return QueueClosed(why="close() was called")
