"""Changes of tasks, told to all who listen. A process listens to a tube once, however many clients there are."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from tubes.aio import AsyncTask, AsyncTube
from tubes.values.lease import Lease

#: A change: its name, and the task after it. None: some were lost, since the client reads too slowly.
Change: TypeAlias = tuple[str, AsyncTask[Any]] | None
#: Changes that wait for one client.
_WAITING: Final = 1000
#: Seconds after which a tube is looked at again.
_LOOK: Final = 0.9


class Listeners:
    """Who listens to which tubes of one namespace."""

    def __init__(self) -> None:
        self._of_tubes: Final[dict[str, set[asyncio.Queue[Change]]]] = {}
        #: When each of these tubes was last looked at.
        self._looked: Final[dict[str, float]] = {}

    @contextmanager
    def heard(self, names: list[str]) -> Generator[asyncio.Queue[Change]]:
        """The changes of tubes of these names, for a block: of each one from when it is `told` of."""
        changes: asyncio.Queue[Change] = asyncio.Queue(_WAITING + 1)
        for name in names:
            self._of_tubes.setdefault(name, set()).add(changes)
        try:
            yield changes
        finally:
            for name in set(names):
                self._of_tubes[name].discard(changes)
                if not self._of_tubes[name]:
                    del self._of_tubes[name]
                    self._looked.pop(name, None)

    async def told(self, tube: AsyncTube) -> None:
        """See to it that who listens to this name is told of the changes of this tube; nobody is, if nobody listens."""
        listeners = self._of_tubes.get(tube.name)
        await tube.on_task_change(None if listeners is None else _teller(listeners))

    def is_due(self, name: str) -> bool:
        """Whether somebody should look if another process has made this tube anew: once a second, whoever listens."""
        now = time.monotonic()
        if now - self._looked.get(name, -math.inf) < _LOOK:
            return False
        self._looked[name] = now
        return True

    def __contains__(self, name: str) -> bool:
        return name in self._of_tubes


class Ends:
    """Tells streams of the leases that ended in this process."""

    def __init__(self) -> None:
        self._streams: Final[dict[str, set[asyncio.Queue[Lease]]]] = {}

    @contextmanager
    def heard(self, namespace: str) -> Generator[asyncio.Queue[Lease]]:
        """The leases of a namespace that end, for a block."""
        ended: asyncio.Queue[Lease] = asyncio.Queue()
        streams = self._streams.setdefault(namespace, set())
        streams.add(ended)
        try:
            yield ended
        finally:
            streams.discard(ended)
            if not streams:
                self._streams.pop(namespace, None)

    def tell(self, namespace: str, lease: Lease) -> None:
        """This lease has ended, or somebody tried that."""
        for ended in self._streams.get(namespace, ()):
            ended.put_nowait(lease)


def _teller(listeners: set[asyncio.Queue[Change]]) -> Any:
    def tell(task: AsyncTask[Any], event: str) -> None:
        for changes in listeners:
            if changes.qsize() < _WAITING:
                changes.put_nowait((event, task))
            elif not changes.full():
                changes.put_nowait(None)

    return tell
