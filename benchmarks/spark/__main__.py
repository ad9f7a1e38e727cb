"""Measure the throughput of rows and tasks with Spark, relative to two Python processes that call `put_many`.

    python -m benchmarks.spark [--rows 1000000] [--rounds 3]

One run measures all subjects on one Valkey, each once per round. Ratios compare rates (rows per second) of one round;
the table shows medians. The rate of a stream excludes its first micro-batch, which starts the processes.
This is not part of `make bench`, because it takes minutes.
"""

from __future__ import annotations

import argparse
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
from benchmarks.spark.yardstick import measure_processes
from tubes.testing import LocalServer, java_home

ROOT = Path(__file__).parent.parent.parent
#: Tasks of a micro-batch.
TRIGGER = 50_000
YARDSTICK = "two processes, put_many"
#: The goals, as multiples of the rate of the yardstick.
WRITE, STRUCTS, SMALL = "write, all or nothing", "write of structs, all or nothing", "source into noop, small batches"
GOALS = {
    "write, at-least-once": 1.0, WRITE: 0.9, "read": 2.0, "source into noop": 0.45, "source into tubes": 0.25,
}  # fmt: skip
#: The goal for the rate of writing structs, relative to that of text.
OF_TEXT = 0.6
#: Tasks of a small micro-batch, the number of measured micro-batches, and the goal in milliseconds for one.
FEW, FEWS, PATIENCE = 1_000, 30, 150
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    # Write checkpoint files without starting a process for each that sets its permissions.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing"
    ".FileSystemBasedCheckpointFileManager",
}


def start_spark() -> Any:
    """Start a Spark session on two cores."""
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
    """The measured subjects; each returns its seconds."""

    def __init__(self, rows: int, server: LocalServer, queue: tubes.Queue) -> None:
        self._url = server.url
        self._queue = queue
        self._spark = start_spark()
        frame = self._spark.range(rows, numPartitions=2).selectExpr(
            "concat('http://example.com/pages/', lpad(cast(id as string), 10, '0')) as data"
        )
        # Run once with few rows, so that all processes are started before the measurement.
        self._frames, self._rows = self._kinds(frame.limit(1000)), 1000
        for _ in self.measure_round():
            pass
        self._frames, self._rows = self._kinds(frame), rows
        for kind in self._frames.values():
            kind.cache().count()

    def _kinds(self, frame: Any) -> dict[str, Any]:
        structs = frame.selectExpr("struct(data as url, length(data) as depth, crc32(data) / 7 as score) as data")
        return {"text": frame, "structs": structs, "few": frame.limit(FEW * FEWS)}

    def measure_round(self) -> Iterator[tuple[str, float]]:
        """Measure all subjects; yield their seconds by name."""
        self._prepare_tube("plain")
        yield YARDSTICK, measure_processes(self._url, "plain", self._rows)
        rows = self._prepare_tube("rows")
        yield "write, at-least-once", self._write({**rows, "delivery": "at-least-once"})
        rows = self._prepare_tube("rows")
        yield WRITE, self._write(rows)
        yield "read", self._read(rows)
        yield "source into noop", self._stream(rows, "noop")
        self._write(rows)
        yield "source into tubes", self._stream(rows, "tubes", **self._prepare_tube("results"))
        yield STRUCTS, self._write(self._prepare_tube("rows"), "structs")
        rows = self._prepare_tube("rows")
        self._write(rows, "few")
        yield SMALL, self._stream({**rows, "maxTasksPerTrigger": str(FEW)}, "noop")

    def _prepare_tube(self, name: str) -> dict[str, str]:
        if name in self._queue.tubes():
            self._queue.tube(name).truncate()
        else:
            self._queue.create_tube(name)
        return {"url": self._url, "tube": name}

    def _write(self, settings: dict[str, str], kind: str = "text") -> float:
        return measure_seconds(self._frames[kind].write.format("tubes").options(**settings).mode("append").save)

    def _read(self, settings: dict[str, str]) -> float:
        return measure_seconds(
            self._spark.read.format("tubes").options(**settings).load().write.format("noop").mode("overwrite").save
        )

    def _stream(self, settings: dict[str, str], kind: str, **sink: str) -> float:
        source = (
            self._spark.readStream.format("tubes").options(maxTasksPerTrigger=str(TRIGGER)).options(**settings).load()
        )
        with tempfile.TemporaryDirectory() as folder:
            writer = source.select("data").writeStream.format(kind).options(**sink)
            query = writer.option("checkpointLocation", folder).trigger(availableNow=True).start()
            query.awaitTermination()
            batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        ends = [end_of(progress) for progress in batches]
        rows = sum(progress["numInputRows"] for progress in batches[1:])
        return (ends[-1] - ends[0]) * self._rows / rows if rows else 0.0

    def stop(self) -> None:
        """Stop Spark."""
        self._spark.stop()


def end_of(progress: Any) -> float:
    """Return the end of a micro-batch, in seconds since 1970."""
    began = datetime.fromisoformat(progress["timestamp"]).timestamp()
    lasted: int = progress["durationMs"]["triggerExecution"]
    return began + lasted / 1000


def measure_seconds(act: Callable[[], Any]) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def measure(rows: int, rounds: int, server: LocalServer, queue: tubes.Queue) -> dict[str, list[float]]:
    """Return the rates by subject, one per round."""
    subjects = Subjects(rows, server, queue)
    rates: dict[str, list[float]] = {}
    for number in range(rounds):
        for what, seconds in subjects.measure_round():
            rates.setdefault(what, []).append(rows / seconds)
            print(f"round {number + 1}, {what}: {rows / seconds:,.0f}", file=sys.stderr)
    subjects.stop()
    return rates


def main() -> None:
    """Measure and show the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="the number of rows (default: 1,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="the number of rounds (default: 3)")
    args = parser.parse_args()
    if args.rows < 1 or args.rounds < 1:
        parser.error("--rows and --rounds must be above 0")
    with LocalServer() as server, tubes.connect(server.url) as queue:
        rates = measure(args.rows, args.rounds, server, queue)
        client: Any = server.client()
        slowest = max((call["duration"] for call in client.slowlog_get(-1)), default=None)
    table = Table(title=f"Spark, local[2], {args.rows:,} rows, {args.rounds} rounds")
    for name in ("", "rows per second", "relative to put_many", "goal"):
        table.add_column(name, justify="left" if name == "" else "right")
    for what, each in rates.items():
        relative = median(rate / base for rate, base in zip(each, rates[YARDSTICK], strict=True))
        goal = GOALS.get(what)
        table.add_row(what, f"{median(each):,.0f}", f"{relative:.2f}", f"{goal}" if goal else "")
    Console().print(table)
    structs = median(rate / text for rate, text in zip(rates[STRUCTS], rates[WRITE], strict=True))
    print(f"structs are written at {structs:.2f} times the rate of text; goal: {OF_TEXT}")
    print(f"a micro-batch of {FEW:,} tasks takes {FEW * 1000 / median(rates[SMALL]):.0f} ms; goal: {PATIENCE}")
    if slowest is not None:
        print(f"the longest call blocked the server for {slowest / 1000:.1f} ms")


if __name__ == "__main__":
    main()
