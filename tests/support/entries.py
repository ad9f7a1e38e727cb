"""Tasks and lanes like those of the engine, without an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tubes.drivers.entry import FullEntry
from tubes.drivers.lanes import Lane, Lanes
from tubes.drivers.rate_limits import RateLimits
from tubes.drivers.ready import Ready
from tubes.drivers.round_robin import RoundRobin
from tubes.drivers.timers import NEVER, Timers


def entry(id: int, pri: int = 0, *, due: int = NEVER) -> FullEntry:
    """Create a task ordered by its priority and then by its id."""
    made = FullEntry()
    made.id, made.pri, made.line, made.rank = id, pri, pri, (pri << 64) + id
    made.index = made.lane = None
    made.attempts = made.created = 0
    made.due, made.queued = due, NEVER
    return made


class LaneTube:
    """Lanes, and the parts of the engine that move their tasks."""

    def __init__(self, options: Mapping[str, Any] | None = None, *, rounds: bool = False) -> None:
        self.timers: Timers[Any] = Timers()
        self.rates = RateLimits(options or {}, self.timers)
        self.offers: Ready | RoundRobin = RoundRobin() if rounds else Ready()
        self.lanes = Lanes(self.offers, self.rates, newest_first=False)
        self.next_id = 0

    def lane(self, name: str) -> Lane:
        """Return the lane of this name, which has tasks."""
        return self.lanes.by_name[name]

    def put(self, name: str, pri: int = 0) -> FullEntry:
        """Put a task into a lane."""
        made = entry(self.next_id, pri)
        self.next_id += 1
        made.lane = lane = self.lanes.by_name.get(name) or self.lanes.make(name)
        lane.living += 1
        lane.push(made)
        return made

    def take(self, now: int = 0) -> FullEntry | None:
        """Take the first available task."""
        first = self.offers.pop()
        if first is None:
            return None
        assert isinstance(first, FullEntry)
        assert first.lane is not None
        first.attempts += 1
        first.lane.start(now, first)
        first.lane.head = None
        first.lane.taken += 1
        first.lane.offer_next()
        return first

    def ack(self, done: FullEntry) -> None:
        """End a taken task."""
        assert done.lane is not None
        done.lane.taken -= 1
        done.lane.offer_next()
        done.lane.living -= 1
        if not done.lane.living:
            done.lane.forget()

    def expire(self, now: int) -> None:
        """End the cooldowns that are over."""
        while self.timers.soonest <= now:
            if (limit := self.timers.pop(now)) is not None:
                limit.apply(limit.due)
