"""Two streams, for a test that runs them in a process of their own and kills it: options, folder."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import Any


def stream(spark: Any, options: dict[str, str], folder: str) -> None:
    """Take what is in two tubes, to their ends: of `t` into files, of `u` into the tube `results`."""

    def begin(name: str, kind: str, **told: str) -> Any:
        source = spark.readStream.format("tubes").options(**{**options, "tube": name}, maxTasksPerTrigger="1000").load()
        writer = source.select("data").writeStream.format(kind).options(**told)
        return writer.option("checkpointLocation", f"{folder}/check-{name}").trigger(availableNow=True).start()

    sink = {**options, "tube": "results", "delivery": "exactly-once"}
    with ExitStack() as stack:
        queries = [begin("t", "parquet", path=f"{folder}/out"), begin("u", "tubes", **sink)]
        for query in queries:
            stack.callback(query.stop)
        for query in queries:
            query.awaitTermination()


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    told, place = sys.argv[1:]
    session = SparkSession.builder.getOrCreate()
    stream(session, json.loads(told), place)
    session.stop()
