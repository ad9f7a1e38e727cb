"""Tasks as columns: from stored tasks to Arrow record batches."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from tubes.errors import InvalidOption, Unreadable
from tubes.spark.arrow import Array, DataType, RecordBatch, pa, pc
from tubes.spark.server.bulk_read import Plain, Same, Table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tubes.spark.settings import Settings

#: The most rows and bytes of a record batch; each batch costs Spark as much as some hundred rows.
_ROWS: Final = 10_000
_BYTES: Final = 8_000_000
#: For slices of empty arrays, which fail in PyArrow 26 without an end.
_END: Final = (1 << 31) - 1
_MOMENT: Final = pa.timestamp("us", tz="UTC")
#: By name: the type as Spark and as Arrow call it. The order is that of the schema.
_COLUMNS: Final[dict[str, tuple[str, DataType]]] = {
    "id": ("bigint", pa.int64()),
    "state": ("string", pa.string()),
    "data": ("string", pa.string()),
    "utube": ("string", pa.string()),
    "pri": ("bigint", pa.int64()),
    "attempts": ("int", pa.int32()),
    "reason": ("string", pa.string()),
    "key": ("string", pa.string()),
    "created": ("timestamp", _MOMENT),
    "due": ("timestamp", _MOMENT),
    "expires": ("timestamp", _MOMENT),
    "max_attempts": ("int", pa.int32()),
    "context": ("map<string,string>", pa.map_(pa.string(), pa.string())),
    "result": ("string", pa.string()),
    "why": ("string", pa.string()),
    "ended": ("timestamp", _MOMENT),
}


def _columns_of(codec: str) -> dict[str, tuple[str, DataType]]:
    return {**_COLUMNS, **dict.fromkeys(("data", "result"), ("binary", pa.binary()))} if codec == "raw" else _COLUMNS


def schema_of(codec: str) -> str:
    """The schema, as Spark's DDL."""
    return ", ".join(f"{name} {kind}" for name, (kind, _) in _columns_of(codec).items())


def types_of(codec: str) -> StructType:
    """The same, as Spark's types."""
    # It is for CREATE TABLE only, and takes time to import.
    from pyspark.sql.pandas.types import from_arrow_schema  # pyright: ignore[reportUnknownVariableType]

    return from_arrow_schema(pa.schema([(name, kind) for name, (_, kind) in _columns_of(codec).items()]))


