"""Crawl Python's own documentation, and prove that the crawl was polite.

    python examples/demo.py                         # or: make demo
    python examples/demo.py --tube-url redis        # or: make demo URL=redis

Many workers crawl several local web servers (`pydoc_hosts.py`) while a live table (`board.py`) shows the progress.
Then `proof.py` compares the promises of the tube with the records of the servers. A control run without lanes shows
that the servers would notice violations. In memory the workers share this process; on a server they run in separate
processes (`fleet.py`). `--dashboard` shows the tubes in a browser meanwhile.

Exit codes: 0 if every promise was kept, 1 if not, 2 for bad arguments, 130 after Ctrl-C.
"""

import argparse
import asyncio
import sys
import time
from contextlib import AsyncExitStack
from itertools import groupby

import fleet
import proof
from board import Board
from crawler import Crawler, host_of, positive
from pydoc_hosts import running
from rich.console import Console
from verdicts import table_of
from yarl import URL

import tubes

ATTEMPTS, BACKOFF = 5, tubes.Backoff(0.1, factor=2)


class Trial:
    """One crawl of hosts started for it, and their records."""

    def __init__(self, driver: str, limit: int, options: argparse.Namespace) -> None:
        self.driver, self.limit, self.options = driver, limit, options
        self.name = "without lanes" if driver == "fifo" else "with lanes"
        self.records: list[proof.Record] = []
        self.buried: list[tubes.AsyncTask] = []
        self.summary = ""

    async def run(self, queue: tubes.AsyncQueue, url: str, console: Console, stack: AsyncExitStack) -> None:
        """Crawl with tubes of this queue, which the stack drops; keep the records if it is interrupted."""
        options = self.options
        with running(options.hosts, options.seed) as urls:
            crawler = await Crawler.create(
                queue,
                self.driver,
                limit=self.limit,
                interval=options.interval,
                attempts=ATTEMPTS,
                backoff=BACKOFF,
            )
            stack.push_async_callback(crawler.drop)
            starts = [URL(url) for url in urls]
            board = Board(self.title(url), map(host_of, starts), self.limit)
            await crawler.pages.on_task_change(board.update)
            showing = asyncio.create_task(board.show(console, crawler.pages))
            began = time.monotonic()
            try:
                if fleet.is_for_one(url):
                    await crawler.run(starts, options.workers)
                else:
                    each = -(-options.workers // options.processes)
                    async with fleet.running(options.processes, url, crawler, each):
                        await crawler.run(starts, workers=0)
            finally:
                seconds = time.monotonic() - began
                showing.cancel()
                await asyncio.wait([showing])
                self.buried = [task async for task in crawler.pages.select("buried", limit=self.limit)]
                self.records = await proof.read_records(urls)
                pages, redirects = proof.fetched(self.records)
                self.summary = (
                    f"{self.name}: {pages} pages + {redirects} redirects + {len(self.buried)} buried = "
                    f"{pages + redirects + len(self.buried)} URLs in {seconds:.1f} s, "
                    f"{(pages + redirects) / seconds:.0f} per s"
                )

    def title(self, url: str) -> str:
        """Return the title of the table."""
        options = self.options
        who, where = f"{options.workers} workers", ""
        if not fleet.is_for_one(url):
            who, where = f"{who} in {options.processes} processes", " on a server"
        return f"{who}, {options.hosts} hosts, {self.name}{where}"


def about_hosts(trial: Trial) -> list[proof.Check]:
    """Check the promises of lanes: one request at a time, and an interval between two."""
    checks = [proof.one_in_flight(trial.records)]
    if trial.options.interval:
        checks.append(proof.interval_kept(trial.records, trial.options.interval))
    return checks


def reason_of(task: tubes.AsyncTask) -> str:
    """Return the reason why a task is buried."""
    return f"{task.reason}, attempt {task.attempts}"


def conclude(console: Console, trial: Trial, control: Trial) -> bool:
    """Print the results and return True if every promise was kept."""
    if not trial.records:
        return False
    checks = [
        *about_hosts(trial),
        proof.retry_after_kept(trial.records),
        proof.fetched_once(trial.records),
        proof.backoff_kept(trial.records, BACKOFF),
        proof.hopeless_buried(trial.records, ATTEMPTS, {task.data: task.reason for task in trial.buried}),
    ]
    if control.records:
        checks.append(proof.control_differs(about_hosts(control), control.records))
    console.print(table_of("Logs of the servers", checks), "", *(trial.summary, control.summary), sep="\n")
    for reason, tasks in groupby(sorted(trial.buried, key=reason_of), reason_of):
        console.print(f"buried: {reason}")
        for task in tasks:
            console.print(f"  {task.data}", soft_wrap=True)
    return all(check.kept for check in checks)  # None (not observed) is not a proof.


async def demo(options: argparse.Namespace) -> int:
    """Run the crawl and the control, and print the summary."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 100
    trial = Trial("utubettl", options.pages, options)
    control = Trial("fifo", max(50, options.pages // 5), options)
    console.print(
        f"Crawl {trial.limit} URLs of {options.hosts} local web servers with one lane per host, then {control.limit} "
        "without lanes. The default numbers take about a minute.",
        soft_wrap=True,
    )
    with fleet.serving(options.tube_url) as url:
        async with tubes.aio.connect(url) as queue, AsyncExitStack() as stack:
            if options.dashboard:
                await show_dashboard(queue, console, stack)
            try:
                await trial.run(queue, url, console, stack)
                await control.run(queue, url, console, stack)
            finally:
                kept = conclude(console, trial, control)
            if options.dashboard and sys.stdin.isatty():
                console.print("The dashboard shows both crawls until you press Enter.")
                await pressed_enter()
    return 0 if kept else 1


async def show_dashboard(queue: tubes.AsyncQueue, console: Console, stack: AsyncExitStack) -> None:
    """Serve the dashboard of the queue until the stack is closed, and open it in a browser if there is one."""
    from tubes.serve.server import open_browser, serve_dashboard

    url = await stack.enter_async_context(serve_dashboard(queue))
    console.print(f"The dashboard is at {url}", soft_wrap=True)
    await asyncio.to_thread(open_browser, url)


async def pressed_enter() -> None:
    """Wait for a line on the standard input."""
    loop, pressed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin, pressed.set)
    try:
        await pressed.wait()
        sys.stdin.readline()
    finally:
        loop.remove_reader(sys.stdin)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Crawl Python's documentation, and prove it was polite.")
    argument = parser.add_argument
    argument("--pages", type=positive, default=1000, metavar="N", help="the number of pages to fetch (%(default)s)")
    argument("--hosts", type=positive, default=12, metavar="N", help="the number of hosts (%(default)s)")
    argument(
        "--interval", type=float, default=0.2, metavar="S", help="seconds between 2 requests to a host (%(default)s)"
    )
    argument("--workers", type=positive, default=48, metavar="N", help="the number of workers (%(default)s)")
    argument(
        "--processes",
        type=positive,
        default=4,
        metavar="N",
        help="the number of worker processes on a server (%(default)s)",
    )
    about = "memory, or a temporary folder (file) or server (redis, valkey), or a URL (%(default)s)"
    argument("--tube-url", default="memory", metavar="URL", help=about)
    argument("--seed", type=int, default=0, metavar="N", help="selects the pages that fail (%(default)s)")
    argument("--dashboard", action="store_true", help="show the dashboard of the tubes in a browser")
    options = parser.parse_args()
    try:
        return asyncio.run(demo(options))
    except tubes.InvalidOption as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
