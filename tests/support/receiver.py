"""A receiver of posted tasks, in the event loop of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

#: What a reply is: raw bytes, or a coroutine that writes for as long as it likes.
Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[object]]


@dataclass(frozen=True)
class Request:
    """What has arrived."""

    line: str
    headers: dict[str, str]
    body: bytes


def reply(status: int, body: bytes = b"", *headers: str) -> bytes:
    """A reply as it goes over the line."""
    lines = [f"HTTP/1.1 {status} Some", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Receiver:
    """Listens on a free port of a local address, and replies what `answer` says. `requests`: all that has arrived."""

    def __init__(self, answer: Callable[[Request], Answer], host: str = "127.0.0.1", port: int = 0) -> None:
        self._answer: Final = answer
        self._host: Final = host
        self._port: Final = port
        self.requests: Final[list[Request]] = []
        #: How many are handled now, and the most that there were.
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
                    answer: Any = self._answer(request)
                    if isinstance(answer, bytes):
                        writer.write(answer)
                        await writer.drain()
                    else:
                        await answer(writer)
                finally:
                    self.now -= 1
        self._writers.discard(writer)
        writer.close()
