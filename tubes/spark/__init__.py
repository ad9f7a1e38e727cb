"""A data source for Apache Spark: batch reads, batch writes and streams, in both directions. Extra `spark`.

Where the package is installed, `format("tubes")` works without registration. Elsewhere register the class:

    spark.dataSource.register(tubes.spark.TubesDataSource)

`docs/spark.md` explains its use and its guarantees. It may import all of `tubes` except `tubes.cli`.
"""

from tubes.errors import needs

with needs("tubes.spark", "spark"):
    from tubes.spark.source import TubesDataSource

__all__ = ["TubesDataSource"]
