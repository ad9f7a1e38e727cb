"""Time in a test's hands."""

from __future__ import annotations

import heapq
import threading
from itertools import count

from typing_extensions import override

from tubes.clock import Alarm, Clock, ring_one
from tubes.drivers.options import SECOND, micros


class ManualClock(Clock):
    """A clock that stands still until a test advances it. Waiting takes, delays, ttl and ttr all go by it.

    >>> import tubes
    >>> clock = ManualClock()
    >>> with tubes.connect("memory://", clock=clock) as queue:
    ...     tube = queue.create_tube("mail", "fifottl")
    ...     _ = tube.put("later", delay=60)
    ...     print(tube.take(timeout=0))
    ...     clock.advance(60)
    ...     print(tube.take(timeout=0).data)
    None
    later
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = micros("start", start)
        self._lock = threading.Lock()
        self._order = count()
        self._alarms: list[tuple[int, int, Alarm]] = []

    def now(self) -> float:
        """The time in seconds."""
        return self._now / SECOND

    def advance(self, seconds: float) -> None:
        """Let so much time pass. What falls due on the way happens at its own moment, in order, before this returns.

        Raises `InvalidOption` if `seconds` is negative or not a number.
        """
        until = self._now + micros("seconds", seconds)
        while True:
            with self._lock:
                if not self._alarms or self._alarms[0][0] > until:
                    self._now = until
                    return
                item = heapq.heappop(self._alarms)
                self._now = max(self._now, item[0])
            ring_one(item, self._now)

    @override
    def micros(self) -> int:
        """The time in microseconds."""
        return self._now

    @override
    def schedule(self, when: int, alarm: Alarm) -> None:
        """Ring the alarm when `advance` reaches this moment."""
        with self._lock:
            heapq.heappush(self._alarms, (when, next(self._order), alarm))

    @override
    def patience(self, deadline: int | None) -> float | None:
        """Real time does not count: a waiting take sleeps until `advance` reaches its deadline."""
        return None
