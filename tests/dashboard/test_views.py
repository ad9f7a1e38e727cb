"""Each view shows the data of the service."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect

import tubes
from tests.dashboard.conftest import Dashboard
from tests.support.served import Served
from tubes.testing import LocalServer
from tubes.worker import Worker


def rows(page: Page, name: str) -> list[str]:
    """Return the texts of the rows of a table."""
    table = page.get_by_role("table", name=name, exact=True)
    expect(table).to_be_visible()
    return [" ".join(text.split()) for text in table.locator("tbody tr").all_inner_texts()]


def test_root_of_the_service_leads_to_the_tubes(dashboard: Dashboard) -> None:
    dashboard.page.goto(dashboard.url)
    expect(dashboard.page.get_by_role("heading", name="Tubes")).to_be_visible()
    assert urlsplit(dashboard.page.url).path == "/ui/"


def test_tubes_with_failures_come_first(dashboard: Dashboard) -> None:
    dashboard.tube("calm", tasks=3)
    path = dashboard.tube("failing", tasks=2)
    dashboard.api("POST", f"{path}/tasks/1/bury", {"reason": "bad"})
    page = dashboard.open("tubes")
    assert [row.split()[0] for row in rows(page, "Tubes")] == ["failing", "calm"]
    page.get_by_role("button", name="Ready").click()
    expect(page.locator("tbody tr").first).to_contain_text("calm")
    page.get_by_role("searchbox", name="Name").fill("FAIL")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("failing")


def test_tubes_with_numbers_as_names_keep_their_order(dashboard: Dashboard) -> None:
    for name, count in (("7", 1), ("b", 2), ("3", 3)):
        dashboard.tube(name, tasks=count)
    assert [row.split()[0] for row in rows(dashboard.open("tubes", query="?sort=ready"), "Tubes")] == ["3", "b", "7"]


def test_list_of_tubes_has_pages(dashboard: Dashboard) -> None:
    for number in range(60):
        dashboard.tube(f"tube{number:02}")
    page = dashboard.open("tubes", query="?sort=name")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text("51 to 60 of 60")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(10)


def test_tube_shows_counts_options_and_due_tasks(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail", tasks=4, ttr=77)
    dashboard.api("POST", f"{path}/tasks", {"data": 1, "delay": 30})
    page = dashboard.open("tubes", "mail")
    for label, count in (("ready", "4"), ("delayed", "1"), ("buried", "0")):
        expect(page.locator(".card", has=page.get_by_text(label, exact=True)).locator("dd")).to_have_text(count)
    expect(page.locator("dl.facts").first).to_contain_text("77")
    expect(page.get_by_role("img", name="Tasks per second")).to_be_visible()
    expect(page.locator(".bars li", has_text="within 1 min")).to_contain_text("1")
    expect(page.get_by_role("navigation", name="Views of the tube")).not_to_contain_text("Lanes")


def test_counts_change_while_the_page_is_open(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail", tasks=1)
    page = dashboard.open("tubes", "mail")
    expect(page.locator(".connection")).to_have_text("live")
    dashboard.api("POST", f"{path}/tasks/batch", {"items": [{"data": 1}] * 999})
    expect(page.locator(".card", has_text="ready").first).to_contain_text("1,000")


def test_tasks_are_filtered_and_searched(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail", tasks=120)
    dashboard.api("POST", f"{path}/tasks/7/bury", {"reason": "ValueError: no address"})
    page = dashboard.open("tubes", "mail", "tasks")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("navigation", name="Pages").get_by_role("button", name="More").click()
    expect(page.locator("tbody tr").first).to_contain_text('{"n":50}')
    page.get_by_label("Data contains").fill('"n":117')
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Data contains").fill("")
    page.get_by_label("Order").select_option("newest first")
    expect(page.locator("tbody tr").first).to_contain_text('{"n":119}')
    page.get_by_label("State").select_option("buried")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert "ValueError: no address" in rows(page, "Tasks")[0]


def test_tasks_and_dead_letters_show_their_function_and_are_filtered_by_it(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail", tasks=1)
    for name in ("send", 'größe "1"', "send"):
        id = dashboard.api("POST", f"{path}/tasks", {"data": {"task": name, "args": ["send"]}})["id"]
        dashboard.api("POST", f"{path}/tasks/{id}/bury", {"reason": "ValueError: no address"})
    page = dashboard.open("tubes", "mail", "tasks")
    page.get_by_role("link", name='größe "1"').click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_label("Function")).to_have_value('größe "1"')
    page.get_by_label("Function").fill("args")
    expect(page.get_by_text("No task passes the filters.")).to_be_visible()
    page = dashboard.open("tubes", "mail", "dead")
    page.get_by_role("link", name="send").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.get_by_label("State")).to_have_value("buried")


def test_task_shows_its_facts_and_its_data(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail", max_attempts=5)
    dashboard.api("POST", f"{path}/tasks", {"data": {"to": "ann"}, "pri": 3, "key": "k1", "context": {"user": "7"}})
    dashboard.api("POST", "/take", {"tubes": ["mail"]})
    page = dashboard.open("tubes", "mail", "tasks", 0)
    facts = page.locator("dl.facts")
    for text in ("1 of 5", "k1", "user"):
        expect(facts).to_contain_text(text)
    expect(page.locator("pre")).to_contain_text('"to": "ann"')
    expect(page.locator("ol.timeline")).to_contain_text("its take ends")


def test_numbers_of_results_and_saved_values_are_shown_as_they_are(dashboard: Dashboard) -> None:
    path = dashboard.tube(tasks=2, keep_done=60)
    value = '{"id":12345678901234567890,"part":1.0}'
    for id in range(2):
        task = dashboard.http.post(f"{path}/take", json={"ttr": 60}).json()["tasks"][0]
        lease = json.dumps(task["lease"])
        if id:
            dashboard.http.post("/leases/checkpoint", content=f'{{"lease":{lease},"saved":{value}}}')
        else:
            dashboard.http.post("/leases/ack", content=f'{{"leases":[{lease}],"results":[{value}]}}')
        page = dashboard.open("tubes", "mail", "tasks", id)
        expect(page.locator("pre")).to_have_count(2)
        expect(page.locator("pre").nth(1)).to_have_text('{\n  "id": 12345678901234567890,\n  "part": 1.0\n}')


def test_large_numbers_in_data_are_shown_as_they_are(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail")
    dashboard.http.post(f"{path}/tasks/raw", content=b'{"id":12345678901234567890}')
    expect(dashboard.open("tubes", "mail", "tasks", 0).locator("pre")).to_contain_text("12345678901234567890")


def test_dead_letters_are_grouped_by_reason(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail", tasks=6)
    for id, reason in enumerate(("full", "full", "full", "bad: address 3", "bad: address 4")):
        dashboard.api("POST", f"{path}/tasks/{id}/bury", {"reason": reason})
    page = dashboard.open("tubes", "mail", "dead")
    assert [row.split()[0] for row in rows(page, "Dead letters by reason")] == ["full", "bad"]
    page.get_by_role("link", name="bad").click()
    expect(page.locator("tbody tr")).to_have_count(2)


def test_lanes_are_sorted_and_blocked_ones_say_why(dashboard: Dashboard) -> None:
    path = dashboard.tube("crawl", "utubettl", interval=60)
    for lane, count in (("few.example", 1), ("many.example", 5), ("blocked.example", 2)):
        for _ in range(count):
            dashboard.api("POST", f"{path}/tasks", {"data": "/", "utube": lane})
    dashboard.api("POST", f"{path}/lanes/blocked.example/block", {"seconds": 600, "reason": "429"})
    page = dashboard.open("tubes", "crawl", "lanes")
    assert [row.split()[0] for row in rows(page, "Lanes")] == ["many.example", "blocked.example", "few.example"]
    blocked = page.locator("tbody tr", has_text="blocked.example").first
    expect(blocked).to_contain_text("429")
    expect(page.locator("tbody tr", has_text="many.example")).to_contain_text("5 min")
    page.get_by_role("button", name="Blocked", exact=True).click()
    expect(page.locator("tbody tr").first).to_contain_text("blocked.example")
    page.get_by_role("searchbox", name="Name").fill("FEW")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="few.example").click()
    expect(page.get_by_role("searchbox", name="Lane")).to_have_value("few.example")


def test_page_beyond_the_last_lane_leads_back(dashboard: Dashboard) -> None:
    path = dashboard.tube("crawl", "utube")
    dashboard.api("POST", f"{path}/tasks", {"data": 1, "utube": "a"})
    page = dashboard.open("tubes", "crawl", "lanes", query="?offset=5000")
    expect(page.get_by_text("none of 1")).to_be_visible()
    page.get_by_role("button", name="Previous").click()
    expect(page.locator("tbody tr")).to_have_count(1)


def test_workers_and_schedules_are_listed(make_dashboard: Callable[..., Dashboard], valkey: LocalServer) -> None:
    url = f"{valkey.url}?prefix={uuid4().hex}"
    with Served("--url", url) as served:
        dashboard = make_dashboard(served.url)
        with tubes.connect(url) as root, root.namespace(dashboard.namespace) as queue:
            tube = queue.create_tube("mail", "fifottl", ttr=60)
            tube.put(1)
            worker = Worker(queue, concurrency=2)

            @worker.on(tube)
            def send(task: tubes.Task) -> None:
                task.checkpoint(progress=0.5, note="half way")
                stopped.wait(60)

            @worker.every(3600)
            def clean() -> None:
                cleaned.set()

            stopped, cleaned = threading.Event(), threading.Event()
            with worker.running():
                page = dashboard.open("workers")
                row = page.locator("tbody tr")
                expect(row).to_contain_text("mail")
                expect(row).to_contain_text("half way", timeout=40_000)
                expect(row).to_contain_text("mail 0 for ")
                page.get_by_role("link", name="Schedules", exact=True).click()
                expect(page.locator("tbody tr")).to_contain_text("clean")
                page.get_by_role("button", name="Run now").click()
                expect(page.get_by_text("A call of clean is put.")).to_be_visible()
                assert cleaned.wait(20)
                stopped.set()


def test_missing_tube_and_unknown_view_say_so(dashboard: Dashboard) -> None:
    page = dashboard.open("tubes", "nothing")
    expect(page.get_by_role("alert")).to_contain_text("nothing")
    page = dashboard.open("elsewhere")
    expect(page.get_by_text("There is no such page.")).to_be_visible()


@pytest.mark.parametrize("word", ["constructor", "__proto__", "toString", "hasOwnProperty"])
def test_names_of_javascript_are_ordinary_words_of_an_address(dashboard: Dashboard, word: str) -> None:
    dashboard.tube("mail")
    for place in ((word,), ("tubes", "mail", word)):
        expect(dashboard.open(*place).get_by_text("There is no such page.")).to_be_visible()
    dashboard.page.goto(f"{dashboard.url}/ui/#/{word}/tubes")
    expect(dashboard.page.get_by_text("There are no tubes yet.")).to_be_visible()


EMPTY = {
    "tubes": "There are no tubes yet",
    "workers": "No worker is running",
    "schedules": "No running worker has a schedule",
    "audit": "There are no changes through this service yet",
}


@pytest.mark.parametrize("view", EMPTY)
def test_empty_namespace_explains_itself(dashboard: Dashboard, view: str) -> None:
    expect(dashboard.open(view).locator("p.empty")).to_contain_text(EMPTY[view])


def fill_views(dashboard: Dashboard) -> list[tuple[object, ...]]:
    """Create tasks in several states, and return the addresses of all views."""
    path = dashboard.tube("crawl", "utubettl", keep_done=600)
    for number in range(25):
        dashboard.api("POST", f"{path}/tasks", {"data": "word " * 20, "utube": "a.example"})
        if number < 3:
            dashboard.api("POST", f"{path}/tasks/{number}/bury", {"reason": "ValueError: no address"})
    dashboard.api("DELETE", f"{path}/tasks/3")
    (task,) = dashboard.api("POST", "/take", {"tubes": ["crawl"]})["tasks"]
    words = "Traceback (most recent call last):\n" + f'  File "{"x" * 300}", line 1, in f\n' + "ValueError"
    dashboard.api("POST", "/leases/bury", {"leases": [task["lease"]], "traceback": words, "worker": "web1:7"})
    held = {"tube": "crawl", "id": 4, "attempts": 1, "since": 1.0, "function": "send", "progress": 0.5, "note": "half"}
    names = [f"reports.send_{number}" for number in range(20)]
    handler = {"name": "send", "tubes": ["crawl", "x" * 200], "concurrency": 2, "functions": names, "is_shared": True}
    counts = dict.fromkeys(("acked", "released", "buried", "lost", "in_hand"), 7)
    worker = {"id": "1", "host": "web1", "pid": 7, "started": 1.0, "seen": 1.0, **counts, "stopping": True}
    schedule = {"name": "sweep" * 9, "tube": "crawl", "schedule": "every 60 s", "last": 1.0, "last_result": "acked"}
    times = {f"{kind}_p{q}": 0.3 for kind in ("wait", "run") for q in (50, 95, 99)}
    replies: dict[str, object] = {
        "workers": [{**worker, "handlers": [handler], "tasks": [held], "schedules": []}],
        "unknown": [{"tube": "crawl", "name": "resiez"}],
        "schedules": [{**schedule, "next": 2.0, "workers": 1}],
        "durations": [{"tube": "crawl", "function": name, "count": 3, **times} for name in ("send", None)],
    }
    dashboard.page.route(
        re.compile(r"/v1/\w+/(workers|schedules|durations)$"), lambda route: route.fulfill(json=replies)
    )
    sections = ((), ("tasks",), ("tasks", 0), ("tasks", 3), ("tasks", task["id"]), ("dead",), ("lanes",))
    return [("tubes",), ("workers",), ("schedules",), ("audit",), *(("tubes", "crawl", *each) for each in sections)]


@pytest.mark.parametrize("width", [390, 1300])
def test_no_view_is_wider_than_the_page_and_no_texts_touch(
    make_dashboard: Callable[..., Dashboard], memory_service: Served, width: int
) -> None:
    dashboard = make_dashboard(memory_service.url, viewport={"width": width, "height": 844})
    for view in fill_views(dashboard):
        page = dashboard.open(*view)
        for element in [page.locator("html"), *page.locator(".scroll").all()] if width == 390 else []:
            assert element.evaluate("each => each.scrollWidth - each.clientWidth") <= 0, view
        if view[-1] == "tasks" and width == 390:
            assert page.evaluate("document.documentElement.scrollHeight") < 7000
        touching = page.evaluate("""() => [...document.querySelectorAll("main :is(code, a, span, bdi, time)")]
            .filter((each) => getComputedStyle(each).display === "inline" && each.nextSibling instanceof Text)
            .map((each) => each.textContent.slice(-9) + "|" + each.nextSibling.data.slice(0, 9))
            .filter((text) => /\\w\\|\\w/.test(text))""")
        assert touching == [], view
        if view in (("workers",), ("schedules",), ("tubes", "crawl")):
            expect(page.locator("tbody tr")).to_have_count(2 if view[0] == "tubes" else 1)
        if view == ("workers",):
            expect(page.locator("main")).to_contain_text("No running worker has the function resiez")
        if view == ("tubes", "crawl"):
            expect(page.locator("tbody tr").first).to_contain_text("300 ms")


def test_unknown_rates_are_no_zeros_and_pauses_are_gaps(dashboard: Dashboard) -> None:
    dashboard.tube("mail", tasks=1)
    at = [*range(0, 25, 5), *range(445, 470, 5)]
    ones = [1] * len(at)
    names = ("ready", "taken", "delayed", "buried", "put", "done", "failed")
    history = {"interval": 5, "at": at, **dict.fromkeys(names, ones)}
    dashboard.page.route("**/history", lambda route: route.fulfill(json=history))
    page = dashboard.open("tubes", "mail")
    expect(page.locator("path.line.ready")).to_have_count(1)
    moves = [page.locator(f"path.line.{name}").get_attribute("d") for name in ("ready", "put")]
    assert [(str(path).count("M"), str(path).count("L")) for path in moves] == [(2, 8), (2, 7)]
    first = {"interval": 5, "at": [0], **{name: [0] for name in names}}
    page.route("**/history", lambda route: route.fulfill(json=first))
    page.reload()
    expect(page.locator(".key.put")).to_have_text("put \N{EN DASH}")


def test_done_task_offers_only_to_be_put_again(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail", tasks=1, keep_done=600)
    dashboard.api("DELETE", f"{path}/tasks/0")
    page = dashboard.open("tubes", "mail", "tasks", 0)
    expect(page.locator("ol.timeline")).not_to_contain_text("is done")
    expect(page.get_by_role("button", name="Kick")).to_have_count(0)
    page.get_by_role("button", name="Put again").click()
    expect(page.get_by_role("status").filter(has_text="The task is put again.")).to_be_visible()
    assert dashboard.counts()["ready"] == 1
