"""Fetch pages for the pipeline: take tasks from the tube `frontier`, put results into the tube `results`.

    python examples/fetcher.py redis://localhost --workers 12 --interval 0.2

A result is put before its page is acked: if this process dies in between, the page is fetched again. A failure is a
result too: another program decides about retries. The process ends with its standard input.
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
    """Work until the standard input ends."""
    timeout = aiohttp.ClientTimeout(total=worker.TIMEOUT)
    async with tubes.aio.connect(options.url) as queue, aiohttp.ClientSession(timeout=timeout) as http:
        frontier, results = await queue.tube("frontier"), await queue.tube("results")
        fetcher = Worker(queue, concurrency=options.workers)

        @fetcher.on(frontier)
        async def visit(task: tubes.AsyncTask) -> None:
            began, clock = time.time(), time.monotonic()
            fetched = await worker.fetch(http, task.data["url"])
            seconds = time.monotonic() - clock
            # Block the host for the interval after its response too, or for its Retry-After.
            assert task.utube
            await frontier.lane(task.utube).block(max(options.interval, fetched.retry_after))
            result = {**task.data, "status": fetched.status, "outcome": fetched.outcome, "final": fetched.final}
            await results.put({**result, "began": began, "seconds": seconds, "links": fetched.links}, key=task.key)

        def stop() -> None:
            sys.stdin.read()
            fetcher.stop()

        threading.Thread(target=stop, daemon=True).start()
        await fetcher.run_async()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Fetch the pages of a crawl until the standard input ends.")
    argument = parser.add_argument
    argument("url", help="the URL of the tubes")
    argument("--workers", type=int, default=10, help="the number of concurrent requests (%(default)s)")
    argument("--interval", type=float, default=1.0, help="seconds between two requests to a host (%(default)s)")
    asyncio.run(fetch(parser.parse_args()))


if __name__ == "__main__":
    main()
