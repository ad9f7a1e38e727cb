"""Reads the delay that another server asks for in a `Retry-After` header."""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from time import time
from typing import Final

#: The longest delay that is obeyed by default, in seconds: a wrong header must not stop the work for ever.
MAX_DELAY: Final = 3600.0


def retry_after(header: str | bytes | None, *, most: float = MAX_DELAY, now: float | None = None) -> float | None:
    """Return the seconds of a `Retry-After` header, `most` at most. Return None if it is missing or invalid.

    The header is a number of seconds, or a date in any of the three forms of HTTP; a past date means 0 seconds.
    `now`: the current time in seconds since 1970. Raises `TypeError` for a header that is no text, such as a number.

    >>> retry_after("120")
    120.0
    >>> retry_after("Fri, 31 Dec 9999 23:59:59 GMT")
    3600.0
    """
    if not isinstance(header, str | bytes | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a Retry-After header is a str, bytes or None, not {header!r}")
    text = (header.decode("latin-1") if isinstance(header, bytes) else header or "").strip()
    if text.isascii() and text.isdecimal():
        return limit_delay(float(text), most)
    try:
        # The second of a leap second is 60, which Python does not read.
        date = parsedate_to_datetime(text.replace(":60 ", ":59 "))
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
    if date.tzinfo is None:  # The form of asctime has no zone, and -0000 means an unknown one. HTTP uses UTC.
        date = date.replace(tzinfo=UTC)
    return limit_delay(date.timestamp() - (time() if now is None else now), most)


def limit_delay(seconds: float, most: float = MAX_DELAY) -> float:
    """Return the seconds, but 0 for negative ones and nan, and `most` at most."""
    return min(max(0.0, seconds), most)
