"""Connections: who calls, which session that is, and in which tubes it is open."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID, uuid4

from tubes.drivers.driver import Driver, check_name
from tubes.drivers.options import difference, flag, micros
from tubes.errors import (
    DriverNotFound,
    InvalidOption,
    QueueClosed,
    QueueForked,
    SessionNotFound,
    TubeExists,
    TubeNotFound,
)
from tubes.redis.calls import Call, Flow, Session, Slots
from tubes.redis.joint import LoopPort
from tubes.redis.line import ThreadLine
from tubes.redis.looplines import LoopLine, ThreadedLine
from tubes.redis.overview import overview
from tubes.redis.port import AnyPort, Port
from tubes.redis.quick import ThreadPort
from tubes.redis.scripts import Settings, script, trial
from tubes.redis.store import describe, describe_options, open_store, options_of
from tubes.redis.wire import ErrorReply, error_of, hiredis

if TYPE_CHECKING:
    from tubes.clock import Clock
    from tubes.codecs import Codec
    from tubes.errors import TubesError
    from tubes.face import Face
    from tubes.overview import Overview
    from tubes.redis.home import Home
    from tubes.redis.store import RedisStore
    from tubes.replies import Replies

T = TypeVar("T")
#: Milliseconds for which replies stay at least when nobody looks for them.
_REPLIES_STAY: Final = 12_000


class Member:
    """One connection to a server: what a `Queue` works through.

    It has a session of its own. That is known to the tubes in which it is open, and to nobody else until `identify`
    tells its name: then it is written down, and others may join it.
    """

    def __init__(self, store: RedisStore, face: Face) -> None:
        self.closed: Callable[[], TubesError] | None = None
        #: Where it gets the replies to its calls.
        self.replies: Replies | None = None
        self.store: Final = store
        self.uuid = uuid4().hex
        self._face: Final = face
        #: Whether its verbs are to be awaited.
        self.awaited: Final = face.awaited
        #: Its number among the callers of a shared session.
        self._caller = 0
        # Its name among them: who joins or leaves again because an answer was lost is counted once.
        self._name: Final = uuid4().hex
        self._shared = False
        self._ports: Final[dict[Home, AnyPort[Any]]] = {}
        self._pid: Final = os.getpid()
        store.join(self)

    @property
    def url(self) -> str:
        """Where it is connected to."""
        return self.store.url

    def run(self, flow: Flow[T]) -> Any:
        """Run a verb, here or in the event loop."""
        raise NotImplementedError

    def may_run(self) -> bool:
        """Whether a verb may be run here and now, by a finalizer."""
        return False

    def check(self) -> None:
        """Raise `QueueClosed` if this connection is closed, `QueueForked` if it is another process's."""
        if self._pid != os.getpid():
            raise QueueForked(parent=self._pid, child=os.getpid())
        if self.closed is not None:
            raise self.closed()

    def sibling(self, face: Face | None = None) -> Member:
        """Another connection to the same store, with a session of its own; perhaps with another face."""
        self.check()
        self.store.enter()
        return _make(self.store, face or self._face)

    def register(self, driver: Driver) -> None:
        """Let tubes be created with this driver."""
        self.check()
        self.store.registry.register(driver)

    # -- tubes ---------------------------------------------------------------------------------------------------------

    def create(
        self, name: str, driver: str | Driver, if_not_exists: bool, temporary: bool, options: dict[str, Any]
    ) -> Any:
        """The port of a new tube; with `if_not_exists` of the living one, if it is what was asked for."""
        self.check()
        return self.run(self._create(name, driver, if_not_exists, temporary, options))

    def _create(
        self, name: str, driver: str | Driver, if_not_exists: bool, temporary: bool, options: dict[str, Any]
    ) -> Flow[AnyPort[Any]]:
        name = check_name("tube", name)
        flag("if_not_exists", if_not_exists)
        flag("temporary", temporary)
        registry = self.store.registry
        if not isinstance(driver, Driver):
            driver = yield from self._named_driver(name, driver, if_not_exists)
        registry.admit(driver)
        if driver.rank is not None and driver.rank_lua is None:
            rule = "needs rank_lua, the same order as a Lua expression, to run on Redis"
            raise InvalidOption(option="driver", value=driver.name, rule=rule)
        if driver.rank_lua is not None:
            reply = yield Call(trial(driver.rank_lua), self.store.key(name), ())
            if isinstance(reply, ErrorReply):
                raise InvalidOption(
                    option="rank_lua", value=driver.rank_lua, rule=f"does not run on the server: {reply}"
                )
        checked = driver.check_tube(options)
        yield from self._names("add", name)
        mode = "same" if if_not_exists else "new"
        about = (describe(driver), describe_options(checked), checked.get("capacity", 0))
        reply = yield from self._open(self.store.key(name), mode, *about, maker=uuid4().hex)
        if len(reply) == 2:
            if not if_not_exists:
                raise TubeExists(name=name, why="pass if_not_exists=True to use it")
            if reply[0] != about[0]:
                raise TubeExists(name=name, why=f"with driver {_name_of(reply[0])!r}, not {driver.name!r}")
            raise TubeExists(name=name, why=difference(options_of(reply[1]), checked))
        registry.register(driver)
        port: AnyPort[Any] = yield from self._opened(name, reply)
        return port

    def open_replies(self, name: str) -> Any:
        """The port of a new fifo that nobody sees, and that goes by itself when nobody uses it."""
        self.check()
        return self.run(self._open_replies(name))

    def _open_replies(self, name: str) -> Flow[AnyPort[Any]]:
        # Who waits looks every few seconds.
        idle = max(round(self.store.lease * 1000), _REPLIES_STAY)
        about = (describe(self.store.registry.find("fifo")), describe_options({"idle": idle}))
        reply = yield from self._open(self.store.key(name), "same", *about, maker=uuid4().hex)
        port: AnyPort[Any] = yield from self._opened(name, reply)
        return port

    def _named_driver(self, tube: str, name: str, if_not_exists: bool) -> Flow[Driver]:
        """The driver of this name; that a living tube has another one is said first, whether it is known or not."""
        name = check_name("driver", name)
        try:
            return self.store.registry.find(name)
        except DriverNotFound:
            there: Any = yield Call(script("there"), self.store.key(tube), ())
            if if_not_exists and there.__class__ is list and _name_of(there[0]) != name:
                raise TubeExists(name=tube, why=f"with driver {_name_of(there[0])!r}, not {name!r}") from None
            raise

    def find(self, name: str) -> Any:
        """The port of a living tube."""
        self.check()
        return self.run(self._find(name))

    def _find(self, name: str) -> Flow[AnyPort[Any]]:
        name = check_name("tube", name)
        reply = yield from self._open(self.store.key(name), "any")
        if isinstance(reply, ErrorReply):
            raise TubeNotFound(name=name)
        port: AnyPort[Any] = yield from self._opened(name, reply)
        return port

    def names(self) -> Any:
        """The names of all tubes."""
        self.check()
        return self.run(self._all_names())

    def _all_names(self) -> Flow[list[str]]:
        names = yield from self._names("all", "")
        found: list[str] = []
        for name in sorted(raw.decode() for raw in names):
            there = yield Call(script("there"), self.store.key(name), ())
            if there is not None:
                found.append(name)
        return found

    def overview(self, ages: bool) -> Any:
        """All tubes at a glance."""
        self.check()
        flag("ages", ages)
        return self.run(self._overview(ages))

    def _overview(self, ages: bool) -> Flow[dict[str, Overview]]:
        names = yield from self._names("all", "")
        known = sorted(raw.decode() for raw in names)
        found: dict[str, Overview] = yield from overview(self.store, known, ages=ages)
        return found

    def _names(self, what: str, name: str) -> Flow[Any]:
        reply = yield Call(script("names"), f"{self.store.prefix}:names", (what, name))
        return self._sane(reply)

    def forget_name(self, name: str) -> Flow[None]:
        """A tube was dropped; if it was created anew meanwhile its name stays."""
        yield from self._names("remove", name)
        there = yield Call(script("there"), self.store.key(name), ())
        if there is not None:
            yield from self._names("add", name)

    def _open(
        self,
        key: str,
        mode: str,
        driver: bytes = b"",
        options: bytes = b"",
        capacity: int = 0,
        uuid: str | None = None,
        maker: str = "",
    ) -> Flow[Any]:
        """Open a tube for this session."""
        span = self.store.span()
        args = (uuid or self.uuid, span, self.store.now(), mode, driver, options, capacity, maker)
        reply = yield Call(script("open"), key, args, parts=("leases",))
        if isinstance(reply, ErrorReply) and reply.code == "TUBEGONE":
            return reply
        return self._sane(reply)

    def _sane(self, reply: Any) -> Any:
        if isinstance(reply, ErrorReply):
            raise error_of(reply, self.store.url)
        return reply

    def _opened(self, name: str, reply: Any) -> Flow[AnyPort[Any]]:
        driver, options, number, token, now = reply
        token = token.decode()
        self.store.set_time(now)
        home = self.store.home(name, driver, options, token)
        if self.closed is not None:
            raise self.closed()
        port: AnyPort[Any] | None = self._ports.get(home)
        if port is None:
            port = self.make_port(home)
            port.kind, port.awaited = self._face.task, self._face.awaited
            port.tube = self._face.tube(port)
            self._ports[home] = port
            home.ports.add(port)
        yield from self._note(port, (number, token, self._caller))
        return port

    def enter(self, port: Port[Any]) -> Flow[None]:
        """Open a port's tube again: the session has changed, or its lease was over."""
        home = port.home
        uuid, caller = self.uuid, self._caller
        reply = yield from self._open(home.key, "any")
        if isinstance(reply, ErrorReply) or reply[3].decode().partition(".")[2] != home.born:
            home.vanish()
            raise TubeNotFound(name=home.name)
        if self.uuid == uuid:  # Nobody has moved to another session meanwhile.
            yield from self._note(port, (reply[2], reply[3].decode(), caller))

    def _note(self, port: Port[Any], session: Session) -> Flow[None]:
        port.session = session
        if self._shared:
            yield from self._share("tube", port.home.name)

    def forget(self, home: Home) -> None:
        """The tube is gone."""
        self._ports.pop(home, None)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _share(self, what: str, tube: str = "", uuid: str | None = None) -> Flow[Any]:
        """Change what is written down of a shared session."""
        key = f"{self.store.prefix}:session:{uuid or self.uuid}"
        span = self.store.span()
        args = (what, span, self.store.now(), tube, micros("session_ttl", self.store.lease), self._name)
        reply = yield Call(script("session"), key, args)
        return self._sane(reply)

    def beat_shared(self) -> Flow[None]:
        """A shared session goes on, in all its tubes."""
        if not self._shared or self.closed is not None:
            return
        known = yield from self._share("beat")
        if known is None:
            return
        here = {port.home.name for port in self._all()}
        for name in known[2:]:
            if name.decode() not in here:
                yield from self._open(self.store.key(name.decode()), "any")

    def identify(self, uuid: str | UUID | None) -> Any:
        """The session's uuid, after moving to another one if one is named."""
        self.check()
        wanted = None
        if uuid is not None:
            try:
                wanted = (uuid if isinstance(uuid, UUID) else UUID(hex=uuid)).hex
            except (ValueError, TypeError, AttributeError):
                raise InvalidOption(option="uuid", value=uuid, rule="must be 32 hexadecimal digits") from None
        return self.run(self._identify(wanted))

    def _identify(self, uuid: str | None) -> Flow[str]:
        if not self._shared:
            yield from self._share("publish")
            self._shared = True
            for port in self._all():
                yield from self._share("tube", port.home.name)
        if uuid is None or uuid == self.uuid:
            return self.uuid
        joined = yield from self._share("join", uuid=uuid)
        if joined is None:
            raise SessionNotFound(uuid=uuid)
        left, sessions = self.uuid, self._sessions()
        self.uuid, self._caller = uuid, joined[1]
        for port in self._all():
            port.session = None
        yield from self._leave("leave", left, sessions)
        for name in joined[2:]:
            yield from self._open(self.store.key(name.decode()), "any")
        return uuid

    def _all(self) -> list[AnyPort[Any]]:
        """The ports as they are now: the thread that finds a tube dropped takes its port out."""
        return list(self._ports.values())

    def _sessions(self) -> dict[str, Session]:
        """Where the session is open, by the tubes' keys."""
        return {port.home.key: port.session for port in self._all() if port.session is not None}

    def _leave(self, how: str, uuid: str, open_in: dict[str, Session]) -> Flow[None]:
        """End a session, or leave it to its other callers. `how`: leave, or lose: then it lives on for its lease."""
        if self._shared:
            left: Any = yield from self._share(how, uuid=uuid)
            if left is not None and left[0] > 0:
                return
            names: list[bytes] = [] if left is None else left[2:]
            for name in names:
                key = self.store.key(name.decode())
                if key not in open_in:
                    reply = yield from self._open(key, "any", uuid=uuid)
                    if not isinstance(reply, ErrorReply):
                        open_in[key] = (reply[2], reply[3].decode(), 0)
        span: int | str = micros("session_ttl", self.store.lease) if how == "lose" else ""
        homes = [port.home for port in self._all()]
        idle = {home.key for home in homes if home.waits_for_nobody()}
        scripts = {home.key: home.script("leave") for home in homes}
        for key, session in open_in.items():
            leave = scripts.get(key)
            if leave is None:
                reply = yield Call(script("there"), key, ())
                if reply is None:
                    continue
                leave = script("leave", self.store.driver_of(reply[0]), Settings.of(json.loads(reply[1])))
            process = self.store.process if key in idle else ""
            yield Call(leave, key, (span, process), session, self.store.now())
        if how == "lose":
            for port in self._all():
                port.home.watch(self.store.clock.micros() + int(span))

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self, *, lost: bool = False) -> Any:
        """End this connection; waiting callers get `QueueClosed`. `lost`: its session lives on for its lease."""
        if self.closed is not None:
            return self.run(_nothing())
        if self._pid != os.getpid():
            self.closed = lambda: QueueForked(parent=self._pid, child=os.getpid())
            return self.run(_nothing())
        if self.replies is not None:
            if self.awaited:
                self.replies.close_later()
            else:
                self.replies.close()
        self.closed = _closed
        for port in self._all():
            port.gone = _closed
            port.home.dismiss(port.home.waiters_of(port), _closed)
            port.listener = None
            port.home.ears.note(port)
        return self.run(self._close("lose" if lost else "leave"))

    def _close(self, how: str) -> Flow[None]:
        try:
            yield from self._leave(how, self.uuid, self._sessions())
        finally:
            for port in self._all():
                port.home.ports.discard(port)
            self._ports.clear()
            self.hang_up()
            self.store.leave()

    def make_port(self, home: Home) -> AnyPort[Any]:
        """Its port for a tube."""
        raise NotImplementedError

    def hang_up(self) -> None:
        """End its lines, after the last reply."""
        raise NotImplementedError

    def __del__(self) -> None:
        if sys.is_finalizing() or not hasattr(self, "_pid") or self._pid != os.getpid() or self.closed is not None:
            return
        # Its leases are not renewed any more, and run out.
        self.closed = _closed
        store, flow = self.store, self._abandoned()
        store.later(lambda: flow)
        store.later(store.leave)

    def _abandoned(self) -> Flow[None]:
        if self.store.manual:
            yield from self._leave("lose", self.uuid, self._sessions())


