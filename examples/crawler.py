"""A polite crawler: never more than one request in flight per host, however many workers there are.

    python examples/crawler.py https://example.com/ https://example.org/ --workers 20 --limit 200

A page is a task in a `utubettl` tube, and its host is the task's utube: while one task of a host is taken,
the tube hands out no other. So the workers need no locks and no list of hosts, and know nothing of each
other. They stay on the hosts they were given. robots.txt is not read: point it at sites that expect you.
"""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import aiohttp
from selectolax.lexbor import LexborHTMLParser
from yarl import URL

import tubes

AGENT = "tubes-crawler/0.1 (one request at a time per host)"
#: Seconds. A request must end before the tube gives its page to another worker: the host would see two.
TIMEOUT, TIME_TO_RUN = 30, 60
HTML = ("text/html", "application/xhtml+xml")
#: Statuses that may pass; any other from 400 on is final.
PASSING = {408, 425, 429, 500, 502, 503, 504}

log = logging.getLogger("crawler")


def host_of(url: URL) -> str:
    """Who answers for a URL: its host, with the port unless it is the usual one."""
    return f"{url.host}" if url.is_default_port() else f"{url.host}:{url.port}"


def resolve(base: URL, links: Iterable[str | None]) -> list[URL]:
    """The absolute URLs of a page's links, without fragments."""
    found: list[URL] = []
    for link in links:
        with suppress(ValueError):  # Pages are full of links that are none.
            found.append(base.join(URL(link or "")).with_fragment(None))
    return found


