"""The fixtures of tubes for pytest. docs/testing.md is their manual.

Not in the package: pytest imports this file at every start, even if no test uses it, and importing a part of tubes
imports all of it. So it imports tubes only when a test asks for a fixture.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    import tubes
    from tubes.testing import LocalServer, ManualClock

#: Seconds to wait for a server.
_PATIENCE: Final = 2.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--tubes-url`, and `tubes_url` in the configuration."""
    about = "The store of tubes_queue: memory:// (the default), file (in a folder), server (starts one), or a URL."
    parser.getgroup("tubes").addoption("--tubes-url", metavar="URL", default=None, help=about)
    parser.addini("tubes_url", about, default="memory://")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """End the session at once if no server replies at `--tubes-url`."""
    place: str | None = session.config.getoption("--tubes-url")
    # pytest-xdist starts its processes after this.
    if place is None or hasattr(session.config, "workerinput") or session.config.getoption("collectonly"):
        return
    why = _trouble_with(place)
    if why is not None:
        raise pytest.UsageError(f"--tubes-url: {why}")


def _trouble_with(place: str) -> str | None:
    """Why tests cannot use this place; None if they can."""
    import tubes

    if place == "server":
        from tubes.testing import server_program

        if server_program() or server_program("redis"):
            return None
        return str(tubes.ExtraMissing(what="--tubes-url=server", module="valkey-server", extra="server"))
    if place.startswith("memory://") or place in ("file", "file:"):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # A wrong setup is an error of each test.
            tubes.connect(place, connect_timeout=_PATIENCE).close()
    except tubes.TubesError as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def _tubes_place(request: pytest.FixtureRequest) -> str:  # pyright: ignore[reportUnusedFunction]
    """The URL for all tests. It is tried once, when the first test asks for it."""
    chosen: str | None = request.config.getoption("--tubes-url")
    if chosen is not None:
        return chosen
    place: str = request.config.getini("tubes_url")
    why = _trouble_with(place)
    if why is not None:
        pytest.fail(f"tubes_url: {why}", pytrace=False)
    return place


@pytest.fixture
def tubes_clock() -> ManualClock:
    """A clock that stands still until the test advances it; `tubes_queue` of the same test uses it."""
    from tubes.testing import ManualClock

    return ManualClock()


@pytest.fixture(scope="session")
def tubes_server() -> Iterator[LocalServer]:
    """A private Valkey or Redis for each process of pytest-xdist, on a unix socket. Extra `server`."""
    from tubes.testing import LocalServer, server_program

    # That of the wheel, or of the machine. If there is none, the error says what to install.
    with LocalServer("redis" if server_program() is None and server_program("redis") else "valkey") as server:
        yield server


@pytest.fixture
def tubes_url(request: pytest.FixtureRequest, _tubes_place: str) -> Iterator[str]:
    """A URL for this test alone: its tubes are dropped after the test."""
    from tubes.testing import isolated

    place = _tubes_place
    if place == "server":
        place = request.getfixturevalue("tubes_server").url
    with isolated(place) as url:
        yield url


@pytest.fixture
def tubes_queue(request: pytest.FixtureRequest, tubes_url: str) -> Iterator[tubes.Queue]:
    """A queue for this test alone, with the codec JSON."""
    import tubes

    with tubes.connect(tubes_url, codec="json", clock=_clock(request)) as queue:
        yield queue


@pytest.fixture
def tubes_aio_queue(request: pytest.FixtureRequest, tubes_url: str) -> Iterator[tubes.AsyncQueue]:
    """A queue for asyncio, on the same tubes as `tubes_queue`; the test closes it, in its own event loop."""
    import asyncio

    import tubes

    queue = tubes.aio.connect(tubes_url, codec="json", clock=_clock(request))
    yield queue
    if not queue.closed:
        asyncio.run(queue.close())


def _clock(request: pytest.FixtureRequest) -> ManualClock | None:
    """The test's clock, if it has asked for one."""
    clock: ManualClock | None = None
    if "tubes_clock" in request.fixturenames:
        clock = request.getfixturevalue("tubes_clock")
    return clock
