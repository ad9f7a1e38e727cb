"""Connections: how much is read from them, and when they close.

A connection handles one request at a time. uvicorn parses requests and writes replies; this module decides what uvicorn
gets to parse. A request goes through these stages:

- `new`: nothing has arrived since the connection was made.
- `headers`: some of the headers have arrived.
- `body`: the headers are complete, and the application runs. uvicorn pauses reading while it holds much of the body.
- `complete`: the request is complete. The connection is busy until the reply is complete, and then idle.

While the connection is busy, further input is kept as bytes. Reading pauses if there is much of it; otherwise it
continues, to detect disconnects. The parser cannot stop at the end of a request. So `on_message_begin` raises for the
next request, `_parse` computes where that begins, and a new parser reads it after the reply. After a chunked body its
beginning is unknown, so the reply says `Connection: close`.

There are no timers per connection. A periodic `sweep` closes connections that stay in one stage too long, and aborts
connections whose clients do not read. `Buffers` bounds the bytes that all connections hold.

The remaining body is discarded if its reply was written early. If that reply is also the last one, such as a 413,
`close` lingers: it ends the output, but discards input for a while. The kernel resets a connection that is closed with
input unread, and then the client may lose the reply.

When the service stops, each connection handles one more request within two seconds. Its reply says
`Connection: close`, so clients that keep connections see no reset.
"""

from __future__ import annotations

import math
import socket
import sys
from contextlib import suppress
from http import HTTPStatus
from struct import unpack_from
from typing import Any, Final

from starlette.exceptions import HTTPException
from typing_extensions import override

from tubes.errors import needs
from tubes.serve.problems import problem
from tubes.serve.service import Limits

with needs("tubes.serve", "http"):
    from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Seconds for the last request when the service stops, and for lingering without a body.
FINAL_TIMEOUT: Final = 2.0
#: Maximum header lines of a request.
_MAX_HEADER_LINES: Final = 200
#: Bytes of pipelined input after which a connection pauses reading.
_MAX_INPUT: Final = 2**16
#: Maximum bytes of a body that are discarded after the reply.
_MAX_DRAIN: Final = 2**26
#: Bytes of a long reply that a client must read within `read_within`.
_MIN_READ: Final = 2**16
#: Seconds for which an idle connection stays open.
_KEEP_ALIVE: Final = 75.0
#: Seconds for which nothing arrives from the kernel of a client before its connection is aborted, and between checks.
_MAX_SILENCE: Final = 20.0
_SILENCE_INTERVAL: Final = 5.0
#: Options of sockets and their values: the kernel asks silent clients every few seconds whether they are still there.
_KEEPALIVE_OPTIONS: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPALIVE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
#: The offset of `tcpi_last_data_recv` and `tcpi_last_ack_recv` in `struct tcp_info`: milliseconds since then.
_LAST_RECEIVED: Final = 52


