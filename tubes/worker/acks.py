"""Sends the acks of handlers that end in the same turn of the event loop as one call to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tubes.aio import AsyncTube
    from tubes.worker.in_flight import InFlight
    from tubes.worker.outcomes import Outcome


class Acks:
    """Collects acks per tube.

    `end`: called with each task and its outcome; `fail`: called instead with the task and the error.
    """

    def __init__(
        self, end: Callable[[InFlight, Outcome], object], fail: Callable[[InFlight, BaseException], object]
    ) -> None:
        self._end: Final = end
        self._fail: Final = fail
        self._gathered: Final[dict[AsyncTube, list[InFlight]]] = {}
        self._senders: Final[set[asyncio.Task[None]]] = set()

    def add(self, entry: InFlight) -> None:
        """Ack a finished task together with the others of this turn of the event loop."""
        tube = entry.task._tube
        group = self._gathered.get(tube)
        if group is not None:
            group.append(entry)
            return
        self._gathered[tube] = [entry]
        sender = asyncio.get_running_loop().create_task(self._send(tube))
        self._senders.add(sender)
        sender.add_done_callback(self._senders.discard)

    async def _send(self, tube: AsyncTube) -> None:
        group = self._gathered.pop(tube)
        try:
            acked = await tube.ack_many([entry.task for entry in group])
        except BaseException as error:
            for entry in group:
                self._fail(entry, error)
            if not isinstance(error, Exception):
                raise
        else:
            for entry in group:
                self._end(entry, "acked" if acked.get(entry.task.id) else "lost")
