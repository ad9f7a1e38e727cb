"""A clock that tests control."""

from __future__ import annotations

import threading

from typing_extensions import override

from tubes.backend.alarms import Alarm, Schedule
from tubes.backend.clock import Clock
from tubes.drivers.options import SECOND, micros


class ManualClock(Clock):
    """A clock that stands still until a test advances it. Waiting takes, delays, ttl and ttr all use it.

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
        self._schedule = Schedule()

    def now(self) -> float:
        """Return the time in seconds."""
        return self._now / SECOND

    def advance(self, seconds: float) -> None:
        """Advance the time. All events that become due happen in order, each at its own time, before this returns.

        Raises `InvalidOption` if `seconds` is negative or not a number.
        """
        target = self._now + micros("seconds", seconds)
        while True:
            with self._lock:
                when, alarm = self._schedule.pop(target)
                self._now = max(self._now, when)
            if alarm is None:
                return
            alarm.fire(when, self._now)

    @override
    def micros(self) -> int:
        """Return the time in microseconds."""
        return self._now

    @override
    def schedule(self, when: int, alarm: Alarm) -> None:
        """Fire the alarm when `advance` reaches this moment."""
        with self._lock:
            self._schedule.add(when, alarm)

    @override
    def patience(self, deadline: int | None) -> float | None:
        """Return None: real time does not end a wait, only `advance` does."""
        return None
