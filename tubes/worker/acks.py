"""Acks of tasks whose handlers end in one turn of the event loop: on a server they go out in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tubes.aio import AsyncTube
    from tubes.worker.in_flight import InFlight
    from tubes.worker.outcomes import Outcome


class Acks:
    """Gathers acks, tube by tube. `end`: called with each task and its outcome; `fail`: with one and the error."""

    def __init__(
        self, end: Callable[[InFlight, Outcome], object], fail: Callable[[InFlight, BaseException], object]
    ) -> None:
        self._end: Final = end
        self._fail: Final = fail
        self._gathered: Final[dict[AsyncTube, list[InFlight]]] = {}
        self._senders: Final[set[asyncio.Task[None]]] = set()

    def add(self, one: InFlight) -> None:
        """The work on this task is done: ack it with the others of this turn."""
        tube = one.task._tube
        group = self._gathered.get(tube)
        if group is not None:
            group.append(one)
            return
        self._gathered[tube] = [one]
        sender = asyncio.get_running_loop().create_task(self._send(tube))
        self._senders.add(sender)
        sender.add_done_callback(self._senders.discard)

    async def _send(self, tube: AsyncTube) -> None:
        group = self._gathered.pop(tube)
        try:
            acked = await tube.ack_many([one.task for one in group])
        except BaseException as error:
            for one in group:
                self._fail(one, error)
            if not isinstance(error, Exception):
                raise
        else:
            for one in group:
                self._end(one, "acked" if acked.get(one.task.id) else "lost")
