"""Runs the application with uvicorn: where it listens, how long it waits for what clients send, and how it ends."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import sys
from asyncio import TimerHandle
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from tubes.errors import InvalidOption, needs
from tubes.serve.access import Access, is_of_a_page
from tubes.serve.app import App
from tubes.serve.service import Limits

with needs("tubes.serve", "http"):
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

#: Seconds that the first request of a connection has at the end of the service.
_LAST: Final = 2.0
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
#: Bytes of a long reply that a client must have read from one look to the next.
_READ: Final = 2**16
#: Seconds for which an idle connection stays open.
_KEEP_ALIVE: Final = 75


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


class _Protocol(HttpToolsProtocol):
    """Ends connections whose requests do not arrive: uvicorn would wait for them as long as they like."""

    #: Seconds until the headers of a request, and until all of it, must have arrived. Bytes of the headers.
    headers_within: float
    headers_size: int
    body_within: float
    #: Seconds after which a client that does not read its reply is cut off.
    read_within: float
    #: The connections whose clients have more to read than they should, with the bytes of that; and how much may be.
    unread: dict[_Protocol, int]
    unread_size: int
    _timer: TimerHandle | None = None
    #: The request that is handled now.
    _running: RequestResponseCycle | None = None
    #: Looks whether the client reads.
    _slow: TimerHandle | None = None
    #: Whether the headers of a request, or its body, are still to come.
    _in_headers = True
    _in_body = False
    #: Whether the next request is the last one.
    _is_last = False
    #: Bytes that have arrived of a request whose headers, or trailers, are not whole; and of its body.
    _arrived = 0
    _of_body = 0

    @override
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait(self.headers_within)

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_headers or self._in_body:
            self._arrived += len(data)
            # What is no body: headers, trailers, and up to eight bytes around each byte of a body in chunks.
            if self._arrived - 9 * self._of_body > self.headers_size + len(data):
                self.transport.write(_TOO_LARGE)
                self.transport.close()
            # Only for requests that come in pieces: the others need no timer.
            if self._timer is None:
                self._wait(self.headers_within if self._in_headers else self.body_within)
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif self.timeout_keep_alive_task is None and self.cycle.response_complete:
            # An empty line after a reply is no request, and uvicorn has stopped its timer.
            self.timeout_keep_alive_task = self.loop.call_later(_KEEP_ALIVE, self.timeout_keep_alive_handler)

    @override
    def on_message_begin(self) -> None:
        self._in_headers = True
        self._arrived = self._of_body = 0
        super().on_message_begin()

    @override
    def on_body(self, body: bytes) -> None:
        self._of_body += len(body)
        super().on_body(body)

    @override
    def on_headers_complete(self) -> None:
        self._in_headers, self._in_body = False, True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().on_headers_complete()
        if not self.pipeline:
            self._running = self.cycle
        elif len(self.pipeline) == 1:
            # uvicorn reads on when it has replied: until then nobody would see that the client leaves.
            self.flow.resume_reading()
        if self._is_last:
            self.cycle.keep_alive = False

    @override
    def shutdown(self) -> None:
        """The server ends. Who has just connected is served: nobody else would, and the client has been accepted.

        That request, and one of which a part is there, must arrive soon.
        """
        if self.cycle is not None or self._is_last:  # pyright: ignore[reportUnnecessaryComparison]
            super().shutdown()
            if not self._in_body:
                return
        self._is_last = True
        if self._timer is not None:
            self._timer.cancel()
        self._wait(_LAST)

    @override
    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    @override
    def pause_writing(self) -> None:
        """More is written than the client reads: it has some time for that, if there is memory for it."""
        super().pause_writing()
        self._look_again()
        while sum(self.unread.values()) > self.unread_size:
            longest = next(iter(self.unread))
            del self.unread[longest]
            longest.transport.abort()

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        self.unread.pop(self, None)
        if self._slow is not None:
            self._slow.cancel()

    def _look_again(self, left: float = float("inf")) -> None:
        """Cut a client off that has read hardly anything since the last look."""
        now: int = self.transport.get_write_buffer_size()
        if left - now < _READ:
            self.transport.abort()
        else:
            self.unread[self] = now
            self._slow = self.loop.call_later(self.read_within, self._look_again, now)

    @override
    def on_response_complete(self) -> None:
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()

    @override
    def eof_received(self) -> None:
        """The client has left. This is a turn of the loop before the end of the connection."""
        self._tell_running()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn tells the last request only, and others may be before it.
        self.pipeline.clear()
        self._tell_running()
        self.unread.pop(self, None)
        for timer in (self._timer, self._slow):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _tell_running(self) -> None:
        """Tell the request that is handled now that its client has left."""
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()

    def _wait(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self.transport.close)


class _Server(uvicorn.Server):
    """One listener. Signals are for all of them, so none of them looks after those."""

    on_start: Callable[[], object]

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_start()

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
        for one in arrived:
            await loop.connect_accepted_socket(self._protocol, one, ssl=self.config.ssl)
        await super().shutdown(sockets)

    def _protocol(self) -> HttpToolsProtocol:
        made: HttpToolsProtocol = self.config.http_protocol_class(  # type: ignore[assignment, call-arg]
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
    bounds: dict[str, Any] = {
        "headers_within": limits.headers_within,
        "headers_size": limits.headers,
        "body_within": limits.body_within,
        "read_within": limits.read_within,
        "unread_size": limits.unread,
        "unread": {},
    }
    config = uvicorn.Config(
        app,
        http=type("Protocol", (_Protocol,), bounds),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(grace)),
        ssl_certfile=listen.cert,
        ssl_keyfile=listen.key,
    )
    return _Server(config)


def _url(bound: socket.socket, listen: Listen) -> str:
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"http{'s' if listen.cert else ''}://{host}:{bound.getsockname()[1]}"
