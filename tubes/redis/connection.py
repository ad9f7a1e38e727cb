"""Connections: who calls, which session that is, and in which tubes it is open."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from uuid import uuid4

from tubes.backend.flow import run
from tubes.backend.port import ConnectionBase, session_name
from tubes.drivers.driver import Driver, check_name
from tubes.drivers.options import difference, flag, micros
from tubes.errors import (
    DriverNotFound,
    InvalidOption,
    QueueClosed,
    ServerRefused,
    SessionNotFound,
    TubeExists,
    TubeNotFound,
    TubesError,
    Unreadable,
)
from tubes.redis import validation
from tubes.redis.batch_port import BatchPort
from tubes.redis.coalesced_puts import LoopPort
from tubes.redis.overview import living, overview
from tubes.redis.port import Owner, Port
from tubes.redis.quick import ThreadPort
from tubes.redis.repair import examine
from tubes.redis.scripts.assembly import TubeSettings, script, trial
from tubes.redis.scripts.parts import LAYOUT, PARTS
from tubes.redis.store import born_of, open_store
from tubes.redis.transport.channel import ThreadChannel
from tubes.redis.transport.loop_channel import LoopChannel, ThreadedChannel
from tubes.redis.transport.script_call import Flow, ScriptCall, Slots, TubeSession
from tubes.redis.transport.wire import ErrorReply, error_of, hiredis
from tubes.redis.validation import describe, describe_options

if TYPE_CHECKING:
    from uuid import UUID

    from tubes.backend.clock import Clock
    from tubes.backend.interface import ApiKind, Options
    from tubes.redis.scripts.assembly import Script
    from tubes.redis.shared_tube import SharedTube
    from tubes.redis.store import RedisStore
    from tubes.values.codecs import Codec
    from tubes.values.overview import Overview
    from tubes.values.problem import Problem

T = TypeVar("T")
AnyPort: TypeAlias = BatchPort[Any]
#: Milliseconds for which replies stay at least when nobody looks for them.
_REPLIES_STAY: Final = 12_000


class Connection(ConnectionBase, Owner):
    """One connection to a server: what a `Queue` works through.

    It has a session of its own. That is known to the tubes in which it is open, and to nobody else until `identify`
    tells its name: then it is written down, and others may join it.
    """

    closed: Callable[[], TubesError] | None

    def __init__(self, store: RedisStore, api: ApiKind) -> None:
        super().__init__(store.url)
        self.store = store
        self.uuid = uuid4().hex
        self._api: Final = api
        #: Whether its verbs are to be awaited.
        self.awaited = api.awaited
        # Its name among the callers of a shared session, which nobody else has: a server that has lost its last writes
        # could give a number again.
        self._name: Final = uuid4().hex[:12]
        #: The name by which its answers are kept.
        self._caller = "0"
        self._shared = False
        self._ports: Final[dict[SharedTube, AnyPort]] = {}
        store.join(self)

    def may_run(self) -> bool:
        """Whether a verb may be run here and now, by a finalizer."""
        return False

    def sibling(self, api: ApiKind | None = None) -> Connection:
        """Another connection to the same store, with a session of its own; perhaps with another face."""
        self.check()
        self.store.enter()
        return _make(self.store, api or self._api)

    def register(self, driver: Driver) -> None:
        """Let tubes be created with this driver."""
        self.check()
        self.store.registry.register(driver)

    # -- tubes ---------------------------------------------------------------------------------------------------------

    def create(
        self, name: str, driver: str | Driver, if_not_exists: bool, temporary: bool, options: Options
    ) -> AnyPort:
        """The port of a new tube; with `if_not_exists` of the living one, if it is what was asked for."""
        self.check()
        return self.run(self._create(name, driver, if_not_exists, temporary, options))

    def _create(
        self, name: str, driver: str | Driver, if_not_exists: bool, temporary: bool, options: Options
    ) -> Flow[AnyPort]:
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
            reply = yield ScriptCall(trial(driver.rank_lua), self.store.key(name), ())
            if isinstance(reply, ErrorReply):
                raise InvalidOption(
                    option="rank_lua", value=driver.rank_lua, rule=f"does not run on the server: {reply}"
                )
        checked = driver.check_tube(options)
        yield from self._names("add", name)
        mode = "same" if if_not_exists else "new"
        about = (describe(driver), describe_options(checked), checked.get("capacity", 0))
        reply = yield from self._open(name, mode, *about, maker=uuid4().hex)
        if len(reply) == 2:
            if not if_not_exists:
                raise TubeExists(name=name, why="pass if_not_exists=True to use it")
            if reply[0] != about[0]:
                its = validation.driver_name(name, reply[0])
                raise TubeExists(name=name, why=f"with driver {its!r}, not {driver.name!r}")
            with validation.reading(f"tube {name!r}: its options"):
                why = difference(validation.checked_options(name, reply[1], driver), checked)
            raise TubeExists(name=name, why=why)
        registry.register(driver)
        return (yield from self._opened(name, reply))

    def open_replies(self, name: str) -> AnyPort:
        """The port of a fifo that nobody sees, and that goes by itself when nobody uses it; made if it is not there."""
        self.check()
        return self.run(self._open_replies(name))

    #: A server may have lost it, and its owner is about to make it anew: what comes meanwhile is there then.
    find_replies = open_replies

    def _open_replies(self, name: str) -> Flow[AnyPort]:
        # Who waits looks every few seconds.
        idle = max(round(self.store.lease * 1000), _REPLIES_STAY)
        about = (describe(self.store.registry.find("fifo")), describe_options({"idle": idle}))
        reply = yield from self._open(name, "keep", *about, maker=uuid4().hex)
        return (yield from self._opened(name, reply))

    def _named_driver(self, tube: str, name: str, if_not_exists: bool) -> Flow[Driver]:
        """The driver of this name; that a living tube has another one is said first, whether it is known or not."""
        name = check_name("driver", name)
        try:
            return self.store.registry.find(name)
        except DriverNotFound:
            there: Any = yield ScriptCall(script("there"), self.store.key(tube), ())
            if if_not_exists and there.__class__ is list:
                its = validation.driver_name(tube, there[0])
                if its != name:
                    raise TubeExists(name=tube, why=f"with driver {its!r}, not {name!r}") from None
            raise

    def find(self, name: str) -> AnyPort:
        """The port of a living tube."""
        self.check()
        return self.run(self._find(name))

    def _find(self, name: str) -> Flow[AnyPort]:
        name = check_name("tube", name)
        reply = yield from self._open(name, "any")
        if isinstance(reply, ErrorReply):
            raise TubeNotFound(name=name)
        return (yield from self._opened(name, reply))

    def names(self) -> list[str]:
        """The names of all tubes."""
        self.check()
        return self.run(self._all_names())

    def _all_names(self) -> Flow[list[str]]:
        names = yield from self._known_names()
        there, strange = yield from living(self.store, names)
        self._leave_out(strange)
        return there

    def overview(self, ages: bool) -> dict[str, Overview]:
        """All tubes at a glance."""
        self.check()
        flag("ages", ages)
        return self.run(self._overview(ages))

    def _overview(self, ages: bool) -> Flow[dict[str, Overview]]:
        known = yield from self._known_names()
        found, strange = yield from overview(self.store, known, ages=ages)
        self._leave_out(strange)
        return found

    def examine(self, name: str, repairs: bool) -> list[Problem]:
        """What is wrong with a tube; `repairs`: it is mended."""
        self.check()
        return self.run(examine(self.store, check_name("tube", name), repairs=repairs))

    def _known_names(self) -> Flow[list[str]]:
        """The names that were written down, in their order: of tubes that are there, or were."""
        names: set[bytes] = set()
        cursor = b"0"
        while True:
            cursor, some = yield from self._names("some", cursor)
            names.update(some)
            if cursor == b"0":
                known, strange = validation.names(names)
                self._leave_out(dict.fromkeys(strange, "is no name of a tube"))
                return known

    def _leave_out(self, those: Mapping[Any, object]) -> None:
        """These are in the list of the tubes, and are none."""
        self.store.strangers.leave_out(f"the tubes of {self.store.url}", those)

    def _names(self, what: str, name: str | bytes) -> Flow[Any]:
        key = f"{self.store.prefix}:names"
        return self._sane((yield ScriptCall(script("names"), key, (what, name))), key)

    def forget_name(self, name: str) -> Flow[None]:
        """A tube was dropped; if it was created anew meanwhile its name stays."""
        yield from self._names("remove", name)
        there = yield ScriptCall(script("there"), self.store.key(name), ())
        if there is not None:
            yield from self._names("add", name)

    def _open(
        self,
        name: str,
        mode: str,
        driver: bytes = b"",
        options: bytes = b"",
        capacity: int = 0,
        uuid: str | None = None,
        maker: str = "",
    ) -> Flow[Any]:
        """Open a tube for this session."""
        span = self.store.span()
        args = (uuid or self.uuid, span, self.store.now(), mode, driver, options, capacity, maker, LAYOUT)
        reply: Any = yield ScriptCall(script("open"), self.store.key(name), args, parts=PARTS)
        if isinstance(reply, ErrorReply) and reply.code == "TUBEGONE":
            return reply
        about: list[Any] = self._sane(reply, f"tube {name!r}")
        if len(about) > 2:
            about[3] = validation.token(name, about[3])
        return about

    def _sane(self, reply: Any, what: str = "") -> Any:
        """A reply that is no error; `what`: the scripts may fail there since they cannot read it."""
        if isinstance(reply, ErrorReply):
            raise validation.refusal(what, reply, self.store.url) if what else error_of(reply, self.store.url)
        return reply

    def _opened(self, name: str, reply: Any) -> Flow[AnyPort]:
        with validation.reading(f"tube {name!r}"):
            driver, options, number, token, now, unheard = reply
        if unheard:
            self.store.warn_of_silence()
        self.store.set_time(now)
        shared = self.store.shared(name, driver, options, token)
        if self.closed is not None:
            raise self.closed()
        port: AnyPort | None = self._ports.get(shared)
        if port is None:
            port = self.make_port(shared)
            port.kind, port.tube = self._api.task, self._api.tube(port)
            self._ports[shared] = port
            shared.ports.add(port)
        yield from self._note(port, (number, token, self._caller))
        return port

    def enter(self, port: Port[Any]) -> Flow[None]:
        """Open a port's tube again: the session has changed, or its lease was over."""
        shared = port.shared
        uuid, caller = self.uuid, self._caller
        reply = yield from self._open(shared.name, "any")
        if isinstance(reply, ErrorReply) or born_of(reply[3]) != shared.born:
            shared.vanish()
            raise TubeNotFound(name=shared.name)
        if self.uuid == uuid:  # Nobody has moved to another session meanwhile.
            yield from self._note(port, (reply[2], reply[3], caller))

    def _note(self, port: Port[Any], session: TubeSession) -> Flow[None]:
        port.session = session
        if self._shared:
            yield from self._share("tube", port.shared.name)

    def forget(self, shared: SharedTube) -> None:
        """The tube is gone."""
        self._ports.pop(shared, None)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _share(self, what: str, tube: str = "", uuid: str | None = None) -> Flow[Any]:
        """Change what is written down of a shared session."""
        key = f"{self.store.prefix}:session:{uuid or self.uuid}"
        span = self.store.span()
        args = (what, span, self.store.now(), tube, micros("session_ttl", self.store.lease), self._name)
        reply: Any = self._sane((yield ScriptCall(script("session"), key, args)), key)
        if reply is None:
            return None
        names, strange = validation.names(reply[1:])
        self.store.strangers.leave_out(key, dict.fromkeys(strange, "is no name of a tube"))
        return [reply[0], *names]

    def beat_shared(self) -> Flow[None]:
        """A shared session goes on, in all its tubes."""
        if not self._shared or self.closed is not None:
            return
        known = yield from self._share("beat")
        if known is None:
            if self.closed is None:  # It was over meanwhile, or the server has lost it.
                yield from self._publish("again")
            return
        here = {port.shared.name for port in self._all()}
        for name in known[1:]:
            if name not in here:
                yield from self._open_too(name)

    def identify(self, uuid: str | UUID | None) -> str:
        """The session's uuid, after moving to another one if one is named."""
        self.check()
        return self.run(self._identify(None if uuid is None else session_name(uuid)))

    def _identify(self, uuid: str | None) -> Flow[str]:
        if not self._shared:
            yield from self._publish("publish")
            self._shared = True
        if uuid is None or uuid == self.uuid:
            return self.uuid
        joined = yield from self._share("join", uuid=uuid)
        if joined is None:
            raise SessionNotFound(uuid=uuid)
        left, sessions = self.uuid, self._sessions()
        self.uuid, self._caller = uuid, self._name
        for port in self._all():
            port.session = None
        yield from self._leave("leave", left, sessions)
        for name in joined[1:]:
            yield from self._open_too(name)
        return uuid

    def _publish(self, how: str) -> Flow[None]:
        """Write down the session, for others to join. `how`: publish, or again: others may be in it already."""
        yield from self._share(how)
        for port in self._all():
            yield from self._share("tube", port.shared.name)

    def _all(self) -> list[AnyPort]:
        """The ports as they are now: the thread that finds a tube dropped takes its port out."""
        return list(self._ports.values())

    def _sessions(self) -> dict[str, TubeSession]:
        """Where the session is open, by the tubes' keys."""
        return {port.shared.key: port.session for port in self._all() if port.session is not None}

    def _leave(self, how: str, uuid: str, open_in: dict[str, TubeSession]) -> Flow[None]:
        """End a session, or leave it to its other callers. `how`: leave, or lose: then it lives on for its lease."""
        others: dict[str, str] = {}
        if self._shared:
            left: Any = yield from self._share(how, uuid=uuid)
            if left is None:
                # The server has lost what was written down: others may speak for the session too, and nobody knows.
                how = "lose"
            elif left[0] > 0:
                return
            names: list[str] = [] if left is None else left[1:]
            for name in names:
                key = self.store.key(name)
                others[key] = name
                if key not in open_in and (reply := (yield from self._open_too(name, uuid))) is not None:
                    open_in[key] = (reply[2], reply[3], self._caller)
        span: int | str = micros("session_ttl", self.store.lease) if how == "lose" else ""
        shared_tubes = [port.shared for port in self._all()]
        idle = {shared.key for shared in shared_tubes if shared.waits_for_nobody()}
        scripts = {shared.key: shared.script("leave") for shared in shared_tubes}
        for key, session in open_in.items():
            leave = scripts.get(key)
            if leave is None:
                leave = yield from self._script_for(others.get(key, key), key)
                if leave is None:
                    continue
            process = self.store.process if key in idle else ""
            yield ScriptCall(leave, key, (span, process), session, self.store.now())
        if how == "lose":
            for port in self._all():
                port.shared.watch(self.store.clock.micros() + int(span))

    def _open_too(self, name: str, uuid: str | None = None) -> Flow[Any]:
        """Open another tube of the session; None if it is gone or refused: then the lease runs out there."""
        try:
            reply = yield from self._open(name, "any", uuid=uuid)
        except (Unreadable, ServerRefused) as error:
            self._leave_out({name: error})
            return None
        return None if isinstance(reply, ErrorReply) else reply

    def _script_for(self, name: str, key: str) -> Flow[Script | None]:
        """What leaves one of the session's other tubes; None as for `_open_too`, and where its driver is not known."""
        there: Any = self._sane((yield ScriptCall(script("there"), key, ())), f"tube {name!r}")
        if there is None:
            return None
        try:
            driver = self.store.driver_of(name, there[0])
            return script("leave", driver, TubeSettings.of(validation.options(name, there[1], driver)))
        except (Unreadable, DriverNotFound) as error:
            self._leave_out({name: error})
            return None

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self, *, lost: bool = False) -> None:
        """End this connection; waiting callers get `QueueClosed`. `lost`: its session lives on for its lease."""
        if self.closed is not None:
            return self.run(_nothing())
        if self._pid != os.getpid():
            self.closed = self._forked
            return self.run(_nothing())
        if self.replies is not None:
            if self.awaited:
                self.replies.close_later()
            else:
                self.replies.close()
        self.closed = _closed
        for port in self._all():
            port.gone = _closed
            port.shared.dismiss(port.shared.waiters_of(port), _closed)
            port.listener = None
            port.shared.subscription.note(port)
        return self.run(self._close("lose" if lost else "leave"))

    def _close(self, how: str) -> Flow[None]:
        try:
            yield from self._leave(how, self.uuid, self._sessions())
        finally:
            for port in self._all():
                port.shared.ports.discard(port)
            self._ports.clear()
            self.hang_up()
            self.store.leave()

    def make_port(self, shared: SharedTube) -> AnyPort:
        """Its port for a tube."""
        raise NotImplementedError

    def hang_up(self) -> None:
        """End its channels, after the last reply."""
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


