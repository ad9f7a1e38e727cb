"""Metrics for Prometheus: the exported values match the queue."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import tubes
import tubes.sync
from tests.contract.bench import eventually
from tests.support.taking import take_task
from tubes.metrics import spans
from tubes.metrics.prometheus import NAMES, Collector
from tubes.serve import metrics as service
from tubes.testing import ManualClock
from tubes.values.reasons import kind_of
from tubes.values.timings import Timings

ROOT = Path(__file__).parent.parent.parent


class Scrape:
    """A collector, and the samples that Prometheus would scrape from it."""

    def __init__(self, queue: tubes.Queue | str, **options: Any) -> None:
        self.collector = Collector(queue, **options)
        self.registry = CollectorRegistry()
        self.registry.register(self.collector)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture(params=["memory", "valkey"])
def queue(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[tubes.Queue]:
    url = "memory://" if request.param == "memory" else request.getfixturevalue("url")
    with tubes.connect(url, clock=clock) as queue:
        yield queue


@pytest.fixture
def scrape(queue: tubes.Queue, clock: ManualClock) -> Iterator[Scrape]:
    scrape = Scrape(queue, watch=True, now=clock.now)
    yield scrape
    scrape.collector.close()


def test_folder_exports_disk_usage(tmp_path: Path) -> None:
    with tubes.connect(f"file:{tmp_path}?sync=full") as queue:
        queue.create_tube("t").put("x" * 1000)
        usage, scrape = queue.admin.folder_usage, Scrape(queue)
        assert usage is not None
        assert (
            scrape("tubes_folder_bytes")
            == usage.bytes
            == sum((tmp_path / name).stat().st_size for name in ("tubes.db", "tubes.db-wal", "reserve"))
        )
        assert scrape("tubes_folder_checkpoint_time_seconds") == usage.checkpoint
        assert scrape("tubes_folder_fsyncs_total") == usage.fsyncs == 2
        assert scrape("tubes_folder_fsync_seconds_total") == usage.fsync_seconds > 0
        scrape.collector.close()


def test_backend_without_folder_exports_no_disk_usage(queue: tubes.Queue, scrape: Scrape) -> None:
    assert queue.admin.folder_usage is None
    assert scrape("tubes_folder_bytes") is None


def test_metrics_match_tasks_calls_and_ages_of_queue(queue: tubes.Queue, scrape: Scrape, clock: ManualClock) -> None:
    mail = queue.create_tube("mail", "fifottl", ttr=5)
    mail.put_many(range(4))
    mail.put("late", delay=60)
    mail.put("gone", ttl=1)
    mail.bury(0)
    assert mail.take(timeout=0) is not None
    clock.advance(7)  # The ttr and the ttl have expired.
    assert mail.take(timeout=0) is not None
    states = {
        state: scrape("tubes_tasks", tube="mail", state=state) for state in ("ready", "taken", "delayed", "buried")
    }
    assert states == {"ready": 2, "taken": 1, "delayed": 1, "buried": 1}
    for call, count in mail.statistics().calls.items():
        assert scrape("tubes_calls_total", tube="mail", call=call) == count
    assert scrape("tubes_expired_total", tube="mail") == 1
    assert scrape("tubes_ttr_timeouts_total", tube="mail") == 1
    assert scrape("tubes_done_total", tube="mail") == 1
    assert scrape("tubes_oldest_ready_age_seconds", tube="mail") == 7
    assert scrape("tubes_up") == 1


def test_durations_of_workers_are_exported(queue: tubes.Queue, scrape: Scrape) -> None:
    entries = queue.admin._workers_tube()
    for _ in range(2):
        entries.put({"timings": [Timings("tasks", "send", {}, {20: 9, 100: 1}).fields]})
    entries.put({"timings": [Timings("mail", None, {50: 1}, {50: 1}).fields]})
    found = {one.tube: one for one in queue.admin.durations()}
    place = {"tube": "tasks", "function": "send"}
    for quantile, seconds in (("0.5", found["tasks"].run_p50), ("0.99", found["tasks"].run_p99)):
        assert scrape("tubes_worker_run_seconds", quantile=quantile, **place) == seconds
    assert scrape("tubes_worker_wait_seconds", quantile="0.5", **place) is None
    place = {"tube": "mail", "function": ""}
    assert scrape("tubes_worker_wait_seconds", quantile="0.95", **place) == found["mail"].wait_p95


def test_lanes_sessions_pauses_and_callers_are_counted(queue: tubes.Queue, scrape: Scrape) -> None:
    crawl = queue.create_tube("crawl", "utube", interval=10)
    for host in ("a", "b", "c"):
        crawl.put("/", utube=host)
    crawl.take(timeout=0)
    crawl.lane("b").block(60)
    assert scrape("tubes_lanes", tube="crawl") == 3
    assert scrape("tubes_throttled_lanes", tube="crawl") == 2
    assert scrape("tubes_paused", tube="crawl") == 0
    crawl.pause()
    assert scrape("tubes_paused", tube="crawl") == 1
    waiting = threading.Thread(target=crawl.take, args=(60,))
    waiting.start()
    assert eventually(lambda: scrape("tubes_waiting", tube="crawl") == 1)
    crawl.pause(0)
    waiting.join()
    sessions = scrape("tubes_sessions", tube="crawl")
    assert sessions is not None
    with queue.session() as other:
        other.tube("crawl")
        assert scrape("tubes_sessions", tube="crawl") == sessions + 1


def test_overdue_task_increases_due_lag(url: str, clock: ManualClock) -> None:
    with tubes.connect(url, clock=clock) as queue:
        queue.create_tube("mail", "fifottl").put("later", delay=10)
    clock.advance(25)  # No client is connected now.
    with tubes.connect(url, clock=clock) as queue:
        scrape = Scrape(queue, ages=False)
        assert scrape("tubes_due_lag_seconds", tube="mail") == 15
        assert scrape("tubes_tasks", tube="mail", state="delayed") == 1
        queue.tube("mail").statistics()
        assert scrape("tubes_due_lag_seconds", tube="mail") == 0
        scrape.collector.close()


def test_watched_tube_exports_histograms_and_bury_reasons(
    queue: tubes.Queue, scrape: Scrape, clock: ManualClock
) -> None:
    mail = queue.create_tube("mail", "fifottl")
    scrape("tubes_up")  # Start to listen, so that the collector is notified before the listener below.
    events: list[str] = []
    mail.on_task_change(lambda task, event: events.append(event))
    mail.put("to ann")
    assert eventually(lambda: events == ["put"])
    clock.advance(3)
    task = take_task(mail)
    assert eventually(lambda: events == ["put", "take"])
    clock.advance(20)
    task.bury("ValueError: no such address")
    mail.bury(mail.put("to bob"), "ValueError: gone")
    assert eventually(lambda: scrape("tubes_buried_total", tube="mail", reason="ValueError") == 2)
    assert scrape("tubes_wait_seconds_count", tube="mail") == 1
    assert scrape("tubes_wait_seconds_sum", tube="mail") == 3
    assert scrape("tubes_hold_seconds_sum", tube="mail") == 20
    assert scrape("tubes_hold_seconds_bucket", tube="mail", le="15.0") == 0
    assert scrape("tubes_hold_seconds_bucket", tube="mail", le="60.0") == 1


def test_one_collector_distinguishes_namespaces_by_a_label(queue: tubes.Queue, clock: ManualClock) -> None:
    with queue.namespace("team") as team, queue.namespace("shop") as shop:
        mails = {"": queue.create_tube("mail"), "team": team.create_tube("mail")}
        for start in (queue, team):  # From any namespace of the store.
            scrape = Scrape(start, namespaces=True, watch=["mail"], now=clock.now)
            assert scrape("tubes_up") == 1
            for number, (namespace, mail) in enumerate(mails.items(), 1):
                mail.truncate()
                mail.put_many(range(number))
                mail.bury(mail.put("bad"), "why")
                assert scrape("tubes_tasks", namespace=namespace, tube="mail", state="ready") == number
                about = {"namespace": namespace, "tube": "mail", "reason": "why"}
                assert eventually(lambda see=scrape, about=about: see("tubes_buried_total", **about) == 1)  # type: ignore[misc]
            shop.create_tube("cart")
            assert scrape("tubes_waiting", namespace="shop", tube="cart") == 0
            shop.tube("cart").drop()
            assert scrape("tubes_waiting", namespace="shop", tube="cart") is None
            scrape.collector.close()


def test_recreated_tube_is_watched_again(queue: tubes.Queue, scrape: Scrape) -> None:
    for number in (1, 2):
        mail = queue.create_tube("mail")
        scrape("tubes_up")
        mail.bury(mail.put(number))
        assert eventually(lambda number=number: scrape("tubes_buried_total", tube="mail", reason="none") == number)  # type: ignore[misc]
        mail.drop(force=True)


def test_unwatched_tube_exports_no_bury_reasons(queue: tubes.Queue) -> None:
    scrape = Scrape(queue, watch=["mail"])
    mail, other = queue.create_tube("mail"), queue.create_tube("other")
    scrape("tubes_up")
    for tube in (other, mail):
        tube.bury(tube.put(1))
    assert eventually(lambda: scrape("tubes_buried_total", tube="mail", reason="none") == 1)
    assert scrape("tubes_buried_total", tube="other", reason="none") is None
    scrape.collector.close()


def test_collector_keeps_existing_task_listener(queue: tubes.Queue, scrape: Scrape) -> None:
    mail, events = queue.create_tube("mail"), list[str]()
    mail.on_task_change(lambda task, event: events.append(event))
    scrape("tubes_up")
    mail.put(1)
    assert eventually(lambda: events == ["put"])


def test_bury_reasons_are_grouped_by_prefix_up_to_limit(queue: tubes.Queue, scrape: Scrape) -> None:
    for number in range(60):
        scrape.collector.buried("mail", f"Error{number}: about something")
    assert scrape("tubes_buried_total", tube="mail", reason="Error49") == 1
    assert scrape("tubes_buried_total", tube="mail", reason="other") == 10
    assert kind_of("x" * 100) == "x" * 60
    assert kind_of("") == "none"


def test_reason_with_surrogates_does_not_break_scrape(queue: tubes.Queue, scrape: Scrape) -> None:
    scrape.collector.buried("mail", "no file caf\udce9.txt")
    assert scrape("tubes_buried_total", tube="mail", reason="no file caf?.txt") == 1
    assert b'reason="no file caf?.txt"' in generate_latest(scrape.registry)


def test_unreachable_queue_is_exported_as_down_without_error(queue: tubes.Queue, scrape: Scrape) -> None:
    queue.create_tube("mail")
    scrape.collector.close()
    assert scrape("tubes_up") == 0
    assert scrape("tubes_waiting", tube="mail") is None


def test_hanging_scrape_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    with tubes.connect() as queue:
        scrape = Scrape(queue, timeout=0)

        def hang(*_: object, **__: object) -> dict[str, tubes.Overview]:
            free.wait(30)
            return {}

        monkeypatch.setattr(tubes.sync.QueueAdmin, "overview", hang)
        assert scrape("tubes_up") == 0
        free.set()
        assert eventually(lambda: scrape("tubes_up") == 1)
        scrape.collector.close()


def test_collector_accepts_url_instead_of_queue(url: str) -> None:
    name = f"memory://{uuid4().hex}"
    for place in (url, name):
        with tubes.connect(place) as queue:
            queue.create_tube("mail").put(1)
            scrape = Scrape(place)
            assert scrape("tubes_tasks", tube="mail", state="ready") == 1
            scrape.collector.close()


@pytest.mark.parametrize("options", [{"queue": 5}, {"queue": "nonsense"}, {"watch": "mail"}, {"namespaces": 1}])
def test_invalid_collector_options_are_refused(options: dict[str, Any]) -> None:
    with tubes.connect() as queue, pytest.raises(tubes.InvalidOption):
        Collector(**dict[str, Any]({"queue": queue}, **options))


def test_times_are_measured_only_from_complete_event_sequences(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class RecordingSink(list[tuple[str, float]]):
        def waited(self, tube: str, seconds: float) -> None:
            self.append(("waited", seconds))

        def held(self, tube: str, seconds: float) -> None:
            self.append(("held", seconds))

        def buried(self, tube: str, reason: str | None) -> None: ...

    monkeypatch.setattr(spans, "MAX_TASKS", 2)
    events = RecordingSink()
    with tubes.connect(clock=clock) as queue:
        mail = queue.create_tube("mail", "fifottl")
        mail.put("before")
        mail.on_task_change(spans.Spans(events, clock.now))
        mail.put("later", delay=5)
        task = take_task(mail)
        clock.advance(5)  # The delayed task is ready from here on.
        task.touch(1)
        task.update(data="other")
        clock.advance(2)
        task.release()
        assert events == [("held", 7)]
        events.clear()
        mail.truncate()
        first, *_ = mail.put_many(range(3))  # Only the last two are tracked.
        mail.delete(first)
        mail.take_many(5)
        assert events == [("waited", 0), ("waited", 0)]


def samples(folder: Path) -> dict[str, set[str]]:
    """Return the names of all possible samples, with their labels."""
    found: dict[str, set[str]] = {}
    for url in (f"file:{folder}", "memory://"):
        with tubes.connect(url) as queue:
            queue.create_tube("mail").put(1)
            if url == "memory://":  # A folder has no workers.
                queue.admin._workers_tube().put({"timings": [Timings("mail", None, {1: 1}, {1: 1}).fields]})
            scrape = Scrape(queue)
            scrape.collector.waited("mail", 1)
            scrape.collector.held("mail", 1)
            scrape.collector.buried("mail", None)
            for family in scrape.registry.collect():
                for sample in family.samples:
                    if not sample.name.endswith("_created"):
                        found[sample.name] = set(sample.labels)
            assert generate_latest(scrape.registry)
            scrape.collector.close()
    return found


def test_every_metric_has_the_name_that_the_manual_lists(tmp_path: Path) -> None:
    stems = {re.sub(r"_(bucket|sum|count)$", "", name) for name in samples(tmp_path)}
    assert stems == set(NAMES)
    table = (ROOT / "docs/metrics.md").read_text()
    assert set(re.findall(r"^\| `(tubes_\w+)", table, re.MULTILINE)) == {*NAMES, *service.NAMES}


def test_dashboard_queries_existing_metrics_and_labels(tmp_path: Path) -> None:
    known = samples(tmp_path)
    dashboard = json.loads((ROOT / "docs/grafana/tubes.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    queries += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    used: set[str] = set()
    for query in queries:
        names = set(re.findall(r"\btubes_\w+", query))
        assert names, query
        assert names <= known.keys(), query
        used |= names
        labels = {label for group in re.findall(r"\{([^}]*)\}", query) for label in re.findall(r"(\w+)\s*=", group)}
        labels |= {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
        there = set[str]().union(*(known[name] for name in names))
        assert labels - {"le"} <= there, query
    stems = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    assert stems == set(NAMES)


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    dashboard = json.loads((ROOT / "docs/grafana/tubes.json").read_text())
    cells: list[tuple[int, int]] = []
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        columns, rows = (range(place[at], place[at] + place[size]) for at, size in ("xw", "yh"))
        cells += product(columns, rows)
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_import_tubes_does_not_load_metrics_dependencies() -> None:
    program = (
        "import sys, tubes, tubes.metrics; print([n for n in sys.modules if n.startswith(('prometheus', 'opentel'))])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_scrape_sends_four_calls_plus_one_per_tube_with_ready_tasks(url: str) -> None:
    with tubes.connect(url) as queue:
        for number in range(10):
            queue.create_tube(f"tube-{number}")
        queue.tube("tube-3").put(1)
        collector = Collector(queue)
        list(collector.collect())
        before = _calls(url)
        list(collector.collect())
        assert _calls(url) - before == 2 + 2 + 1
        collector.close()


def _calls(url: str) -> int:
    import redis

    client: Any = redis.Redis(unix_socket_path=url.removeprefix("unix://").partition("?")[0])
    stats = client.info("commandstats")
    return int(stats["cmdstat_fcall"]["calls"])
