"""The options of tubes: the defaults of their tasks, and limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tubes.drivers.backoff import RetryDelays
from tubes.drivers.options import SECOND, attempts, fraction, micros, one_of, positive, priority, whole

#: What `create_tube` may be given, if the driver knows it: the defaults of its tasks, and limits.
OF_TUBES: Final[dict[str, Callable[[str, Any], Any]]] = {
    "pri": priority,
    "ttl": micros,
    "ttr": micros,
    "capacity": whole,
    "max_attempts": attempts,
    "key_ttl": micros,
    "backoff": lambda _, value: RetryDelays.of(value),
    "max_in_flight": positive,
    "interval": micros,
    "jitter": fraction,
    "order": one_of("fifo", "round_robin"),
}


def difference(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What is not the same in the checked options of two tubes: the first of them by name, as a caller gave it."""
    option = min(name for name in there.keys() | wanted.keys() if there.get(name) != wanted.get(name))
    return f"with {option}={_given(option, there.get(option))}, not {_given(option, wanted.get(option))}"


def _given(option: str, value: Any) -> str:
    return repr(value / SECOND if value is not None and OF_TUBES.get(option) is micros else value)
