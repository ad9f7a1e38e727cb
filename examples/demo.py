"""The crawler at work on Python's own documentation, and the proof that it was polite.

    python examples/demo.py                         # or: make demo
    python examples/demo.py --tube-url redis        # or: make demo URL=redis

Many workers crawl several local web servers (`pydoc_hosts.py`) under a live table (`board.py`). Then what the
tube promises is held against what the servers noted (`proof.py`). A control run without lanes shows that the
servers would have seen it. In memory the workers share this process, on a server they are in processes of their
own (`fleet.py`). Exit codes: 0 if every promise was kept, 1 if not, 2 for bad arguments, 130 after Ctrl-C.
"""

import argparse
import asyncio
import sys
import time

import fleet
import proof
from board import Board
from crawler import Crawler, host_of, positive
from pydoc_hosts import running
from rich.console import Console
from rich.table import Table
from rich.text import Text
from worker import Patience
from yarl import URL

import tubes

PATIENCE = Patience(first_delay=0.1)
VERDICTS = {True: Text("yes", "bold green"), False: Text("NO", "bold red"), None: Text("unseen", "yellow")}


class Trial:
    """One crawl of hosts started for it, and what they noted."""

    def __init__(self, driver: str, limit: int, options: argparse.Namespace) -> None:
        self.driver, self.limit, self.options = driver, limit, options
        self.records: list[proof.Record] = []
        self.buried: dict[str, str] = {}
        self.summary = ""

    async def run(self, url: str, console: Console) -> None:
        """Crawl with tubes of this URL; if it is interrupted, what was noted until then is kept."""
        options = self.options
        with running(options.hosts, options.seed) as urls:
            async with tubes.aio.connect(url) as queue:
                crawler = await Crawler.create(queue, self.driver, limit=self.limit, patience=PATIENCE)
                starts = [URL(url) for url in urls]
                board = Board(self.title(url), map(host_of, starts), self.limit)
                await crawler.pages.on_task_change(board.heard)
                showing = asyncio.create_task(board.show(console))
                began = time.monotonic()
                try:
                    if url.startswith("memory:"):
                        await crawler.run(starts, options.workers)
                    else:
                        each = -(-options.workers // options.processes)
                        async with fleet.running(options.processes, url, crawler, each):
                            await crawler.run(starts, workers=0)
                finally:
                    seconds = time.monotonic() - began
                    showing.cancel()
                    await asyncio.wait([showing])
                    self.summary = (
                        f"{self.driver}: {crawler.fetched} pages in {seconds:.1f} s, "
                        f"{crawler.fetched / seconds:.0f} pages/s"
                    )
                    self.buried = await crawler.hopeless()
                    self.records = await proof.read_records(urls)
                    await crawler.drop()

    def title(self, url: str) -> str:
        """What is about to be seen."""
        options = self.options
        who, where = f"{options.workers} workers", ""
        if not url.startswith("memory:"):
            who, where = f"{who} in {options.processes} processes", " on a server"
        return f"{who}, {options.hosts} hosts, a {self.driver} tube{where}"


def conclude(console: Console, trial: Trial, control: Trial) -> bool:
    """Print what came of it; answers whether every promise was kept."""
    if not trial.records:
        return False
    checks = [
        proof.one_in_flight(trial.records),
        proof.fetched_once(trial.records),
        proof.growing_delay(trial.records, PATIENCE.first_delay),
        proof.hopeless_buried(trial.records, PATIENCE.max_attempts, trial.buried),
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
    trial = Trial("utubettl", options.pages, options)
    control = Trial("fifo", max(50, options.pages // 5), options)
    try:
        with fleet.serving(options.tube_url) as url:
            await trial.run(url, console)
            await control.run(url, console)
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
    argument("--processes", type=positive, default=4, metavar="N", help="that have them, on a server (%(default)s)")
    argument("--tube-url", default="memory://", metavar="URL", help="a server; redis: one of its own (%(default)s)")
    argument("--seed", type=int, default=4, metavar="N", help="decides which ones fail (%(default)s)")
    options = parser.parse_args()
    try:
        return asyncio.run(demo(options))
    except tubes.InvalidOption as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
