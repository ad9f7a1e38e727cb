"""Takes tasks for a route, never more than it has free handlers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tubes.errors import QueueClosed, TubeNotFound, TubesError
from tubes.worker.lifetime import RETRY
from tubes.worker.logs import log
from tubes.worker.routes import Route

if TYPE_CHECKING:
    from tubes.aio import AsyncQueue, AsyncTask, AsyncTube
    from tubes.worker.lifetime import Lifetime


class Fetcher:
    """Takes the tasks of one route during one run. `start`: called with each task."""

    def __init__(
        self,
        route: Route,
        concurrency: int,
        queue: AsyncQueue,
        lifetime: Lifetime,
        start: Callable[[AsyncTask, Route], None],
    ) -> None:
        self.route = route
        self._queue: Final = queue
        self._lifetime: Final = lifetime
        self._start_task: Final = start
        self.concurrency: Final = concurrency
        self._free = concurrency
        self._has_room: Final = asyncio.Event()
        self._has_room.set()
        self._loop_task: asyncio.Task[None] | None = None
        # Consecutive failed takes; consecutive warnings about missing tubes.
        self._failures = 0
        self._missing_count = 0
        self._tubes: dict[str, AsyncTube] = {}
        # The monotonic time at which missing tubes are looked up again, while others exist.
        self._looks_at = 0.0
        # The number of the last take from several tubes.
        self._turn = 0

    def begin(self, route: Route) -> None:
        """Start to take from the tubes of this route."""
        self.halt()
        self.route = route
        self._loop_task = asyncio.get_running_loop().create_task(self._run())

    def halt(self) -> None:
        """Stop taking. Cancelling a waiting take does not lose a task."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            self._loop_task = None

    async def _run(self) -> None:
        # Check first: after a stop `Lifetime.sleep` returns at once, and in memory this loop would never yield.
        while not self._lifetime.is_stopping:
            await self._has_room.wait()
            await self.fill(None)

    async def fill(self, timeout: float | None) -> bool:
        """Start tasks until no task or no free handler is left. Sleeps after an error.

        Returns True if it started a task, or if another attempt may find one.
        """
        try:
            started = await self._fill(timeout)
        except TubesError as error:
            if isinstance(error, QueueClosed) and self._lifetime.has_ended():
                raise asyncio.CancelledError from error
            had_tubes = bool(self._tubes)
            self._tubes.clear()
            if isinstance(error, TubeNotFound) and timeout == 0:
                self._log_missing(self.route.tubes)
                return had_tubes  # One of several tubes was dropped: try the others.
            seconds = self._next_delay()
            if isinstance(error, TubeNotFound):
                self._log_missing(self.route.tubes, seconds)
            else:
                log.warning(
                    "no task could be taken from %s, retrying in %.1f s: %s", self._tube_names(), seconds, error
                )
        except Exception:  # This is the only loop that takes for the route: it must survive.
            self._tubes.clear()
            seconds = self._next_delay()
            log.exception("no task could be taken from %s, retrying in %.1f s", self._tube_names(), seconds)
        else:
            self._failures = 0
            return started
        await self._lifetime.sleep(seconds)
        return timeout == 0  # In a burst, try once more.

    def __str__(self) -> str:
        return f"{self._tube_names()}: {self.route.name}, {self.concurrency} at a time"

    def _tube_names(self) -> str:
        return _join_names(self.route.tubes)

    def _log_missing(self, names: Sequence[str], seconds: float = 0) -> None:
        """Log missing tubes; in a burst, which retries at once, only the first time."""
        self._missing_count += 1
        if seconds or self._missing_count == 1:
            retry_note = f", retrying in {seconds:.1f} s" if seconds else ""
            log.warning("%s %s not exist%s", _join_names(names), "does" if len(names) == 1 else "do", retry_note)

    def _next_delay(self) -> float:
        self._failures += 1
        return RETRY.delay(self._failures)

    async def _fill(self, timeout: float | None) -> bool:
        if self._free <= 0:
            return False
        tubes = await self._find(is_burst=timeout == 0)
        if len(tubes) < len(self.route.tubes) and timeout is None:
            timeout = max(self._looks_at - time.monotonic(), 0.1)
        if len(tubes) == 1:
            tasks = await tubes[0].take_many(self._free, timeout)
            for task in tasks:
                self._start(task)
            return bool(tasks)
        started = False
        # Take one by one in order of preference, and start each at once: the next take may fail.
        while self._free > 0:
            self._turn += 1
            tubes = [self._tubes[name] for name in self.route.tubes_of_turn(self._turn) if name in self._tubes]
            first = await self._queue.take_any(tubes, 0 if started else timeout)
            if first is None:
                break
            self._start(first)
            started = True
        return started

    async def _find(self, *, is_burst: bool) -> list[AsyncTube]:
        """Return the tubes that exist. Raises `TubeNotFound` if none does.

        While some exist, the missing ones are looked up with growing intervals, and in a burst each time.
        """
        names = [name for name in self.route.tubes if name not in self._tubes]
        if self._tubes and not is_burst and time.monotonic() < self._looks_at:
            names.clear()
        missing: list[str] = []
        for name in names:
            try:
                # The default tubes of task functions and schedules are created if they do not exist.
                find = self._queue._task_tube if self.route.creates(name) else self._queue._find_tube
                self._tubes[name] = await find(name)
            except TubeNotFound:
                missing.append(name)
        if missing and not self._tubes:
            raise TubeNotFound(name=missing[0])
        if missing:
            delay = 0.0 if is_burst else RETRY.delay(self._missing_count + 1)
            self._looks_at = time.monotonic() + delay
            self._log_missing(missing, delay)
        elif names:
            self._missing_count = 0
        return [self._tubes[name] for name in self.route.tubes if name in self._tubes]

    def _start(self, task: AsyncTask) -> None:
        self.occupy()
        self._start_task(task, self.route)

    def free(self) -> None:
        self._free += 1
        if self._free > 0:
            self._has_room.set()

    def occupy(self) -> None:
        """Mark one handler as busy.

        When a failed ack makes a freed handler busy again, the count of free handlers may fall below 0.
        """
        self._free -= 1
        if self._free <= 0:
            self._has_room.clear()


def _join_names(names: Sequence[str]) -> str:
    return f"{'tube' if len(names) == 1 else 'tubes'} {', '.join(map(repr, names))}"
