"""A data pipeline on Spark: a crawl of Python's own documentation as a loop of streams, and the proof that it is whole.

    python examples/pipeline.py                         # or: make pipeline
    python examples/pipeline.py --keep crawl            # keeps the parquet, in the folder `crawl`

Worker processes (`fleet.py`) take pages from a frontier tube, politely to each host, and put what they find into a
results tube. Spark streams those into parquet, and the links that nobody has seen yet back into the frontier
(`page_stream.py`). When nothing is left and nothing under way, SQL on the parquet says what came of it, and holds it
against what the servers noted and what a plain crawl finds (`findings.py`). Spark, the servers and a Valkey are started
for it, and are gone afterwards. Exit codes: 0 if the proof holds, 1 if not, 2 for bad arguments, 130 after Ctrl-C.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import breadth_first
import fleet
import local_spark
import proof
from crawler import Crawler, host_of, positive
from findings import Findings
from page_stream import PageStream
from pydoc_hosts import running
from rich.console import Console
from rich.live import Live
from rich.text import Text
from verdicts import table_of
from yarl import URL

import tubes

ATTEMPTS, BACKOFF = 5, tubes.Backoff(0.1, factor=2)


class Pipeline:
    """A crawl and its streams."""

    def __init__(self, crawler: Crawler, stream: PageStream) -> None:
        self.crawler, self.stream = crawler, stream
        self.began = time.monotonic()

    async def end(self) -> None:
        """Wait until there is nothing left to do, and nothing under way.

        Pages that are done were reported before; reports that are done are in the parquet; and what is in the parquet
        is put into the frontier when the streams have caught up. If that changed nothing in the frontier, all is done.
        """
        while True:
            await asyncio.to_thread(self.stream.mend)
            pages = await self.crawler.pages.statistics()
            if pages.tasks["total"] == pages.tasks["buried"] and not await self.reports():
                caught_up = await asyncio.to_thread(self.stream.catch_up)
                if caught_up and (await self.crawler.pages.statistics()).tasks == pages.tasks:
                    return
            await asyncio.sleep(0.2)

    async def reports(self) -> int:
        """How many results are not in the parquet yet."""
        return (await self.crawler.reports.statistics()).tasks["total"]

    async def line(self) -> str:
        """The state of things."""
        pages, reports = await self.crawler.pages.statistics(), await self.crawler.reports.statistics()
        tasks, seconds = pages.tasks, time.monotonic() - self.began
        batches = await asyncio.to_thread(self.stream.batches)
        return (
            f"{seconds:5.1f} s  {tasks['done']:5} fetched, {tasks['done'] / seconds:3.0f} per s so far"
            f"  {tasks['taken']:3} in flight  {tasks['ready'] + tasks['delayed']:5} waiting  {tasks['buried']:3} buried"
            f"  | {reports.tasks['done']:5} in the parquet"
            f"  micro-batches: {', '.join(f'{name} {count}' for name, count in batches.items())}"
        )

    async def show(self, console: Console) -> None:
        """Keep a line on the screen up to date until cancelled. Where there is no screen, print some."""
        if not console.is_terminal:
            while True:
                await asyncio.sleep(2)
                console.print(await self.line(), soft_wrap=True)
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(Text(await self.line(), no_wrap=True, overflow="ellipsis"), refresh=True)
                await asyncio.sleep(0.2)


async def work(pipeline: Pipeline, url: str, options: argparse.Namespace, console: Console) -> None:
    """Let workers and streams work until all is done."""
    showing = asyncio.create_task(pipeline.show(console))
    try:
        async with fleet.running(options.processes, url, pipeline.crawler, -(-options.workers // options.processes)):
            await pipeline.end()
    finally:
        showing.cancel()
        await asyncio.wait([showing])
        console.print(await pipeline.line(), soft_wrap=True)
    await asyncio.to_thread(pipeline.stream.stop)


async def run(options: argparse.Namespace, folder: Path, console: Console) -> bool:
    """The pipeline, its tables and its proof; answers whether that holds."""
    clock, began = time.monotonic, time.monotonic()
    async with AsyncExitStack() as stack:
        hosts = stack.enter_context(running(options.hosts, options.seed, pages=options.pages))
        url = stack.enter_context(fleet.serving(options.tube_url))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tubes-spark-")))
        spark = await stack.enter_async_context(local_spark.running(scratch))
        queue = await stack.enter_async_context(tubes.aio.connect(url))
        crawler = await Crawler.create(
            queue, limit=len(hosts), interval=options.interval, attempts=ATTEMPTS, backoff=BACKOFF
        )
        stack.push_async_callback(crawler.drop)
        stream = PageStream(spark, url, crawler.pages.name, crawler.reports.name, folder)
        crawler.hosts = {host_of(URL(host)) for host in hosts}
        await crawler.offer(hosts)
        await asyncio.to_thread(stream.start, crawler.hosts)
        started = clock()
        console.print(
            f"{options.hosts} hosts, {options.workers} workers in {options.processes} processes, Spark {spark.version}"
            " (whose first micro-batch takes some ten seconds)"
        )
        await work(Pipeline(crawler, stream), url, options, console)
        crawled = clock()
        records = await proof.read_records(hosts)
        plain = await breadth_first.crawl(hosts, ATTEMPTS)
        compared = clock()
        findings = Findings(stream, records, plain)
        tables = await asyncio.to_thread(findings.tables)
        checks = await asyncio.to_thread(findings.checks, options.interval, ATTEMPTS)
        console.print(*tables, table_of("Proof", checks), "", sep="\n")
        console.print(
            f"{started - began:.1f} s to start, {crawled - started:.1f} s to crawl,"
            f" {compared - crawled:.1f} s to crawl it again the plain way, {clock() - compared:.1f} s for the tables",
            soft_wrap=True,
        )
        for name, times in stream.restarts.items():
            console.print(f"the stream {name} had ended by an error, and was started again: {times} times")
        return all(check.kept for check in checks)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Crawl Python's documentation with streams on Spark, and prove it whole."
    )
    argument = parser.add_argument
    argument("--pages", type=positive, default=1000, metavar="N", help="that there are to find (%(default)s)")
    argument("--hosts", type=positive, default=12, metavar="N", help="that have them (%(default)s)")
    argument("--interval", type=float, default=0.2, metavar="S", help="seconds between 2 on a host (%(default)s)")
    argument("--workers", type=positive, default=24, metavar="N", help="that fetch them (%(default)s)")
    argument("--processes", type=positive, default=2, metavar="N", help="that have them (%(default)s)")
    argument("--tube-url", default="redis", metavar="URL", help="a server; redis: one of its own (%(default)s)")
    argument("--seed", type=int, default=0, metavar="N", help="decides which pages fail (%(default)s)")
    argument("--keep", type=Path, metavar="DIR", help="a new folder for parquet and checkpoints, which stays")
    options = parser.parse_args()
    if options.keep and options.keep.exists():
        parser.error(f"--keep: {str(options.keep)!r} is there already")
    if options.tube_url.startswith("memory:"):
        parser.error(f"--tube-url: {options.tube_url!r} is one process's own, and Spark is others")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 110
    with tempfile.TemporaryDirectory(prefix="tubes-pipeline-") as folder:
        try:
            return 0 if asyncio.run(run(options, (options.keep or Path(folder)).absolute(), console)) else 1
        except tubes.InvalidOption as error:
            parser.error(str(error))
        except KeyboardInterrupt:
            return 130


if __name__ == "__main__":
    sys.exit(main())
