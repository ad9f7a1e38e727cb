"""Changes of tasks, told to all who listen. A process listens to a tube once, however many clients there are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeAlias

from tubes.aio import AsyncTask
from tubes.errors import TubesError
from tubes.serve.namespaces import Namespace
from tubes.values.lease import Lease

#: A change: its name, and the task after it. None: some were lost, since the client reads too slowly.
Change: TypeAlias = tuple[str, AsyncTask[Any]] | None
#: Changes that wait for one client.
_WAITING: Final = 1000


class Events:
    """Who listens to which tubes of which namespaces."""

    def __init__(self) -> None:
        self._listeners: Final[dict[tuple[str, str], set[asyncio.Queue[Change]]]] = {}

    @asynccontextmanager
    async def heard(self, space: Namespace, names: Iterable[str]) -> AsyncGenerator[asyncio.Queue[Change]]:
        """The changes of these tubes from now on, for a block. Raises `TubeNotFound`."""
        changes: asyncio.Queue[Change] = asyncio.Queue(_WAITING + 1)
        mine: list[str] = []
        try:
            for name in names:
                mine.append(name)
                listeners = self._listeners.setdefault((space.name, name), set())
                listeners.add(changes)
                # Again for a tube that was dropped and made anew.
                await space.on(name, lambda tube, to=listeners: tube.on_task_change(_teller(to)))  # type: ignore[misc]
            yield changes
        finally:
            for name in mine:
                await self._leave(space, name, changes)

    async def _leave(self, space: Namespace, name: str, changes: asyncio.Queue[Change]) -> None:
        listeners = self._listeners[space.name, name]
        listeners.discard(changes)
        if not listeners:
            del self._listeners[space.name, name]
            with suppress(TubesError):
                await space.on(name, lambda tube: tube.on_task_change(None))


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
