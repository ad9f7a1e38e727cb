"""The data source `tubes`: the class that Spark calls."""

from __future__ import annotations

import logging
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
    from tubes.spark.many_leases import ManyLeases
    from tubes.spark.stream_sink import StreamWriter

_log = logging.getLogger("tubes")


@contextmanager
def _require_spark(needed: str, what: str) -> Generator[None]:
    """Turn import errors in the block into `SparkTooOld`.

    The imports are tried because a vendor's version may have more features than its number suggests.
    """
    try:
        yield
    except ImportError as error:
        if not (error.name or "").startswith("pyspark"):
            raise
        raise SparkTooOld(what=what, needed=needed, version=pyspark.__version__) from None


class TubesDataSource(DataSource):
    """Batch reads, batch writes, and sources and sinks of streams for tubes on a Redis or Valkey server.

    `docs/spark.md` describes the options. A bad option raises an error on the driver, before any Spark task runs.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to `format`."""
        return "tubes"

    def schema(self) -> str | StructType:
        """Return the columns of a read. `data` is binary with codec `raw`, and a string otherwise."""
        created = options_of_create(self.options)
        options = self.options if created is None else created
        settings = check_values(options)
        if created is None:
            return schema_of(settings.codec, several=bool(settings.tubes))
        settings.address.check_stored()
        return keep(types_of(settings.codec, several=bool(settings.tubes)), created)

    def reader(self, schema: StructType) -> SnapshotReader:
        """Return a reader for the tasks in a tube, which does not take them."""
        return SnapshotReader(read_settings(self.options, recall(schema, self.options)), schema)

    def streamReader(self, schema: StructType) -> LeaseReader | ManyLeases:
        """Return a reader that takes tasks in batches, and acks each batch when Spark has committed it."""
        with _require_spark("4.2", "a stream that reads a tube"):
            from tubes.spark.leases import LeaseReader
            from tubes.spark.many_leases import ManyLeases
        settings = stream_settings(self.options, recall(schema, self.options))
        with settings.connect() as queue:
            if not settings.names(queue):
                _log.warning("the option tubes, %r, matches no tube yet", ",".join(settings.tubes))
            is_several = settings.is_several(queue)
        if is_several and settings.starting_time is not None:
            value = ",".join(settings.tubes or (settings.tube,))
            rule = "a stream with startingTime reads one tube without partitions"
            raise InvalidOption(option="tubes" if settings.tubes else "tube", value=value, rule=rule)
        return ManyLeases(settings, schema) if is_several else LeaseReader(settings, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return a writer that puts the rows of a DataFrame."""
        if overwrite:
            rule = 'a tube cannot be overwritten: the holders of its tasks would lose them; use "append"'
            raise InvalidOption(option="mode", value="overwrite", rule=rule)
        settings = write_settings(self.options, recall(schema, self.options), streams=False)
        return BatchWriter(settings, Payload.plan(settings, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return a writer that puts the rows of each micro-batch."""
        with _require_spark("4.1", "a stream that writes to a tube"):
            from tubes.spark.stream_sink import StreamWriter
        if overwrite:
            rule = "would replace all tasks of the tube by each micro-batch: use append"
            raise InvalidOption(option="outputMode", value="complete", rule=rule)
        settings = write_settings(self.options, recall(schema, self.options), streams=True)
        return StreamWriter(settings, Payload.plan(settings, schema))
