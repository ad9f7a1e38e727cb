"""Run the application with uvicorn: listening sockets, signals and shutdown."""

from __future__ import annotations

import asyncio
import atexit
import ipaddress
import re
import signal
import socket
import ssl
import sys
import time
import webbrowser
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from tubes.aio import AsyncQueue
from tubes.errors import Facts, InvalidOption, needs
from tubes.serve.access import Access, check_page
from tubes.serve.app import App
from tubes.serve.connections import FINAL_TIMEOUT, Buffers, HttpConnection, watch_peers
from tubes.serve.mounted import dashboard
from tubes.serve.service import Limits
from tubes.serve.tokens import ALL_RIGHTS, Grant, Tokens
from tubes.sync import Queue

with needs("tubes.serve", "http"):
    import uvicorn

#: The header `Host`: an IPv6 address is in brackets, and has no zone.
_HOST: Final = re.compile(r"(?:\[([^]%]+)]|([^]:[]+))(?::[0-9]*)?")
#: Maximum seconds between two sweeps over the connections.
_SWEEP: Final = 0.5
#: Seconds of an accept during which this thread has not lost its turn, and how often it may lose it.
_QUICK, _SLOW_ACCEPTS = 0.0001, 50


@dataclass(frozen=True)
class Listen:
    """An address to listen on. `cert`, `key`: files for TLS. `shared`: other processes may also listen on it."""

    host: str
    port: int
    cert: str | None = None
    key: str | None = None
    shared: bool = False

    @classmethod
    def read(cls, text: str, **options: Any) -> Listen:
        """Parse `HOST:PORT`; an IPv6 address is in brackets.

        >>> Listen.read("[::1]:7777").host
        '::1'
        """
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise InvalidOption(option="http", value=text, rule="must be HOST:PORT, as in 127.0.0.1:7777")
        return cls(host.strip("[]"), int(port), **options)

    @property
    def is_local(self) -> bool:
        """True if only programs on this machine can connect."""
        try:
            return self.host.lower() == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check(self, *, has_tokens: bool, insecure: bool) -> None:
        """Raise `InvalidOption` for a public address without TLS or without tokens."""
        if self.is_local or insecure:
            return
        place = f"{self.host}:{self.port}"
        if self.cert is None:
            rule = "can be reached from other machines: give --tls-cert and --tls-key, or --insecure"
            raise InvalidOption(option="http", value=place, rule=rule)
        if not has_tokens:
            rule = "can be reached from other machines: give --tokens, or --insecure"
            raise InvalidOption(option="http", value=place, rule=rule)

    def open(self) -> socket.socket:
        """Return a bound socket, so that the port is known. Raise `InvalidOption` if the certificate cannot be used."""
        if self.cert is not None:
            try:  # With a password, OpenSSL would ask for it.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.cert, self.key, "")
            except OSError as error:
                rule = f"must be a certificate and --tls-key its key without a password: {error}"
                raise InvalidOption(option="tls_cert", value=self.cert, rule=rule) from error
        family, kind, protocol, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
        return bound


class LocalOnly:
    """An application for programs on this machine and for its own pages. Requests from other web pages are refused.

    Otherwise any page open in a browser here could use a service without tokens. Such requests are recognized by the
    headers that browsers add, or by their `Host` header if the page's own domain name resolves to this machine.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app: Final = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        try:
            check_page(scope, _is_local_host)
        except HTTPException as error:
            app = Access(partial(_refuse, error), None)
        await app(scope, receive, send)


def _is_local_host(value: str) -> bool:
    found = _HOST.fullmatch(value)
    return found is not None and Listen(found[1] or found[2], 0).is_local


async def _refuse(error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    raise error


class _Server(uvicorn.Server):
    """One listener. `serve` handles signals for all listeners, so a listener installs no handlers."""

    on_start: Callable[[], object]
    #: Seconds between two sweeps over the connections.
    period: float
    #: See `watch_peers`.
    peer_timeout: float
    _timer: asyncio.TimerHandle

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or ():
            watch_peers(listener, self.peer_timeout)
        await super().startup(sockets)
        self._sweep()
        self.on_start()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in list(self.server_state.connections):
            cast("HttpConnection", connection).sweep(loop.time())
        self._timer = loop.call_later(self.period, self._sweep)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, but serve accepted connections. A process that shares the address gets later ones."""
        loop = asyncio.get_running_loop()
        # Duplicates keep listening after the loop has closed its sockets. They are closed right after the last accept.
        duplicates = [sock.dup() for sock in sockets or ()]
        for server in self.servers:
            server.close()
        accepted: list[socket.socket] = []
        for duplicate in duplicates:
            accepted += _accept_and_close(duplicate)
        tls: Facts = {"ssl": self.config.ssl, "ssl_handshake_timeout": FINAL_TIMEOUT} if self.config.ssl else {}
        handshakes = [loop.connect_accepted_socket(self._protocol, one, **tls) for one in accepted]
        await asyncio.gather(*handshakes, return_exceptions=True)
        await super().shutdown(sockets)
        self._timer.cancel()

    def _protocol(self) -> HttpConnection:
        bound: HttpConnection = self.config.http_protocol_class(  # type: ignore[assignment, call-arg]
            config=self.config,  # pyright: ignore[reportCallIssue]
            server_state=self.server_state,  # pyright: ignore[reportCallIssue]
            app_state=self.lifespan.state,  # pyright: ignore[reportCallIssue]
        )
        return bound

    @contextmanager
    @override
    def capture_signals(self) -> Generator[None]:
        yield


