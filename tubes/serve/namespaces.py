"""The namespaces of a service: a queue for each, of one session that all processes of the service share."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from starlette.exceptions import HTTPException

from tubes.aio import AsyncQueue, AsyncTask, AsyncTube
from tubes.drivers.driver import check_namespace, check_tube_name
from tubes.errors import ConnectionLost, TubeNotFound, TubesError
from tubes.serve.events import Listeners
from tubes.values.codecs import RawCodec
from tubes.values.overview import Overview

Value = TypeVar("Value")
#: The session of the takes of a service. In each namespace it is another one.
SESSION: Final = "6f0e6c52-9f60-4a3c-9d3e-3c1f7a2d5b84"
#: The name that stands in a path for the tubes that are in no namespace.
NONE: Final = "_"
#: Seconds for which a server may be away before clients hear of it.
PATIENCE: Final = 3.0
#: The tube for which a ping asks.
_PINGED: Final = "tubes:ping"
_RAW: Final = RawCodec()
#: Tubes that a namespace keeps open.
_TUBES: Final = 10_000


async def in_time(queue: AsyncQueue, work: Awaitable[Value]) -> Value:
    """Wait for what a backend does. Raises `ConnectionLost` if a server has not replied for some seconds.

    The client tries again: programs that use the server themselves have more patience.
    """
    if not _is_server(queue):
        return await work
    patience = asyncio.timeout(PATIENCE)
    try:
        async with patience:
            return await work
    except TimeoutError:
        if not patience.expired():  # A CallTimeout is one, too.
            raise
        connection: Any = queue._connection
        raise ConnectionLost(url=connection.url, why=f"no reply within {PATIENCE:g} s") from None


def _is_server(queue: AsyncQueue) -> bool:
    connection: Any = queue._connection
    return hasattr(connection.store, "ask")


class Namespace:
    """The tubes of one namespace. `name`: as in paths, where `_` is for the tubes that are in none."""

    def __init__(self, name: str, queue: AsyncQueue) -> None:
        self.name: Final = name
        self.queue: Final = queue
        #: Whether the store is in this process, so that nothing can be away.
        self._is_here: Final = not _is_server(queue)
        #: How many requests use it now.
        self.users = 0
        self.listeners: Final = Listeners()
        self._tubes: Final[OrderedDict[str, AsyncTube]] = OrderedDict()

    @contextmanager
    def used(self) -> Generator[Namespace]:
        """Keep it open for a block."""
        self.users += 1
        try:
            yield self
        finally:
            self.users -= 1

    def session(self, ttl: float) -> AsyncQueue:
        """Open a session that ends within `ttl` seconds if this process is killed."""
        connection: Any = self.queue._connection
        return AsyncQueue(connection.sibling(None, None, ttl))

    async def overview(self, patterns: Collection[str], *, ages: bool) -> dict[str, Overview]:
        """The tubes whose names match. Exact names cost as much as they return."""
        connection: Any = self.queue._connection
        seen = connection.overview(ages, patterns)
        found: dict[str, Overview] = seen if self._is_here else await seen
        return found

    @property
    def has_tubes(self) -> bool:
        """Whether a tube of it has been used."""
        return bool(self._tubes)

    async def tube(self, name: str) -> AsyncTube:
        """The tube of this name. Raises `TubeNotFound`."""
        tube = self._tubes.get(name)
        if tube is None:
            tube = self._tubes[check_tube_name(name)] = _raw(await self.queue.tube(name))
            if len(self._tubes) > _TUBES:
                self._tubes.popitem(last=False)
            if name in self.listeners:  # Perhaps it was dropped and made anew.
                await self.listeners.told(tube)
        return tube

    async def on(self, name: str, act: Callable[[AsyncTube], Awaitable[Value]], *, waits: bool = False) -> Value:
        """Do this with the tube of this name: again, if the one that was known is dropped, and there is a new one.

        Raises `ConnectionLost` as soon as a server has not replied for some seconds, unless this `waits` for something.
        """
        work = self._on(name, act)
        return await (work if waits or self._is_here else in_time(self.queue, work))

    async def _on(self, name: str, act: Callable[[AsyncTube], Awaitable[Value]]) -> Value:
        is_known = name in self._tubes
        try:
            return await act(await self.tube(name))
        except TubeNotFound:
            self.forget(name)
            if not is_known:
                raise
        return await act(await self.tube(name))

    def forget(self, name: str) -> None:
        """Open the tube anew when it is next asked for."""
        self._tubes.pop(name, None)

    async def give_back(self, tasks: list[AsyncTask[Any]]) -> None:
        """Make tasks ready again that nobody got: the attempt does not count."""
        for task in tasks:
            with suppress(TubesError):  # Its time to run ends the take as well.
                await task._tube._decline(task, 0)


def _raw(tube: AsyncTube) -> AsyncTube:
    """A tube whose data is bytes here, whatever the codec is by which other programs read them."""
    port: Any = tube._port
    # That of a store in a folder may be in another one.
    port.codec = getattr(port, "_port", port).codec = _RAW
    return tube


def is_held(tubes: dict[str, Overview]) -> bool:
    """Whether a task of these tubes is taken."""
    return any(tube.statistics.tasks["taken"] for tube in tubes.values())


class Namespaces:
    """The namespaces that are open, `most` of them at a time."""

    def __init__(self, queue: AsyncQueue, most: int) -> None:
        #: What all of them are opened from.
        self.root: Final = queue
        self._most: Final = most
        self._open: Final[OrderedDict[str, Namespace]] = OrderedDict()
        #: Those that are being opened.
        self._opening: Final[dict[str, asyncio.Future[Namespace]]] = {}

    async def get(self, name: str) -> Namespace:
        """The namespace of this name; `_`: of the tubes that are in none."""
        space = self._open.get(name)
        if space is not None:
            self._open.move_to_end(name)
            return space
        opening = self._opening.get(check_namespace(name))
        if opening is None:
            opening = self._opening[name] = asyncio.ensure_future(in_time(self.root, self._join(name)))
            opening.add_done_callback(lambda done: (self._opening.pop(name), done.exception()))
        # One of those who wait may leave.
        return await asyncio.shield(opening)

    async def _join(self, name: str) -> Namespace:
        await self._make_room()
        queue = await self.root.namespace("" if name == NONE else name)
        try:
            await queue.identify(SESSION, create=True)
        except BaseException:
            await queue.close()
            raise
        space = self._open[name] = Namespace(name, queue)
        return space

    async def _make_room(self) -> None:
        """Close the namespace that was used longest ago, of those that nobody uses and where no task is taken."""
        if len(self._open) + len(self._opening) <= self._most:
            return
        for name, space in list(self._open.items()):
            # Its session would end, and with it the takes of clients.
            if space.users:
                continue
            tubes = await space.queue.overview()
            if is_held(tubes):
                continue
            # Nobody has used it, or closed it for want of room, meanwhile.
            if not space.users and self._open.pop(name, None) is not None:
                # A session outlives the process for the next one, but where nothing is it would only take memory.
                await (space.queue.detach() if tubes else space.queue.close())
                return
        raise HTTPException(503, f"{self._most} namespaces are in use")

    async def join_held(self) -> None:
        """Open the namespaces where tasks are taken: their sessions may be those of a process that has ended."""
        with suppress(TubesError, HTTPException):  # Clients get the same, and whoever looks after the service.
            for name, tubes in (await self.overview()).items():
                if is_held(tubes):
                    await self.get(name)

    async def names(self) -> list[str]:
        """The namespaces that have tubes."""
        return await self.root.namespaces()

    async def overview(self) -> dict[str, dict[str, Overview]]:
        """All tubes by namespace, as in paths, and name. It opens no namespace."""
        seen: dict[str, dict[str, Overview]] = {}
        for name in ("", *await self.names()):
            queue = await self.root.namespace(name)
            try:
                tubes = await queue.overview()
            finally:
                await queue.close()
            if tubes:
                seen[name or NONE] = tubes
        return seen

    async def ping(self) -> None:
        """Look a tube up, in O(1). Raises what the backend raises."""
        with suppress(TubeNotFound):
            await self.root.tube(_PINGED)

    async def close(self) -> None:
        """Leave the session of each namespace: the other processes of the service, or the next one, go on with it."""
        while self._open:
            _, space = self._open.popitem()
            with suppress(TubesError):
                await space.queue.detach()
        with suppress(TubesError):
            await self.root.close()
