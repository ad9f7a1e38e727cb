"""The application: all APIs of the service, as one ASGI application."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Router
from starlette.types import Receive, Scope, Send

from tubes import __version__
from tubes.aio import AsyncQueue
from tubes.serve import health, native
from tubes.serve.access import Access
from tubes.serve.bodies import Bodies
from tubes.serve.lmstfy import Lmstfy
from tubes.serve.service import Limits, Service
from tubes.serve.tokens import Tokens

if TYPE_CHECKING:
    from tubes.serve.later import Callbacks
    from tubes.serve.pushes import Pushes


def _apis(service: Service, callbacks: Callbacks | None) -> tuple[list[BaseRoute], list[BaseRoute]]:
    """The routes of the public listener, the busiest first, and those of the listener for administrators."""
    of_lmstfy = Lmstfy(service, __version__)
    of_all = health.routes(service, __version__)
    public = [*native.routes(service), *of_lmstfy.routes, *_later(service, callbacks), *of_all]
    return public, [*of_lmstfy.admin_routes, *of_all]


def _later(service: Service, callbacks: Callbacks | None) -> list[BaseRoute]:
    if callbacks is None:
        return []
    from tubes.serve import later  # It needs the extra `push`.

    secret = b"" if service.tokens is None else service.tokens.secret
    delivery = later.Delivery(service.namespaces.root, callbacks, secret)
    service.beside.append(delivery.running)
    return later.routes(service, delivery)


class App:
    """The service as an ASGI application; `admin` is that for administrators, which needs an address of its own."""

    def __init__(
        self,
        service: Service,
        access_log: Callable[[str], object] | None,
        callbacks: Callbacks | None,
        pushes: Pushes | None,
    ) -> None:
        self.service: Final = service
        write = None if access_log is None else _switched(service, access_log)
        public, admin = _apis(service, callbacks)
        if pushes is not None:
            service.beside.append(lambda: pushes.running(service.namespaces.root))
        limits = service.limits
        bodies = Bodies(max(limits.bodies, limits.body), max(limits.bodies_of_token, limits.body))
        self._app: Final = Access(_router(public, service), write, bodies)
        self.admin: Final = Access(_router(admin, None), write, bodies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the lifespan."""
        await self._app(scope, receive, send)


def create_app(
    queue: AsyncQueue,
    *,
    tokens: Tokens | None = None,
    limits: Limits | None = None,
    access_log: Callable[[str], object] | None = None,
    callbacks: Callbacks | None = None,
    pushes: Pushes | None = None,
) -> App:
    """The service of a queue, to be run by `tubes serve`, or to be mounted in an application of your own.

    `queue`: of any backend; in memory with a codec, since data is stored as bytes. What is JSON programs with the codec
    `json` read, too. The service closes the queue at its end.
    `tokens`: who may do what; None: everybody may do everything, so somebody else must say who gets here.
    `limits`: what clients may ask for.
    `access_log`: is called with a line of JSON for each request.
    `callbacks`: which callbacks the API of later calls, a `tubes.serve.later.Callbacks`; None: it has no such API.
    `pushes`: the tubes whose tasks are posted to URLs, a `tubes.serve.pushes.Pushes`; None: none.

    >>> import tubes.aio
    >>> queue = tubes.aio.connect("memory://", codec="json")
    >>> app = create_app(queue)
    """
    return App(Service(queue, tokens, limits or Limits()), access_log, callbacks, pushes)


def _switched(service: Service, write: Callable[[str], object]) -> Callable[[str], object]:
    """An access log that administrators can switch off."""
    service.logs_requests = True
    return lambda line: write(line) if service.logs_requests else None


def _router(routes: list[BaseRoute], service: Service | None) -> Router:
    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncGenerator[None]:
        if service is None:
            yield
        else:
            async with service.running():
                yield

    return Router(routes, redirect_slashes=False, default=_not_found, lifespan=lifespan)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        raise HTTPException(404, "there is nothing under this path: /openapi.json lists what there is")
    await send({"type": "websocket.close"})
