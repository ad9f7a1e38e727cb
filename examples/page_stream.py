"""The Spark job of the pipeline: from a tube into parquet, and what failed back into a tube.

    python examples/page_stream.py redis://localhost crawl http://example.com/ http://example.org/

    results tube  →  pages             →  parquet
                  →  their links       →  frontier tube, each page once
                  →  failed fetches    →  frontier tube, with a delay
                  →  what is hopeless  →  dead tube

A result is acked when all that its micro-batch leads to is written. A batch that was broken off by a crash runs again
with the same tasks, and each of its writes is one that may be repeated: into the folder of its number, or with its
`writeId`. So nothing is lost and nothing is there twice, wherever the job was killed. It ends when its standard input
does, and then shows what came of it.
"""

import argparse
import json
import sys
import threading
from collections.abc import Collection
from typing import Any

from findings import show
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

#: What a fetcher says of one fetch; `final`: another one is of no use.
RESULT = """url string, attempt int, status int, outcome string, final boolean, began double, seconds double,
            links array<string>"""
#: How often a page is tried, and the seconds that it rests after the first attempt: twice as long after each more.
ATTEMPTS, REST = 3, 0.5


class Dashboard(StreamingQueryListener):
    """A line for each micro-batch, of the query's progress."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """See `StreamingQueryListener`."""
        progress = event.progress
        if progress.numInputRows:
            waiting = json.loads(progress.sources[0].latestOffset)["ready"]
            rate, took = progress.processedRowsPerSecond, progress.durationMs["triggerExecution"]
            rows = f"{progress.numInputRows:5} rows  {rate:5.0f} rows/s"
            print(f"  batch {progress.batchId:3}  {rows}  {waiting:5} waiting  {took:6} ms", flush=True)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """See `StreamingQueryListener`."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """See `StreamingQueryListener`."""


class PageStream:
    """The query of a crawl of these hosts. What it keeps is in the folder."""

    def __init__(self, spark: SparkSession, url: str, folder: str, hosts: Collection[str]) -> None:
        self.spark, self.url, self.folder, self.hosts = spark, url, folder, hosts

    def start(self) -> StreamingQuery:
        """Begin, or go on where an earlier run ended."""
        results = self.spark.readStream.format("tubes").options(url=self.url, tube="results", maxTasksPerTrigger=200)
        query = results.load().writeStream.foreachBatch(self.save)
        # With a new checkpoint numbers begin anew: then the `v1` in `put` must change too, or nothing is put.
        query = query.option("checkpointLocation", f"{self.folder}/checkpoint")
        return query.trigger(processingTime="1 second").start()

    def save(self, batch: DataFrame, number: int) -> None:
        """Write all that a micro-batch leads to."""
        results = sorted_out(batch).persist()  # It is read four times.
        pages, failed = results.where("kind = 'page'"), results.where("kind = 'retry'")
        pages.drop("data", "kind").write.mode("overwrite").parquet(f"{self.folder}/pages/batch={number}")
        self.put(links_of(pages, self.hosts).unionByName(retries_of(failed)), "frontier", number)
        dead = results.where("kind = 'dead'")
        if not dead.isEmpty():
            self.put(dead.select("url", "attempt", "outcome", F.col("data").alias("result")), "dead", number)
        results.unpersist()

    def put(self, tasks: DataFrame, tube: str, number: int) -> None:
        """Put tasks. With the same `writeId` it does nothing the second time."""
        options = {"url": self.url, "tube": tube, "writeId": f"v1-{tube}-{number}"}
        tasks.write.format("tubes").options(**options).mode("append").save()


def sorted_out(batch: DataFrame) -> DataFrame:
    """Results, with their columns and a `kind`. What is no result at all is dead; `data` says what it was."""
    kind = (
        F.when(F.col("url").isNull(), "dead")
        .when(F.col("status").between(200, 399), "page")
        .when(F.col("final") | (F.col("attempt") >= ATTEMPTS), "dead")
        .otherwise("retry")
    )
    return batch.select(F.from_json("data", RESULT).alias("it"), "data").select("it.*", "data", kind.alias("kind"))


def links_of(pages: DataFrame, hosts: Collection[str]) -> DataFrame:
    """Where pages lead to on these hosts, as tasks."""
    links = pages.select(F.explode("links").alias("url")).distinct()
    return tasks_of(links, attempt=F.lit(1), delay=F.lit(None).cast("double")).where(F.col("utube").isin(*hosts))


def retries_of(failed: DataFrame) -> DataFrame:
    """The next attempts, as tasks."""
    return tasks_of(failed, attempt=F.col("attempt") + 1, delay=REST * F.pow(F.lit(2.0), F.col("attempt") - 1))


def tasks_of(pages: DataFrame, attempt: Column, delay: Column) -> DataFrame:
    """Tasks of the frontier: their data is `url` and `attempt`, all else says how they are put."""
    url = F.col("url")
    host = F.expr("try_parse_url(url, 'AUTHORITY')").alias("utube")
    return pages.select(
        url, attempt.alias("attempt"), F.concat_ws(" ", attempt, url).alias("key"), host, delay.alias("delay")
    )


def main() -> int:
    """The command line. Exit codes: 0 if the crawl is whole, 1 if not."""
    parser = argparse.ArgumentParser(description="Save the results of a crawl until the standard input ends.")
    parser.add_argument("url", help="where the tubes are")
    parser.add_argument("folder", help="for parquet and checkpoint")
    parser.add_argument("hosts", nargs="+", help="the crawl stays on these: their URLs")
    options = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    spark.streams.addListener(Dashboard())
    hosts = [host.split("/")[2] for host in options.hosts]
    query = PageStream(spark, options.url, options.folder, hosts).start()

    def stop() -> None:
        sys.stdin.read()
        query.stop()

    threading.Thread(target=stop, daemon=True).start()
    query.awaitTermination()
    whole = show(spark, options.url, options.folder, options.hosts, ATTEMPTS)
    spark.stop()
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
