"""One server in one process: its tubes, its connections, and the threads that keep sessions alive."""

from __future__ import annotations

import inspect
import logging
import os
import threading
import warnings
from _thread import start_new_thread
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar, cast
from uuid import uuid4
from weakref import WeakSet

from tubes.backend.clock import system_clock
from tubes.backend.flow import run
from tubes.backend.retry import Outage
from tubes.backend.url import add_namespace
from tubes.drivers.driver import Driver
from tubes.drivers.options import SECOND, micros
from tubes.drivers.registry import Registry
from tubes.errors import ConnectionLost, QueueClosed, TubesError
from tubes.redis import validation
from tubes.redis.library.functions import FUNCTIONS, WATCHED
from tubes.redis.library.replies import bytes_of, list_of, number_of
from tubes.redis.options_version import OptionsVersion
from tubes.redis.sessions.heartbeats import SessionRenewer
from tubes.redis.sessions.losses import Losses
from tubes.redis.transport.attempt import PATIENCE
from tubes.redis.transport.channel import ThreadChannel
from tubes.redis.transport.health import NodeHealth
from tubes.redis.transport.script_call import Flow, ScriptCall
from tubes.redis.transport.server import locate
from tubes.redis.transport.wire import ErrorReply, Reply, Word, error_of, foreign
from tubes.redis.waiting.shared_tube import RedisTube
from tubes.redis.waiting.sleepers import Sleepers, WakeSubscriptions
from tubes.values.codecs import find as find_codec

if TYPE_CHECKING:
    from tubes.backend.clock import Clock
    from tubes.redis.options_version import OpenedTube
    from tubes.redis.transport.server import Server
    from tubes.values.codecs import Codec

T = TypeVar("T")


class Session(Protocol):
    """The session of a connection."""

    def renew(self) -> Flow[None]: ...


class Key(NamedTuple):
    """The identity of a store."""

    url: object
    clock: int
    codec: str | int
    lease: float
    process: int
    namespace: str


#: Microseconds. If the offset changes by more than a step, the server's clock was set. Two clocks may always differ by
#: the slack.
_STEP: Final = SECOND
_SLACK: Final = SECOND // 10
_log = logging.getLogger("tubes")
_SILENT: Final = "%s has not replied for %g s; connect gives up after %g s (connect_timeout)"
#: Seconds after which the first connection logs that the server does not reply.
SILENCE: Final = 2.0
#: Sessions per call of the function `heartbeat`.
_SESSIONS_PER_CALL: Final = 1000
#: Calls of `heartbeat` in one round trip.
_CALLS_AT_ONCE: Final = 200


