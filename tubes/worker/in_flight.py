"""The state of a task while a handler works on it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, TypeAlias

from tubes.values.task import FINISHED
from tubes.worker.routes import UNKNOWN

if TYPE_CHECKING:
    from tubes.aio import AsyncTask
    from tubes.drivers.entry import Loss
    from tubes.sync import Task
    from tubes.values.task import TaskView
    from tubes.worker.outcomes import Verdict
    from tubes.worker.routes import Route, Target

#: Seconds by which a task without a ttr is renewed, if its ttl would expire.
_TTL_SPAN: Final = 30.0
#: Shortest interval between two renewals, in seconds.
_MIN_INTERVAL: Final = 0.01
#: Seconds that a cancelled async handler has to end.
CANCEL_GRACE: Final = 1.0
NEVER: Final = float("inf")


#: The tube, the id and the number of the take of a task.
Take: TypeAlias = tuple[str, int, int]


def take_of(task: TaskView) -> Take:
    return task.tube, task.id, task._take


class InFlight:
    """A task, its lease, and the progress of its handler."""

    __slots__ = (
        "ends_at",
        "is_finishing",
        "is_freed",
        "is_timed_out",
        "loss",
        "lost_at",
        "plain_task",
        "renews_at",
        "route",
        "runner",
        "span",
        "started_at",
        "take",
        "target",
        "task",
        "verdict",
    )

    def __init__(self, task: AsyncTask, route: Route, target: Target) -> None:
        self.task: Final = task
        self.route: Final = route
        self.target: Final = target
        #: Its take, even after `task._take` says that it has ended.
        self.take: Final = take_of(task)
        #: The asyncio task that runs the handler, or waits for its thread.
        self.runner: asyncio.Task[None] | None = None
        #: The task that a plain handler got; None: it is async, or has not started.
        self.plain_task: Task | None = None
        #: Why this worker no longer holds the task; None: it holds it.
        self.loss: Loss | None = None
        #: The monotonic time at which the loss was noticed.
        self.lost_at = 0.0
        #: How to finish the task; None until its handler has ended.
        self.verdict: Verdict | None = None
        #: True once the runner has claimed the task in order to finish it.
        self.is_finishing = False
        #: True once the place of the handler is free for another task, while the ack may still be on its way.
        self.is_freed = False
        #: True once the handler exceeded its timeout; the task is then finished without it.
        self.is_timed_out = False
        #: Seconds of a renewal, and the time of the next one by the monotonic clock.
        self.span, self.renews_at = _renewal(task, target)
        #: The monotonic time of the take.
        self.started_at: Final = time.monotonic()
        #: The monotonic time at which the task is finished without its handler: a thread cannot be cancelled.
        self.ends_at = NEVER
        if target.timeout is not None and not target.process:
            self.ends_at = self.started_at + target.timeout + (CANCEL_GRACE if target.is_async else 0)

    @property
    def is_ended_by_handler(self) -> bool:
        """True if the handler has ended the task itself, and continues."""
        return FINISHED in (self.task._take, self.plain_task and self.plain_task._take)

    @property
    def next_check(self) -> float:
        """The monotonic time at which the lease renewer must act on the task."""
        return min(self.renews_at, self.ends_at)

    def schedule_renewal(self, now: float) -> None:
        """Set the time of the next renewal after one at `now`."""
        self.renews_at = now + max(self.span / 3, _MIN_INTERVAL)


def _renewal(task: AsyncTask, target: Target) -> tuple[float, float]:
    """Return the span of a renewal in seconds, and the monotonic time of the first one."""
    driver = task._tube.driver
    if target is UNKNOWN and "delay" in driver.options:  # It is released at once, and its ttl keeps running.
        return 0.0, NEVER
    may_expire = task.expires is not None and not driver.ttl_spares_taken
    if "ttr" not in driver.options or task.ttr == 0 or not (may_expire or task.ttr):
        return 0.0, NEVER
    span = task.ttr or _TTL_SPAN
    left = span
    if may_expire and task.due == task.expires:  # Its ttl ends before its ttr.
        # This clock may be behind the server's, but the time cannot be before the put.
        now = max(time.time(), task.created)
        left = min(max((task.due or 0.0) - now, 0.0), span)
    return span, time.monotonic() + left / 3
