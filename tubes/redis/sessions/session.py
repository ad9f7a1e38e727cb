"""The session of a connection to a server: the tubes in which it is open, and its other callers.

**How sessions work.** A tube knows a session by a number and a token, which `open` returns, and keeps a lease for it.
`SessionRenewer` renews the leases in a thread; after an expired lease the tube releases the tasks of the session.
A session belongs to one connection until `identify` stores it on the server under its uuid, with its tubes and callers.
Then other connections may join it. Each of them opens all tubes of the session, and the last to leave ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol
from uuid import uuid4

from tubes.drivers.options import micros
from tubes.errors import DriverNotFound, ServerRefused, SessionNotFound, Unreadable
from tubes.redis import validation
from tubes.redis.library.functions import FUNCTIONS, LAYOUT
from tubes.redis.library.replies import bytes_of, list_of, number_of
from tubes.redis.options_version import OpenedTube, TubeSession
from tubes.redis.transport.attempt import PortStep, port_step
from tubes.redis.transport.script_call import Flow, ScriptCall
from tubes.redis.transport.wire import ErrorReply, Reply

if TYPE_CHECKING:
    from tubes.redis.sessions.store import RedisStore
    from tubes.redis.waiting.shared_tube import RedisTube


class SessionPort(Protocol):
    """A port of the connection, as its session uses it."""

    session: TubeSession | None
    last_session: TubeSession | None

    @property
    def shared(self) -> RedisTube: ...


class RedisSession:
    """The session of a connection.

    At first only the tubes in which it is open know it. `identify` stores its uuid on the server, and others may join
    it.
    """

    def __init__(self, store: RedisStore, ports: Mapping[RedisTube, SessionPort]) -> None:
        self.uuid = uuid4().hex
        #: The name under which its replies are stored.
        self.caller = "0"
        #: True while its connection is being closed.
        self.closing = False
        self._store: Final = store
        # The ports of its connection.
        self._ports: Final = ports
        # Its unique name among the callers of a shared session. It is not a number, which a server that lost its last
        # writes could assign twice.
        self.name: Final = uuid4().hex[:12]
        self._shared = False

    def ports(self) -> list[SessionPort]:
        """Return a copy of the ports: another thread that finds a tube dropped removes its port."""
        return list(self._ports.values())

    def use(self, uuid: str) -> None:
        """Use the session of this uuid, which may be open elsewhere, without storing it on the server."""
        self.uuid, self.caller = uuid, self.name

    def set_open(self, port: SessionPort, session: TubeSession) -> Flow[None]:
        """Record that the session is open in the tube of a port."""
        port.session = port.last_session = session
        if self._shared:
            yield from self._update_shared("tube", port.shared.name)

    def open(
        self,
        name: str,
        mode: str,
        driver: bytes = b"",
        options: bytes = b"",
        capacity: int = 0,
        uuid: str | None = None,
        maker: str = "",
    ) -> Flow[OpenedTube | tuple[Reply, Reply] | None]:
        """Open a tube for this session; return only its driver and options if `mode` rejects an existing tube.

        Return None if the tube does not exist.
        """
        request = next(self._store.open_requests)
        span = self._store.span()
        args = (uuid or self.uuid, span, self._store.now(), mode, driver, options, capacity, maker, LAYOUT)
        reply: Reply = yield ScriptCall(FUNCTIONS["open"], self._store.key(name), args)
        if isinstance(reply, ErrorReply):
            if reply.code == "TUBEGONE":
                return None
            raise validation.refusal(f"tube {name!r}", reply, self._store.url)
        with validation.reading(f"tube {name!r}"):
            its_driver, its_options, *about = list_of(reply)
            if not about:
                return its_driver, its_options
            number, token, now, is_muted, version, lacks = about
            known, version_name = validation.token(name, bytes_of(token)), validation.version(name, version)
            fields = number_of(number), known, number_of(now), bool(is_muted), version_name
            missing = frozenset(bytes_of(lacks).decode().split())
            return OpenedTube(its_driver, its_options, *fields, missing, request)

    def _update_shared(self, what: str, tube: str = "", uuid: str | None = None) -> Flow[tuple[int, list[str]] | None]:
        """Change the stored record of a shared session; return the number of its callers, and its tubes."""
        key = f"{self._store.prefix}:session:{uuid or self.uuid}"
        span = self._store.span()
        args = (what, span, self._store.now(), tube, micros("session_ttl", self._store.lease), self.name)
        reply = yield from self._store.run_plain_script("session", key, *args, what=key)
        if reply is None:
            return None
        callers, *tubes = list_of(reply)
        names, invalid = validation.names(map(bytes_of, tubes))
        self._store.invalid_names.leave_out(key, dict.fromkeys(invalid, "is not a tube name"))
        return number_of(callers), names

    def renew(self) -> Flow[None]:
        """Renew a shared session in all of its tubes."""
        if not self._shared or self.closing:
            return
        record = yield from self._update_shared("heartbeat")
        if record is None:
            if not self.closing:  # The session has ended meanwhile, or the server has lost its record.
                yield from self._publish("again")
            return
        own_names = {port.shared.name for port in self.ports()}
        for name in record[1]:
            if name not in own_names:
                yield from self._open_other(name)

    def identify(self, uuid: str | None, *, create: bool = False) -> Flow[str]:
        """Return the session's uuid, after joining session `uuid` if it is given; `create`: create a missing one."""
        if not self._shared:
            yield from self._publish("publish")
            self._shared = True
        if uuid is None or uuid == self.uuid:
            return self.uuid
        joined = yield from self._update_shared("publish" if create else "join", uuid=uuid)
        if joined is None:
            raise SessionNotFound(uuid=uuid)
        left, sessions = self.uuid, self.opened_in()
        self.uuid, self.caller = uuid, self.name
        for port in self.ports():
            port.session = None
        yield from self.leave("leave", left, sessions)
        for name in joined[1]:
            yield from self._open_other(name)
        return uuid

    def _publish(self, how: str) -> Flow[None]:
        """Store the session for others to join. `how`: 'publish', or 'again' if others may have joined before."""
        yield from self._update_shared(how)
        for port in self.ports():
            yield from self._update_shared("tube", port.shared.name)

    def opened_in(self) -> dict[str, TubeSession]:
        """Return the tubes in which the session is open, by key."""
        return {port.shared.key: port.session for port in self.ports() if port.session is not None}

    def leave(self, how: str, uuid: str, open_in: dict[str, TubeSession]) -> Flow[None]:
        """End a session, or leave it to its other callers. `how`: 'leave', or 'lose' to let its lease expire."""
        others: dict[str, str] = {}
        if self._shared:
            left = yield from self._update_shared(how, uuid=uuid)
            if left is None:
                # The server has lost the record of the session, which may have other callers.
                how = "lose"
            elif left[0] > 0:
                return
            for name in [] if left is None else left[1]:
                key = self._store.key(name)
                others[key] = name
                if key not in open_in and (other := (yield from self._open_other(name, uuid))) is not None:
                    open_in[key] = other
        span: int | str = micros("session_ttl", self._store.lease) if how == "lose" else ""
        shared_tubes = {port.shared.key: port.shared for port in self.ports()}
        is_dead = False
        for key, opened in open_in.items():
            shared = shared_tubes.get(key)
            name = others.get(key, "") if shared is None else shared.name
            process = self._store.process if shared is not None and shared.wait_loop.may_be_registered() else ""
            session: TubeSession | None = opened
            if not (yield from self._store.health.replies(key)):
                is_dead = True
                continue
            while session is not None:
                leave = session.version.function("leave")
                reply: Reply = yield ScriptCall(leave, key, (span, process), session, self._store.now())
                step = port_step("leave", reply)
                if step is PortStep.MARK:
                    yield ScriptCall(FUNCTIONS["damage"], key, ("1",))
                session = (yield from self._open_other(name, uuid)) if step is PortStep.RENEW and name else None
        if is_dead:
            why = "%s: a node does not reply: the tasks that this session holds there are released when its lease ends"
            logging.getLogger("tubes").warning(why, self._store.url)
        if how == "lose":
            for port in self.ports():
                port.shared.watch(self._store.clock.micros() + int(span))

    def _open_other(self, name: str, uuid: str | None = None) -> Flow[TubeSession | None]:
        """Open another tube of the session; return None if that fails, so that the lease there expires.

        It fails if the tube is gone, refused by the server, or unreadable.
        """
        try:
            reply = yield from self.open(name, "any", uuid=uuid)
            if not isinstance(reply, OpenedTube):
                return None
            return reply.session(self.caller, self._store.make_version(name, reply))
        except (Unreadable, ServerRefused, DriverNotFound) as error:
            self._store.leave_out({name: error})
            return None
