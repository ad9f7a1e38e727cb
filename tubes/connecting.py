"""Which backend a URL names, and a connection to it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from tubes.backend.clock import Clock
from tubes.backend.interface import ApiKind, Connection
from tubes.backend.url import SHORTEST_LEASE, read
from tubes.drivers.options import SECOND, Seconds, micros, seconds
from tubes.errors import InvalidOption
from tubes.memory.connection import Connection as MemoryConnection
from tubes.memory.store import open_store
from tubes.values.codecs import Codec


def connect(
    url: object, codec: str | Codec | None, clock: Clock | None, session_ttl: Seconds, api: ApiKind
) -> Connection[Any]:
    """A connection to what the URL names: `memory://` a store of its own, `memory://name` a shared one, or a server."""
    lease = micros("session_ttl", session_ttl)
    session_ttl = seconds("session_ttl", session_ttl)
    if not isinstance(url, str):
        other: Connection[Any] | None = getattr(url, "_connection", None)
        if other is not None:
            for option, value in (("codec", codec), ("clock", clock)):
                if value is not None:
                    raise InvalidOption(option=option, value=value, rule="must be left out: it is that of the queue")
            return other.sibling(api)
        if type(url).__module__.partition(".")[0] != "redis":
            # By its kind alone: others write URLs in bytes, or in classes of their own.
            seen = url if url is None or isinstance(url, (int, float)) else type(url)
            raise InvalidOption(option="url", value=seen, rule="must be a string, a queue, or a client of redis-py")
        return _connect_redis(url, codec, clock, session_ttl, lease, api)
    place = read(url)
    if place.scheme != "memory":
        return _connect_redis(url, codec, clock, session_ttl, lease, api)
    return MemoryConnection(open_store(urlsplit(url).netloc, clock, codec), lease, api)


def _connect_redis(
    url: object, codec: str | Codec | None, clock: Clock | None, session_ttl: float, lease: int, api: ApiKind
) -> Connection[Any]:
    if lease < SHORTEST_LEASE:
        least = SHORTEST_LEASE / SECOND
        rule = f"must be at least {least} seconds on a server, where a shorter lease is over before a call is"
        raise InvalidOption(option="session_ttl", value=session_ttl, rule=rule)
    from tubes.redis.connection import connect

    return connect(url, codec, clock, session_ttl, api)