class RedisStore:
    """One server in one process, shared by all connections with the same settings."""

    def __init__(
        self,
        key: Key,
        server: Server,
        prefix: str,
        clock: Clock,
        codec: Codec,
        lease: float,
        registry: Registry | None = None,
        renewer: SessionRenewer | None = None,
    ) -> None:
        self._key: Final = key
        self.server: Final = server
        #: Which nodes of a cluster reply.
        self.health: Final = NodeHealth(server)
        #: The names of tubes that were listed last, for the time in which the node that has them is dead.
        self.listed: dict[str, list[str]] = {}
        #: The namespace of its tubes; '' outside of namespaces.
        self.namespace: Final = key.namespace
        self.url: Final = add_namespace(server.url, key.namespace)
        # The prefix of all namespaces.
        self._root: Final = prefix
        self._tag: Final = f"{key.namespace}@" if key.namespace else ""
        #: The key of the set of all namespaces.
        self.namespaces: Final = f"{prefix}:namespaces"
        #: The prefix of keys that belong to no tube.
        self.prefix: Final = self.key("") if key.namespace else prefix
        self.clock: Final = clock
        self.codec: Final = codec
        self.lease: Final = lease
        #: True if a test sets the time: functions get the time, and leases last as long as their connections.
        self.manual: Final = clock.patience(clock.micros()) is None
        self.process: Final = uuid4().hex
        self.registry: Final = registry or Registry()
        self.invalid_names: Final = validation.InvalidNames()
        self.closed = False
        self.sessions: Final[WeakSet[Session]] = WeakSet()
        self._shared_tubes: Final[dict[str, RedisTube]] = {}
        #: The numbers of requests that open a tube.
        self.open_requests: Final = count()
        self._lock: Final = threading.RLock()
        self._users = 0
        self._ahead = 0
        self._has_server_time = False
        #: True once the server was tested.
        self.is_tested = False
        self._has_warned = False
        self._test_lock: Final = threading.Lock()
        self._channel: Final = ThreadChannel(server, "s")
        self._inbox: Final[SimpleQueue[Callable[[], object] | None]] = SimpleQueue()
        self._has_helper = False
        self._renewer: Final = renewer or SessionRenewer(server, lease)
        self._outage: Final = Outage()
        #: Reports lost tasks to the sessions of this process.
        self.losses: Final = Losses(server)
        # True if an error has occurred since the last heartbeat.
        self._had_error = False
        #: Subscriptions to partitions, and by the name and the birth of each partitioned tube its waiting callers.
        self.wake_subscriptions: Final = WakeSubscriptions(server, self.process)
        self._sleepers: Final[dict[tuple[str, int], Sleepers]] = {}

    # -- the life of a store -------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Add a connection, which keeps the store open. Raise `QueueClosed` if the last connection has closed it."""
        with _stores_lock:
            if self.closed:
                raise QueueClosed(why="close() was called")
            self._users += 1

    def open_namespace(self, namespace: str | None, lease: float | None = None) -> RedisStore:
        """Return the store of a namespace of this server, with one more connection.

        `namespace`: '' for tubes outside namespaces; None: the namespace of this store. `lease`: the session ttl; None:
        the ttl of this store.
        """
        namespace = self._key.namespace if namespace is None else namespace
        lease = self.lease if lease is None else lease
        key = self._key._replace(namespace=namespace, lease=lease)
        with _stores_lock:
            store = self if key == self._key else _stores.get(key)
            if store is None:
                shared = self.clock, self.codec, lease, self.registry, self._renewer.with_ttl(lease)
                store = RedisStore(key, self.server, self._root, *shared)
                store.is_tested, store._has_server_time = self.is_tested, self._has_server_time
                store._ahead = self._ahead
                _stores[key] = store
            store.enter()
            return store

    def join(self, session: Session) -> None:
        """Renew this session's lease from now on."""
        with self._lock:
            self.sessions.add(session)
            if not (self.manual or self.closed):
                self._renewer.add(self)

    def leave(self) -> None:
        """Remove a connection; the last one ends the threads."""
        with _stores_lock, self._lock:
            self._users -= 1
            if self._users:
                return
            _stores.pop(self._key, None)
            self.closed = True
            self._renewer.discard(self)
            shared_tubes = list(self._shared_tubes.values())
        self._inbox.put(None)
        self.losses.close()
        self.health.close()
        self.wake_subscriptions.close()
        for shared in shared_tubes:
            shared.subscription.close()
            shared.wait_loop.disconnect()
        if not self._has_helper:
            self._channel.close()

    def sleepers_of(self, name: str, born: int, parts: list[str]) -> Sleepers:
        """Return the waiting callers on a partitioned tube."""
        with self._lock:
            found = self._sleepers.get((name, born))
            if found is None:
                found = self._sleepers[name, born] = Sleepers(self, [self.key(part) for part in parts])
            return found

    def forget_sleepers(self, sleepers: Sleepers) -> None:
        """Forget the callers on a tube that was dropped."""
        with self._lock:
            for key in [key for key, known in self._sleepers.items() if known is sleepers]:
                del self._sleepers[key]
        self.wake_subscriptions.remove(sleepers)

    def now(self) -> int | str:
        """Return the time argument of functions: empty unless a test sets the time, because servers know the time."""
        return self.clock.micros() if self.manual else ""

    def span(self) -> int | str:
        """Return the lease as an argument of functions."""
        return "" if self.manual else micros("session_ttl", self.lease)

    def server_micros(self) -> int:
        """Return the server's time as this process estimates it."""
        return self.clock.micros() + self._ahead

    def local_micros(self, moment: int) -> int:
        """Convert a time of the server to the clock of this process."""
        return moment - self._ahead

    # -- work without a waiting caller ---------------------------------------------------------------------------------

    def later(self, act: Callable[[], object]) -> None:
        """Call `act`, or run the flow that it returns, in a thread of the store.

        This is safe in finalizers. If it is interrupted, it may have no effect and can be repeated.
        """
        if not self._has_helper and not self.closed:
            with self._lock:
                if not self._has_helper:
                    self._has_helper = True
                    start_new_thread(self._help, ())
        self._inbox.put(act)

    def end_expired_waits(self, key: str) -> None:
        """Make the server of this key end expired waits, which any command does."""
        self.later(lambda: self._channel.request(key, "PING"))

    def run_now(self, flow: Flow[T]) -> T | None:
        """Run a flow in this thread; log its errors."""
        try:
            return run(flow, self._channel.call)
        except TubesError:
            _log.debug("a background call failed", exc_info=True)
            return None

    def _help(self) -> None:
        while (act := self._next()) is not None:
            try:
                flow = act()
                if inspect.isgenerator(flow):
                    self.run_now(cast("Flow[object]", flow))
            except TubesError:
                _log.debug("a background call failed", exc_info=True)
            except Exception:
                _log.exception("a background call failed")
        self._channel.close()

    def _next(self) -> Callable[[], object] | None:
        act = self._inbox.get()
        if act is None:
            try:  # Work that was queued before the end is still done.
                act = self._inbox.get_nowait()
            except Empty:
                return None
            self._inbox.put(None)
        return act

    # -- leases --------------------------------------------------------------------------------------------------------

    def renew_sessions(self, channel: ThreadChannel, patience: float, lost: set[str]) -> None:
        """Renew the leases of all sessions; `lost`: nodes that have not replied."""
        self._had_error = False
        try:
            self._renew_tokens(channel, lost)
            if not self.is_tested:  # An `AsyncQueue` may be used without `await` and `async with`.
                self.ensure_connected(patience, logs=False)
        except Exception as error:  # Sessions depend on this thread: the next heartbeat follows any error.
            self._warn("sessions could not be renewed", error)
        if not self._had_error:
            self._outage.end()

    def _renew_tokens(self, channel: ThreadChannel, lost: set[str]) -> None:
        renewals: dict[str, list[tuple[RedisTube, ScriptCall]]] = {}
        for shared in list(self._shared_tubes.values()):
            tokens = [port.session.token for port in snapshot(shared.ports) if port.session is not None]
            listening = "1" if shared.subscription.listening else ""
            if not tokens and not listening:
                continue
            try:
                calls = renewals.setdefault(self.server.node(shared.key), [])
            except ConnectionLost as error:
                lost.add("")
                self._warn("sessions could not be renewed", error)
                continue
            for first in range(0, max(len(tokens), 1), _SESSIONS_PER_CALL):
                chunk = tokens[first : first + _SESSIONS_PER_CALL]
                words: tuple[Word, ...] = (micros("lease", self.lease), listening, *chunk)
                calls.append((shared, ScriptCall(FUNCTIONS["heartbeat"], shared.key, words)))
        for node, calls in renewals.items():
            # A node that does not reply must not cost the sessions on other nodes their leases.
            if node in lost:
                self._had_error = True
                continue
            try:
                for first in range(0, len(calls), _CALLS_AT_ONCE):
                    self._renew_some(channel, calls[first : first + _CALLS_AT_ONCE])
            except ConnectionLost as error:
                lost.add(node)
                self._warn("sessions could not be renewed", error)
        for session in snapshot(self.sessions):
            try:
                run(session.renew(), channel.call)
            except TubesError as error:
                self._warn("a shared session could not be renewed", error)
        if not lost or self.server.node(self.prefix) not in lost:
            self.read_time(channel, self.prefix)

    def _renew_some(self, channel: ThreadChannel, calls: list[tuple[RedisTube, ScriptCall]]) -> None:
        """Renew sessions in tubes of one node."""
        for (shared, _), reply in zip(calls, channel.call_all([call for _, call in calls]), strict=True):
            if isinstance(reply, ErrorReply) and reply.code == "TUBEGONE":
                shared.handle_drop()
            elif isinstance(reply, ErrorReply):
                self._warn("sessions could not be renewed", error_of(reply, self.url))

    def _warn(self, what: str, error: Exception) -> None:
        """Log the first error of an outage, unless the store is closed."""
        self._had_error = True
        if not self.closed:
            self._outage.log(what, error)

    def read_time(self, channel: ThreadChannel | None = None, key: str | None = None) -> None:
        """Compare the server's clock with this process's; notify the tubes if it was set."""
        if self.manual:
            return
        channel = channel or self._channel
        key = self._living_key(channel) if key is None else key
        before = self.clock.micros()
        reply: Reply = channel.request(key, "TIME")
        after = self.clock.micros()
        if type(reply) is not ErrorReply:
            try:
                seconds, rest = map(number_of, list_of(reply))
            except (ValueError, TypeError):
                raise ConnectionLost(url=self.url, why=foreign(reply)) from None
            known, self._ahead = self._ahead, seconds * SECOND + rest - (before + after) // 2
            if self._has_server_time and abs(self._ahead - known) > _STEP:
                for shared in list(self._shared_tubes.values()):
                    self.later(shared.handle_clock_change)
            self._has_server_time = True

    def check_clock(self, soonest: int, channel: ThreadChannel | None = None) -> None:
        """Read the server's time again if its next due time seems to be past: then the known offset is wrong."""
        if not self.manual and self.local_micros(soonest) < self.clock.micros() - _SLACK:
            self.read_time(channel)

    def set_time(self, moment: int) -> None:
        """Use the time in a reply until the server's clock is read."""
        if not self._has_server_time and not self.manual:
            self._ahead = moment - self.clock.micros()

    def ensure_connected(self, patience: float | None = None, *, logs: bool = True) -> None:
        """Test the server once: read its clock, and warn if it may evict tasks.

        `patience`: seconds to try; None: as long as any call. `logs`: log if there is no reply for `SILENCE` seconds.
        """
        # Another caller is testing the server with more patience.
        if not self._test_lock.acquire(timeout=-1 if patience is None else patience):
            raise ConnectionLost(url=self.url, why="it did not reply in time")
        limit = PATIENCE if patience is None else patience
        timer = threading.Timer(SILENCE, _log.warning, (_SILENT, self.url, SILENCE, limit))
        timer.daemon = True
        try:
            if self.is_tested:
                return
            if logs and limit > SILENCE:
                timer.start()
            channel = self._channel if patience is None else ThreadChannel(self.server, "m", patience)
            try:
                self._check_rights(channel)
                self.read_time(channel)
                reply: Reply = channel.request(self._living_key(channel), "CONFIG", "GET", "maxmemory-policy")
            finally:
                if channel is not self._channel:
                    channel.close()
            found = reply[1] if type(reply) is list and len(reply) == 2 else None
            policy = found.decode(errors="replace") if type(found) is bytes else "noeviction"
            self.is_tested = True
        finally:
            timer.cancel()
            self._test_lock.release()
        if policy != "noeviction":
            what = f"{self.url} has maxmemory-policy {policy}: it may evict tasks; set it to noeviction"
            warnings.warn(what, RuntimeWarning, stacklevel=6)

    def _check_rights(self, channel: ThreadChannel) -> None:
        """Raise `ServerRefused` if this user may not call functions or scripts."""
        reply: Reply = channel.call(ScriptCall(FUNCTIONS["ping"], self._living_key(channel), ()))
        if type(reply) is ErrorReply:
            raise error_of(reply, self.url)

    def _living_key(self, channel: ThreadChannel) -> str:
        return run(self.health.living_key(self.prefix), channel.call)

    def warn_of_silence(self) -> None:
        """Log once that the user may not publish."""
        if not self._has_warned:
            self._has_warned = True
            _log.warning("%s refuses PUBLISH: listeners do not receive the events of this process", self.url)

    def run_plain_script(self, name: str, key: str, *args: Word, what: str = "") -> Flow[Reply]:
        """Call a function that uses no session; raise its error. `what`: the data that it may find unreadable."""
        return self._check_reply((yield ScriptCall(FUNCTIONS[name], key, args)), what)

    def ask_node(self, name: str, key: str, *args: Word, what: str = "") -> Flow[Reply]:
        """Call a function that changes nothing, as `run_plain_script`; return None if the node of its key is dead."""
        return self._check_reply((yield from self.health.ask(ScriptCall(FUNCTIONS[name], key, args))), what)

    def _check_reply(self, reply: Reply, what: str) -> Reply:
        if isinstance(reply, ErrorReply):
            raise validation.refusal(what, reply, self.url) if what else error_of(reply, self.url)
        return reply

    def leave_out(self, reasons: Mapping[str, object] | Mapping[bytes, object]) -> None:
        """Leave these names out of the list of tubes, with one warning each."""
        self.invalid_names.leave_out(f"the tubes of {self.url}", reasons)

    # -- tubes ---------------------------------------------------------------------------------------------------------

    def key(self, name: str) -> str:
        """Return the key of a tube; all its keys begin with it and share its hash slot."""
        return f"{self._root}:{{{self._tag}{name}}}"

    def shared(self, name: str, opened: OpenedTube) -> tuple[RedisTube, OptionsVersion]:
        """Return the shared tube for an opened tube, created on first use, and its current options."""
        born = creation_of(opened.token)
        with self._lock:
            shared = self._shared_tubes.get(name)
            if shared is not None and shared.born == born:
                # Another thread may have received the reply to a later request, which has later options.
                if opened.request > shared.version_request:
                    shared.version_request = opened.request
                    known = shared.version
                    if (known.name, known.lacks) != (opened.version, opened.lacks):
                        shared.version = self.make_version(name, opened)
            else:
                driver, version = self.driver_of(name, opened.driver), self.make_version(name, opened)
                shared = self._shared_tubes[name] = RedisTube(self, name, self.key(name), driver, version, born)
                shared.version_request = opened.request
            return shared, shared.version

    def make_version(self, name: str, opened: OpenedTube) -> OptionsVersion:
        """Return the options in the server's reply to `open`."""
        driver = self.driver_of(name, opened.driver)
        options = validation.options(name, opened.options, driver)
        return OptionsVersion(
            driver,
            options,
            self.server_micros,
            opened.version,
            lacks=opened.lacks,
            url=self.url,
        )

    def count_waiting(self, name: str, processes: object) -> int:
        """Return the number of waiting callers on a tube; `processes`: the others, as `Waiting.list` lists them."""
        now = self.clock.micros()
        others = 0
        with validation.reading(f"tube {name!r}: its waiters"):
            *chunk, last = list_of(processes)
            total = number_of(last)
            for process, about in zip(chunk[::2], chunk[1::2], strict=True):
                callers, *_, until = map(int, bytes_of(about).split())
                until = self.local_micros(until)
                # A record too far in the future was written before the server's clock was set back.
                if process != self.process.encode() and now < until and (self.manual or until < now + 2 * WATCHED):
                    others += callers
        if 2 * total > len(chunk) > 0:
            others = round(others * total * 2 / len(chunk))
        shared = self._shared_tubes.get(name)
        own = sum(sleepers.count() for (tube, _), sleepers in list(self._sleepers.items()) if tube == name)
        return others + own if shared is None else others + own + shared.queue.count()

    def driver_of(self, name: str, about: object) -> Driver:
        """Return the registered driver if it equals the tube's description, else a driver made from the description."""
        return validation.driver(name, about, self.registry)

    def forget(self, shared: RedisTube) -> None:
        """Remove a tube that no longer exists."""
        with self._lock:
            if self._shared_tubes.get(shared.name) is shared:
                del self._shared_tubes[shared.name]


