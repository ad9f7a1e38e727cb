"""Tubes for one test alone."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from urllib.parse import parse_qsl, urlencode
from uuid import uuid4

from tubes import sync
from tubes.errors import TubeNotFound


@contextmanager
def isolated(url: str = "memory://") -> Generator[str]:
    """A URL at which nobody else has tubes; those that are left at the end are dropped.

    `memory://` becomes a store with a name of its own, so that the program can connect by the URL too. Of a server it
    is a prefix of its own, after the one that the URL has.

    >>> import tubes
    >>> with isolated() as url:
    ...     with tubes.connect(url) as queue:
    ...         _ = queue.create_tube("mail")
    ...     with tubes.connect(url) as again:
    ...         print(again.tubes())
    ['mail']
    """
    place, _, words = url.partition("?")
    unique = f"test-{uuid4().hex[:20]}"
    if place.startswith("memory://"):
        own = f"memory://{unique}"
        try:
            yield own
        finally:  # Not before: who connects first says with which codec and clock.
            with sync.connect(own) as queue:
                _drop_all(queue)
        return
    query = dict(parse_qsl(words, keep_blank_values=True))
    query["prefix"] = "-".join(filter(None, (query.get("prefix"), unique)))
    own = f"{place}?{urlencode(query)}"
    with sync.connect(own) as queue:
        try:
            yield own
        finally:
            _drop_all(queue)


def _drop_all(queue: sync.Queue) -> None:
    for name in queue.tubes():
        with suppress(TubeNotFound):
            queue.tube(name).drop(force=True)
