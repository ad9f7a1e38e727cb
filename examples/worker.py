"""Workers that fetch pages, any number of them in any number of processes.

The workers do not know each other and make no decisions. A page is a task in the tube `pages`. A worker puts its links
as a report into the tube `reports` before it acks the page: if the worker dies in between, the page is fetched again
and no link is lost. The tube decides when and how often a page is tried again.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import aiohttp
from selectolax.lexbor import LexborHTMLParser
from yarl import URL

import tubes
from tubes.worker import retry_after

AGENT = "tubes-crawler/0.1 (one request at a time per host)"
#: Seconds. A request must end before the tube gives its page to another worker; otherwise the host would see two.
TIMEOUT, TIME_TO_RUN = 30, 60
HTML = ("text/html", "application/xhtml+xml")
#: Temporary errors; any other status from 400 on is final.
TEMPORARY = {408, 425, 429, 500, 502, 503, 504}

log = logging.getLogger("crawler")


class FetchResult(NamedTuple):
    """The result of a request."""

    outcome: str
    #: 0 without a response.
    status: int = 0
    links: tuple[str, ...] = ()
    #: The pause in seconds that the host demands.
    retry_after: float = 0.0
    #: True if a retry is useless.
    final: bool = False


def resolve(base: URL, links: Iterable[str | None]) -> tuple[str, ...]:
    """Return the absolute URLs of a page's links, without fragments."""
    found: list[str] = []
    for link in links:
        with suppress(ValueError):  # Pages contain many invalid links.
            found.append(str(base.join(URL(link or "")).with_fragment(None)))
    return tuple(found)


async def read(response: aiohttp.ClientResponse) -> tuple[str, ...]:
    """Return the links of a response."""
    if response.status == 200 and response.content_type not in HTML:
        return ()  # Do not read the body, which may be a film; this closes the connection.
    text = await response.text(errors="replace")
    if response.status != 200:
        return resolve(response.url, response.headers.getall("Location", []))
    anchors = LexborHTMLParser(text).css("a[href]:not([rel~=nofollow])")
    return resolve(response.url, (anchor.attributes["href"] for anchor in anchors))


async def fetch(http: aiohttp.ClientSession, url: str) -> FetchResult:
    """Request a page."""
    try:
        # Treat redirects like links: they may lead to another host, which is not part of this task.
        async with http.get(URL(url), allow_redirects=False) as response:
            links = await read(response)
    except (aiohttp.ClientError, TimeoutError) as error:
        return FetchResult(f"{type(error).__name__} {error}")
    except Exception as error:  # Any error is possible: one odd page must not end the crawl.
        return FetchResult(f"{type(error).__name__} {error}", final=True)
    status = response.status
    asked = response.headers.get("Retry-After") if status in (429, 503) else None
    return FetchResult(
        outcome=f"{status} {response.reason}",
        status=status,
        links=links,
        retry_after=retry_after(asked) or 0.0,
        final=status >= 400 and status not in TEMPORARY,
    )


class Worker:
    """A worker, which fetches pages until its session is closed."""

    def __init__(
        self, pages: tubes.AsyncTube, reports: tubes.AsyncTube, http: aiohttp.ClientSession, interval: float
    ) -> None:
        self.pages, self.reports, self.http, self.interval = pages, reports, http, interval

    async def work(self) -> None:
        """Visit the pages of the tube."""
        async for task in self.pages:
            await self.visit(task)

    async def visit(self, task: tubes.AsyncTask) -> None:
        """Fetch a page, report its links, and ack, release or bury its task."""
        began, clock = time.time(), time.monotonic()
        result = await fetch(self.http, task.data)
        timing = {"began": began, "seconds": time.monotonic() - clock, "attempts": task.attempts}
        log.info("%s  %s  attempt %d, %d links", result.outcome, task.data, task.attempts, len(result.links))
        # The interval of the tube counts from take to take, but a request arrives at the host some time after the take
        # and before the response. So block the host for an interval, or its Retry-After, after the response too.
        pause = max(self.interval, result.retry_after)
        if pause and task.utube is not None:
            await self.pages.lane(task.utube).block(pause, extend=True)
        if result.final:
            await task.bury(result.outcome)
        elif result.status == 0 or result.status >= 400:
            await task.release()  # The tube decides about the delay and further attempts.
        else:
            report = {"url": task.data, "status": result.status, "links": result.links, **timing}
            await self.reports.put(report, key=task.data)
            await task.ack()


async def work(pages: tubes.AsyncTube, reports: tubes.AsyncTube, workers: int, interval: float) -> None:
    """Run workers in this process until the session of these tubes is closed."""
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=workers),
            headers={"User-Agent": AGENT},
            timeout=aiohttp.ClientTimeout(total=TIMEOUT),
        ) as http,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(workers):
            group.create_task(Worker(pages, reports, http, interval).work())
