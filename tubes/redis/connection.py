"""Connections: each is a caller with a session, and has ports to the tubes that it opened."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from uuid import uuid4

from tubes.backend.port import ConnectionBase, check_session_uuid
from tubes.drivers.driver import Driver, check_name, check_stored_name, check_tube_name
from tubes.drivers.options import flag
from tubes.drivers.tube_options import WAYS_TO_USE_IT, difference, drop_reset_options, other_driver
from tubes.errors import (
    DriverNotFound,
    InvalidOption,
    QueueClosed,
    TubeExists,
    TubeNotFound,
    TubesError,
)
from tubes.redis import validation
from tubes.redis.all_tubes import existing_names, overview
from tubes.redis.library.functions import FUNCTIONS
from tubes.redis.library.replies import bytes_of, list_of, number_of
from tubes.redis.options_version import OpenedTube
from tubes.redis.port.base import PortConnection, RedisPort
from tubes.redis.port.coalesced_puts import Channels, LoopPort
from tubes.redis.port.methods import TubePort
from tubes.redis.port.quick import ThreadPort
from tubes.redis.repair import examine
from tubes.redis.sessions.session import RedisSession
from tubes.redis.sessions.store import creation_of, open_store
from tubes.redis.transport.channel import NodeChannels, ThreadChannel, run_undos
from tubes.redis.transport.loop_channel import LoopChannel, ThreadedChannel
from tubes.redis.transport.script_call import Flow, ScriptCall, Slots, flow_method
from tubes.redis.transport.wire import ErrorReply, Reply, hiredis
from tubes.redis.validation import describe, describe_options
from tubes.values.codecs import JsonCodec
from tubes.values.overview import exact_names, match_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tubes.backend.clock import Clock
    from tubes.backend.interface import ApiKind, IfExists, Options
    from tubes.redis.sessions.store import RedisStore
    from tubes.redis.waiting.shared_tube import RedisTube
    from tubes.redis.waiting.sleepers import Sleepers
    from tubes.values.codecs import Codec
    from tubes.values.overview import Overview
    from tubes.values.problem import Problem

T = TypeVar("T")
#: The argument 4 of the function `open`, by the option `if_exists`.
_MODES: Final[Mapping[IfExists, str]] = {"raise": "new", "same": "same", "keep": "alike", "update": "alike"}
#: The minimum number of seconds until an unused reply tube expires.
_REPLIES_IDLE: Final = 12.0


class RedisConnection(ConnectionBase, PortConnection):  # pyright: ignore[reportIncompatibleVariableOverride]
    """One connection of a `Queue` to a server.

    It has a session of its own until `identify` moves it to another session.
    """

    is_remote = True
    store: RedisStore

    def __init__(self, store: RedisStore, api: ApiKind, timeout: float | None) -> None:
        super().__init__(store.url)
        self.store = store  # pyright: ignore[reportIncompatibleVariableOverride]
        self._api: Final = api
        # Seconds to try the first connection; None: as long as any call.
        self._timeout: Final = timeout
        #: True if its methods are awaited.
        self.awaited = api.awaited
        self._ports: Final[dict[RedisTube, TubePort]] = {}
        self.session = RedisSession(store, self._ports)
        store.join(self.session)

    def may_run(self) -> bool:
        """Return True if a finalizer may run a call now in this thread."""
        return False

    def sibling(
        self, api: ApiKind | None = None, namespace: str | None = None, session_ttl: float | None = None
    ) -> RedisConnection:
        """Open another connection with its own session; arguments default to the values of this connection."""
        self.check()
        return _make(self.store.open_namespace(namespace, session_ttl), api or self._api, self._timeout)

    @flow_method
    def count_calls(self, name: str, pace: int, burst: int, sign: int) -> Flow[int]:
        """Count a call against a rate limit; return the microseconds until it is allowed. `sign` -1: undo the count."""
        key = f"{self.store.prefix}:rate:{name}"
        return number_of((yield from self.store.run_plain_script("rate", key, pace, burst, sign, what=key)))

    def micros(self) -> int:
        """Return the server's time as this process estimates it."""
        return self.store.server_micros()

    def register(self, driver: Driver) -> None:
        """Allow tubes to be created with this driver."""
        self.check()
        self.store.registry.register(driver)

    # -- tubes ---------------------------------------------------------------------------------------------------------

    @flow_method
    def create(
        self, name: str, driver: str | Driver, if_exists: IfExists, temporary: bool, options: Options
    ) -> Flow[TubePort]:
        """Create a tube and return its port, or return the port of the existing tube if `if_exists` allows it."""
        self.check()
        name = check_tube_name(name)
        flag("temporary", temporary)
        registry = self.store.registry
        if not isinstance(driver, Driver):
            driver = yield from self._named_driver(name, driver, if_exists)
        registry.check_new(driver)
        if driver.rank is not None and driver.rank_lua is None:
            rule = "needs rank_lua, the same order as a Lua expression, to run on a server"
            raise InvalidOption(option="driver", value=driver.name, rule=rule)
        if driver.rank_lua is not None:
            reply = yield ScriptCall(FUNCTIONS["trial"], self.store.key(name), (driver.rank_lua,))
            if isinstance(reply, ErrorReply):
                raise InvalidOption(option="rank_lua", value=driver.rank_lua, rule=f"fails on the server: {reply}")
        checked = driver.check_tube(options)
        description = (describe(driver), describe_options(checked), checked.get("capacity", 0))
        while True:
            yield from self._store_name(name)
            reply = yield from self.session.open(name, _MODES[if_exists], *description, maker=uuid4().hex)
            assert reply is not None  # Every mode creates a missing tube.
            if not isinstance(reply, OpenedTube):
                if if_exists == "raise":
                    raise TubeExists(name=name, why=WAYS_TO_USE_IT)
                if reply[0] != description[0]:
                    other = validation.driver_name(name, reply[0])
                    raise TubeExists(name=name, why=other_driver(other, driver.name))
                with validation.reading(f"tube {name!r}: its options"):
                    stored, requested = map(drop_reset_options, (validation.options(name, reply[1], driver), checked))
                if stored == requested:
                    if_exists = "keep"
                    continue
                raise TubeExists(name=name, why=difference(stored, requested))
            registry.register(driver)
            port = yield from self._port_of(name, reply)
            if if_exists != "update" or reply.options == description[1]:
                return port
            with suppress(TubeNotFound):  # Another caller dropped the tube meanwhile: create it again.
                yield from port.set_options(driver.fill(checked))
                return port

    @flow_method
    def open_replies(self, name: str) -> Flow[TubePort]:
        """Return the port of a hidden fifo tube. It is created if needed, and expires when unused."""
        self.check()
        # A waiting caller uses the tube every few seconds.
        return (yield from self._open_hidden(name, "fifo", max(self.store.lease, _REPLIES_IDLE)))

    @flow_method
    def open_hidden(self, name: str, driver: str, idle: float, kept: bool) -> Flow[TubePort]:
        """Return the port of a hidden tube with JSON data, which expires after `idle` seconds without use."""
        self.check()
        return (yield from self._open_hidden(name, driver, idle)).use_codec(JsonCodec())

    def _open_hidden(self, name: str, driver: str, idle: float) -> Flow[TubePort]:
        description = (describe(self.store.registry.find(driver)), describe_options({"idle": round(idle * 1000)}))
        reply = yield from self.session.open(name, "keep", *description, maker=uuid4().hex)
        return (yield from self._port_of(name, reply))

    @flow_method
    def open_part(self, name: str, driver: Driver, temporary: bool, options: Options) -> Flow[TubePort]:
        """Return the port of a partition, which is created if needed."""
        self.check()
        checked = driver.check_tube(options)
        description = (describe(driver), describe_options(checked), checked.get("capacity", 0))
        reply = yield from self.session.open(name, "keep", *description, maker=uuid4().hex)
        port = yield from self._port_of(name, reply)
        port.takes_fail_soon = self.store.server.moving
        return port

    @flow_method
    def find_part(self, name: str) -> Flow[TubePort]:
        """Return the port of an existing partition."""
        self.check()
        return (yield from self._port_of(name, (yield from self.session.open(name, "any"))))

    #: A server may lose this tube. A reply that arrives before the owner creates it again does so.
    find_replies = open_replies

    def _named_driver(self, tube: str, name: str, if_exists: IfExists) -> Flow[Driver]:
        """Return the driver of this name; if the tube exists with another driver, raise that error first."""
        name = check_name("driver", name)
        try:
            return self.store.registry.find(name)
        except DriverNotFound:
            stored: Reply = yield ScriptCall(FUNCTIONS["describe"], self.store.key(tube), ())
            if if_exists != "raise" and type(stored) is list:
                other = validation.driver_name(tube, stored[0])
                if other != name:
                    raise TubeExists(name=tube, why=f"with driver {other!r}, not {name!r}") from None
            raise

    @flow_method
    def find(self, name: str) -> Flow[TubePort]:
        """Return the port of an existing tube."""
        self.check()
        name = check_tube_name(name)
        return (yield from self._port_of(name, (yield from self.session.open(name, "any"))))

    @flow_method
    def names(self) -> Flow[list[str]]:
        """Return the names of all tubes."""
        self.check()
        names = yield from self._known_names()
        stored, invalid = yield from existing_names(self.store, names)
        self.store.leave_out(invalid)
        return stored

    @flow_method
    def overview(self, ages: bool, patterns: Collection[str] = ("*",)) -> Flow[dict[str, Overview]]:
        """Return an overview of the tubes whose names match."""
        self.check()
        flag("ages", ages)
        known = exact_names(patterns) or match_names((yield from self._known_names()), patterns)
        found, invalid = yield from overview(self.store, known, ages=ages)
        self.store.leave_out(invalid)
        return found

    def reachable(self, tubes: list[Any]) -> Any:
        """Return the tubes and names of tubes whose node replies; all if none does."""
        return self.run(self._reachable(tubes)) if self.store.server.moving else tubes

    @flow_method
    def is_reachable(self, name: str) -> Flow[bool]:
        """Return True if the node of a tube replies."""
        return (yield from self.store.health.replies(self.store.key(name)))

    @property
    def joins_all_lines(self) -> bool:
        """True if a caller that waits for a task of a partitioned tube is in the line of each partition."""
        return self.store.manual

    def sleepers(self, name: str, born: int, parts: list[str]) -> Sleepers | None:
        """Return the waiting callers of this process on a partitioned tube; None with a test's clock."""
        return None if self.store.manual else self.store.sleepers_of(name, born, parts)

    def _reachable(self, tubes: list[Any]) -> Flow[list[Any]]:
        found: list[Any] = []
        for tube in tubes:
            key = self.store.key(tube if isinstance(tube, str) else tube.name)
            if (yield from self.store.health.replies(key)):
                found.append(tube)
        return found or tubes

    def examine(self, name: str, repairs: bool) -> list[Problem]:
        """Return the problems of a tube; `repairs`: repair them too."""
        self.check()
        return self.run(examine(self.store, check_stored_name(name), repairs=repairs))

    def repair(self, name: str) -> Flow[None]:
        """Repair a tube that is marked as damaged."""
        found = yield from examine(self.store, name, repairs=True)
        logging.getLogger("tubes").warning("tube %r was damaged by a refused script and was repaired: %s", name, found)

    def _known_names(self) -> Flow[list[str]]:
        """Return the stored names of tubes, sorted; some tubes may be gone."""
        return (yield from self._all_in(f"{self.store.prefix}:names", "a tube name"))

    @flow_method
    def namespaces(self) -> Flow[list[str]]:
        """Return the namespaces that contain tubes."""
        self.check()
        return (yield from self._all_in(self.store.namespaces, "the name of a namespace"))

    def _all_in(self, key: str, kind: str) -> Flow[list[str]]:
        """Return the names in a stored set, sorted; the names read last if the node that has it is dead."""
        listed = self.store.listed.get(key)
        read = self.store.run_plain_script if listed is None else self.store.ask_node
        names: set[bytes] = set()
        cursor = b"0"
        while True:
            reply = yield from read("tube_names", key, "some", cursor, what=key)
            if reply is None and listed is not None:
                return listed
            next_cursor, batch = list_of(reply)
            names.update(map(bytes_of, list_of(batch)))
            cursor = bytes_of(next_cursor)
            if cursor == b"0":
                known, invalid = validation.names(names)
                self.store.leave_out(dict.fromkeys(invalid, f"is not {kind}"))
                if self.store.server.moving:
                    self.store.listed[key] = known
                return known

    def _change_names(self, key: str, action: str, name: str | bytes) -> Flow[Reply]:
        return (yield from self.store.run_plain_script("tube_names", key, action, name, what=key))

    def _store_name(self, name: str) -> Flow[None]:
        """Store the name of a tube before it is created, then the name of its namespace."""
        yield from self._change_names(f"{self.store.prefix}:names", "add", name)
        if self.store.namespace:
            yield from self._change_names(self.store.namespaces, "add", self.store.namespace)

    def forget_name(self, name: str) -> Flow[None]:
        """Remove the name of a dropped tube unless it was created again, and the name of an empty namespace."""
        names = f"{self.store.prefix}:names"
        yield from self._change_names(names, "remove", name)
        stored = yield ScriptCall(FUNCTIONS["describe"], self.store.key(name), ())
        if stored is not None:
            yield from self._store_name(name)
        elif self.store.namespace and not (yield from self._all_in(names, "a tube name")):
            yield from self._change_names(self.store.namespaces, "remove", self.store.namespace)
            if (yield from self._all_in(names, "a tube name")):
                yield from self._change_names(self.store.namespaces, "add", self.store.namespace)

    def _port_of(self, name: str, opened: OpenedTube | tuple[Reply, Reply] | None) -> Flow[TubePort]:
        if not isinstance(opened, OpenedTube):
            raise TubeNotFound(name=name)
        if opened.is_muted:
            self.store.warn_of_silence()
        self.store.set_time(opened.now)
        shared, version = self.store.shared(name, opened)
        if self.closed is not None:
            raise self.closed()
        port: TubePort | None = self._ports.get(shared)
        if port is None:
            port = self.make_port(shared)
            port.kind, port.tube = self._api.task, self._api.tube(port)
            self._ports[shared] = port
            shared.ports.add(port)
        yield from self.session.set_open(port, opened.session(self.session.caller, version))
        return port

    def enter(self, port: RedisPort) -> Flow[None]:
        """Open the tube of a port again after the session has changed or its lease has expired."""
        shared = port.shared
        session, uuid, caller = self.session, self.session.uuid, self.session.caller
        reply = yield from self.session.open(shared.name, "any")
        if not isinstance(reply, OpenedTube) or creation_of(reply.token) != shared.born:
            shared.handle_drop()
            raise TubeNotFound(name=shared.name)
        _, version = self.store.shared(shared.name, reply)
        if session.uuid == uuid:  # The connection still has the same session.
            yield from session.set_open(port, reply.session(caller, version))

    def forget(self, shared: RedisTube) -> None:
        """Drop the port of a tube that no longer exists."""
        self._ports.pop(shared, None)

    def identify(self, uuid: str | UUID | None, create: bool = False) -> str:
        """Return the session's uuid, after joining session `uuid` if it is given; `create`: create a missing one."""
        self.check()
        return self.run(self.session.identify(check_session_uuid(uuid, create), create=create))

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self, *, lost: bool = False) -> None:
        """Close this connection; waiting callers get `QueueClosed`. `lost`: its session lives until its ttl ends."""
        if self.closed is not None:
            return self.run(_nothing())
        if self._pid != os.getpid():
            self.closed = self._make_forked_error
            return self.run(_nothing())
        if self.replies is not None:
            if self.awaited:
                self.replies.close_later()
            else:
                self.replies.close()
        self.closed = _closed_error
        self.session.closing = True
        for port in list(self._ports.values()):
            port.closed_error = _closed_error
            port.shared.wait_loop.dismiss(port.shared.queue.waiters(port), _closed_error)
            port.shared.emptiness.dismiss(port.shared.emptiness.waiters(port), _closed_error)
            if port.partitioned is not None:
                port.partitioned.dismiss(_closed_error)
            port.listener = None
            port.shared.subscription.update_listener(port)
            self.store.losses.set(port.shared.key, port, None)
        return self.run(self._close("lose" if lost else "leave"))

    def _close(self, how: str) -> Flow[None]:
        try:
            yield from self.session.leave(how, self.session.uuid, self.session.opened_in())
        finally:
            for port in list(self._ports.values()):
                port.shared.ports.discard(port)
            self._ports.clear()
            self.close_channels()
            self.store.leave()

    def make_port(self, shared: RedisTube) -> TubePort:
        """Make this connection's port for a tube."""
        raise NotImplementedError

    def close_channels(self) -> None:
        """Close its channels after the last reply."""
        raise NotImplementedError

    def __del__(self) -> None:
        if sys.is_finalizing() or not hasattr(self, "_pid") or self._pid != os.getpid() or self.closed is not None:
            return
        # This process no longer renews its leases, so they expire.
        self.closed = _closed_error
        self.session.closing = True
        store, flow = self.store, self._leave_abandoned()
        store.later(lambda: flow)
        store.later(store.leave)

    def _leave_abandoned(self) -> Flow[None]:
        if self.store.manual:
            yield from self.session.leave("lose", self.session.uuid, self.session.opened_in())


