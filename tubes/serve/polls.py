"""Requests that wait: for as long as the client is there, and the service is not at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from starlette.exceptions import HTTPException
from starlette.types import Receive

from tubes.aio import AsyncTask
from tubes.serve.namespaces import Namespace
from tubes.serve.problems import ClientGone

Value = TypeVar("Value")
#: Tasks that are read at once, and bytes of data after which a reply has no more tasks.
STEP: Final = 64
REPLY: Final = 2**23


class Polls:
    """The requests that wait, at most `most` at a time."""

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._places = 0
        # By request: the task that watches for its client to leave. Cancelling it ends the wait.
        self._waiting: Final[dict[asyncio.Task[Any], asyncio.Task[Any]]] = {}
        self._refused: Final[set[asyncio.Task[Any]]] = set()
        self.closing = False

    def __len__(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        """The service ends: nobody waits any more."""
        self.closing = True
        for gone in self._waiting.values():
            gone.cancel()

    def refuse(self, request: asyncio.Task[Any]) -> None:
        """End the wait of a request, if it waits: its token is not valid any more."""
        if request in self._waiting:
            self._refused.add(request)
            self._waiting[request].cancel()

    @contextmanager
    def place(self) -> Generator[None]:
        """Reserve a place for a request that may wait. Raises `HTTPException(503)` if none is free."""
        if self._places >= self._most:
            raise HTTPException(503, f"{self._most} requests wait already")
        self._places += 1
        try:
            yield
        finally:
            self._places -= 1

    async def wait(
        self,
        receive: Receive,
        work: Coroutine[Any, Any, Value],
        undo: Callable[[Value], Awaitable[object]] | None = None,
    ) -> Value | None:
        """The result of `work`; None: the service ends. Raises `ClientGone` if the client leaves.

        Raises `HTTPException(401)` after `refuse`.

        `undo`: undoes a result that came after the client left or `refuse`; None: the result stays, and is returned
        after `refuse`. The body of the request must have been read.
        """
        loop = asyncio.get_running_loop()
        request = asyncio.current_task()
        assert request is not None
        doing, gone = loop.create_task(work), loop.create_task(_gone(receive))
        self._waiting[request] = gone
        if self.closing:
            gone.cancel()
        try:
            await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
            is_refused = request in self._refused
            if not is_refused and doing.done() and (not gone.done() or gone.cancelled()):
                return doing.result()
        except asyncio.CancelledError:
            await _take_back(doing, undo)
            raise
        finally:
            del self._waiting[request]
            self._refused.discard(request)
            is_gone = gone.done() and not gone.cancelled()
            gone.cancel()
        if is_gone or is_refused:
            await _take_back(doing, undo)
            if is_refused:
                if undo is None and not doing.cancelled():
                    return doing.result()
                why = "the token was revoked, has expired, or has other grants"
                raise HTTPException(401, why, {"www-authenticate": "Bearer"})
            raise ClientGone
        doing.cancel()
        await asyncio.wait((doing,))
        return None if doing.cancelled() else doing.result()

    async def take(
        self,
        receive: Receive,
        space: Namespace,
        names: list[str],
        limit: int,
        wait: float,
        ttr: float | None,
        order: str = "tubes",
    ) -> list[AsyncTask[Any]]:
        """Take up to `limit` tasks of these tubes, as soon as there is one, within `wait` seconds.

        Raises `ClientGone` if the client leaves before they can be sent: then nothing is taken, and no attempt is
        counted.
        """
        tasks = await _bounded(space, names, limit, ttr, order)
        if not tasks and wait and not self.closing:
            with space.used():
                work = take(space, names, min(limit, STEP), wait, ttr, order)
                tasks = await self.wait(receive, work, space.give_back) or []
        if tasks:
            await asyncio.sleep(0)  # The loop reads what has arrived.
            if has_left(receive):
                await space.give_back(tasks)
                raise ClientGone
        return tasks


def has_left(receive: Receive) -> bool:
    """Whether the client has left, as far as the loop has read."""
    # One step of what would wait for it: a task would be several times as much work.
    waiting = _gone(receive)
    try:
        waiting.send(None)
    except StopIteration:
        return True
    waiting.close()
    return False


async def _bounded(
    space: Namespace, names: list[str], limit: int, ttr: float | None, order: str
) -> list[AsyncTask[Any]]:
    """Take the tasks that are there, in steps, until a reply would be too long."""
    tasks: list[AsyncTask[Any]] = []
    size = 0
    while len(tasks) < limit and size < REPLY:
        step = min(limit - len(tasks), STEP)
        found = await take(space, names, step, 0, ttr, order)
        tasks += found
        if len(found) < step:
            break
        if limit > STEP:
            size += sum(len(task.data) for task in found)
    return tasks


async def take(
    space: Namespace, names: list[str], limit: int, wait: float, ttr: float | None, order: str
) -> list[AsyncTask[Any]]:
    """Take tasks of one tube, or of several."""
    if len(names) == 1:
        return await space.on(names[0], lambda tube: tube.take_many(limit, wait, ttr=ttr), waits=wait > 0)
    tubes = [await space.on(name, _same) for name in names]
    if order == "tubes":
        return await space.queue.take_many(tubes, limit, wait, ttr=ttr)
    task = await space.queue.take_any(tubes, wait, ttr=ttr, order="pri")
    return [] if task is None else [task]


async def _same(tube: Value) -> Value:
    return tube


async def _gone(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _take_back(doing: asyncio.Task[Value], undo: Callable[[Value], Awaitable[object]] | None) -> None:
    """End this, and undo what it has done."""
    doing.cancel()
    await asyncio.wait((doing,))
    if not doing.cancelled() and doing.exception() is None and undo is not None:
        await undo(doing.result())
