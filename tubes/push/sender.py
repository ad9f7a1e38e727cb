"""Posts to URLs that others have named."""

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

#: Bytes of a reply that are read.
REPLY: Final = 64 * 1024
#: Redirects are not followed, and nothing is unpacked: a small reply could become a huge one.
_HEADERS: Final = {"accept-encoding": "identity", "user-agent": "tubes"}


class SendFailed(Exception):
    """There was no reply. The message says why, and has no more of the URL than its host."""


class _AddressRefused(OSError):
    """The address is not public."""


@dataclass(frozen=True)
class Reply:
    """What a receiver has replied."""

    status: int
    headers: Mapping[str, str]
    #: At most 64 kB of it.
    body: bytes
    #: Whether there was more.
    is_cut: bool = False


class _Connector(aiohttp.TCPConnector):
    """Reuses a connection only if nothing has arrived on it since the last reply.

    Otherwise a second reply of a receiver would count as the reply to the next request.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # pyright: ignore[reportUnknownMemberType]
        self._used: Final[WeakSet[Any]] = WeakSet()

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
    """Whether the socket of a connection has data that the event loop has not read yet."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))


class Sender:
    """Posts to URLs of others, and to nothing inside of your own network.

    `allow`: what URLs begin with, as in `https://example.com/hooks`; `https://` alone: any host.
    `networks`: addresses that may be reached though they are not public, as in `10.1.0.0/16`.
    `per_host`: how many requests go to one host at a time; the others wait.
    `timeout`: seconds from the look at DNS to the end of the reply.
    `resolver`: finds the addresses of hosts; None: that of the system.

    Names are looked up once for each connection, and the address that was found is checked as it is connected to, so a
    name whose address changes meanwhile leads nowhere. Redirects are not followed, proxies of the environment are not
    used, cookies are not kept, and at most 64 kB of a reply are read. A connection on which more than one reply arrives
    is closed.

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
        self._hosts: Final[WeakValueDictionary[tuple[Any, ...], asyncio.Semaphore]] = WeakValueDictionary()
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Sender]:
        """Keep connections open as long as this lasts: a `lifespan` of a worker."""
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
        """Post a body, and return the reply, whatever its status is.

        Raises `InvalidOption` for a URL that is not allowed, and `SendFailed` if there is no reply in time.
        """
        place = self.places.check(url)
        assert self._session is not None, "post is for the time in which `running` lasts"
        host = (place.host, place.port)
        slot = self._hosts.get(host)
        if slot is None:
            slot = self._hosts[host] = asyncio.Semaphore(self._per_host)
        async with slot:
            try:
                async with asyncio.timeout(self._timeout):
                    return await self._post(self._session, place, body, headers)
            except TimeoutError:
                why = f"no reply from {place.host} within {self._timeout:g} s"
            except aiohttp.ClientConnectorError as error:
                why = f"no connection to {place.host}: {error.os_error}"
            except (aiohttp.ClientError, OSError, ValueError) as error:
                why = f"no reply from {place.host}: {type(error).__name__}"
        raise SendFailed(why)

    async def _post(self, session: aiohttp.ClientSession, url: URL, body: bytes, headers: Mapping[str, str]) -> Reply:
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            found = bytearray()
            while len(found) <= REPLY and (part := await response.content.read(REPLY + 1 - len(found))):
                found += part
            if len(found) > REPLY:
                response.close()  # Rather a new connection than the rest of this reply.
            return Reply(response.status, response.headers, bytes(found[:REPLY]), len(found) > REPLY)

    def _socket(self, info: Any) -> socket.socket:
        """A socket for an address that was found. It is checked here, since this is the one that is connected to."""
        family, kind, protocol, _, address = info
        if not self.places.allows_address(address[0]):
            raise _AddressRefused(f"{address[0]} is not a public address")
        return socket.socket(family, kind, protocol)
