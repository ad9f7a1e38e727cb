"""Acks of tasks whose handlers end in one turn of the event loop: on a server they go out in one call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tubes.aio import AsyncTask, AsyncTube


class Acks:
    """Gathers acks, tube by tube."""

    def __init__(self) -> None:
        self._gathered: Final[dict[AsyncTube, list[tuple[AsyncTask, asyncio.Future[bool]]]]] = {}
        self._senders: Final[set[asyncio.Task[None]]] = set()

    async def ack(self, task: AsyncTask) -> bool:
        """The work on a task is done; False: it is not ours any more. Raises what the backend raises."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        group = self._gathered.setdefault(task._tube, [])
        group.append((task, done))
        if len(group) == 1:
            sender = asyncio.get_running_loop().create_task(self._send(task._tube))
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        return await done

    async def _send(self, tube: AsyncTube) -> None:
        group = self._gathered.pop(tube)
        try:
            answers = await tube.ack_many([task for task, _ in group])
        except BaseException as error:
            for _, done in group:
                if not done.done():
                    done.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            if not isinstance(error, Exception):
                raise
        else:
            for task, done in group:
                if not done.done():
                    done.set_result(answers.get(task.id, False))
