"""Which backend a URL names."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from tubes.clock import Clock
from tubes.codecs import Codec
from tubes.drivers.options import micros
from tubes.errors import InvalidOption
from tubes.memory.session import Member
from tubes.memory.store import open_store


def connect(url: Any, codec: str | Codec | None, clock: Clock | None, session_ttl: float) -> Member:
    """A connection to what the URL names: `memory://` a new store of its own, `memory://name` a shared one."""
    lease = micros("session_ttl", session_ttl)
    if not isinstance(url, str):
        raise InvalidOption(option="url", value=url, rule="must be a string")
    # What urlsplit drops without a word would make two URLs one.
    if not url.isprintable() or " " in url:
        raise InvalidOption(option="url", value=url, rule="must be printable and without blanks")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidOption(option="url", value=url, rule=f"is no URL: {error}") from error
    if parts.scheme != "memory":
        raise InvalidOption(option="url", value=url, rule="must be memory:// or memory://name")
    if parts.path or parts.query or parts.fragment:
        raise InvalidOption(option="url", value=url, rule="memory:// takes a name and nothing else")
    return Member(open_store(parts.netloc, clock, codec), lease)
