"""The rate limit of a tube: a token bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tubes.drivers.timers import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable


class TokenBucket:
    """The rate limit of a tube, by the generic cell rate algorithm.

    A token comes every `interval` microseconds; at most `burst` tokens are stored, and a take uses one. The bucket is
    one number: `scheduled`, the start of the last take if takes came evenly. While the bucket is empty, it is an item
    of the timers, as a task is: `due` is the time of the next token.
    """

    __slots__ = ("_changed", "_moment", "_takes", "burst", "due", "id", "interval", "queued", "scheduled")

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed: Final = changed
        #: Smaller than the ids of tasks and lanes, so that a token comes before them at the same moment.
        self.id: Final = 1 - NEVER
        #: 0: no limit.
        self.interval = 0
        self.burst = 1
        self.scheduled = -NEVER
        self.due = self.queued = NEVER
        # The moment of the last start, and the first and the last number of the takes at that moment.
        self._moment = 0
        self._takes = (0, 0)

    def configure(self, interval: int, burst: int) -> None:
        """Set the rate. The bucket keeps the time since it was empty, so a larger burst brings no tokens by itself."""
        more = (burst - 1) * interval - (self.burst - 1) * self.interval
        scheduled = self.scheduled if self.scheduled == -NEVER else self.scheduled + more
        self.scheduled, self.interval, self.burst = scheduled, interval, burst

    def start(self, now: int, take: int) -> None:
        """Use a token for the take with this number."""
        first = self._takes[0] if now == self._moment else take
        self._moment, self._takes = now, (first, take)
        self.scheduled = max(now, self.scheduled + self.interval)
        self.apply(now)

    def undo_start(self, now: int, take: int) -> None:
        """Return the token of a take, unless another take has started later: that one could have used it."""
        first, last = self._takes
        if self.interval and first <= take <= last:
            self.scheduled -= self.interval
            self.apply(now)

    def apply(self, now: int) -> None:
        """Stop takes until the next token, if the bucket is empty."""
        # More than `burst` takes ahead means that the clock was set back.
        self.scheduled = min(self.scheduled, now + (self.burst - 1) * self.interval)
        moment = self._next_start()
        due = moment if moment > now else NEVER
        if due != self.due:
            self.due = due
            self._changed()

    def restore(self) -> None:
        """Compute `due` again. If it is in the past, the timers end the wait."""
        self.queued, self.due = NEVER, self._next_start()

    def _next_start(self) -> int:
        if not self.interval or self.scheduled == -NEVER:
            return NEVER
        return self.scheduled + (2 - self.burst) * self.interval
