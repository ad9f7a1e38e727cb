"""The plainest of crawls, to compare others with: no tubes, no Spark, no manners, and all in memory."""

import asyncio
from collections.abc import Iterable

import aiohttp
import worker
from yarl import URL


async def crawl(starts: Iterable[str], attempts: int, at_once: int = 8) -> dict[str, int]:
    """The URLs that can be reached from these on their hosts, and with which status they answer, if it is below 400."""
    level = set(starts)
    hosts = {URL(url).authority for url in level}
    seen = set(level)
    found: dict[str, int] = {}
    turns = asyncio.Semaphore(at_once)

    async def visit(http: aiohttp.ClientSession, url: str) -> tuple[str, worker.Answer]:
        async with turns:
            answer = await worker.fetch(http, url)
            for _ in range(attempts - 1):
                if answer.final or 0 < answer.status < 400:
                    break
                await asyncio.sleep(answer.retry_after)
                answer = await worker.fetch(http, url)
            return url, answer

    async with aiohttp.ClientSession() as http:
        while level:
            answers = await asyncio.gather(*(visit(http, url) for url in level))
            level = set[str]()
            for url, answer in answers:
                if 0 < answer.status < 400:
                    found[url] = answer.status
                    level |= {link for link in answer.links if URL(link).authority in hosts}
            level -= seen
            seen |= level
    return found
