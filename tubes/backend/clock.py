"""Clocks: the time, and calls at a given moment."""

from __future__ import annotations

import os
import threading
import time
from typing import Final, Protocol

from typing_extensions import override

from tubes.backend.alarms import Alarm, Ringer
from tubes.drivers.options import SECOND


class Clock(Protocol):
    """Time for a queue. `SystemClock` is the real one, `tubes.testing.ManualClock` the one for tests."""

    def micros(self) -> int:
        """The time: microseconds since the epoch. Never goes back."""
        ...

    def schedule(self, when: int, alarm: Alarm) -> None:
        """Ring the alarm at `when`."""
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


def soon(alarm: Alarm) -> None:
    """Have the alarm thread ring at once. Takes no store's lock: a finalizer may call it in the middle of anything."""
    alarm.when = 0
    _ringer.schedule(0, alarm)


system_clock: Final = SystemClock()
_ringer = Ringer(system_clock.micros)


def _after_fork() -> None:
    global _ringer
    _ringer = Ringer(system_clock.micros)


os.register_at_fork(after_in_child=_after_fork)
