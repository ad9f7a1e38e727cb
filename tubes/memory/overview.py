"""A tube of a store at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tubes.drivers.options import SECOND
from tubes.values.overview import Overview
from tubes.values.statistics import Statistics, until

if TYPE_CHECKING:
    from tubes.drivers.engine import Engine


def count(engine: Engine, waiting: int) -> Statistics:
    """The statistics of a tube on which so many callers wait. Under the lock."""
    return Statistics(engine.counts(), engine.calls(), waiting, until(engine.pause.until))


def overview(engine: Engine, waiting: int, sessions: int, now: int, *, ages: bool) -> Overview:
    """The tube now, after what was due has happened. Under the lock."""
    lanes = resting = 0
    if engine.driver.lane is not None:
        lanes, resting = engine.lanes.count()
    oldest = engine.oldest_ready() if ages else None
    age = None if oldest is None else max(now - oldest.created, 0) / SECOND
    return Overview(engine.driver.name, count(engine, waiting), now / SECOND, sessions, lanes, resting, 0.0, age)
