"""The data of rows as bytes: from Arrow columns to what a tube stores."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tubes.errors import CodecError
from tubes.spark.arrow import Array, DataType, pa, pc
from tubes.values.codecs import encode

try:
    import msgspec as _msgspec
except ImportError:  # The extra `spark` has it; `--py-files` may not. Without it JSON takes ten times as long.
    _msgspec = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from tubes.spark.settings import Settings
    from tubes.values.codecs import Codec

msgspec: Final[Any] = _msgspec


#: The years that ISO 8601 text has, 1 to 9999, in days since 1970: the first day, and the last.
_DAYS: Final = tuple((day - datetime.date(1970, 1, 1)).days for day in (datetime.date.min, datetime.date.max))
_PER_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_NO_YEAR: Final = "is in no year from 1 to 9999, which ISO 8601 text has"
#: What the errors of PyArrow and Python mean here.
_WHY: Final[dict[type[Exception], str]] = {
    LookupError: "a map has the same key twice",
    OverflowError: f"a date or time {_NO_YEAR}",
    RecursionError: "it is nested too deeply",
}


def encoder(settings: Settings) -> Callable[[Array], list[bytes]]:
    """The function that encodes a column of data, as the options have it. It raises `CodecError`."""
    encode_column = _encoder(settings)

    def checked(column: Array) -> list[bytes]:
        try:
            return encode_column(column)
        except CodecError:
            raise
        except (ValueError, LookupError, OverflowError, RecursionError) as error:
            why = next((text for kind, text in _WHY.items() if isinstance(error, kind)), error)
            raise CodecError(codec=settings.codec, action="encode", value=column.type, why=why) from error

    return checked


def _encoder(settings: Settings) -> Callable[[Array], list[bytes]]:
    if settings.codec == "raw":
        return _raw
    if settings.codec == "json" and settings.data_format == "json":
        return _checked_json
    codec = settings.find_codec()
    is_json = settings.codec == "json"

    def encoded(column: Array) -> list[bytes]:
        if _is_known(column.type):
            return _encoded(codec, _plain_column(column, finite=is_json), is_json=is_json)
        return [encode(codec, _plain(value)) for value in _values(column)]

    return encoded


def _encoded(codec: Codec, column: Array, *, is_json: bool) -> list[bytes]:
    rows = _values(column)
    if not is_json or msgspec is None:
        return [encode(codec, row) for row in rows]
    raws: list[bytes] = msgspec.json.Encoder().encode_lines(rows).split(b"\n")
    raws.pop()
    return raws


def _values(column: Array) -> list[Any]:
    # Told what to do with maps, PyArrow is ten times as slow, whether there are any or not.
    maps: dict[str, str] = {"maps_as_pydicts": "strict"} if _has_maps(column.type) else {}
    values: list[Any] = column.to_pylist(**maps)
    return values


def _has_maps(kind: DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_maps(kind.field(number).type) for number in range(kind.num_fields))


def _is_known(kind: DataType) -> bool:
    """Whether `_plain_column` can convert this type, column by column; else each value is looked at."""
    types = pa.types
    if types.is_struct(kind):
        return all(_is_known(field.type) for field in kind)
    if types.is_list(kind):
        return _is_known(kind.value_type)
    if types.is_map(kind):
        return types.is_string(kind.key_type) and _is_plain(kind.item_type)
    return _is_plain(kind) or types.is_floating(kind) or types.is_binary(kind) or _converter(kind) is not None


def _is_plain(kind: DataType) -> bool:
    types = pa.types
    return any(is_of(kind) for is_of in (types.is_string, types.is_integer, types.is_boolean, types.is_null))


def _converter(kind: DataType) -> Callable[[Array], Array] | None:
    """What makes text or numbers of values that JSON does not have."""
    types = pa.types
    if types.is_timestamp(kind):
        return _iso
    if types.is_duration(kind) and kind.unit == "us":
        return _seconds
    if types.is_date32(kind):
        return _day
    return _text if types.is_decimal(kind) else None


def _plain_column(column: Array, *, finite: bool) -> Array:
    """The column, with values that JSON does not have as text; `finite`: NaN and infinities are refused."""
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
        wrong = column.filter(pc.invert(pc.is_finite(column)))
        if len(wrong):
            raise CodecError(codec="json", action="encode", value=wrong[0].as_py(), why="JSON has no such number")
    convert = _converter(kind)
    return column if convert is None else convert(column)


def _text(column: Array) -> Array:
    return column.cast(pa.string())


def _day(column: Array) -> Array:
    _check_years(column, 1)
    return _text(column)


def _seconds(column: Array) -> Array:
    return pc.divide(column.cast(pa.int64()).cast(pa.float64()), 1e6)


def _iso(column: Array) -> Array:
    """Moments in the time zone of their column, as `isoformat` has them."""
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
    # There are one or two of them: the dictionary is short.
    offsets = pc.subtract(local, universal).dictionary_encode()
    zones = [_zone(offset) for offset in offsets.dictionary.cast(pa.duration("us")).to_pylist()]
    return pc.binary_join_element_wise(texts, pa.array(zones, pa.string()).take(offsets.indices), "")


def _check_years(column: Array, per_day: int) -> None:
    """Arrow prints other years in other ways, and some not at all."""
    first, last = _DAYS
    ends = pc.min_max(column)
    for number in (ends["min"].value, ends["max"].value):
        if number is not None and not first * per_day <= number < (last + 1) * per_day:
            raise ValueError(f"{number} {_NO_YEAR}")


def _zone(offset: datetime.timedelta) -> str:
    return datetime.datetime.min.replace(tzinfo=datetime.timezone(offset)).isoformat()[19:]


def _plain(value: Any) -> object:
    """The data, with values that JSON does not have as text."""
    if value.__class__ is dict:
        return {_plain(name): _plain(some) for name, some in value.items()}
    if value.__class__ is list:
        return [_plain(some) for some in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, decimal.Decimal) else value


def _raw(column: Array) -> list[bytes]:
    if column.null_count:
        raise CodecError(codec="raw", action="encode", value=None, why="it takes only bytes")
    return [bytes(value) for value in _values(column)]


def _checked_json(column: Array) -> list[bytes]:
    return [b"null" if value is None else _checked(value) for value in _values(column)]


def _checked(value: str) -> bytes:
    """JSON text as it is. What msgspec refuses is looked at again: it refuses lone surrogates, too."""
    if _is_json is not None:
        try:
            _is_json(value)
        except (msgspec.DecodeError, RecursionError):
            pass
        else:
            return value.strip().encode()
    try:
        json.loads(value, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise CodecError(codec="json", action="encode", value=value, why=error) from None
    return value.strip().encode()


_is_json: Final[Any] = None if msgspec is None else msgspec.json.Decoder(msgspec.Raw).decode


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is not JSON")
