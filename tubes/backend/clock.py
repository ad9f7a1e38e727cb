"""Clocks: the current time, and alarms."""

from __future__ import annotations

import os
import threading
import time
from typing import Final, Protocol

from typing_extensions import override

from tubes.backend.alarms import Alarm, AlarmThread
from tubes.drivers.options import SECOND


class Clock(Protocol):
    """The clock of a queue: `SystemClock`, or `tubes.testing.ManualClock` in tests."""

    def micros(self) -> int:
        """Return the time in microseconds since the epoch. It never decreases."""
        ...

    def schedule(self, when: int, alarm: Alarm) -> None:
        """Fire the alarm at `when`."""
        ...

    def patience(self, deadline: int | None) -> float | None:
        """Return the real seconds that a caller may sleep until `deadline`; None: until it is woken."""
        ...


_START: Final = (time.time_ns() - time.monotonic_ns()) // 1000
_monotonic_ns: Final = time.monotonic_ns


class SystemClock(Clock):
    """The machine's clock: the wall-clock time when the process started, plus the monotonic time since."""

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


def fire_soon(alarm: Alarm) -> None:
    """Fire the alarm at once, in the alarm thread. It needs no lock of a store, so that a finalizer may call it."""
    alarm.when = 0
    _ringer.schedule(0, alarm)


system_clock: Final = SystemClock()
_ringer = AlarmThread(system_clock.micros)


def _after_fork() -> None:
    global _ringer
    _ringer = AlarmThread(system_clock.micros)


os.register_at_fork(after_in_child=_after_fork)
