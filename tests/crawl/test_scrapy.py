"""`tubes.crawl.scrapy`: real spiders, checked by the logs of the hosts that they visit."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

import pytest
import scrapy
from scrapy.http import FormRequest, JsonRequest, XmlRpcRequest
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.test import get_crawler

import tubes
from tests.crawl.hosts import Hosts, Reply, serve
from tests.crawl.runs import spider
from tests.crawl.spiders import Urgent
from tests.support.processes import ROOT, python
from tubes.crawl.hosts import host_of
from tubes.crawl.scrapy import Scheduler
from tubes.testing import LocalServer, ManualClock

INTERVAL = 0.2


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


def check(hosts: Hosts, repeated: int = 0, interval: float = INTERVAL) -> None:
    """Check that all pages were fetched, and none too early."""
    assert hosts.missing() == set()
    assert hosts.repeated() <= repeated
    assert hosts.violations(interval) == []


def visits(hosts: Hosts, agent: str) -> int:
    return sum(visit.agent == agent for visit in hosts.visits)


@pytest.mark.full
def test_three_processes_share_politeness_and_survive_kill(server: LocalServer) -> None:
    url = f"{server.url}?session_ttl=5&namespace=kill"
    retry: dict[tuple[int, str], list[Reply]] = {
        (3, "/p/1"): [(429, {"Retry-After": "2"}, ""), (503, {"Retry-After": "1"}, "")]
    }
    with serve(Hosts(6, 14, special=retry)) as hosts:
        starts = [f"{host}/p/0" for host in hosts.urls]
        runs = [spider("follow", url, starts, USER_AGENT=str(number)) for number in range(3)]
        with runs[0], runs[1], runs[2]:
            runs[0].wait_until(lambda: visits(hosts, "0") >= 5)
            runs[0].kill()
            held = [visit for visit in hosts.visits if visit.agent == "0"]
            stats = [run.wait() for run in runs[1:]]
    assert {one["finish_reason"] for one in stats} == {"finished"}
    assert held
    # Two pages were refused once or twice; at most one page of each host was held by the killed process.
    check(hosts, repeated=2 + hosts.count)


@pytest.mark.full
def test_crawl_with_partitions_shares_politeness(server: LocalServer) -> None:
    url = f"{server.url}?namespace=partitions"
    with serve(Hosts(6, 8)) as hosts:
        starts = [f"{host}/p/0" for host in hosts.urls]
        runs = [spider("follow", url, starts, TUBES_PARTITIONS=4) for _ in range(2)]
        with runs[0], runs[1]:
            stats = [run.wait() for run in runs]
    assert {one["finish_reason"] for one in stats} == {"finished"}
    check(hosts)
    with tubes.connect(url) as queue:
        crawl = queue.tube("scrapy.follow")
        assert crawl.partitions == 4
        assert crawl.statistics().tasks["total"] == 0


@pytest.mark.full
@pytest.mark.parametrize("stop", ["interrupt", "kill"])
def test_crawl_in_folder_continues(tmp_path: Path, stop: str) -> None:
    url = f"file:{tmp_path}"
    with serve(Hosts(4, 10)) as hosts:
        starts = [f"{hosts.urls[0]}/p/0"]
        with spider("follow", url, starts) as run:
            run.wait_until(lambda: len(hosts.visits) >= 12)
            getattr(run, stop)()
        before = len(hosts.visits)
        assert hosts.missing()
        with spider("follow", url, starts) as run:
            stats = run.wait()
    assert stats["finish_reason"] == "finished"
    assert stats["tubes/taken"] == stats["tubes/acked"] == len(hosts.visits) - before
    check(hosts, repeated=hosts.count if stop == "kill" else 0)


@pytest.mark.full
def test_redirects_robots_and_copied_meta_are_polite(server: LocalServer) -> None:
    special: dict[tuple[int, str], list[Reply]] = {
        # A start page that sets a cookie, and redirects to itself.
        (0, "/p/0"): [(302, {"Location": "/p/0", "Set-Cookie": "seen=1"}, "")],
        (2, "/robots.txt"): [(200, {}, "User-agent: *\nCrawl-delay: 0.5\nDisallow: /p/3")],
    }
    with serve(Hosts(3, 5, special=special)) as hosts:
        special[0, "/p/1"] = [(302, {"Location": f"{hosts.urls[1]}/p/1"}, "")]
        url = f"{server.url}?namespace=redirects"
        with spider("copying", url, [f"{hosts.urls[0]}/p/0"], ROBOTSTXT_OBEY=True) as run:
            run.wait()
        with tubes.connect(url) as queue:
            crawl = queue.tube("scrapy.copying")
            lanes = {lane.name: lane.interval for lane in crawl.lanes()}
    fetched = hosts.fetched()
    assert hosts.missing() == {(2, "/p/3"), (0, "/p/3")}  # only pages that are not fetched link to them
    assert fetched.pop((0, "/p/0")) == 2
    assert set(fetched.values()) == {1}
    assert hosts.violations(INTERVAL) == []
    slow = [visit for visit in hosts.visits if visit.host == 2]
    assert all(after.start - before.end >= 0.495 for before, after in pairwise(slow))
    assert lanes[hosts.urls[2].removeprefix("http://")] == 0.5


@pytest.mark.full
def test_start_page_that_is_requested_again_is_fetched_again() -> None:
    with (
        serve(Hosts(1, 0, special={(0, "/p/0"): [(200, {}, "CAPTCHA"), (200, {}, "ok")]})) as hosts,
        spider("again", "memory://", [f"{hosts.urls[0]}/p/0"]) as run,
    ):
        assert run.wait()["tubes/acked"] == 2
    assert len(hosts.visits) == 2


@pytest.mark.full
@pytest.mark.parametrize("start", ["response", "start"])
def test_first_page_after_robots_txt_is_polite(tmp_path: Path, start: str) -> None:
    robots: list[Reply] = [(200, {}, "User-agent: *\nCrawl-delay: 0.5"), (503, {"Retry-After": "1"}, "")]
    settings: dict[str, Any] = {"ROBOTSTXT_OBEY": True, "RETRY_ENABLED": False, "TUBES_INTERVAL_FROM": start}
    with serve(Hosts(1, 1, special={(0, "/robots.txt"): robots})) as hosts:
        # The Crawl-delay of the first run does not hold in the second.
        for first, interval, gap in ((0, 0.2, 0.5), (3, 0.7, 0.7)):
            starts = [f"{hosts.urls[0]}/p/0?page={first + number}" for number in range(3)]
            before = len(hosts.visits)
            with spider("follow", f"file:{tmp_path}", starts, **settings, TUBES_INTERVAL=interval) as run:
                run.wait()
            times = [visit.start for visit in hosts.visits[before:]]
            assert len(times) >= 4
            # With "start" the takes are an interval apart, and requests start some milliseconds after their takes.
            slack = 0.1 if start == "start" else 0.005
            assert min(late - early for early, late in pairwise(times)) >= gap - slack
    (closed,) = [visit for visit in hosts.visits if visit.retry_after]
    assert min(visit.start for visit in hosts.visits if visit.start > closed.end) >= closed.end + 0.995


def without_accept(request: scrapy.Request) -> scrapy.Request:
    del request.headers["Accept"]
    return request


@pytest.mark.parametrize(
    "request_",
    [
        scrapy.Request("about:blank"),
        scrapy.Request(
            "http://a.example/", body=bytes(range(256)), encoding="latin-1", cookies=[{"name": "a", "value": ""}]
        ),
        scrapy.Request("http://a.example/", method="", flags=["cached"], priority=-(2**40), dont_filter=True),
        Urgent("http://a.example/"),
        Urgent("http://a.example/", priority=0, dont_filter=False, headers={"X-Urgent": "no"}),
        XmlRpcRequest("http://a.example/", params=(1, "b"), methodname="add"),
        XmlRpcRequest("http://a.example/", method="GET", dont_filter=False, encoding="latin-1"),
        JsonRequest("http://a.example/", data={"b": 1, "a": "\xe4"}, dumps_kwargs={"sort_keys": False}),
        JsonRequest("http://a.example/", data={}, method="GET"),
        without_accept(JsonRequest("http://a.example/")),
        FormRequest("http://a.example/", formdata={"name": "\xe4"}, encoding="latin-1"),
        FormRequest("http://a.example/", formdata={"name": "b"}, method="GET"),
    ],
)
def test_requests_keep_all_attributes(request_: scrapy.Request) -> None:
    scheduler: Any = Scheduler.from_crawler(get_crawler(settings_dict={"TUBES_BURY": False}))
    scheduler._spider = scrapy.Spider("any")
    copy = scheduler._decode(json.loads(json.dumps(scheduler._encode(request_, None), allow_nan=False)))
    assert type(copy) is type(request_)
    assert copy.to_dict() == request_.to_dict()


@pytest.mark.parametrize("kind", [scrapy.Request, Urgent, JsonRequest])
def test_requests_keep_no_callback(kind: type[scrapy.Request]) -> None:
    scheduler: Any = Scheduler.from_crawler(get_crawler())
    scheduler._spider = scrapy.Spider("any")
    data = scheduler._encode(kind("http://a.example/", callback=NO_CALLBACK, meta={"page": 1}), None)
    copy = scheduler._decode(json.loads(json.dumps(data)))
    assert (type(copy), copy.callback, copy.meta) == (kind, NO_CALLBACK, {"page": 1})
    assert scheduler._encode(copy, None) == data


def test_plain_request_is_stored_without_its_defaults() -> None:
    scheduler: Any = Scheduler.from_crawler(get_crawler())
    scheduler._spider = scrapy.Spider("any")
    request = scrapy.Request("http://a.example/", meta={"is_start_request": True}, priority=2)
    assert scheduler._encode(request, None) == {"url": "http://a.example/", "priority": 2}


def test_requests_that_cannot_be_stored_do_not_affect_others() -> None:
    async def main() -> None:
        scheduler: Any = Scheduler.from_crawler(get_crawler(settings_dict={"TUBES_URL": "memory://"}))
        scheduler._spider, meta = scrapy.Spider("any"), {"verbatim_url": True}
        bad = [
            scrapy.Request("http://a.example:99999/", meta=meta),
            scrapy.Request("http://[a.example/", meta=meta),
            scrapy.Request("http://a.example/deep", meta={"deep": deep}),
            scrapy.Request("http://a.example/number", meta={"number": 10**5000}),
            scrapy.Request("http://a.example/text", meta={"text": "\ud800"}),
            scrapy.Request("http://a.example/lane", meta={"download_slot": 0.5}),
            scrapy.Request("http://a.example/priority"),
        ]
        bad[-1].priority = None  # type: ignore[assignment]
        async with tubes.aio.connect(codec="json") as queue:
            scheduler._tube = await queue.create_tube("pages", "utubettl")
            for number, request in enumerate(bad):
                scheduler.enqueue_request(request)
                assert scheduler.enqueue_request(scrapy.Request(f"http://a.example/{number}"))
            await scheduler._write()
            assert scheduler._stats.get_value("tubes/dropped") == len(bad)
            assert scheduler._stats.get_value("tubes/put") == len(bad)

    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "lane"),
    [
        ("http://A.example./", "a.example"),
        ("http://a.example.:80/", "a.example"),
        ("http://a.example.:8080/", "a.example:8080"),
        ("http://a.example../", "a.example."),
        ("http://./", "http"),
        ("data:,x", "data"),
    ],
)
def test_lane_is_the_host_without_a_trailing_dot(url: str, lane: str) -> None:
    assert host_of(urlparse(url)) == lane


def test_page_is_buried_only_by_the_process_that_holds_it() -> None:
    async def main() -> None:
        async with tubes.aio.connect() as queue:
            other = await queue.session()
            scheduler: Any = Scheduler.from_crawler(get_crawler(settings_dict={"TUBES_URL": "memory://"}))
            scheduler._tube = await queue.create_tube("pages", "utubettl")
            await scheduler._tube.put({"url": "http://a.example/"})
            lost = await scheduler._tube.take(0)
            assert lost is not None
            await lost.release()
            theirs = await other.tube("pages")
            held = await theirs.take(0)
            assert held is not None
            scheduler._ended.append((lost, "ValueError"))
            scheduler._write_event.set()
            await scheduler._write()
            assert scheduler._stats.get_value("tubes/lost") == 1
            assert (await held.ack()).state == "done"

    asyncio.run(main())


def test_task_is_acked_only_once_its_new_requests_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lose_connection(items: object, errors: str) -> None:
        raise tubes.ConnectionLost(url="redis://", why="it is closed")

    async def main() -> None:
        async with tubes.aio.connect(codec="json") as queue:
            scheduler: Any = Scheduler.from_crawler(get_crawler(settings_dict={"TUBES_URL": "memory://"}))
            scheduler._spider, scheduler._tube = scrapy.Spider("any"), await queue.create_tube("pages", "utubettl")
            put_many = scheduler._tube.put_many
            await put_many([tubes.Item({"url": f"http://{name}.example/"}, utube=name) for name in "ab"])
            earlier, later = await scheduler._tube.take_many(2)
            scheduler._stored.append((earlier, None))
            scheduler._ended.append((later, None))
            scheduler.enqueue_request(scrapy.Request("http://b.example/new"))
            monkeypatch.setattr(scheduler._tube, "put_many", lose_connection)
            with pytest.raises(tubes.ConnectionLost):
                await scheduler._write()
            assert (earlier.state, later.state) == ("taken", "taken")
            assert (await scheduler._tube.statistics()).tasks["taken"] == 1
            monkeypatch.setattr(scheduler._tube, "put_many", put_many)
            scheduler._write_event.set()
            await scheduler._write()
            tasks = (await scheduler._tube.statistics()).tasks
            assert (tasks["ready"], tasks["taken"], tasks["done"]) == (1, 0, 2)
            assert scheduler._is_written()

    asyncio.run(main())


def test_interval_from_the_start_counts_from_a_late_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        settings = {"TUBES_URL": "memory://", "TUBES_INTERVAL": 10.0, "TUBES_INTERVAL_FROM": "start"}
        scheduler: Any = Scheduler.from_crawler(get_crawler(settings_dict=settings))
        woken: list[None] = []
        scheduler._spider, scheduler._wake = scrapy.Spider("any"), lambda: woken.append(None)
        scheduler._engine = SimpleNamespace(downloader=SimpleNamespace(active=()))
        async with tubes.aio.connect(codec="json", clock=clock) as queue:
            scheduler._tube = await queue.create_tube("pages", "utubettl", interval=10, interval_from="take")
            await scheduler._tube.put_many([tubes.Item({"url": f"http://a.example/{n}"}, utube="a") for n in range(2)])
            other = await (await queue.session()).tube("pages")
            scheduler._take_event.set()
            await scheduler._take()
            clock.advance(3)
            request = scheduler.next_request()
            scheduler._on_start(request)
            scheduler._end(request)
            await scheduler._write()
            clock.advance(7)  # The interval of the tube is over.
            assert await other.take(0) is None
            clock.advance(3)
            assert await other.take(0) is not None
            assert not scheduler._takes

    clock = ManualClock()
    monkeypatch.setattr("tubes.crawl.scrapy.monotonic", clock.now)
    asyncio.run(main())


def check_hooks(version: str, **environment: str) -> None:
    with (
        serve(Hosts(1, 8)) as hosts,
        spider("follow", "memory://", [f"{hosts.urls[0]}/p/0"], env=environment, TUBES_INTERVAL=0) as run,
    ):
        stats, log = run.wait(), run.log()
    assert f"Scrapy {version} started" in log
    # Each request ended with engine._slot.remove_request.
    assert stats["tubes/acked"] == stats["downloader/request_count"] == 8
    # engine._slot.nextcall.schedule woke the engine, which otherwise looks for requests every 5 s.
    assert stats["elapsed_time_seconds"] < 10


@pytest.mark.full
def test_private_hooks_of_newest_scrapy_work() -> None:
    check_hooks(scrapy.__version__)


@pytest.mark.full
def test_private_hooks_of_previous_scrapy_work(tmp_path: Path) -> None:
    before = "scrapy<" + ".".join(scrapy.__version__.split(".")[:2])
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={tmp_path}", before]
    subprocess.run(pip, check=True, capture_output=True)
    (info,) = tmp_path.glob("scrapy-*.dist-info")
    version = info.name.removeprefix("scrapy-").removesuffix(".dist-info")
    check_hooks(version, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))


@pytest.mark.full
def test_waiting_spider_fetches_requests_of_other_programs(server: LocalServer) -> None:
    url = f"{server.url}?namespace=waiting"
    with serve(Hosts(2, 3)) as hosts, tubes.connect(url) as queue:
        crawl = queue.create_tube("scrapy.waiting", "utubettl", order="round_robin")
        with spider("waiting", url, [], TUBES_INTERVAL=0) as run:
            crawl.put({"url": f"{hosts.urls[0]}/p/0"}, utube="any")
            run.wait_until(lambda: not hosts.missing() and crawl.join(0))
            # The first task had no key, so links lead to this page again.
            before = hosts.fetched()[0, "/p/0"]
            crawl.put({"url": f"{hosts.urls[0]}/p/0", "meta": {"again": True}}, utube="any")
            run.wait_until(lambda: hosts.fetched()[0, "/p/0"] == before + 1 and crawl.join(0))
            crawl.put(5, utube="any")
            crawl.put(f"{hosts.urls[0]}/p/0", utube="any")
            run.wait_until(lambda: hosts.fetched()[0, "/p/0"] == before + 2 and crawl.join(0))
            assert [task.data for task in crawl.select("buried")] == [5]
            assert run.interrupt()["finish_reason"] == "shutdown"


@pytest.mark.full
def test_crawl_survives_restart_of_server(tmp_path: Path) -> None:
    with (
        LocalServer(appendonly="yes", dir=tmp_path) as server,
        serve(Hosts(4, 12)) as hosts,
        spider("follow", server.url, [f"{hosts.urls[0]}/p/0"]) as run,
    ):
        run.wait_until(lambda: len(hosts.visits) >= 12)
        server.kill()
        run.wait_until(lambda: "Trying again in 1 s: there is no connection" in run.log())
        server.start()
        stats = run.wait()
    assert stats["finish_reason"] == "finished"
    check(hosts, repeated=hosts.count)


@pytest.mark.full
def test_spider_closes_when_its_tube_is_dropped(server: LocalServer) -> None:
    url = f"{server.url}?namespace=dropped"
    with serve(Hosts(2, 8)) as hosts, spider("follow", url, [f"{hosts.urls[0]}/p/0"]) as run:
        run.wait_until(lambda: len(hosts.visits) >= 2)
        with tubes.connect(url) as queue:
            queue.tube("scrapy.follow").drop(force=True)
        stats, log = run.wait(), run.log()
    assert stats["finish_reason"] == "tubes_failed"
    assert "The crawl cannot continue: there is no tube 'scrapy.follow'" in log


def test_bad_interval_from_is_refused() -> None:
    settings = {"TUBES_URL": "memory://", "TUBES_INTERVAL_FROM": "ack"}
    scheduler = Scheduler.from_crawler(get_crawler(settings_dict=settings))
    with pytest.raises(tubes.InvalidOption, match="TUBES_INTERVAL_FROM='ack': must be 'response' or 'start'"):
        asyncio.run(scheduler._open(scrapy.Spider("bad")))


def test_bad_name_of_tube_is_refused() -> None:
    scheduler = Scheduler.from_crawler(get_crawler(settings_dict={"TUBES_URL": "memory://", "TUBES_TUBE": "{name}"}))
    with pytest.raises(tubes.InvalidOption, match=r"TUBES_TUBE='\{name\}': must be a name in which"):
        asyncio.run(scheduler._open(scrapy.Spider("bad")))


@pytest.mark.full
def test_crawl_spider_follows_its_rules(tmp_path: Path) -> None:
    with (
        serve(Hosts(1, 4)) as hosts,
        spider("rules", f"file:{tmp_path}", [f"{hosts.urls[0]}/p/0"], TUBES_INTERVAL=0) as run,
    ):
        stats = run.wait()
    assert "tubes/dropped" not in stats
    assert hosts.missing() == set()


@pytest.mark.full
def test_bad_requests_and_callbacks_do_not_affect_others(tmp_path: Path) -> None:
    with serve(Hosts(2, 3)) as hosts:
        starts = [f"{hosts.urls[0]}/p/0", "http://127.0.0.1:1/"]
        with spider("failing", f"file:{tmp_path}", starts, RETRY_TIMES=1, TUBES_INTERVAL=0) as run:
            stats, log = run.wait(), run.log()
    check(hosts, interval=0)
    assert "Request to " in log
    assert "is dropped: meta['lock'] is a builtins.object, which cannot be stored" in log
    assert "is dropped: Function <built-in function print> is not an instance method" in log
    assert "utube=0.5: must be a string" in log
    assert "Request to http://a.example:99999/ is dropped: Port out of range 0-65535" in log
    assert stats["tubes/dropped"] == 4 * 4
    with tubes.connect(f"file:{tmp_path}") as queue:
        reasons = sorted(str(task.reason) for task in queue.tube("scrapy.failing").select("buried"))
    assert len(reasons) == stats["tubes/buried"] == 3
    assert reasons[1:] == ["ValueError: no such element"] * 2


@pytest.mark.full
def test_requests_keep_arguments_and_come_by_priority(tmp_path: Path) -> None:
    with (
        serve(Hosts(1, 4)) as hosts,
        spider("arguments", f"file:{tmp_path}", [f"{hosts.urls[0]}/p/0"], TUBES_INTERVAL=0) as run,
    ):
        stats = run.wait()
    assert "spider_exceptions/count" not in stats
    assert [visit.path for visit in hosts.visits] == ["/p/0", "/p/3", "/p/2", "/p/1"]


@pytest.mark.full
def test_project_of_scrapy_page_crawls(server: LocalServer, tmp_path: Path) -> None:
    text = (ROOT / "docs/howto/scrapy.md").read_text()
    files = re.findall(r"^```python\n# ([\w/]+\.py)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(files) == text.count("```python")
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = books.settings\n")
    with serve(Hosts(1, 3)) as hosts:
        for name, block in files:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / "__init__.py").touch()
            local = block.replace("redis://localhost", f"{server.url}?namespace=page")
            path.write_text(local.replace("https://books.example", hosts.urls[0]))
        options = ("-s", "REMOTE_CONTROL_ENABLED=False", "-s", "TUBES_INTERVAL=0")
        done = python("-m", "scrapy", "crawl", "shelf", *options, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        _, log = done.communicate(timeout=120)
    assert done.returncode == 0, log
    check(hosts, interval=0)
    assert "'item_scraped_count': 3" in log
