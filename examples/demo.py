"""The crawler at work on Python's own documentation, and the proof that it was polite.

    python examples/demo.py             # or: make demo

Many workers crawl several local web servers (`pydoc_hosts.py`) under a live table (`board.py`). Then what the
tube promises is held against what the servers noted (`proof.py`). A control run without lanes shows that the
servers would have seen it. Exit codes: 0 if every promise was kept, 1 if not, 130 after Ctrl-C.
"""

import argparse
import asyncio
import sys
import time
from typing import Any

import proof
from board import Board
from crawler import Crawler, host_of, positive
from pydoc_hosts import running
from rich.console import Console
from rich.table import Table
from rich.text import Text
from yarl import URL

import tubes

FIRST_DELAY = 0.1
VERDICTS = {True: Text("yes", "bold green"), False: Text("NO", "bold red"), None: Text("unseen", "yellow")}


class LanelessCrawler(Crawler):
    """The same crawler on a plain `fifo` tube, which knows neither lanes nor delays."""

    @staticmethod
    async def create_tube(queue: tubes.aio.AsyncQueue) -> tubes.aio.AsyncTube:
        """A plain one."""
        return await queue.create_tube("control", "fifo")

    def options(self, url: URL) -> dict[str, Any]:
        """None."""
        return {}

    def delay(self, attempts: int) -> float | None:
        """None."""
        return None


class Trial:
    """One crawl of hosts started for it, and what they noted."""

    def __init__(self, kind: type[Crawler], limit: int, options: argparse.Namespace) -> None:
        self.kind, self.limit, self.options = kind, limit, options
        self.records: list[proof.Record] = []
        self.buried: dict[str, str] = {}
        self.attempts = 0
        self.summary = ""

    async def run(self, console: Console) -> None:
        """Crawl; if it is interrupted, what was noted until then is kept."""
        with running(self.options.hosts, self.options.seed) as urls:
            async with tubes.aio.connect() as queue:
                tube = await self.kind.create_tube(queue)
                crawler = self.kind(queue, tube, limit=self.limit, first_delay=FIRST_DELAY)
                title = f"{self.options.workers} workers, {len(urls)} hosts, a {tube.driver.name} tube"
                starts = [URL(url) for url in urls]
                board = Board(title, map(host_of, starts), self.limit)
                await tube.on_task_change(board.heard)
                showing = asyncio.create_task(board.show(console))
                began = time.monotonic()
                try:
                    await crawler.run(starts, self.options.workers)
                finally:
                    seconds = time.monotonic() - began
                    showing.cancel()
                    await asyncio.wait([showing])
                    self.summary = (
                        f"{tube.driver.name}: {crawler.pages} pages in {seconds:.1f} s, "
                        f"{crawler.pages / seconds:.0f} pages/s"
                    )
                    self.attempts = crawler.max_attempts
                    for task in [await tube.peek(id) for id in crawler.buried]:
                        self.buried[task.data] = f"{crawler.buried[task.id]}, attempt {task.attempts}"
                    self.records = await proof.read_records(urls)


def conclude(console: Console, trial: Trial, control: Trial) -> bool:
    """Print what came of it; answers whether every promise was kept."""
    if not trial.records:
        return False
    checks = [
        proof.one_in_flight(trial.records),
        proof.fetched_once(trial.records),
        proof.growing_delay(trial.records, FIRST_DELAY),
        proof.hopeless_buried(trial.records, trial.attempts, trial.buried),
    ]
    if control.records:
        checks.append(proof.control_differs(control.records))
    table = Table(title="What the servers noted", title_style="bold", title_justify="left", box=None)
    for check in checks:
        table.add_row(VERDICTS[check.kept], check.promise, check.seen)
    console.print(table, "", *(trial.summary, control.summary), sep="\n")
    for why in sorted(set(trial.buried.values())):
        console.print(f"buried: {why}")
        for url in sorted(url for url, reason in trial.buried.items() if reason == why):
            console.print(f"  {url}", soft_wrap=True)
    return all(check.kept for check in checks)  # What was not seen is not proven.


async def demo(options: argparse.Namespace) -> int:
    """The crawl, its control and the summary."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 100
    trial = Trial(Crawler, options.pages, options)
    control = Trial(LanelessCrawler, max(50, options.pages // 5), options)
    try:
        await trial.run(console)
        await control.run(console)
    finally:
        kept = conclude(console, trial, control)
    return 0 if kept else 1


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Crawl Python's documentation, and prove it was polite.")
    argument = parser.add_argument
    argument("--pages", type=positive, default=2000, metavar="N", help="ask for so many (%(default)s)")
    argument("--hosts", type=positive, default=8, metavar="N", help="that have them (%(default)s)")
    argument("--workers", type=positive, default=48, metavar="N", help="that fetch them (%(default)s)")
    argument("--seed", type=int, default=4, metavar="N", help="decides which ones fail (%(default)s)")
    options = parser.parse_args()
    try:
        return asyncio.run(demo(options))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
