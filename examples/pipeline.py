"""A data pipeline on Spark: a crawl of Python's own documentation, and the proof that it is complete.

    python examples/pipeline.py                         # or: make pipeline
    python examples/pipeline.py --keep crawl            # keep the parquet in the folder `crawl`

Fetchers (`fetcher.py`) take pages from the tube `frontier`, politely for each host, and put results into the tube
`results`. A Spark job (`page_stream.py`) streams them into parquet, and puts links and failed pages back into the
frontier. In the middle of a micro-batch this program kills the job and its JVM with SIGKILL and starts it again; the
job continues from its checkpoint. At the end, SQL on the parquet (`findings.py`) shows the results, and proves with the
records of the web servers that no page is lost or duplicated. Spark, the web servers and a Valkey are started for the
run and stopped afterwards. Exit codes: 0 if the proof holds, 1 if not, 2 for bad arguments, 130 after Ctrl-C, 143
after SIGTERM.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TextIO, TypeAlias

import fleet
import local_spark
from crawler import KNOWN, positive
from pydoc_hosts import running
from yarl import URL

import tubes

Job: TypeAlias = "subprocess.Popen[bytes]"
HERE = Path(__file__).parent
#: The maximum number of restarts after errors of the job, as by a supervisor.
RESTARTS = 3


class Pipeline:
    """The tubes of a crawl, which are empty at its end."""

    def __init__(self, queue: tubes.Queue, interval: float) -> None:
        self.frontier = queue.create_tube("frontier", "utubettl", ttr=60, interval=interval, key_ttl=KNOWN)
        self.results = queue.create_tube("results", key_ttl=KNOWN)
        self.dead = queue.create_tube("dead")
        self._reported = time.monotonic()

    def offer(self, urls: list[str]) -> None:
        """Put the first pages."""
        first = [(url, {"url": url, "attempt": 1}) for url in urls]
        self.frontier.put_many(tubes.Item(page, key=f"1 {url}", utube=URL(url).authority) for url, page in first)

    def saving(self, number: int) -> int:
        """Return the number of results that the job is saving, if they include the result of this number."""
        tasks = self.results.statistics().tasks
        return tasks["taken"] if tasks["done"] + tasks["taken"] >= number else 0

    def report(self) -> None:
        """Print the progress, at most every eight seconds."""
        if time.monotonic() - self._reported >= 8:
            self._reported = time.monotonic()
            pages, results = self.frontier.statistics().tasks, self.results.statistics().tasks
            print(f"  … {pages['total']} pages to fetch, {results['total']} results to save", flush=True)

    def is_over(self) -> bool:
        """Return True if no task is left. A page is acked after its result is put, and a result after its links are."""
        before = self.frontier.statistics().tasks
        if before["total"] or self.results.statistics().tasks["total"]:
            return False
        return self.frontier.statistics().tasks == before

    def drop(self) -> None:
        """Remove the tubes."""
        for tube in (self.frontier, self.results, self.dead):
            tube.drop(force=True)


@contextmanager
def started(
    program: str, *arguments: str, log: TextIO | None = None, environment: Mapping[str, str] | None = None
) -> Generator[Job]:
    """Start another example as a process, out of the reach of Ctrl-C."""
    command = [sys.executable, str(HERE / program), *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=log, env=environment, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            kill(process)


def kill(process: Job) -> None:
    """Kill a program and all processes that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def stream(
    pipeline: Pipeline, fetchers: list[Job], start: Callable[[], AbstractContextManager[Job]], kill_at: int
) -> int:
    """Run the job until all pages are done and return its exit code. Kill it when it saves the result of this number.

    After a restart it continues from its checkpoint. If it ends with an error it is restarted too, as by a supervisor.
    """
    for _ in range(2 + RESTARTS):
        with start() as job:
            while job.poll() is None and not pipeline.is_over():
                if all(fetcher.poll() is not None for fetcher in fetchers):
                    raise SystemExit("no fetcher is left")
                if kill_at and (saving := pipeline.saving(kill_at)):
                    kill(job)
                    print(
                        f"killed by SIGKILL, with {saving} results in hand; waiting for it to start again", flush=True
                    )
                    kill_at = 0
                    break
                pipeline.report()
                time.sleep(0.05)
            else:
                if job.poll() is None:
                    assert job.stdin
                    job.stdin.close()
                    while job.poll() is None:
                        pipeline.report()
                        time.sleep(0.05)
                    return job.returncode
                print(f"ended with exit code {job.returncode}, and started again", flush=True)
    return 1


