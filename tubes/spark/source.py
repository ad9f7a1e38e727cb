"""The data source `tubes`, as Spark calls it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource

from tubes.errors import InvalidOption, SparkTooOld
from tubes.spark.columns import schema_of, types_of
from tubes.spark.payload import Payload
from tubes.spark.settings import check_values, read_settings, stream_settings, write_settings
from tubes.spark.sink import BatchWriter
from tubes.spark.snapshot import SnapshotReader
from tubes.spark.tables import keep, options_of_create, recall

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tubes.spark.leases import LeaseReader
    from tubes.spark.stream_sink import StreamWriter


@contextmanager
def _since(needed: str, what: str) -> Generator[None]:
    """Wraps imports that older versions of Spark do not have. A vendor's version may have more than its number says."""
    try:
        yield
    except ImportError as error:
        if not (error.name or "").startswith("pyspark"):
            raise
        raise SparkTooOld(what=what, needed=needed, version=pyspark.__version__) from None


class TubesDataSource(DataSource):
    """Tubes on a Redis or Valkey server, for batch reads and writes, and as source and sink of streams.

    `docs/spark.md` describes the options. A bad one raises an error on the driver, before anything runs.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "tubes"

    def schema(self) -> str | StructType:
        """The columns of a read; `data` is binary with codec `raw`, else a string."""
        created = options_of_create(self.options)
        options = self.options if created is None else created
        settings = check_values(options)
        if created is None:
            return schema_of(settings.codec)
        settings.address.check_stored()
        return keep(types_of(settings.codec), created)

    def reader(self, schema: StructType) -> SnapshotReader:
        """A snapshot of the tasks in a tube; nothing is taken."""
        return SnapshotReader(read_settings(self.options, recall(schema, self.options)), schema)

    def streamReader(self, schema: StructType) -> LeaseReader:
        """The tasks of a tube, taken batch by batch, and acked when Spark has committed."""
        with _since("4.2", "a stream that reads a tube"):
            from tubes.spark.leases import LeaseReader
        return LeaseReader(stream_settings(self.options, recall(schema, self.options)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Puts the rows of a DataFrame."""
        if overwrite:
            rule = 'a tube cannot be overwritten: the holders of its tasks would lose them; use "append"'
            raise InvalidOption(option="mode", value="overwrite", rule=rule)
        settings = write_settings(self.options, recall(schema, self.options), streams=False)
        return BatchWriter(settings, Payload.plan(settings, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Puts the rows of each micro-batch."""
        with _since("4.1", "a stream that writes to a tube"):
            from tubes.spark.stream_sink import StreamWriter
        if overwrite:
            rule = "would replace all tasks of the tube by each micro-batch: use append"
            raise InvalidOption(option="outputMode", value="complete", rule=rule)
        settings = write_settings(self.options, recall(schema, self.options), streams=True)
        return StreamWriter(settings, Payload.plan(settings, schema))