def connect(
    url: object,
    codec: str | Codec | None,
    clock: Clock | None,
    session_ttl: float,
    connect_timeout: float | None,
    api: ApiKind,
    namespace: str,
) -> RedisConnection:
    """Return a connection to the server of this URL or client; one for threads is tested at once."""
    store = open_store(url, clock, codec, session_ttl, namespace)
    connection = _make(store, api, connect_timeout)
    if api.awaited:
        return connection
    try:
        store.ensure_connected(connect_timeout)
    except BaseException:
        connection.close()
        raise
    return connection


def _make(store: RedisStore, api: ApiKind, timeout: float | None) -> RedisConnection:
    return LoopConnection(store, api, timeout) if api.awaited else ThreadConnection(store, api, timeout)


class ThreadConnection(RedisConnection):
    """A connection for threads: its methods return when they are done."""

    def __init__(self, store: RedisStore, api: ApiKind, timeout: float | None) -> None:
        channel = NodeChannels if store.server.moving else ThreadChannel
        self.channel: Final[ThreadChannel] = channel(store.server, closed=_closed_error)
        self.undos = self.channel.undos
        super().__init__(store, api, timeout)

    def run(self, flow: Flow[T]) -> T:
        if self._pid != os.getpid():
            raise self._make_forked_error()
        return self.channel.run(flow)

    def run_undos(self) -> None:
        self.channel.run_undos()

    def may_run(self) -> bool:
        return self.channel.is_idle()

    def close_channels(self) -> None:
        self.channel.close()

    def make_port(self, shared: RedisTube) -> TubePort:
        return ThreadPort(self, shared, self.channel)


