"""Features by version of Spark. `make matrix` also runs this file with old versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql.functions import udf

import tubes
from tubes.spark.workers import INTERNAL

pytestmark = pytest.mark.full


def test_other_data_sources_are_still_found(spark: Any) -> None:
    assert [tuple(row) for row in spark.read.format("neighbour").load().collect()] == [(42,)]


def test_batches_work_on_all_spark_versions(spark: Any, queue: tubes.Queue, options: dict[str, str]) -> None:
    frame = spark.range(100).selectExpr("named_struct('page', id) as data", "concat('host ', id % 10) as utube")
    frame.write.format("tubes").options(**options, driver="utube", writeId="once").mode("append").save()
    rows = spark.read.format("tubes").options(**options).load().groupBy("utube", "state").count().collect()
    assert sorted(map(tuple, rows)) == [(f"host {number}", "r", 10) for number in range(10)]
    assert {task.data["page"] for task in queue.tube("t").take_many(10, timeout=0)} == set(range(10))


@pytest.mark.parametrize(("end", "needed"), [("sink", (4, 1)), ("source", (4, 2))])
def test_streams_work_or_report_required_spark_version(
    spark: Any, queue: tubes.Queue, options: dict[str, str], tmp_path: Path, end: str, needed: tuple[int, int]
) -> None:
    from pyspark.errors import StreamingQueryException

    queue.create_tube("t").put("one")
    if end == "source":
        frame, sink = spark.readStream.format("tubes").options(**options).load().select("data"), "noop"
    else:
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "file.txt").write_text("two\n")
        frame, sink = spark.readStream.text(str(tmp_path / "in")).withColumnRenamed("value", "data"), "tubes"
    writer = frame.writeStream.format(sink).options(**options, checkpointLocation=str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    if tuple(map(int, spark.version.split(".")[:2])) < needed:
        rule = f"SparkTooOld: a stream .* a tube needs Spark {needed[0]}.{needed[1]} or newer, and this is Spark "
        with pytest.raises(StreamingQueryException, match=rule):
            query.awaitTermination(120)
    else:
        assert query.awaitTermination(120)
        assert queue.tube("t").statistics().tasks["total"] == {"source": 0, "sink": 2}[end]


def test_spark_sets_the_internal_properties(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file.txt").write_text("one\n")

    def show(_: object) -> str:
        context = TaskContext.get()
        assert context is not None
        return " ".join(str(context.getLocalProperty(name)) for name in INTERNAL)

    show.__annotations__.clear()  # Spark would take them for the types of a pandas UDF.
    frame = spark.readStream.text(str(tmp_path / "in")).select(udf(show, "string")("value").alias("seen"))
    query = frame.writeStream.format("memory").queryName("internal").trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert [row["seen"] for row in spark.table("internal").collect()] == [f"{query.id} 0"]
