"""Delays after failed attempts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tubes.drivers.chance import apply_jitter
from tubes.drivers.options import MAX_SECONDS, SECOND, Seconds, fraction, integer, micros, positive
from tubes.errors import InvalidOption

#: The maximum number of delays in a list; the last one repeats.
MOST_DELAYS: Final = 1000
# Up to this many delays are shown to users as a list rather than as a Backoff.
_LISTED: Final = 4
# The maximum number of delays in a message.
_MAX_LISTED: Final = 5
#: The largest factor: from a microsecond to the longest time in one step.
STEEPEST: Final = 10**18


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that grow: the tube option `backoff`. After attempt n a task waits `first * factor ** (n - 1)` seconds.

    `first`: seconds after the first attempt. `factor`: the next delay is longer by this factor, at least 1.
    `cap`: the longest delay, in seconds. `jitter`: each delay is shortened at random by up to this fraction, 0 to 1, so
    that tasks that failed together do not come back together. `seed`: the random numbers depend only on the seed, the
    task and the attempt, so that runs can be repeated.

    >>> Backoff(1, factor=2, cap=10).delay(attempts=3)
    4.0
    >>> [Backoff(1, cap=10, jitter=0.5).delay(attempts=4, id=id) for id in range(3)]
    [4.95399, 7.111704, 5.269418]
    """

    first: Seconds
    factor: float = 2
    cap: Seconds = 3600
    jitter: float = 0
    seed: int = 0

    def __post_init__(self) -> None:
        RetryDelays.of(self)

    def delay(self, attempts: int, id: int = 0) -> float:
        """Return the delay in seconds after this number of attempts, from 1."""
        return RetryDelays.of(self).compute(integer("id", id), positive("attempts", attempts)) / SECOND


@dataclass(frozen=True, slots=True)
class RetryDelays:
    """A backoff in the machine's units: the delay in microseconds after each attempt. The last delay repeats."""

    delays: tuple[int, ...]
    jitter: float
    seed: int

    def __repr__(self) -> str:
        first = [delay / SECOND for delay in self.delays[:_MAX_LISTED]]
        ellipsis = ", ..." if len(self.delays) > _MAX_LISTED else ""
        chance = f" with jitter={self.jitter!r}, seed={self.seed!r}" if self.jitter else ""
        return f"[{', '.join(map(repr, first))}{ellipsis}]{chance}"

    @classmethod
    def of(cls, value: Any) -> RetryDelays:
        """Convert a value of the option `backoff`: a `Backoff`, or a list of seconds."""
        if isinstance(value, RetryDelays):
            return value
        if isinstance(value, Backoff):
            return cls(_compute_delays(value), fraction("jitter", value.jitter), integer("seed", value.seed))
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            raise InvalidOption(option="backoff", value=value, rule="must be a tubes.Backoff, or a list of seconds")
        delays: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        if not 1 <= len(delays) <= MOST_DELAYS:
            raise InvalidOption(option="backoff", value=value, rule=f"must have 1 to {MOST_DELAYS} delays")
        return cls(tuple(micros("backoff", delay) for delay in delays), 0.0, 0)

    @classmethod
    def from_fields(cls, value: Any) -> RetryDelays:
        """Restore from a stored list of its fields."""
        fields: list[Any] = list(value) if isinstance(value, (list, tuple)) else []  # pyright: ignore[reportUnknownArgumentType]
        if len(fields) != 3 or not isinstance(fields[0], (list, tuple)):
            raise InvalidOption(option="backoff", value=value, rule="must be a list of delays, jitter and seed")
        jitter, seed = fields[1:]
        delays: list[Any] = list(fields[0])  # pyright: ignore[reportUnknownArgumentType]
        if not 1 <= len(delays) <= MOST_DELAYS:
            raise InvalidOption(option="backoff", value=value, rule=f"must have 1 to {MOST_DELAYS} delays")
        most = MAX_SECONDS * SECOND
        spans = tuple(integer("backoff", delay, most) for delay in delays)
        return cls(spans, fraction("jitter", jitter), integer("seed", seed))

    @property
    def fields(self) -> tuple[tuple[int, ...], float, int]:
        """The delays, jitter and seed, for `from_fields`."""
        return self.delays, self.jitter, self.seed

    def as_argument(self) -> Backoff | list[float] | RetryDelays:
        """Convert to an argument of `create_tube`: a short list of seconds, an equal `Backoff`, or a longer list.

        The original form is not stored. If no factor produces exactly these delays and there is a jitter or a seed, the
        result is this object, which `of` accepts as well.
        """
        delays = [delay / SECOND for delay in self.delays]
        if len(delays) <= _LISTED and not (self.jitter or self.seed):
            return delays
        for factor, cap in _guesses(delays):
            with suppress(InvalidOption):
                found = Backoff(delays[0], factor, cap, self.jitter, self.seed)
                if RetryDelays.of(found) == self:
                    return found
        return self if self.jitter or self.seed else delays

    def compute(self, id: int, attempts: int) -> int:
        """Return the delay of this task after this number of attempts."""
        span = self.delays[min(max(attempts, 1), len(self.delays)) - 1]
        return apply_jitter(span, -self.jitter, self.seed, id, attempts)


def _guesses(delays: list[float]) -> Iterator[tuple[float, float]]:
    """Yield possible factors and caps of growing delays, the roundest factors first."""
    first, last = delays[0], delays[-1]
    if len(delays) == 1:
        yield from ((1, 3600), (1, first))
    elif first:
        steps = max(len(delays) - 2, 1)  # The cap may have cut the last one.
        for digits in range(1, 16):
            yield float(f"{(delays[steps] / first) ** (1 / steps):.{digits}g}"), last


def _compute_delays(backoff: Backoff) -> tuple[int, ...]:
    factor: Any = backoff.factor
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1 <= factor <= STEEPEST:
        raise InvalidOption(option="factor", value=factor, rule=f"must be a number from 1 to {STEEPEST}")
    first, cap = micros("first", backoff.first), micros("cap", backoff.cap)
    if not first or factor == 1:
        return (min(first, cap),)
    delays: list[int] = []
    exact = float(first)
    while len(delays) < MOST_DELAYS:
        if exact >= cap:
            return (*delays, cap)
        delays.append(round(exact))
        exact *= factor
    raise InvalidOption(option="factor", value=factor, rule=f"must grow from first to cap in {MOST_DELAYS} steps")