def _accept_and_close(listener: socket.socket) -> list[socket.socket]:
    """Accept the connections that wait, and close the socket right after the last accept.

    Connections that arrive in between are refused. This thread may lose its turn during an accept, so it accepts again
    until an accept without a connection was quick.
    """
    listener.setblocking(False)
    accepted: list[socket.socket] = []
    for _ in range(_SLOW_ACCEPTS):
        started = time.perf_counter()
        with suppress(OSError):  # No connection waits, or the process cannot open another one.
            while True:
                accepted.append(listener.accept()[0])
                started = time.perf_counter()
        if time.perf_counter() - started < _QUICK:
            break
    listener.close()
    return accepted


def run(serving: Coroutine[object, None, None]) -> None:
    """Run `serve` in the fastest event loop available."""
    with asyncio.Runner(loop_factory=_make_loop) as runner:
        runner.run(serving)


def _make_loop() -> asyncio.AbstractEventLoop:
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
    """Serve until SIGTERM or SIGINT. Then end all waits, and give running requests `grace` seconds to finish.

    `started` is called with the URLs as soon as clients can connect.
    """
    public: ASGIApp = LocalOnly(app) if local_only else app
    sockets = [listen.open()]
    limits = app.service.limits
    servers = [_make_server(public, listen, limits, grace)]
    app.service.connections = servers[0].server_state.connections
    if admin is not None:
        sockets.append(admin.open())
        servers.append(_make_server(LocalOnly(app.admin) if admin.is_local else app.admin, admin, limits, grace))

    def stop() -> None:
        app.service.close()
        for server in servers:
            if server.should_exit:
                server.force_exit = True
            server.should_exit = True

    _raise_file_limit()
    loop = asyncio.get_running_loop()
    for kind in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(kind, stop)
    urls = [_format_url(one, place) for one, place in zip(sockets, (listen, admin), strict=False) if place is not None]
    pending = len(servers)

    def count_started() -> None:
        nonlocal pending
        pending -= 1
        if not pending:
            started(urls)

    for server in servers:
        server.on_start = count_started
    async with app.service.run():
        await asyncio.gather(*(server.serve([one]) for server, one in zip(servers, sockets, strict=True)))


@asynccontextmanager
async def serve_dashboard(
    queue: AsyncQueue | Queue, listen: Listen = Listen("127.0.0.1", 0), *, read_only: bool = False
) -> AsyncGenerator[str]:
    """Serve the dashboard of a queue on this machine during a block. Yield its URL with a token for this block only."""
    if not listen.is_local:
        raise InvalidOption(option="http", value=listen.host, rule="must be an address of this machine only")
    with TemporaryDirectory() as folder:
        tokens = Tokens(Path(folder) / "tokens.json")
        rights = {"look"} if read_only else ALL_RIGHTS - {"admin"}
        _, token = tokens.create([Grant(frozenset(rights))], "dashboard")
        app = dashboard(queue, tokens=tokens)
        bound = listen.open()
        server = _make_server(LocalOnly(app), listen, Limits(), 1)
        started = asyncio.Event()
        server.on_start = started.set
        serving = asyncio.create_task(server.serve([bound]))
        try:
            await started.wait()
            yield f"{_format_url(bound, listen)}/ui/#token={token}"
        finally:
            await app.close()  # It ends the streams of open pages.
            server.should_exit = True
            await serving


def open_browser(address: str) -> None:
    """Open an address with a token in the browser, through a private file: any user can read arguments of commands."""
    folder = TemporaryDirectory()
    atexit.register(folder.cleanup)  # The browser may read the file later.
    page = Path(folder.name) / "dashboard.html"
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={address}">')
    webbrowser.open(page.as_uri())


def _raise_file_limit() -> None:
    """Raise the soft limit of open files, which exists for programs that use select: a connection needs a file."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def _make_server(app: ASGIApp, listen: Listen, limits: Limits, grace: float) -> _Server:
    config = uvicorn.Config(
        app,
        http=type("HttpConnection", (HttpConnection,), {"limits": limits, "buffers": Buffers(limits.unread)}),
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
    server.peer_timeout = max(limits.read_within, 30)
    server.period = min(_SWEEP, limits.headers_within / 2, limits.body_within / 2, limits.read_within / 2)
    return server


def _format_url(bound: socket.socket, listen: Listen) -> str:
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"http{'s' if listen.cert else ''}://{host}:{bound.getsockname()[1]}"
