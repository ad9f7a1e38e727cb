"""The backend in memory: one store per URL, one lock per store.

A `MemoryStore` keeps tubes (`Home`) and sessions. A `Member` is one connection: it belongs to a session, alone or with
others, and has a `Port` per tube. Every verb is one critical section: what is due happens, then the verb, then whoever
waits for what it made possible is served. Listeners are told after the lock is released, in order.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final, Generic
from uuid import UUID, uuid4
from weakref import WeakSet

from tubes.clock import Alarm, Clock, soon, system_clock
from tubes.codecs import Codec
from tubes.codecs import find as find_codec
from tubes.drivers.driver import Driver, Registry, check_name
from tubes.drivers.engine import Engine
from tubes.drivers.entry import Entry, Hold
from tubes.drivers.moves import State
from tubes.drivers.options import flag, micros, whole
from tubes.errors import (
    InvalidOption,
    QueueClosed,
    QueueForked,
    SessionNotFound,
    TubeBusy,
    TubeExists,
    TubeNotFound,
    TubesError,
)
from tubes.statistics import Statistics
from tubes.task import F, Facts, snapshot
from tubes.waiters import PENDING, Waiter

_log = logging.getLogger("tubes")

#: Called with a task and the name of an event.
Listener = Callable[[Any, str], object]


class MemoryStore:
    """Tubes and sessions of one `memory://` URL."""

    def __init__(self, url: str, clock: Clock, codec: Codec | None) -> None:
        self.url: Final = url
        self.clock: Final = clock
        self.codec: Final = codec
        #: Whether sleepers are woken by the clock rather than by real time.
        self.rings_sleepers: Final = clock.patience(clock.micros()) is None
        self.registry: Final = Registry()
        self.lock: Any = threading.Lock()
        self.homes: Final[dict[str, Home]] = {}
        self.sessions: Final[dict[str, Session]] = {}
        _stores.add(self)

    def create(
        self, name: str, driver: str | Driver, if_not_exists: bool, temporary: bool, options: dict[str, Any]
    ) -> Home:
        """A new tube; with `if_not_exists` the living one, if it is what was asked for."""
        check_name("tube", name)
        flag("if_not_exists", if_not_exists)
        flag("temporary", temporary)
        if isinstance(driver, Driver):
            self.registry.register(driver)
        else:
            driver = self.registry.find(driver)
        checked = driver.check_tube(options)
        with self.lock:
            home = self.homes.get(name)
            if home is None:
                home = self.homes[name] = Home(self, name, driver, checked)
            elif not if_not_exists:
                raise TubeExists(name=name, why="pass if_not_exists=True to use it")
            elif home.driver != driver:
                raise TubeExists(name=name, why=f"with driver {home.driver.name!r}, not {driver.name!r}")
            elif home.options != checked:
                raise TubeExists(name=name, why="with other options")
            return home

    def find(self, name: str) -> Home:
        """The living tube of this name."""
        check_name("tube", name)
        with self.lock:
            try:
                return self.homes[name]
            except KeyError:
                raise TubeNotFound(name=name) from None


class Home:
    """One tube of a store: its tasks, who waits on it, who listens to it."""

    def __init__(self, store: MemoryStore, name: str, driver: Driver, options: dict[str, Any]) -> None:
        self.store: Final = store
        self.name: Final = name
        self.driver: Final = driver
        self.options: Final = options
        self.engine: Final = Engine(name, driver, options)
        self.takers: Final[OrderedDict[Waiter, None]] = OrderedDict()
        self.putters: Final[OrderedDict[Waiter, None]] = OrderedDict()
        self.ports: Final[WeakSet[Port[Any]]] = WeakSet()
        self.listeners: Final[dict[Port[Any], Listener]] = {}
        self.events: Final[deque[tuple[Listener, Any, str]]] = deque()
        #: Whether anybody would notice what happens: somebody waits or listens.
        self.watched = False
        self._telling = threading.Lock()
        self._alarm: Final = Alarm(store.clock, self._ring)

    def settle(self, now: int) -> None:
        """Serve whoever waits, in order of arrival, and see to it that the next deadline is kept. Under the lock."""
        engine = self.engine
        while True:
            if engine.timers.soonest <= now:
                engine.expire(now)
            while self.putters and not engine.full:
                waiter = self._next(self.putters)
                if waiter is not None:
                    self._serve(waiter, engine.put(now, *waiter.request))
            while self.takers and self._hand_over(now):
                pass
            if engine.timers.soonest > now and not (self.putters and not engine.full):
                break
        self.watch()

    def _hand_over(self, now: int) -> bool:
        """Give the next task to the next taker; False if there is none."""
        waiter = next(iter(self.takers))
        if waiter.lost:
            del self.takers[waiter]
            return True
        entry = self.engine.take(now, waiter.owner.hold)
        if entry is None:
            return False
        del self.takers[waiter]
        if not self._serve(waiter, entry):
            self.engine.untake(now, entry)
        return True

    @staticmethod
    def _next(line: OrderedDict[Waiter, None]) -> Waiter | None:
        waiter, _ = line.popitem(last=False)
        return None if waiter.lost else waiter

    @staticmethod
    def _serve(waiter: Waiter, entry: Entry) -> bool:
        waiter.answer = waiter.owner.show(entry)
        return waiter.wake()

    def watch(self) -> None:
        """Note whether anybody waits or listens, and set the alarm for them. Under the lock."""
        self.watched = bool(self.takers or self.putters or self.listeners)
        if self.watched:
            self._alarm.set(self.engine.timers.soonest)
            if self.store.rings_sleepers:
                for line in (self.takers, self.putters):
                    for waiter in line:
                        if waiter.deadline is not None:
                            self._alarm.set(waiter.deadline)

    def _ring(self, now: int) -> None:
        """The clock says that a deadline has come."""
        with self.store.lock:
            self._alarm.silence()
            if not self.watched:
                return
            self.settle(now)
            if self.store.rings_sleepers:
                for line in (self.takers, self.putters):
                    for waiter in [w for w in line if w.deadline is not None and w.deadline <= now]:
                        del line[waiter]
                        waiter.wake()
            self.watch()
        self.tell()

    def listen(self, port: Port[Any], callback: Listener | None) -> Listener | None:
        """Set or remove a port's listener; answers the one it had. Under the lock."""
        before = self.listeners.pop(port, None)
        if callback is not None:
            self.listeners[port] = callback
        self.engine.listener = self._note if self.listeners else None
        self.watch()
        return before

    def _note(self, entry: Entry, event: str) -> None:
        for port, callback in self.listeners.items():
            self.events.append((callback, port.show(entry), event))

    def tell(self) -> None:
        """Tell the listeners what has happened, in order; one thread at a time does so. Not under the lock."""
        while self.events and self._telling.acquire(blocking=False):
            try:
                while self.events:
                    callback, task, event = self.events.popleft()
                    try:
                        callback(task, event)
                    except Exception:
                        _log.exception("a listener of tube %r failed on event %r of %r", self.name, event, task)
            finally:
                self._telling.release()

    def dismiss(self, port: Port[Any] | None, error: Callable[[], TubesError]) -> None:
        """Answer an error to the waiters of one port, or to all. Under the lock."""
        for line in (self.takers, self.putters):
            for waiter in [waiter for waiter in line if port is None or waiter.owner is port]:
                del line[waiter]
                waiter.answer = error()
                waiter.wake()


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
            hold = self.holds[home] = Hold()
            home.engine.holds.append(hold)
        return hold

    def join(self, lease: int) -> None:
        """One more connection. Under the lock."""
        self.members += 1
        self.lease = max(self.lease, lease)
        self._ends_at = None

    def leave(self, now: int, *, lost: bool = False) -> list[Home]:
        """One connection less; without any the session ends, at once or after its lease. Answers the tubes to tell."""
        self.members -= 1
        if self.members:
            return []
        if lost and self.lease:
            self._ends_at = now + self.lease
            self._alarm.set(self._ends_at)
            return []
        return self._end(now)

    def call_soon(self) -> None:
        """Have the alarm thread look after lost connections. Safe in the middle of anything."""
        soon(self._call)

    def _end(self, now: int) -> list[Home]:
        self._store.sessions.pop(self.uuid, None)
        homes = sorted(self.holds, key=lambda home: home.name)
        for home in homes:
            engine = home.engine
            engine.expire(now)
            engine.release_held(now, self.holds[home])
            engine.holds.remove(self.holds[home])
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

    def __init__(self, store: MemoryStore, lease: int) -> None:
        self.closed: Callable[[], TubesError] | None = None
        self.store: Final = store
        self._lease: Final = lease
        self._ports: Final[dict[Home, Port[Any]]] = {}
        self._pid: Final = os.getpid()
        with store.lock:
            self.session = Session(store)
            self.session.join(lease)
            store.sessions[self.session.uuid] = self.session

    def sibling(self) -> Member:
        """Another connection to the same store, with a session of its own."""
        self.check()
        return Member(self.store, self._lease)

    def check(self) -> None:
        """Raise `QueueClosed` if this connection is closed, `QueueForked` if it is another process's."""
        if self.closed is not None:
            raise self.closed()
        if self._pid != os.getpid():
            raise QueueForked(parent=self._pid, child=os.getpid())

    def port(self, home: Home, kind: type[F], make_tube: Callable[[Port[F]], Any]) -> Port[F]:
        """The port of this connection for a tube, made when it is first asked for."""
        with self.store.lock:
            if self.closed is not None:
                raise self.closed()
            port = self._ports.get(home)
            if port is None:
                port = Port[F](self, home, self.session.hold(home))
                port.kind, port.tube = kind, make_tube(port)
                self._ports[home] = port
                home.ports.add(port)
            return port

    def forget(self, home: Home) -> None:
        """The tube was dropped. Under the lock."""
        self._ports.pop(home, None)

    def names(self) -> list[str]:
        """The names of all tubes."""
        self.check()
        with self.store.lock:
            return sorted(self.store.homes)

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
        if self._pid != os.getpid():
            self.closed = lambda: QueueForked(parent=self._pid, child=os.getpid())
            return
        with self.store.lock:
            if self.closed is not None:
                return
            self.closed = _closed
            for home, port in self._ports.items():
                port.gone = _closed
                home.dismiss(port, _closed)
                home.listen(port, None)
                home.ports.discard(port)
            homes = self.session.leave(self.store.clock.micros(), lost=lost)
            self._ports.clear()
        for home in homes:
            home.tell()

    def __del__(self) -> None:
        if getattr(self, "session", None) is not None and self.closed is None and self._pid == os.getpid():
            self.session.lost.append(None)
            self.session.call_soon()


