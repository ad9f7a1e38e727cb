"""Convert stored tasks to Arrow record batches."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from tubes.errors import InvalidOption, Unreadable
from tubes.partitions.layout import global_id
from tubes.spark.arrow import Array, DataType, RecordBatch, pa, pc
from tubes.spark.server.bulk_read import Plain, Same, Table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tubes.spark.settings import Settings

#: Upper bounds for the rows and bytes of a record batch. A batch costs Spark as much as some hundred rows.
_ROWS: Final = 10_000
_BYTES: Final = 8_000_000
#: End of a slice "to the end": PyArrow 26 fails for empty arrays if no end is passed.
_END: Final = (1 << 31) - 1
_MOMENT: Final = pa.timestamp("us", tz="UTC")
#: Column name -> its Spark type and its Arrow type, in the order of the schema.
_COLUMNS: Final[dict[str, tuple[str, DataType]]] = {
    "tube": ("string", pa.string()),
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


def _columns_for(codec: str) -> dict[str, tuple[str, DataType]]:
    return {**_COLUMNS, **dict.fromkeys(("data", "result"), ("binary", pa.binary()))} if codec == "raw" else _COLUMNS


def _default_columns(codec: str, *, several: bool) -> dict[str, tuple[str, DataType]]:
    """Return the columns of a read. `tube` is among them if it reads several tubes."""
    return {name: kinds for name, kinds in _columns_for(codec).items() if several or name != "tube"}


def schema_of(codec: str, *, several: bool = False) -> str:
    return ", ".join(f"{name} {kind}" for name, (kind, _) in _default_columns(codec, several=several).items())


def types_of(codec: str, *, several: bool) -> StructType:
    # Only CREATE TABLE needs this slow import.
    from pyspark.sql.pandas.types import from_arrow_schema  # pyright: ignore[reportUnknownVariableType]

    columns = _default_columns(codec, several=several)
    return from_arrow_schema(pa.schema([(name, kind) for name, (_, kind) in columns.items()]))


class Columns:
    """Builds record batches with the columns of the requested schema."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self.names: Final = [field.name for field in schema.fields]
        columns = _columns_for(settings.codec)
        for field in schema.fields:
            kind = field.dataType.simpleString()
            if field.name not in columns or columns[field.name][0] != kind:
                rule = f"must be among {schema_of(settings.codec, several=True)}"
                raise InvalidOption(option="schema", value=f"{field.name} {kind}", rule=rule)
        self._tube, _, number = settings.tube.partition("#")
        #: The partition whose tasks these are.
        self._number: Final = int(number) if number else None
        self._codec: Final = settings.codec
        self._nulls: Final = settings.bad_rows == "null"
        self._to_text: Final = _DECODERS[settings.codec, settings.data_format]
        self.schema: Final = pa.schema([(name, columns[name][1]) for name in self.names])

    def batches(self, tables: Iterable[Table], *, first: int = _ROWS) -> Iterator[RecordBatch]:
        """Yield tasks as record batches. The first has about `first` rows, each further one up to ten times as many."""
        pending: list[RecordBatch] = []
        rows = size = 0
        for table in tables:
            if table.size:
                pending.append(self._batch(table))
                rows += table.size
                size += pending[-1].nbytes
            if rows >= first or size >= _BYTES:
                yield from _combine(pending)
                pending, rows, size = [], 0, 0
                first = min(first * 10, _ROWS)
        yield from _combine(pending)

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
            elif name == "tube":
                arrays.append(pa.repeat(pa.scalar(self._tube, kind), table.size))
            elif column is None:
                arrays.append(_decode_moments(pc.binary_slice(raws, 0, Plain.HEAD)))
            elif isinstance(column, Same):
                arrays.append(pa.repeat(pa.scalar(column.value, kind), table.size))
            elif name == "id":
                ids = table.values(name)
                if self._number is not None:
                    ids = [global_id(id, self._number) for id in ids]
                arrays.append(_numbers(array("q", ids), kind))
            elif name == "result":
                arrays.append(self._results(table, table.values(name), kind))
            elif kind == _MOMENT:
                arrays.append(pa.array(column, pa.int64()).cast(kind))
            else:
                build = _TEXT_BUILDERS.get(name)
                arrays.append(pa.array(column, kind) if build is None else build(column))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def find_undecodable(self, table: Table) -> list[int]:
        """Return the ids of tasks whose data the codec cannot decode. JSON is never decoded, so it always passes."""
        if "data" not in self.names or self._codec != "msgpack":
            return []
        texts = self._to_text(pa.array(table.values("data"), pa.binary()))
        return [id for id, is_bad in zip(table.values("id"), texts.is_null().to_pylist(), strict=True) if is_bad]

    def _results(self, table: Table, results: Sequence[bytes | None], kind: DataType) -> Array:
        """Decode results like data; tasks without a result get null."""
        has_result = [result is not None for result in results]
        if not any(has_result):
            return pa.nulls(table.size, kind)
        stored = pa.array([result for result in results if result is not None], pa.binary())
        decoded = iter(self._data(table.filter(has_result), stored, kind).to_pylist())
        return pa.array([next(decoded) if has else None for has in has_result], kind)

    def _data(self, table: Table, stored: Array, kind: DataType) -> Array:
        if kind == pa.binary():
            return stored
        texts = self._to_text(stored)
        if texts.null_count and not self._nulls:
            index = texts.is_null().to_pylist().index(True)
            what = f"tube {self._tube!r}: the data of task {table.values('id')[index]}"
            raise Unreadable(what=what, why=f"codec {self._codec!r} cannot decode it, or JSON cannot represent it")
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:  # Bytes that are not UTF-8 must not abort a query.
            replaced = [text if text is None else text.decode("utf-8", "replace") for text in texts.to_pylist()]
            return pa.array(replaced, kind)


