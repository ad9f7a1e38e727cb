"""Compare the speed of a polite crawl with a hand-written queue, in memory and on a Valkey.

    python -m benchmarks.crawl [--hosts 1000] [--pages 100] [--workers 50] [--rounds 3]

A worker takes a page, fetches it (this only yields to the other workers), puts the 5 pages to which it links, and acks
it. Only one worker at a time fetches from a host, without an interval between two pages of a host. All workers are
asyncio tasks of one process. Ratios compare the pages per second of the same round; the table shows medians.

The hand-written queue in memory is an `asyncio.Queue` with an `asyncio.Lock` for each host. On a server it is a list
with a key for each host, which a worker sets with NX; if the key is already set, the worker puts the page back. This
queue does less than a tube: if a worker dies, its page is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from statistics import median
from typing import Any, NamedTuple, Protocol

import redis.asyncio
from rich.console import Console
from rich.table import Table

import tubes
from tubes.testing import LocalServer

LINKS = 5
#: Milliseconds after which the key of a busy host expires.
LOCK_MS = 60_000


class Page(NamedTuple):
    """A page of a host."""

    host: int
    number: int


class Web(NamedTuple):
    """All pages. The crawl starts with the first page of each host; there is one link to each other page."""

    hosts: int
    pages: int

    def links(self, page: Page) -> list[Page]:
        """Return the pages to which a page links."""
        numbers = range(LINKS * page.number + 1, min(LINKS * page.number + LINKS + 1, self.pages))
        return [Page((page.host + number) % self.hosts, number) for number in numbers]


class Frontier(Protocol):
    """The queue of pages that are known and not done."""

    async def add(self, pages: list[Page]) -> None:
        """Put pages."""

    async def work(self, fetch: Callable[[Page], Awaitable[list[Page]]]) -> None:
        """Take, fetch and finish pages until cancelled."""


class ByQueue:
    """The hand-written queue in memory."""

    def __init__(self) -> None:
        self._queue = asyncio.Queue[Page]()
        self._locks: dict[int, asyncio.Lock] = {}

    async def add(self, pages: list[Page]) -> None:
        """Put pages."""
        for page in pages:
            self._queue.put_nowait(page)

    async def work(self, fetch: Callable[[Page], Awaitable[list[Page]]]) -> None:
        """Take, fetch and finish pages until cancelled."""
        while True:
            page = await self._queue.get()
            async with self._locks.setdefault(page.host, asyncio.Lock()):
                await self.add(await fetch(page))


class ByList:
    """The hand-written queue on a server."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def add(self, pages: list[Page]) -> None:
        """Put pages."""
        if pages:
            await self._client.rpush("pages", *(f"{page.host} {page.number}" for page in pages))

    async def work(self, fetch: Callable[[Page], Awaitable[list[Page]]]) -> None:
        """Take, fetch and finish pages until cancelled."""
        while True:
            found: Any = await self._client.blpop(["pages"])
            page = Page(*map(int, found[1].split()))
            lock = f"host:{page.host}"
            if await self._client.set(lock, 1, nx=True, px=LOCK_MS):
                await self.add(await fetch(page))
                await self._client.delete(lock)
            else:
                await self.add([page])


class ByTube:
    """A tube with a lane for each host."""

    def __init__(self, tube: tubes.aio.AsyncTube) -> None:
        self._tube = tube

    async def add(self, pages: list[Page]) -> None:
        """Put pages."""
        if pages:
            await self._tube.put_many([tubes.Item([*page], utube=f"{page.host}") for page in pages])

    async def work(self, fetch: Callable[[Page], Awaitable[list[Page]]]) -> None:
        """Take, fetch and finish pages until cancelled."""
        while True:
            task = await self._tube.take()
            assert task is not None
            await self.add(await fetch(Page(*task.data)))
            await self._tube.ack(task)


async def crawl(frontier: Frontier, web: Web, workers: int) -> float:
    """Crawl all pages; return the pages per second. Raise if a page is fetched twice, or its host is busy."""
    done: set[Page] = set()
    busy: set[int] = set()
    all_done = asyncio.Event()

    async def fetch(page: Page) -> list[Page]:
        if page in done or page.host in busy:
            raise RuntimeError(f"{page} was fetched already, or its host is busy")
        busy.add(page.host)
        await asyncio.sleep(0)
        busy.remove(page.host)
        done.add(page)
        if len(done) == web.hosts * web.pages:
            all_done.set()
        return web.links(page)

    began = time.perf_counter()
    await frontier.add([Page(host, 0) for host in range(web.hosts)])
    async with asyncio.TaskGroup() as group:
        crew = [group.create_task(frontier.work(fetch)) for _ in range(workers)]
        await all_done.wait()
        lasted = time.perf_counter() - began
        for worker in crew:
            worker.cancel()
    return len(done) / lasted


@asynccontextmanager
async def open_tube_frontier(url: str) -> AsyncGenerator[Frontier]:
    """Create a tube, and drop it at the end."""
    async with tubes.aio.connect(url) as queue:
        tube = await queue.create_tube("pages", "utubettl", ttr=60)
        yield ByTube(tube)
        await tube.drop()


@asynccontextmanager
async def open_list_frontier(server: LocalServer) -> AsyncGenerator[Frontier]:
    """Create a list, and delete it at the end."""
    # A worker waits for a page without a limit.
    async with redis.asyncio.Redis(unix_socket_path=str(server.socket), socket_timeout=None) as client:
        yield ByList(client)
        await client.delete("pages")


async def measure(web: Web, workers: int, rounds: int, server: LocalServer) -> dict[str, list[float]]:
    """Return the pages per second of each round, by name of the crawl."""
    rates: dict[str, list[float]] = {}
    for _ in range(rounds):
        rates.setdefault("asyncio.Queue and locks", []).append(await crawl(ByQueue(), web, workers))
        async with open_tube_frontier("memory://") as frontier:
            rates.setdefault("tube in memory", []).append(await crawl(frontier, web, workers))
        async with open_list_frontier(server) as frontier:
            rates.setdefault("list and keys on Valkey", []).append(await crawl(frontier, web, workers))
        async with open_tube_frontier(server.url) as frontier:
            rates.setdefault("tube on Valkey", []).append(await crawl(frontier, web, workers))
    return rates


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.crawl", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--pages", type=int, default=100, help="pages of each host")
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    web = Web(arguments.hosts, arguments.pages)
    with LocalServer() as server:
        rates = asyncio.run(measure(web, arguments.workers, arguments.rounds, server))
    table = Table("crawl", "pages per second", "ratio to the hand-written queue")
    baselines = {"tube in memory": "asyncio.Queue and locks", "tube on Valkey": "list and keys on Valkey"}
    for name, found in rates.items():
        baseline = rates[baselines.get(name, name)]
        ratio = median(ours / theirs for ours, theirs in zip(found, baseline, strict=True))
        table.add_row(name, f"{median(found):,.0f}", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
