"""Puts the occurrences of schedules. Each is a task with a unique key that is delayed until its time.

Workers need no leader. Every worker puts the next occurrence of each of its schedules: when it starts, when it takes an
occurrence, and shortly after the time of each. Because of the key only the first of these puts has an effect. So the
next occurrence exists as long as any worker lives, and it is a single task, which one worker takes.
"""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tubes.backend.port import connection_of
from tubes.drivers.options import MAX_SECONDS, SECOND
from tubes.errors import QueueClosed, TubesError, excerpt
from tubes.values.batch import Item
from tubes.values.worker_info import MAX_LISTED_SCHEDULES, ScheduleInfo
from tubes.worker.logs import log
from tubes.worker.outcomes import Verdict
from tubes.worker.routes import Target
from tubes.worker.schedules import Schedule, latest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tubes.aio import AsyncQueue, AsyncTask
    from tubes.values.options import PutOptions
    from tubes.worker.routes import Route

#: Shortest and longest time between two puts of the next occurrences, in seconds.
_MIN_SLEEP: Final = 1.0
_MAX_SLEEP: Final = 30.0
#: Seconds for which the key of a finished occurrence is kept after the next one is due. The clocks of two processes
#: must not differ by more.
_SLACK: Final = 60
#: The ttl of an occurrence in seconds, unless the tube has one: how long it waits for a worker that has its function.
_TTL: Final = 7 * 86400.0
#: Options of an occurrence that its function does not replace.
_OF_OCCURRENCE: Final = frozenset({"key", "key_ttl", "on_duplicate", "delay", "at"})


class Scheduler:
    """Keeps the next occurrence of each schedule in its tube while the worker runs."""

    def __init__(self, queue: AsyncQueue) -> None:
        self._queue: Final = queue
        self._schedules: list[tuple[str, str, Schedule, PutOptions]] = []
        self._planner: asyncio.Task[None] | None = None
        #: The time of the next occurrence, by tube and name.
        self._next: Final[dict[tuple[str, str], int]] = {}
        #: The time of the last occurrence that this worker handled, and its result, by tube and name.
        self._last: Final[dict[tuple[str, str], tuple[float, str | None]]] = {}

    def follow(self, routes: Iterable[Route]) -> None:
        """Use the schedules of these routes from now on."""
        self._schedules = [
            (route.tubes[0], name, target.schedule, target.options)
            for each in routes
            for route in each.parts
            if not isinstance(route.target, Target)
            for name, target in route.target.items()
            if target.schedule is not None
        ]

    def begin(self) -> None:
        """Start to put the next occurrences."""
        self.end()
        if self._schedules:
            self._planner = asyncio.get_running_loop().create_task(self._run())

    def end(self) -> None:
        """Stop putting occurrences."""
        if self._planner is not None:
            self._planner.cancel()
            self._planner = None

    async def _run(self) -> None:
        while True:
            await self.plan()
            now = self._now()
            soonest = min(schedule.next_after(now) for _, _, schedule, _ in self._schedules)
            # The jitter spreads the workers; the one that takes the occurrence should put the next one first.
            left = (soonest - now) / SECOND + random.uniform(0.05, 0.25)
            await asyncio.sleep(min(max(left, _MIN_SLEEP), _MAX_SLEEP))

    async def plan(self) -> None:
        """Put the next occurrence of each schedule, if it does not exist."""
        now = self._now()
        for tube, name, schedule, options in self._schedules:
            try:
                moment = self._next[tube, name] = schedule.next_after(now)
                await self._put(tube, name, schedule, options, now, [moment])
            except QueueClosed:
                return
            except TubesError as error:
                log.warning("the next call of %r could not be put yet: %s", name, error)
            except Exception:  # A tzinfo of the user, for example, may raise anything.
                log.exception("the next call of %r could not be put", name)

    async def put_next_or_skip(self, task: AsyncTask, schedule: Schedule, options: PutOptions) -> Verdict | None:
        """Put the next occurrence, with the options of its function.

        Returns the verdict if this task must not be handled, else None.
        A task that a program put by itself is handled like any other. An occurrence is acked unhandled if a later one
        is already due when it is first taken; once attempted, it is retried like any other task. An occurrence whose
        time is out of range is buried.
        """
        data: Any = task.data
        name, at = data["task"], data.get("at")
        if not isinstance(at, (int, float)):
            return None
        now = self._now()
        if not 0 <= at <= now / SECOND + MAX_SECONDS:  # The longest possible delay.
            return Verdict("bury", f"ValueError: at={excerpt(at)} is not a time of an occurrence")
        moment = round(at * SECOND)
        newer = latest(schedule, moment, now) if task.attempts == 1 else None
        moments = (
            [schedule.next_after(max(now, moment))] if newer is None else [newer, schedule.next_after(max(now, newer))]
        )
        self._next[task.tube, name] = moments[-1]
        try:
            await self._put(task.tube, name, schedule, options, now, moments)
        except TubesError as error:  # The planner puts it a little later, so no occurrence is missed.
            log.warning("the next call of %r could not be put yet: %s", name, error)
            return None
        if newer is None:
            return None
        log.info("%r is not called for %s: a later call is due", name, _format_time(moment))
        return Verdict("ack")

    def time_of(self, task: AsyncTask) -> float:
        """Return the time for which an occurrence was planned; of another task, the time of its put."""
        data: Any = task.data
        at = data.get("at") if isinstance(data, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return at if isinstance(at, float) else task.created

    def note_end(self, task: AsyncTask, result: str | None) -> None:
        """Note how the task of a schedule has ended; None: unknown."""
        data: Any = task.data
        if not isinstance(data, dict):  # The handler has replaced it.
            return
        key, at = (task.tube, str(data.get("task"))), data.get("at")  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType, reportUnknownVariableType]
        earliest = self._last.get(key, (0.0, None))[0]
        if isinstance(at, (int, float)) and earliest <= at <= self._now() / SECOND + MAX_SECONDS:
            self._last[key] = at, result

    def describe(self) -> tuple[ScheduleInfo, ...]:
        """Return the planned schedules. May be called in any thread."""
        return tuple(
            ScheduleInfo(name, tube, str(schedule), moment / SECOND, *self._last.get((tube, name), (None, None)))
            for tube, name, schedule, _ in self._schedules[:MAX_LISTED_SCHEDULES]
            if (moment := self._next.get((tube, name))) is not None
        )

    async def _put(
        self, tube_name: str, name: str, schedule: Schedule, options: PutOptions, now: int, moments: list[int]
    ) -> None:
        tube = self._queue._task_tubes.get(tube_name) or await self._queue._task_tube(tube_name)
        if "delay" not in tube.driver.options:
            raise tube.driver.make_option_error("delay")
        own: Any = {} if tube.driver.lane is None else {"utube": name}
        if "ttl" in tube.driver.options and "ttl" not in tube.options:
            own["ttl"] = _TTL
        own |= {option: value for option, value in options.items() if option not in _OF_OCCURRENCE}
        items: list[object] = [
            Item(
                {"task": name, "args": [], "kwargs": {}, "at": moment / SECOND},  # pyright: ignore[reportUnknownArgumentType]
                key=f"{name}@{_format_time(moment)}",
                key_ttl=(schedule.next_after(moment) - moment) / SECOND + _SLACK,
                delay=max(moment - now, 0) / SECOND,
                **own,
            )
            for moment in moments
        ]
        await tube.put_many(items)

    def _now(self) -> int:
        return connection_of(self._queue).micros()


def _format_time(moment: int) -> str:
    return datetime.fromtimestamp(moment / SECOND, UTC).isoformat()
