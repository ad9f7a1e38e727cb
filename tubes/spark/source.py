"""The data source `tubes`, as Spark calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from tubes.errors import InvalidOption
from tubes.spark.columns import schema_of
from tubes.spark.leases import LeaseReader
from tubes.spark.payload import Payload
from tubes.spark.settings import check_values, read_settings, stream_settings, write_settings
from tubes.spark.sink import BatchWriter, StreamWriter
from tubes.spark.snapshot import SnapshotReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TubesDataSource(DataSource):
    """Tubes on a Redis or Valkey server, for batch reads and writes, and as source and sink of streams.

    `docs/spark.md` describes the options. A bad one raises an error on the driver, before anything runs.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "tubes"

    def schema(self) -> str:
        """The columns of a read; `data` is binary with codec `raw`, else a string."""
        check_values(self.options)
        return schema_of(self.options.get("codec", "json"))

    def reader(self, schema: StructType) -> SnapshotReader:
        """A snapshot of the tasks in a tube; nothing is taken."""
        return SnapshotReader(read_settings(self.options), schema)

    def streamReader(self, schema: StructType) -> LeaseReader:
        """The tasks of a tube, taken batch by batch, and acked when Spark has committed."""
        return LeaseReader(stream_settings(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Puts the rows of a DataFrame."""
        if overwrite:
            rule = 'a tube cannot be overwritten: the holders of its tasks would lose them; use "append"'
            raise InvalidOption(option="mode", value="overwrite", rule=rule)
        settings = write_settings(self.options, streams=False)
        return BatchWriter(settings, Payload.plan(settings, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Puts the rows of each micro-batch."""
        if overwrite:
            raise InvalidOption(
                option="outputMode", value="complete", rule="is not possible with tubes: use append or update"
            )
        settings = write_settings(self.options, streams=True)
        return StreamWriter(settings, Payload.plan(settings, schema))
