"""Those who fetch pages: any number of workers, in any number of processes.

They know nothing of each other and decide nothing. A page is a task in the tube `pages`; what a worker found in it goes
as a report into the tube `reports`, before the page is acked: should the worker die in between, the page is fetched
again and no link is lost.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Patience:
    """A page that fails comes back after `first_delay` seconds, then after twice as long, and so on.

    After `max_attempts` it is buried; so is at once what fails for good.
    """

    first_delay: float = 1.0
    max_attempts: int = 5


def resolve(base: URL, links: Iterable[str | None]) -> list[str]:
    """The absolute URLs of a page's links, without fragments."""
    found: list[str] = []
    for link in links:
        with suppress(ValueError):  # Pages are full of links that are none.
            found.append(str(base.join(URL(link or "")).with_fragment(None)))
    return found


async def read(response: aiohttp.ClientResponse) -> list[str]:
    """Where an answer leads to."""
    if response.status == 200 and response.content_type not in HTML:
        return []  # Unread, which closes the connection: it may be a film.
    text = await response.text(errors="replace")
    if response.status != 200:
        return resolve(response.url, response.headers.getall("Location", []))
    anchors = LexborHTMLParser(text).css("a[href]:not([rel~=nofollow])")
    return resolve(response.url, (anchor.attributes["href"] for anchor in anchors))


class Worker:
    """One worker: page after page, until its session is closed."""

    def __init__(
        self, pages: tubes.AsyncTube, reports: tubes.AsyncTube, http: aiohttp.ClientSession, patience: Patience
    ) -> None:
        self.pages, self.reports, self.http, self.patience = pages, reports, http, patience

    async def work(self) -> None:
        """Visit what the tube hands out."""
        async for task in self.pages:
            await self.visit(task)

    async def visit(self, task: tubes.AsyncTask) -> None:
        """Fetch a page, report what it links to, and say what becomes of its task."""
        try:
            # Redirects are links like others: they may lead to another host, and it is not that one's turn.
            async with self.http.get(URL(task.data), allow_redirects=False) as response:
                links = await read(response)
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
            log.info("%s  %s  %d links", outcome, task.data, len(links))
            await self.report(task, links=links, status=response.status)
            await task.ack()

    async def fail(self, task: tubes.AsyncTask, why: str, *, final: bool = False) -> None:
        """Put a page off, during which other pages of its host have their turn; or put it aside."""
        log.info("%s  %s  attempt %d", why, task.data, task.attempts)
        if final or task.attempts >= self.patience.max_attempts:
            await self.report(task, buried=why)
            await task.bury()
        elif "delay" in self.pages.driver.options:
            await task.release(delay=self.patience.first_delay * 2.0 ** (task.attempts - 1))
        else:
            await task.release()

    async def report(self, task: tubes.AsyncTask, **what: object) -> None:
        """Tell whoever decides how a page ended."""
        await self.reports.put({"id": task.id, "url": task.data, **what})


async def work(pages: tubes.AsyncTube, reports: tubes.AsyncTube, workers: int, patience: Patience) -> None:
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
            group.create_task(Worker(pages, reports, http, patience).work())
