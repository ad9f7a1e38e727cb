"""An unrelated data source, which Spark discovers in the same way as ours."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """A source with one row."""

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to `format`."""
        return "neighbour"

    def schema(self) -> str:
        """Return a schema of one column."""
        return "number int"

    def reader(self, schema: StructType) -> Reader:
        """Return the batch reader."""
        return Reader()


class Reader(DataSourceReader):
    """Reads one row."""

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """Yield the row."""
        yield (42,)
