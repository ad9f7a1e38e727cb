"""The lease renewer of a worker."""

from __future__ import annotations

from tubes.worker.in_flight import NEVER, InFlight
from tubes.worker.lease_renewer import LeaseRenewer


def test_task_is_claimed_once() -> None:
    renewer = LeaseRenewer(print, print, print)  # type: ignore[arg-type]
    in_flight = InFlight.__new__(InFlight)
    in_flight.renews_at = in_flight.ends_at = NEVER
    renewer.add(in_flight)
    assert renewer.holds(in_flight)
    assert [renewer.claim(in_flight) for _ in range(2)] == [True, False]
