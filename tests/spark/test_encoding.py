"""Encoding of data columns as the bytes that a tube stores."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tubes import CodecError
from tubes.spark import encoding
from tubes.spark.address import Address
from tubes.spark.arrow import pa
from tubes.spark.settings import Settings

UTC = datetime.UTC
BERLIN = ZoneInfo("Europe/Berlin")
#: Name -> an Arrow type, and pairs of a value and its JSON form.
KNOWN: dict[str, tuple[Any, list[tuple[Any, Any]]]] = {
    "text": (pa.string(), [("ü\n\"\\\x00\u2028", "ü\n\"\\\x00\u2028"), ("", ""), (None, None)]),
    "numbers": (pa.int64(), [(2**62, 2**62), (-1, -1), (None, None)]),
    "floats": (pa.float64(), [(1.0, 1.0), (0.1, 0.1), (1e300, 1e300), (-0.0, -0.0), (None, None)]),
    "days": (pa.date32(), [(datetime.date(2026, 1, 2), "2026-01-02"), (None, None)]),
    "noons": (pa.time64("us"), [(datetime.time(12), "12:00:00"), (None, None)]),
    "prices": (pa.decimal128(5, 2), [(Decimal("1.50"), "1.50"), (None, None)]),
    "spans": (pa.duration("us"), [(datetime.timedelta(milliseconds=90), 0.09), (None, None)]),
    "moments": (
        pa.timestamp("us", "UTC"),
        [
            (datetime.datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00+00:00"),
            (datetime.datetime(2026, 1, 2, 3, 4, 5, 60, tzinfo=UTC), "2026-01-02T03:04:05.000060+00:00"),
            (None, None),
        ],
    ),
    "moments elsewhere": (
        pa.timestamp("us", "Europe/Berlin"),
        [
            (datetime.datetime(2026, 1, 2, 3, tzinfo=BERLIN), "2026-01-02T03:00:00+01:00"),
            (datetime.datetime(2026, 7, 2, 3, 0, 0, 100_000, tzinfo=BERLIN), "2026-07-02T03:00:00.100000+02:00"),
        ],
    ),
    "moments nowhere": (
        pa.timestamp("us"),
        [(datetime.datetime(2026, 1, 2), "2026-01-02T00:00:00"), (None, None)],
    ),
    "maps": (pa.map_(pa.string(), pa.int64()), [([("a", 1), ("b", None)], {"a": 1, "b": None}), ([], {})]),
    "maps of days": (pa.map_(pa.date32(), pa.int64()), [([(datetime.date(2026, 1, 2), 1)], {"2026-01-02": 1})]),
}  # fmt: skip


def encode_values(values: list[Any], kind: Any, skipped: int = 0, **options: Any) -> list[Any]:
    settings = Settings(address=Address("redis://localhost"), tube="t", **options)
    raws = encoding.encoder(settings)(pa.array([*values[:1] * skipped, *values], kind).slice(skipped))
    return [json.loads(raw) for raw in raws]


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("no_msgspec", [False, True], ids=["msgspec", "without msgspec"])
def test_values_are_encoded_as_json_at_any_depth(name: str, no_msgspec: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if no_msgspec:
        monkeypatch.setattr(encoding, "msgspec", None)
    kind, pairs = KNOWN[name]
    values, expected = [value for value, _ in pairs], [known for _, known in pairs]
    assert encode_values(values, kind) == expected
    assert encode_values(values, kind, skipped=2) == expected
    lists = [values, None, [], values[:1]]
    assert encode_values(lists, pa.list_(kind), skipped=1) == [expected, None, [], expected[:1]]
    inside = pa.struct([("a", kind), ("in", pa.struct([("b", pa.list_(kind))]))])
    rows = [{"a": value, "in": None if value is None else {"b": [value, None]}} for value in values]
    known = [{"a": item, "in": None if item is None else {"b": [item, None]}} for item in expected]
    assert encode_values([None, *rows], inside, skipped=3) == [None, *known]


#: First and last time that ISO 8601 text can express, in microseconds since 1970.
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
BAD_TIMES: list[tuple[Any, int]] = [
    (pa.timestamp("us", "UTC"), 1_700_000_000_000_000_000),
    (pa.timestamp("us", "UTC"), LAST + 1),
    (pa.timestamp("us", "UTC"), FIRST - 1),
    (pa.timestamp("us"), 2**63 - 1),
    (pa.timestamp("us"), -(2**63) + 1),
    (pa.timestamp("us", "Asia/Kolkata"), LAST),
    (pa.timestamp("us", "America/New_York"), LAST + 1),
    (pa.timestamp("us", "America/New_York"), FIRST),
    (pa.date32(), 2**30),
    (pa.date32(), 2_932_897),
    (pa.date32(), -719_163),
]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize(("kind", "number"), BAD_TIMES)
def test_times_outside_iso_range_are_refused_at_any_depth(kind: Any, number: int, codec: str) -> None:
    raw = pa.int32() if kind == pa.date32() else pa.int64()
    column = pa.array([0, None, number], raw).cast(kind)
    by_row = pa.MapArray.from_arrays([0, 3], pa.array(["a", "b", "c"]), column)
    encode = encoding.encoder(Settings(address=Address("redis://localhost"), tube="t", codec=codec))
    inside = pa.StructArray.from_arrays([column], ["a"])
    for wrong in (column, inside, pa.ListArray.from_arrays([0, 3], column), by_row):
        with pytest.raises(CodecError, match="in a year from 1 to 9999"):
            encode(wrong)
    assert len(encode(column.slice(0, 2))) == 2


def test_first_and_last_iso_times_are_encoded() -> None:
    moments = pa.array([FIRST, LAST], pa.int64()).cast(pa.timestamp("us", "UTC"))
    days = pa.array([-719_162, 2_932_896], pa.int32()).cast(pa.date32())
    assert encode_values([*moments, None], moments.type) == [
        "0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59.999999+00:00", None,
    ]  # fmt: skip
    assert encode_values([*days, None], days.type) == ["0001-01-01", "9999-12-31", None]


def deep(levels: int) -> Any:
    column = pa.array([datetime.date(2026, 1, 2)])
    for _ in range(levels):
        column = pa.StructArray.from_arrays([column], ["a"])
    return column


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("column", "why"),
    [
        (pa.MapArray.from_arrays([0, 2], pa.array(["a", "a"]), pa.array([1, 2])), "a map has the same key twice"),
        (pa.MapArray.from_arrays([0, 2], pa.array([1, 1]), pa.array([1.5, 2.5])), "a map has the same key twice"),
        (deep(2000), "it is nested too deeply"),
    ],
    ids=["map", "map by row", "deep"],
)
def test_duplicate_map_keys_and_deep_nesting_are_refused(column: Any, why: str, codec: str) -> None:
    encode = encoding.encoder(Settings(address=Address("redis://localhost"), tube="t", codec=codec))
    with pytest.raises(CodecError, match=why):
        encode(column)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_outside_json_are_refused_at_any_depth(number: float) -> None:
    inside, in_maps = pa.struct([("a", pa.list_(pa.float64()))]), pa.map_(pa.string(), pa.float64())
    for kind, value in ((pa.float64(), number), (inside, {"a": [1.0, number]}), (in_maps, [("a", number)])):
        with pytest.raises(CodecError):
            encode_values([value], kind)


@pytest.mark.parametrize("no_msgspec", [False, True], ids=["msgspec", "without msgspec"])
def test_json_text_is_checked_and_stored_unchanged(no_msgspec: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if no_msgspec:
        monkeypatch.setattr(encoding, "_is_json", None)
    encode = encoding.encoder(Settings(address=Address("redis://localhost"), tube="t", data_format="json"))
    assert encode(pa.array([' {"a": 1e999} ', '"\\ud800"', None])) == [b'{"a": 1e999}', b'"\\ud800"', b"null"]
    for text in ("", "nul", '{"a":NaN}', "[1] x"):
        with pytest.raises(CodecError):
            encode(pa.array([text]))
