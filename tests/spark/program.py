"""A program that uses Spark, for tests that run it on its own and kill it: what to do, options, settings, more."""

from __future__ import annotations

import json
import sys
from typing import Any


def session(settings: dict[str, str]) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def connect(options: dict[str, str], settings: dict[str, str]) -> None:
    """Write, read and stream through Spark Connect."""
    import tempfile

    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    frame = spark.range(20).selectExpr("cast(id as string) as data")
    frame.write.format("tubes").options(**options).mode("append").save()
    print(spark.read.format("tubes").options(**options).load().count())
    with tempfile.TemporaryDirectory() as folder:
        stream = spark.readStream.format("tubes").options(**options).load()
        writer = stream.writeStream.format("parquet").option("path", f"{folder}/out")
        writer.option("checkpointLocation", f"{folder}/check").trigger(availableNow=True).start().awaitTermination()
        print(spark.read.parquet(f"{folder}/out").count())
    spark.stop()


def stream(options: dict[str, str], settings: dict[str, str], folder: str) -> None:
    """Take what is in two tubes, to their ends: of `t` into files, of `u` into the tube `results`."""
    spark = session(settings)

    def begin(name: str, kind: str, **told: str) -> Any:
        source = spark.readStream.format("tubes").options(**{**options, "tube": name}, maxTasksPerTrigger="1000").load()
        writer = source.select("data").writeStream.format(kind).options(**told)
        return writer.option("checkpointLocation", f"{folder}/check-{name}").trigger(availableNow=True).start()

    sink = {**options, "tube": "results", "delivery": "exactly-once"}
    queries = [begin("t", "parquet", path=f"{folder}/out"), begin("u", "tubes", **sink)]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    asked, known = (json.loads(word) for word in words[:2])
    if what == "connect":
        connect(asked, known)
    else:
        stream(asked, known, words[2])
