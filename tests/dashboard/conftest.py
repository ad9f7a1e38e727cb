"""A Chromium, and pages of services that it shows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote, urlsplit
from uuid import uuid4

import httpx
import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Playwright,
    Request,
    expect,
    sync_playwright,
)

from tests.contract.bench import eventually
from tests.support.processes import ROOT
from tests.support.served import Served
from tubes.testing import LocalServer

#: The folder in which `.ci/browser.py` installs a browser.
BROWSER: Final = ROOT / ".venv" / "browser"
#: Disable the sandbox, which root may not use, and requests to Google.
_OPTIONS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update"),
    *("--disable-background-networking", "--disable-sync", "--js-flags=--expose-gc"),
)
#: Report requests that the policy of the page refuses in the console.
_WATCH: Final = """addEventListener("securitypolicyviolation", (event) =>
    console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`))"""

expect.set_options(timeout=15_000)


def launch(playwright: Playwright) -> Browser | None:
    """Start the browser of `.ci/browser.py`, or else an installed Chromium; return None without either."""
    own = BROWSER / "chromium"
    path = str(own) if own.exists() else shutil.which("chromium")
    if path is None:
        return None
    settings = {"FONTCONFIG_FILE": str(BROWSER / "fonts.conf"), "LD_LIBRARY_PATH": str(BROWSER / "al2023" / "lib")}
    environment: dict[str, str | float | bool] = {**os.environ, **(settings if own.exists() else {})}
    return playwright.chromium.launch(executable_path=path, args=list(_OPTIONS), env=environment)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser. While it is open, this thread has a running event loop, which tests of other modules do not expect."""
    with sync_playwright() as playwright:
        browser = launch(playwright)
        if browser is None:
            pytest.skip("there is no Chromium: make test installs one on Linux")
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def memory_service() -> Iterator[Served]:
    with Served("--url", "memory://") as served:
        yield served


@pytest.fixture(scope="module")
def valkey_service(valkey: LocalServer) -> Iterator[Served]:
    with Served("--url", f"{valkey.url}?prefix={uuid4().hex}") as served:
        yield served


@pytest.fixture(params=["memory_service", pytest.param("valkey_service", marks=pytest.mark.full)])
def served(request: pytest.FixtureRequest) -> Served:
    found: Served = request.getfixturevalue(request.param)
    return found


class Dashboard:
    """A page of the dashboard, and the namespace that it shows."""

    def __init__(self, page: Page, url: str, token: str | None = None) -> None:
        self.page: Final = page
        self.namespace: Final = uuid4().hex
        self.url: Final = url
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.http: Final = httpx.Client(base_url=f"{url}/v1/{self.namespace}", timeout=60, headers=headers)

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Call the API, and return the value of the reply."""
        reply = self.http.request(method, path, json=body)
        assert reply.is_success, reply.text
        return reply.json() if reply.content and "ndjson" not in reply.headers["content-type"] else None

    def tube(self, name: str = "mail", driver: str = "fifottl", tasks: int = 0, **options: Any) -> str:
        """Create a tube with tasks, and return its path in the API."""
        path = f"/tubes/{quote(name, safe='')}"
        self.api("PUT", path, {"driver": driver, "options": options})
        if tasks:
            self.api("POST", f"{path}/tasks/batch", {"items": [{"data": {"n": number}} for number in range(tasks)]})
        return path

    def open(self, *segments: object, query: str = "") -> Page:
        """Show a view of the namespace."""
        view = "#" + "".join("/" + quote(str(segment), safe="") for segment in (self.namespace, *segments)) + query
        self.page.goto(f"{self.url}/ui/{view}")
        expect(self.page.locator("main")).to_have_attribute("data-view", view)
        expect(self.page.locator("main [aria-busy]")).to_have_count(0)
        return self.page

    def counts(self, name: str = "mail") -> dict[str, int]:
        counts: dict[str, int] = self.api("GET", f"/tubes/{quote(name, safe='')}")["tasks"]
        return counts


@pytest.fixture
def make_dashboard(chromium: Browser) -> Iterator[Callable[..., Dashboard]]:
    """A function that opens a dashboard. At the end check that no page failed or sent a request to another host."""
    contexts: list[BrowserContext] = []
    dashboards: list[Dashboard] = []
    faults: list[str] = []

    def make(url: str, token: str | None = None, **options: Any) -> Dashboard:
        context = chromium.new_context(**options)
        contexts.append(context)
        context.add_init_script(_WATCH)
        page = context.new_page()
        host = urlsplit(url).netloc

        def on_console(line: ConsoleMessage) -> None:
            if line.type == "error" and "Failed to load resource" not in line.text:
                faults.append(line.text)

        def on_request(sent: Request) -> None:
            if urlsplit(sent.url).netloc != host:
                faults.append(sent.url)

        page.on("console", on_console)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", on_request)
        if token is not None:
            headers = {"authorization": f"Bearer {token}"}
            assert eventually(lambda: httpx.get(f"{url}/v1", headers=headers).status_code == 200)
            page.goto(f"{url}/ui/#token={token}")
            expect(page.get_by_role("navigation", name="Views")).to_be_visible()
        dashboards.append(Dashboard(page, url, token))
        return dashboards[-1]

    yield make
    for dashboard in dashboards:
        dashboard.http.close()
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture
def dashboard(make_dashboard: Callable[..., Dashboard], served: Served) -> Dashboard:
    return make_dashboard(served.url)
