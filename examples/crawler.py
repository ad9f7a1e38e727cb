"""A polite crawler: one request in flight per host, and an interval between two, however many workers there are.

    python examples/crawler.py https://example.com/ https://example.org/ --workers 20 --limit 200
    python examples/crawler.py https://example.com/ --tube-url redis://localhost

A page is a task in a `utubettl` tube, and its host is the task's utube: while one task of a host is taken, and for
an interval from one to the next, the tube hands out no other. Where a host asks for more, 429 with Retry-After, a
worker blocks its utube. The URL is the task's key, which the tube lets in once. What fails rests in the tube for a
while, each time for longer, and is buried after some attempts. So the workers (`worker.py`) need no locks, no list of
hosts and no memory, and know nothing of each other: they may be in other processes, on other machines. One process
decides: it reads in a second tube what they found, and puts it into the first. The crawl stays on the hosts that it was
given. robots.txt is not read: point it at sites that expect you.
"""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Iterable
from typing import Any, Self
from uuid import uuid4

import worker
from yarl import URL

import tubes

#: How often a page is tried, and how long it rests in between. What fails at every attempt is buried by the tube.
ATTEMPTS, BACKOFF = 5, tubes.Backoff(1, factor=2, cap=60)
#: Seconds for which a URL is known after its page is done: longer than any crawl. It ends with the tubes at the latest.
KNOWN = 365 * 24 * 3600


def host_of(url: URL) -> str:
    """Who answers for a URL: its host, with the port unless it is the usual one."""
    return f"{url.host}" if url.is_default_port() else f"{url.host}:{url.port}"


class Crawler:
    """One crawl, of at most `limit` URLs, with two tubes of its own: `pages` and `reports`."""

    def __init__(
        self,
        queue: tubes.AsyncQueue,
        pages: tubes.AsyncTube,
        reports: tubes.AsyncTube,
        *,
        limit: int = 100,
        interval: float = 1.0,
    ) -> None:
        self.queue, self.pages, self.reports = queue, pages, reports
        self.limit, self.interval = limit, interval
        self.hosts: set[str] = set()
        self.starts: set[str] = set()
        #: How many URLs were put, and how many pages of them were reported.
        self.urls = self.fetched = 0
        #: Where the crawl was to begin, and the other host that it was sent to from there.
        self.moved: list[tuple[str, str]] = []

    @classmethod
    async def create(
        cls,
        queue: tubes.AsyncQueue,
        driver: str = "utubettl",
        *,
        limit: int = 100,
        interval: float = 1.0,
        attempts: int = ATTEMPTS,
        backoff: tubes.Backoff = BACKOFF,
    ) -> Self:
        """A crawl with new tubes: the names are no other crawl's, which may be at work on the same server.

        `interval`: seconds between two requests to a host.
        """
        name = uuid4().hex[:8]
        options: dict[str, Any] = {"max_attempts": attempts, "key_ttl": KNOWN}
        if driver == "utubettl":
            options |= {"ttr": worker.TIME_TO_RUN, "interval": interval, "backoff": backoff}
        pages = await queue.create_tube(f"pages-{name}", driver, **options)
        reports = await queue.create_tube(f"reports-{name}", key_ttl=KNOWN)
        return cls(queue, pages, reports, limit=limit, interval=interval)

    async def drop(self) -> None:
        """Remove the tubes."""
        await self.pages.drop(force=True)
        await self.reports.drop(force=True)

    async def run(self, starts: Iterable[URL], workers: int = 10) -> None:
        """Crawl until nothing is left to do, with so many workers in this process, besides those in others.

        If it is cancelled, the tube gets back what they had taken.
        """
        urls = [url.with_fragment(None) for url in starts]
        self.starts |= {str(url) for url in urls}
        self.hosts |= {host_of(url) for url in urls}
        # The workers have a session of their own: closing it ends their loops, and leaves the tubes in sight.
        async with await self.queue.session() as session, asyncio.TaskGroup() as group:
            pages, reports = await session.tube(self.pages.name), await session.tube(self.reports.name)
            group.create_task(worker.work(pages, reports, workers, self.interval))
            await self.offer(self.starts)
            await self.decide()
            await session.close()

    async def decide(self) -> None:
        """Read reports until there are no more to come."""
        while True:
            # Asked before the last look for reports: a page is reported first and done then. Asked again now and then:
            # nobody reports a page that the tube has buried.
            over = await self.over()
            task = await self.reports.take(timeout=0 if over else 0.2)
            if task:
                await self.hear(**task.data)
                await task.ack()
            elif over:
                return

    async def over(self) -> bool:
        """Whether all pages are done or buried."""
        tasks = (await self.pages.statistics()).tasks
        return tasks["total"] == tasks["buried"]

    async def hear(self, url: str, status: int, links: Iterable[str], **_: object) -> None:
        """What a worker found in a page. What else it reports is for others."""
        self.fetched += status == 200
        if url in self.starts:
            self.moved += [(url, link) for link in links if status != 200 and not self.knows(link)]
        await self.offer(links)

    async def offer(self, urls: Iterable[str]) -> None:
        """Put URLs into the tube, but those that lead elsewhere, and no more than enough.

        A URL is its page's key, which the tube remembers: it lets none in for a second time.
        """
        urls = [url for url in urls if self.knows(url)]
        while urls and self.urls < self.limit:
            room = self.limit - self.urls
            tasks = await self.pages.put_many(map(self.item, urls[:room]))
            self.urls += sum(task.created_now for task in tasks)
            urls = urls[room:]

    def item(self, url: str) -> tubes.Item:
        """A page as a task."""
        if self.pages.driver.lane is None:
            return tubes.Item(url, key=url)
        return tubes.Item(url, key=url, utube=host_of(URL(url)))

    def knows(self, url: str) -> bool:
        """Whether a URL is of a host that the crawl was given."""
        return host_of(URL(url)) in self.hosts

    async def report(self) -> list[str]:
        """What became of the crawl, in lines."""
        tasks = (await self.pages.statistics()).tasks
        left, buried = tasks["ready"] + tasks["delayed"], await self.pages.buried(self.limit)
        lines = [f"{self.fetched} pages, {left} URLs left, {len(buried)} buried"]
        lines += [f"  {start}  leads to another host: to crawl that one begin at {url}" for start, url in self.moved]
        return lines + [f"  {task.data}  {task.reason}, attempt {task.attempts}" for task in buried]


