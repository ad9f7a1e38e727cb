"""Counts how long the tasks of a worker wait and run, for its description."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from tubes.values.timings import MAX_LISTED_TIMINGS, TIMINGS_SPAN, Sketch, Timings, add_duration, add_sketch

#: Seconds that one set of sketches covers.
_PART: Final = 60.0

Sketches = dict[tuple[str, str | None], tuple[Sketch, Sketch]]


class Timekeeper:
    """The sketches of the last minutes, by tube and function. Its methods may be called in any thread."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        # The number of the minute, and its sketches of waiting and of run times.
        self._parts: Final[deque[tuple[int, Sketches]]] = deque(maxlen=round(TIMINGS_SPAN / _PART) + 1)

    def record(self, tube: str, function: str | None, wait: float | None, run: float) -> None:
        """Count an attempt. `wait`: None for a retry."""
        number = int(time.monotonic() // _PART)
        with self._lock:
            if not self._parts or self._parts[-1][0] != number:
                self._parts.append((number, {}))
            part = self._parts[-1][1]
            sketches = part.get((tube, function))
            if sketches is None:
                if len(part) >= MAX_LISTED_TIMINGS:
                    return
                sketches = part[tube, function] = ({}, {})
            if wait is not None:
                add_duration(sketches[0], wait)
            add_duration(sketches[1], run)

    def recent(self) -> tuple[Timings, ...]:
        """Return the sketches of the last minutes."""
        earliest = int(time.monotonic() // _PART) - round(TIMINGS_SPAN / _PART)
        total: Sketches = {}
        with self._lock:
            for number, part in self._parts:
                for place, sketches in part.items() if number >= earliest else ():
                    sums = total.setdefault(place, ({}, {}))
                    for sum_, sketch in zip(sums, sketches, strict=True):
                        add_sketch(sum_, sketch)
        return tuple(Timings(*place, *sums) for place, sums in [*total.items()][:MAX_LISTED_TIMINGS])