def connect(url: Any, codec: str | Codec | None, clock: Clock | None, session_ttl: float, face: Face) -> Member:
    """A connection to the server of this URL or client; for threads it is tried out at once."""
    store = open_store(url, clock, codec, session_ttl)
    member = _make(store, face)
    if face.awaited:
        return member
    try:
        store.meet()
    except BaseException:
        member.close()
        raise
    return member


def _make(store: RedisStore, face: Face) -> Member:
    return LoopMember(store, face) if face.awaited else ThreadMember(store, face)


class ThreadMember(Member):
    """For threads: its verbs answer when they are done."""

    def __init__(self, store: RedisStore, face: Face) -> None:
        self.line: Final = ThreadLine(store.server)
        super().__init__(store, face)

    def run(self, flow: Flow[T]) -> T:
        if self._pid != os.getpid():
            raise QueueForked(parent=self._pid, child=os.getpid())
        return self.line.run(flow)

    def may_run(self) -> bool:
        return self.line.is_idle()

    def hang_up(self) -> None:
        self.line.close()

    def make_port(self, home: Home) -> AnyPort[Any]:
        return ThreadPort(self, home)


class LoopMember(Member):
    """For asyncio: its verbs are awaited. Each event loop has a line of its own."""

    def __init__(self, store: RedisStore, face: Face) -> None:
        self.lines: Final[dict[asyncio.AbstractEventLoop, LoopLine | ThreadedLine]] = {}
        self._slots: Final = Slots()
        super().__init__(store, face)

    def run(self, flow: Flow[T]) -> Coroutine[Any, Any, T]:
        if self._pid != os.getpid():
            raise QueueForked(parent=self._pid, child=os.getpid())
        loop = asyncio.get_running_loop()
        line = self.lines.get(loop)
        if line is None:
            line = self._make_line(loop)
        return line.run(flow)

    def _make_line(self, loop: asyncio.AbstractEventLoop) -> LoopLine | ThreadedLine:
        for other in [other for other in self.lines if other.is_closed()]:
            del self.lines[other]
        server = self.store.server
        pipelines = hiredis is not None and not server.secure
        line = LoopLine(server, loop, self._slots) if pipelines else ThreadedLine(server, self._slots)
        self.lines[loop] = line
        return line

    def make_port(self, home: Home) -> AnyPort[Any]:
        return LoopPort(self, home)

    def hang_up(self) -> None:
        for loop, line in list(self.lines.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(line.close)


def _closed() -> QueueClosed:
    return QueueClosed(why="close() was called")


def _name_of(told: bytes) -> str:
    name: str = json.loads(told)["name"]
    return name


def _nothing() -> Flow[None]:
    return
    yield
