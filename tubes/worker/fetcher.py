"""Takes tasks for a post: never more than it has handlers free for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from tubes.errors import QueueClosed, TubeNotFound, TubesError
from tubes.worker.in_flight import Flight
from tubes.worker.logs import log
from tubes.worker.retry import RETRY

if TYPE_CHECKING:
    from tubes.aio import AsyncTube
    from tubes.worker.routes import Post
    from tubes.worker.run import Crew


class Taker:
    """A post during one run."""

    def __init__(self, crew: Crew, post: Post, concurrency: int) -> None:
        self.post = post
        self._crew: Final = crew
        self._free = concurrency
        self._has_room: Final = asyncio.Event()
        self._has_room.set()
        self._taking: asyncio.Task[None] | None = None
        # How often a take has failed in a row.
        self._failures = 0
        # How often in a row some tubes were not there, while others were.
        self._looks = 0
        self._tubes: dict[str, AsyncTube] = {}

    def begin(self, post: Post) -> None:
        """Take, from now on, from these tubes."""
        self.halt()
        self.post = post
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
        """Start as many tasks as there are, and handlers free for; whether there was any. Errors are rested for."""
        started = False
        try:
            started = await self._fill(timeout)
            self._failures = 0
        except TubesError as error:
            if isinstance(error, QueueClosed) and self._crew.has_ended():
                raise asyncio.CancelledError from error
            were_there = bool(self._tubes)
            self._tubes.clear()
            if isinstance(error, TubeNotFound) and timeout == 0:
                return were_there  # Of several one is gone: look at the others.
            self._failures += 1
            span = RETRY.delay(self._failures)
            log.warning("%s, again in %.1f s: take from %s", error, span, ", ".join(self.post.tubes))
            await self._crew.rest(span)
            return timeout == 0  # Look again.
        except Exception:  # Nobody else would take.
            self._tubes.clear()
            self._failures += 1
            span = RETRY.delay(self._failures)
            log.exception("again in %.1f s: take from %s", span, ", ".join(self.post.tubes))
            await self._crew.rest(span)
            return timeout == 0
        return started

    async def _fill(self, timeout: float | None) -> bool:
        if not self._free:
            return False
        tubes = await self._find()
        if len(tubes) == len(self.post.tubes):
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
        while self._free and (one := await self._crew.queue.take_any(tubes, 0 if started else timeout)) is not None:
            self._start(one)
            started = True
        return started

    async def _find(self) -> list[AsyncTube]:
        """The tubes that are there."""
        missing: TubeNotFound | None = None
        for name in self.post.tubes:
            if name not in self._tubes:
                try:
                    self._tubes[name] = await self._crew.queue.tube(name)
                except TubeNotFound as error:
                    log.warning("%s", error)
                    missing = error
        if missing is not None and not self._tubes:
            raise missing
        return [self._tubes[name] for name in self.post.tubes if name in self._tubes]

    def _start(self, task: Any) -> None:
        self._free -= 1
        if not self._free:
            self._has_room.clear()
        self._crew.start(Flight(self, task))

    def free(self) -> None:
        """A handler is free again."""
        self._free += 1
        self._has_room.set()
