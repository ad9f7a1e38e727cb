"""A polite crawler: never more than one request in flight per host, however many workers there are.

    python examples/crawler.py https://example.com/ https://example.org/ --workers 20 --limit 200
    python examples/crawler.py https://example.com/ --tube-url redis://localhost

A page is a task in a `utubettl` tube, and its host is the task's utube: while one task of a host is taken,
the tube hands out no other. So the workers (`worker.py`) need no locks and no list of hosts, and know nothing of
each other: they may be in other processes, on other machines. One process decides: it reads in a second tube what
they found, and puts what is new into the first. The crawl stays on the hosts that it was given. robots.txt is not
read: point it at sites that expect you.
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
from worker import Patience
from yarl import URL

import tubes


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
        patience: Patience | None = None,
    ) -> None:
        self.queue, self.pages, self.reports = queue, pages, reports
        self.limit, self.patience = limit, patience or Patience()
        self.hosts: set[str] = set()
        self.starts: set[str] = set()
        #: What was put, and what of it no worker has reported yet.
        self.seen: set[str] = set()
        self.open: set[str] = set()
        self.fetched = 0
        #: Where the crawl was to begin, and the other host that it was sent to from there.
        self.moved: list[tuple[str, str]] = []
        #: Why a task was buried, by its id.
        self.buried: dict[int, str] = {}

    @classmethod
    async def create(cls, queue: tubes.AsyncQueue, driver: str = "utubettl", **options: Any) -> Self:
        """A crawl with new tubes: the names are no other crawl's, which may be at work on the same server."""
        name = uuid4().hex[:8]
        ttr: dict[str, Any] = {"ttr": worker.TIME_TO_RUN} if driver == "utubettl" else {}
        pages = await queue.create_tube(f"pages-{name}", driver, **ttr)
        return cls(queue, pages, await queue.create_tube(f"reports-{name}"), **options)

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
            group.create_task(worker.work(pages, reports, workers, self.patience))
            await self.offer(self.starts)
            await self.decide()
            await session.close()

    async def decide(self) -> None:
        """Read reports until there are no more to come."""
        async for task in self.reports:
            report = task.data
            if report["url"] in self.open:  # Else a second report: a worker died before it could ack.
                await self.hear(**report)
                self.open.remove(report["url"])
            await task.ack()
            if not self.open:
                break
        # Who has reported the last pages may still be about to ack them.
        while (left := (await self.pages.statistics()).tasks)["total"] > left["buried"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def hear(self, id: int, url: str, status: int = 0, links: Iterable[str] = (), buried: str = "") -> None:
        """How one page ended."""
        if buried:
            self.buried[id] = buried
            return
        self.fetched += status == 200
        if url in self.starts:
            self.moved += [(url, link) for link in links if status != 200 and not self.knows(link)]
        await self.offer(links)

    async def offer(self, urls: Iterable[str]) -> None:
        """Put URLs into the tube, but those that are known or lead elsewhere, and no more than enough."""
        for url in urls:
            if url not in self.seen and len(self.seen) < self.limit and self.knows(url):
                self.seen.add(url)
                self.open.add(url)
                lane = {"utube": host_of(URL(url))} if self.pages.driver.lane else {}
                await self.pages.put(url, **lane)

    def knows(self, url: str) -> bool:
        """Whether a URL is of a host that the crawl was given."""
        return host_of(URL(url)) in self.hosts

    async def report(self) -> list[str]:
        """What became of the crawl, in lines."""
        tasks = (await self.pages.statistics()).tasks
        left, buried = tasks["ready"] + tasks["delayed"], tasks["buried"]
        lines = [f"{self.fetched} pages, {left} URLs left, {buried} buried"]
        lines += [f"  {start}  leads to another host: to crawl that one begin at {url}" for start, url in self.moved]
        return lines + [f"  {url}  {why}" for url, why in (await self.hopeless()).items()]

    async def hopeless(self) -> dict[str, str]:
        """What is buried, and why."""
        tasks = [await self.pages.peek(id) for id in self.buried]
        return {
            task.data: f"{self.buried[task.id]}, attempt {task.attempts}"
            for task in tasks
            if task.state is tubes.State.BURIED
        }


async def crawl(options: argparse.Namespace) -> int:
    """Crawl, and say how it went, also when it is interrupted."""
    async with tubes.aio.connect(options.tube_url) as queue:
        crawler = await Crawler.create(queue, limit=options.limit)
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
    parser = argparse.ArgumentParser(description="Crawl sites, with at most one request in flight per host.")
    argument = parser.add_argument
    argument("urls", metavar="URL", type=http_url, nargs="+", help="where to begin; the crawl stays there")
    argument("--tube-url", metavar="URL", default="memory://", help="where the tubes are (%(default)s)")
    argument("--workers", metavar="N", type=positive, default=10, help="how many (%(default)s)")
    argument("--limit", metavar="PAGES", type=positive, default=100, help="at most so many (%(default)s)")
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
