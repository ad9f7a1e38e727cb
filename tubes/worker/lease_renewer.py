"""The thread that renews tasks while handlers work on them, and reports handlers that exceed their timeout.

It is a thread because a handler may block the event loop: no task is lost then.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tubes.backend.retry import RetryPolicy
from tubes.errors import TubeNotFound, TubesError
from tubes.worker.in_flight import NEVER, InFlight
from tubes.worker.logs import log
from tubes.worker.outcomes import name_of

if TYPE_CHECKING:
    from tubes.aio import AsyncTube
    from tubes.sync import Tube

_RETRY: Final = RetryPolicy((0.5,))


class LeaseRenewer:
    """Renews all tasks in flight. To finish a task, `claim` it first: only the first claim succeeds.

    `on_lost`: called in the thread with a task that this worker no longer holds.
    `on_timeout`: called in the thread with a task whose handler exceeded its timeout.
    The thread claims the task before it calls either of them.
    """

    def __init__(
        self,
        thread_tube: Callable[[AsyncTube], Tube],
        on_lost: Callable[[InFlight], object],
        on_timeout: Callable[[InFlight], object],
    ) -> None:
        self._thread_tube: Final = thread_tube
        self._on_lost: Final = on_lost
        self._on_timeout: Final = on_timeout
        # Changed without a lock, each time in one atomic step; the thread iterates over copies.
        self._tasks: Final[dict[InFlight, None]] = {}
        self._changed: Final = threading.Condition(threading.Lock())
        # The monotonic time at which the thread wakes next.
        self._next_check = NEVER
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, in_flight: InFlight) -> None:
        """Start to renew this task and to watch the timeout of its handler."""
        self._tasks[in_flight] = None
        if in_flight.next_check == NEVER:
            return
        with self._changed:
            if in_flight.next_check < self._next_check:
                if self._thread is None and not self._start_thread():
                    return
                self._next_check = in_flight.next_check
                self._changed.notify()

    def _start_thread(self) -> bool:
        """Start the thread. Returns False if the system refuses; the next `add` tries again."""
        thread = threading.Thread(target=self._run, name="tubes-worker-leases", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.error("tasks are not renewed until a thread can be started: %s", error)
            return False
        self._thread = thread
        return True

    def claim(self, in_flight: InFlight) -> bool:
        """Stop renewing this task. Returns False if it was claimed before."""
        return self._tasks.pop(in_flight, self) is None

    def holds(self, in_flight: InFlight) -> bool:
        return in_flight in self._tasks

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._tasks.clear()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (left := self._next_check - time.monotonic()) > 0:
                    self._changed.wait(None if left == NEVER else min(left, threading.TIMEOUT_MAX))
                if self._closed:
                    return
                now = time.monotonic()
                tasks = list(self._tasks)
            due = [entry for entry in tasks if entry.renews_at <= now]
            overdue = [entry for entry in tasks if entry.ends_at <= now]
            for entry in overdue:
                if self.claim(entry):
                    try:
                        self._on_timeout(entry)
                    except Exception:  # The leases of all tasks depend on this thread.
                        log.exception("%s could not be released yet", name_of(entry.task))
                        entry.ends_at = time.monotonic() + _RETRY.delay()
                        self.add(entry)
            try:
                self._renew([entry for entry in due if self.holds(entry)], now)
            except Exception:
                log.exception("tasks could not be renewed")
                self._renew_later(due)
            with self._changed:
                self._next_check = min((entry.next_check for entry in list(self._tasks)), default=NEVER)

    def _renew(self, due: list[InFlight], now: float) -> None:
        """Renew these tasks, with one call per tube and span."""
        groups: defaultdict[tuple[AsyncTube, float], list[InFlight]] = defaultdict(list)
        for entry in due:
            groups[entry.task._tube, entry.span].append(entry)
        for (tube, span), group in groups.items():
            try:
                # Both tubes share a session, so a task taken in the event loop may be renewed here.
                done = self._thread_tube(tube).touch_many([entry.task for entry in group], span)  # type: ignore[misc]
            except TubeNotFound:
                done = {}
            except TubesError as error:
                log.warning("tasks of tube %r could not be renewed: %s", tube.name, error)
                self._renew_later(group)
                continue
            log.debug("the leases of %d tasks of tube %r were renewed for %g s", sum(done.values()), tube.name, span)
            for entry in group:
                entry.schedule_renewal(now)
                if not done.get(entry.task.id) and self.claim(entry):
                    self._on_lost(entry)

    def _renew_later(self, group: list[InFlight]) -> None:
        soon = time.monotonic() + _RETRY.delay()
        for entry in group:
            entry.renews_at = soon
