"""How fast rows and tasks go through Spark, beside two Python processes that put them by `put_many`.

    python -m benchmarks.spark [--rows 1000000] [--rounds 3]

All in one run, on one Valkey, everything once in each round. Ratios are of rates, in rows per second, of one round;
medians are shown. A stream's rate is that of its micro-batches after the first one, for which its processes start.
Not part of `make bench`: it takes minutes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

import tubes
from tubes.testing import LocalServer, java_home

ROOT = Path(__file__).parent.parent.parent
#: Tasks of a micro-batch, and of a call of the two processes.
TRIGGER = 50_000
CALL = 2_000
YARDSTICK = "two processes, put_many"
#: At least so many times the rate of the yardstick.
GOALS = {
    "write, at-least-once": 0.8, "write, all or nothing": 0.8, "read": 1.75,
    "source into noop": 0.375, "source into tubes": 0.2,
}  # fmt: skip
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
}


def row(number: int) -> str:
    """A page of the crawl: about 35 letters."""
    return f"http://example.com/pages/{number:010d}"


def put_rows(url: str, tube: str, first: int, end: int, ready: Any) -> None:
    """What one of the two processes does, when both are ready."""
    with tubes.connect(url) as queue:
        there = queue.tube(tube)
        ready.wait()
        for start in range(first, end, CALL):
            there.put_many([row(number) for number in range(start, min(start + CALL, end))])


def by_processes(url: str, tube: str, rows: int) -> float:
    """Put rows by two processes; the seconds that it took, without their start."""
    fork = multiprocessing.get_context("spawn")
    ready = fork.Barrier(3)
    parts = [(url, tube, 0, rows // 2, ready), (url, tube, rows // 2, rows, ready)]
    processes = [fork.Process(target=put_rows, args=part) for part in parts]
    for process in processes:
        process.start()
    ready.wait()
    began = time.perf_counter()
    for process in processes:
        process.join()
    return time.perf_counter() - began


def started() -> Any:
    """A Spark on two cores."""
    os.environ["JAVA_HOME"] = java_home() or ""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    paths = [str(ROOT), str(ROOT / "tubes" / "spark" / "discovery")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Subjects:
    """What is measured: each answers the seconds that it took."""

    def __init__(self, rows: int, server: LocalServer, queue: tubes.Queue) -> None:
        self._url = server.url
        self._queue = queue
        self._spark = started()
        frame = self._spark.range(rows, numPartitions=2).selectExpr(
            "concat('http://example.com/pages/', lpad(cast(id as string), 10, '0')) as data"
        )
        # Once with few rows, so that no process is started later.
        self._frame, self._rows = frame.limit(1000), 1000
        for _ in self.one_round():
            pass
        self._frame, self._rows = frame.cache(), rows
        self._frame.count()

    def one_round(self) -> Iterator[tuple[str, float]]:
        """All of it, by name."""
        self._fresh("plain")
        yield YARDSTICK, by_processes(self._url, "plain", self._rows)
        rows = self._fresh("rows")
        yield "write, at-least-once", self._write({**rows, "delivery": "at-least-once"})
        rows = self._fresh("rows")
        yield "write, all or nothing", self._write(rows)
        yield "read", self._read(rows)
        yield "source into noop", self._stream(rows, "noop")
        self._write(rows)
        yield "source into tubes", self._stream(rows, "tubes", **self._fresh("results"))

    def _fresh(self, name: str) -> dict[str, str]:
        if name in self._queue.tubes():
            self._queue.tube(name).truncate()
        else:
            self._queue.create_tube(name)
        return {"url": self._url, "tube": name}

    def _write(self, told: dict[str, str]) -> float:
        return clocked(self._frame.write.format("tubes").options(**told).mode("append").save)

    def _read(self, told: dict[str, str]) -> float:
        return clocked(
            self._spark.read.format("tubes").options(**told).load().write.format("noop").mode("overwrite").save
        )

    def _stream(self, told: dict[str, str], kind: str, **sink: str) -> float:
        source = self._spark.readStream.format("tubes").options(**told, maxTasksPerTrigger=str(TRIGGER)).load()
        with tempfile.TemporaryDirectory() as folder:
            writer = source.select("data").writeStream.format(kind).options(**sink)
            query = writer.option("checkpointLocation", folder).trigger(availableNow=True).start()
            query.awaitTermination()
            batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        ends = [ended(progress) for progress in batches]
        rows = sum(progress["numInputRows"] for progress in batches[1:])
        return (ends[-1] - ends[0]) * self._rows / rows if rows else 0.0

    def stop(self) -> None:
        """End Spark."""
        self._spark.stop()


def ended(progress: Any) -> float:
    """When a micro-batch was over, in seconds since 1970."""
    began = datetime.fromisoformat(progress["timestamp"]).timestamp()
    lasted: int = progress["durationMs"]["triggerExecution"]
    return began + lasted / 1000


def clocked(act: Callable[[], Any]) -> float:
    """The seconds that something took."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def measure(rows: int, rounds: int, server: LocalServer, queue: tubes.Queue) -> dict[str, list[float]]:
    """Rates by what was done, one of each round."""
    subjects = Subjects(rows, server, queue)
    rates: dict[str, list[float]] = {}
    for number in range(rounds):
        for what, seconds in subjects.one_round():
            rates.setdefault(what, []).append(rows / seconds)
            print(f"round {number + 1}, {what}: {rows / seconds:,.0f}", file=sys.stderr)
    subjects.stop()
    return rates


def main() -> None:
    """Measure, and show."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="how many rows; 1,000,000")
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many; 3")
    told = parser.parse_args()
    if told.rows < 1 or told.rounds < 1:
        parser.error("--rows and --rounds: must be above 0")
    with LocalServer() as server, tubes.connect(server.url) as queue:
        rates = measure(told.rows, told.rounds, server, queue)
        client: Any = server.client()
        slowest = client.slowlog_get(1)
    table = Table(title=f"Spark, local[2], {told.rows:,} rows, {told.rounds} rounds")
    for name in ("", "rows per second", "beside put_many", "goal"):
        table.add_column(name, justify="left" if name == "" else "right")
    for what, each in rates.items():
        beside = median(rate / base for rate, base in zip(each, rates[YARDSTICK], strict=True))
        goal = GOALS.get(what)
        table.add_row(what, f"{median(each):,.0f}", f"{beside:.2f}", f"{goal}" if goal else "")
    Console().print(table)
    if slowest:
        print(f"the longest call held the server for {slowest[0]['duration'] / 1000:.1f} ms")


if __name__ == "__main__":
    main()
