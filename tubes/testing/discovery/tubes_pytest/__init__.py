"""The fixtures of tubes for pytest. docs/testing.md is their manual.

Not in the package: pytest imports it at every start, also where nobody uses it, and importing a part of tubes imports
tubes. So it imports nothing before a test asks for a fixture.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    import tubes
    from tubes.testing import LocalServer, ManualClock

#: Seconds for which a server is looked for.
_PATIENCE: Final = 2.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--tubes-url`, and `tubes_url` in the configuration."""
    about = "Where tubes_queue works: memory:// (the default), server (one is started), or the URL of a server."
    parser.getgroup("tubes").addoption("--tubes-url", metavar="URL", default=None, help=about)
    parser.addini("tubes_url", about, default="memory://")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """A `--tubes-url` where nobody answers ends the session, once and for all its tests and processes."""
    place: str | None = session.config.getoption("--tubes-url")
    # Processes of pytest-xdist are begun after this.
    if place is None or hasattr(session.config, "workerinput") or session.config.getoption("collectonly"):
        return
    why = _trouble_with(place)
    if why is not None:
        raise pytest.UsageError(f"--tubes-url: {why}")


def _trouble_with(place: str) -> str | None:
    """Why no test can work there."""
    import tubes

    if place == "server":
        from tubes.testing import server_program

        if server_program() or server_program("redis"):
            return None
        return str(tubes.ExtraMissing(what="--tubes-url=server", module="valkey-server", extra="server"))
    if place.startswith("memory://"):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of how it is set up each test hears.
            tubes.connect(place, connect_timeout=_PATIENCE).close()
    except tubes.TubesError as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def _tubes_place(request: pytest.FixtureRequest) -> str:  # pyright: ignore[reportUnusedFunction]
    """Where all tests work. What the configuration says is tried out once, when the first test asks for it."""
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
    """A clock that stands still until the test advances it; `tubes_queue` of the same test goes by it."""
    from tubes.testing import ManualClock

    return ManualClock()


@pytest.fixture(scope="session")
def tubes_server() -> Iterator[LocalServer]:
    """A Valkey or Redis of one's own: one for each process of pytest-xdist, on a unix socket. Extra `server`."""
    from tubes.testing import LocalServer, server_program

    # The wheel's, or what the machine has; if it has none the error says what to install.
    with LocalServer("redis" if server_program() is None and server_program("redis") else "valkey") as server:
        yield server


@pytest.fixture
def tubes_url(request: pytest.FixtureRequest, _tubes_place: str) -> Iterator[str]:
    """A URL for this test alone: what is put there is gone after it."""
    from tubes.testing import isolated

    place = _tubes_place
    if place == "server":
        place = request.getfixturevalue("tubes_server").url
    with isolated(place) as url:
        yield url


@pytest.fixture
def tubes_queue(request: pytest.FixtureRequest, tubes_url: str) -> Iterator[tubes.Queue]:
    """A queue for this test alone, with JSON for its codec."""
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
