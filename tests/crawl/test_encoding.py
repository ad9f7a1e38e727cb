"""Values of requests survive an encoding as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
import scrapy

from tubes.crawl.encoding import decode, encode


@dataclass
class Price:
    amount: Decimal
    tags: set[str]


class Page(scrapy.Item):
    price = scrapy.Field()


class Outer:
    class Inner(scrapy.Item):
        """Not found by its name, which has two parts."""


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"text": ["ä", 1, 1.5, True]},
        {"$": "bytes", "v": 1},
        {1: "int", None: "none", (1, b"\xff"): {"nested": {2}}},
        [b"\x00\xff", (1, (2,)), {1, 2}, frozenset({"x"})],
        [date(2026, 1, 2), datetime(2026, 1, 2, 3, tzinfo=UTC), Decimal("1.10"), float("-inf")],
        [time(3, 4), timedelta(seconds=1.5), UUID(int=7), bytearray(b"\xff")],
        timedelta(days=100_000, microseconds=1),
        Page(price=Price(Decimal("0.1"), {"new"})),
    ],
)
def test_values_survive_json(value: Any) -> None:
    copy = decode(json.loads(json.dumps(encode(value, "meta"), allow_nan=False)))
    assert copy == value
    assert type(copy) is type(value)


@pytest.mark.parametrize("zone", [None, UTC, timezone(timedelta(hours=-3)), ZoneInfo("Europe/Vienna")])
@pytest.mark.parametrize("fold", [0, 1])
def test_times_keep_zone_and_fold(zone: tzinfo | None, fold: int) -> None:
    for value in (datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=fold), time(2, 30, tzinfo=zone, fold=fold)):
        copy = decode(json.loads(json.dumps(encode(value, "meta"))))
        assert (copy.isoformat(), copy.fold, copy.tzinfo) == (value.isoformat(), fold, zone)
        assert copy.utcoffset() == value.utcoffset()


class Size(IntEnum):
    LARGE = 3


class Kind(StrEnum):
    SHOP = "shop"


def test_subclasses_of_strings_and_numbers_become_plain() -> None:
    copy = decode(json.loads(json.dumps(encode({"kind": Kind.SHOP, "size": Size.LARGE}, "meta"))))
    assert copy == {"kind": "shop", "size": 3}
    assert [type(value) for value in copy.values()] == [str, int]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, object()]}, r"meta\['a'\]\[1\] is a builtins.object, which cannot be stored"),
        ({object: 1}, "meta: key <class 'object'> is a builtins.type"),
        (Page(price=len), r"meta\['price'\] is a builtins.builtin_function_or_method"),
        ([Outer.Inner()], r"meta\[0\] is a tests.crawl.test_encoding.Outer.Inner, which cannot be stored"),
    ],
)
def test_error_names_path_of_value_that_cannot_be_stored(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode(value, "meta")


def test_only_items_are_created_by_name() -> None:
    with pytest.raises(ValueError, match="is not an item class"):
        decode({"$": "subprocess.Popen", "v": {"args": ["true"]}})
