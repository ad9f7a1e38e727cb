"""`tubes.crawl.crawlee`: real crawlers, checked by the logs of the hosts that they visit."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from crawlee import Request
from crawlee.crawlers import HttpCrawler
from crawlee.request_loaders import ThrottlingRequestManager

import tubes
import tubes.crawl.crawlee
from tests.crawl.hosts import Hosts, Reply, serve
from tests.crawl.runs import Run
from tests.support.processes import ROOT, python
from tubes.crawl.crawlee import TubeRequestManager
from tubes.testing import LocalServer


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@pytest.mark.full
def test_two_processes_share_politeness_and_survive_kill(server: LocalServer) -> None:
    refusals: list[Reply] = [(429, {"Retry-After": "2"}, ""), (500, {}, "")]
    special: dict[tuple[int, str], list[Reply]] = {(1, "/p/1"): refusals}
    with serve(Hosts(4, 14, special=special)) as hosts:
        special[2, "/p/2"] = [(302, {"Location": f"{hosts.urls[3]}/p/2"}, "")]
        arguments = {"url": f"{server.url}?session_ttl=5", "starts": [f"{host}/p/0" for host in hosts.urls]}
        runs = [Run("tests.crawl.crawlees", json.dumps(arguments)) for _ in range(2)]
        with runs[0], runs[1]:
            runs[0].wait_until(lambda: len(hosts.visits) >= 20)
            runs[0].kill()
            stats = runs[1].wait()
    assert stats["failed"] == 0
    assert hosts.missing() == set()
    assert hosts.violations(0.2) == []
    # One page was refused twice; at most one page of each host was held by the killed process.
    assert hosts.repeated() <= 2 + hosts.count


@pytest.mark.full
def test_crawl_with_partitions_shares_politeness(server: LocalServer) -> None:
    with serve(Hosts(6, 8)) as hosts:
        url = f"{server.url}?namespace=partitions"
        arguments = {"url": url, "starts": [f"{host}/p/0" for host in hosts.urls], "partitions": 4}
        runs = [Run("tests.crawl.crawlees", json.dumps(arguments)) for _ in range(2)]
        with runs[0], runs[1]:
            stats = [run.wait() for run in runs]
    assert [one["failed"] for one in stats] == [0, 0]
    assert hosts.missing() == set()
    assert hosts.repeated() == 0
    assert hosts.violations(0.2) == []
    with tubes.connect(url) as queue:
        assert queue.tube("pages").partitions == 4
        assert queue.statistics("pages").tasks["total"] == 0


@pytest.mark.full
def test_program_of_crawlee_page_crawls(server: LocalServer, tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/howto/crawlee.md").read_text(), re.DOTALL | re.M)
    with serve(Hosts(1, 3)) as hosts:
        local = program.replace("redis://localhost", f"{server.url}?namespace=page")
        (tmp_path / "pages.py").write_text(local.replace("https://books.example", hosts.urls[0]))
        done = python(tmp_path / "pages.py", cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        _, log = done.communicate(timeout=120)
    assert done.returncode == 0, log
    assert hosts.missing() == set()
    assert hosts.violations(1) == []


def test_manager_overrides_all_public_methods() -> None:
    public = {name for name in vars(ThrottlingRequestManager) if not name.startswith("_")}
    assert public - vars(TubeRequestManager).keys() == set()


def test_requests_are_put_once_and_keep_changes_when_reclaimed() -> None:
    async def main() -> None:
        async with tubes.aio.connect() as queue:
            tube = await queue.create_tube("pages", "utubettl", key_ttl=60)
            manager = TubeRequestManager(tube)
            request = Request.from_url("http://a.example/1", user_data={"page": 1}, headers={"x": "y"})
            assert not (await manager.add_request(request)).was_already_present
            assert (await manager.add_request("http://a.example/1")).was_already_present
            await manager.add_requests(["http://a.example/1", "http://a.example/2"])
            assert await manager.get_total_count() == 2
            fetched = await manager.fetch_next_request()
            assert fetched is not None
            assert fetched == request
            fetched.retry_count = 1
            await manager.reclaim_request(fetched, forefront=True)
            again = await manager.fetch_next_request()
            assert again is not None
            assert again == fetched
            await manager.mark_request_as_handled(again)
            assert await manager.get_handled_count() == 1

    asyncio.run(main())


@pytest.mark.parametrize("payload", [None, b"", b"text", "\xe4".encode(), bytes(range(256)), b"\xed\xb2\x80"])
def test_requests_keep_all_attributes(payload: bytes | None) -> None:
    async def main() -> None:
        async with tubes.aio.connect() as queue:
            manager = TubeRequestManager(await queue.create_tube("pages", "utubettl"))
            options: Any = {"no_retry": True, "enqueue_strategy": "same-domain", "headers": {"x": "\xe4"}}
            data: Any = {"none": None, "list": [1, None]}
            request = Request.from_url("http://a.example/", method="POST", payload=payload, user_data=data, **options)
            request.retry_count, request.crawl_depth, request.loaded_url = 2, 3, "http://a.example/2"
            await manager.add_request(request)
            assert await manager.fetch_next_request() == request

    asyncio.run(main())


@pytest.mark.parametrize("name", ["label", "user_data"])
@pytest.mark.parametrize("label", ["L", None])
def test_label_is_kept_where_it_was_given(name: str, label: str | None) -> None:
    async def main() -> None:
        async with tubes.aio.connect() as queue:
            manager = TubeRequestManager(await queue.create_tube("pages", "utubettl"))
            options: Any = {"label": label} if name == "label" else {"user_data": {"label": label}}
            request = Request.from_url("http://a.example/", **options)
            await manager.add_request(request)
            fetched = await manager.fetch_next_request()
            assert fetched == request
            assert fetched is not None
            assert (fetched.label, dict(fetched.user_data)) == (label, dict(request.user_data))

    asyncio.run(main())


@pytest.mark.parametrize("value", [float("inf"), float("nan"), [float("-inf")], b"bytes", datetime.now(), {1j: 2}])
def test_user_data_that_json_would_change_are_refused(value: Any) -> None:
    async def main() -> None:
        async with tubes.aio.connect() as queue:
            tube = await queue.create_tube("pages", "utubettl")
            manager = TubeRequestManager(tube)
            request = Request.from_url("http://a.example/b")
            request.user_data["value"] = value
            with pytest.raises(ValueError, match=r"JSON|keys must be"):
                await manager.add_request(request)
            await manager.add_requests([request, "http://a.example/"])
            assert await manager.get_total_count() == 1

    asyncio.run(main())


def test_forefront_moves_a_request_that_is_in_the_tube() -> None:
    async def main() -> list[str]:
        async with tubes.aio.connect() as queue:
            tube = await queue.create_tube("pages", "utubettl", key_ttl=60)
            manager = TubeRequestManager(tube)
            await manager.add_requests([f"http://a.example/{number}" for number in range(6)])
            done = await manager.fetch_next_request()
            assert done is not None
            await manager.mark_request_as_handled(done)
            held = await manager.fetch_next_request()
            assert held is not None
            await manager.add_requests([f"http://a.example/{number}" for number in (0, 1, 5)], forefront=True)
            assert (await manager.add_request("http://a.example/4", forefront=True)).was_already_present
            await manager.add_request("http://a.example/3")
            await manager.reclaim_request(held)
            fetched: list[str] = []
            while (request := await manager.fetch_next_request()) is not None:
                fetched.append(request.url[-1])
                await manager.mark_request_as_handled(request)
            return fetched

    assert asyncio.run(main()) == ["4", "5", "1", "2", "3"]


def test_forefront_is_the_front_of_a_tube_without_options() -> None:
    async def main() -> list[str]:
        async with tubes.aio.connect() as queue:
            tube = await queue.create_tube("pages", "utubettl")
            manager, other = TubeRequestManager(tube), TubeRequestManager(tube)
            await manager.add_requests([f"http://a.example/{number}" for number in range(3)])
            await manager.add_requests(["http://a.example/f1", "http://a.example/f2"], forefront=True)
            await manager.add_request("http://a.example/f3", forefront=True)
            await other.add_request("http://a.example/3")
            fetched: list[str] = []
            for step in range(9):
                request = await manager.fetch_next_request()
                assert request is not None
                fetched.append(request.url[-2:])
                if step in (0, 4):  # f3 leaves the forefront, /1 goes there
                    await manager.reclaim_request(request, forefront=step == 4)
                else:
                    await manager.mark_request_as_handled(request)
            return fetched

    # As in Crawlee's queues the latest request at the forefront comes first.
    assert asyncio.run(main()) == ["f3", "f2", "f1", "/0", "/1", "/1", "/2", "f3", "/3"]


def test_forefront_counts_down_over_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with tubes.aio.connect() as queue:
            tube = await queue.create_tube("pages", "utubettl")
            for now in (1.8e9, 1.8e9 + 60, 2**32 - 2):
                monkeypatch.setattr(tubes.crawl.crawlee, "time", lambda now=now: now)
                await TubeRequestManager(tube).add_request(f"http://a.example/{now:.0f}", forefront=True)
            for now in (2**32 - 2, 1.8e9 + 60, 1.8e9):
                task = await tube.take(0)
                assert task is not None
                assert task.data["url"] == f"http://a.example/{now:.0f}"
                await task.ack()

    asyncio.run(main())


def test_tube_without_priorities_stores_requests() -> None:
    async def main() -> None:
        async with tubes.aio.connect() as queue:
            manager = TubeRequestManager(await queue.create_tube("pages", "utube"))
            await manager.add_request("http://a.example/", forefront=True)
            request = await manager.fetch_next_request()
            assert request is not None
            await manager.reclaim_request(request, forefront=True)
            assert await manager.fetch_next_request() == request

    asyncio.run(main())


def test_requests_that_cannot_be_stored_do_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with tubes.aio.connect(codec="json") as queue:
            tube = await queue.create_tube("pages", "utubettl")
            manager = TubeRequestManager(tube)
            changed, surrogate = Request.from_url("http://a.example/object"), "http://a.example/text"
            changed.user_data["lock"] = object()  # type: ignore[assignment]
            bad = [changed, Request.from_url(surrogate, user_data={"text": "\ud800"}), "http://[a", 5]
            for number, request in enumerate(bad):
                await manager.add_requests([f"http://a.example/{number}a", request, f"http://a.example/{number}b"])  # type: ignore[list-item]
            assert await manager.get_total_count() == 2 * len(bad)
            assert sum(record.name == tubes.crawl.crawlee.__name__ for record in caplog.records) == len(bad)
            with pytest.raises(ValueError, match="object"):
                await manager.add_request(changed)

    asyncio.run(main())


@pytest.mark.parametrize("value", [object(), "\ud800"], ids=["object", "surrogate"])
def test_request_with_bad_changes_is_reclaimed_without_them(value: Any) -> None:
    async def main() -> None:
        async with tubes.aio.connect(codec="json") as queue:
            manager = TubeRequestManager(await queue.create_tube("pages", "utubettl"))
            await manager.add_request("http://a.example/")
            request = await manager.fetch_next_request()
            assert request is not None
            request.user_data["bad"] = value
            assert await manager.reclaim_request(request) is not None
            again = await manager.fetch_next_request()
            assert again is not None
            assert "bad" not in again.user_data

    asyncio.run(main())


@pytest.mark.parametrize(
    ("seconds", "wait"), [(99_999_999_999, 3600), (float("inf"), 3600), (float("nan"), 1), (-5, 1), (60, 60)]
)
def test_absurd_delays_are_capped(seconds: float, wait: float) -> None:
    async def main() -> None:
        clock = tubes.testing.ManualClock()
        async with tubes.aio.connect(clock=clock) as queue:
            tube = await queue.create_tube("pages", "utubettl", interval=1, interval_from="ack")
            manager = TubeRequestManager(tube, block=seconds)
            await manager.add_requests(["http://a.example/", "http://b.example/"])
            for end in (manager.reclaim_request, manager.mark_request_as_handled):
                request = await manager.fetch_next_request()
                assert request is not None
                if end == manager.reclaim_request:
                    manager.record_domain_delay(request.url)
                else:
                    manager.set_crawl_delay(request.url, seconds)
                assert await end(request) is not None
            waits = [(lane.next_start or 0) - clock.now() for lane in await tube.lanes()]
            assert waits == [pytest.approx(wait, abs=0.1)] * 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (header, "429, Retry-After 3600")
        for header in ("9" * 15, "9" * 300, "9" * 5000, "Fri, 31 Dec 9999 23:59:59 -2359")
    ]
    + [(" 60 ", "429, Retry-After 60")]
    + [(header, "429") for header in ("0", "Thu, 01 Jan 1970 00:00:00 GMT", "soon", "1" + "_0" * 9, None)],
)
def test_crawler_reads_retry_after_as_tubes_does(header: str | None, reason: str) -> None:
    async def main() -> None:
        async with tubes.aio.connect() as queue:
            manager = TubeRequestManager(await queue.create_tube("pages", "utubettl"))
            crawler = HttpCrawler(request_manager=manager, configure_logging=False)
            url = "http://a.example/"
            assert crawler._record_rate_limit_status_code(429, request_url=url, retry_after_header=header)
            assert manager._blocks["a.example"][1] == reason

    asyncio.run(main())


@pytest.mark.full
@pytest.mark.parametrize("limit", ["Retry-After", "Crawl-delay"])
def test_absurd_limit_of_a_host_does_not_end_the_crawl(server: LocalServer, limit: str) -> None:
    special: dict[tuple[int, str], list[Reply]] = {}
    if limit == "Retry-After":
        special[0, "/p/1"] = [(429, {"Retry-After": "99999999999"}, "")]
    else:
        special[0, "/robots.txt"] = [(200, {}, "User-agent: *\nCrawl-delay: 99999999999")]
    url = f"{server.url}?namespace={limit}"
    with serve(Hosts(2, 3, special=special)) as hosts, tubes.connect(url) as queue:
        arguments = {"url": url, "starts": [f"{host}/p/0" for host in hosts.urls], "respect_robots_txt_file": True}
        with Run("tests.crawl.crawlees", json.dumps(arguments)) as run:
            run.wait_until(lambda: len({visit.path for visit in hosts.visits if visit.host == 1}) == 4)
            lane = queue.tube("pages").lane(hosts.urls[0].removeprefix("http://"))
            run.wait_until(lambda: 3500 < (lane.info().next_start or 0) - time.time() <= 3600)


def test_tasks_that_are_no_requests_are_buried() -> None:
    async def main() -> None:
        async with tubes.aio.connect() as queue:
            tube = await queue.create_tube("pages", "utubettl")
            bad = [
                5,
                {"url": 1},
                {"url": "http://a.example/", "uniqueKey": "a", "label": 5},
                {"url": "http://a.example/", "payload": {}},
                ["http://a.example/"],
            ]
            await tube.put_many([*bad, "http://a.example/1"], utube="a.example")
            request = await TubeRequestManager(tube).fetch_next_request()
            assert request is not None
            assert request.url == "http://a.example/1"
            assert [task.data async for task in tube.select("buried")] == bad

    asyncio.run(main())


def test_copies_of_a_request_in_flight_are_handled_once() -> None:
    async def main() -> None:
        async with tubes.aio.connect() as queue:
            tube = await queue.create_tube("pages", "utubettl")
            manager = TubeRequestManager(tube)
            for lane in "ab":
                await tube.put("http://a.example/1", utube=lane)
            await tube.put("http://b.example/1", utube="c")
            requests = [await manager.fetch_next_request() for _ in range(2)]
            assert [request and request.url for request in requests] == ["http://a.example/1", "http://b.example/1"]
            for request in requests:
                assert request is not None
                assert await manager.mark_request_as_handled(request) is not None
            assert await manager.fetch_next_request() is None
            assert await manager.is_finished()
            assert manager._held == {}

    asyncio.run(main())


def test_fetch_ends_when_another_process_handles_the_last_request() -> None:
    async def main() -> None:
        async with tubes.aio.connect() as queue:
            manager = TubeRequestManager(await queue.create_tube("pages", "utubettl"))
            assert await manager.fetch_next_request() is None
            await manager.add_request("http://a.example/1")
            request = await manager.fetch_next_request()
            assert request is not None
            waiting = asyncio.create_task(manager.fetch_next_request())
            await asyncio.sleep(0)
            assert not await manager.is_finished()
            await manager.mark_request_as_handled(request)
            assert await waiting is None
            assert await manager.is_finished()

    asyncio.run(main())


def test_cancelled_fetch_loses_no_request() -> None:
    async def main() -> None:
        async with tubes.aio.connect() as queue:
            tube = await queue.create_tube("pages", "utubettl")
            manager = TubeRequestManager(tube)
            await manager.add_requests([f"http://{host}.example/" for host in "abcde"])
            for turns in range(5):
                fetch = asyncio.create_task(manager.fetch_next_request())
                for _ in range(turns):
                    await asyncio.sleep(0)
                fetch.cancel()
                await asyncio.wait((fetch,))
                await asyncio.sleep(0.01)
            taken = (await tube.statistics()).tasks["taken"]
            assert taken == len(manager._held)

    asyncio.run(main())


def test_released_requests_block_and_slow_down_their_hosts() -> None:
    async def main() -> None:
        clock = tubes.testing.ManualClock()
        async with tubes.aio.connect(clock=clock) as queue:
            tube = await queue.create_tube("pages", "utubettl", interval=1, interval_from="ack")
            manager = TubeRequestManager(tube)
            await manager.add_requests(["http://a.example/", "http://b.example:8080/"])
            first, second = await manager.fetch_next_request(), await manager.fetch_next_request()
            assert first is not None
            assert second is not None
            assert manager.record_domain_delay(first.url, retry_after=timedelta(seconds=50))
            assert manager.is_throttled(first.url)
            await manager.reclaim_request(first)
            manager.set_crawl_delay(second.url, 7)
            await manager.mark_request_as_handled(second)
            info = await tube.lane("a.example").info()
            assert info.blocked_reason == "429, Retry-After 50"
            waits = {lane.name: (lane.next_start or 0) - clock.now() for lane in await tube.lanes()}
            assert waits == {"a.example": pytest.approx(50, abs=0.1), "b.example:8080": pytest.approx(7, abs=0.1)}

    asyncio.run(main())
