"""SQL in a real Spark session: tables of the catalog, and temporary views."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import tubes

pytestmark = pytest.mark.full


@pytest.fixture
def sql(spark: Any) -> Iterator[Any]:
    """Function that runs a statement, and returns its rows. Tables and views of other tests are dropped."""

    def run(statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(statement).collect()]

    def drop_all() -> None:
        for _, name, is_temporary in run("SHOW TABLES"):
            run(f"DROP {'VIEW' if is_temporary else 'TABLE'} {name}")

    drop_all()
    yield run
    drop_all()


@pytest.fixture
def sql_options(options: dict[str, str]) -> str:
    """The options of the tube `t`, in SQL."""
    return f"OPTIONS (url '{options['url']}', tube 't')"


def assert_refused(sql: Any, statement: str, why: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=why):
        sql(statement)


def test_table_is_written_and_read(
    sql: Any, spark: Any, queue: tubes.Queue, options: dict[str, str], sql_options: str
) -> None:
    from pyspark.errors import PySparkException

    more = sql_options.replace(")", ", NumPartitions 2, state 'ready', batchSize 500)")
    sql(f"CREATE TABLE crawl USING tubes {more} COMMENT 'pages' TBLPROPERTIES ('team' = 'ann', 'tube' = 'no')")
    source = f"tube t on {options['url'].partition('?')[0]}"
    assert any(comment.startswith(source) for name, _, comment in sql("DESCRIBE crawl") if name == "data")
    assert source in sql("SHOW CREATE TABLE crawl")[0][0]
    with pytest.raises(PySparkException, match=r"there is no tube 't'.*\s.*From Spark: a write with .option..driver"):
        sql("INSERT INTO crawl (data) VALUES ('one')")
    tube = queue.create_tube("t", "utube")
    sql("INSERT INTO crawl (data, utube) SELECT concat('page ', id), 'a lane' FROM range(3)")
    frame = spark.createDataFrame([("three",)], "data string")
    frame.write.format("tubes").mode("append").saveAsTable("crawl")
    expected = [("page 0", "a lane"), ("page 1", "a lane"), ("page 2", "a lane"), ("three", None)]
    assert sql("SELECT data, utube FROM crawl WHERE state = 'r' ORDER BY data") == expected
    assert sql("SELECT count(*) FROM crawl WITH (state = 'buried')") == [(0,)]
    assert sql("SELECT data FROM crawl WITH (ids = '1-', lane = 'a lane')") == [("page 1",), ("page 2",)]
    assert sorted(task.data for _ in range(4) if (task := tube.take(0)) and task.ack()) == [
        data for data, _ in expected
    ]
    sql("DROP TABLE crawl")
    assert queue.tubes() == ["t"]


def test_unsupported_tables_and_statements_are_refused(sql: Any, queue: tubes.Queue, sql_options: str) -> None:
    queue.create_tube("t")
    sql(f"CREATE TABLE narrow (data string) USING tubes {sql_options}")
    for statement in (
        "SELECT * FROM narrow",
        "INSERT INTO narrow VALUES ('one')",
        f"CREATE TABLE made USING tubes {sql_options} AS SELECT 'one' AS data",
    ):
        assert_refused(sql, statement, "Spark loses the options of a table that declares columns")
    sql("CREATE TABLE crawl USING tubes " + sql_options)
    assert_refused(
        sql, "INSERT INTO crawl (id, data) VALUES (1, 'one')", "column='id': must be null: a put to tube 't' does not"
    )
    assert_refused(sql, "INSERT INTO crawl (data, utube) VALUES ('one', 'lane')", "column='utube': must be null")
    assert_refused(sql, "INSERT OVERWRITE crawl (data) VALUES ('one')", "a tube cannot be overwritten")
    assert_refused(sql, "TRUNCATE TABLE crawl", "does not support truncates")
    assert_refused(sql, "DELETE FROM crawl WHERE id = 1", "does not support deletes")
    assert queue.tube("t").statistics().tasks["total"] == 0


def test_table_with_bad_options_is_not_made(sql: Any, sql_options: str) -> None:
    why = r"password='\*\*\*': would be stored in Spark's catalog in clear text: use passwordEnv or passwordFile"
    assert_refused(sql, f"CREATE TABLE crawl USING tubes {sql_options.removesuffix(')')}, password 'horse')", why)
    assert_refused(
        sql, f"CREATE TABLE crawl USING tubes {sql_options} LOCATION '/tmp/none'", "LOCATION='.*': is for files"
    )
    assert sql("SHOW TABLES") == []


def test_view_is_written_and_read(sql: Any, queue: tubes.Queue, sql_options: str) -> None:
    queue.create_tube("t")
    sql(f"CREATE TEMPORARY VIEW crawl USING tubes {sql_options}")
    assert sql("SELECT data FROM crawl") == []
    sql("INSERT INTO crawl (data) VALUES ('one')")
    sql(f"CREATE TEMPORARY VIEW narrow (data string) USING tubes {sql_options}")
    sql("INSERT INTO narrow VALUES ('two')")
    assert sql("SELECT data, state FROM crawl ORDER BY data") == [("one", "r"), ("two", "r")]
    assert sql("SELECT * FROM narrow WHERE data = 'two'") == [("two",)]


def test_stream_reads_from_table(sql: Any, spark: Any, queue: tubes.Queue, sql_options: str, tmp_path: Path) -> None:
    queue.create_tube("t").put_many(["one", "two"])
    sql(f"CREATE TABLE crawl USING tubes {sql_options}")
    writer = spark.readStream.table("crawl").select("data").writeStream.format("memory").queryName(f"q{uuid4().hex}")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert sorted(sql(f"SELECT * FROM {query.name}")) == [("one",), ("two",)]
    assert queue.tube("t").statistics().tasks["total"] == 0


def test_put_options_without_table_column_come_from_options_or_view(
    sql: Any, spark: Any, queue: tubes.Queue, sql_options: str
) -> None:
    queue.create_tube("t", "fifottl")
    sql(f"CREATE TABLE crawl USING tubes {sql_options.removesuffix(')')}, delay '60', dataFormat 'json')")
    sql("INSERT INTO crawl WITH (delay = '70') (data) SELECT to_json(struct('one' AS url))")
    columns = ", ".join("'2'" if name == "data" else f"CAST(NULL AS {kind})" for name, kind, _ in sql("DESCRIBE crawl"))
    spark.sql(f"SELECT {columns}").write.insertInto("crawl")
    sql(f"CREATE TEMPORARY VIEW narrow (data STRING, delay DOUBLE) USING tubes {sql_options}")
    sql("INSERT INTO narrow VALUES ('three', 80)")
    waits = "round(CAST(due AS double) - CAST(created AS double))"
    assert sql(f"SELECT data, {waits} FROM crawl ORDER BY due") == [("2", 60), ('{"url":"one"}', 70), ('"three"', 80)]
