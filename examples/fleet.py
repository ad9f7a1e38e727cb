"""Worker processes for a crawl, and their server.

python examples/fleet.py redis://localhost pages-1a2b3c4d reports-1a2b3c4d --workers 12     # one worker process
"""

import argparse
import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

import worker
from crawler import Crawler

import tubes


def is_for_one(url: str) -> bool:
    """Return True if the tubes of this URL belong to one process."""
    return url.partition(":")[0] in ("memory", "file")


@contextmanager
def serving(url: str) -> Generator[str]:
    """Start a server for `redis`, create a folder for `file`, or add a unique prefix to the URL; yield the URL."""
    if is_for_one(url) and ":" in url:
        yield url
        return
    with tubes.testing.isolated(url) as own:
        yield own


@asynccontextmanager
async def running(processes: int, url: str, crawler: Crawler, workers: int) -> AsyncGenerator[None]:
    """Run worker processes. They end with their standard input, even if this process is killed.

    The crawl continues while at least one of them is alive.
    """
    arguments = [url, crawler.pages.name, crawler.reports.name]
    arguments += [f"--workers={workers}", f"--interval={crawler.interval}"]
    started: list[subprocess.Popen[bytes]] = []

    def wait() -> None:
        for process in started:
            process.wait()

    async def watch() -> None:
        await asyncio.to_thread(wait)
        raise RuntimeError("no worker process is left")

    try:
        for _ in range(processes):
            # Ctrl-C does not reach the process: the end of its standard input stops it.
            command = [sys.executable, __file__, *arguments]
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True))  # noqa: ASYNC220
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            yield
            watching.cancel()
    finally:
        for process in started:
            assert process.stdin
            process.stdin.close()
        await asyncio.to_thread(wait)


async def fetch(options: argparse.Namespace) -> None:
    """Run the workers of such a process."""
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me

    def watch() -> None:
        sys.stdin.read()
        with suppress(RuntimeError):  # The loop has already ended.
            loop.call_soon_threadsafe(me.cancel)

    threading.Thread(target=watch, daemon=True).start()
    async with tubes.aio.connect(options.url) as queue:
        pages, reports = await queue.tube(options.pages), await queue.tube(options.reports)
        await worker.work(pages, reports, options.workers, options.interval)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Fetch the pages of a crawl until the standard input ends.")
    argument = parser.add_argument
    argument("url", help="the URL of the tubes")
    argument("pages", help="the tube of pages")
    argument("reports", help="the tube of reports about pages")
    argument("--workers", type=int, default=10, help="how many (%(default)s)")
    argument("--interval", type=float, default=1.0, help="seconds between two requests to a host (%(default)s)")
    with suppress(asyncio.CancelledError):
        asyncio.run(fetch(parser.parse_args()))


if __name__ == "__main__":
    main()
