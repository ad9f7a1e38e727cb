"""Tubes for a single test."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode
from uuid import uuid4

from tubes import sync
from tubes.backend.url import read
from tubes.errors import InvalidOption, TubeNotFound

if TYPE_CHECKING:
    from tubes.testing.server import LocalServer

#: URLs by short name; `server`: a server that is started for the tests.
_SHORT_NAMES: Final = {
    "memory": "memory://", "file": "file:", "redis": "server", "valkey": "server", "server": "server"
}  # fmt: skip


def expand_url(url: str) -> str:
    """Replace a short name by its URL or `server`. Raises `InvalidOption` for a text that is neither name nor URL.

    The error shows the text, because the user has just typed it, unless it may contain a password.

    >>> expand_url("memroy")
    Traceback (most recent call last):
    tubes.errors.InvalidOption: url='memroy': must be one of memory, file, redis, valkey, server, or a URL such as ...
    """
    url = _SHORT_NAMES.get(url, url)
    if url in ("file:", "server"):
        return url
    try:
        read(url)
    except InvalidOption as error:
        if "@" in url or "?" in url:
            raise
        names = f"must be one of {', '.join(_SHORT_NAMES)}, or a URL such as redis://localhost"
        raise InvalidOption(option="url", value=url, rule=error.facts["rule"] if ":" in url else names) from None
    return url


def start_server() -> LocalServer:
    """Start a Valkey, or a Redis if only that is installed. The error says what to install if neither is."""
    from tubes.testing.server import LocalServer, server_program  # This imports redis-py, which memory does not need.

    return LocalServer("redis" if server_program() is None and server_program("redis") else "valkey")


@contextmanager
def isolated(url: str = "memory://") -> Generator[str]:
    """Yield a URL for the tubes of a single test. Tubes that are left at the end are dropped.

    `memory://` becomes a store with a new name, so that the program can connect to it by the URL. `file:` becomes a
    new temporary folder, which is removed at the end. On a server a unique suffix is added to the prefix of the URL.
    The tubes of all its namespaces are dropped, too. Short names: `memory`, `file`, and `redis`, `valkey` or `server`
    for a server that is started for the test.

    >>> import tubes
    >>> with isolated() as url:
    ...     with tubes.connect(url) as queue:
    ...         _ = queue.create_tube("mail")
    ...     with tubes.connect(url) as other:
    ...         print(other.tubes())
    ['mail']
    """
    url = expand_url(url)
    if url == "server":
        with start_server() as server:
            yield server.url
        return
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
