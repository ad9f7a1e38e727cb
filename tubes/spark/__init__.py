"""A data source for Apache Spark: DataFrames into tubes, tubes into DataFrames, streams through both. Extra `spark`.

If the package is installed, `format("tubes")` works at once; else register the class:

    spark.dataSource.register(tubes.spark.TubesDataSource)

`docs/spark.md` has its use and its guarantees. May import all of `tubes` but `tubes.cli`.
"""

from tubes.errors import needs

with needs("tubes.spark", "spark"):
    from tubes.spark.source import TubesDataSource

__all__ = ["TubesDataSource"]
