"""The examples, on local hosts that serve Python's documentation."""

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest

import tubes

for extra in ("aiohttp", "rich", "selectolax"):
    pytest.importorskip(extra, reason="needs the extra `examples`")

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

import crawler  # noqa: E402
import proof  # noqa: E402
from crawler import Crawler  # noqa: E402
from pydoc_hosts import running  # noqa: E402
from yarl import URL  # noqa: E402

BACKOFF = tubes.Backoff(0.05)
ATTEMPTS = 4
INTERVAL = 0.05
LIMIT = 40
#: With this seed, the first pages of each host include hopeless ones and some with Retry-After.
SEED = 1308


class Seen(NamedTuple):
    """The results of a crawl."""

    records: list[proof.Record]
    buried: list[tubes.AsyncTask]
    statistics: tubes.Statistics


def crawl(driver: str = "utubettl") -> Seen:
    """Crawl few hosts with many failures by many workers."""

    async def run(urls: list[str]) -> Seen:
        async with tubes.aio.connect() as queue:
            one = await Crawler.create(
                queue, driver, limit=LIMIT, interval=INTERVAL, attempts=ATTEMPTS, backoff=BACKOFF
            )
            await one.run([URL(url) for url in urls], workers=20)
            return Seen(
                await proof.read_records(urls),
                [task async for task in one.pages.select("buried")],
                await one.pages.statistics(),
            )

    with running(3, SEED, flaky=0.2, hopeless=0.05, busy=0.03) as urls:
        return asyncio.run(run(urls))


@pytest.fixture(scope="module")
def seen() -> Seen:
    """Run a polite crawl."""
    return crawl()


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[str]]:
    """Start hosts without failures, for a crawler in a separate process."""
    with running(2, flaky=0, hopeless=0, busy=0) as urls:
        yield urls


def example(name: str, *arguments: str) -> list[str]:
    """Return the command line of an example."""
    return [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]


def listen_to_ctrl_c() -> None:
    """Handle SIGINT like a program in a terminal; background processes of a shell may ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt_command(command: list[str], lines: int = 1) -> tuple[int, str, str]:
    """Wait for the first lines of a command's output and send Ctrl-C; return exit code, output and errors.

    The output ends when all processes that write to it have ended, so no process is left.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, preexec_fn=listen_to_ctrl_c
    ) as process:
        assert process.stdout
        first = "".join(process.stdout.readline() for _ in range(lines))
        os.killpg(process.pid, signal.SIGINT)  # Like a terminal, send it to all foreground processes.
        out, err = process.communicate(timeout=20)
        return process.returncode, first + out, err


@pytest.mark.full
def test_each_host_gets_one_request_at_a_time(seen: Seen) -> None:
    assert [record.most_in_flight for record in seen.records] == [1, 1, 1]


@pytest.mark.full
def test_requests_to_each_host_keep_interval(seen: Seen) -> None:
    assert proof.interval_kept(seen.records, INTERVAL).kept
    assert proof.interval_kept(seen.records, INTERVAL * 20).kept is False
    assert proof.interval_kept([], INTERVAL).kept is None


def test_crawler_respects_retry_after(seen: Seen) -> None:
    throttled = [fetch for record in seen.records for fetch in record.fetches if fetch.status == 429]
    assert {fetch.retry_after for fetch in throttled} == {1}
    assert proof.retry_after_kept(seen.records).kept
    longer = [
        proof.Record(record.url, 1, [fetch._replace(retry_after=fetch.retry_after * 30) for fetch in record.fetches])
        for record in seen.records
    ]
    assert proof.retry_after_kept(longer).kept is False


@pytest.mark.full
def test_fifo_tube_does_not_limit_requests_per_host() -> None:
    control = crawl("fifo")
    checks = [proof.one_in_flight(control.records), proof.interval_kept(control.records, INTERVAL)]
    assert [check.kept for check in checks] == [False, False]
    assert proof.control_differs(checks, control.records).kept


