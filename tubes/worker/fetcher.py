"""Takes tasks for a route: never more than it has handlers free for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
        while True:
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
                return were_there  # Of several one is gone: look at the others.
            seconds = self._next_rest()
            log.warning("%s, again in %.1f s: take from %s", error, seconds, ", ".join(self.route.tubes))
        except Exception:  # Nobody else would take.
            self._tubes.clear()
            seconds = self._next_rest()
            log.exception("again in %.1f s: take from %s", seconds, ", ".join(self.route.tubes))
        else:
            self._failures = 0
            return started
        await self._lifetime.rest(seconds)
        return timeout == 0  # Look again.

    def _next_rest(self) -> float:
        self._failures += 1
        return RETRY.delay(self._failures)

    async def _fill(self, timeout: float | None) -> bool:
        if not self._free:
            return False
        tubes = await self._find()
        if len(tubes) == len(self.route.tubes):
            self._looks = 0
        elif timeout is None:
            self._looks += 1
            timeout = RETRY.delay(self._looks)
        if len(tubes) == 1:
            tasks = await tubes[0].take_many(self._free, timeout)
            for task in tasks:
                self._start(task)
            return bool(tasks)
        started = False
        # By preference, one by one: each begins at once, since the next take may fail.
        while self._free and (first := await self._queue.take_any(tubes, 0 if started else timeout)) is not None:
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
                    log.warning("%s", error)
                    missing = error
        if missing is not None and not self._tubes:
            raise missing
        return [self._tubes[name] for name in self.route.tubes if name in self._tubes]

    def _start(self, task: AsyncTask) -> None:
        self._free -= 1
        if not self._free:
            self._has_room.clear()
        self._start_task(task, self.route)

    def free(self) -> None:
        """Note that a handler is free again."""
        self._free += 1
        self._has_room.set()