def run(options: argparse.Namespace, folder: Path) -> bool:
    """Run the pipeline, print its tables and its proof, and return True if the proof holds."""
    with ExitStack() as stack:
        enter = stack.enter_context
        scratch = Path(enter(tempfile.TemporaryDirectory(prefix="tubes-spark-", ignore_cleanup_errors=True)))
        log = enter((scratch / "spark.log").open("w+"))
        hosts = enter(running(options.hosts, options.seed, pages=options.pages))
        url = enter(fleet.serving(options.tube_url))
        pipeline = Pipeline(enter(tubes.connect(url)), options.interval)
        stack.callback(pipeline.drop)
        pipeline.offer(hosts)
        arguments = [f"--workers={-(-options.workers // options.processes)}", f"--interval={options.interval}"]
        fetchers = [enter(started("fetcher.py", url, *arguments)) for _ in range(options.processes)]
        spark = os.environ | local_spark.environment(scratch)
        start = partial(started, "page_stream.py", url, str(folder), *hosts, log=log, environment=spark)
        print(
            f"{len(hosts)} hosts, {options.workers} workers; waiting for Spark to start, 5 to 40 seconds",
            flush=True,
        )
        code = stream(pipeline, fetchers, start, options.kill_at)
        if code:
            log.seek(0)
            print(log.read()[-3000:], file=sys.stderr)
        return code == 0


def end(number: int, _frame: object) -> None:
    """End this program and its children on a signal. Do not interrupt the end."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description="Crawl Python's documentation into parquet, and prove that it is complete."
    )
    argument = parser.add_argument
    argument("--pages", type=positive, default=400, metavar="N", help="the number of pages (%(default)s)")
    argument("--hosts", type=positive, default=12, metavar="N", help="the number of hosts (%(default)s)")
    argument(
        "--interval", type=float, default=0.2, metavar="S", help="seconds between 2 requests to a host (%(default)s)"
    )
    argument("--workers", type=positive, default=24, metavar="N", help="the number of workers (%(default)s)")
    argument("--processes", type=positive, default=2, metavar="N", help="the number of worker processes (%(default)s)")
    argument("--kill-at", type=int, default=100, metavar="N", help="kill the job at this page; 0: never (%(default)s)")
    argument("--tube-url", default="redis", metavar="URL", help="a server; redis: a temporary one (%(default)s)")
    argument("--seed", type=int, default=0, metavar="N", help="selects the pages that fail (%(default)s)")
    argument("--keep", type=Path, metavar="DIR", help="a new folder that keeps parquet and checkpoint")
    options = parser.parse_args()
    if options.keep and options.keep.exists():
        parser.error(f"--keep: {str(options.keep)!r} already exists")
    if fleet.is_for_one(options.tube_url):
        parser.error(f"--tube-url: {options.tube_url!r} belongs to one process, but Spark uses several")
    signal.signal(signal.SIGTERM, end)
    with tempfile.TemporaryDirectory(prefix="tubes-pipeline-") as folder:
        try:
            return 0 if run(options, (options.keep or Path(folder)).absolute()) else 1
        except tubes.InvalidOption as error:
            parser.error(str(error))
        except KeyboardInterrupt:
            return 130


if __name__ == "__main__":
    sys.exit(main())
