"""Alarms: callbacks at a given time.

A store has one alarm per tube. It sets the alarm to the next deadline only while a take waits or a listener is set;
otherwise the next call moves the due tasks. Nothing here polls.
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

#: Callback of an alarm; its argument is the current time in microseconds.
AlarmCallback = Callable[[int], None]
# A schedule drops its stale entries when they outnumber the live ones by more than this.
_MAX_STALE: Final = 64


class Scheduler(Protocol):
    """The part of a `Clock` that an alarm needs."""

    def schedule(self, when: int, alarm: Alarm) -> None: ...


class Alarm:
    """A callback of a tube or session at one time. `when` is set under the lock of the store."""

    __slots__ = ("__weakref__", "_callback", "_clock", "when")

    def __init__(self, clock: Scheduler, callback: AlarmCallback) -> None:
        self._clock: Final = clock
        self._callback: Final = WeakMethod(callback)
        self.when = NEVER

    def set(self, when: int) -> None:
        """Fire at `when` if that is before the current setting; otherwise do nothing."""
        if when < self.when:
            self.when = when
            try:
                self._clock.schedule(when, self)
            except BaseException:
                self.when = NEVER  # The alarm is not set, so that the next call tries again.
                raise

    def cancel(self) -> None:
        self.when = NEVER

    def is_set_to(self, when: int) -> bool:
        """True if the alarm will still fire at `when`, and its owner exists."""
        return self.when == when and self._callback() is not None

    def fire(self, when: int, now: int) -> None:
        """Call the callback, unless the alarm is no longer set to `when`, or its owner was garbage-collected."""
        callback = self._callback()
        if callback is not None and self.when == when:
            callback(now)


class Schedule:
    """A heap of alarms by time. Not thread-safe."""

    def __init__(self) -> None:
        self._moments: list[tuple[int, int, Alarm]] = []
        self._order = count()
        self._compact_at = _MAX_STALE

    @property
    def first(self) -> int:
        return self._moments[0][0] if self._moments else NEVER

    def add(self, when: int, alarm: Alarm) -> None:
        """Add an alarm at `when`. Cost: O(log n), amortized."""
        heapq.heappush(self._moments, (when, next(self._order), alarm))
        if len(self._moments) > self._compact_at:
            live = {(moment[0], id(moment[2])): moment for moment in self._moments if moment[2].is_set_to(moment[0])}
            self._moments = sorted(live.values())
            self._compact_at = 2 * len(live) + _MAX_STALE

    def pop(self, latest: int) -> tuple[int, Alarm | None]:
        """Remove and return the first alarm and its time; return `latest` and None if it comes after `latest`."""
        if not self._moments or self._moments[0][0] > latest:
            return latest, None
        when, _, alarm = heapq.heappop(self._moments)
        return when, alarm


class AlarmThread:
    """The thread that fires alarms by the machine's clock: one per process, started when the first alarm is set."""

    def __init__(self, micros: Callable[[], int]) -> None:
        self._micros = micros
        # A SimpleQueue is reentrant: a finalizer may set an alarm at any point.
        self._inbox: SimpleQueue[tuple[int, Alarm]] = SimpleQueue()
        self._starting = threading.RLock()
        self._is_running = False

    def schedule(self, when: int, alarm: Alarm) -> None:
        if not self._is_running:
            with self._starting:
                if not self._is_running:
                    # Set the flag first: otherwise a finalizer could start a second thread. No interrupt can come
                    # between the two lines.
                    self._is_running = True
                    try:
                        start_new_thread(self._run, ())
                    except Exception:  # The process has reached its limit of threads.
                        self._is_running = False
                        raise
        self._inbox.put((when, alarm))

    def _run(self) -> None:
        schedule = Schedule()
        while True:
            when, alarm = schedule.pop(now := self._micros())
            if alarm is not None:
                try:
                    alarm.fire(when, now)
                except BaseException:
                    # An error must not stop the other alarms.
                    _log.exception("an alarm of a tube or session failed")
                continue
            if (added := self._wait(schedule.first)) is not None:
                schedule.add(*added)

    def _wait(self, latest: int) -> tuple[int, Alarm] | None:
        """Wait until `latest` for another thread to set an alarm; return it, or None."""
        # Wait one day at most: every platform allows that.
        patience = None if latest == NEVER else max(0, min((latest - self._micros()) / SECOND, 86_400))
        try:
            return self._inbox.get(timeout=patience)
        except Empty:
            return None