def _closed() -> QueueClosed:
    return QueueClosed(why="close() was called")


class Port(Generic[F]):
    """What one connection can do with one tube. Every method is atomic."""

    #: The face's tasks and tube.
    kind: type[F]
    tube: Any

    def __init__(self, member: Member, home: Home, hold: Hold) -> None:
        self.member: Final = member
        self.home: Final = home
        #: What this connection's session holds of the tube.
        self.hold = hold
        #: Makes the error for a tube that is dropped or a queue that is closed.
        self.gone: Callable[[], TubesError] | None = None
        self.url: Final = member.store.url
        self.clock: Final = member.store.clock
        self._store: Final = member.store
        self._micros: Final = member.store.clock.micros
        self._engine: Final = home.engine

    def show(self, entry: Entry) -> F:
        """The entry as the user sees it."""
        return snapshot(self.kind, self.tube, self._store.codec, entry)

    # -- the three verbs in every program's inner loop: written out, since a call costs what they cost ------------------

    def put(self, data: Any, options: dict[str, Any]) -> F | None:
        """Add a task; None if there is no room."""
        store = self._store
        home = self.home
        engine = self._engine
        if options:
            options = home.driver.check_put(options)
        if store.codec is not None:
            data = store.codec.encode(data)
        lock = store.lock
        lock.acquire()
        try:
            if self.gone is not None:
                raise self.gone()
            now = self._micros()
            if engine.timers.soonest <= now:
                home.settle(now)
            if engine.full:
                return None
            task = self.show(engine.put(now, data, options))
            if home.watched:
                home.settle(now)
            return task
        finally:
            lock.release()
            if home.events:
                home.tell()

    def take(self) -> F | None:
        """The first task that may be taken; None if there is none."""
        home = self.home
        engine = self._engine
        lock = self._store.lock
        lock.acquire()
        try:
            if self.gone is not None:
                raise self.gone()
            now = self._micros() if engine.timed else 0
            if engine.timers.soonest <= now:
                home.settle(now)
            entry = engine.take(now, self.hold)
            if entry is None:
                return None
            task = self.show(entry)
            if home.watched:
                home.settle(now)
            return task
        finally:
            lock.release()
            if home.events:
                home.tell()

    def ack(self, task: Any) -> F:
        """A held task is done."""
        id, turn = self._refer(task)
        home = self.home
        engine = self._engine
        lock = self._store.lock
        lock.acquire()
        try:
            if self.gone is not None:
                raise self.gone()
            now = self._micros() if engine.timed else 0
            if engine.timers.soonest <= now:
                home.settle(now)
            entry = engine.held(self.hold, id, turn)
            engine.ack(now, entry)
            done = self.show(entry)
            if home.watched:
                home.settle(now)
        finally:
            lock.release()
            if home.events:
                home.tell()
        if turn:
            task._settled = True
        return done

    # -- the other verbs -----------------------------------------------------------------------------------------------

    def _do(self, act: Callable[[Engine, int], Any]) -> Any:
        """Run a verb; it answers an entry, which is shown, or something else, which is passed on."""
        home = self.home
        try:
            with self._store.lock:
                if self.gone is not None:
                    raise self.gone()
                now = self._micros()
                if self._engine.timers.soonest <= now:
                    home.settle(now)
                answer = act(self._engine, now)
                if isinstance(answer, Entry):
                    answer = self.show(answer)
                if home.watched:
                    home.settle(now)
                return answer
        finally:
            if home.events:
                home.tell()

    def _refer(self, task: Any) -> tuple[int, int]:
        """The id that a caller means, and by which take it has the task, if that is known."""
        if not isinstance(task, Facts):
            return whole("task", task), 0
        origin = task._tube
        if origin is not self.tube and origin.name != self.tube.name:
            raise InvalidOption(option="task", value=task, rule=f"is not of tube {self.tube.name!r}")
        if origin is not self.tube and origin._port.home is not self.home:
            return -1, 0  # Of another tube that had the same name: no task here.
        return task._id, task._turn if task._state is State.TAKEN else 0

    def _settle_task(self, task: Any, act: Callable[[Engine, int], Any]) -> F:
        answer: F = self._do(act)
        if isinstance(task, Facts):
            task._settled = True
        return answer

    def release(self, task: Any, delay: float | None) -> F:
        """Give a held task back."""
        id, turn = self._refer(task)
        span = 0 if delay is None else micros("delay", delay)

        def act(engine: Engine, now: int) -> Entry:
            entry = engine.held(self.hold, id, turn)
            if delay is not None and "delay" not in engine.driver.options:
                raise engine.driver.lacks("delay")
            engine.release(now, entry, span)
            return entry

        return self._settle_task(task, act)

    def touch(self, task: Any, seconds: float) -> F:
        """Prolong the time to run of a held task."""
        id, turn = self._refer(task)
        span = micros("seconds", seconds)

        def act(engine: Engine, now: int) -> Entry:
            entry = engine.held(self.hold, id, turn)
            if "ttr" not in engine.driver.options:
                raise engine.driver.lacks("ttr")
            engine.touch(now, entry, span)
            return entry

        touched: F = self._do(act)
        return touched

    def bury(self, task: Any) -> F:
        """Put a task aside."""
        id, _ = self._refer(task)

        def act(engine: Engine, now: int) -> Entry:
            entry = engine.find(id)
            engine.bury(now, entry)
            return entry

        return self._settle_task(task, act)

    def delete(self, task: Any) -> F:
        """Remove a task."""
        id, _ = self._refer(task)

        def act(engine: Engine, now: int) -> Entry:
            entry = engine.find(id)
            engine.delete(now, entry)
            return entry

        return self._settle_task(task, act)

    def peek(self, task: Any) -> F:
        """Look at a task."""
        id, _ = self._refer(task)
        found: F = self._do(lambda engine, now: engine.find(id))
        return found

    def kick(self, count: int) -> int:
        """Make buried tasks ready."""
        checked = whole("count", count)
        kicked: int = self._do(lambda engine, now: engine.kick(now, checked))
        return kicked

    def release_all(self) -> None:
        """Release whatever is taken."""
        self._do(lambda engine, now: engine.release_all(now))

    def truncate(self) -> None:
        """Remove all tasks."""
        self._do(lambda engine, now: engine.truncate())

    def statistics(self) -> Statistics:
        """Count."""

        def act(engine: Engine, now: int) -> Statistics:
            waiting = len(self.home.takers) + len(self.home.putters)
            return Statistics(engine.counts(), dict(engine.calls), waiting)

        counted: Statistics = self._do(act)
        return counted

    def drop(self, force: bool) -> None:
        """Remove the tube."""
        home = self.home
        flag("force", force)

        def gone() -> TubesError:
            return TubeNotFound(name=home.name)

        def act(engine: Engine, now: int) -> None:
            waiting = len(home.takers) + len(home.putters)
            if (engine.taken or waiting) and not force:
                raise TubeBusy(name=home.name, taken=engine.taken, waiting=waiting)
            del self._store.homes[home.name]
            for port in home.ports:
                port.gone = gone
                port.member.forget(home)
            for session in self._store.sessions.values():
                session.holds.pop(home, None)
            home.dismiss(None, gone)
            engine.truncate()

        self._do(act)

    def listen(self, callback: Listener | None) -> Listener | None:
        """Set or remove this connection's listener."""
        if callback is not None and not callable(callback):
            raise InvalidOption(option="callback", value=callback, rule="must be callable, or None")
        before: Listener | None = self._do(lambda engine, now: self.home.listen(self, callback))
        return before

    # -- waiting -------------------------------------------------------------------------------------------------------

    def request(self, data: Any, options: dict[str, Any]) -> tuple[int | None, tuple[Any, dict[str, Any]]]:
        """What a put that may wait asks for: its timeout, and what is to be put; checked and encoded."""
        options = self.home.driver.check_put(options)
        codec = self._store.codec
        return options.get("timeout"), (data if codec is None else codec.encode(data), options)

    def enlist(self, waiter: Waiter) -> None:
        """Answer the waiter at once, if that is possible, else put it at the end of the line."""
        waiter.owner = self
        line = self.home.takers if waiter.request is None else self.home.putters

        def act(engine: Engine, now: int) -> None:
            if waiter.timeout is not None:
                waiter.deadline = now + waiter.timeout
            line[waiter] = None
            self.home.settle(now)

        self._do(act)

    def withdraw(self, waiter: Waiter, *, undo: bool) -> Any:
        """Take the waiter out of the line and answer None, or what it was given meanwhile; `undo`: give that back."""
        home = self.home
        with self._store.lock:
            home.takers.pop(waiter, None)
            home.putters.pop(waiter, None)
            answer = waiter.answer
            if answer is not PENDING and undo and isinstance(answer, Facts) and waiter.request is None:
                entry = self.hold.get(answer._id)
                if entry is not None and entry.turn == answer._turn:
                    self._engine.untake(self._micros(), entry)
            if home.watched:
                home.settle(self._micros())
        home.tell()
        return None if answer is PENDING else answer


