"""The lease renewer of a worker."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import tubes
from tubes.worker.in_flight import NEVER, InFlight
from tubes.worker.lease_renewer import LeaseRenewer


def test_task_is_claimed_once() -> None:
    renewer = LeaseRenewer(print, print, print)  # type: ignore[arg-type]
    in_flight = InFlight.__new__(InFlight)
    in_flight.renews_at = in_flight.ends_at = NEVER
    renewer.add(in_flight)
    assert renewer.holds(in_flight)
    assert [renewer.claim(in_flight) for _ in range(2)] == [True, False]


def test_task_that_cannot_be_renewed_is_reported_as_lost() -> None:
    lost: SimpleQueue[InFlight] = SimpleQueue()
    thread_tube: Any = lambda tube: tube  # noqa: E731
    renewer = LeaseRenewer(thread_tube, lost.put, print)
    with tubes.connect() as queue:
        tube = queue.create_tube("mail", "fifottl", ttr=60)
        tube.put_many([1, 2])
        entries: list[Any] = []
        for task in tube.take_many(2):
            entry: Any = InFlight.__new__(InFlight)
            entry.task, entry.span, entry.renews_at, entry.ends_at = task, 60.0, 0.0, NEVER
            entries.append(entry)
        tube.delete(entries[1].task.id)
        for entry in entries:
            renewer.add(entry)
        assert lost.get(timeout=20) is entries[1]
        assert [renewer.holds(entry) for entry in entries] == [True, False]
        assert lost.empty()
        renewer.close()
