"""Find the backend that a URL names, and connect to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from tubes.backend.clock import Clock
from tubes.backend.interface import ApiKind, Connection
from tubes.backend.url import ARGUMENTS, DEFAULT_URL, SHORTEST_LEASE, Place, read, remove_settings, url_of_environment
from tubes.drivers.driver import check_namespace
from tubes.drivers.options import SECOND, Seconds, micros, seconds
from tubes.errors import InvalidOption
from tubes.values.codecs import Codec

#: Seconds for which a session outlives a connection that was lost.
_LEASE: Final = 30.0


class Arguments(NamedTuple):
    """The arguments of `connect` after the URL; None if not given."""

    codec: str | Codec | None
    clock: Clock | None
    session_ttl: Seconds | None
    connect_timeout: Seconds | None

    def complete(self, place: Place) -> Arguments:
        """Return these arguments with missing ones filled in from the settings of the URL."""
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


def connect(url: object, arguments: Arguments, api: ApiKind) -> Connection:
    """Connect to the URL, or by default to `TUBES_URL`. Errors about that URL name the variable."""
    if url is not DEFAULT_URL:
        return _connect(url, arguments, api)
    try:
        return _connect(url_of_environment() or "memory://", arguments, api)
    except InvalidOption as error:
        if error.facts["option"] != "url":
            raise
        facts = error.facts
    # Outside of the `except` block, so that the error has no context.
    raise InvalidOption(**{**facts, "option": "TUBES_URL"})


def _connect(url: object, arguments: Arguments, api: ApiKind) -> Connection:
    """Connect to a URL, a queue or a client of redis-py.

    `memory://` is a private store, `memory://name` a shared one, `file:folder` a folder; other URLs name servers.
    """
    place: Place | None = None
    namespace = ""
    if isinstance(url, str):
        place = read(url)
        if place.scheme in ("memory", "file"):
            place.check_settings((*ARGUMENTS, "namespace", *(["mode", "sync"] if place.scheme == "file" else [])))
        arguments = arguments.complete(place)
        namespace = check_namespace(place.setting("namespace") or "")
        url = remove_settings(url, place, (*ARGUMENTS, "namespace"))
    else:
        other: Connection | None = getattr(url, "_connection", None)
        if other is not None:
            for option, value in arguments._asdict().items():
                if value is not None:
                    raise InvalidOption(option=option, value=value, rule="must be left out: the queue has its own")
            return other.sibling(api)
        if type(url).__module__.partition(".")[0] != "redis":
            # Only the type: a URL object of another library may contain a password.
            named = url if url is None or isinstance(url, (int, float)) else type(url)
            raise InvalidOption(option="url", value=named, rule="must be a string, a queue, or a client of redis-py")
    session_ttl = _LEASE if arguments.session_ttl is None else seconds("session_ttl", arguments.session_ttl)
    lease = micros("session_ttl", session_ttl)
    timeout = None if arguments.connect_timeout is None else seconds("connect_timeout", arguments.connect_timeout)
    if timeout == 0:
        rule = "must be more than 0 seconds"
        raise InvalidOption(option="connect_timeout", value=arguments.connect_timeout, rule=rule)
    if place is not None and place.scheme == "memory":
        # A program imports only the backend that it uses: the import takes a third of the time of `connect`.
        from tubes.memory.connection import MemoryConnection
        from tubes.memory.store import open_store

        store = open_store(urlsplit(str(url)).netloc, arguments.clock, arguments.codec)
        return MemoryConnection(store.open_namespace(namespace), lease, api)
    if place is not None and place.scheme == "file":
        from tubes.durable import connection as durable

        modes = place.setting("sync"), place.setting("mode")
        return durable.connect(Path(place.path), namespace, arguments.clock, arguments.codec, lease, api, *modes)
    if lease < SHORTEST_LEASE:
        least = SHORTEST_LEASE / SECOND
        rule = f"must be at least {least} seconds on a server: a shorter lease can end before a call returns"
        raise InvalidOption(option="session_ttl", value=arguments.session_ttl, rule=rule)
    from tubes.redis.connection import connect

    return connect(url, arguments.codec, arguments.clock, session_ttl, timeout, api, namespace)