def creation_of(token: str) -> str:
    """Return the creation time in a session's token, which distinguishes tubes of the same name."""
    return token.split(".")[1]


def snapshot(items: Iterable[T]) -> list[T]:
    """Copy a weak set: another thread may add to it, which breaks a loop over it."""
    while True:
        try:
            return list(items)
        except RuntimeError:
            continue


_stores: Final[dict[Key, RedisStore]] = {}
_stores_lock = threading.RLock()


def open_store(url: object, clock: Clock | None, codec: str | Codec | None, lease: float, namespace: str) -> RedisStore:
    """Return the store of this server: one per process, namespace, clock, codec and lease."""
    found = find_codec("json" if codec is None else codec)
    clock = clock or system_clock
    kind = codec if isinstance(codec, str) or codec is None else id(found)
    url_key = url if isinstance(url, str) else id(url)
    key = Key(url_key, id(clock), kind or "json", lease, os.getpid(), namespace)
    with _stores_lock:
        store = _stores.get(key)
        if store is None:
            server, prefix = locate(url)
            root = f"{prefix}:tubes" if prefix else "tubes"
            store = _stores[key] = RedisStore(key, server, root, clock, found, lease)
        # Enter under the lock: otherwise the last connection could leave and close the store first.
        store.enter()
        return store


def _after_fork() -> None:
    global _stores_lock
    _stores_lock = threading.RLock()
    _stores.clear()


os.register_at_fork(after_in_child=_after_fork)
