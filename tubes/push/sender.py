"""Posts to URLs that other parties have chosen."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakSet, WeakValueDictionary

import aiohttp
from aiohttp.abc import AbstractResolver
from typing_extensions import override
from yarl import URL

from tubes.drivers.options import Seconds, positive, seconds
from tubes.push.places import Places

#: The maximum number of bytes that are read from a reply.
MAX_REPLY: Final = 64 * 1024
#: Asks for uncompressed replies: a small compressed one could become huge.
_HEADERS: Final = {"accept-encoding": "identity", "user-agent": "tubes"}


class SendFailed(Exception):
    """There was no reply. The message gives the reason, and contains only the host of the URL."""


class _AddressRefused(OSError):
    """The address is not public."""


@dataclass(frozen=True)
class Reply:
    """The reply of a receiver."""

    status: int
    headers: Mapping[str, str]
    #: The first 64 kB of the body.
    body: bytes
    #: True if the body was longer.
    is_cut: bool = False


class _Connector(aiohttp.TCPConnector):
    """Reuses a connection only if nothing has arrived on it since the last reply.

    Otherwise a receiver's unrequested second reply would be taken for the reply to the next request.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # pyright: ignore[reportUnknownMemberType]
        self._used: Final[WeakSet[object]] = WeakSet()

    @override
    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
        """Return an idle connection without unread data, or else a new one."""
        while True:
            connection: Any = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol not in self._used:
                self._used.add(protocol)
                return connection
            if not protocol.should_close and not _is_readable(connection.transport):
                return connection
            connection.close()


def _is_readable(transport: asyncio.Transport) -> bool:
    """Return True if the socket has data that the event loop has not read yet."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))


class Sender:
    """Posts to URLs of other parties, but not to addresses inside your own network.

    `allow`: prefixes of allowed URLs, such as `https://example.com/hooks`; `https://` alone allows any host.
    `networks`: networks that are allowed although they are not public, such as `10.1.0.0/16`.
    `per_host`: the maximum number of requests in flight to one host; others wait.
    `timeout`: seconds from the DNS lookup to the end of the reply.
    `resolver`: resolves host names; None: the system's resolver.

    Each connection resolves the name once and checks the very address that it connects to, which prevents DNS
    rebinding. Redirects are not followed, proxies from the environment are not used, cookies are not kept, and at most
    64 kB of a reply are read. A connection on which an unrequested reply arrives is closed.

    >>> sender = Sender(["https://example.com/hooks"], per_host=4)
    """

    def __init__(
        self,
        allow: Iterable[str],
        *,
        networks: Iterable[str] = (),
        per_host: int = 10,
        timeout: Seconds = 30.0,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self.places: Final = Places(allow, networks)
        self._per_host: Final = positive("per_host", per_host)
        self._timeout: Final = seconds("timeout", timeout)
        self._resolver: Final = resolver
        self._hosts: Final[WeakValueDictionary[tuple[object, ...], asyncio.Semaphore]] = WeakValueDictionary()
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Sender]:
        """Keep connections open inside the block. Use it as a `lifespan` of a worker."""
        connector = _Connector(limit=0, use_dns_cache=False, resolver=self._resolver, socket_factory=self._socket)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            trust_env=False,
            headers=_HEADERS,
        )
        try:
            yield self
        finally:
            await self._session.close()
            self._session = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Post a body, and return the reply, even if its status is an error.

        Raises `InvalidOption` for a URL that is not allowed, and `SendFailed` if no reply arrives in time.
        """
        place = self.places.check(url)
        assert self._session is not None, "post may only be called inside of `running`"
        host = (place.host, place.port)
        slot = self._hosts.get(host)
        if slot is None:
            slot = self._hosts[host] = asyncio.Semaphore(self._per_host)
        async with slot:
            try:
                async with asyncio.timeout(self._timeout):
                    return await self._post(self._session, place, body, headers)
            except TimeoutError:
                reason = f"no reply from {place.host} within {self._timeout:g} s"
            except aiohttp.ClientConnectorError as error:
                reason = f"no connection to {place.host}: {error.os_error}"
            except (aiohttp.ClientError, OSError, ValueError) as error:
                reason = f"no reply from {place.host}: {type(error).__name__}"
        raise SendFailed(reason)

    async def _post(self, session: aiohttp.ClientSession, url: URL, body: bytes, headers: Mapping[str, str]) -> Reply:
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            body_part = bytearray()
            while len(body_part) <= MAX_REPLY and (part := await response.content.read(MAX_REPLY + 1 - len(body_part))):
                body_part += part
            if len(body_part) > MAX_REPLY:
                response.close()  # A new connection is cheaper than reading the rest of this reply.
            return Reply(response.status, response.headers, bytes(body_part[:MAX_REPLY]), len(body_part) > MAX_REPLY)

    def _socket(self, info: Any) -> socket.socket:
        """Make a socket for a resolved address. Checks it here, because aiohttp connects to exactly this address."""
        family, kind, protocol, _, address = info
        if not self.places.allows_address(address[0]):
            raise _AddressRefused(f"{address[0]} is not a public address")
        return socket.socket(family, kind, protocol)
