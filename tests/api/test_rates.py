"""Rates of tubes in one process: all threads together keep them."""

from __future__ import annotations

from uuid import uuid4

import pytest

import tubes
from tests.support import starts
from tubes.drivers.options import interval_of_rate


def test_threads_together_keep_the_rate() -> None:
    url = f"memory://{uuid4().hex[:20]}"
    with tubes.connect(url) as queue:
        queue.create_tube("t", "fifottl", ttr=starts.TTR, rate=100, burst=5).put_many(range(60))
        found = starts.take_all(url, "t", 6)
        assert len(found) == 60
        starts.check_rate(found, rate=100, burst=5)


@pytest.mark.parametrize("interval", [1, 2, 3, 7, 999_999, 8_571_429, 86_400_000_000, 365 * 86_400_000_000])
def test_rate_of_an_interval_has_that_interval(interval: int) -> None:
    assert interval_of_rate("rate", 1_000_000 / interval) == interval


@pytest.mark.parametrize(
    ("rate", "interval"), [("500/min", 120_000), ("3/s", 333_334), (300_000, 4), ("0.5/h", 7_200_000_000)]
)
def test_rate_is_rounded_down(rate: float | str, interval: int) -> None:
    assert interval_of_rate("rate", rate) == interval
