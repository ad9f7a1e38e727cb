"""Requests that wait: until they have a result, the client disconnects, or the service stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Final, TypeVar

from starlette.exceptions import HTTPException
from starlette.types import Receive

from tubes.aio import AsyncTask
from tubes.serve.namespaces import Namespace
from tubes.serve.problems import ClientDisconnected

Value = TypeVar("Value")
#: Maximum tasks per read, and bytes of data after which a reply gets no further tasks.
MAX_STEP: Final = 64
MAX_REPLY: Final = 2**23
#: Steps of the event loop within which a middleware reports a known disconnect: each one needs a few.
_STEPS: Final = 20


class Polls:
    """The waiting requests, at most `limit` at a time."""

    def __init__(self, limit: int) -> None:
        self._limit: Final = limit
        self._places = 0
        # By request: the task that waits until its client disconnects. Cancelling it ends the wait.
        self._watchers: Final[dict[asyncio.Task[object], asyncio.Task[object]]] = {}
        self._refused: Final[set[asyncio.Task[object]]] = set()
        #: Number of waiting requests that are endless replies.
        self.streams = 0
        self.is_closing = False

    def __len__(self) -> int:
        return len(self._watchers)

    def close(self) -> None:
        """End all waits, since the service stops."""
        self.is_closing = True
        for watcher in self._watchers.values():
            watcher.cancel()

    def refuse(self, request: asyncio.Task[object]) -> None:
        """End the wait of a request, if it waits, because its token has become invalid."""
        if request in self._watchers:
            self._refused.add(request)
            self._watchers[request].cancel()

    @contextmanager
    def reserve(self) -> Generator[None]:
        """Reserve a place for a request that may wait. Raise `HTTPException(503)` if no place is free."""
        if self._places >= self._limit:
            raise HTTPException(503, f"{self._limit} requests are waiting already")
        self._places += 1
        try:
            yield
        finally:
            self._places -= 1

    async def wait(
        self,
        receive: Receive,
        work: Coroutine[object, None, Value],
        undo: Callable[[Value], Awaitable[object]] | None = None,
        *,
        is_stream: bool = False,
    ) -> Value | None:
        """Return the result of `work`; None if the service stops first.

        Raise `ClientDisconnected` if the client disconnects first, and `HTTPException(401)` after `refuse`.

        `undo`: called with a result that came after the client disconnected or after `refuse`. None: such a result is
        kept, and returned after `refuse`. The body of the request must have been read.
        `is_stream`: count it as an endless reply.
        """
        loop = asyncio.get_running_loop()
        request = asyncio.current_task()
        assert request is not None
        running, watcher = loop.create_task(work), loop.create_task(_wait_for_disconnect(receive))
        self._watchers[request] = watcher
        self.streams += is_stream
        if self.is_closing:
            watcher.cancel()
        try:
            await asyncio.wait((running, watcher), return_when=asyncio.FIRST_COMPLETED)
            is_refused = request in self._refused
            if not is_refused and running.done() and (not watcher.done() or watcher.cancelled()):
                return running.result()
        except asyncio.CancelledError:
            await _cancel(running, undo)
            raise
        finally:
            del self._watchers[request]
            self.streams -= is_stream
            self._refused.discard(request)
            is_disconnected = watcher.done() and not watcher.cancelled()
            watcher.cancel()
        if is_disconnected or is_refused:
            await _cancel(running, undo)
            if is_refused:
                if undo is None and not running.cancelled():
                    return running.result()
                detail = "the token was revoked, has expired, or has other grants"
                raise HTTPException(401, detail, {"www-authenticate": "Bearer"})
            raise ClientDisconnected
        running.cancel()
        await asyncio.wait((running,))
        return None if running.cancelled() else running.result()

    async def take(
        self,
        receive: Receive,
        space: Namespace,
        names: list[str],
        limit: int,
        wait: float,
        ttr: float | None,
        order: str = "tubes",
    ) -> list[AsyncTask]:
        """Take up to `limit` tasks of these tubes, waiting up to `wait` seconds for the first.

        Raise `ClientDisconnected` if the client disconnects before the reply is sent: then no task is taken and no
        attempt is counted.
        """
        # Take ready tasks in steps, until none remain or the reply is long enough.
        tasks: list[AsyncTask] = []
        size = 0
        while len(tasks) < limit and size < MAX_REPLY:
            step = min(limit - len(tasks), MAX_STEP)
            batch = await take(space, names, step, 0, ttr, order)
            tasks += batch
            if len(batch) < step:
                break
            if limit > MAX_STEP:
                size += sum(len(task.data) for task in batch)
        if not tasks and wait and not self.is_closing:
            with space.hold():
                work = take(space, names, min(limit, MAX_STEP), wait, ttr, order)
                tasks = await self.wait(receive, work, space.give_back) or []
        if tasks:
            await asyncio.sleep(0)  # Let the event loop read from the connection.
            if await has_disconnected(receive):
                await space.give_back(tasks)
                raise ClientDisconnected
        return tasks


async def has_disconnected(receive: Receive) -> bool:
    """True if the client has disconnected, as far as the event loop knows."""
    if getattr(receive, "__module__", "").startswith("uvicorn."):
        # Run one step of the coroutine by hand: a task would cost several times as much.
        step = _wait_for_disconnect(receive)
        try:
            step.send(None)
        except StopIteration:
            return True
        step.close()
        return False
    # A middleware has replaced it, and may only allow to call it in a task.
    watcher = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        for _ in range(_STEPS):
            if watcher.done():
                break
            await asyncio.sleep(0)
        return watcher.done()
    finally:
        watcher.cancel()
        await asyncio.wait((watcher,))


async def take(
    space: Namespace, names: list[str], limit: int, wait: float, ttr: float | None, order: str
) -> list[AsyncTask]:
    if len(names) == 1:
        return await space.apply(names[0], lambda tube: tube.take_many(limit, wait, ttr=ttr), waits=wait > 0)
    tubes = [await space.tube(name) for name in names]
    if order == "tubes":
        return await space.queue.take_many(tubes, limit, wait, ttr=ttr)
    task = await space.queue.take_any(tubes, wait, ttr=ttr, order="pri")
    return [] if task is None else [task]


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(running: asyncio.Task[Value], undo: Callable[[Value], Awaitable[object]] | None) -> None:
    """Cancel a task; if it has a result already, undo it."""
    running.cancel()
    await asyncio.wait((running,))
    if not running.cancelled() and running.exception() is None and undo is not None:
        await undo(running.result())
