"""The data source in a real Spark session: batches, streams, and the examples of the guide."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tubes.testing import LocalServer

pytestmark = pytest.mark.full

DOCS = Path(__file__).parent.parent.parent / "docs"
FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def frame(spark: Any, count: int, parts: int = 2) -> Any:
    return spark.range(count, numPartitions=parts).selectExpr(
        "concat('page ', id) as data", "concat('host ', id % 10) as utube"
    )


def read(spark: Any, options: dict[str, str]) -> Any:
    return spark.read.format("tubes").options(**options).load()


def stream(spark: Any, options: dict[str, str], **more: str) -> Any:
    return spark.readStream.format("tubes").options(**options, **more).load()


def run(stream: Any, options: dict[str, str], checkpoint: Path, **more: str) -> Any:
    """Run a query with the trigger availableNow to its end."""
    writer = stream.select("data").writeStream.format("tubes").options(**options, **more)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return query


def test_frame_is_written_and_read_without_registration(
    spark: Any, queue: tubes.Queue, options: dict[str, str]
) -> None:
    queue.create_tube("t", "utube")
    frame(spark, 500).write.format("tubes").options(**options).mode("append").save()
    rows = read(spark, options).groupBy("utube", "state").count().collect()
    assert {(row["utube"], row["state"], row["count"]) for row in rows} == {(f"host {n}", "r", 50) for n in range(10)}
    assert {task.data for task in queue.tube("t").take_many(10, timeout=0)} == {f"page {n}" for n in range(10)}


def test_stopped_query_returns_the_batch_that_it_took_ahead(
    spark: Any, queue: tubes.Queue, options: dict[str, str], tmp_path: Path
) -> None:
    tube = queue.create_tube("t")
    tube.put_many(range(4000))
    second = Event()

    def work(_: Any, number: int) -> None:
        while number and query.isActive:
            second.set()
            time.sleep(0.05)

    def taken() -> int:
        return tube.statistics().tasks["taken"]

    writer = stream(spark, options, maxTasksPerTrigger="1000").writeStream.foreachBatch(work)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        assert second.wait(120)
        assert eventually(lambda: taken() == 2000)
        query.stop()
        assert eventually(lambda: taken() == 1000)
    finally:
        query.stop()


def test_failed_job_puts_nothing_and_retried_task_puts_once(
    spark: Any, queue: tubes.Queue, options: dict[str, str], tmp_path: Path
) -> None:
    from pyspark.errors import PythonException
    from pyspark.sql.functions import udf

    queue.create_tube("t")
    first, always = str(tmp_path / "first"), str(tmp_path / "always")

    def fail(text: str, kind: str) -> str:
        if text == "page 290":
            if kind == always:
                raise ValueError("always")
            if not os.path.exists(kind):
                Path(kind).touch()
                raise ValueError("once")
        return text

    for kind in (always, first):
        failing = udf(lambda text, kind=kind: fail(text, kind), useArrow=False)
        rows = frame(spark, 300).select(failing("data").alias("data"))
        write = rows.write.format("tubes").options(**options).mode("append").save
        if kind == always:
            with pytest.raises(PythonException, match="always"):
                write()
            assert queue.tube("t").statistics().tasks["total"] == 0
        else:
            write()
    assert sorted(task.data for task in queue.tube("t").take_many(1000, timeout=0)) == sorted(
        f"page {number}" for number in range(300)
    )


def test_tube_with_partitions_is_written_read_and_streamed(
    spark: Any, queue: tubes.Queue, options: dict[str, str], tmp_path: Path
) -> None:
    tube = queue.create_tube("t", "fifo", partitions=3)
    results = queue.create_tube("results", "fifo", partitions=2)
    frame(spark, 500).select("data").write.format("tubes").options(**options).mode("append").save()
    assert {task.partition for task in tube.select()} == {0, 1, 2}
    assert read(spark, options).select("id").distinct().count() == 500
    run(stream(spark, options, maxTasksPerTrigger="200"), {**options, "tube": "results"}, tmp_path)
    assert sorted(task.data for task in results.select()) == sorted(f"page {number}" for number in range(500))
    assert tube.statistics().tasks["total"] == 0


def test_invalid_queries_are_refused_during_analysis(spark: Any, queue: tubes.Queue, options: dict[str, str]) -> None:
    from pyspark.errors import AnalysisException

    queue.create_tube("t")
    with pytest.raises(AnalysisException, match="cannot be shared by Spark's driver and executors"):
        read(spark, {"url": "memory://", "tube": "t"}).count()
    with pytest.raises(AnalysisException, match="there is no tube 'nope'"):
        read(spark, {**options, "tube": "nope"}).count()
    with pytest.raises(AnalysisException, match="has no option 'utube'"):
        frame(spark, 5).write.format("tubes").options(**options).mode("append").save()
    with pytest.raises(AnalysisException, match='use "append"'):
        frame(spark, 5).select("data").write.format("tubes").options(**options).mode("overwrite").save()
    assert queue.tube("t").statistics().tasks["total"] == 0


def test_frame_reads_current_tasks_on_each_use(spark: Any, queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("t")
    tube.put_many(range(1000))
    # If the source accepted filters, Spark would keep them for later uses of the frame.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        tasks = read(spark, options)
        assert tasks.where("id < 100").count() == 100
        assert tasks.count() == 1000
        assert tasks.where("id > 990").count() == 9
        assert tasks.where("id < 3").union(tasks.where("id > 995")).count() == 7
        tube.put_many(range(5))
        tube.bury(3)
        assert {row["state"]: row["count"] for row in tasks.groupBy("state").count().collect()} == {"r": 1004, "!": 1}
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_stream_moves_tasks_from_tube_to_tube(
    spark: Any, queue: tubes.Queue, options: dict[str, str], tmp_path: Path
) -> None:
    source, results = queue.create_tube("t"), queue.create_tube("results")
    source.put_many([f"{number}" for number in range(500)])
    overrides = {**options, "tube": "results", "delivery": "exactly-once"}
    query = run(stream(spark, options, maxTasksPerTrigger="200"), overrides, tmp_path)
    assert [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]] == [200, 200, 100]
    assert query.recentProgress[0]["sources"][0]["latestOffset"]
    assert json.loads(query.recentProgress[0]["sources"][0]["latestOffset"])["ready"] == 300
    assert source.statistics().tasks["total"] == 0
    assert sorted(int(task.data) for task in results.take_many(1000, timeout=0)) == list(range(500))
    source.put("more")
    run(stream(spark, options), overrides, tmp_path)
    assert [task.data for task in results.take_many(1000, timeout=0)] == ["more"]


def test_running_stream_delivers_new_tasks(
    spark: Any, queue: tubes.Queue, options: dict[str, str], tmp_path: Path
) -> None:
    source, results = queue.create_tube("t", "utubettl"), queue.create_tube("results")
    writer = stream(spark, options).select("data").writeStream.format("tubes").options(**{**options, "tube": "results"})
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        for number in range(3):
            source.put(f"{number}", utube="one lane")
        assert [task.data for _ in range(3) if (task := results.take(timeout=60))] == ["0", "1", "2"]
    finally:
        query.stop()


def test_spark_connect_supports_data_source(
    spark: Any, queue: tubes.Queue, options: dict[str, str], tmp_path: Path
) -> None:
    from pyspark.sql.connect.session import SparkSession

    queue.create_tube("t")
    service = getattr(getattr(spark._jvm.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    spark._jsc.sc().conf().set("spark.connect.grpc.binding.port", "0")
    service.start(spark._jsc.sc())
    try:
        remote = SparkSession.builder.remote(f"sc://localhost:{service.localPort()}").create()
        frame(remote, 20).select("data").write.format("tubes").options(**options).mode("append").save()
        assert read(remote, options).count() == 20
        run(stream(remote, options), {**options, "tube": "results", "driver": "fifo"}, tmp_path)
        remote.stop()
    finally:
        nothing = spark._jvm.scala.Option.empty()
        service.stop(nothing, nothing)
    counts = {name: queue.tube(name).statistics().tasks["total"] for name in ("t", "results")}
    assert counts == {"t": 0, "results": 20}


@pytest.mark.parametrize("page", ["spark.md", "howto/spark-production.md", "howto/spark-kafka.md"])
def test_examples_of_pages_run(page: str, spark: Any, valkey: LocalServer) -> None:
    # The pages use a server without a prefix.
    url = f"{valkey.url}?prefix={page.replace('/', '-')}"
    blocks = FENCE.findall((DOCS / page).read_text())
    assert blocks
    names: dict[str, Any] = {"__name__": "guide", "spark": spark}
    for block in blocks:
        exec(compile(block.replace("redis://localhost", url), page, "exec"), names)


def test_stream_of_several_tubes_feeds_several_tubes(spark: Any, queue: tubes.Queue, url: str, tmp_path: Path) -> None:
    rows = spark.range(300).selectExpr("concat('in.', id % 3) as tube", "cast(id as string) as data")
    rows.write.format("tubes").options(url=url, tubes="in.*", driver="fifo", writeId="1").mode("append").save()
    found = read(spark, {"url": url, "tubes": "in.*"}).groupBy("tube").count().collect()
    assert {row["tube"]: row["count"] for row in found} == {"in.0": 100, "in.1": 100, "in.2": 100}
    source = stream(spark, {"url": url, "tubes": "in.*", "maxTasksPerTrigger": "60"})
    routed = source.selectExpr("replace(tube, 'in', 'out') as tube", "data")
    writer = routed.writeStream.format("tubes").options(url=url, tubes="out.*", driver="utube", delivery="exactly-once")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    progress = [json.loads(batch["sources"][0]["latestOffset"]) for batch in query.recentProgress]
    assert [batch["ready"] for batch in progress] == [240, 180, 120, 60, 0]
    assert {name: found["ready"] for name, found in progress[0]["tubes"].items()} == {f"in.{n}": 80 for n in range(3)}
    for number in range(3):
        tasks = queue.tube(f"out.{number}").select()
        assert sorted(int(task.data) for task in tasks) == [*range(number, 300, 3)]
        assert queue.tube(f"in.{number}").statistics().tasks["total"] == 0
