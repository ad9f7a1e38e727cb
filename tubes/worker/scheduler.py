"""Puts the occurrences of schedules: each is a task with a key of its own, which waits until its time.

There is no leader. Every worker puts the next occurrence of each of its schedules: when it begins, when it takes one,
and shortly after the time of each. The key lets only one of these puts count. So the next occurrence exists as long as
any worker lives, and it is one task, which one worker takes.
"""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tubes.drivers.options import MAX_SECONDS, SECOND
from tubes.errors import QueueClosed, TubesError, excerpt
from tubes.values.batch import Item
from tubes.worker.logs import log
from tubes.worker.outcomes import Verdict
from tubes.worker.routes import Target
from tubes.worker.schedules import Schedule, latest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tubes.aio import AsyncQueue, AsyncTask, AsyncTube
    from tubes.worker.routes import Route

#: Seconds between two looks whether the next occurrence is there, at least and at most.
_SOONEST: Final = 1.0
_LATEST: Final = 30.0
#: Seconds for which a finished occurrence is remembered after the next one is due: the clocks of two processes must not
#: differ by more.
_SLACK: Final = 60
#: Seconds for which an occurrence waits for a worker that has its function, unless the tube has a ttl.
_KEPT: Final = 7 * 86400.0


class Scheduler:
    """Keeps the next occurrence of each schedule in its tube, as long as a worker runs."""

    def __init__(self, queue: AsyncQueue) -> None:
        self._queue: Final = queue
        self._schedules: list[tuple[str, str, Schedule]] = []
        self._keeper: asyncio.Task[None] | None = None

    def follow(self, routes: Iterable[Route]) -> None:
        """Know the schedules of these routes, and no others."""
        self._schedules = [
            (route.tubes[0], name, target.schedule)
            for route in routes
            if not isinstance(route.target, Target)
            for name, target in route.target.items()
            if target.schedule is not None
        ]

    def begin(self) -> None:
        """Put what comes next, from now on."""
        self.end()
        if self._schedules:
            self._keeper = asyncio.get_running_loop().create_task(self._keep())

    def end(self) -> None:
        """Put no more."""
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None

    async def _keep(self) -> None:
        while True:
            await self.plan()
            now = self._now()
            soonest = min(schedule.after(now) for _, _, schedule in self._schedules)
            # Not all workers at once, and after whoever takes the occurrence.
            left = (soonest - now) / SECOND + random.uniform(0.05, 0.25)
            await asyncio.sleep(min(max(left, _SOONEST), _LATEST))

    async def plan(self) -> None:
        """Put the next occurrence of each schedule, if it does not exist."""
        now = self._now()
        for tube, name, schedule in self._schedules:
            try:
                await self._put(tube, name, schedule, now, [schedule.after(now)])
            except QueueClosed:
                return
            except TubesError as error:
                log.warning("the next call of %r could not be put yet: %s", name, error)
            except Exception:  # A time zone of the user's own, for example.
                log.exception("the next call of %r could not be put", name)

    async def skips(self, task: AsyncTask, schedule: Schedule) -> Verdict | None:
        """Put the next occurrence, if this task is an occurrence and not a task of a program. None: it is to be called.

        It is skipped where a later one, which is in the tube now, was due before it began. An occurrence that has begun
        is tried again like any other task. One of a time that no calendar has is buried.
        """
        data: Any = task.data
        name, at = data["task"], data.get("at")
        if not isinstance(at, (int, float)):
            return None
        now = self._now()
        if not 0 <= at <= now / SECOND + MAX_SECONDS:  # No task waits longer.
            return Verdict("bury", f"ValueError: at={excerpt(at)} is not a time of an occurrence")
        moment = round(at * SECOND)
        late = latest(schedule, moment, now) if task.attempts == 1 else None
        moments = [schedule.after(max(now, moment))] if late is None else [late, schedule.after(max(now, late))]
        try:
            await self._put(task.tube, name, schedule, now, moments)
        except TubesError as error:  # It is put a little later, and none is left out.
            log.warning("the next call of %r could not be put yet: %s", name, error)
            return None
        if late is None:
            return None
        log.info("%r is not called for %s: a later call is due", name, _shown(moment))
        return Verdict("ack")

    async def _put(self, tube_name: str, name: str, schedule: Schedule, now: int, moments: list[int]) -> None:
        tube = await self._tube(tube_name)
        if "delay" not in tube.driver.options:
            raise tube.driver.lacks("delay")
        own: Any = {} if tube.driver.lane is None else {"utube": name}
        if "ttl" in tube.driver.options and "ttl" not in tube._port.shared.options:
            own["ttl"] = _KEPT
        items: list[object] = [
            Item(
                {"task": name, "args": [], "kwargs": {}, "at": moment / SECOND},  # pyright: ignore[reportUnknownArgumentType]
                key=f"{name}@{_shown(moment)}",
                key_ttl=(schedule.after(moment) - moment) / SECOND + _SLACK,
                delay=max(moment - now, 0) / SECOND,
                **own,
            )
            for moment in moments
        ]
        await tube.put_many(items)

    async def _tube(self, name: str) -> AsyncTube:
        return self._queue._task_tubes.get(name) or await self._queue._task_tube(name)

    def _now(self) -> int:
        return self._queue._connection.micros()


def _shown(moment: int) -> str:
    return datetime.fromtimestamp(moment / SECOND, UTC).isoformat()
