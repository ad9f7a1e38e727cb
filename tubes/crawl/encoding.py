"""JSON for the values that crawlers keep in requests: bytes, tuples, sets, dates, items, dictionaries with any keys.

A value of another type becomes `{"$": type, "v": ...}`. Pickles are not used: a program that can write to the queue
must not be able to run code in the crawlers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, Final, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from itemadapter import ItemAdapter
from scrapy.utils.misc import load_object

_TAG: Final = "$"


def _with_zone(value: datetime | time) -> list[object]:
    """Return a time as text, its fold, and the name of its `ZoneInfo`; other zones become the offset in the text."""
    zone = value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) else None
    return [(value.replace(tzinfo=None) if zone else value).isoformat(), value.fold, zone]


def _read_zone(kind: Any, text: str, fold: int, zone: str | None) -> Any:
    return kind.fromisoformat(text).replace(fold=fold, **({"tzinfo": ZoneInfo(zone)} if zone else {}))


# Name, function to JSON and function from JSON, by exact type.
_TYPES: Final[dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]]] = {
    bytes: ("bytes", lambda value: value.decode("latin-1"), lambda text: text.encode("latin-1")),
    bytearray: ("bytearray", lambda value: value.decode("latin-1"), lambda text: bytearray(text, "latin-1")),
    datetime: ("datetime", _with_zone, lambda stored: _read_zone(datetime, *stored)),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", _with_zone, lambda stored: _read_zone(time, *stored)),
    timedelta: ("timedelta", lambda value: [value.days, value.seconds, value.microseconds], lambda v: timedelta(*v)),
    UUID: ("uuid", str, UUID),
    Decimal: ("decimal", str, Decimal),
    float: ("float", repr, float),
}
_SEQUENCES: Final[dict[type, str]] = {tuple: "tuple", set: "set", frozenset: "frozenset"}


def _sequence(kind: Any) -> Callable[[Any], Any]:
    return lambda values: kind(map(decode, values))


_DECODERS: Final[dict[str, Callable[[Any], object]]] = {
    **{name: from_json for name, _, from_json in _TYPES.values()},
    **{name: _sequence(kind) for kind, name in _SEQUENCES.items()},
    "dict": lambda pairs: {decode(key): decode(value) for key, value in pairs},
}


def encode(value: Any, path: str) -> object:
    """Return a value as JSON data. Raises `ValueError` with the path of the part that cannot be stored."""
    members: Any = value
    kind = cast("type[object]", type(value))
    if value is None or isinstance(value, bool) or (kind is float and isfinite(value)):
        return value
    if isinstance(value, str):  # The subclasses of lxml and of StrEnum become plain strings.
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if kind is list:
        return [encode(part, f"{path}[{place}]") for place, part in enumerate(value)]
    if isinstance(value, dict):
        parts = {key: encode(part, f"{path}[{key!r}]") for key, part in members.items()}
        if _TAG not in parts and all(type(key) is str for key in parts):
            return parts
        return {_TAG: "dict", "v": [[encode(key, f"{path}: key {key!r}"), part] for key, part in parts.items()]}
    if kind in _TYPES:
        name, to_json, _ = _TYPES[kind]
        return {_TAG: name, "v": to_json(value)}
    if kind in _SEQUENCES:
        return {_TAG: _SEQUENCES[kind], "v": [encode(part, path) for part in value]}
    name = f"{kind.__module__}.{kind.__qualname__}"
    if ItemAdapter.is_item(value):
        item = {_TAG: name, "v": encode(dict(ItemAdapter(value)), path)}
        with suppress(Exception):  # The class must be found by its name, and accept its fields.
            decode(item)
            return item
    raise ValueError(f"{path} is a {name}, which cannot be stored")


def decode(value: object) -> Any:
    """Return the original value of encoded data."""
    members: Any = value
    if isinstance(value, list):
        return [decode(part) for part in members]
    if not isinstance(value, Mapping):
        return value
    if _TAG not in members:
        return {key: decode(part) for key, part in members.items()}
    name = members[_TAG]
    if name in _DECODERS:
        return _DECODERS[name](members["v"])
    kind: Any = load_object(name)
    if not ItemAdapter.is_item_class(kind):
        raise ValueError(f"{name} is not an item class")
    return kind(**decode(members["v"]))
