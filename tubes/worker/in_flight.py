"""A task in flight."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from tubes.worker.routes import UNKNOWN

if TYPE_CHECKING:
    from tubes.aio import AsyncTask
    from tubes.worker.outcomes import Verdict
    from tubes.worker.routes import Route, Target

#: Seconds of a renewal of a task without ttr that its ttl would end.
_SPAN: Final = 30.0
#: Seconds between two renewals at least.
_SHORTEST: Final = 0.01
#: Seconds that an async handler has to end, once it was cancelled.
MOMENT: Final = 1.0
NEVER: Final = float("inf")


class InFlight:
    """A task, its lease, and the state of the work on it."""

    __slots__ = (
        "began",
        "ends_at",
        "given_up",
        "is_finishing",
        "is_freed",
        "renews_at",
        "route",
        "runner",
        "span",
        "target",
        "task",
        "verdict",
    )

    def __init__(self, task: AsyncTask, route: Route, target: Target) -> None:
        self.task: Final = task
        self.route: Final = route
        self.target: Final = target
        #: Runs the handler, or waits for the thread that does.
        self.runner: asyncio.Task[None] | None = None
        #: How to finish the task, once its handler has ended.
        self.verdict: Verdict | None = None
        #: Whether its runner is about to do that.
        self.is_finishing = False
        #: Whether its handler may have another task: this one is done, and its ack on its way.
        self.is_freed = False
        #: Whether its handler took too long, and the task has gone back.
        self.given_up = False
        #: Seconds of a renewal; when the next one is due.
        self.span, self.renews_at = _renewal(task, target)
        #: When it was taken.
        self.began: Final = time.monotonic()
        #: When the task is finished without its handler; a thread cannot be cancelled.
        self.ends_at = NEVER
        if target.timeout is not None and not target.process:
            self.ends_at = self.began + target.timeout + (MOMENT if target.is_async else 0)

    @property
    def next_look(self) -> float:
        """When the lease renewer has something to do about it."""
        return min(self.renews_at, self.ends_at)

    def renewed(self, now: float) -> None:
        """Note that the task has its whole span again."""
        self.renews_at = now + max(self.span / 3, _SHORTEST)


def _renewal(task: AsyncTask, target: Target) -> tuple[float, float]:
    """How long a renewal lasts, and when the first one is due, by the monotonic clock."""
    driver = task._tube.driver
    if target is UNKNOWN and "delay" in driver.options:  # It goes back at once, and its ttl counts.
        return 0.0, NEVER
    dies = task.expires is not None and not driver.ttl_spares_taken
    if "ttr" not in driver.options or task.ttr == 0 or not (dies or task.ttr):
        return 0.0, NEVER
    span = task.ttr or _SPAN
    left = span
    if dies and task.due == task.expires:  # Its ttl comes first.
        # No clock is behind the server's when that put the task.
        now = max(time.time(), task.created)
        left = min(max((task.due or 0.0) - now, 0.0), span)
    return span, time.monotonic() + left / 3
