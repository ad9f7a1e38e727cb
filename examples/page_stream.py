"""The Spark job of the pipeline: stream a tube into parquet, and put failed pages back into a tube.

    python examples/page_stream.py redis://localhost crawl http://example.com/ http://example.org/

    results tube  →  pages             →  parquet
                  →  their links       →  frontier tube, each page once
                  →  failed fetches    →  frontier tube, with a delay
                  →  hopeless pages    →  dead tube

A result is acked when all output of its micro-batch is written. After a crash, the batch runs again with the same
tasks, and each of its writes is repeatable: into the folder of its number, or with its `writeId`. So no page is lost
or duplicated, even if the job is killed at any point. The job ends with its standard input and then prints the results.
"""

import argparse
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path

from findings import show
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

#: The result of one fetch; `final` means that a retry is useless.
RESULT = """url string, attempt int, status int, outcome string, final boolean, began double, seconds double,
            links array<string>"""
#: The maximum number of attempts per page, and the delay in seconds after the first one. Later delays double.
ATTEMPTS, RETRY_DELAY = 3, 0.5


class PageStream:
    """The query of a crawl of these hosts, with its files in the folder."""

    def __init__(self, spark: SparkSession, url: str, folder: str, hosts: Collection[str]) -> None:
        self.spark, self.url, self.folder, self.hosts = spark, url, folder, hosts
        planned, committed = (numbers_in(Path(folder, "checkpoint", part)) for part in ("offsets", "commits"))
        #: Batches that an earlier run has begun and not committed: they run again, with the same tasks.
        self.repeated = planned - committed

    def start(self) -> StreamingQuery:
        """Start the query, or continue an earlier run."""
        results = self.spark.readStream.format("tubes").options(url=self.url, tube="results", maxTasksPerTrigger=200)
        query = results.load().writeStream.foreachBatch(self.save)
        # A new checkpoint restarts the numbers: then change the `v1` in `put` too, otherwise no task is put.
        query = query.option("checkpointLocation", f"{self.folder}/checkpoint")
        return query.trigger(processingTime="1 second").start()

    def save(self, batch: DataFrame, number: int) -> None:
        """Write all output of a micro-batch, and print a line about it."""
        began = time.monotonic()
        results = classify(batch).persist()  # The results are read five times.
        pages, failed = results.where("kind = 'page'"), results.where("kind = 'retry'")
        pages.drop("data", "kind").write.mode("overwrite").parquet(f"{self.folder}/pages/batch={number}")
        self.put(links_of(pages, self.hosts).unionByName(retries_of(failed)), "frontier", number)
        dead = results.where("kind = 'dead'")
        if not dead.isEmpty():
            self.put(dead.select("url", "attempt", "outcome", F.col("data").alias("result")), "dead", number)
        rows, took = results.count(), time.monotonic() - began
        again = ", again: the job ended before its commit" if number in self.repeated else ""
        print(f"  batch {number:3}  {rows:5} results saved in {took:4.1f} s{again}", flush=True)
        results.unpersist()

    def put(self, tasks: DataFrame, tube: str, number: int) -> None:
        """Put tasks. A repetition with the same `writeId` has no effect."""
        options = {"url": self.url, "tube": tube, "writeId": f"v1-{tube}-{number}"}
        tasks.write.format("tubes").options(**options).mode("append").save()


def numbers_in(folder: Path) -> set[int]:
    """Return the numbers of the micro-batches with a file in a folder of the checkpoint."""
    return {int(file.name) for file in folder.glob("[0-9]*")}


def classify(batch: DataFrame) -> DataFrame:
    """Return results with their columns and a `kind`. Invalid results are dead, with their text in `data`."""
    kind = (
        F.when(F.col("url").isNull(), "dead")
        .when(F.col("status").between(200, 399), "page")
        .when(F.col("final") | (F.col("attempt") >= ATTEMPTS), "dead")
        .otherwise("retry")
    )
    return batch.select(F.from_json("data", RESULT).alias("it"), "data").select("it.*", "data", kind.alias("kind"))


def links_of(pages: DataFrame, hosts: Collection[str]) -> DataFrame:
    """Return the links of pages to these hosts, as tasks."""
    links = pages.select(F.explode("links").alias("url")).distinct()
    return tasks_of(links, attempt=F.lit(1), delay=F.lit(None).cast("double")).where(F.col("utube").isin(*hosts))


def retries_of(failed: DataFrame) -> DataFrame:
    """Return the next attempts as tasks."""
    return tasks_of(failed, attempt=F.col("attempt") + 1, delay=RETRY_DELAY * F.pow(F.lit(2.0), F.col("attempt") - 1))


def tasks_of(pages: DataFrame, attempt: Column, delay: Column) -> DataFrame:
    """Return tasks of the frontier: their data is `url` and `attempt`, the other columns are put options."""
    url = F.col("url")
    host = F.expr("try_parse_url(url, 'AUTHORITY')").alias("utube")
    return pages.select(
        url, attempt.alias("attempt"), F.concat_ws(" ", attempt, url).alias("key"), host, delay.alias("delay")
    )


def main() -> int:
    """Run the command line. Exit codes: 0 if the crawl is complete, 1 if not."""
    parser = argparse.ArgumentParser(description="Save the results of a crawl until the standard input ends.")
    parser.add_argument("url", help="the URL of the tubes")
    parser.add_argument("folder", help="the folder for parquet and checkpoint")
    parser.add_argument("hosts", nargs="+", help="the URLs of the hosts to crawl")
    options = parser.parse_args()
    began = time.monotonic()
    spark = SparkSession.builder.getOrCreate()
    took = time.monotonic() - began
    print(f"  Spark has started in {took:.0f} s; waiting for its first micro-batch, about as long", flush=True)
    hosts = [host.split("/")[2] for host in options.hosts]
    query = PageStream(spark, options.url, options.folder, hosts).start()

    def stop() -> None:
        sys.stdin.read()
        query.stop()

    threading.Thread(target=stop, daemon=True).start()
    query.awaitTermination()
    is_complete = show(spark, options.url, options.folder, options.hosts, ATTEMPTS)
    spark.stop()
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
