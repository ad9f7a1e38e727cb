"""The namespaces of a service: one queue each, with a session that all processes of the service share."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, TypeAlias, TypeVar

from starlette.exceptions import HTTPException

from tubes.aio import AsyncQueue, AsyncTask, AsyncTube
from tubes.backend.flow import step_ended
from tubes.backend.port import connection_of, port_of
from tubes.backend.selecting import Scan
from tubes.drivers.driver import check_namespace, check_tube_name
from tubes.errors import ConnectionLost, Facts, TubeNotFound, TubesError
from tubes.serve.events import Listeners
from tubes.serve.tokens import ANONYMOUS, Token
from tubes.values.codecs import RawCodec
from tubes.values.overview import Overview

Value = TypeVar("Value")
#: The uuid of the session that holds the takes of a service. Each namespace has its own session with this uuid.
SESSION: Final = "6f0e6c52-9f60-4a3c-9d3e-3c1f7a2d5b84"
#: The name in paths for tubes without a namespace.
NO_NAMESPACE: Final = "_"
#: Seconds without a reply of a server after which clients get an error.
REPLY_TIMEOUT: Final = 3.0
#: The tube that a ping looks up.
_PING_TUBE: Final = "tubes:ping"
_RAW: Final = RawCodec()
#: Tubes in memory that are read at a time, before other requests run.
_PART: Final = 50
#: Maximum tubes that a namespace keeps open.
_MAX_TUBES: Final = 10_000


async def limit_time(queue: AsyncQueue, work: Awaitable[Value], seconds: float = REPLY_TIMEOUT) -> Value:
    """Await a call of the backend. Raise `ConnectionLost` after `seconds` without a reply of a server.

    Clients of the service can retry; programs that use the server directly wait longer. A call that reads a large tube
    in parts may take longer: each part has the whole time.
    """
    if not connection_of(queue).is_remote:
        return await work
    timeout, loop = asyncio.timeout(seconds), asyncio.get_running_loop()

    def renew() -> None:
        with suppress(RuntimeError):  # It has ended: a task of `work` goes on in the background.
            timeout.reschedule(loop.time() + seconds)

    outer = step_ended.set((*step_ended.get(), renew))
    try:
        async with timeout:
            return await work
    except TimeoutError:
        if not timeout.expired():  # A CallTimeout is also a TimeoutError.
            raise
        raise ConnectionLost(url=connection_of(queue).url, why=f"no reply within {seconds:g} s") from None
    finally:
        step_ended.reset(outer)


_Read: TypeAlias = Callable[[AsyncTube], Awaitable[list[AsyncTask]]]


async def scan_tasks(
    filters: Facts, after: int | None, size: int, run: Callable[[_Read], Awaitable[list[AsyncTask]]]
) -> AsyncGenerator[list[AsyncTask]]:
    """Yield parts of the tasks that pass the filters of `Tube.select`, after the id `after`.

    A part is up to `size` tasks; it may be empty. `run`: calls the given function with the tube.
    """
    scan: Scan | None = None

    def read(tube: AsyncTube) -> Awaitable[list[AsyncTask]]:
        nonlocal scan
        selection = tube.select(**filters)
        scan = scan or Scan(selection._filters, after)
        return selection._part(scan, selection._filters, size, with_data=True)

    while not (scan and scan.ended):
        await asyncio.sleep(0)  # Let other requests run: few tasks may pass the filters.
        yield await run(read)


class Namespace:
    """The tubes of one namespace. `name`: as in paths, where `_` means tubes without a namespace."""

    def __init__(self, name: str, queue: AsyncQueue) -> None:
        self.name: Final = name
        self.queue: Final = queue
        #: True if the store is in this process, so that no reply can be missing.
        self._is_local: Final = not connection_of(queue).is_remote
        #: Number of requests and sessions that use it now.
        self.users = 0
        self.listeners: Final = Listeners()
        self._tubes: Final[OrderedDict[str, AsyncTube]] = OrderedDict()

    @contextmanager
    def hold(self) -> Generator[Namespace]:
        """Keep the namespace open during a block."""
        self.users += 1
        try:
            yield self
        finally:
            self.users -= 1

    def session(self, ttl: float) -> AsyncQueue:
        """Open a session that ends within `ttl` seconds if this process is killed."""
        return AsyncQueue(connection_of(self.queue).sibling(None, None, ttl))

    async def read_tubes(self, patterns: Collection[str], *, ages: bool) -> dict[str, Overview]:
        """Return the tubes whose names match. With exact names the cost depends only on the number of results."""
        return await limit_time(self.queue, self.queue.admin._overview(ages, patterns))

    async def read_all_tubes(self, *, ages: bool) -> dict[str, Overview]:
        """Return all tubes. In memory they are read in parts, and other requests run in between."""
        if not self._is_local:
            return await self.read_tubes(("*",), ages=ages)
        found: dict[str, Overview] = {}
        names = await self.queue.tubes()
        for start in range(0, len(names), _PART):
            found |= await self.read_tubes(names[start : start + _PART], ages=ages)
            await asyncio.sleep(0)
        return found

    @property
    def has_tubes(self) -> bool:
        """True if a tube of this namespace has been used."""
        return bool(self._tubes)

    async def tube(self, name: str) -> AsyncTube:
        """Return the tube of this name. Raise `TubeNotFound` if it does not exist."""
        tube = self._tubes.get(name)
        if tube is None:
            tube = self._tubes[check_tube_name(name)] = await limit_time(self.queue, self.queue._find_tube(name))
            port_of(tube).use_codec(_RAW)  # Other programs may use another codec for its data.
            if len(self._tubes) > _MAX_TUBES:
                self._tubes.popitem(last=False)
            if name in self.listeners:  # It may have been dropped and created again.
                await self.listeners.watch(tube)
        return tube

    async def apply(self, name: str, act: Callable[[AsyncTube], Awaitable[Value]], *, waits: bool = False) -> Value:
        """Return `act(tube)` for the tube of this name. If the cached tube was dropped, look it up again and retry.

        Raise `ConnectionLost` after `REPLY_TIMEOUT` without a reply of a server, unless `waits` is true: then the call
        itself waits for a task or for room.
        """
        work = self._apply(name, act)
        return await (work if waits or self._is_local else limit_time(self.queue, work))

    async def _apply(self, name: str, act: Callable[[AsyncTube], Awaitable[Value]]) -> Value:
        is_known = name in self._tubes
        try:
            return await act(await self.tube(name))
        except TubeNotFound:
            self.forget(name)
            if not is_known:
                raise
        return await act(await self.tube(name))

    def forget(self, name: str) -> None:
        """Drop the cached tube: its next use looks it up again."""
        self._tubes.pop(name, None)

    async def give_back(self, tasks: list[AsyncTask]) -> None:
        """Make undelivered tasks ready again; the attempt does not count."""
        for task in tasks:
            with suppress(TubesError):  # Otherwise its ttr ends the take.
                await task._tube._decline(task, 0)


def has_taken_tasks(tubes: dict[str, Overview]) -> bool:
    return any(tube.statistics.tasks["taken"] for tube in tubes.values())


class Namespaces:
    """The open namespaces, at most `limit` at a time."""

    def __init__(self, queue: AsyncQueue, limit: int) -> None:
        #: The queue from which all namespaces are opened.
        self.root: Final = queue
        self._limit: Final = limit
        self._open: Final[OrderedDict[str, Namespace]] = OrderedDict()
        #: Namespaces that are being opened.
        self._opening: Final[dict[str, asyncio.Future[Namespace]]] = {}

    async def get(self, name: str) -> Namespace:
        """Return the namespace of this name; `_` means tubes without a namespace."""
        space = self._open.get(name)
        if space is not None:
            self._open.move_to_end(name)
            return space
        opening = self._opening.get(check_namespace(name))
        if opening is None:
            opening = self._opening[name] = asyncio.ensure_future(limit_time(self.root, self._join(name)))
            opening.add_done_callback(lambda done: (self._opening.pop(name), done.exception()))
        # Shield it: one of several waiting requests may be cancelled.
        return await asyncio.shield(opening)

    async def _join(self, name: str) -> Namespace:
        await self._make_room()
        queue = await self._open_queue(name)
        try:
            await queue.admin.identify(SESSION, create=True)
        except BaseException:
            await queue.close()
            raise
        space = self._open[name] = Namespace(name, queue)
        return space

    async def _make_room(self) -> None:
        """If the limit is reached, close the least recently used namespace without requests and taken tasks."""
        if len(self._open) + len(self._opening) <= self._limit:
            return
        for name, space in list(self._open.items()):
            # Closing it would end its session, and with it the takes of clients.
            if space.users:
                continue
            tubes = await space.queue.admin.overview()
            if has_taken_tasks(tubes):
                continue
            # Check that no request has used or closed it in the meantime.
            if not space.users and self._open.pop(name, None) is not None:
                # The session outlives this process for the next one. Without tubes it would only use memory: end it.
                await (space.queue.admin.detach() if tubes else space.queue.close())
                return
        raise HTTPException(503, f"{self._limit} namespaces are in use")

    async def open_used(self) -> None:
        """Open the namespaces with taken tasks, to renew sessions left by a process that has ended."""
        with suppress(TubesError, HTTPException):  # Requests and health checks report the same error.
            for name, tubes in (await self.read_tubes()).items():
                if has_taken_tasks(tubes):
                    await self.get(name)

    async def names(self) -> list[str]:
        return await limit_time(self.root, self.root.admin.namespaces())

    async def read_tubes(self, token: Token = ANONYMOUS, *, ages: bool = False) -> dict[str, dict[str, Overview]]:
        """Return the tubes that a token may look at, by namespace, as in paths, and by name."""
        found: dict[str, dict[str, Overview]] = {}
        for name in (NO_NAMESPACE, *await self.names()):
            if patterns := token.patterns("look", name):
                async with self.visit(name) as space:
                    if tubes := await space.read_tubes(patterns, ages=ages):
                        found[name] = tubes
        return found

    @asynccontextmanager
    async def visit(self, name: str) -> AsyncGenerator[Namespace]:
        """Open a namespace during a block, without the session of its takes, unless it is open already."""
        space = self._open.get(name)
        if space is not None:
            with space.hold():
                yield space
            return
        queue = await limit_time(self.root, self._open_queue(name))
        try:
            yield Namespace(name, queue)
        finally:
            await queue.close()

    async def _open_queue(self, name: str) -> AsyncQueue:
        return await self.root.namespace("" if name == NO_NAMESPACE else name)

    async def ping(self) -> None:
        """Look up a tube, in O(1). Raise the error of the backend, if any."""
        with suppress(TubeNotFound):
            await self.root._find_tube(_PING_TUBE)

    async def close(self) -> None:
        """Leave the session of each namespace; other processes of the service, or the next one, continue it."""
        while self._open:
            _, space = self._open.popitem()
            with suppress(TubesError):
                await space.queue.admin.detach()
        with suppress(TubesError):
            await self.root.close()
