"""Runs the application with uvicorn: where it listens, and how it ends."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from tubes.errors import InvalidOption, needs
from tubes.serve.access import Access, is_of_a_page
from tubes.serve.app import App
from tubes.serve.connections import LAST, Buffers, Connection
from tubes.serve.service import Limits

with needs("tubes.serve", "http"):
    import uvicorn

#: Seconds between two sweeps over the connections, at most.
_SWEEP: Final = 0.5


@dataclass(frozen=True)
class Listen:
    """Where a service listens. `cert`, `key`: files, for TLS. `shared`: other processes may listen there, too."""

    host: str
    port: int
    cert: str | None = None
    key: str | None = None
    shared: bool = False

    @classmethod
    def read(cls, text: str, **others: Any) -> Listen:
        """Where `HOST:PORT` is; an IPv6 address stands in brackets.

        >>> Listen.read("[::1]:7777").host
        '::1'
        """
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise InvalidOption(option="http", value=text, rule="must be HOST:PORT, as in 127.0.0.1:7777")
        return cls(host.strip("[]"), int(port), **others)

    @property
    def is_local(self) -> bool:
        """Whether only this machine gets there."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check(self, *, has_tokens: bool, insecure: bool) -> None:
        """Raise `InvalidOption` for a place where others could read along, or do what they like."""
        if self.is_local or insecure:
            return
        place = f"{self.host}:{self.port}"
        if self.cert is None:
            rule = "is reached from other machines: give --tls-cert and --tls-key, or --insecure"
            raise InvalidOption(option="http", value=place, rule=rule)
        if not has_tokens:
            rule = "is reached from other machines: give --tokens, or --insecure"
            raise InvalidOption(option="http", value=place, rule=rule)

    def open(self) -> socket.socket:
        """A socket that is bound, so that the port is known."""
        family, kind, protocol, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.shared:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            made.bind(address)
        except BaseException:
            made.close()
            raise
        return made


class LocalOnly:
    """An application for programs of this machine. It refuses what a page in a browser sends.

    Any page that is open in a browser here could use a service without tokens. What browsers add gives it away; or the
    host, where a page makes its own name lead to this machine.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app: Final = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the lifespan."""
        hosts = [value for name, value in scope.get("headers", ()) if name == b"host"]
        if is_of_a_page(scope) or not all(map(_is_local_host, hosts)):
            refused = HTTPException(403, "this address is for programs on its machine only")
            await Access(_raising(refused), None)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_local_host(value: bytes) -> bool:
    host = value.decode("latin-1").rpartition("]")[0].lstrip("[") or value.decode("latin-1").partition(":")[0]
    return Listen(host, 0).is_local


def _raising(error: Exception) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    return app


class _Server(uvicorn.Server):
    """One listener. Signals are for all of them, so none of them looks after those."""

    on_start: Callable[[], object]
    #: Seconds between two sweeps over the connections.
    period: float
    _timer: asyncio.TimerHandle

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._sweep()
        self.on_start()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in list(self.server_state.connections):
            cast("Connection", connection).sweep(loop.time())
        self._timer = loop.call_later(self.period, self._sweep)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End, but serve who has connected: another process that shares the address gets the next ones."""
        loop = asyncio.get_running_loop()
        # Copies listen on when the loop has closed its own: hardly a moment lies between the last look and the end.
        copies = [listening.dup() for listening in sockets or ()]
        for server in self.servers:
            server.close()
        arrived: list[socket.socket] = []
        for copy in copies:
            copy.setblocking(False)
            try:
                while True:
                    arrived.append(copy.accept()[0])
            except BlockingIOError:
                copy.close()
        tls: dict[str, Any] = {"ssl": self.config.ssl, "ssl_handshake_timeout": LAST} if self.config.ssl else {}
        accepting = [loop.connect_accepted_socket(self._protocol, one, **tls) for one in arrived]
        await asyncio.gather(*accepting, return_exceptions=True)
        await super().shutdown(sockets)
        self._timer.cancel()

    def _protocol(self) -> Connection:
        made: Connection = self.config.http_protocol_class(  # type: ignore[assignment, call-arg]
            config=self.config,  # pyright: ignore[reportCallIssue]
            server_state=self.server_state,  # pyright: ignore[reportCallIssue]
            app_state=self.lifespan.state,  # pyright: ignore[reportCallIssue]
        )
        return made

    @contextmanager
    @override
    def capture_signals(self) -> Generator[None]:
        yield


def run(serving: Coroutine[Any, Any, None]) -> None:
    """Run `serve` in the fastest loop that there is."""
    with asyncio.Runner(loop_factory=_loop) as runner:
        runner.run(serving)


def _loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


async def serve(
    app: App,
    listen: Listen,
    admin: Listen | None,
    *,
    local_only: bool,
    grace: float,
    started: Callable[[list[str]], object],
) -> None:
    """Serve until SIGTERM or SIGINT, and then end all waits, and requests that have begun within `grace` seconds.

    `started` is called with the URLs as soon as clients can connect.
    """
    public: ASGIApp = LocalOnly(app) if local_only else app
    sockets = [listen.open()]
    limits = app.service.limits
    servers = [_server(public, listen, limits, grace)]
    if admin is not None:
        sockets.append(admin.open())
        servers.append(_server(LocalOnly(app.admin) if admin.is_local else app.admin, admin, limits, grace))

    def stop() -> None:
        app.service.close()
        for server in servers:
            if server.should_exit:
                server.force_exit = True
            server.should_exit = True

    _raise_limit_of_files()
    loop = asyncio.get_running_loop()
    for kind in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(kind, stop)
    urls = [_url(one, place) for one, place in zip(sockets, (listen, admin), strict=False) if place is not None]
    starting = len(servers)

    def one_more() -> None:
        nonlocal starting
        starting -= 1
        if not starting:
            started(urls)

    for server in servers:
        server.on_start = one_more
    async with app.service.running():
        await asyncio.gather(*(server.serve([one]) for server, one in zip(servers, sockets, strict=True)))


def _raise_limit_of_files() -> None:
    """A connection is a file, and the soft limit is for programs that use select."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _server(app: ASGIApp, listen: Listen, limits: Limits, grace: float) -> _Server:
    config = uvicorn.Config(
        app,
        http=type("Connection", (Connection,), {"limits": limits, "buffers": Buffers(limits.unread)}),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=max(1, round(grace)),
        ssl_certfile=listen.cert,
        ssl_keyfile=listen.key,
    )
    server = _Server(config)
    server.period = min(_SWEEP, limits.headers_within / 2, limits.body_within / 2, limits.read_within / 2)
    return server


def _url(bound: socket.socket, listen: Listen) -> str:
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"http{'s' if listen.cert else ''}://{host}:{bound.getsockname()[1]}"
