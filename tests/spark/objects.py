"""Stand-in for Spark without a JVM: pickles the objects of a data source as Spark does between driver and executors."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from pyspark.sql import types

from tubes.spark import TubesDataSource
from tubes.spark.arrow import pa


def source(options: dict[str, str]) -> TubesDataSource:
    """Create the data source like Spark, with option names in lower case."""
    return TubesDataSource({name.lower(): value for name, value in options.items()})


def copy_by_pickle(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def schema(ddl: str) -> types.StructType:
    """Parse a schema "name type, name type". Spark's own parser needs a JVM."""
    found = types.StructType()
    for part in _parts(ddl):
        name, _, kind = part.replace(":", " ").partition(" ")
        found.add(name, _type(kind.strip()))
    return found


_TYPES: dict[str, types.DataType] = {
    "string": types.StringType(), "binary": types.BinaryType(), "boolean": types.BooleanType(),
    "int": types.IntegerType(), "bigint": types.LongType(), "double": types.DoubleType(), "date": types.DateType(),
    "timestamp": types.TimestampType(), "interval day to second": types.DayTimeIntervalType(),
    "interval year to month": types.YearMonthIntervalType(), "interval year": types.YearMonthIntervalType(0, 0),
    "interval month": types.YearMonthIntervalType(1, 1), "time": types.TimeType(), "variant": types.VariantType(),
}  # fmt: skip


def _type(kind: str) -> types.DataType:
    if kind in _TYPES:
        return _TYPES[kind]
    outer, _, inner = kind[:-1].partition("<" if "<" in kind else "(")
    if outer == "array":
        return types.ArrayType(_type(inner))
    if outer == "map":
        key, value = _parts(inner)
        return types.MapType(_type(key), _type(value))
    if outer == "struct":
        return schema(inner)
    assert outer == "decimal", kind
    return types.DecimalType(*map(int, inner.split(",")))


def _parts(ddl: str) -> list[str]:
    """Split at commas that are outside of brackets."""
    parts, depth = [""], 0
    for letter in ddl:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def read(options: dict[str, str], ddl: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a batch read."""
    data_source = source(options)
    reader = data_source.reader(schema(ddl or str(data_source.schema())))
    return rows_of(reader, reader.partitions())


def rows_of(reader: Any, partitions: Sequence[Any]) -> list[dict[str, Any]]:
    """Read each partition with a copy of the reader, and return all rows."""
    return [
        row
        for part in partitions
        for batch in copy_by_pickle(reader).read(copy_by_pickle(part))
        for row in batch.to_pylist()
    ]


def write(options: dict[str, str], parts: list[list[dict[str, Any]]], ddl: str, *, ends: str = "commit") -> Any:
    """Write rows in a batch, each part in its own Spark task."""
    writer = source(options).writer(schema(ddl), overwrite=False)
    messages = [copy_by_pickle(writer).write(iter([batch_of(part, ddl)])) for part in parts]
    getattr(copy_by_pickle(writer), ends)([copy_by_pickle(message) for message in messages])
    return writer


def batch_of(rows: list[dict[str, Any]], ddl: str) -> Any:
    from pyspark.sql.pandas.types import to_arrow_schema

    return pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(schema(ddl), timezone="UTC"))