# -- stores by URL, and what a fork does to them ---------------------------------------------------------------------

_stores: WeakSet[MemoryStore] = WeakSet()
_named: dict[str, MemoryStore] = {}
_naming = threading.Lock()


def connect(name: str, clock: Clock | None, codec: str | Codec | None, lease: int) -> Member:
    """A connection to the store of this name, which lives as long as the process; without a name, to a new one."""
    found = None if codec is None else find_codec(codec)
    if not name:
        return Member(MemoryStore("memory://", clock or system_clock, found), lease)
    check_name("url", name)
    with _naming:
        store = _named.get(name)
        if store is None:
            store = _named[name] = MemoryStore(f"memory://{name}", clock or system_clock, found)
    if clock is not None and clock is not store.clock:
        raise InvalidOption(option="clock", value=clock, rule=f"{store.url} goes by another clock already")
    if found is not None and type(found) is not type(store.codec):
        raise InvalidOption(option="codec", value=codec, rule=f"{store.url} was made with another codec")
    return Member(store, lease)


class _ForkedLock:
    """Stands in a forked child for the lock of a store that belongs to the parent."""

    def __init__(self, parent: int) -> None:
        self._parent: Final = parent

    def acquire(self) -> None:
        raise QueueForked(parent=self._parent, child=os.getpid())

    __enter__ = acquire

    def release(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _after_fork() -> None:
    global _naming
    for store in _stores:
        store.lock = _ForkedLock(os.getppid())
    _stores.clear()
    _named.clear()
    _naming = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
