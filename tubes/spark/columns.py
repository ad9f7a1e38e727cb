"""Tasks as columns: what the server has stored, as Arrow record batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from tubes.errors import InvalidOption
from tubes.redis.records import Part, Same
from tubes.spark.arrow import Array, DataType, RecordBatch, pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tubes.spark.settings import Settings

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
}


def schema_of(codec: str) -> str:
    """The schema, as Spark's DDL."""
    types = {name: kind for name, (kind, _) in _COLUMNS.items()}
    if codec == "raw":
        types["data"] = "binary"
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


class Columns:
    """Makes record batches with the columns that are asked for."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self.names: Final = [field.name for field in schema.fields]
        types = dict(part.split(" ") for part in schema_of(settings.codec).split(", "))
        for asked in schema.fields:
            kind = asked.dataType.simpleString()
            if types.get(asked.name) != kind:
                rule = f"must be among {', '.join(f'{name} {known}' for name, known in types.items())}"
                raise InvalidOption(option="schema", value=f"{asked.name} {kind}", rule=rule)
        self._codec: Final = settings.codec
        self._texts: Final = _TEXTS[settings.codec, settings.data_format]
        types_of = {name: kind for name, (_, kind) in _COLUMNS.items()}
        if settings.codec == "raw":
            types_of["data"] = pa.binary()
        self.schema: Final = pa.schema([(name, types_of[name]) for name in self.names])

    def batch(self, part: Part) -> RecordBatch:
        """These tasks."""
        arrays: list[Array] = []
        for name, kind in zip(self.names, self.schema.types, strict=True):
            column = part.columns[name]
            if name == "data":
                arrays.append(self._data(part.values(name), kind))
            elif isinstance(column, Same):
                arrays.append(pa.repeat(pa.scalar(column.value, kind), part.size))
            elif kind == _MOMENT:
                arrays.append(pa.array(column, pa.int64()).cast(kind))
            else:
                arrays.append(pa.array(column, kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _data(self, raws: Sequence[bytes], kind: DataType) -> Array:
        if kind == pa.binary():
            return pa.array(raws, kind)
        texts = self._texts(raws)
        try:
            return pa.array(texts, pa.binary()).cast(kind)
        except pa.ArrowInvalid:  # Bytes that are no text: nothing that a query should end for.
            return pa.array([text.decode("utf-8", "replace") for text in texts], kind)


def _values(raws: Sequence[bytes]) -> Sequence[bytes]:
    """JSON, but strings without their quotes."""
    if {raw[:1] for raw in raws} == {b'"'} and b"\\" not in b"".join(raws):
        return [raw[1:-1] for raw in raws]
    return [_value(raw) for raw in raws]


def _value(raw: bytes) -> bytes:
    """JSON, but a string without its quotes."""
    if raw[:1] != b'"':
        return raw
    if b"\\" not in raw:
        return raw[1:-1]
    try:
        return json.loads(raw).encode("utf-8", "replace")  # type: ignore[no-any-return]
    except ValueError:
        return raw


def _same(raws: Sequence[bytes]) -> Sequence[bytes]:
    return raws


def _unpacked(raws: Sequence[bytes]) -> Sequence[bytes]:
    """MessagePack as JSON, but strings as they are."""
    import msgspec

    def text(raw: bytes) -> bytes:
        try:
            data: Any = msgspec.msgpack.decode(raw)
        except msgspec.DecodeError:
            return raw
        return data.encode("utf-8", "replace") if isinstance(data, str) else msgspec.json.encode(data)

    return [text(raw) for raw in raws]


#: What `data` shows, by codec and format.
_TEXTS: Final[dict[tuple[str, str], Callable[[Sequence[bytes]], Sequence[bytes]]]] = {
    ("json", "value"): _values,
    ("json", "json"): _same,
    ("raw", "value"): _same,
    ("msgpack", "value"): _unpacked,
}
