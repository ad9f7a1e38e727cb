"""Encode Arrow columns as the bytes that a tube stores."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tubes.errors import CodecError
from tubes.spark.arrow import Array, DataType, pa, pc
from tubes.values.codecs import encode
from tubes.values.codecs import find as find_codec

try:
    import msgspec as _msgspec
except ImportError:  # The extra `spark` installs it, `--py-files` may not. Without it JSON takes ten times as long.
    _msgspec = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from tubes.spark.settings import Settings
    from tubes.values.codecs import Codec

msgspec: Final[Any] = _msgspec


#: First and last day that ISO 8601 text can express (years 1 to 9999), in days since 1970.
_DAYS: Final = tuple((day - datetime.date(1970, 1, 1)).days for day in (datetime.date.min, datetime.date.max))
_PER_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_BAD_YEAR: Final = "must be in a year from 1 to 9999, the range of ISO 8601 text"
#: Explanations for exceptions that PyArrow and Python raise here.
_REASONS: Final[dict[type[Exception], str]] = {
    LookupError: "a map has the same key twice",
    OverflowError: f"a date or time {_BAD_YEAR}",
    RecursionError: "it is nested too deeply",
}


def encoder(settings: Settings) -> Callable[[Array], list[bytes]]:
    """Return the function that encodes a data column according to the options. It raises `CodecError`."""
    encode_column = _encoder(settings)

    def encode_checked(column: Array) -> list[bytes]:
        try:
            return encode_column(column)
        except CodecError:
            raise
        except (ValueError, LookupError, OverflowError, RecursionError) as error:
            reason = next((text for kind, text in _REASONS.items() if isinstance(error, kind)), error)
            raise CodecError(codec=settings.codec, action="encode", value=column.type, why=reason) from error

    return encode_checked


def find_bad_value(
    encode: Callable[[Array], list[bytes]], parts: list[tuple[str, Array]]
) -> tuple[str, CodecError | None]:
    """Return the path and the error of the innermost value that cannot be encoded, in columns of one row."""
    path, error = "", None
    while parts:
        parts, candidates = [], parts
        for name, part in candidates:
            try:
                encode(part)
            except CodecError as found:
                path, error = path + name, found
                # In a value that is nested too deeply no single part is bad.
                parts = [] if isinstance(found.__cause__, RecursionError) else _parts_of(part)
                break
    return path, error


def _parts_of(column: Array) -> list[tuple[str, Array]]:
    """Return the fields, items or values of a column of one row, with their part of the path."""
    types = pa.types
    if types.is_struct(column.type):
        return [(f".{field.name}", part) for field, part in zip(column.type, column.flatten(), strict=True)]
    if types.is_map(column.type):
        keys, values = column[0].values.flatten()
        names = keys.to_pylist() if _is_plain(keys.type) else range(len(keys))
        return [(f"[{name!r}]", values.slice(number, 1)) for number, name in enumerate(names)]
    if types.is_list(column.type):
        items = column.flatten()
        return [(f"[{number}]", items.slice(number, 1)) for number in range(len(items))]
    return []


def _encoder(settings: Settings) -> Callable[[Array], list[bytes]]:
    if settings.codec == "raw":
        return _encode_raw
    if settings.codec == "json" and settings.data_format == "json":
        return _encode_json_text
    codec = find_codec(settings.codec)
    is_json = settings.codec == "json"

    def encode_column(column: Array) -> list[bytes]:
        if _is_columnar(column.type):
            return _encode_rows(codec, _plain_column(column, finite=is_json), is_json=is_json)
        return [encode(codec, _plain(value)) for value in _values(column)]

    return encode_column


def _encode_rows(codec: Codec, column: Array, *, is_json: bool) -> list[bytes]:
    rows = _values(column)
    if not is_json or msgspec is None:
        return [encode(codec, row) for row in rows]
    raws: list[bytes] = msgspec.json.Encoder().encode_lines(rows).split(b"\n")
    raws.pop()
    return raws


def _values(column: Array) -> list[Any]:
    # With `maps_as_pydicts` PyArrow is ten times slower, even if the column contains no maps.
    maps: dict[str, str] = {"maps_as_pydicts": "strict"} if _has_maps(column.type) else {}
    values: list[Any] = column.to_pylist(**maps)
    return values


def _has_maps(kind: DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_maps(kind.field(number).type) for number in range(kind.num_fields))


def _is_columnar(kind: DataType) -> bool:
    """Return True if `_plain_column` can convert this type column by column; otherwise each value is converted."""
    types = pa.types
    if types.is_struct(kind):
        return all(_is_columnar(field.type) for field in kind)
    if types.is_list(kind):
        return _is_columnar(kind.value_type)
    if types.is_map(kind):
        return types.is_string(kind.key_type) and _is_plain(kind.item_type)
    return _is_plain(kind) or types.is_floating(kind) or types.is_binary(kind) or _converter(kind) is not None


def _is_plain(kind: DataType) -> bool:
    types = pa.types
    return any(is_of(kind) for is_of in (types.is_string, types.is_integer, types.is_boolean, types.is_null))


def _converter(kind: DataType) -> Callable[[Array], Array] | None:
    """Return the function that converts values of a type that JSON lacks to text or numbers."""
    types = pa.types
    if types.is_timestamp(kind):
        return _format_timestamps
    if types.is_duration(kind) and kind.unit == "us":
        return _to_seconds
    if types.is_date32(kind):
        return _format_dates
    return _to_text if types.is_decimal(kind) else None


def _plain_column(column: Array, *, finite: bool) -> Array:
    """Replace values that JSON lacks by text. With `finite`, raise `CodecError` for NaN and infinities."""
    kind = column.type
    if pa.types.is_struct(kind):
        fields = [_plain_column(field, finite=finite) for field in column.flatten()]
        if all(new.type == old.type for new, old in zip(fields, kind, strict=True)):
            return column
        return pa.StructArray.from_arrays(fields, [field.name for field in kind], mask=column.is_null())
    if pa.types.is_list(kind):
        items = _plain_column(column.flatten(), finite=finite)
        if items.type == kind.value_type:
            return column
        ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(column), 0))
        return pa.ListArray.from_arrays(
            pa.concat_arrays([pa.array([0], ends.type), ends]), items, mask=column.is_null()
        )
    if finite and pa.types.is_floating(kind):
        bad = column.filter(pc.invert(pc.is_finite(column)))
        if len(bad):
            raise CodecError(codec="json", action="encode", value=bad[0].as_py(), why="JSON has no such number")
    convert = _converter(kind)
    return column if convert is None else convert(column)


def _to_text(column: Array) -> Array:
    return column.cast(pa.string())


def _format_dates(column: Array) -> Array:
    _check_years(column, 1)
    return _to_text(column)


def _to_seconds(column: Array) -> Array:
    return pc.divide(column.cast(pa.int64()).cast(pa.float64()), 1e6)


def _format_timestamps(column: Array) -> Array:
    """Format timestamps in the time zone of their column, like `datetime.isoformat`."""
    kind = column.type
    universal = local = column.cast(pa.timestamp(kind.unit))
    _check_years(universal, _PER_DAY[kind.unit])
    if kind.tz not in (None, "UTC"):
        local = pc.local_timestamp(column)
        _check_years(local, _PER_DAY[kind.unit])
    texts = pc.replace_substring(local.cast(pa.string()), " ", "T")
    texts = pc.replace_substring_regex(texts, r"\.0+$", "")
    if kind.tz is None:
        return texts
    # A column has few distinct offsets, so format each of them once.
    offsets = pc.subtract(local, universal).dictionary_encode()
    zones = [_zone(offset) for offset in offsets.dictionary.cast(pa.duration("us")).to_pylist()]
    return pc.binary_join_element_wise(texts, pa.array(zones, pa.string()).take(offsets.indices), "")


def _check_years(column: Array, per_day: int) -> None:
    """Raise ValueError for years outside 1 to 9999: Arrow formats them differently, or not at all."""
    first, last = _DAYS
    ends = pc.min_max(column)
    for number in (ends["min"].value, ends["max"].value):
        if number is not None and not first * per_day <= number < (last + 1) * per_day:
            raise ValueError(f"{number} {_BAD_YEAR}")


def _zone(offset: datetime.timedelta) -> str:
    return datetime.datetime.min.replace(tzinfo=datetime.timezone(offset)).isoformat()[19:]


def _plain(value: Any) -> object:
    """Replace values that JSON lacks by text or numbers, recursively."""
    if value.__class__ is dict:
        return {_plain(name): _plain(item) for name, item in value.items()}
    if value.__class__ is list:
        return [_plain(item) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, decimal.Decimal) else value


def _encode_raw(column: Array) -> list[bytes]:
    if column.null_count:
        raise CodecError(codec="raw", action="encode", value=None, why="it takes only bytes")
    return [bytes(value) for value in _values(column)]


def _encode_json_text(column: Array) -> list[bytes]:
    return [b"null" if value is None else _validate(value) for value in _values(column)]


def _validate(value: str) -> bytes:
    """Return JSON text unchanged. Texts that msgspec rejects are checked by `json`, which accepts lone surrogates."""
    if _is_json is not None:
        try:
            _is_json(value)
        except (msgspec.DecodeError, RecursionError):
            pass
        else:
            return value.strip().encode()
    try:
        json.loads(value, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise CodecError(codec="json", action="encode", value=value, why=error) from None
    return value.strip().encode()


_is_json: Final[Any] = None if msgspec is None else msgspec.json.Decoder(msgspec.Raw).decode


def _reject_constant(word: str) -> object:
    raise ValueError(f"{word} is not JSON")
