"""The results of a crawl: SQL on its parquet, and the proof that no page was fetched twice or lost."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, cast

import proof
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from rich import box
from rich.console import Console
from rich.table import Table
from verdicts import table_of
from yarl import URL

TABLES = {
    "Pages": """
        select status, count(*) as pages, round(avg(size(links)), 1) as links_each,
               round(avg(seconds) * 1000, 1) as ms_each, sum(attempt) as attempts
        from pages group by status order by status""",
    "Not reached": """
        select outcome, count(*) as pages, sum(attempt) as attempts from dead group by outcome order by outcome""",
    "Links": """
        select count(*) as links, count(distinct source) as from_pages, count(distinct target) as to_pages,
               round(avg(cast(parse_url(source, 'AUTHORITY') != parse_url(target, 'AUTHORITY') as int)), 2)
               as share_to_other_hosts
        from links""",
    "In-degree: the top ten": """
        select target as page, count(*) as links, coalesce(string(first(status)), first(dead.outcome)) as status
        from links left join pages on pages.url = target left join dead on dead.url = target
        group by target order by links desc, page limit 10""",
}


class Findings:
    """The views `pages` (the parquet), `links`, `dead` (the tube) and `requests` (of the hosts)."""

    def __init__(self, spark: SparkSession, url: str, folder: str, records: Sequence[proof.Record]) -> None:
        self.spark, self.records = spark, records
        dead = spark.read.format("tubes").options(url=url, tube="dead").load()
        noted = [(url, fetch.status) for url, fetches in proof.by_url(records).items() for fetch in fetches]
        pages = spark.read.parquet(f"{folder}/pages")
        hosts = [URL(record.url).authority for record in records]
        views = {
            "pages": pages,
            "links": pages.selectExpr("url as source", "explode(links) as target").where(
                F.expr("try_parse_url(target, 'AUTHORITY')").isin(hosts)
            ),
            "dead": dead.selectExpr("from_json(data, 'url string, attempt int, outcome string') as it").select("it.*"),
            "requests": frame_of(spark, noted, "url string, status int"),
        }
        for name, frame in views.items():
            frame.cache().createOrReplaceTempView(name)

    def tables(self) -> list[Table]:
        """Return the tables to print."""
        return [table_from(title, self.spark.sql(query)) for title, query in TABLES.items()]

    def counts(self, query: str) -> tuple[int, ...]:
        """Return the single row of a query."""
        return cast("tuple[int, ...]", self.spark.sql(query).collect()[0])

    def once(self) -> proof.Check:
        """Check that no page is in the parquet twice."""
        rows, urls = self.counts("select count(*), count(distinct url) from pages")
        return proof.Check("no page in the parquet twice", rows == urls > 0, f"{rows} rows, {urls} URLs")

    def same(self) -> proof.Check:
        """Check that the parquet has exactly the pages that the hosts served, with their statuses."""
        known, lost, others = self.counts("""
            select count(known.url), count_if(pages.url is null), count_if(known.url is null)
            from (select distinct url, status from requests where status < 400) known
            full outer join pages on pages.url = known.url and pages.status = known.status""")
        seen = f"{known} known, {lost} of them lost, {others} others"
        return proof.Check("no page lost that the hosts served", known > 0 == lost == others, seen)

    def followed(self) -> proof.Check:
        """Check that every link leads to a page in the parquet or to a dead page."""
        count, left = self.counts("""
            select count(*), count_if(url not in (select url from pages) and url not in (select url from dead))
            from (select distinct target as url from links)""")
        return proof.Check("every link followed", count > 0 == left, f"{count} URLs linked to, {left} not followed")

    def hopeless(self, attempts: int) -> proof.Check:
        """Check that exactly the pages that failed at every attempt or permanently are dead, each once."""
        hopeless, dead, both = self.counts(f"""
            select count(hopeless.url), count(dead.url), count_if(hopeless.url = dead.url)
            from (select url from requests group by url
                  having min(status) >= 400 and (count(*) = {attempts} or max(status) = 404)) hopeless
            full outer join dead on dead.url = hopeless.url""")
        kept = hopeless == dead == both if hopeless or dead else None
        return proof.Check("exactly the failing pages given up", kept, f"{hopeless} always failed, {dead} given up")

    def checks(self, attempts: int) -> list[proof.Check]:
        """Return all checks."""
        return [
            proof.fetched_once(self.records),
            self.once(),
            self.same(),
            self.followed(),
            self.hopeless(attempts),
            proof.one_in_flight(self.records),
        ]


def show(spark: SparkSession, url: str, folder: str, hosts: Iterable[str], attempts: int) -> bool:
    """Print tables and checks; return True if every promise was kept."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 110
    findings = Findings(spark, url, folder, asyncio.run(proof.read_records(hosts)))
    checks = findings.checks(attempts)
    console.print(*findings.tables(), table_of("Proof", checks), "", sep="\n")
    return all(check.kept for check in checks)


def frame_of(spark: Any, rows: Iterable[tuple[Any, ...]], schema: str) -> DataFrame:
    """Create a frame of local rows; `Any`, because the type of `createDataFrame` involves pandas, which is optional."""
    frame: DataFrame = spark.createDataFrame(list(rows), schema)
    return frame


def table_from(title: str, frame: DataFrame) -> Table:
    """Format the rows of a frame for the terminal."""
    table = Table(title=title, title_style="bold", title_justify="left", box=box.SIMPLE_HEAD)
    for name, kind in frame.dtypes:
        table.add_column(name.replace("_", " "), justify="left" if kind == "string" else "right", overflow="fold")
    for row in cast("list[tuple[Any, ...]]", frame.collect()):
        table.add_row(*("" if value is None else str(value) for value in row))
    return table
