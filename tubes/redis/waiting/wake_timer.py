"""Ends a wait on a server when a task is due there."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from tubes.backend.alarms import Alarm
from tubes.drivers.timers import NEVER
from tubes.redis.library.functions import FUNCTIONS
from tubes.redis.transport.script_call import ScriptCall

if TYPE_CHECKING:
    from tubes.redis.transport.script_call import Flow
    from tubes.redis.waiting.protocols import Store


class WakeTimer:
    """Wakes the waiters on one tube when a task is due.

    A server checks for expired waits only ten times a second. So at the due time the process asks the function
    `wake_at_due` for a marker, which is pushed unless another process has looked since. If many processes wait for
    the same moment, the first request wakes the longest waiter.
    """

    def __init__(self, store: Store, key: str) -> None:
        self._store: Final = store
        self._key: Final = key
        self._lock: Final = threading.Lock()
        self._alarm: Final = Alarm(store.clock, self._fire)
        # The alarm time by this process's clock; NEVER: not set, or it has fired.
        self._until = NEVER
        self._due = 0
        self._marker = ""
        # The number of the current wait.
        self._number = 0

    def set(self, due: int, marker: str) -> None:
        """Push `marker` when the server's clock reaches `due`, unless the wait ends before."""
        with self._lock:
            self._number += 1
            self._due, self._marker = due, marker
            self._set(self._store.local_micros(due))

    def cancel(self) -> None:
        """Cancel the timer: the wait has ended."""
        with self._lock:
            self._number += 1
            self._until = NEVER

    def _set(self, until: int) -> None:
        self._until = until
        self._alarm.set(until)

    def _fire(self, now: int) -> None:
        with self._lock:
            self._alarm.cancel()
            if self._until > now:  # It had been set to an earlier moment before.
                if self._until != NEVER:
                    self._alarm.set(self._until)
                return
            self._until = NEVER
            number = self._number
        self._store.later(lambda: self._push_marker(number))

    def _push_marker(self, number: int) -> Flow[None]:
        store, due, marker = self._store, self._due, self._marker
        if number != self._number:
            return
        remaining = yield ScriptCall(FUNCTIONS["wake_at_due"], self._key, (marker, due))
        with self._lock:
            # The clocks differ slightly: try again.
            if remaining.__class__ is int and remaining > 0 and number == self._number:
                self._set(store.clock.micros() + remaining)