async def crawl(options: argparse.Namespace) -> int:
    """Crawl, and say how it went, also when it is interrupted."""
    async with tubes.aio.connect(options.tube_url) as queue:
        crawler = await Crawler.create(queue, limit=options.limit, interval=options.interval)
        began = time.monotonic()
        try:
            await crawler.run(options.urls, options.workers)
        finally:
            seconds = time.monotonic() - began
            rate = f"{seconds:.1f} s, {crawler.fetched / seconds:.1f} pages/s"
            print(*await crawler.report(), rate, sep="\n")
            await crawler.drop()
    return 0 if crawler.fetched else 1


def http_url(text: str) -> URL:
    """An argument that can be crawled."""
    url = URL(text)
    if url.scheme not in ("http", "https") or not url.host:
        raise argparse.ArgumentTypeError(f"{text!r} must begin with http:// or https:// and name a host")
    return url


def positive(text: str) -> int:
    """An argument that counts something."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least 1")
    return int(text)


def main() -> int:
    """The command line. Exit codes: 0, 1 if there was no page, 2 for bad arguments, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description="Crawl sites, with one request at a time per host.")
    argument = parser.add_argument
    argument("urls", metavar="URL", type=http_url, nargs="+", help="where to begin; the crawl stays there")
    argument("--tube-url", metavar="URL", default="memory://", help="where the tubes are (%(default)s)")
    argument("--workers", metavar="N", type=positive, default=10, help="how many (%(default)s)")
    argument("--limit", metavar="PAGES", type=positive, default=100, help="at most so many (%(default)s)")
    argument("--interval", metavar="S", type=float, default=1.0, help="seconds between two on a host (%(default)s)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        return asyncio.run(crawl(options))
    except tubes.InvalidOption as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
