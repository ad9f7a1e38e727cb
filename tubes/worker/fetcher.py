"""Takes tasks for a route: never more than it has handlers free for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tubes.errors import QueueClosed, TubeNotFound, TubesError
from tubes.worker.lifetime import RETRY
from tubes.worker.logs import log
from tubes.worker.routes import Route, Target

if TYPE_CHECKING:
    from tubes.aio import AsyncQueue, AsyncTask, AsyncTube
    from tubes.worker.lifetime import Lifetime


class Fetcher:
    """A route during one run. `start`: called with each task that was taken."""

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
        self._taking: asyncio.Task[None] | None = None
        # How often in a row a take has failed; and how often some tubes were not there, while others were.
        self._failures = 0
        self._looks = 0
        self._tubes: dict[str, AsyncTube] = {}

    def begin(self, route: Route) -> None:
        """Take, from now on, from these tubes."""
        self.halt()
        self.route = route
        self._taking = asyncio.get_running_loop().create_task(self._run())

    def halt(self) -> None:
        """Take no more. A take that waits loses no task."""
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    async def _run(self) -> None:
        # Once it stops no rest is one, and in memory nothing else would ever have its turn.
        while not self._lifetime.is_stopping:
            await self._has_room.wait()
            await self.fill(None)

    async def fill(self, timeout: float | None) -> bool:
        """Start as many tasks as there are, and handlers free for; whether there was any. Rests after an error."""
        try:
            started = await self._fill(timeout)
        except TubesError as error:
            if isinstance(error, QueueClosed) and self._lifetime.has_ended():
                raise asyncio.CancelledError from error
            were_there = bool(self._tubes)
            self._tubes.clear()
            if isinstance(error, TubeNotFound) and timeout == 0:
                self._log_missing(self.route.tubes)
                return were_there  # Of several one is gone: look at the others.
            seconds = self._next_rest()
            if isinstance(error, TubeNotFound):
                self._log_missing(self.route.tubes, seconds)
            else:
                log.warning("no task could be taken from %s, retrying in %.1f s: %s", self._names(), seconds, error)
        except Exception:  # Nobody else would take.
            self._tubes.clear()
            seconds = self._next_rest()
            log.exception("no task could be taken from %s, retrying in %.1f s", self._names(), seconds)
        else:
            self._failures = 0
            return started
        await self._lifetime.rest(seconds)
        return timeout == 0  # Look again.

    def __str__(self) -> str:
        return f"{self._names()}: {self.route.name}, {self.concurrency} at a time"

    def _names(self) -> str:
        return _listed(self.route.tubes)

    def _log_missing(self, names: Sequence[str], seconds: float = 0) -> None:
        """Say that tubes are not there; in a burst, which looks at once again, only the first time."""
        self._looks += 1
        if seconds or self._looks == 1:
            again = f", retrying in {seconds:.1f} s" if seconds else ""
            log.warning("%s %s not exist%s", _listed(names), "does" if len(names) == 1 else "do", again)

    def _next_rest(self) -> float:
        self._failures += 1
        return RETRY.delay(self._failures)

    async def _fill(self, timeout: float | None) -> bool:
        if self._free <= 0:
            return False
        tubes = await self._find()
        if len(tubes) == len(self.route.tubes):
            self._looks = 0
        else:
            if timeout is None:
                timeout = RETRY.delay(self._looks + 1)
            self._log_missing([name for name in self.route.tubes if name not in self._tubes], timeout)
        if len(tubes) == 1:
            tasks = await tubes[0].take_many(self._free, timeout)
            for task in tasks:
                self._start(task)
            return bool(tasks)
        started = False
        # By preference, one by one: each begins at once, since the next take may fail.
        while self._free > 0 and (first := await self._queue.take_any(tubes, 0 if started else timeout)) is not None:
            self._start(first)
            started = True
        return started

    async def _find(self) -> list[AsyncTube]:
        """The tubes that are there."""
        missing: TubeNotFound | None = None
        for name in self.route.tubes:
            if name not in self._tubes:
                try:
                    # A tube of task functions is made, if it is the one that needs no name.
                    find = self._queue.tube if isinstance(self.route.target, Target) else self._queue._task_tube
                    self._tubes[name] = await find(name)
                except TubeNotFound as error:
                    missing = error
        if missing is not None and not self._tubes:
            raise missing
        return [self._tubes[name] for name in self.route.tubes if name in self._tubes]

    def _start(self, task: AsyncTask) -> None:
        self.occupy()
        self._start_task(task, self.route)

    def free(self) -> None:
        """Note that a handler is free again."""
        self._free += 1
        if self._free > 0:
            self._has_room.set()

    def occupy(self) -> None:
        """Note that a handler has a task; or has one again whose ack has failed, while others may have come."""
        self._free -= 1
        if self._free <= 0:
            self._has_room.clear()


def _listed(names: Sequence[str]) -> str:
    return f"{'tube' if len(names) == 1 else 'tubes'} {', '.join(map(repr, names))}"
