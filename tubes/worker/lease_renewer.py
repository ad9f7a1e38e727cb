"""The thread that keeps tasks while handlers work on them, and gives up those whose handlers take too long.

A thread, since an event loop may be blocked by a handler: neither its own task nor the others' are lost by that.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tubes.backend.retry import RetryPolicy
from tubes.errors import TubeNotFound, TubesError
from tubes.worker.in_flight import NEVER, Flight
from tubes.worker.logs import log

if TYPE_CHECKING:
    from tubes.sync import Tube

_RETRY: Final = RetryPolicy((0.5,))


class Keeper:
    """Knows all flights. Whoever settles a task must `claim` its flight first: that succeeds once."""

    def __init__(
        self, tube_of: Callable[[Any], Tube], lost: Callable[[Flight], object], late: Callable[[Flight], object]
    ) -> None:
        self._tube_of: Final = tube_of
        self._lost: Final = lost
        self._late: Final = late
        self._flights: Final[dict[Flight, None]] = {}
        self._changed: Final = threading.Condition(threading.Lock())
        # When it looks next.
        self._planned = NEVER
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, flight: Flight) -> None:
        """Keep this one."""
        with self._changed:
            self._flights[flight] = None
            if flight.next_look < self._planned:
                if self._thread is None and not self._starts():
                    return
                self._planned = flight.next_look
                self._changed.notify()

    def _starts(self) -> bool:
        """Whether the system gives a thread; else the next flight asks again."""
        thread = threading.Thread(target=self._run, name="tubes-keeper", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.error("%s: tasks are not kept yet", error)
            return False
        self._thread = thread
        return True

    def claim(self, flight: Flight) -> bool:
        """Keep it no longer; False: somebody has claimed it before."""
        with self._changed:
            return self._flights.pop(flight, self) is None

    def is_kept(self, flight: Flight) -> bool:
        """Whether nobody has claimed it yet."""
        return flight in self._flights

    def close(self) -> None:
        """Keep nothing any more."""
        with self._changed:
            self._closed = True
            self._flights.clear()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (left := self._planned - time.monotonic()) > 0:
                    self._changed.wait(None if left == NEVER else min(left, threading.TIMEOUT_MAX))
                if self._closed:
                    return
                now = time.monotonic()
                due = [flight for flight in self._flights if flight.renews_at <= now]
                late = [flight for flight in self._flights if flight.ends_at <= now]
            for flight in late:
                if self.claim(flight):
                    try:
                        self._late(flight)
                    except Exception:  # As below.
                        log.exception("a task could not be given up yet")
                        flight.ends_at = time.monotonic() + _RETRY.delay()
                        self.add(flight)
            try:
                self._renew([flight for flight in due if self.is_kept(flight)], now)
            except Exception:  # All flights depend on it.
                log.exception("tasks could not be renewed")
                self._again(due)
            with self._changed:
                self._planned = min((flight.next_look for flight in self._flights), default=NEVER)

    def _renew(self, due: list[Flight], now: float) -> None:
        """Renew these, those of one tube and one span together."""
        groups: defaultdict[tuple[Any, float], list[Flight]] = defaultdict(list)
        for flight in due:
            groups[flight.task._tube, flight.span].append(flight)
        for (tube, span), flights in groups.items():
            # Tasks of the other face, and of the same session: they speak for their own takes here too.
            tasks: list[Any] = [flight.task for flight in flights]
            try:
                done = self._tube_of(tube).renew_many(tasks, span)
            except TubeNotFound:
                done = {}
            except TubesError as error:
                log.warning("tasks of tube %r could not be renewed: %s", tube.name, error)
                self._again(flights)
                continue
            for flight in flights:
                flight.renewed(now)
                if not done.get(flight.task.id) and self.claim(flight):
                    flight.is_lost = True
                    self._lost(flight)

    def _again(self, flights: list[Flight]) -> None:
        soon = time.monotonic() + _RETRY.delay()
        for flight in flights:
            flight.renews_at = soon