class Crawler:
    """One crawl, of at most `limit` URLs.

    A page that fails comes back after `first_delay` seconds, then after twice as long, and so on. After
    `max_attempts` it is buried; so is at once what fails for good.
    """

    def __init__(
        self,
        queue: tubes.aio.AsyncQueue,
        tube: tubes.aio.AsyncTube,
        *,
        limit: int = 100,
        first_delay: float = 1.0,
        max_attempts: int = 5,
    ) -> None:
        self.queue, self.tube, self.limit = queue, tube, limit
        self.first_delay, self.max_attempts = first_delay, max_attempts
        self.hosts: set[str] = set()
        self.starts: set[URL] = set()
        self.seen: set[URL] = set()
        self.pages = 0
        #: Where the crawl was to begin, and the other host that it was sent to from there.
        self.moved: list[tuple[str, URL]] = []
        #: Why a task was buried, by its id.
        self.buried: dict[int, str] = {}

    @staticmethod
    async def create_tube(queue: tubes.aio.AsyncQueue) -> tubes.aio.AsyncTube:
        """The tube that a crawler wants."""
        return await queue.create_tube("crawl", "utubettl", ttr=TIME_TO_RUN, if_not_exists=True)

    def options(self, url: URL) -> dict[str, Any]:
        """How a URL is put into the tube."""
        return {"utube": host_of(url)}

    def delay(self, attempts: int) -> float | None:
        """How many seconds a page waits after so many attempts."""
        return self.first_delay * 2.0 ** (attempts - 1)

    async def run(self, starts: Iterable[URL], workers: int = 10) -> None:
        """Crawl until nothing is left to do. If it is cancelled, the tube gets back what was taken."""
        pages = [url.with_fragment(None) for url in starts]
        self.starts |= set(pages)
        self.hosts |= {host_of(url) for url in pages}
        # The workers have a session of their own: closing it ends their loops, and leaves the tube in sight.
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=workers),
                headers={"User-Agent": AGENT},
                timeout=aiohttp.ClientTimeout(total=TIMEOUT),
            ) as http,
            await self.queue.session() as session,
        ):
            await self.offer(pages)
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self.work(session, http))

    async def work(self, session: tubes.aio.AsyncQueue, http: aiohttp.ClientSession) -> None:
        """One worker: page after page, until whoever deals with the last one closes the session."""
        async for task in await session.tube(self.tube.name):
            await self.visit(task, http)
            left = (await self.tube.statistics()).tasks
            if left["total"] == left["buried"]:
                await session.close()

    async def visit(self, task: tubes.AsyncTask, http: aiohttp.ClientSession) -> None:
        """Fetch a page, offer what it links to, and say what becomes of its task."""
        try:
            # Redirects are links like others: they may lead to another host, and it is not that one's turn.
            async with http.get(URL(task.data), allow_redirects=False) as response:
                found = await self.read(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            await self.fail(task, f"{type(error).__name__} {error}")
            return
        except Exception as error:  # The web is full of surprises: one odd page must not end the crawl.
            await self.fail(task, f"{type(error).__name__} {error}", final=True)
            return
        outcome = f"{response.status} {response.reason}"
        if response.status >= 400:
            await self.fail(task, outcome, final=response.status not in PASSING)
        else:
            log.info("%s  %s  %d links", outcome, task.data, len(found))
            self.pages += response.status == 200
            if URL(task.data) in self.starts:
                self.moved += [(task.data, url) for url in found if response.status != 200 and not self.knows(url)]
            await self.offer(found)  # Before the ack: should this worker die, no link is lost.
            await task.ack()

    async def read(self, response: aiohttp.ClientResponse) -> list[URL]:
        """Where an answer leads to."""
        if response.status == 200 and response.content_type not in HTML:
            return []  # Unread, which closes the connection: it may be a film.
        text = await response.text(errors="replace")
        if response.status != 200:
            return resolve(response.url, response.headers.getall("Location", []))
        anchors = LexborHTMLParser(text).css("a[href]:not([rel~=nofollow])")
        return resolve(response.url, (anchor.attributes["href"] for anchor in anchors))

    async def offer(self, urls: Iterable[URL]) -> None:
        """Put URLs into the tube, but those that are known or lead elsewhere, and no more than enough."""
        for url in urls:
            if url not in self.seen and len(self.seen) < self.limit and self.knows(url):
                self.seen.add(url)
                await self.tube.put(str(url), **self.options(url))

    def knows(self, url: URL) -> bool:
        """Whether a URL is of a host that the crawl was given."""
        return host_of(url) in self.hosts

    async def fail(self, task: tubes.AsyncTask, why: str, *, final: bool = False) -> None:
        """Put a page off, during which other pages of its host have their turn; or put it aside."""
        log.info("%s  %s  attempt %d", why, task.data, task.attempts)
        if final or task.attempts >= self.max_attempts:
            self.buried[task.id] = why
            await task.bury()
        else:
            await task.release(delay=self.delay(task.attempts))

    async def report(self) -> list[str]:
        """What became of the crawl, in lines."""
        tasks = (await self.tube.statistics()).tasks
        left, buried = tasks["ready"] + tasks["delayed"], tasks["buried"]
        lines = [f"{self.pages} pages, {left} URLs left, {buried} buried"]
        lines += [f"  {start}  leads to another host: to crawl that one begin at {url}" for start, url in self.moved]
        for task in [await self.tube.peek(id) for id in self.buried]:
            lines.append(f"  {task.data}  {self.buried[task.id]}, attempt {task.attempts}")
        return lines


async def crawl(options: argparse.Namespace) -> int:
    """Crawl, and say how it went, also when it is interrupted."""
    async with tubes.aio.connect(options.tube_url) as queue:
        crawler = Crawler(queue, await Crawler.create_tube(queue), limit=options.limit)
        began = time.monotonic()
        try:
            await crawler.run(options.urls, options.workers)
        finally:
            seconds = time.monotonic() - began
            rate = f"{seconds:.1f} s, {crawler.pages / seconds:.1f} pages/s"
            print(*await crawler.report(), rate, sep="\n")
    return 0 if crawler.pages else 1


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
    argument("--tube-url", metavar="URL", default="memory://", help="where the tube is (%(default)s)")
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