def test_no_url_is_fetched_twice(seen: Seen) -> None:
    statuses = [[fetch.status for fetch in fetches] for fetches in proof.by_url(seen.records).values()]
    assert all(status >= 400 for tries in statuses for status in tries[:-1])
    assert len([tries for tries in statuses if tries[-1] < 400]) == LIMIT - len(seen.buried)
    assert proof.fetched_once(seen.records).kept
    twice = [proof.Record(record.url, 1, record.fetches * 2) for record in seen.records]
    assert proof.fetched_once(twice).kept is False


def test_failed_pages_are_retried_with_increasing_delay(seen: Seen) -> None:
    assert proof.backoff_kept(seen.records, BACKOFF).kept
    assert proof.backoff_kept(seen.records, tubes.Backoff(BACKOFF.first * 20)).kept is False
    assert seen.statistics.calls["delay"] == seen.statistics.calls["release"] - len(seen.buried) > 0


def test_only_pages_out_of_attempts_are_buried(seen: Seen) -> None:
    buried = {task.data: task.reason for task in seen.buried}
    assert set(buried.values()) == {"max_attempts: release"}
    assert {task.attempts for task in seen.buried} == {ATTEMPTS}
    assert proof.hopeless_buried(seen.records, ATTEMPTS, buried).kept
    assert proof.hopeless_buried(seen.records, ATTEMPTS, dict.fromkeys(buried, "404 Not Found")).kept is False
    buried.popitem()
    assert proof.hopeless_buried(seen.records, ATTEMPTS, buried).kept is False


def test_finished_crawl_leaves_only_buried_tasks(seen: Seen) -> None:
    tasks = seen.statistics.tasks
    assert tasks["total"] == tasks["buried"] == len(seen.buried)
    assert tasks["done"] == LIMIT - len(seen.buried)


@pytest.mark.full
def test_the_crawler_stays_on_its_hosts_and_within_its_limit(hosts: list[str]) -> None:
    command = example("crawler.py", hosts[0], "--limit", "12", "--workers", "3", "--interval", "0.05")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    lines = ended.stdout.splitlines()
    assert len(lines) == 12 + 2
    assert all(hosts[0] in line for line in lines[:12])
    assert lines[12].endswith(" pages, 0 URLs left, 0 buried")
    assert ended.stderr == ""


@pytest.mark.full
def test_the_crawler_leaves_nothing_on_a_server(hosts: list[str]) -> None:
    with tubes.testing.LocalServer() as server:
        command = example("crawler.py", hosts[0], "--limit", "12", "--interval", "0", "--tube-url", server.url)
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        assert " pages, 0 URLs left, 0 buried\n" in ended.stdout
        assert ended.stderr == ""
        assert server.client().dbsize() == 0


def test_a_page_that_is_reported_twice_counts_once(odd_pages: URL) -> None:
    async def run() -> Crawler:
        async with tubes.aio.connect() as queue:
            one = await Crawler.create(queue, interval=0)
            found = {"url": str(odd_pages), "status": 200, "links": ()}
            await one.reports.put(found, key=str(odd_pages))
            await one.decide()
            await one.run([odd_pages])  # The previous worker died before its ack.
            return one

    assert asyncio.run(run()).fetched == 1


def test_each_url_is_put_once_and_total_stays_within_limit() -> None:
    async def run() -> list[int]:
        async with tubes.aio.connect() as queue:
            one = await Crawler.create(queue, limit=4, interval=0)
            one.hosts = {"here", "there"}
            counts: list[int] = []
            for paths in (["a", "a", "b"], ["b", "a", "a", "c"], ["a", "b", "c", "d", "e"]):
                await one.offer([f"http://{host}/{path}" for path in paths for host in ("here", "elsewhere")])
                while task := await one.pages.take(timeout=0):
                    await task.ack()
                counts.append((await one.pages.statistics()).tasks["done"])
            return counts

    assert asyncio.run(run()) == [2, 3, 4]