class LoopConnection(RedisConnection):
    """A connection for asyncio: its methods are awaited. Each event loop has its own channel."""

    def __init__(self, store: RedisStore, api: ApiKind, timeout: float | None) -> None:
        self.channels: Final[Channels] = {}
        self.undos = []
        self._slots: Final = Slots()
        super().__init__(store, api, timeout)

    async def ensure_connected(self) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Test the server once; close the connection if the test fails."""
        if self.closed is not None or self.store.is_tested:
            return
        try:
            await asyncio.to_thread(self.store.ensure_connected, self._timeout)
        except BaseException:
            await cast("Callable[[], Awaitable[None]]", self.close)()
            raise

    def run(self, flow: Flow[T]) -> Coroutine[object, None, T]:  # type: ignore[override]
        if self._pid != os.getpid():
            raise self._make_forked_error()
        if self.undos:
            self.run_undos()
        loop = asyncio.get_running_loop()
        channel = self.channels.get(loop)
        if channel is None:
            channel = self._make_channel(loop)
        return channel.run(flow)

    def run_undos(self) -> None:
        run_undos(self.undos)

    def _make_channel(self, loop: asyncio.AbstractEventLoop) -> LoopChannel | ThreadedChannel:
        for other in [other for other in self.channels if other.is_closed()]:
            del self.channels[other]
        server = self.store.server
        pipelines = hiredis is not None and not server.secure
        channel = (
            LoopChannel(server, loop, self._slots, _closed_error)
            if pipelines
            else ThreadedChannel(server, self._slots, _closed_error)
        )
        self.channels[loop] = channel
        return channel

    def make_port(self, shared: RedisTube) -> TubePort:
        return LoopPort(self, shared, self.channels)

    def close_channels(self) -> None:
        for loop, channel in list(self.channels.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(channel.close)


def _closed_error() -> TubesError:
    return QueueClosed(why="close() was called")


def _nothing() -> Flow[None]:
    return
    yield
