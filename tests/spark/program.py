"""Program with two streams, for a test that runs and kills it. Arguments: options as JSON, folder."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import Any


def stream(spark: Any, options: dict[str, str], folder: str) -> None:
    """Drain two tubes: `t` into files, and `u` into the tube `results`."""

    def start(name: str, kind: str, **sink_options: str) -> Any:
        source = spark.readStream.format("tubes").options(**{**options, "tube": name}, maxTasksPerTrigger="1000").load()
        writer = source.select("data").writeStream.format(kind).options(**sink_options)
        return writer.option("checkpointLocation", f"{folder}/check-{name}").trigger(availableNow=True).start()

    sink = {**options, "tube": "results", "delivery": "exactly-once"}
    with ExitStack() as stack:
        queries = [start("t", "parquet", path=f"{folder}/out"), start("u", "tubes", **sink)]
        for query in queries:
            stack.callback(query.stop)
        for query in queries:
            query.awaitTermination()


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    source_options, target = sys.argv[1:]
    session = SparkSession.builder.getOrCreate()
    stream(session, json.loads(source_options), target)
    session.stop()