def watch_peers(listener: socket.socket, timeout: float) -> None:
    """Make the kernel notice dead clients of a listener. Accepted sockets inherit the options.

    `timeout`: seconds after which it gives up on unacknowledged data, or on a client that does not read.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {**_KEEPALIVE_OPTIONS, "TCP_USER_TIMEOUT": round(timeout * 1000)}.items():
        with suppress(AttributeError, OSError):  # The platform does not have it.
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Buffers:
    """The bytes that connections hold: input that is not parsed yet, and replies that clients have not read."""

    def __init__(self, limit: int) -> None:
        self._limit: Final = limit
        self._sizes: Final[dict[HttpConnection, int]] = {}
        self._total = 0

    def set(self, connection: HttpConnection, size: int) -> None:
        """Record what a connection holds. Beyond the limit, abort the connections that have held something longest."""
        self._total += size - self._sizes.get(connection, 0)
        if size:
            self._sizes[connection] = size
        else:
            self._sizes.pop(connection, None)
        while self._total > self._limit:
            oldest = next(iter(self._sizes))
            self._total -= self._sizes.pop(oldest)
            oldest.abort()


class HttpConnection(HttpToolsProtocol):
    """A connection. uvicorn also uses it as the transport, so that `close` can linger."""

    limits: Limits
    buffers: Buffers
    _socket_transport: Any
    _stage = "new"
    #: Input after the current request.
    _input = b""
    _is_paused = False
    #: Bytes of the request that have arrived, bytes of its body, and the last bytes of unfinished headers.
    _arrived = 0
    _body_arrived = 0
    _tail = b""
    _is_last = False
    _is_lingering = False
    _drain_left = _MAX_DRAIN
    #: The state at the last sweep, and the time at which that state began.
    _swept_state: object = None
    _state_began = 0.0
    _check_at = 0.0
    #: Unread bytes of the reply when the client last made progress, and that time.
    _unread = math.inf
    _read_at = 0.0

    @override
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._socket_transport = transport
        self.write = transport.write
        self.abort = transport.abort
        facade: Any = self
        self.transport = facade

    @override
    def data_received(self, data: bytes) -> None:
        if self._is_lingering:
            self._discard(data)
        elif self._is_busy:
            self._input += data
            self._account()
        elif self._stage != "body" and len(data) > (header_room := self._header_room):
            # The parser would accept longer headers if they arrived in one piece.
            self._parse(data[:header_room])
            self.data_received(data[header_room:])
        else:
            self._parse(data)

    @property
    def _header_room(self) -> int:
        """Bytes until the headers are too long."""
        return self.limits.headers + 1 - (self._arrived if self._stage == "headers" else 0)

    @property
    def _is_busy(self) -> bool:
        """True if a request is complete and its reply is not."""
        return self._stage == "complete" and not self.cycle.response_complete

    def _parse(self, data: bytes) -> None:
        """Feed the parser, and keep the input after the end of the request."""
        cycle, stage, body = self.cycle, self._stage, self._body_arrived
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade:
            # The service does not upgrade. The parser does not read the body of such a request.
            self.cycle.keep_alive = False
        except HttpParserError:
            if not self._is_busy:
                if self._stage == "headers" and len(self.headers) > _MAX_HEADER_LINES:
                    self._refuse_headers()
                else:
                    self._refuse(400, "the request is not valid HTTP/1.1")
                return
            # The next request made the parser stop, see `on_message_begin`: find where it begins.
            size = self._body_size()
            if size is None or (stage == "body" and self.cycle is not cycle):
                self.cycle.keep_alive = False
            elif stage == "body":
                self._keep_input(data[size - body :])
            else:
                start = 0 if self._tail else len(data) - len(data.lstrip(b"\r\n"))
                end = (self._tail + data).index(b"\r\n\r\n", start) + 4 - len(self._tail)
                self._keep_input(data[end + size :])
        if self._stage in ("headers", "body"):
            self._check_partial(data)
        else:
            self._tail = b""

    def _keep_input(self, data: bytes) -> None:
        self._input = data
        self.parser = HttpRequestParser(self)
        self._account()

    def _check_partial(self, data: bytes) -> None:
        """Bound the headers and trailers of an incomplete request, and a body that is discarded after its reply."""
        self._tail = (self._tail + data)[-3:] if self._stage == "headers" else b""
        self._arrived += len(data)
        if self._stage == "body" and self.cycle.response_complete:
            self._discard(data)
        # Up to eight bytes of framing around each byte of a chunked body are not trailers.
        elif self._arrived - 9 * self._body_arrived > self.limits.headers or len(self.headers) > _MAX_HEADER_LINES:
            self._refuse_headers()

    def _body_size(self) -> int | None:
        """Return the bytes of the body according to the headers; None for a chunked body."""
        headers = dict(self.headers)
        return None if b"transfer-encoding" in headers else int(headers.get(b"content-length", 0))

    def _refuse_headers(self) -> None:
        rule = f"the headers with the path may have {self.limits.headers} bytes and {_MAX_HEADER_LINES} lines"
        self._refuse(431, rule)

    def _refuse(self, status: int, detail: str) -> None:
        if self._stage != "body" or not self.cycle.response_started:
            reply = problem(HTTPException(status, detail, {"connection": "close"}))
            lines = [b"%b: %b\r\n" % header for header in reply.raw_headers]
            start = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
            self.write(b"".join([start, *lines, b"\r\n", reply.body]))
        self.close()

    def _discard(self, data: bytes) -> None:
        self._drain_left -= len(data)
        if self._drain_left <= 0:
            self._socket_transport.close()

    @override
    def on_message_begin(self) -> None:
        if self._is_busy:
            raise ValueError("one request at a time")  # Stops the parser.
        self._stage = "headers"
        self._arrived = self._body_arrived = 0
        super().on_message_begin()

    @override
    def on_headers_complete(self) -> None:
        if len(self.headers) > _MAX_HEADER_LINES:
            raise ValueError("too many headers")  # Stops the parser.
        super().on_headers_complete()
        self._stage = "body"
        if self._is_last:
            self.cycle.keep_alive = False

    @override
    def on_body(self, body: bytes) -> None:
        self._body_arrived += len(body)
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._stage = "complete"
        super().on_message_complete()
        # uvicorn may have paused reading within the body. Read on to detect a disconnect.
        self.flow.resume_reading()

    @override
    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.is_closing():
            return
        self._drain_left = _MAX_DRAIN
        self.flow.resume_reading()
        if self._input:
            data, self._input = self._input, b""
            self.data_received(data)
            self._account()

    def close(self) -> None:
        """Close the connection; linger if the client may still be sending."""
        if self.is_closing() or (self._stage == "complete" and not self._input):
            self._socket_transport.close()
            return
        self._is_lingering = True
        size = self._body_size() if self._stage == "body" else None
        self._drain_left = _MAX_DRAIN if size is None else min(_MAX_DRAIN, size - self._body_arrived)
        self._input = b""
        self._account()
        self.flow.resume_reading()
        self.eof_received()
        if self._socket_transport.can_write_eof():
            self._socket_transport.write_eof()

    def is_closing(self) -> bool:
        """True if no further reply can be written."""
        return self._is_lingering or bool(self._socket_transport.is_closing())

    @override
    def shutdown(self) -> None:
        """Serve one more request: the client may send it before it learns that the service stops."""
        self._is_last = True
        self._swept_state = None
        if self.cycle is not None and not self.cycle.response_started:  # pyright: ignore[reportUnnecessaryComparison]
            self.cycle.keep_alive = False

    def sweep(self, now: float) -> None:
        """Close the connection if the client is gone or too slow. Called periodically."""
        if now >= self._check_at:
            self._check_at = now + _SILENCE_INTERVAL
            if self._is_gone():
                self.abort()
                return
        if self.flow.write_paused:
            unread: int = self._socket_transport.get_write_buffer_size()
            if self._unread - unread >= _MIN_READ:
                self._unread, self._read_at = unread, now
            elif now - self._read_at > self.limits.read_within:
                self.abort()
            self._account()
        state = (self._stage, self._is_lingering, self.cycle, self._is_busy)
        if state != self._swept_state:
            self._swept_state, self._state_began = state, now
            return
        if self._is_busy and not self._is_lingering:
            return
        if self._stage == "body":
            seconds = self.limits.body_within
        elif self._is_lingering:
            seconds = FINAL_TIMEOUT
        else:
            seconds = _KEEP_ALIVE if self._stage == "complete" else self.limits.headers_within
        if now - self._state_began > (min(seconds, FINAL_TIMEOUT) if self._is_last else seconds):
            self._socket_transport.close()

    def _is_gone(self) -> bool:
        """True if the client's kernel replies to nothing, not even to probes; always False if the platform cannot tell.

        The timeouts of the kernel would not do: the next bytes of a reply begin a new one, and a client that reads
        slowly ends them, too.
        """
        if sys.platform != "linux" or self._socket_transport.is_closing():
            return False
        connected = self._socket_transport.get_extra_info("socket")
        info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED + 8)
        return len(info) == _LAST_RECEIVED + 8 and min(unpack_from("=2I", info, _LAST_RECEIVED)) > _MAX_SILENCE * 1000

    def _account(self) -> None:
        """Record the bytes that this connection holds, and pause reading while much input is kept."""
        is_paused = len(self._input) > _MAX_INPUT
        if is_paused != self._is_paused and not self._socket_transport.is_closing():
            self._is_paused = is_paused
            (self._socket_transport.pause_reading if is_paused else self._socket_transport.resume_reading)()
        unread: int = self._socket_transport.get_write_buffer_size() if self.flow.write_paused else 0
        self.buffers.set(self, len(self._input) + unread)

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = math.inf
        self._account()

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        self._account()

    @override
    def eof_received(self) -> None:
        """Notify the current request that its client has left, one loop iteration before the connection is lost."""
        if self.cycle is not None and not self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lingering = True
        super().connection_lost(exc)
        self.buffers.set(self, 0)
