"""Ends a wait on a server at the moment at which something is due there."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from tubes.backend.alarms import Alarm
from tubes.drivers.timers import NEVER
from tubes.redis.transport.script_call import ScriptCall

if TYPE_CHECKING:
    from tubes.redis.store import RedisStore
    from tubes.redis.transport.script_call import Flow


class WakeTimer:
    """Wakes the waiters on one tube when something is due, as long as they sleep.

    If nothing else happens, a server checks for expired waits only ten times a second. So at the moment at which
    something is due the process asks for a marker, which is left if nobody has looked since: of many processes that
    wait for one moment the first to ask wakes one, whoever has waited longest.
    """

    def __init__(self, store: RedisStore, key: str) -> None:
        self._store: Final = store
        self._key: Final = key
        self._lock: Final = threading.Lock()
        self._alarm: Final = Alarm(store.clock, self._fire)
        # When to ring, by this process's clock; NEVER: nobody sleeps, or it has rung.
        self._until = NEVER
        self._due = 0
        self._marker = ""
        # Which sleep it is.
        self._number = 0

    def set(self, due: int, marker: str) -> None:
        """Ring when the server's clock says `due`, unless whoever waits for this marker wakes up before."""
        with self._lock:
            self._number += 1
            self._due, self._marker = due, marker
            self._set(self._store.local_micros(due))

    def cancel(self) -> None:
        """Do not ring: nobody sleeps any more."""
        with self._lock:
            self._number += 1
            self._until = NEVER

    def _set(self, until: int) -> None:
        self._until = until
        self._alarm.set(until)

    def _fire(self, now: int) -> None:
        with self._lock:
            self._alarm.cancel()
            if self._until > now:  # It was set to an earlier moment once.
                if self._until != NEVER:
                    self._alarm.set(self._until)
                return
            self._until = NEVER
            number = self._number
        self._store.later(lambda: self._ask(number))

    def _ask(self, number: int) -> Flow[None]:
        store, due, marker = self._store, self._due, self._marker
        if number != self._number:
            return
        left = yield ScriptCall(store.ringing, self._key, (marker, due), parts=(marker,))
        with self._lock:
            # The clocks do not quite agree.
            if left.__class__ is int and left > 0 and number == self._number:
                self._set(store.clock.micros() + left)
