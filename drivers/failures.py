"""The failures of a task, which its context stores as text: one line for each of the last ones, and a traceback."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tubes.drivers.options import RESERVED, SECOND

#: The name of the text in the context. The text consists of lines `MICROSECONDS, ATTEMPT, WORKER, ERROR`, separated by
#: tabs, the last failure first; an empty line; and the traceback of the last failure. drivers/lua/entry.lua writes the
#: same.
_NAME: Final = RESERVED + "failures"
#: The maximal number of failures, and the maximal sizes of their parts in bytes.
MAX_FAILURES: Final = 5
MAX_ERROR: Final = 300
MAX_WORKER: Final = 100
MAX_TRACEBACK: Final = 4096
_CONTROL: Final = re.compile("[\0-\x1f\x7f]")


class Trace(NamedTuple):
    """Facts of a failure that its holder knows."""

    traceback: str = ""
    #: The host and the process of the worker.
    worker: str = ""


NO_TRACE: Final = Trace()


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt of a task, or its burial: see `Task.failures`.

    >>> Failure(time=1.7e9, attempt=2, worker="web1:4711", error="ValueError: no such address").attempt
    2
    """

    #: When it failed: seconds since the epoch, by the clock of the queue.
    time: float
    #: The number of the attempt; 0: the task was buried before its first take.
    attempt: int
    #: The host and the process of the worker, as `web1:4711`; None: it is unknown.
    worker: str | None
    #: The reason of the release or of the burial, at most its first 300 bytes; None: no reason was given.
    error: str | None


def add_failure(
    context: Mapping[str, str] | None, now: int, attempt: int, reason: str | None, trace: Trace
) -> dict[str, str]:
    """Return a context with one more failure. The sizes of all parts are limited, whatever the caller sends."""
    context = context or {}
    lines = context.get(_NAME, "").partition("\n\n")[0].split("\n")[: MAX_FAILURES - 1]
    worker, error = _line(trace.worker, MAX_WORKER), _line(reason or "", MAX_ERROR)
    text = "\n".join(filter(None, (f"{now}\t{attempt}\t{worker}\t{error}", *lines)))
    if trace.traceback:
        text += "\n\n" + _end(trace.traceback, MAX_TRACEBACK)
    return {**context, _NAME: text}


def failures_of(context: Mapping[str, str] | None) -> tuple[Failure, ...]:
    """Return the failures in a context, the last one at the end."""
    lines = context.get(_NAME, "").partition("\n\n")[0] if context else ""
    found: list[Failure] = []
    for line in reversed(lines.split("\n") if lines else ()):
        now, attempt, worker, error = line.split("\t")
        found.append(Failure(int(now) / SECOND, int(attempt), worker or None, error or None))
    return tuple(found)


def traceback_of(context: Mapping[str, str] | None) -> str | None:
    """Return the traceback in a context."""
    return (context.get(_NAME, "").partition("\n\n")[2] or None) if context else None


def without_failures(context: Mapping[str, str]) -> dict[str, str]:
    return {name: words for name, words in context.items() if name != _NAME}


def _line(words: str, most: int) -> str:
    """Return the beginning of a text as a part of a line."""
    words = _CONTROL.sub(" ", words)
    raw = words.encode("utf-8", "surrogatepass")
    if len(raw) <= most:
        return words
    while raw[most] & 0xC0 == 0x80:  # Within a character.
        most -= 1
    return raw[:most].decode("utf-8", "surrogatepass")


def _end(words: str, most: int) -> str:
    raw = words.encode("utf-8", "surrogatepass")[-most:]
    start = next(at for at, byte in enumerate(raw) if byte & 0xC0 != 0x80)
    return raw[start:].decode("utf-8", "surrogatepass")
