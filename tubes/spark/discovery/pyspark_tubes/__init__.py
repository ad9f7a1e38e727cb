"""The module by which Spark discovers the data source: it loads `DefaultSource` of every top-level module `pyspark_…`.

So `format("tubes")` works wherever the package is installed, without registration.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class Unusable(DataSource):
    """Replaces a data source that cannot be imported, and raises the import error when it is used.

    An error during the import itself would stop Spark from discovering any data source.
    """

    error: Exception

    def __init__(self, options: dict[str, str]) -> None:
        raise self.error

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to `format`."""
        return "tubes"


DefaultSource: type[DataSource]
try:
    from tubes.spark.source import TubesDataSource as DefaultSource
except Exception as error:
    Unusable.error = error
    DefaultSource = Unusable
