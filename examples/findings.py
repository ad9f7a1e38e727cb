"""What came of a crawl: plain SQL on its parquet, and the proof that no page was fetched twice and none was lost."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

import proof
from page_stream import PageStream
from pyspark.sql import DataFrame, SparkSession
from rich import box
from rich.table import Table
from yarl import URL

TABLES = {
    "Pages": """
        select status, count(*) as pages, round(avg(size(links)), 1) as links_each,
               round(avg(seconds) * 1000, 1) as ms_each, sum(attempts) as attempts
        from pages group by status order by status""",
    "Not reached": """
        select reason, count(*) as pages, sum(attempts) as attempts from buried group by reason order by reason""",
    "Links": """
        select count(*) as links, count(distinct source) as from_pages, count(distinct target) as to_pages,
               round(avg(cast(host != split_part(source, '/', 3) as int)), 2) as share_to_other_hosts
        from links""",
    "In-degree: the top ten": """
        select target as page, count(*) as links, coalesce(string(first(status)), first(reason)) as status
        from links left join pages on pages.url = target left join buried on buried.url = target
        group by target order by links desc, page limit 10""",
    "Hosts, as they saw it": """
        select host, count(*) as requests, count_if(status < 400) as pages,
               round(count_if(status < 400) / (max(answered) - min(arrived)), 2) as pages_per_s,
               round(min(gap), 3) as min_gap_s, round(percentile(gap, 0.5), 3) as median_gap_s
        from (select *, arrived - lag(arrived) over (partition by host order by arrived) as gap from requests)
        group by host order by host""",
}


class Findings:
    """The views `pages`, `links`, `buried` (from the tube), `requests` (from the hosts), `plain` (a plain crawl)."""

    def __init__(self, stream: PageStream, records: Collection[proof.Record], plain: Mapping[str, int]) -> None:
        self.spark: SparkSession = stream.spark
        self.records = records
        tasks = self.spark.read.format("tubes").options(url=stream.url, tube=stream.frontier, state="buried").load()
        noted = [
            (URL(url).authority, url, fetch.status, fetch.arrived, fetch.answered)
            for url, fetches in proof.by_url(records).items()
            for fetch in fetches
        ]
        views: dict[str, DataFrame] = {
            "pages": self.spark.read.parquet(stream.pages),
            "links": self.spark.read.parquet(stream.links),
            "buried": tasks.selectExpr("data as url", "reason", "attempts"),
            "requests": frame_of(
                self.spark, noted, "host string, url string, status int, arrived double, answered double"
            ),
            "plain": frame_of(self.spark, plain.items(), "url string, status int"),
        }
        for name, frame in views.items():
            frame.cache().createOrReplaceTempView(name)

    def tables(self) -> list[Table]:
        """What there is to see."""
        return [table_of(title, self.spark.sql(query)) for title, query in TABLES.items()]

    def counts(self, query: str) -> tuple[int, ...]:
        """The one row of a query."""
        return cast("tuple[int, ...]", self.spark.sql(query).collect()[0])

    def once(self) -> proof.Check:
        """No page is in the parquet twice."""
        rows, urls = self.counts("select count(*), count(distinct url) from pages")
        return proof.Check("no page in the parquet twice", rows == urls > 0, f"{rows} rows, {urls} URLs")

    def same(self, promise: str, view: str) -> proof.Check:
        """The parquet has the pages that somebody else knows, with their statuses, and no others."""
        known, lost, others = self.counts(f"""
            select count(known.url), count_if(pages.url is null), count_if(known.url is null)
            from (select distinct url, status from {view} where status < 400) known
            full outer join pages on pages.url = known.url and pages.status = known.status""")
        return proof.Check(promise, known > 0 == lost == others, f"{known} known, {lost} of them lost, {others} others")

    def followed(self) -> proof.Check:
        """Every link leads to a page in the parquet, or to one that the tube has buried."""
        count, left = self.counts("""
            select count(*), count_if(url not in (select url from pages) and url not in (select url from buried))
            from (select distinct target as url from links)""")
        return proof.Check("every link followed", count > 0 == left, f"{count} URLs linked to, {left} not followed")

    def checks(self, interval: float, attempts: int) -> list[proof.Check]:
        """What was promised."""
        buried = {row.url: row.reason for row in self.spark.table("buried").collect()}
        checks = [
            proof.fetched_once(self.records),
            self.once(),
            self.same("none lost of those that the hosts have answered", "requests"),
            self.same("none lost of those that a plain crawl finds", "plain"),
            self.followed(),
            proof.hopeless_buried(self.records, attempts, buried),
            proof.one_in_flight(self.records),
        ]
        return [*checks, proof.interval_kept(self.records, interval)] if interval else checks


def frame_of(spark: Any, rows: Iterable[tuple[Any, ...]], schema: str) -> DataFrame:
    """A frame of what is at hand; `Any`, as pandas, which is not needed, is part of the type of what makes it."""
    frame: DataFrame = spark.createDataFrame(list(rows), schema)
    return frame


def table_of(title: str, frame: DataFrame) -> Table:
    """The rows of a frame, for the screen."""
    table = Table(title=title, title_style="bold", title_justify="left", box=box.SIMPLE_HEAD)
    for name, kind in frame.dtypes:
        table.add_column(name.replace("_", " "), justify="left" if kind == "string" else "right", overflow="fold")
    for row in cast("list[tuple[Any, ...]]", frame.collect()):
        table.add_row(*("" if value is None else str(value) for value in row))
    return table
