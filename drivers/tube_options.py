"""The options of tubes: the defaults of their tasks, and limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from tubes.drivers.backoff import RetryDelays
from tubes.drivers.options import (
    INTERVAL_FROM,
    SECOND,
    attempts,
    burst,
    fraction,
    integer,
    interval_of_rate,
    micros,
    one_of,
    positive,
    priority,
)
from tubes.drivers.timers import NEVER
from tubes.errors import InvalidOption


def _span_or_ever(option: str, value: Any) -> int:
    """Convert seconds to microseconds; infinity means forever."""
    return NEVER if isinstance(value, float) and value == math.inf else micros(option, value)


#: The largest number of partitions: more than the slots of a cluster would be useless.
MAX_PARTITIONS: Final = 16_384


def _partitions(option: str, value: Any) -> int:
    return integer(option, value, MAX_PARTITIONS, least=1)


#: The options of `create_tube`, as far as the driver has them: the defaults of its tasks, and limits.
OF_TUBES: Final[dict[str, Callable[[str, Any], Any]]] = {
    "pri": priority,
    "ttl": micros,
    "ttr": micros,
    "capacity": integer,
    "max_attempts": attempts,
    "key_ttl": micros,
    "buried_ttl": _span_or_ever,
    "keep_done": micros,
    "keep_done_max": positive,
    "backoff": lambda _, value: RetryDelays.of(value),
    "lane_capacity": integer,
    "max_in_flight": positive,
    "interval": micros,
    "interval_from": INTERVAL_FROM,
    "jitter": fraction,
    "order": one_of("fifo", "round_robin"),
    "rate": interval_of_rate,
    "burst": burst,
    "lane_rate": interval_of_rate,
    "lane_burst": burst,
    "partitions": _partitions,
}

#: The options that cannot change: their defaults, and why.
_FINAL: Final = {
    "order": ("fifo", "ready tasks are stored in that order"),
    "partitions": (None, "it decides where tasks are"),
}

#: The option that each burst needs, and the rule in the error.
_BURSTS: Final = {
    "burst": ("rate", "needs a rate"),
    "lane_burst": ("interval", "needs an interval or a lane_rate"),
}
#: Options that stay in a tube, as 0, when they are reset to the default.
_STAYING: Final = ("keep_done", "lane_capacity")

#: The advice in the error of a `create_tube` for a tube that already exists.
WAYS_TO_USE_IT: Final = (
    'if_exists="update" gives it these options, "keep" uses it as it is, tube.alter() changes options'
)


def apply_changes(current: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a tube after checked changes; None resets an option.

    Raises `InvalidOption` for a change of an option that cannot change.
    """
    for option, (default, why) in _FINAL.items():
        value = current.get(option, default)
        if (wanted := changes.get(option, value) or default) != value:
            rule = f"cannot change from {value!r} after creation: {why}; create another tube"
            raise InvalidOption(option=option, value=wanted, rule=rule, current=value)
    # A server still needs to know that the tube had the option: earlier tasks may have `keep_done`, and the
    # tasks of lanes are counted.
    changes = {**changes, **{option: 0 for option in _STAYING if option in current and changes.get(option, 0) is None}}
    altered = {option: value for option, value in {**current, **changes}.items() if value is not None}
    for option, (needed, _) in _BURSTS.items():
        if changes.get(option) is None and not altered.get(needed):
            altered.pop(option, None)
    return check_bursts(altered)


def check_bursts(options: dict[str, Any]) -> dict[str, Any]:
    """Raise `InvalidOption` if there is a burst without its rate, or less room than partitions; return the options."""
    if options.get("partitions", 0) > options.get("capacity", 0) > 0:
        rule = f"must be at least {options['partitions']}, the number of partitions: each gets its share"
        raise InvalidOption(option="capacity", value=options["capacity"], rule=rule)
    for option, (needed, rule) in _BURSTS.items():
        if option in options and not options.get(needed):
            raise InvalidOption(option=option, value=options[option], rule=rule)
    return options


def convert_lane_rate(options: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Replace `lane_rate` in the checked `options` by the interval that it means; return the options."""
    if arguments.get("lane_rate") is not None and arguments.get("interval") is not None:
        rule = "must be left out if an interval is given"
        raise InvalidOption(option="lane_rate", value=arguments["lane_rate"], rule=rule)
    if "lane_rate" in options:
        interval = options.pop("lane_rate")
        if options.get("interval") is None:
            options["interval"] = interval
    return options


def as_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the checked options of a tube to arguments of `create_tube`: seconds, and a `Backoff` or a list."""
    known = {option: value for option, value in sorted(options.items()) if option in OF_TUBES}
    return {option: _as_argument(option, value) for option, value in drop_reset_options(known).items()}


def drop_reset_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a tube without options of `_STAYING` that are 0."""
    return {option: value for option, value in options.items() if option not in _STAYING or value}


def _as_argument(option: str, value: Any) -> Any:
    if isinstance(value, RetryDelays):
        return value.as_argument()
    return _in_seconds(option, value)


def _in_seconds(option: str, value: Any) -> Any:
    if option == "buried_ttl" and value == NEVER:
        return math.inf
    if option == "rate":
        return SECOND / value
    return value / SECOND if OF_TUBES.get(option) in (micros, _span_or_ever) else value


def other_driver(current: str, wanted: str) -> str:
    """Describe that a tube has another driver."""
    return f"with driver {current!r}, not {wanted!r}; the driver of a tube is final, so name it or use another tube"


def difference(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Describe the first option, by name, in which two tubes differ."""
    option = min(name for name in current.keys() | wanted.keys() if current.get(name) != wanted.get(name))
    return f"with {option}={_text(option, current.get(option))}, not {_text(option, wanted.get(option))}"


def _text(option: str, value: Any) -> str:
    return repr(None if value is None else _in_seconds(option, value))
