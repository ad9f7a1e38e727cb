"""A receiver of posted tasks, in the event loop of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

#: A reply: raw bytes, or a coroutine that writes it.
Reply = bytes | Callable[[asyncio.StreamWriter], Awaitable[object]]


@dataclass(frozen=True)
class Request:
    """A received request."""

    line: str
    headers: dict[str, str]
    body: bytes


def reply(status: int, body: bytes = b"", *headers: str) -> bytes:
    """Return the bytes of an HTTP reply."""
    lines = [f"HTTP/1.1 {status} Some", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Receiver:
    """A server on a free local port that replies with the results of `respond`. `requests`: all received requests."""

    def __init__(self, respond: Callable[[Request], Reply], host: str = "127.0.0.1", port: int = 0) -> None:
        self._respond: Final = respond
        self._host: Final = host
        self._port: Final = port
        self.requests: Final[list[Request]] = []
        #: The number of requests in progress, and its maximum so far.
        self.now = self.most = 0
        self._writers: Final[set[asyncio.StreamWriter]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, self._port)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://{self._host}:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                request = Request(head[0], headers, body)
                self.requests.append(request)
                self.now += 1
                self.most = max(self.most, self.now)
                try:
                    response: Any = self._respond(request)
                    if isinstance(response, bytes):
                        writer.write(response)
                        await writer.drain()
                    else:
                        await response(writer)
                finally:
                    self.now -= 1
        self._writers.discard(writer)
        writer.close()
