"""Spiders as processes: `python -m tests.crawl.spiders NAME '{"settings": ..., "starts": [...]}'`.

At its end a spider prints the statistics and the finish reason as JSON. `cpu` is the processor time in seconds per
request since the tenth response, without the imports and compilations at the start.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import scrapy
from scrapy import signals
from scrapy.crawler import CrawlerProcess
from scrapy.exceptions import DontCloseSpider
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

ARGUMENTS: Final = {
    "bytes": b"\xff",
    "when": datetime(2026, 1, 2),
    "pair": (1, {2: {"x"}}),
    "$": None,
    "float": float("inf"),
}


class Follow(scrapy.Spider):
    """Follows all links."""

    name = "follow"

    def parse(self, response: Any, **kwargs: Any) -> Iterator[Any]:
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link, meta=response.meta if self.name == "copying" else None)


class Rules(CrawlSpider):
    """Follows all links by a rule, which stores their text in the meta."""

    name = "rules"
    rules = (Rule(LinkExtractor(), follow=True),)


class Again(scrapy.Spider):
    """Asks for its start page again if it is not the right one."""

    name = "again"

    def parse(self, response: Any, **kwargs: Any) -> Iterator[Any]:
        if response.text == "CAPTCHA":
            yield response.request.replace(dont_filter=True)


class Waiting(Follow):
    """Waits for requests of other programs when it is idle."""

    name = "waiting"

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.wait, signals.spider_idle)
        return spider

    def wait(self) -> None:
        raise DontCloseSpider


class Copying(Follow):
    """Copies the meta of each page to the requests for its links, as many spiders do."""

    name = "copying"


class Failing(Follow):
    """Raises in the callback of one page, and yields requests that cannot be stored."""

    name = "failing"

    def parse(self, response: Any, **kwargs: Any) -> Iterator[Any]:
        if response.url.endswith("/p/1"):
            raise ValueError("no such element")
        yield scrapy.Request(response.urljoin("/p/1?meta"), meta={"lock": object()})
        yield scrapy.Request(response.urljoin("/p/1?callback"), callback=print)
        yield scrapy.Request(response.urljoin("/p/1?slot"), meta={"download_slot": 0.5})
        yield scrapy.Request("http://a.example:99999/", meta={"verbatim_url": True})
        yield from super().parse(response)


class Urgent(scrapy.Request):
    """A request with its own defaults."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"priority": 10, "dont_filter": True, **kwargs})
        self.headers.setdefault("X-Urgent", "yes")


class Arguments(scrapy.Spider):
    """Passes arguments, priorities and meta to another callback."""

    name = "arguments"

    def parse(self, response: Any, **kwargs: Any) -> Iterator[Any]:
        for page in (1, 2, 3):  # in the order 3, 2, 1
            url = response.urljoin(f"/p/{page}")
            options: dict[str, Any] = {"cb_kwargs": ARGUMENTS, "meta": {"pair": (1, b"2")}, "priority": page - 1}
            yield Urgent(url, self.parse_page, headers={"X-Page": "\xe4"}, dont_filter=False, **options)

    def parse_page(self, response: Any, **kwargs: Any) -> None:
        assert kwargs == ARGUMENTS
        assert response.meta["pair"] == (1, b"2")
        assert response.request.headers["X-Page"] == "\xe4".encode()
        assert type(response.request) is Urgent
        assert response.request.priority == int(response.url[-1]) - 1
        assert response.request.dont_filter is False


SPIDERS = {spider.name: spider for spider in (Follow, Rules, Again, Waiting, Copying, Failing, Arguments)}


def main() -> None:
    name, options = sys.argv[1], json.loads(sys.argv[2])
    settings = {
        "SCHEDULER": "tubes.crawl.scrapy.Scheduler",
        "LOG_LEVEL": "INFO",
        "TELNETCONSOLE_ENABLED": False,
        "REMOTE_CONTROL_ENABLED": False,
        **options["settings"],
    }
    process = CrawlerProcess(settings)
    crawler = process.create_crawler(SPIDERS[name])
    responses, began = 0, 0.0

    def count() -> None:
        nonlocal responses, began
        responses += 1
        if responses == 10:
            began = time.process_time()

    crawler.signals.connect(count, signals.response_received)
    process.crawl(crawler, start_urls=options["starts"])
    process.start()
    assert crawler.stats is not None
    cpu = (time.process_time() - began) / (responses - 10) if responses > 10 else None
    stats = {**crawler.stats.get_stats(), "cpu": cpu}
    print(json.dumps(stats, default=str), flush=True)


if __name__ == "__main__":
    main()
