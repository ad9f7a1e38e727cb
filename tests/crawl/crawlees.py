"""Run a Crawlee crawler as a process: `python -m tests.crawl.crawlees '{"url": ..., "starts": [...]}'`."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from urllib.parse import urljoin

from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.http_clients import ImpitHttpClient
from crawlee.storage_clients import MemoryStorageClient

import tubes
from tubes.crawl.crawlee import TubeRequestManager


async def crawl(url: str, starts: list[str], partitions: int | None = None, **options: Any) -> None:
    async with tubes.aio.connect(url) as queue:
        polite: Any = {"interval": 0.2, "interval_from": "ack", "key_ttl": 3600, "partitions": partitions}
        tube = await queue.create_tube("pages", "utubettl", if_exists="keep", **polite)
        crawler = ParselCrawler(
            request_manager=TubeRequestManager(tube),
            http_client=ImpitHttpClient(follow_redirects=False),
            storage_client=MemoryStorageClient(),
            configure_logging=False,
            **options,
        )

        @crawler.router.default_handler
        async def handle(context: ParselCrawlingContext) -> None:
            links = context.selector.css("a::attr(href)").getall()
            location = context.http_response.headers.get("location")
            links += [location] if location else []
            await context.add_requests([urljoin(context.request.url, link) for link in links])

        result = await crawler.run(starts)
        print(json.dumps({"finished": result.requests_finished, "failed": result.requests_failed}))


if __name__ == "__main__":
    asyncio.run(crawl(**json.loads(sys.argv[1])))
