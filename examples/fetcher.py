"""Fetches pages for the pipeline: tasks of the tube `frontier` in, what came of them into the tube `results`.

    python examples/fetcher.py redis://localhost --workers 12 --interval 0.2

A result is put before its page is acked: should this process die in between, the page is fetched again. A failure is
a result too: whether a page is tried again is not decided here. Ends when its standard input does.
"""

import argparse
import asyncio
import sys
import threading
import time

import aiohttp
import worker

import tubes
from tubes.worker import Worker


async def fetch(options: argparse.Namespace) -> None:
    """Work until told to stop."""
    timeout = aiohttp.ClientTimeout(total=worker.TIMEOUT)
    async with tubes.aio.connect(options.url) as queue, aiohttp.ClientSession(timeout=timeout) as http:
        frontier, results = await queue.tube("frontier"), await queue.tube("results")
        fetcher = Worker(queue, concurrency=options.workers)

        @fetcher.on(frontier)
        async def visit(task: tubes.AsyncTask) -> None:
            began, clock = time.time(), time.monotonic()
            answer = await worker.fetch(http, task.data["url"])
            seconds = time.monotonic() - clock
            # From its answer on, too, a host is left alone for the interval, or for as long as it asks.
            assert task.utube
            await frontier.block(task.utube, max(options.interval, answer.retry_after))
            result = {**task.data, "status": answer.status, "outcome": answer.outcome, "final": answer.final}
            await results.put({**result, "began": began, "seconds": seconds, "links": answer.links}, key=task.key)

        def stop() -> None:
            sys.stdin.read()
            fetcher.stop()

        threading.Thread(target=stop, daemon=True).start()
        await fetcher.run_async()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Fetch the pages of a crawl until the standard input ends.")
    argument = parser.add_argument
    argument("url", help="where the tubes are")
    argument("--workers", type=int, default=10, help="how many pages at a time (%(default)s)")
    argument("--interval", type=float, default=1.0, help="seconds between two requests to a host (%(default)s)")
    asyncio.run(fetch(parser.parse_args()))


if __name__ == "__main__":
    main()
