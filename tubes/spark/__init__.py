"""A data source for Apache Spark: DataFrames into tubes, tubes into DataFrames, streams through both. Extra `spark`.

Where the package is installed `format("tubes")` works without a word; elsewhere register the class:

    spark.dataSource.register(tubes.spark.TubesDataSource)

`docs/spark.md` says how to use it, and what it promises. May import all of `tubes` but `tubes.cli`.
"""

from tubes.errors import needs

with needs("tubes.spark", "spark"):
    from tubes.spark.source import TubesDataSource

__all__ = ["TubesDataSource"]
