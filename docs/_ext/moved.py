"""Old addresses of pages. At each of them, the built pages have one that leads to the new address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

NEW_ADDRESSES = {
    "index": "docs/index",
    "docs/howto/from-later": "docs/howto/other-apis#later",
    "docs/howto/from-lmstfy": "docs/howto/other-apis#lmstfy",
    "docs/howto/from-queue": "docs/howto/migrate#from-queuequeue",
    "docs/howto/from-rq-celery": "docs/howto/migrate#from-rq-or-celery",
    "docs/howto/from-scrapy-redis": "docs/howto/migrate#from-scrapy-redis",
    "docs/howto/from-tarantool": "docs/howto/migrate#from-tarantools-queue",
    "docs/howto/leases": "docs/howto/shutdown#hand-over-one-task",
    "docs/howto/logging": "docs/metrics#logs",
    "docs/howto/pauses": "docs/howto/rate-limits#pause-a-tube",
    "docs/howto/repair": "docs/howto/troubleshooting#repair-a-damaged-tube",
    "docs/howto/several-tubes": "docs/howto/batches#take-from-several-tubes",
    "docs/howto/sizing": "docs/howto/deployment#sizing",
    "docs/howto/time-in-tests": "docs/testing#time",
    "docs/howto/tokens": "docs/howto/serving#tokens",
    "docs/howto/types": "docs/reference/tasks#types-of-data",
    "docs/howto/without-python": "docs/serve#start-it-without-python",
}


def add_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Return the old address, the new one and the template of each of these pages."""
    for old, new in NEW_ADDRESSES.items():
        page, mark, section = new.partition("#")
        yield old, {"target": app.builder.get_relative_uri(old, page) + mark + section}, "moved.html"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-collect-pages", add_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
