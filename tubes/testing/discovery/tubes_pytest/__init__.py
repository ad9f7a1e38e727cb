"""The pytest fixtures of tubes, which docs/testing.md describes.

This file is outside of the package because pytest imports it at every start, even if no test uses it, and importing any
module of tubes imports the whole package. So it imports tubes only when a test requests a fixture.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    import tubes
    from tubes.testing import LocalServer, ManualClock

#: Seconds to wait for a connection to a server.
_CONNECT_TIMEOUT: Final = 2.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--tubes-url` and the setting `tubes_url`."""
    help_text = "The store of tubes_queue: memory (the default), file (a folder), redis (starts a server), or a URL."
    parser.getgroup("tubes").addoption("--tubes-url", metavar="URL", default=None, help=help_text)
    parser.addini("tubes_url", help_text, default="memory")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """End the session at once if no server replies at `--tubes-url`."""
    place: str | None = session.config.getoption("--tubes-url")
    # Worker processes of pytest-xdist start later, so the main process has already checked.
    if place is None or hasattr(session.config, "workerinput") or session.config.getoption("collectonly"):
        return
    error = _connection_error(place)
    if error is not None:
        raise pytest.UsageError(f"--tubes-url: {error}")


def _connection_error(place: str) -> str | None:
    """Return the reason why tests cannot use this store, or None."""
    import tubes
    from tubes.testing.isolation import expand_url

    try:
        place = expand_url(place)
    except tubes.InvalidOption as error:
        return str(error)
    if place == "server":
        from tubes.testing import server_program

        if server_program() or server_program("redis"):
            return None
        return str(tubes.ExtraMissing(what="a server for tests", module="valkey-server", extra="test-server"))
    if place.startswith(("memory:", "file:")):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Each test reports warnings about the server itself.
            tubes.connect(place, connect_timeout=_CONNECT_TIMEOUT).close()
    except tubes.TubesError as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def _tubes_place(request: pytest.FixtureRequest) -> str:  # pyright: ignore[reportUnusedFunction]
    """The URL for all tests. It is checked once, when the first test requests it."""
    from tubes.testing.isolation import expand_url

    chosen: str | None = request.config.getoption("--tubes-url")
    if chosen is not None:
        return expand_url(chosen)
    place: str = request.config.getini("tubes_url")
    error = _connection_error(place)
    if error is not None:
        pytest.fail(f"tubes_url: {error}", pytrace=False)
    return expand_url(place)


@pytest.fixture
def tubes_clock() -> ManualClock:
    """A clock that stands still until the test advances it; `tubes_queue` of the same test uses it."""
    from tubes.testing import ManualClock

    return ManualClock()


@pytest.fixture(scope="session")
def tubes_server() -> Iterator[LocalServer]:
    """A private Valkey or Redis on a unix socket, one per process of pytest-xdist. Extra `test-server`."""
    from tubes.testing.isolation import start_server

    with start_server() as server:
        yield server


@pytest.fixture
def tubes_url(request: pytest.FixtureRequest, _tubes_place: str) -> Iterator[str]:
    """A URL that only this test uses: its tubes are dropped after the test."""
    from tubes.testing import isolated

    place = _tubes_place
    if place == "server":
        place = request.getfixturevalue("tubes_server").url
    with isolated(place) as url:
        yield url


@pytest.fixture
def tubes_queue(request: pytest.FixtureRequest, tubes_url: str) -> Iterator[tubes.Queue]:
    """A queue that only this test uses, with the JSON codec."""
    import tubes

    with tubes.connect(tubes_url, codec="json", clock=_clock(request)) as queue:
        yield queue


@pytest.fixture
def tubes_aio_queue(request: pytest.FixtureRequest, tubes_url: str) -> Iterator[tubes.AsyncQueue]:
    """A queue for asyncio with the same tubes as `tubes_queue`. The test should close it in its own event loop."""
    import asyncio

    import tubes

    queue = tubes.aio.connect(tubes_url, codec="json", clock=_clock(request))
    yield queue
    if not queue.closed:
        asyncio.run(queue.close())


def _clock(request: pytest.FixtureRequest) -> ManualClock | None:
    """Return the test's manual clock, if it requested one."""
    clock: ManualClock | None = None
    if "tubes_clock" in request.fixturenames:
        clock = request.getfixturevalue("tubes_clock")
    return clock
