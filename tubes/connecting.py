"""Which backend a URL names, and a connection to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from tubes.backend.clock import Clock
from tubes.backend.interface import ApiKind, Connection
from tubes.backend.url import ARGUMENTS, DEFAULT_URL, SHORTEST_LEASE, Place, read, url_of_environment, without
from tubes.drivers.driver import check_namespace
from tubes.drivers.options import SECOND, Seconds, micros, seconds
from tubes.errors import InvalidOption
from tubes.memory.connection import Connection as MemoryConnection
from tubes.memory.store import open_store
from tubes.values.codecs import Codec

#: Seconds for which a session outlives a connection that was lost.
_LEASE: Final = 30.0


class Arguments(NamedTuple):
    """The arguments of `connect` besides the URL; None: not given."""

    codec: str | Codec | None
    clock: Clock | None
    session_ttl: Seconds | None
    connect_timeout: Seconds | None

    def completed(self, place: Place) -> Arguments:
        """These arguments; the settings of the URL replace those that were not given."""
        return self._replace(
            codec=place.setting("codec") if self.codec is None else self.codec,
            session_ttl=_number(place, "session_ttl") if self.session_ttl is None else self.session_ttl,
            connect_timeout=_number(place, "connect_timeout") if self.connect_timeout is None else self.connect_timeout,
        )


def _number(place: Place, setting: str) -> Any:
    value = place.setting(setting)
    try:
        return None if value is None else float(value)
    except ValueError:
        return value  # The check of the argument refuses it.


def connect(url: object, given: Arguments, api: ApiKind) -> Connection[Any]:
    """A connection to what the URL names, or else the environment. An error says that the value came from there."""
    if url is not DEFAULT_URL:
        return _connect(url, given, api)
    try:
        return _connect(url_of_environment() or "memory://", given, api)
    except InvalidOption as error:
        if error.facts["option"] != "url":
            raise
        facts = error.facts
    # Not inside the block: the error has no context.
    raise InvalidOption(**{**facts, "option": "TUBES_URL"})


def _connect(url: object, given: Arguments, api: ApiKind) -> Connection[Any]:
    """A connection to what the URL names.

    `memory://` is a store of its own, `memory://name` a shared one, `file:folder` one in a folder, all else a server.
    """
    place: Place | None = None
    namespace = ""
    if isinstance(url, str):
        place = read(url)
        if place.scheme in ("memory", "file"):
            place.check_settings((*ARGUMENTS, "namespace", *(["mode", "sync"] if place.scheme == "file" else [])))
        given = given.completed(place)
        namespace = check_namespace(place.setting("namespace") or "")
        url = without(url, place, (*ARGUMENTS, "namespace"))
    else:
        other: Connection[Any] | None = getattr(url, "_connection", None)
        if other is not None:
            for option, value in given._asdict().items():
                if value is not None:
                    raise InvalidOption(option=option, value=value, rule="must be left out: the queue has its own")
            return other.sibling(api)
        if type(url).__module__.partition(".")[0] != "redis":
            # Only its type: URLs of other types may have passwords, too.
            seen = url if url is None or isinstance(url, (int, float)) else type(url)
            raise InvalidOption(option="url", value=seen, rule="must be a string, a queue, or a client of redis-py")
    session_ttl = _LEASE if given.session_ttl is None else seconds("session_ttl", given.session_ttl)
    lease = micros("session_ttl", session_ttl)
    timeout = None if given.connect_timeout is None else seconds("connect_timeout", given.connect_timeout)
    if timeout == 0:
        raise InvalidOption(option="connect_timeout", value=given.connect_timeout, rule="must be more than 0 seconds")
    if place is not None and place.scheme == "memory":
        store = open_store(urlsplit(str(url)).netloc, given.clock, given.codec)
        return MemoryConnection(store.within(namespace), lease, api)
    if place is not None and place.scheme == "file":
        from tubes.durable import connection as durable

        ways = place.setting("sync"), place.setting("mode")
        return durable.connect(Path(place.path), namespace, given.clock, given.codec, lease, api, *ways)
    if lease < SHORTEST_LEASE:
        least = SHORTEST_LEASE / SECOND
        rule = f"must be at least {least} seconds on a server: a shorter lease can end before a call returns"
        raise InvalidOption(option="session_ttl", value=given.session_ttl, rule=rule)
    from tubes.redis.connection import connect

    return connect(url, given.codec, given.clock, session_ttl, timeout, api, namespace)
