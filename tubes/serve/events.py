"""Send changes of tasks to subscribed clients. A process subscribes to a tube once, for all its clients."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from tubes.aio import AsyncTask, AsyncTube
from tubes.values.lease import Lease

#: A change: its name, and the task after it. None: some changes were lost because the client reads too slowly.
Change: TypeAlias = tuple[str, AsyncTask] | None
#: Maximum changes that wait for one client.
_MAX_PENDING: Final = 1000
#: Seconds between two checks of whether a tube was created again.
_CHECK_INTERVAL: Final = 0.9


class Listeners:
    """The subscriptions of clients to tubes of one namespace."""

    def __init__(self) -> None:
        self._queues: Final[dict[str, set[asyncio.Queue[Change]]]] = {}
        #: Time of the last check of each tube.
        self._checked_at: Final[dict[str, float]] = {}

    @contextmanager
    def subscribe(self, names: list[str]) -> Generator[asyncio.Queue[Change]]:
        """Yield a queue of the changes of these tubes. A tube's changes arrive once `watch` was called for it."""
        changes: asyncio.Queue[Change] = asyncio.Queue(_MAX_PENDING + 1)
        for name in names:
            self._queues.setdefault(name, set()).add(changes)
        try:
            yield changes
        finally:
            for name in set(names):
                self._queues[name].discard(changes)
                if not self._queues[name]:
                    del self._queues[name]
                    self._checked_at.pop(name, None)

    async def watch(self, tube: AsyncTube) -> None:
        """Send the changes of this tube to the subscribers of its name; unsubscribe if it has none."""
        listeners = self._queues.get(tube.name)
        await tube.on_task_change(None if listeners is None else _make_callback(listeners))

    def should_check(self, name: str) -> bool:
        """True once a second per tube: then check whether another process has dropped it and created it again."""
        now = time.monotonic()
        if now - self._checked_at.get(name, -math.inf) < _CHECK_INTERVAL:
            return False
        self._checked_at[name] = now
        return True

    def __contains__(self, name: str) -> bool:
        return name in self._queues


class EndedLeases:
    """Notify streams of leases that ended in this process."""

    def __init__(self) -> None:
        self._streams: Final[dict[str, set[asyncio.Queue[Lease]]]] = {}

    @contextmanager
    def subscribe(self, namespace: str) -> Generator[asyncio.Queue[Lease]]:
        """Yield a queue of the leases of a namespace that end."""
        ended: asyncio.Queue[Lease] = asyncio.Queue()
        streams = self._streams.setdefault(namespace, set())
        streams.add(ended)
        try:
            yield ended
        finally:
            streams.discard(ended)
            if not streams:
                self._streams.pop(namespace, None)

    def publish(self, namespace: str, lease: Lease) -> None:
        """Report a lease that has ended, or that a client tried to end."""
        for ended in self._streams.get(namespace, ()):
            ended.put_nowait(lease)


def _make_callback(listeners: set[asyncio.Queue[Change]]) -> Any:
    def publish(task: AsyncTask, event: str) -> None:
        for changes in listeners:
            if changes.qsize() < _MAX_PENDING:
                changes.put_nowait((event, task))
            elif not changes.full():
                changes.put_nowait(None)

    return publish
