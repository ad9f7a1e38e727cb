"""What Spark does with a crawl while it runs: three streams.

    results tube  →  pages (parquet)  →  links (parquet)
                                      →  frontier tube

The source acks a result when the batch that has it is in the parquet. What is put into the frontier is told by the
pages in the parquet alone, and each batch of it is put once: so a crash of any process, at any moment, loses no page
and makes none be fetched twice, if the streams are started again with the same folder.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

#: What a worker reports of a page.
REPORT = "url string, status int, began double, seconds double, attempts int, links array<string>"
PAGE = f"{REPORT}, host string"
#: The parts of a URL of the web: scheme, host with port, path, query.
PARTS = r"^(?i)(https?)://([^/?#]+)([^?#]*)(\?[^#]*)?"
#: How often streams look for more: those that the crawl waits for, and the other one.
SOON, LATER = "0.5 seconds", "3 seconds"
#: How often a stream may be started again.
RESTARTS = 3


def host_of(url: Column) -> Column:
    """Who answers for a URL: its host, with the port unless it is the usual one; "" for what is not of the web."""
    server = F.lower(F.concat(F.regexp_extract(url, PARTS, 1), F.lit("://"), F.regexp_extract(url, PARTS, 2)))
    return F.regexp_replace(server, r"^https?://|(?<=^http://.{1,260}):80$|(?<=^https://.{1,260}):443$", "")


def normalised(url: Column) -> Column:
    """One spelling for one page: scheme and host in small letters, no usual port, a path, no fragment."""
    path = F.regexp_extract(url, PARTS, 3)
    return F.concat(
        F.lower(F.regexp_extract(url, PARTS, 1)),
        F.lit("://"),
        host_of(url),
        F.when(path == "", "/").otherwise(path),
        F.regexp_extract(url, PARTS, 4),
    )


def pages_of(tasks: DataFrame) -> DataFrame:
    """Results, as they come from their tube, as pages."""
    report = F.from_json("data", REPORT)
    return tasks.select(report.alias("report")).select("report.*", host_of(F.col("report.url")).alias("host"))


def links_of(pages: DataFrame, hosts: Iterable[str]) -> DataFrame:
    """The links between the pages of these hosts, each once: `source`, `target` and the `host` of the target."""
    targets = F.array_distinct(F.transform("links", normalised))
    links = pages.select(F.col("url").alias("source"), F.explode(targets).alias("target"))
    return links.withColumn("host", host_of(F.col("target"))).where(F.col("host").isin(*hosts))


def tasks_of(links: DataFrame) -> DataFrame:
    """Where links lead to, each page once, as tasks: a page is its own key, and its host is its utube."""
    targets = links.dropDuplicates(["target"])
    target = F.col("target")
    return targets.select(target.alias("data"), target.alias("key"), F.col("host").alias("utube"))


class PageStream:
    """The three streams of a crawl, with two tubes on one server. What it keeps is in the folder."""

    def __init__(self, spark: SparkSession, url: str, frontier: str, results: str, folder: Path) -> None:
        self.spark, self.url, self.frontier, self.results, self.folder = spark, url, frontier, results, folder
        self.pages, self.links = str(folder / "pages"), str(folder / "links")
        self.queries: dict[str, StreamingQuery] = {}
        #: How to start each, and how often it had to be started again.
        self._starts: dict[str, Callable[[], StreamingQuery]] = {}
        self.restarts = Counter[str]()

    def start(self, hosts: Iterable[str]) -> None:
        """Start the streams; the crawl stays on these hosts."""
        hosts = list(hosts)
        (self.folder / "pages").mkdir(parents=True, exist_ok=True)  # A stream of files must be there to be followed.
        tubes = self.spark.readStream.format("tubes")
        # It has a name, so that it goes on with what it has taken, wherever it ended.
        results = tubes.options(url=self.url, tube=self.results, consumer="pages", maxTasksPerTrigger=1000).load()
        self._run("pages", pages_of(results), "parquet", path=self.pages)
        pages = self.spark.readStream.schema(PAGE).parquet(self.pages)
        frontier = {"url": self.url, "tube": self.frontier, "delivery": "exactly-once"}
        self._run("frontier", tasks_of(links_of(pages, hosts)), "tubes", **frontier)
        self._run("links", links_of(pages, hosts), "parquet", path=self.links)

    def _run(self, name: str, frame: DataFrame, sink: str, **options: str) -> None:
        checkpoint = str(self.folder / "checkpoints" / name)
        stream = frame.writeStream.queryName(name).trigger(processingTime=LATER if name == "links" else SOON)
        stream = stream.format(sink).options(checkpointLocation=checkpoint, **options)
        self._starts[name] = stream.start
        self.queries[name] = stream.start()

    def mend(self) -> None:
        """Start streams again that have ended by an error, a few times; then raise it.

        A Python of Spark's that takes more than 10 seconds to start, on a machine with much else to do, is enough.
        """
        for name, query in self.queries.items():
            error = query.exception()
            if error is not None:
                if self.restarts[name] == RESTARTS:
                    raise error
                self.restarts[name] += 1
                self.queries[name] = self._starts[name]()

    def catch_up(self) -> bool:
        """Wait until links and frontier have all that comes from the pages which are in the parquet now.

        Answers whether they have; a stream that has ended by an error never will.
        """
        try:
            for name in ("frontier", "links"):
                self.queries[name].processAllAvailable()
        except StreamingQueryException:
            return False
        return True

    def batches(self) -> dict[str, int]:
        """How many batches each stream has done."""
        reports = {name: query.lastProgress for name, query in self.queries.items()}
        return {name: report.batchId + 1 if report else 0 for name, report in reports.items()}

    def stop(self) -> None:
        """End the streams."""
        for query in self.queries.values():
            query.stop()
