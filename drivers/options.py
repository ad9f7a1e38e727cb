"""The options of tasks and tubes: which there are, their units, their limits. Bad ones raise `InvalidOption`.

Inside the machine time is a whole number of microseconds, as in the original, so that sums are exact
and equal on every backend; outside it is seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tubes.errors import InvalidOption

SECOND: Final = 1_000_000
#: The longest time that any option may name: 100 years, the default ttl of the original.
MAX_SECONDS: Final = 100 * 365 * 24 * 3600
MAX_PRI: Final = 2**32 - 1
MAX_COUNT: Final = 2**53 - 1
#: The lane of the tasks that were put without one; the original calls it so too.
NO_LANE: Final = "nil"


def micros(option: str, value: Any) -> int:
    """Seconds to microseconds.

    >>> micros("ttl", 0.25)
    250000
    """
    if value.__class__ is int and 0 <= value <= MAX_SECONDS:
        return value * SECOND
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise InvalidOption(option=option, value=value, rule="must be a number of seconds")
    if not 0 <= value <= MAX_SECONDS:
        raise InvalidOption(option=option, value=value, rule=f"must be from 0 to {MAX_SECONDS} seconds (100 years)")
    return round(value * SECOND)


def whole(option: str, value: Any, most: int = MAX_COUNT) -> int:
    """A whole number from 0 to `most`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidOption(option=option, value=value, rule="must be a whole number")
    if not 0 <= value <= most:
        raise InvalidOption(option=option, value=value, rule=f"must be from 0 to {most}")
    return value


def flag(option: str, value: Any) -> bool:
    """True or False, and nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise InvalidOption(option=option, value=value, rule="must be True or False")
    return value


def priority(option: str, value: Any) -> int:
    """A priority: 0 comes first."""
    if value.__class__ is int and 0 <= value <= MAX_PRI:
        return value
    return whole(option, value, MAX_PRI)


def lane(option: str, value: Any) -> str:
    """The name of a lane. Whole numbers and booleans are written out as the original does: 1 is "1", True is "true"."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and -MAX_COUNT <= value <= MAX_COUNT:
        return str(value)
    raise InvalidOption(option=option, value=value, rule="must be a string")


#: What `put` may be given, if the driver knows it.
OF_TASKS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "pri": priority,
    "ttl": micros,
    "ttr": micros,
    "delay": micros,
    "utube": lane,
    "timeout": micros,
}

#: What `create_tube` may be given, if the driver knows it: the defaults of its tasks, and limits.
OF_TUBES: Final[dict[str, Callable[[str, Any], Any]]] = {
    "pri": priority,
    "ttl": micros,
    "ttr": micros,
    "capacity": whole,
}
