"""A polite crawler: one request in flight per host, and an interval between two, with any number of workers.

    python examples/crawler.py https://example.com/ https://example.org/ --workers 20 --limit 200
    python examples/crawler.py https://example.com/ --tube-url redis://localhost

A page is a task in a `utubettl` tube, and its host is the lane of the task. While one task of a host is taken, and
for an interval between two tasks, the tube hands out no other task of this host. If a host demands a longer pause (429
with Retry-After), a worker blocks its lane. The URL is the key of the task, so the tube accepts each URL once. The
tube delays a failed page, for longer after each attempt, and buries it after the last one. Thus the workers
(`worker.py`) need no locks, no list of hosts and no memory, and do not know each other: they may run in other processes
on other machines. One process decides: it reads the found links from a second tube and puts them into the first. The
crawl stays on the given hosts. It does not read robots.txt: use it only for sites that expect you.
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

#: The maximum number of attempts per page and the delays between them. The tube buries a page after the last attempt.
ATTEMPTS, BACKOFF = 5, tubes.Backoff(1, factor=2, cap=60)
#: Seconds for which a URL is remembered after its page is done: longer than any crawl. Dropping the tubes ends it too.
KNOWN = 365 * 24 * 3600


def host_of(url: URL) -> str:
    """Return the host of a URL, with the port unless it is the default one."""
    return f"{url.host}" if url.is_default_port() else f"{url.host}:{url.port}"


class Crawler:
    """One crawl of at most `limit` URLs with two tubes, `pages` and `reports`."""

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
        #: The number of URLs put, and the number of pages reported.
        self.urls = self.fetched = 0
        #: Start URLs that redirect to another host, with the target.
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
        """Create a crawl with new tubes, whose names are unique because other crawls may use the same server.

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
        """Crawl until all pages are done, with `workers` workers in this process in addition to other processes.

        If it is cancelled, the tasks of these workers return to the tube.
        """
        urls = [url.with_fragment(None) for url in starts]
        self.starts |= {str(url) for url in urls}
        self.hosts |= {host_of(url) for url in urls}
        # The workers have a separate session: closing it ends their loops but leaves the tubes usable.
        async with await self.queue.session() as session, asyncio.TaskGroup() as group:
            pages, reports = await session.tube(self.pages.name), await session.tube(self.reports.name)
            group.create_task(worker.work(pages, reports, workers, self.interval))
            await self.offer(self.starts)
            await self.decide()
            await session.close()

    async def decide(self) -> None:
        """Process reports until the crawl is over."""
        while True:
            # Check before the last take: a page is reported before it is done. Check repeatedly: a page that the tube
            # buries is never reported.
            over = await self.over()
            task = await self.reports.take(timeout=0 if over else 0.2)
            if task:
                await self.process_report(**task.data)
                await task.ack()
            elif over:
                return

    async def over(self) -> bool:
        """Return True if all pages are done or buried."""
        tasks = (await self.pages.statistics()).tasks
        return tasks["total"] == tasks["buried"]

    async def process_report(self, url: str, status: int, links: Iterable[str], **_: object) -> None:
        """Process the report of a worker about a page. Ignore fields for other consumers."""
        self.fetched += status == 200
        if url in self.starts:
            self.moved += [(url, link) for link in links if status != 200 and not self.knows(link)]
        await self.offer(links)

    async def offer(self, urls: Iterable[str]) -> None:
        """Put URLs of the given hosts into the tube, up to the limit.

        A URL is the key of its page. The tube remembers it and does not accept it a second time.
        """
        urls = [url for url in urls if self.knows(url)]
        while urls and self.urls < self.limit:
            room = self.limit - self.urls
            tasks = await self.pages.put_many(map(self.item, urls[:room]))
            self.urls += sum(task.created_now for task in tasks)
            urls = urls[room:]

    def item(self, url: str) -> tubes.Item:
        """Return the task of a page."""
        if self.pages.driver.lane is None:
            return tubes.Item(url, key=url)
        return tubes.Item(url, key=url, utube=host_of(URL(url)))

    def knows(self, url: str) -> bool:
        """Return True if the host of a URL is one of the given hosts."""
        return host_of(URL(url)) in self.hosts

    async def report(self) -> list[str]:
        """Describe the result of the crawl in lines."""
        tasks = (await self.pages.statistics()).tasks
        left, buried = (
            tasks["ready"] + tasks["delayed"],
            [task async for task in self.pages.select("buried", limit=self.limit)],
        )
        lines = [f"{self.fetched} pages, {left} URLs left, {len(buried)} buried"]
        lines += [f"  {start}  redirects to another host: to crawl it, start at {url}" for start, url in self.moved]
        return lines + [f"  {task.data}  {task.reason}, attempt {task.attempts}" for task in buried]


async def crawl(options: argparse.Namespace) -> int:
    """Crawl and print the result, even after an interrupt."""
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
    """Parse an argument that is a URL to crawl."""
    url = URL(text)
    if url.scheme not in ("http", "https") or not url.host:
        raise argparse.ArgumentTypeError(f"{text!r} must begin with http:// or https:// and name a host")
    return url


def positive(text: str) -> int:
    """Parse an argument that is a positive number."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least 1")
    return int(text)


def main() -> int:
    """Run the command line. Exit codes: 0, 1 if no page was fetched, 2 for bad arguments, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description="Crawl sites, with one request at a time per host.")
    argument = parser.add_argument
    argument("urls", metavar="URL", type=http_url, nargs="+", help="start URLs; the crawl stays on their hosts")
    argument("--tube-url", metavar="URL", default="memory://", help="the URL of the tubes (%(default)s)")
    argument("--workers", metavar="N", type=positive, default=10, help="how many (%(default)s)")
    argument("--limit", metavar="PAGES", type=positive, default=100, help="the maximum number of pages (%(default)s)")
    argument(
        "--interval", metavar="S", type=float, default=1.0, help="seconds between two requests to a host (%(default)s)"
    )
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