class Columns:
    """Makes record batches with the columns that are asked for."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self.names: Final = [field.name for field in schema.fields]
        columns = _columns_of(settings.codec)
        for asked in schema.fields:
            kind = asked.dataType.simpleString()
            if asked.name not in columns or columns[asked.name][0] != kind:
                rule = f"must be among {schema_of(settings.codec)}"
                raise InvalidOption(option="schema", value=f"{asked.name} {kind}", rule=rule)
        self._tube: Final = settings.tube
        self._codec: Final = settings.codec
        self._nulls: Final = settings.bad_rows == "null"
        self._texts: Final = _TEXTS[settings.codec, settings.data_format]
        self.schema: Final = pa.schema([(name, columns[name][1]) for name in self.names])

    def batches(self, tables: Iterable[Table], *, first: int = _ROWS) -> Iterator[RecordBatch]:
        """These tasks, many at once; in the `first` batch so many, then more and more."""
        some: list[RecordBatch] = []
        rows = size = 0
        for table in tables:
            if table.size:
                some.append(self._batch(table))
                rows += table.size
                size += some[-1].nbytes
            if rows >= first or size >= _BYTES:
                yield from _together(some)
                some, rows, size = [], 0, 0
                first = min(first * 10, _ROWS)
        yield from _together(some)

    def _batch(self, table: Table) -> RecordBatch:
        raws = pa.array(table.raws, pa.binary()) if isinstance(table, Plain) else None
        arrays: list[Array] = []
        for name, kind in zip(self.names, self.schema.types, strict=True):
            column = table.columns.get(name)
            if name == "data":
                stored = (
                    pa.array(table.values(name), pa.binary())
                    if raws is None
                    else pc.binary_slice(raws, Plain.HEAD, _END)
                )
                arrays.append(self._data(table, stored, kind))
            elif column is None:
                arrays.append(_moments(pc.binary_slice(raws, 0, Plain.HEAD)))
            elif isinstance(column, Same):
                arrays.append(pa.repeat(pa.scalar(column.value, kind), table.size))
            elif name == "id":
                arrays.append(_numbers(array("q", table.values(name)), kind))
            elif name == "result":
                arrays.append(self._results(table, table.values(name), kind))
            elif kind == _MOMENT:
                arrays.append(pa.array(column, pa.int64()).cast(kind))
            else:
                make = _MADE_OF_TEXT.get(name)
                arrays.append(pa.array(column, kind) if make is None else make(column))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def undecodable(self, table: Table) -> list[int]:
        """The ids of those tasks whose data the codec cannot decode; JSON is not decoded."""
        if "data" not in self.names or self._codec != "msgpack":
            return []
        texts = self._texts(pa.array(table.values("data"), pa.binary()))
        return [id for id, is_bad in zip(table.values("id"), texts.is_null().to_pylist(), strict=True) if is_bad]

    def _results(self, table: Table, results: Sequence[bytes | None], kind: DataType) -> Array:
        """Those that are there, as data; null for the others."""
        there = [result is not None for result in results]
        if not any(there):
            return pa.nulls(table.size, kind)
        stored = pa.array([result for result in results if result is not None], pa.binary())
        made = iter(self._data(table.where(there), stored, kind).to_pylist())
        return pa.array([next(made) if has else None for has in there], kind)

    def _data(self, table: Table, stored: Array, kind: DataType) -> Array:
        if kind == pa.binary():
            return stored
        texts = self._texts(stored)
        if texts.null_count and not self._nulls:
            at = texts.is_null().to_pylist().index(True)
            what = f"tube {self._tube!r}: the data of task {table.values('id')[at]}"
            raise Unreadable(what=what, why=f"codec {self._codec!r} cannot decode them, or JSON cannot have them")
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:  # Bytes that are not text must not end a query.
            known = [text if text is None else text.decode("utf-8", "replace") for text in texts.to_pylist()]
            return pa.array(known, kind)


def _texts(column: Sequence[str | None]) -> Array:
    try:
        return pa.array(column, pa.string())
    except UnicodeEncodeError:  # Lone surrogates, as in file names, must not end a query.
        known = [text if text is None else text.encode("utf-8", "replace").decode() for text in column]
        return pa.array(known, pa.string())


def _contexts(column: Sequence[dict[str, str] | None]) -> Array:
    """Names and values, by columns: Arrow makes no maps of dicts."""
    ends = list(accumulate(0 if context is None else len(context) for context in column))
    pairs = [pair for context in column for pair in (context or {}).items()]
    # A null where a map begins says that it is null.
    begins = [None if context is None else begin for context, begin in zip(column, [0, *ends], strict=False)]
    keys, values = _texts([name for name, _ in pairs]), _texts([value for _, value in pairs])
    return pa.MapArray.from_arrays(pa.array([*begins, len(pairs)], pa.int32()), keys, values)


#: What makes the array of a column that has texts.
_MADE_OF_TEXT: Final[dict[str, Callable[[Any], Array]]] = {
    **dict.fromkeys(("state", "utube", "reason", "key", "why"), _texts), "context": _contexts,
}  # fmt: skip


def _together(batches: list[RecordBatch]) -> list[RecordBatch]:
    if len(batches) <= 1:
        return batches
    joined: list[RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _numbers(values: array[int], kind: DataType) -> Array:
    """Make an array of these numbers without a look at each."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _moments(heads: Array) -> Array:
    """Make an array of the moments of puts, which are stored as 8 bytes each."""
    moments = array("q", heads.buffers()[2].to_pybytes())
    if sys.byteorder == "little":
        moments.byteswap()
    return _numbers(moments, _MOMENT)


def _values(stored: Array) -> Array:
    """JSON; strings without their quotes."""
    if pc.all(pc.starts_with(stored, '"')).as_py() and b"\\" not in stored.buffers()[2].to_pybytes():
        return pc.binary_slice(stored, 1, -1)
    return pa.array([_value(raw) for raw in stored.to_pylist()], pa.binary())


def _value(raw: bytes) -> bytes:
    """JSON; a string without its quotes."""
    if raw[:1] != b'"':
        return raw
    if b"\\" not in raw:
        return raw[1:-1]
    try:
        return json.loads(raw).encode("utf-8", "replace")  # type: ignore[no-any-return]
    except ValueError:
        return raw


def _same(stored: Array) -> Array:
    return stored


def _unpacked(stored: Array) -> Array:
    """MessagePack as JSON; strings unchanged; null for what is neither."""
    import msgspec

    def text(raw: bytes) -> bytes | None:
        try:
            data: object = msgspec.msgpack.decode(raw)
            return data.encode("utf-8", "replace") if isinstance(data, str) else msgspec.json.encode(data)
        except (ValueError, TypeError, RecursionError):
            return None

    return pa.array([text(raw) for raw in stored.to_pylist()], pa.binary())


#: The function for the column `data`, by codec and format.
_TEXTS: Final[dict[tuple[str, str], Callable[[Array], Array]]] = {
    ("json", "value"): _values,
    ("json", "json"): _same,
    ("raw", "value"): _same,
    ("msgpack", "value"): _unpacked,
}
