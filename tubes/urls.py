"""Which backend a URL names."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import urlsplit

from tubes.clock import Clock
from tubes.codecs import Codec
from tubes.drivers.options import SECOND, micros
from tubes.errors import InvalidOption
from tubes.face import Face, Member
from tubes.memory.session import Member as MemoryMember
from tubes.memory.store import open_store

#: Schemes of the backend on Redis, which is imported when it is first asked for.
_REDIS: Final = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster")

#: Microseconds: a shorter lease of a server can't be renewed in time. In memory there are no leases to renew.
SHORTEST_LEASE: Final = SECOND // 10

# Where a URL has a password, be it one or not.
_PASSWORD: Final = re.compile(r"(:/+[^:@/?#]*:)[^?]*(?=@)|([?&](?:ssl_)?password=)[^&]*")


def shown(url: str) -> str:
    """The URL without its password, as errors and logs have it."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}***", url)


def connect(url: Any, codec: str | Codec | None, clock: Clock | None, session_ttl: float, face: Face) -> Member:
    """A connection to what the URL names: `memory://` a store of its own, `memory://name` a shared one, or a server."""
    lease = micros("session_ttl", session_ttl)
    if not isinstance(url, str):
        other: Member | None = getattr(url, "_member", None)
        if other is not None:
            for option, value in (("codec", codec), ("clock", clock)):
                if value is not None:
                    raise InvalidOption(option=option, value=value, rule="must be left out: it is that of the queue")
            return other.sibling(face)
        if type(url).__module__.partition(".")[0] != "redis":
            raise InvalidOption(option="url", value=url, rule="must be a string, a queue, or a client of redis-py")
        return _connect_redis(url, codec, clock, session_ttl, lease, face)
    # What urlsplit drops without a word would make two URLs one.
    if not url.isprintable() or " " in url:
        raise InvalidOption(option="url", value=shown(url), rule="must be printable and without blanks")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidOption(option="url", value=shown(url), rule=f"is no URL: {error}") from error
    if parts.scheme in _REDIS:
        return _connect_redis(url, codec, clock, session_ttl, lease, face)
    if parts.scheme != "memory":
        rule = f"must be memory:// or memory://name, or begin with one of {', '.join(f'{name}://' for name in _REDIS)}"
        raise InvalidOption(option="url", value=shown(url), rule=rule)
    if parts.path or parts.query or parts.fragment:
        raise InvalidOption(option="url", value=shown(url), rule="memory:// takes a name and nothing else")
    return MemoryMember(open_store(parts.netloc, clock, codec), lease, face)


def _connect_redis(
    url: Any, codec: str | Codec | None, clock: Clock | None, session_ttl: float, lease: int, face: Face
) -> Member:
    if lease < SHORTEST_LEASE:
        least = SHORTEST_LEASE / SECOND
        rule = f"must be at least {least} seconds on a server, where a shorter lease is over before a call is"
        raise InvalidOption(option="session_ttl", value=session_ttl, rule=rule)
    from tubes.redis.session import connect

    return connect(url, codec, clock, session_ttl, face)
