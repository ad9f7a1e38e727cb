"""Clocks: what time it is, and who calls when a moment has come.

A store asks its clock for an `Alarm` per tube and sets it to the next deadline, but only while somebody would notice
(a take waits, or a listener listens); otherwise what is due happens at the next call. Nothing here polls.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections.abc import Callable
from itertools import count
from queue import Empty, SimpleQueue
from typing import Final, Protocol
from weakref import WeakMethod

from typing_extensions import override

from tubes.drivers.options import SECOND
from tubes.drivers.timers import NEVER

#: Called with the time when an alarm rings.
Ring = Callable[[int], None]


class Alarm:
    """One store's or tube's call at a moment. `when` is set under that store's lock."""

    __slots__ = ("__weakref__", "_clock", "ring", "when")

    def __init__(self, clock: Clock, ring: Ring) -> None:
        self._clock: Final = clock
        self.ring: Final = WeakMethod(ring)
        self.when = NEVER

    def set(self, when: int) -> None:
        """Ring at this moment, if that is sooner than the alarm is set to. Cheap when it is not."""
        if when < self.when:
            self.when = when
            self._clock.schedule(when, self)

    def silence(self) -> None:
        """Do not ring."""
        self.when = NEVER


class Clock(Protocol):
    """Time for a queue. `SystemClock` is the real one, `tubes.testing.ManualClock` the one for tests."""

    def micros(self) -> int:
        """The time: microseconds since the epoch. Never goes back."""
        ...

    def schedule(self, when: int, alarm: Alarm) -> None:
        """See to it that the alarm rings at `when`."""
        ...

    def patience(self, deadline: int | None) -> float | None:
        """How many real seconds a caller may sleep until `deadline`; None: until it is woken."""
        ...


_START: Final = (time.time_ns() - time.monotonic_ns()) // 1000
_monotonic_ns: Final = time.monotonic_ns


class SystemClock(Clock):
    """The machine's time: the wall clock when the process began, and from there on the monotonic clock."""

    @override
    def micros(self) -> int:
        return _START + _monotonic_ns() // 1000

    @override
    def schedule(self, when: int, alarm: Alarm) -> None:
        _ringer.schedule(when, alarm)

    @override
    def patience(self, deadline: int | None) -> float | None:
        if deadline is None:
            return None
        return min(max(0.0, (deadline - self.micros()) / SECOND), threading.TIMEOUT_MAX)


class _Ringer:
    """The thread that rings alarms: one per process, started when the first alarm is set."""

    def __init__(self) -> None:
        # A SimpleQueue, because a finalizer may set an alarm in the middle of anything.
        self._inbox: SimpleQueue[tuple[int, Alarm]] = SimpleQueue()
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None

    def schedule(self, when: int, alarm: Alarm) -> None:
        self._inbox.put((when, alarm))
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="tubes-alarms", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        order = count()
        waiting: list[tuple[int, int, Alarm]] = []
        while True:
            # One day at most: no platform's longest wait is shorter.
            patience = min((waiting[0][0] - system_clock.micros()) / SECOND, 86_400) if waiting else None
            try:
                if patience is None or patience > 0:
                    when, alarm = self._inbox.get(timeout=patience)
                else:
                    when, alarm = self._inbox.get_nowait()
            except Empty:
                pass
            else:
                heapq.heappush(waiting, (when, next(order), alarm))
                continue
            now = system_clock.micros()
            while waiting and waiting[0][0] <= now:
                ring_one(heapq.heappop(waiting), now)


def soon(alarm: Alarm) -> None:
    """Have the alarm thread ring at once. Takes no store's lock: a finalizer may call it in the middle of anything."""
    alarm.when = 0
    _ringer.schedule(0, alarm)


def ring_one(item: tuple[int, int, Alarm], now: int) -> None:
    """Ring an alarm, unless it was set to another moment since or its owner is gone."""
    when, _, alarm = item
    ring = alarm.ring()
    if ring is not None and alarm.when == when:
        ring(now)


system_clock: Final = SystemClock()
_ringer = _Ringer()


def _after_fork() -> None:
    global _ringer
    _ringer = _Ringer()


os.register_at_fork(after_in_child=_after_fork)
