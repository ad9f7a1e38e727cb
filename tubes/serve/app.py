"""The ASGI application, with all APIs of the service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Receive, Scope, Send

from tubes import __version__
from tubes.aio import AsyncQueue
from tubes.serve import lmstfy, native
from tubes.serve import ui as pages
from tubes.serve.access import Access, OwnPages
from tubes.serve.bodies import Bodies, json_reply
from tubes.serve.metrics import Metrics
from tubes.serve.service import Limits, Service
from tubes.serve.tokens import Tokens

if TYPE_CHECKING:
    from tubes.serve.later import Callbacks
    from tubes.serve.pushes import Pushes


def _later_routes(service: Service, callbacks: Callbacks | None) -> list[BaseRoute]:
    if callbacks is None:
        return []
    from tubes.serve import later  # Requires the extra `push`.

    secret = b"" if service.tokens is None else service.tokens.secret
    delivery = later.Delivery(service.namespaces.root, callbacks, secret)
    service.background.append(delivery.running)
    return later.routes(service, delivery)


class App(Access):
    """The service as an ASGI application. `admin` is the application of the administration listener."""

    def __init__(
        self,
        service: Service,
        access_log: Callable[[str], object] | None,
        callbacks: Callbacks | None,
        pushes: Pushes | None,
        *,
        ui: bool,
    ) -> None:
        self.service: Final = service

        def write(line: str) -> None:
            if access_log is not None and service.logs_requests:  # Administrators can switch it off.
                access_log(line)

        log = None if access_log is None else write
        service.logs_requests = None if access_log is None else True
        metrics = Metrics(service)
        lmstfy_routes, lmstfy_admin_routes = lmstfy.routes(service, metrics, __version__)
        health_routes = _health_routes(service)
        # Most used first, since routes are tried in this order.
        public = [*native.routes(service), *lmstfy_routes, *_later_routes(service, callbacks), *health_routes]
        public += [Route("/metrics", metrics.show), *(pages.routes() if ui else ())]
        metrics.set_routes(public)
        if pushes is not None:
            service.background.append(lambda: pushes.run(service.namespaces.root))
        limits = service.limits
        bodies = Bodies(max(limits.bodies, limits.body), max(limits.bodies_of_token, limits.body))
        router = make_router(public, service)
        # With tokens each request has a secret that no other page knows.
        app = OwnPages(router) if service.tokens is None else router
        super().__init__(app, log, bodies, metrics.record)
        self.admin: Final = Access(make_router([*lmstfy_admin_routes, *health_routes], None), log, bodies)


def create_app(
    queue: AsyncQueue,
    *,
    tokens: Tokens | None = None,
    limits: Limits | None = None,
    access_log: Callable[[str], object] | None = None,
    callbacks: Callbacks | None = None,
    pushes: Pushes | None = None,
    ui: bool = True,
    history: bool = False,
) -> App:
    """Create the service of a queue. `tubes serve` runs it; it can also be mounted in your own application.

    `queue`: any backend; a queue in memory needs a codec, since data is stored as bytes. Programs with the codec `json`
    can read data that is JSON. The service closes the queue when it stops.
    `tokens`: the tokens of clients. None: every client may do everything, so control access by other means; only pages
    from other addresses are refused if they change something.
    `limits`: limits of requests and connections.
    `access_log`: called with a line of JSON for each request.
    `callbacks`: callbacks that the later API may call, a `tubes.serve.later.Callbacks`. None: no later API.
    `pushes`: tubes whose tasks are posted to URLs, a `tubes.serve.pushes.Pushes`. None: no tasks are posted.
    `ui`: serve the dashboard at `/ui/`.
    `history`: always sample the counts of all tubes, not only while a client reads their history.

    >>> import tubes.aio
    >>> queue = tubes.aio.connect("memory://", codec="json")
    >>> app = create_app(queue)
    """
    return App(Service(queue, tokens, limits or Limits(), history=history), access_log, callbacks, pushes, ui=ui)


def make_router(routes: list[BaseRoute], service: Service | None) -> Router:
    @asynccontextmanager
    async def lifespan(app: object) -> AsyncGenerator[None]:
        async with nullcontext() if service is None else service.run():
            yield

    return Router(routes, redirect_slashes=False, default=_not_found, lifespan=lifespan)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        raise HTTPException(404, "no such path: /openapi.json lists all paths")
    await send({"type": "websocket.close"})


#: Seconds that the backend has to reply.
_PING_TIMEOUT: Final = 2.0


def _health_routes(service: Service) -> list[BaseRoute]:
    """Return the routes for monitoring. They require no token."""

    async def live(request: Request) -> Response:
        """Report that the event loop runs. `lag`: seconds for one iteration of the loop."""
        started = time.perf_counter()
        await asyncio.sleep(0)
        return json_reply({"status": "live", "lag": round(time.perf_counter() - started, 6)})

    async def ready(request: Request) -> Response:
        """Report whether the backend replies and the service is not stopping."""
        if service.is_closing:
            return json_reply({"status": "closing"}, 503)
        try:
            async with asyncio.timeout(_PING_TIMEOUT):
                await service.namespaces.ping()
        except Exception:  # Requests would fail with the same error.
            return json_reply({"status": "backend away"}, 503)
        return json_reply({"status": "ready"})

    async def show_version(request: Request) -> Response:
        return json_reply({"version": __version__})

    return [
        Route("/health/live", live, name="live"),
        Route("/health/ready", ready, name="ready"),
        Route("/version", show_version, name="version"),
    ]
