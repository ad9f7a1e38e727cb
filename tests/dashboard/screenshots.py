"""Take the pictures of the dashboard that the pages show: make screenshots. Needs Chromium.

It starts a Valkey, a service and a worker with example tubes, waits until the charts have data, and takes a picture of
each view, and of the lanes in dark colours.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import Any, Final

from playwright.sync_api import sync_playwright

import tubes
from tests.dashboard.conftest import launch
from tests.support.processes import ROOT
from tests.support.served import Served
from tubes.testing import LocalServer
from tubes.worker import Bury, Worker

STATIC: Final = ROOT / "docs" / "_static"
#: The views, by the name of their picture.
VIEWS: Final = {
    "tubes": "#/_/tubes",
    "tube": "#/_/tubes/mail",
    "tasks": "#/_/tubes/mail/tasks?state=buried",
    "task": "#/_/tubes/videos/tasks/0",
    "dead-letters": "#/_/tubes/mail/dead",
    "lanes": "#/_/tubes/crawl/lanes",
    "workers": "#/_/workers",
    "schedules": "#/_/schedules",
    "audit": "#/_/audit",
}
HOSTS: Final = (
    *("docs.example.com", "shop.example.com", "news.example.org", "blog.example.net", "api.example.com"),
    *("forum.example.org", "wiki.example.org", "photos.example.net", "status.example.com", "jobs.example.com"),
)
REASONS: Final = ("mailbox is full", "no such address", "mail server replied 451")


def fill(queue: tubes.Queue) -> None:
    """Create the tubes, with tasks in all states."""
    rng = random.Random(7)
    mail = queue.create_tube("mail", "fifottl", ttr=60, max_attempts=3, backoff=[5, 60])
    crawl = queue.create_tube("crawl", "utubettl", interval=2, ttr=60)
    videos = queue.create_tube("videos", "fifottl", ttr=600)
    reports = queue.create_tube("reports", "fifottl", keep_done=3600)
    queue.create_tube("thumbnails", "fifo").pause(3600)
    mail.put_many([{"to": f"{name}@example.com", "template": "invoice"} for name in ("ann", "bob", "eve")] * 12)
    for reason, count in zip(REASONS, (31, 12, 5), strict=True):
        for task in mail.take_many(count, timeout=0):
            task.bury(reason)
        mail.put_many([{"to": f"user{number}@example.com", "template": "welcome"} for number in range(count)])
    mail.put_many([{"to": "late@example.com"}] * 40, delay=900)
    for host in HOSTS:
        links = rng.randrange(20, 400)
        crawl.put_many([tubes.Item(f"https://{host}/page/{number}", utube=host) for number in range(links)])
    crawl.lane("api.example.com").block(3600, reason="429 Too Many Requests")
    crawl.lane("forum.example.org").block(600, reason="robots.txt: Crawl-delay 600")
    crawl.lane("wiki.example.org").configure(interval=10)
    crawl.lane("news.example.org").configure(max_in_flight=4, rate="2/s", burst=8)
    videos.put_many([{"file": f"holiday-{number}.mp4", "size": "1080p"} for number in range(7)])
    reports.put_many([{"month": f"2026-{month:02}"} for month in range(1, 13)])


def make_worker(queue: tubes.Queue) -> Worker:
    """Return a worker that works on all tubes, slowly."""
    worker = Worker(queue, concurrency=6)

    @worker.on("mail")
    def send(task: Any) -> None:
        if random.random() < 0.1:
            raise Bury(random.choice(REASONS))
        time.sleep(random.uniform(0.02, 0.2))

    @worker.on("crawl")
    def fetch(task: Any) -> None:
        time.sleep(random.uniform(0.2, 1))

    @worker.on("videos")
    def convert(task: Any) -> None:
        for frame in range(1, 200):
            task.checkpoint(progress=frame / 200, note=f"frame {frame * 30} of 6000")
            time.sleep(0.5)

    @worker.every(3600)
    def send_digest() -> None:
        """Send the digest."""

    @worker.cron("0 6 * * 1")
    def clean_up() -> None:
        """Remove old files."""

    return worker


def put_tasks(url: str, stop: threading.Event) -> None:
    """Put tasks until `stop` is set."""
    with tubes.connect(url) as queue:
        mail, crawl = queue.tube("mail"), queue.tube("crawl")
        while not stop.wait(0.2):
            mail.put_many([{"to": "new@example.com", "template": "welcome"}] * random.randrange(1, 4))
            crawl.put("/new", utube=random.choice(HOSTS))


def change(served: Served) -> None:
    """Make some changes through the service, which the audit lists."""
    tube = "/v1/_/tubes/crawl"
    requests: list[tuple[str, dict[str, Any]]] = [
        (f"{tube}/lanes/forum.example.org/block", {"seconds": 600, "reason": "robots.txt: Crawl-delay 600"}),
        ("/v1/_/tubes/mail/select", {"action": "kick", "state": "buried", "reason": "mail server replied 451"}),
        ("/v1/_/tubes/reports/tasks/3/cancel", {"reason": "wrong month"}),
        ("/v1/_/tubes/thumbnails/pause", {"seconds": 3600}),
    ]
    for path, body in requests:
        served.client.post(path, json=body)


def take_pictures(base: str, seconds: float) -> None:
    """Take a picture of each view."""
    with sync_playwright() as playwright:
        browser = launch(playwright)
        assert browser is not None
        try:
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": 1300, "height": 800}, color_scheme=scheme)
                page.goto(f"{base}/ui/#/_/tubes")
                page.wait_for_timeout(seconds * 1000 if scheme == "light" else 500)
                for name, view in VIEWS.items() if scheme == "light" else [("lanes", VIEWS["lanes"])]:
                    page.goto(f"{base}/ui/{view}")
                    page.wait_for_selector(f"main[data-view='{view}']:not(:has([aria-busy]))")
                    page.wait_for_timeout(1000)
                    page.screenshot(path=STATIC / f"dashboard-{name}{'' if scheme == 'light' else '-dark'}.png")
                page.close()
        finally:
            browser.close()


def main() -> None:
    """Serve the shop and take the pictures. The first argument: seconds of history, 90 by default."""
    stop = threading.Event()
    with LocalServer() as server, tubes.connect(server.url) as queue:
        fill(queue)
        worker = make_worker(queue)
        threads = [threading.Thread(target=put_tasks, args=(server.url, stop)), threading.Thread(target=worker.run)]
        with Served("--url", server.url, "--no-access-log") as served:
            change(served)
            for thread in threads:
                thread.start()
            try:
                take_pictures(served.url, float(sys.argv[1]) if len(sys.argv) > 1 else 90)
            finally:
                stop.set()
                worker.stop()
                for thread in threads:
                    thread.join()


if __name__ == "__main__":
    main()
