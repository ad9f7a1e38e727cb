"""The thread that renews tasks while handlers work on them, and gives up those whose handlers take too long.

A thread, since a handler may block the event loop: then neither its own task nor the others' are lost.
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

if TYPE_CHECKING:
    from tubes.aio import AsyncTube
    from tubes.sync import Tube

_RETRY: Final = RetryPolicy((0.5,))


class LeaseRenewer:
    """Knows all tasks in flight. To finish a task, `claim` it first: that succeeds once.

    The thread calls `lost` with tasks that this worker does not hold any more, and `late` with those whose handlers
    take too long. Both are claimed before.
    """

    def __init__(
        self,
        thread_tube: Callable[[AsyncTube], Tube],
        lost: Callable[[InFlight], object],
        late: Callable[[InFlight], object],
    ) -> None:
        self._thread_tube: Final = thread_tube
        self._lost: Final = lost
        self._late: Final = late
        # Other threads look at copies: each change of it is one step, without a lock.
        self._kept: Final[dict[InFlight, None]] = {}
        self._changed: Final = threading.Condition(threading.Lock())
        # When it looks next.
        self._planned = NEVER
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, in_flight: InFlight) -> None:
        """Renew this task from now on, and watch the time of its handler."""
        self._kept[in_flight] = None
        if in_flight.next_look == NEVER:
            return
        with self._changed:
            if in_flight.next_look < self._planned:
                if self._thread is None and not self._starts():
                    return
                self._planned = in_flight.next_look
                self._changed.notify()

    def _starts(self) -> bool:
        """Whether the system gives a thread; else the next `add` asks again."""
        thread = threading.Thread(target=self._run, name="tubes-worker-leases", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.error("%s: tasks are not renewed yet", error)
            return False
        self._thread = thread
        return True

    def claim(self, in_flight: InFlight) -> bool:
        """Stop renewing it; False: it was claimed before."""
        return self._kept.pop(in_flight, self) is None

    def is_kept(self, in_flight: InFlight) -> bool:
        """Whether nobody has claimed it yet."""
        return in_flight in self._kept

    def close(self) -> None:
        """Stop renewing all tasks."""
        with self._changed:
            self._closed = True
            self._kept.clear()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (left := self._planned - time.monotonic()) > 0:
                    self._changed.wait(None if left == NEVER else min(left, threading.TIMEOUT_MAX))
                if self._closed:
                    return
                now = time.monotonic()
                kept = list(self._kept)
            due = [one for one in kept if one.renews_at <= now]
            late = [one for one in kept if one.ends_at <= now]
            for one in late:
                if self.claim(one):
                    try:
                        self._late(one)
                    except Exception:  # All tasks depend on this thread.
                        log.exception("a task could not be released yet")
                        one.ends_at = time.monotonic() + _RETRY.delay()
                        self.add(one)
            try:
                self._renew([one for one in due if self.is_kept(one)], now)
            except Exception:
                log.exception("tasks could not be renewed")
                self._renew_later(due)
            with self._changed:
                self._planned = min((one.next_look for one in list(self._kept)), default=NEVER)

    def _renew(self, due: list[InFlight], now: float) -> None:
        """Renew these, those of one tube and one span together."""
        groups: defaultdict[tuple[AsyncTube, float], list[InFlight]] = defaultdict(list)
        for one in due:
            groups[one.task._tube, one.span].append(one)
        for (tube, span), group in groups.items():
            try:
                # Both tubes have the same session, so tasks of event loops are good for their takes here, too.
                done = self._thread_tube(tube).renew_many([one.task for one in group], span)  # type: ignore[misc]
            except TubeNotFound:
                done = {}
            except TubesError as error:
                log.warning("tasks of tube %r could not be renewed: %s", tube.name, error)
                self._renew_later(group)
                continue
            for one in group:
                one.renewed(now)
                if not done.get(one.task.id) and self.claim(one):
                    self._lost(one)

    def _renew_later(self, group: list[InFlight]) -> None:
        soon = time.monotonic() + _RETRY.delay()
        for one in group:
            one.renews_at = soon
