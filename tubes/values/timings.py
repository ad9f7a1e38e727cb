"""How long tasks wait and run: sketches that workers count and publish, and their quantiles.

A sketch counts durations in buckets whose bounds grow by a constant factor, so each quantile has a bounded relative
error, and sketches of several workers can be added. This is DDSketch (Masson, Rim and Lee, 2019,
https://arxiv.org/abs/1908.10693) without its limit on buckets, since the range of durations bounds their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple

from tubes.drivers.options import integer

#: Seconds over which a worker counts durations.
TIMINGS_SPAN: Final = 300.0
#: The maximal number of pairs of tube and function whose timings a worker lists.
MAX_LISTED_TIMINGS: Final = 50
#: The bounds of the buckets grow by this factor, so a quantile is wrong by 5 % at most.
_LOG_GROWTH: Final = math.log(1.1)
#: The upper bound of the first bucket in seconds, and the number of buckets: the last one begins at 11 days.
_SHORTEST: Final = 1e-4
_BUCKETS: Final = 242

#: The number of durations in each bucket.
Sketch = dict[int, int]


def add_duration(sketch: Sketch, seconds: float) -> None:
    """Count a duration.

    >>> sketch = {}
    >>> for seconds in range(1, 101):
    ...     add_duration(sketch, seconds)
    >>> [round(quantile(sketch, q)) for q in (0.5, 0.95, 0.99)]
    [49, 96, 96]
    """
    bucket = 0 if seconds <= _SHORTEST else min(math.ceil(math.log(seconds / _SHORTEST) / _LOG_GROWTH), _BUCKETS - 1)
    sketch[bucket] = sketch.get(bucket, 0) + 1


def add_sketch(sketch: Sketch, other: Mapping[int, int]) -> None:
    """Add the counts of another sketch."""
    for bucket, count in other.items():
        sketch[bucket] = sketch.get(bucket, 0) + count


def quantile(sketch: Mapping[int, int], q: float) -> float | None:
    """Return the duration in seconds below which this fraction lies, within 5 %; None for an empty sketch."""
    left = q * sum(sketch.values())
    for bucket in sorted(sketch):
        left -= sketch[bucket]
        if left <= 0:
            return math.exp((bucket - 0.5) * _LOG_GROWTH) * _SHORTEST
    return None


class Timings(NamedTuple):
    """The sketches of one worker for one tube and function. `function`: None for the handler of a tube."""

    tube: str
    function: str | None
    wait: Sketch
    run: Sketch

    @property
    def fields(self) -> list[object]:
        """The form in which a worker publishes it: each sketch is a list of buckets, each followed by its count."""
        return [self.tube, self.function, *([*chain.from_iterable(each.items())] for each in (self.wait, self.run))]


def timings_in(data: object) -> list[Timings]:
    """Return the timings in the description of a worker, without unreadable ones."""
    found: list[Timings] = []
    fields: Any = data
    for one in fields.get("timings", ()):
        try:
            tube, function, *sketches = one
            for name in (tube, function or tube):
                name.encode()  # Raises an error for anything but a text that can be shown.
            wait, run = map(_sketch, sketches)
        except (TypeError, ValueError, AttributeError):
            continue
        if function != "":
            found.append(Timings(tube, function, wait, run))
    return found[:MAX_LISTED_TIMINGS]


def _sketch(words: Any) -> Sketch:
    if any(word.__class__ is not int for word in words) or not all(0 <= bucket < _BUCKETS for bucket in words[::2]):
        raise ValueError
    return {bucket: integer("count", count) for bucket, count in zip(words[::2], words[1::2], strict=True)}


@dataclass(frozen=True, slots=True)
class Durations:
    """How long tasks have waited and run during the last five minutes.

    >>> Durations("tasks", "resize", count=2, wait_p50=0.01, run_p50=1.5).run_p50
    1.5
    """

    tube: str
    #: None for all tasks of the tube.
    function: str | None
    #: The number of attempts that have ended.
    count: int = 0
    #: Seconds from the put of a task, or from the time of its schedule, to its first attempt; a delay counts as well.
    wait_p50: float | None = None
    wait_p95: float | None = None
    wait_p99: float | None = None
    #: Seconds that handlers took for an attempt.
    run_p50: float | None = None
    run_p95: float | None = None
    run_p99: float | None = None


def durations_of(timings: Iterable[Timings]) -> list[Durations]:
    """Return the durations that workers have counted together: of each tube, and of each of its functions."""
    found: dict[tuple[str, str | None], tuple[Sketch, Sketch]] = {}
    for one in timings:
        for function in {None, one.function}:
            wait, run = found.setdefault((one.tube, function), ({}, {}))
            add_sketch(wait, one.wait)
            add_sketch(run, one.run)
    return [
        Durations(
            *place,
            sum(run.values()),
            *(quantile(wait, q) for q in (0.5, 0.95, 0.99)),
            *(quantile(run, q) for q in (0.5, 0.95, 0.99)),
        )
        for place, (wait, run) in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or ""))
    ]
