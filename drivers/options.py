"""The options of tasks and tubes with their units and limits. Bad values raise `InvalidOption`.

Inside the machine, time is a whole number of microseconds, as in the original, so that sums are exact and equal on
every backend; outside it is seconds. Subclasses of numbers and strings, such as members of an `IntEnum`, are converted
to plain values here, as a server would store them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, Final, TypeAlias

from tubes.errors import InvalidOption

#: A span of time: a number of seconds, or a `timedelta`.
Seconds: TypeAlias = float | timedelta

SECOND: Final = 1_000_000
_MICROSECOND: Final = timedelta(microseconds=1)
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)/(s|second|min|minute|h|hour|day)", re.ASCII)
_UNITS: Final = {"s": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "day": 86_400}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: The longest time of any option: 100 years, the default ttl of the original.
MAX_SECONDS: Final = 100 * 365 * 24 * 3600
#: The latest time that delays and touches can reach, in microseconds from now: the largest ttl and delay of a put.
LONGEST: Final = 2 * MAX_SECONDS * SECOND
MAX_PRI: Final = 2**32 - 1
MAX_COUNT: Final = 2**53 - 1
#: The maximum number of takes that may start at once after an idle time.
MAX_BURST: Final = 1_000_000
MAX_ATTEMPTS: Final = 2**20 - 2
#: The lane of tasks that were put without one. It has this name in the original, too.
NO_LANE: Final = "nil"


class _Default:
    """The default of an argument for which None has a meaning. `text`: its `repr`, for `help`."""

    def __init__(self, text: str) -> None:
        self._text: Final = text

    def __repr__(self) -> str:
        return self._text


#: The default of an argument that changes a value.
KEEP: Final[Any] = _Default("<as it is>")
#: The default timeout of a put, which does not wait; None waits for ever.
NO_WAIT: Final[Any] = _Default("<do not wait>")


def micros(option: str, value: Any) -> int:
    """Convert seconds or a `timedelta` to microseconds.

    >>> micros("ttl", 0.25), micros("ttl", timedelta(minutes=1))
    (250000, 60000000)
    """
    if value.__class__ is int and 0 <= value <= MAX_SECONDS:
        return value * SECOND
    if isinstance(value, timedelta):
        span = value // _MICROSECOND
    elif not isinstance(value, (int, float)) or isinstance(value, bool):
        raise InvalidOption(option=option, value=value, rule=_rule_of_seconds(option, value))
    else:
        span = round(value * SECOND) if 0 <= value <= MAX_SECONDS else -1
    if not 0 <= span <= MAX_SECONDS * SECOND:
        raise InvalidOption(option=option, value=value, rule=f"must be from 0 to {MAX_SECONDS} seconds (100 years)")
    return span


def _rule_of_seconds(option: str, value: object) -> str:
    rule = "must be a number of seconds"
    if not isinstance(value, datetime):
        return rule
    return f"{rule} or a timedelta" + ("; use at= for a datetime" if option == "delay" else "")


def seconds(option: str, value: Any) -> float:
    """Check seconds or a `timedelta`, and return the number of seconds."""
    micros(option, value)
    return value.total_seconds() if isinstance(value, timedelta) else value


def moment(option: str, value: Any) -> int:
    """Convert a `datetime` with a time zone to microseconds since the epoch.

    >>> moment("at", datetime(1970, 1, 1, 0, 1, tzinfo=UTC))
    60000000
    """
    try:
        if isinstance(value, datetime) and value.utcoffset() is not None:
            return (value - _EPOCH) // _MICROSECOND
    except Exception as error:  # Out of the calendar's range, or an error of the time zone.
        rule = f"must be representable in UTC: {type(error).__name__}"
        raise InvalidOption(option=option, value=value, rule=rule) from error
    raise InvalidOption(option=option, value=value, rule="must be a datetime with a time zone")


def compute_delay(at: int, now: int) -> int:
    """Return the microseconds from now until a moment; 0 if it is in the past."""
    if at - now > MAX_SECONDS * SECOND:
        far: object = at / SECOND
        with suppress(OverflowError):  # Show a date if there is one.
            far = _EPOCH + at * _MICROSECOND
        raise InvalidOption(option="at", value=far, rule=f"must be within {MAX_SECONDS} seconds (100 years)")
    return max(at - now, 0)


def delay_of(delay: Any, at: Any, now: Callable[[], int]) -> Any:
    """Return the delay, or the time until `at` if that is given instead."""
    if at is None:
        return delay
    if delay is not None and delay is not KEEP:
        raise InvalidOption(option="at", value=at, rule="must be left out if a delay is given")
    return timedelta(microseconds=compute_delay(moment("at", at), now()))


def integer(option: str, value: Any, most: int = MAX_COUNT, *, least: int = 0) -> int:
    """Check a whole number from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidOption(option=option, value=value, rule="must be a whole number")
    if not least <= value <= most:
        raise InvalidOption(option=option, value=value, rule=f"must be from {least} to {most}")
    return int(value)


def positive(option: str, value: Any) -> int:
    """Check a whole number of at least 1."""
    return integer(option, value, least=1)


def attempts(option: str, value: Any) -> int:
    """Check a maximum number of takes."""
    return integer(option, value, MAX_ATTEMPTS, least=1)


def burst(option: str, value: Any) -> int:
    """Check the number of takes that may start at once."""
    return integer(option, value, MAX_BURST, least=1)


def weight(option: str, value: Any) -> int:
    """Check the number of takes of a lane per round."""
    return integer(option, value, MAX_WEIGHT, least=1)


