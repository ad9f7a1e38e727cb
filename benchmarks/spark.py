"""How fast rows and tasks go through Spark, beside two Python processes that put them by `put_many`.

    python -m benchmarks.spark [--rows 1000000]

All in one run, on one Valkey; ratios are of rates, in rows per second. Not part of `make bench`: it takes minutes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import tubes
from tubes.testing import LocalServer, java_home

ROOT = Path(__file__).parent.parent
#: Tasks of a micro-batch, and of a call of the two processes.
TRIGGER = 50_000
CALL = 2_000
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


def put_rows(url: str, tube: str, first: int, end: int) -> None:
    """What one of the two processes does."""
    with tubes.connect(url) as queue:
        there = queue.tube(tube)
        for start in range(first, end, CALL):
            there.put_many([row(number) for number in range(start, min(start + CALL, end))])


def by_processes(url: str, tube: str, rows: int) -> None:
    """Put rows by two processes."""
    fork = multiprocessing.get_context("spawn")
    parts = [(url, tube, 0, rows // 2), (url, tube, rows // 2, rows)]
    processes = [fork.Process(target=put_rows, args=part) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


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


def measure(rows: int, server: LocalServer, queue: tubes.Queue) -> dict[str, tuple[float, str]]:
    """Rates by what was done, each with what it is to reach."""
    spark = started()
    rates: dict[str, tuple[float, str]] = {}
    warm = spark.range(1000).selectExpr("cast(id as string) as data")
    frame = spark.range(rows, numPartitions=2).selectExpr(
        "concat('http://example.com/pages/', lpad(cast(id as string), 10, '0')) as data"
    )
    frame = frame.cache()
    frame.count()

    def clocked(what: str, goal: str, act: Callable[[], Any], count: int = rows) -> None:
        began = time.perf_counter()
        act()
        rates[what] = (count / (time.perf_counter() - began), goal)
        print(f"{what}: {rates[what][0]:,.0f}", file=sys.stderr)

    def fresh(name: str) -> dict[str, str]:
        if name in queue.tubes():
            queue.tube(name).truncate()
        else:
            queue.create_tube(name)
        return {"url": server.url, "tube": name}

    def write(told: dict[str, str], what: Any = frame) -> None:
        what.write.format("tubes").options(**told).mode("append").save()

    def read(told: dict[str, str]) -> None:
        spark.read.format("tubes").options(**told).load().write.format("noop").mode("overwrite").save()

    def streamed(told: dict[str, str], kind: str, **sink: str) -> None:
        source = spark.readStream.format("tubes").options(**told, maxTasksPerTrigger=str(TRIGGER)).load()
        with tempfile.TemporaryDirectory() as folder:
            writer = source.select("data").writeStream.format(kind).options(**sink)
            query = writer.option("checkpointLocation", folder).trigger(availableNow=True).start()
            query.awaitTermination()

    small = fresh("warm")
    write(small, warm)
    read(small)
    streamed(small, "noop")
    fresh("plain")
    clocked("two processes, put_many", "", lambda: by_processes(server.url, "plain", rows))
    direct = fresh("rows")
    clocked("write, at-least-once", "0.8 of put_many", lambda: write({**direct, "delivery": "at-least-once"}))
    whole = fresh("rows")
    clocked("write, all or nothing", "0.8 of put_many", lambda: write(whole))
    clocked("read", "1.75 of put_many", lambda: read(whole))
    clocked("source into noop", "0.375 of put_many", lambda: streamed(whole, "noop"))
    write(whole)
    results = fresh("results")
    clocked("source into tubes", "0.2 of put_many", lambda: streamed(whole, "tubes", **results))
    spark.stop()
    return rates


def main() -> None:
    """Measure, and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows: int = parser.parse_args().rows
    with LocalServer() as server, tubes.connect(server.url) as queue:
        rates = measure(rows, server, queue)
        client: Any = server.client()
        slowest = client.slowlog_get(1)
    base = rates["two processes, put_many"][0]
    table = Table(title=f"Spark, local[2], {rows:,} rows")
    for name in ("", "rows per second", "beside put_many", "goal"):
        table.add_column(name, justify="left" if name in ("", "goal") else "right")
    for what, (rate, goal) in rates.items():
        table.add_row(what, f"{rate:,.0f}", f"{rate / base:.2f}", goal)
    Console().print(table)
    if slowest:
        print(f"the longest call held the server for {slowest[0]['duration'] / 1000:.1f} ms")


if __name__ == "__main__":
    main()
