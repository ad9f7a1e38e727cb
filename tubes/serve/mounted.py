"""The dashboard as an ASGI application, to mount in the program that uses the queue."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

import tubes.aio
from tubes.aio import AsyncQueue
from tubes.backend.port import connection_of
from tubes.serve import native, ui
from tubes.serve.access import Access, OwnPages
from tubes.serve.app import make_router
from tubes.serve.bodies import Bodies
from tubes.serve.service import Limits, Service
from tubes.serve.tokens import ALL_RIGHTS, Tokens
from tubes.sync import Queue


class _Running(NamedTuple):
    """A service in an event loop. `task`: runs it, until it is cancelled at the end of the loop."""

    app: ASGIApp
    task: asyncio.Task[Any]


class Dashboard:
    """The native API and the page. It starts with the first request, since servers do not start mounted applications.

    Each event loop has its own service. It ends with the loop, or by the lifespan protocol if it is the only
    application of a server.
    """

    def __init__(self, queue: AsyncQueue | Queue | str, tokens: Tokens | None, rights: frozenset[str]) -> None:
        self._queue: Final = queue
        self._tokens: Final = tokens
        self._rights: Final = rights
        self._page: Final = ui.routes()
        self._running: Final[dict[asyncio.AbstractEventLoop, _Running]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        running = self._running.get(loop)
        if scope["type"] == "lifespan":
            task, (_, app) = asyncio.current_task(), self._make_app()
            assert task is not None
            running = self._add(loop, _Running(app, task))
        elif running is None or running.task.done():
            service, app = self._make_app()
            running = self._add(loop, _Running(app, loop.create_task(_run(service))))
        await running.app(scope, receive, send)

    def _add(self, loop: asyncio.AbstractEventLoop, running: _Running) -> _Running:
        for other in list(self._running):
            if other.is_closed():
                self._running.pop(other, None)
        self._running[loop] = running
        return running

    def _make_app(self) -> tuple[Service, ASGIApp]:
        # Use another session, so that closing it leaves the queue of the program open.
        queue = tubes.aio.connect(self._queue)
        rights = self._rights - {"put", "take"} if connection_of(queue).codec is None else self._rights
        limits = Limits()
        service = Service(queue, self._tokens, limits, rights)
        router = make_router([*native.routes(service), *self._page], service)
        return service, Access(OwnPages(router), None, Bodies(limits.bodies, limits.bodies_of_token))

    async def close(self) -> None:
        """End all waiting requests, and the sessions on the queue. The next request starts the service again."""
        own_loop = asyncio.get_running_loop()
        for loop, running in list(self._running.items()):
            if loop is own_loop:
                running.task.cancel()
                await asyncio.wait((running.task,))
            elif not loop.is_closed():
                loop.call_soon_threadsafe(running.task.cancel)


async def _run(service: Service) -> None:
    async with service.run():
        await asyncio.get_running_loop().create_future()


def dashboard(queue: AsyncQueue | Queue | str, *, tokens: Tokens | None = None, read_only: bool = False) -> Dashboard:
    """Return the dashboard of a queue: an ASGI application with its page and the native API.

    Mount it in FastAPI, Starlette or Django under any path. It uses its own session, and leaves the queue open.

    `queue`: a queue or a URL. In memory without a codec, data are shown as JSON or else as their `repr`, and clients
    cannot put, take or edit tasks.
    `tokens`: the tokens of users. None: every user may do everything, so control access by other means.
    `read_only`: users may only look.

    >>> import tubes
    >>> app = dashboard(tubes.connect(), read_only=True)
    """
    return Dashboard(queue, tokens, frozenset({"look"}) if read_only else ALL_RIGHTS)
