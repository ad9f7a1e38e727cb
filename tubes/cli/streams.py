"""Stdin and stdout for the command: data is UTF-8 in any locale, and a stream may be closed."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from typing import IO


def prepare() -> None:
    """Set up stdout and stderr for output. Raises OSError if stdout is closed."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        # Fail before any work: a task that is taken but cannot be printed would be lost.
        raise OSError(errno.EBADF, "stdout is closed; > /dev/null discards the output")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # In names and tables an escape is better than an error.
            stream.reconfigure(errors="backslashreplace")


def stdin() -> IO[bytes]:
    """Return stdin as a binary stream. Raises OSError if it is closed."""
    if sys.stdin is None:
        raise OSError(errno.EBADF, "stdin is closed")
    return sys.stdin.buffer


def is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def encodable(words: str, encoding: str | None) -> bool:
    """Return True if the encoding has all these characters. None means UTF-8."""
    try:
        words.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def printable(words: str) -> str:
    """Escape characters that would move a terminal's cursor."""
    if words.isprintable():
        return words
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in words)


def text_of(raw: bytes) -> str:
    """Decode UTF-8. Raises ValueError."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {raw[error.start]:#04x} at {error.start} is not UTF-8") from None


class TooDeep(ValueError):
    """JSON that is nested too deeply for Python."""


def from_json(words: str) -> object:
    """Parse JSON. Raises ValueError; its subclass `TooDeep` for JSON that is nested too deeply."""
    try:
        return json.loads(words)
    except RecursionError:
        raise TooDeep("it is nested too deeply") from None


def to_json(thing: object, encoding: str | None = None) -> str:
    r"""Format JSON in a line. Escapes characters that would move a terminal's cursor or that the encoding lacks.

    >>> print(to_json("Zoë \x9b31m \u202e"))
    "Zoë \u009b31m \u202e"
    >>> print(to_json("Zoë", "ascii"))
    "Zo\u00eb"
    """
    words = json.dumps(thing, ensure_ascii=False, allow_nan=False)
    if not words.isprintable():
        words = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in words)
    return words if encodable(words, encoding) else json.dumps(thing, allow_nan=False)