def connect(url: Any, codec: str | Codec | None, clock: Clock | None, session_ttl: float, api: ApiKind) -> Connection:
    """A connection to the server of this URL or client; for threads it is tried out at once."""
    store = open_store(url, clock, codec, session_ttl)
    connection = _make(store, api)
    if api.awaited:
        return connection
    try:
        store.meet()
    except BaseException:
        connection.close()
        raise
    return connection


def _make(store: RedisStore, api: ApiKind) -> Connection:
    return LoopConnection(store, api) if api.awaited else ThreadConnection(store, api)


class ThreadConnection(Connection):
    """For threads: its verbs answer when they are done."""

    def __init__(self, store: RedisStore, api: ApiKind) -> None:
        self.channel: Final = ThreadChannel(store.server, closed=_closed)
        super().__init__(store, api)

    def run(self, flow: Flow[T]) -> T:
        if self._pid != os.getpid():
            raise self._forked()
        return run(flow, self.channel.call)

    def may_run(self) -> bool:
        return self.channel.is_idle()

    def hang_up(self) -> None:
        self.channel.close()

    def make_port(self, shared: SharedTube) -> AnyPort:
        return ThreadPort(self, shared)


class LoopConnection(Connection):
    """For asyncio: its verbs are awaited. Each event loop has a channel of its own."""

    def __init__(self, store: RedisStore, api: ApiKind) -> None:
        self.channels: Final[dict[asyncio.AbstractEventLoop, LoopChannel | ThreadedChannel]] = {}
        self._slots: Final = Slots()
        super().__init__(store, api)

    def run(self, flow: Flow[T]) -> Coroutine[Any, Any, T]:  # type: ignore[override]
        if self._pid != os.getpid():
            raise self._forked()
        loop = asyncio.get_running_loop()
        channel = self.channels.get(loop)
        if channel is None:
            channel = self._make_line(loop)
        return channel.run(flow)

    def _make_line(self, loop: asyncio.AbstractEventLoop) -> LoopChannel | ThreadedChannel:
        for other in [other for other in self.channels if other.is_closed()]:
            del self.channels[other]
        server = self.store.server
        pipelines = hiredis is not None and not server.secure
        channel = (
            LoopChannel(server, loop, self._slots, _closed)
            if pipelines
            else ThreadedChannel(server, self._slots, _closed)
        )
        self.channels[loop] = channel
        return channel

    def make_port(self, shared: SharedTube) -> AnyPort:
        return LoopPort(self, shared)

    def hang_up(self) -> None:
        for loop, channel in list(self.channels.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(channel.close)


def _closed() -> TubesError:
    return QueueClosed(why="close() was called")


def _nothing() -> Flow[None]:
    return
    yield
