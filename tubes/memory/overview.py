"""A tube of a store at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tubes.drivers.options import SECOND
from tubes.values.overview import Overview
from tubes.values.statistics import Statistics, until

if TYPE_CHECKING:
    from tubes.memory.shared_tube import SharedTube


def count(shared: SharedTube) -> Statistics:
    """Count. Under the lock."""
    engine = shared.engine
    waiting = len(shared.takers) + len(shared.putters)
    return Statistics(engine.counts(), engine.calls(), waiting, until(engine.pause.until))


def overview(shared: SharedTube, now: int, *, ages: bool) -> Overview:
    """The tube now, after what was due has happened. Under the lock."""
    engine = shared.engine
    lanes = resting = 0
    if shared.driver.lane is not None:
        lanes, resting = engine.lanes.count()
    oldest = engine.oldest_ready() if ages else None
    return Overview(
        shared.driver.name,
        count(shared),
        now / SECOND,
        sum(shared in session.holds for session in shared.store.sessions.values()),
        lanes,
        resting,
        0.0,
        None if oldest is None else max(now - oldest.created, 0) / SECOND,
    )