def test_crawl_ends_if_worker_dies_on_last_attempt_of_page() -> None:
    async def run() -> list[str]:
        async with tubes.aio.connect() as queue:
            one = await Crawler.create(queue, attempts=1)
            one.hosts = {"here"}
            await one.offer(["http://here/"])
            async with await queue.session() as session:
                assert await (await session.tube(one.pages.name)).take(timeout=0)
                deciding = asyncio.create_task(one.decide())
                await asyncio.sleep(0)
                assert not deciding.done()
            await deciding
            return await one.report()

    assert asyncio.run(run())[1:] == ["  http://here/  max_attempts: session, attempt 1"]


def test_dead_worker_still_blocks_its_host_for_interval() -> None:
    async def run() -> tubes.AsyncTask | None:
        async with tubes.aio.connect() as queue:
            one = await Crawler.create(queue, interval=3600)
            one.hosts = {"here"}
            await one.offer(["http://here/", "http://here/more"])
            async with await queue.session() as session:
                assert await (await session.tube(one.pages.name)).take(timeout=0)
            return await one.pages.take(timeout=0)

    assert asyncio.run(run()) is None


def test_page_of_unreachable_host_is_buried() -> None:
    async def run(url: URL) -> list[str]:
        async with tubes.aio.connect() as queue:
            one = await Crawler.create(queue, interval=0, attempts=2, backoff=tubes.Backoff(0.01))
            await one.run([url])
            return await one.report()

    with running(1) as urls:
        pass  # The hosts are stopped from here on.
    assert asyncio.run(run(URL(urls[0]))) == [
        "0 pages, 0 URLs left, 1 buried",
        f"  {urls[0]}  max_attempts: release, attempt 2",
    ]


class Busy(BaseHTTPRequestHandler):
    """A site whose paths select the status and the Retry-After of the response."""

    def do_GET(self) -> None:
        _, status, header = unquote(self.path).split("/")
        self.send_response(int(status))
        self.send_header("Retry-After", header)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.mark.parametrize(
    ("status", "header", "is_blocked"),
    [
        (429, "3600", True),
        (503, "3600", True),
        (503, "Fri, 31 Dec 9999 23:59:59 GMT", True),
        (503, "soon", False),
        (500, "3600", False),
    ],
)
def test_retry_after_blocks_the_host(status: int, header: str, is_blocked: bool) -> None:
    async def run(url: URL) -> bool:
        async with tubes.aio.connect() as queue:
            one = await Crawler.create(queue, interval=0, attempts=1)
            await one.run([url])
            await one.pages.put("another", utube=crawler.host_of(url))
            return await one.pages.take(timeout=0) is None

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever).start()
        assert asyncio.run(run(URL(f"http://127.0.0.1:{server.server_port}/{status}/{header}"))) is is_blocked
        server.shutdown()


