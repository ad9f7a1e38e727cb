"""The delays between retries, and the logs of an outage."""

from __future__ import annotations

import logging

import pytest

from tubes.backend.retry import Outage, RetryPolicy
from tubes.errors import ConnectionLost


def test_delays_grow_up_to_the_longest() -> None:
    policy = RetryPolicy.from_growth(0.1, 1.0, growth=3)
    assert [policy.delay(failures) for failures in (1, 2, 3, 4, 1 << 40)] == pytest.approx([0.1, 0.3, 0.9, 1.0, 1.0])


def test_jitter_changes_a_delay_by_a_fraction() -> None:
    policy = RetryPolicy((10.0,), jitter=0.5)
    delays = {policy.delay() for _ in range(100)}
    assert len(delays) > 1
    assert all(5 <= delay <= 15 for delay in delays)


def test_outage_is_logged_once_and_its_delays_grow(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(longest=0.5)
    assert [outage.next_delay("it fails", ValueError("no")) for _ in range(4)] == [0.2, 0.4, 0.5, 0.5]
    assert outage.next_delay("it fails", ConnectionLost(url="redis://here", why="refused")) == 0.2
    outage.end()
    with caplog.at_level(logging.WARNING, "tubes"):
        assert outage.next_delay("it fails", ValueError("no")) == 0.2
    assert [record.getMessage() for record in caplog.records] == ["it fails: no"] * 2
