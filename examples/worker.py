"""Those who fetch pages: any number of workers, in any number of processes.

They know nothing of each other and decide nothing. A page is a task in the tube `pages`; what a worker found in it goes
as a report into the tube `reports`, before the page is acked: should the worker die in between, the page is fetched
again and no link is lost. When a page is tried again, and how often, is the business of the tube.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import aiohttp
from selectolax.lexbor import LexborHTMLParser
from yarl import URL

import tubes

AGENT = "tubes-crawler/0.1 (one request at a time per host)"
#: Seconds. A request must end before the tube gives its page to another worker: the host would see two.
TIMEOUT, TIME_TO_RUN = 30, 60
#: Seconds. No host is left alone for longer, whatever it asks for.
LONGEST_REST = 24 * 3600.0
HTML = ("text/html", "application/xhtml+xml")
#: Statuses that may pass; any other from 400 on is final.
PASSING = {408, 425, 429, 500, 502, 503, 504}

log = logging.getLogger("crawler")


class Answer(NamedTuple):
    """What came of a request."""

    outcome: str
    #: 0: there was no answer.
    status: int = 0
    links: tuple[str, ...] = ()
    #: For how many seconds the host asks to be left alone.
    retry_after: float = 0.0
    #: Whether trying again is of no use.
    final: bool = False


def resolve(base: URL, links: Iterable[str | None]) -> tuple[str, ...]:
    """The absolute URLs of a page's links, without fragments."""
    found: list[str] = []
    for link in links:
        with suppress(ValueError):  # Pages are full of links that are none.
            found.append(str(base.join(URL(link or "")).with_fragment(None)))
    return tuple(found)


async def read(response: aiohttp.ClientResponse) -> tuple[str, ...]:
    """Where an answer leads to."""
    if response.status == 200 and response.content_type not in HTML:
        return ()  # Unread, which closes the connection: it may be a film.
    text = await response.text(errors="replace")
    if response.status != 200:
        return resolve(response.url, response.headers.getall("Location", []))
    anchors = LexborHTMLParser(text).css("a[href]:not([rel~=nofollow])")
    return resolve(response.url, (anchor.attributes["href"] for anchor in anchors))


def seconds_of(retry_after: str, now: float) -> float:
    """What `Retry-After` asks for: it is a number of seconds, or a date. 0 for what is neither."""
    try:
        date = None if retry_after.isdecimal() else parsedate_to_datetime(retry_after)
        seconds = date.timestamp() - now if date else float(retry_after)
    except (ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), LONGEST_REST)


async def fetch(http: aiohttp.ClientSession, url: str) -> Answer:
    """Ask for a page."""
    try:
        # Redirects are links like others: they may lead to another host, and it is not that one's turn.
        async with http.get(URL(url), allow_redirects=False) as response:
            links = await read(response)
    except (aiohttp.ClientError, TimeoutError) as error:
        return Answer(f"{type(error).__name__} {error}")
    except Exception as error:  # The web is full of surprises: one odd page must not end the crawl.
        return Answer(f"{type(error).__name__} {error}", final=True)
    status = response.status
    asked = response.headers.get("Retry-After", "") if status in (429, 503) else ""
    return Answer(
        outcome=f"{status} {response.reason}",
        status=status,
        links=links,
        retry_after=seconds_of(asked, time.time()),
        final=status >= 400 and status not in PASSING,
    )


class Worker:
    """One worker: page after page, until its session is closed."""

    def __init__(
        self, pages: tubes.AsyncTube, reports: tubes.AsyncTube, http: aiohttp.ClientSession, interval: float
    ) -> None:
        self.pages, self.reports, self.http, self.interval = pages, reports, http, interval

    async def work(self) -> None:
        """Visit what the tube hands out."""
        async for task in self.pages:
            await self.visit(task)

    async def visit(self, task: tubes.AsyncTask) -> None:
        """Fetch a page, report what it links to, and say what becomes of its task."""
        began, clock = time.time(), time.monotonic()
        answer = await fetch(self.http, task.data)
        timing = {"began": began, "seconds": time.monotonic() - clock, "attempts": task.attempts}
        log.info("%s  %s  attempt %d, %d links", answer.outcome, task.data, task.attempts, len(answer.links))
        # The tube's interval runs from take to take. What the host saw came later than the take, now more, now less,
        # but before its answer: so from there on, too, it is left alone for an interval, or for as long as it asks.
        rest = max(self.interval, answer.retry_after)
        if rest and task.utube is not None:
            await self.pages.block(task.utube, rest)
        if answer.final:
            await task.bury(answer.outcome)
        elif answer.status == 0 or answer.status >= 400:
            await task.release()  # Until when, and whether there is another attempt, the tube knows.
        else:
            report = {"url": task.data, "status": answer.status, "links": answer.links, **timing}
            await self.reports.put(report, key=task.data)
            await task.ack()


async def work(pages: tubes.AsyncTube, reports: tubes.AsyncTube, workers: int, interval: float) -> None:
    """So many workers in this process, until the session of these tubes is closed."""
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
