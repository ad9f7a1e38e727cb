"""Counts how long the tasks of a worker wait and run, for its description."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from tubes.values.timings import MAX_LISTED_TIMINGS, TIMINGS_SPAN, Sketch, Timings, add_duration, add_sketch

#: Seconds that one set of sketches covers.
_PART: Final = 60.0

#: The maximal number of tasks that are remembered until they come back.
_MAX_RETURNING: Final = 10_000

Sketches = dict[tuple[str, str | None], tuple[Sketch, Sketch]]


class Timekeeper:
    """The sketches of the last minutes, by tube and function. Its methods may be called in any thread."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        # The number of the minute, and its sketches of waiting and of run times.
        self._parts: Final[deque[tuple[int, Sketches]]] = deque(maxlen=round(TIMINGS_SPAN / _PART) + 1)
        # The last tasks that come back although their attempts did not count, by tube and id.
        self._returning: Final[dict[tuple[str, int], None]] = {}

    def record(
        self, tube: str, function: str | None, id: int, wait: float | None, run: float, *, comes_back: bool = False
    ) -> None:
        """Count an attempt. `wait`: None for a retry. `comes_back`: the next attempt of the task is a retry, too."""
        number = int(time.monotonic() // _PART)
        with self._lock:
            if self._returning and (tube, id) in self._returning:
                del self._returning[tube, id]
                wait = None
            if comes_back:
                self._returning[tube, id] = None
                if len(self._returning) > _MAX_RETURNING:
                    del self._returning[next(iter(self._returning))]
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

    def recent(self) -> list[Timings]:
        """Return the sketches of the last minutes."""
        earliest = int(time.monotonic() // _PART) - round(TIMINGS_SPAN / _PART)
        total: Sketches = {}
        with self._lock:
            for number, part in self._parts:
                for place, sketches in part.items() if number >= earliest else ():
                    sums = total.setdefault(place, ({}, {}))
                    for sum_, sketch in zip(sums, sketches, strict=True):
                        add_sketch(sum_, sketch)
        return [Timings(*place, *sums) for place, sums in [*total.items()][:MAX_LISTED_TIMINGS]]
