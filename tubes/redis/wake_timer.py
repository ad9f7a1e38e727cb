"""Ends a wait on a server at the moment at which something is due there."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from tubes.backend.alarms import Alarm
from tubes.drivers.timers import NEVER
from tubes.redis.transport.script_call import ScriptCall

if TYPE_CHECKING:
    from tubes.redis.shared_tube import SharedTube
    from tubes.redis.transport.script_call import Flow


class WakeTimer:
    """Rings for those who wait in one tube, as long as they sleep.

    Where nothing else happens a server looks only ten times a second whose wait is over. So at the moment at which
    something is due the process asks for a marker, which is left if nobody has looked since: of many processes that
    wait for one moment the first to ask wakes one, whoever has waited longest.
    """

    def __init__(self, shared: SharedTube) -> None:
        self._shared_tube: Final = shared
        self._lock: Final = threading.Lock()
        self._alarm: Final = Alarm(shared.store.clock, self._ring)
        # When to ring, by this process's clock; NEVER: nobody sleeps, or it has rung.
        self._until = NEVER
        self._due = 0
        self._marker = ""
        # Which sleep it is.
        self._number = 0

    def set(self, due: int, marker: str) -> None:
        """Somebody is about to sleep until there is this marker; by the server's clock something is due then."""
        with self._lock:
            self._number += 1
            self._due, self._marker = due, marker
            self._set(self._shared_tube.store.local_micros(due))

    def silence(self) -> None:
        """Nobody sleeps any more."""
        with self._lock:
            self._number += 1
            self._until = NEVER

    def _set(self, until: int) -> None:
        self._until = until
        self._alarm.set(until)

    def _ring(self, now: int) -> None:
        with self._lock:
            self._alarm.silence()
            if self._until > now:  # It was set to an earlier moment once.
                if self._until != NEVER:
                    self._alarm.set(self._until)
                return
            self._until = NEVER
            number = self._number
        self._shared_tube.store.later(lambda: self._ask(number))

    def _ask(self, number: int) -> Flow[None]:
        shared, due, marker = self._shared_tube, self._due, self._marker
        if number != self._number:
            return
        left = yield ScriptCall(shared.store.ringing, shared.key, (marker, due), parts=(marker,))
        with self._lock:
            # The clocks do not quite agree.
            if left.__class__ is int and left > 0 and number == self._number:
                self._set(shared.store.clock.micros() + left)
