"""What Spark looks for: it loads `DefaultSource` of every top-level module `pyspark_…`.

So `format("tubes")` works where the package is installed, and nothing needs to be registered.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class Unusable(DataSource):
    """Stands for a data source that cannot be imported, and raises that error when it is used.

    An error during the import would keep Spark from finding anybody's data sources.
    """

    why: Exception

    def __init__(self, options: dict[str, str]) -> None:
        raise self.why

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "tubes"


DefaultSource: type[DataSource]
try:
    from tubes.spark.source import TubesDataSource as DefaultSource
except Exception as error:
    Unusable.why = error
    DefaultSource = Unusable
