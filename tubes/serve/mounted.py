"""The dashboard as an ASGI application, to mount in the program that uses the queue."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

import tubes.aio
from tubes.aio import AsyncQueue
from tubes.serve import native, ui
from tubes.serve.access import Access
from tubes.serve.app import make_router
from tubes.serve.bodies import Bodies
from tubes.serve.service import Limits, Service
from tubes.serve.tokens import ALL_RIGHTS, Tokens
from tubes.sync import Queue


class Dashboard:
    """The native API and the page. It starts with the first request, since servers start no mounted application.

    It ends with its event loop, or by the lifespan protocol if it is the only application of a server.
    """

    def __init__(self, queue: AsyncQueue | Queue | str, tokens: Tokens | None, rights: frozenset[str]) -> None:
        self._queue: Final = queue
        self._tokens: Final = tokens
        self._rights: Final = rights
        self._page: Final = ui.routes()
        self._app: ASGIApp
        # The task that runs the service; the event loop cancels it at its end.
        self._running: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        running = self._running
        if scope["type"] == "lifespan":
            self._make_app()
            self._running = asyncio.current_task()
        elif running is None or running.done() or running.get_loop() is not asyncio.get_running_loop():
            self._running = asyncio.create_task(_run(self._make_app()))
        await self._app(scope, receive, send)

    def _make_app(self) -> Service:
        # A session of its own, so that closing it leaves the queue of the program open.
        queue = tubes.aio.connect(self._queue)
        rights = self._rights - {"put", "take"} if queue._connection.codec is None else self._rights
        limits = Limits()
        service = Service(queue, self._tokens, limits, rights)
        routes = [*native.routes(service), *self._page]
        self._app = Access(make_router(routes, service), None, Bodies(limits.bodies, limits.bodies_of_token))
        return service

    async def close(self) -> None:
        """End all requests that wait, and the session on the queue. The next request starts the service again."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))


async def _run(service: Service) -> None:
    async with service.run():
        await asyncio.get_running_loop().create_future()


def dashboard(queue: AsyncQueue | Queue | str, *, tokens: Tokens | None = None, read_only: bool = False) -> Dashboard:
    """Return the dashboard of a queue: an ASGI application with its page and the native API.

    Mount it in FastAPI, Starlette or Django under any path. It uses a session of its own, and leaves the queue open.

    `queue`: a queue or a URL. In memory without a codec, data are shown as JSON or else as their `repr`, and clients
    cannot put, take or edit tasks.
    `tokens`: the tokens of users. None: every user may do everything, so control access by other means.
    `read_only`: users may only look.

    >>> import tubes
    >>> app = dashboard(tubes.connect(), read_only=True)
    """
    return Dashboard(queue, tokens, frozenset({"look"}) if read_only else ALL_RIGHTS)
