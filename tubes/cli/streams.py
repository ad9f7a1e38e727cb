"""Stdin and stdout as the command needs them: data is UTF-8 whatever the locale, and a stream may be closed."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from typing import IO, Any


def prepare() -> None:
    """Make stdout and stderr fit to be written to. Raises OSError where stdout is closed."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        # Before anything is done: a task that is taken and can't be printed is no use to anybody.
        raise OSError(errno.EBADF, "stdout is closed; > /dev/null throws away what is printed")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names and tables are for people, who would rather see an escape than no table.
            stream.reconfigure(errors="backslashreplace")


def stdin() -> IO[bytes]:
    """Stdin, as bytes. Raises OSError where it is closed."""
    if sys.stdin is None:
        raise OSError(errno.EBADF, "stdin is closed")
    return sys.stdin.buffer


def somebody_types() -> bool:
    """Whether stdin is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def encodable(words: str, encoding: str | None) -> bool:
    """Whether an encoding has all these characters; None: UTF-8."""
    try:
        words.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def printable(words: str) -> str:
    """Without what would move a terminal's cursor."""
    if words.isprintable():
        return words
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in words)


def text_of(raw: bytes) -> str:
    """What is UTF-8 as text. Raises ValueError."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {raw[error.start]:#04x} at {error.start} is not UTF-8") from None


class TooDeep(ValueError):
    """JSON that is nested too deeply for Python."""


def from_json(words: str) -> Any:
    """What JSON says. Raises ValueError, of which `TooDeep` is one."""
    try:
        return json.loads(words)
    except RecursionError:
        raise TooDeep("it is nested too deeply") from None


def to_json(thing: object, encoding: str | None = None) -> str:
    r"""JSON in a line. What would move a terminal's cursor is escaped, and what the encoding lacks: it reads alike.

    >>> print(to_json("Zoë \x9b31m \u202e"))
    "Zoë \u009b31m \u202e"
    >>> print(to_json("Zoë", "ascii"))
    "Zo\u00eb"
    """
    words = json.dumps(thing, ensure_ascii=False, allow_nan=False)
    if not words.isprintable():
        words = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in words)
    return words if encodable(words, encoding) else json.dumps(thing, allow_nan=False)
