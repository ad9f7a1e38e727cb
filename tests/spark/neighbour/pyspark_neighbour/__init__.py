"""Somebody else's data source, which Spark finds as it finds ours."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """One row."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "neighbour"

    def schema(self) -> str:
        """One column."""
        return "answer int"

    def reader(self, schema: StructType) -> Reader:
        """Of a batch."""
        return Reader()


class Reader(DataSourceReader):
    """Reads one row."""

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """The row."""
        yield (42,)
