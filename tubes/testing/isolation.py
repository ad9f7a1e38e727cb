"""Tubes for a single test."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from urllib.parse import parse_qsl, urlencode
from uuid import uuid4

from tubes import sync
from tubes.errors import TubeNotFound


@contextmanager
def isolated(url: str = "memory://") -> Generator[str]:
    """Yield a URL for the tubes of a single test. Tubes that are left at the end are dropped.

    `memory://` becomes a store with a new name, so that the program can connect to it by the URL. `file:` becomes a
    new temporary folder, which is removed at the end. On a server a unique suffix is added to the prefix of the URL.
    The tubes of all its namespaces are dropped, too.

    >>> import tubes
    >>> with isolated() as url:
    ...     with tubes.connect(url) as queue:
    ...         _ = queue.create_tube("mail")
    ...     with tubes.connect(url) as other:
    ...         print(other.tubes())
    ['mail']
    """
    place, _, words = url.partition("?")
    unique = f"test-{uuid4().hex[:20]}"
    if place.startswith("memory://"):
        own = f"memory://{unique}?{words}" if words else f"memory://{unique}"
        try:
            yield own
        finally:  # Connect only now: the first connection decides the codec and the clock.
            with sync.connect(own) as queue:
                _drop_all(queue)
        return
    if place.partition(":")[0] == "file":
        with TemporaryDirectory(prefix="tubes-") as folder:
            yield f"file:{folder}/{unique}?{words}" if words else f"file:{folder}/{unique}"
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
    for namespace in ("", *queue.admin.namespaces()):
        with queue.namespace(namespace) as own:
            for name in own.tubes():
                with suppress(TubeNotFound):
                    own.tube(name).drop(force=True)