def interval_of_rate(option: str, value: Any) -> int | None:
    """Convert a rate to the microseconds from one take to the next; None for 0: no limit. Rates are rounded down.

    >>> interval_of_rate("rate", "500/min"), interval_of_rate("rate", 10)
    (120000, 100000)
    """
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        rule = 'must be takes per second, or a text such as "500/min": a number, and /s, /min, /h or /day'
        raise InvalidOption(option=option, value=value, rule=rule)
    if value == 0:
        return None
    count = float(value if match is None else match[1])
    span = 1 if match is None else _UNITS[match[2]]
    if not 0 < count <= SECOND * span:
        raise InvalidOption(option=option, value=value, rule=f"must be from 0 to {SECOND} takes per second")
    # The factor removes errors of floats: the rate of an interval has that interval.
    return ceil(min(SECOND / (count / span) * (1 - 1e-15), MAX_SECONDS * SECOND))


def fraction(option: str, value: Any) -> float:
    """Check a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InvalidOption(option=option, value=value, rule="must be a number from 0 to 1")
    return float(value)


def text(option: str, value: Any) -> str:
    """Check a non-empty string."""
    if not isinstance(value, str) or not value:
        raise InvalidOption(option=option, value=value, rule="must be a non-empty string")
    return str.__str__(value)


#: The prefix of the library's own names in a context.
RESERVED: Final = "tubes."


class InternalContext(dict[str, str]):
    """A context that the library has made, which may contain reserved names."""


def context(option: str, value: Any) -> dict[str, str] | None:
    """Check a mapping of strings to strings, and return a copy; None if it is empty."""
    if not isinstance(value, Mapping):
        raise InvalidOption(option=option, value=value, rule="must be a mapping of strings to strings")
    pairs: dict[Any, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType]
    for name, words in pairs.items():
        if not isinstance(name, str) or not isinstance(words, str):
            raise InvalidOption(
                option=option, value=value, rule=f"must map strings to strings, not {name!r}: {words!r}"
            )
        if name.startswith(RESERVED) and not isinstance(value, InternalContext):
            rule = f"must not have names that begin with {RESERVED!r}, which are reserved, but has {name!r}"
            raise InvalidOption(option=option, value=value, rule=rule)
    return pairs or None


def one_of(*known: str) -> Callable[[str, Any], str]:
    """Make the check for one of these words."""

    def check(option: str, value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise InvalidOption(option=option, value=value, rule=f"must be one of {', '.join(known)}")
        return str.__str__(value)

    return check


#: Checks the event from which the interval of a lane counts.
INTERVAL_FROM: Final = one_of("take", "ack")


def edges(values: Any) -> list[int]:
    """Check the edges of a histogram: ascending seconds."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InvalidOption(option="edges", value=values, rule="must be a list of seconds")
    spans: list[int] = [micros("edges", value) for value in values]  # pyright: ignore[reportUnknownVariableType]
    if spans != sorted(spans):
        raise InvalidOption(option="edges", value=values, rule="must be in ascending order")
    return spans


def flag(option: str, value: Any) -> bool:
    """Check True or False."""
    if not isinstance(value, bool):
        raise InvalidOption(option=option, value=value, rule="must be True or False")
    return value


def priority(option: str, value: Any) -> int:
    """Check a priority: 0 comes first."""
    if value.__class__ is int and 0 <= value <= MAX_PRI:
        return value
    return integer(option, value, MAX_PRI)


def lane(option: str, value: Any) -> str:
    """Check the name of a lane. Numbers and booleans become strings as in the original: 1 is "1", True is "true"."""
    if value.__class__ is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and -MAX_COUNT <= value <= MAX_COUNT:
        return str(int(value))
    raise InvalidOption(option=option, value=value, rule="must be a string")


#: The options of `put`, as far as the driver has them.
OF_TASKS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "pri": priority,
    "ttl": micros,
    "ttr": micros,
    "delay": micros,
    "at": moment,
    "utube": lane,
    "timeout": micros,
    "max_attempts": attempts,
    "key": text,
    "on_duplicate": one_of("keep", "replace", "update", "raise"),
    "key_ttl": micros,
    "context": context,
    "keep_done": micros,
}

#: The factors for whole numbers of options of `put`. The largest allowed number of each is at least `MAX_SECONDS`.
UNITS: Final = {"pri": 1, "ttl": SECOND, "ttr": SECOND, "delay": SECOND}

#: The largest weight of a lane.
MAX_WEIGHT: Final = 100

#: An internal option of the service: the put raises `TubeFull` if it would make the number of ready and delayed tasks
#: of the tube greater than this.
MAX_WAITING: Final = "_max_waiting"

#: Options that are stored in `Extras`.
EXTRA_OPTIONS: Final = frozenset({"key", "max_attempts", "context", "keep_done"})

#: Microseconds for which a cancelled task that was taken is kept at least, so that its holder learns of it.
CANCELLED_KEPT: Final = 60 * SECOND

#: Options that every driver has.
ANYWHERE: Final = frozenset(
    {"timeout", "capacity", "max_attempts", "key", "on_duplicate", "key_ttl", "context", "keep_done", "keep_done_max"}
    | {"rate", "burst", "partitions"}
)
#: More options of drivers that have the option `delay`.
WITH_DELAY: Final = frozenset({"at", "backoff"})
#: More options of drivers that have the option `ttl`.
WITH_TTL: Final = frozenset({"buried_ttl"})
#: More options of drivers with lanes.
WITH_LANE: Final = frozenset(
    {"lane_capacity", "max_in_flight", "interval", "interval_from", "jitter", "order", "lane_rate", "lane_burst"}
)
