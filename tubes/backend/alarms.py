"""Alarms: calls at a given moment.

A store has an alarm per tube. It sets the alarm to the next deadline only while a take waits or a listener is set;
otherwise the next call does what is due. Nothing here polls.
"""

from __future__ import annotations

import heapq
import logging
import threading
from _thread import start_new_thread
from collections.abc import Callable
from itertools import count
from queue import Empty, SimpleQueue
from typing import Final, Protocol
from weakref import WeakMethod

from tubes.drivers.options import SECOND
from tubes.drivers.timers import NEVER

_log = logging.getLogger("tubes")

#: Called with the time when an alarm rings.
Ring = Callable[[int], None]
# Moments that are out of date are removed when they are more than the others, and more than this.
_STALE: Final = 64


class Scheduler(Protocol):
    """The part of a `Clock` that an alarm needs."""

    def schedule(self, when: int, alarm: Alarm) -> None: ...


class Alarm:
    """A tube's or a session's call at a moment. `when` is set under their store's lock."""

    __slots__ = ("__weakref__", "_clock", "_ring", "when")

    def __init__(self, clock: Scheduler, ring: Ring) -> None:
        self._clock: Final = clock
        self._ring: Final = WeakMethod(ring)
        self.when = NEVER

    def set(self, when: int) -> None:
        """Ring at this moment, if that is sooner than the alarm is set to. Cheap when it is not."""
        if when < self.when:
            self.when = when
            try:
                self._clock.schedule(when, self)
            except BaseException:
                self.when = NEVER  # Not set: the next time it is tried again.
                raise

    def silence(self) -> None:
        """Do not ring."""
        self.when = NEVER

    def is_set_to(self, when: int) -> bool:
        """Whether it is still to ring at this moment, and its owner is there."""
        return self.when == when and self._ring() is not None

    def ring(self, when: int, now: int) -> None:
        """Ring, unless it was set to another moment than `when` since or its owner is gone."""
        ring = self._ring()
        if ring is not None and self.when == when:
            ring(now)


class Schedule:
    """Alarms by the moments that they were set to. Not safe to share between threads by itself."""

    def __init__(self) -> None:
        self._moments: list[tuple[int, int, Alarm]] = []
        self._order = count()
        self._many = _STALE

    @property
    def first(self) -> int:
        """The soonest moment."""
        return self._moments[0][0] if self._moments else NEVER

    def add(self, when: int, alarm: Alarm) -> None:
        """Note a moment. O(log n), amortized."""
        heapq.heappush(self._moments, (when, next(self._order), alarm))
        if len(self._moments) > self._many:
            held = {(moment[0], id(moment[2])): moment for moment in self._moments if moment[2].is_set_to(moment[0])}
            self._moments = sorted(held.values())
            self._many = 2 * len(held) + _STALE

    def pop(self, until: int) -> tuple[int, Alarm | None]:
        """Take out the soonest moment and its alarm; `until` and None if there is none up to then."""
        if not self._moments or self._moments[0][0] > until:
            return until, None
        when, _, alarm = heapq.heappop(self._moments)
        return when, alarm


class Ringer:
    """The thread that rings alarms by the machine's time: started when the first one is set, one per process."""

    def __init__(self, micros: Callable[[], int]) -> None:
        self._micros = micros
        # A SimpleQueue, because a finalizer may set an alarm in the middle of anything.
        self._inbox: SimpleQueue[tuple[int, Alarm]] = SimpleQueue()
        self._starting = threading.RLock()
        self._runs = False

    def schedule(self, when: int, alarm: Alarm) -> None:
        """Ring the alarm at this moment."""
        if not self._runs:
            with self._starting:
                if not self._runs:
                    # In this order a finalizer starts no second thread, and no interrupt comes between the two lines.
                    self._runs = True
                    try:
                        start_new_thread(self._run, ())
                    except Exception:  # No more threads, for now.
                        self._runs = False
                        raise
        self._inbox.put((when, alarm))

    def _run(self) -> None:
        schedule = Schedule()
        while True:
            when, alarm = schedule.pop(now := self._micros())
            if alarm is not None:
                try:
                    alarm.ring(when, now)
                except BaseException:
                    # The other alarms must go on after any error.
                    _log.exception("an alarm failed")
                continue
            if (one := self._wait(schedule.first)) is not None:
                schedule.add(*one)

    def _wait(self, until: int) -> tuple[int, Alarm] | None:
        """Wait until then for an alarm that is set; returns it, or None."""
        # One day at most: no platform's longest wait is shorter.
        patience = None if until == NEVER else max(0, min((until - self._micros()) / SECOND, 86_400))
        try:
            return self._inbox.get(timeout=patience)
        except Empty:
            return None