class OddPages(BaseHTTPRequestHandler):
    """A site with a page in an invalid charset and a page that redirects to another host."""

    def do_GET(self) -> None:
        odd = self.path == "/odd"
        body = b'<a href="/odd"></a><a href="/plain"></a>'
        self.send_response(301 if self.path == "/moved" else 200)
        self.send_header("Location", "http://elsewhere.example/")
        self.send_header("Content-Type", f"text/html; charset={'hex' if odd else 'utf-8'}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def odd_pages() -> Iterator[URL]:
    with ThreadingHTTPServer(("127.0.0.1", 0), OddPages) as server:
        threading.Thread(target=server.serve_forever).start()
        yield URL(f"http://127.0.0.1:{server.server_port}/")
        server.shutdown()


async def report_of(start: URL) -> list[str]:
    """Return the report of a crawl."""
    async with tubes.aio.connect() as queue:
        one = await Crawler.create(queue, interval=0)
        await one.run([start])
        return await one.report()


def test_undecodable_page_is_buried_and_crawl_continues(odd_pages: URL) -> None:
    summary, buried = asyncio.run(report_of(odd_pages))
    assert summary == "2 pages, 0 URLs left, 1 buried"
    assert buried.startswith(f"  {odd_pages}odd  LookupError 'hex' is not a text encoding")


def test_redirected_start_url_is_reported_with_its_new_host(odd_pages: URL) -> None:
    moved = odd_pages / "moved"
    summary, hint = asyncio.run(report_of(moved))
    assert summary == "0 pages, 0 URLs left, 0 buried"
    assert hint == f"  {moved}  redirects to another host: to crawl it, start at http://elsewhere.example/"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the following arguments are required: URL"),
        (["example.com"], "'example.com' must begin with http:// or https:// and name a host"),
        (["ftp://example.com/"], "must begin with http:// or https://"),
        (["http://"], "name a host"),
        (["http://[::1"], "invalid http_url value: 'http://[::1'"),
        (["http://localhost/", "--workers", "0"], "--workers: '0' must be a whole number, at least 1"),
        (["http://localhost/", "--limit", "-1"], "--limit: '-1' must be a whole number, at least 1"),
        (["http://localhost/", "--limit", "1.5"], "--limit: '1.5' must be a whole number, at least 1"),
        (["http://localhost/", "--interval", "-1"], "interval=-1.0: must be from 0 to"),
        (["http://localhost/", "--interval", "often"], "--interval: invalid float value: 'often'"),
        (["http://localhost/", "--tube-url", "nonsense"], "url='***': must be memory://"),
    ],
)
def test_invalid_arguments_are_reported(
    arguments: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["crawler.py", *arguments])
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    with pytest.raises(SystemExit) as ended:
        crawler.main()
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.full
def test_ctrl_c_ends_the_crawler_cleanly(hosts: list[str]) -> None:
    code, out, err = interrupt_command(example("crawler.py", *hosts, "--limit", "3000", "--interval", "0.05"))
    assert (code, err) == (130, "")
    assert " URLs left, 0 buried\n" in out


@pytest.mark.full
def test_ctrl_c_ends_the_demo_cleanly() -> None:
    code, out, err = interrupt_command(example("demo.py"), lines=2)
    assert (code, err) == (130, "")
    assert "Logs of the servers" in out


@pytest.mark.full
@pytest.mark.parametrize("lines", [2, 3])
def test_ctrl_c_ends_the_demo_and_its_processes_cleanly(lines: int) -> None:
    code, out, err = interrupt_command(example("demo.py", "--tube-url", "redis", "--processes", "2"), lines)
    assert (code, err) == (130, "")
    assert "Logs of the servers" in out


@pytest.mark.full
def test_demo_shows_the_running_crawl_in_the_dashboard(tmp_path: Path) -> None:
    """The browser of this test asks the API for the tubes, and its output is that of the demo."""
    browser = tmp_path / "browser.py"
    browser.write_text(
        "import sys, re, urllib.request as r\npage = r.urlopen(sys.argv[1]).read().decode()\n"
        "url, token = re.search('url=(.*)ui/#token=(.*)\"', page).groups()\n"
        "q = r.Request(url + 'v1', headers={'Authorization': 'Bearer ' + token})\nprint(r.urlopen(q).read().decode())\n"
    )
    command = example("demo.py", "--hosts", "1", "--pages", "20", "--interval", "0.05", "--seed", "290", "--dashboard")
    environment = {**os.environ, "BROWSER": f"{sys.executable} {browser} %s"}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, stdin=subprocess.DEVNULL
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.search(r"The dashboard is at http://127\.0\.0\.1:\d+/ui/#token=\S+\n", ended.stdout)
    assert '"namespaces":["_"]' in ended.stdout


# With one host and this seed, the first pages include a hopeless one and one with Retry-After.
@pytest.mark.full
@pytest.mark.parametrize("where", [(), ("--tube-url", "redis", "--processes", "2", "--workers", "8")])
def test_demo_passes_all_its_checks(where: tuple[str, ...]) -> None:
    command = example("demo.py", "--hosts", "1", "--pages", "20", "--interval", "0.05", "--seed", "290", *where)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count(" yes ") == 7
    assert re.search(r"with lanes: (\d+) pages \+ (\d+) redirects \+ (\d+) buried = 20 URLs in ", ended.stdout)
    assert "/_ast.html" in ended.stdout