def _texts(column: Sequence[str | None]) -> Array:
    try:
        return pa.array(column, pa.string())
    except UnicodeEncodeError:  # Lone surrogates, which file names can contain, must not abort a query.
        replaced = [text if text is None else text.encode("utf-8", "replace").decode() for text in column]
        return pa.array(replaced, pa.string())


def _contexts(column: Sequence[dict[str, str] | None]) -> Array:
    """Build a map array from its keys and values: Arrow cannot build one from dicts."""
    ends = list(accumulate(0 if context is None else len(context) for context in column))
    pairs = [pair for context in column for pair in (context or {}).items()]
    # A null offset marks a null map.
    begins = [None if context is None else begin for context, begin in zip(column, [0, *ends], strict=False)]
    keys, values = _texts([name for name, _ in pairs]), _texts([value for _, value in pairs])
    return pa.MapArray.from_arrays(pa.array([*begins, len(pairs)], pa.int32()), keys, values)


#: Text column -> the function that builds its array.
_TEXT_BUILDERS: Final[dict[str, Callable[[Any], Array]]] = {
    **dict.fromkeys(("state", "utube", "reason", "key", "why"), _texts), "context": _contexts,
}  # fmt: skip


def _combine(batches: list[RecordBatch]) -> list[RecordBatch]:
    if len(batches) <= 1:
        return batches
    joined: list[RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _numbers(values: array[int], kind: DataType) -> Array:
    """Build an array on the buffer of `values`, without a loop over the numbers."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _decode_moments(heads: Array) -> Array:
    """Decode the creation times of tasks, which are stored as 8 bytes each."""
    moments = array("q", heads.buffers()[2].to_pybytes())
    if sys.byteorder == "little":
        moments.byteswap()
    return _numbers(moments, _MOMENT)


def _unquote(stored: Array) -> Array:
    """Return JSON text; strings lose their quotes."""
    if pc.all(pc.starts_with(stored, '"')).as_py() and b"\\" not in stored.buffers()[2].to_pybytes():
        return pc.binary_slice(stored, 1, -1)
    return pa.array([_unquote_one(raw) for raw in stored.to_pylist()], pa.binary())


def _unquote_one(raw: bytes) -> bytes:
    """Return JSON text; a string loses its quotes."""
    if raw[:1] != b'"':
        return raw
    if b"\\" not in raw:
        return raw[1:-1]
    try:
        return json.loads(raw).encode("utf-8", "replace")  # type: ignore[no-any-return]
    except ValueError:
        return raw


def _identity(stored: Array) -> Array:
    return stored


def _unpack(stored: Array) -> Array:
    """Convert MessagePack to JSON text, strings to plain text, and undecodable bytes to null."""
    import msgspec

    def text(raw: bytes) -> bytes | None:
        try:
            data: object = msgspec.msgpack.decode(raw)
            return data.encode("utf-8", "replace") if isinstance(data, str) else msgspec.json.encode(data)
        except (ValueError, TypeError, RecursionError):
            return None

    return pa.array([text(raw) for raw in stored.to_pylist()], pa.binary())


#: Codec and data format -> the function that decodes the column `data` to text.
_DECODERS: Final[dict[tuple[str, str], Callable[[Array], Array]]] = {
    ("json", "value"): _unquote,
    ("json", "json"): _identity,
    ("raw", "value"): _identity,
    ("msgpack", "value"): _unpack,
}
