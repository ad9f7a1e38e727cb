"""`retry_after` reads each valid header, and ignores the others."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tubes.worker import retry_after
from tubes.worker.delays import limit_delay

NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York"])
def _zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_zone")
@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        (" 007 ", 7),
        ("3601", 3600),
        ("9999999999", 3600),
        ("9" * 5000, 3600),
        ("Sun, 06 Nov 1994 08:51:37 GMT", 120),
        ("Sunday, 06-Nov-94 08:51:37 GMT", 120),
        ("Sun Nov  6 08:51:37 1994", 120),
        ("Sun, 06 Nov 1994 08:51:37 -0000", 120),
        ("Sun, 06 Nov 1994 08:51:60 GMT", 142),
        ("Sun, 06 Nov 1994 09:51:37 +0100", 120),
        ("Sun, 06 Nov 1994 08:49:36 GMT", 0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("Fri Dec 31 23:59:59 9999", 3600),
        ("Fri, 31 Dec 9999 23:59:59 -2359", 3600),
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("+5", None),
        ("1.5", None),
        ("nan", None),
        ("120, 60", None),
        ("\u0661\u0662", None),
        ("Sun, 06 Nov 1994", None),
        ("Sun, 32 Nov 1994 08:51:37 GMT", None),
        ("Sun, 06 Nov 99999 08:51:37 GMT", None),
        ("Sun, 06 Nov 1994 08:51:37 +99999999999999999999", None),
    ],
)
def test_header_is_read_in_every_form_and_zone(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, now=NOW) == seconds


def test_bytes_are_read_as_text_and_numbers_are_refused() -> None:
    assert [retry_after(header) for header in (b"120", b"\xb2", b"")] == [120, None, None]
    for number in (120, 0, 1.5):
        with pytest.raises(TypeError, match=f"is a str, bytes or None, not {number}"):
            retry_after(number)  # type: ignore[arg-type]


def test_date_is_compared_with_the_current_time() -> None:
    date = time.asctime(time.gmtime(time.time() + 1000))
    assert retry_after(date) == pytest.approx(999, abs=2)


def test_longest_delay_can_be_chosen() -> None:
    assert retry_after("999", most=60) == 60
    assert [limit_delay(seconds, 60) for seconds in (-1, float("nan"), 7, float("inf"))] == [0, 0, 7, 60]
