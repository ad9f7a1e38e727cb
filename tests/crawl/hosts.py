"""Local hosts that log the start and the end of each request, and checks of this log.

Page `/p/N` of a host links to its pages `2N+1` and `2N+2`, and to the same page of the next host.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from aiohttp import web

#: A status, headers and a body.
Reply: TypeAlias = tuple[int, dict[str, str], str]


@dataclass
class Visit:
    """One request to a host, in seconds of the monotonic clock."""

    host: int
    path: str
    agent: str
    start: float
    end: float = 0.0
    #: The Retry-After of the reply, in seconds.
    retry_after: float = 0.0


@dataclass
class Hosts:
    """Some hosts with `pages` pages each.

    `special`: replies that precede the page, by host and path: a status, headers and a body. If the path has no page,
    the last of them is repeated.
    """

    count: int
    pages: int
    latency: float = 0.02
    special: dict[tuple[int, str], list[Reply]] = field(default_factory=dict)
    visits: list[Visit] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)

    async def reply(self, host: int, request: web.BaseRequest) -> web.Response:
        visit = Visit(host, request.path, request.headers.get("User-Agent", ""), time.monotonic())
        self.visits.append(visit)
        await asyncio.sleep(self.latency)
        status, headers, body = self._content(host, request.path)
        visit.end, visit.retry_after = time.monotonic(), float(headers.get("Retry-After", 0))
        return web.Response(status=status, headers=headers, text=body, content_type="text/html")

    def _content(self, host: int, path: str) -> Reply:
        number = int(path[3:]) if path[:3] == "/p/" and path[3:].isdecimal() else self.pages
        replies = self.special.get((host, path), [])
        if len(replies) > (number >= self.pages):
            return replies.pop(0)
        if replies:
            return replies[0]
        if number >= self.pages:
            return 404, {}, ""
        inner = [f"/p/{page}" for page in (2 * number + 1, 2 * number + 2) if page < self.pages]
        links = [*inner, f"{self.urls[(host + 1) % self.count]}{path}"]
        return 200, {}, "".join(f'<a href="{link}">x</a>' for link in links)

    # -- checks of the log ---------------------------------------------------------------------------------------------

    def fetched(self) -> Counter[tuple[int, str]]:
        return Counter((visit.host, visit.path) for visit in self.visits)

    def missing(self) -> set[tuple[int, str]]:
        pages = {(host, f"/p/{page}") for host in range(self.count) for page in range(self.pages)}
        return pages - self.fetched().keys()

    def repeated(self) -> int:
        """Return the number of repeated requests."""
        return sum(number - 1 for number in self.fetched().values())

    def violations(self, interval: float) -> list[str]:
        """Describe requests to a host that overlap, start too early, or do not wait for Retry-After."""
        found: list[str] = []
        for host in range(self.count):
            visits = sorted((visit for visit in self.visits if visit.host == host), key=lambda visit: visit.start)
            for before, after in pairwise(visits):
                gap = after.start - before.end
                # A process that is killed leaves a reply without its end.
                if before.end and gap < max(interval, before.retry_after) - 0.005:
                    found.append(f"{self.urls[host]}: {before.path}, {after.path} {gap:.3f} s later")
        return found


def listen_on_loopback() -> socket.socket:
    """Return a socket that listens on a port of all addresses 127.x.y.z, and on no other address; Linux only."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    listener.bind(("0.0.0.0", 0))
    listener.listen(1024)
    return listener


@contextmanager
def serve(hosts: Hosts, *, by_address: bool = False) -> Generator[Hosts]:
    """Run hosts in a separate thread.

    `by_address`: the hosts differ by address, not by port, and share one listener. This allows up to 65,536 hosts, and
    programs that ignore ports. Linux only.
    """
    loop = asyncio.new_event_loop()

    async def start(host: int) -> web.ServerRunner:
        async def handle(request: web.BaseRequest) -> web.Response:
            return await hosts.reply(host, request)

        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        hosts.urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        return runner

    async def start_shared() -> web.ServerRunner:
        listener = listen_on_loopback()
        names = [f"127.1.{host // 256}.{host % 256}:{listener.getsockname()[1]}" for host in range(hosts.count)]
        hosts.urls.extend(f"http://{name}" for name in names)
        numbers = {name: host for host, name in enumerate(names)}

        async def handle(request: web.BaseRequest) -> web.Response:
            return await hosts.reply(numbers[request.host], request)

        # Connections to thousands of hosts must not use up all file descriptors.
        runner = web.ServerRunner(web.Server(handle, keepalive_timeout=10))
        await runner.setup()
        await web.SockSite(runner, listener).start()
        return runner

    async def start_all() -> list[web.ServerRunner]:
        if by_address:
            return [await start_shared()]
        return [await start(host) for host in range(hosts.count)]

    async def stop_all(runners: list[web.ServerRunner]) -> None:
        for runner in runners:
            await runner.cleanup()

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runners = asyncio.run_coroutine_threadsafe(start_all(), loop).result(30)
    try:
        yield hosts
    finally:
        asyncio.run_coroutine_threadsafe(stop_all(runners), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
