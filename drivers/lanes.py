"""Lanes: of each one, at most so many tasks are taken at a time, and so often."""

from __future__ import annotations

from heapq import nsmallest
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from tubes.drivers.options import SECOND
from tubes.drivers.rate_limits import RateLimit
from tubes.drivers.ready import Ready
from tubes.drivers.timers import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tubes.drivers.entry import Entry
    from tubes.drivers.rounds import Rounds
    from tubes.drivers.timers import Timers


class Lanes:
    """The lanes of a tube. The best ready task of every free lane is on offer, the others stand behind it.

    So a take looks only at what may be taken, however many tasks wait behind lanes that are busy or rest.
    """

    def __init__(
        self, offers: Ready | Rounds, timers: Timers[Any], options: Mapping[str, Any], *, newest_first: bool
    ) -> None:
        self.offers: Final = offers
        self.timers: Final = timers
        self.newest_first: Final = newest_first
        self.max_in_flight: Final[int] = options.get("max_in_flight", 1)
        self.interval: Final[int] = options.get("interval", 0)
        self.jitter: Final[float] = options.get("jitter", 0.0)
        self.by_name: Final[dict[str, Lane]] = {}
        #: The rate limits of lanes that have no tasks.
        self.alone: Final[dict[str, RateLimit]] = {}
        self.last_number = 0
        self._rates = 0
        # The lane that was forgotten last: many lanes are made for one task each.
        self._spare: Lane | None = None

    def make(self, name: str) -> Lane:
        """A new lane."""
        lane = self._spare or Lane(self)
        self._spare = None
        lane.name = name
        self.by_name[name] = lane
        if self.alone and name in self.alone:
            rate = lane.rate = self.alone.pop(name)
            rate.lane = lane
            lane.limit = rate.limit
        return lane

    def forget(self, lane: Lane) -> None:
        """Leave nothing of a lane without tasks but its rate limit, if it has one."""
        del self.by_name[lane.name]
        lane.behind = None
        rate = lane.rate
        if rate is not None:
            self.alone[lane.name] = rate
            rate.lane = lane.rate = None
            lane.limit = self.max_in_flight
        self._spare = lane

    def number(self) -> int:
        """The number of a start, or of a place in the round."""
        self.last_number += 1
        return self.last_number

    def start(self, now: int, entry: Entry) -> None:
        """A task is about to be taken: its lane notes that, if anybody may ask."""
        lane: Lane = entry.lane  # type: ignore[assignment]
        if lane.rate is None:
            if not self.interval:
                return
            lane.rate = self._make_rate(lane.name, lane)
        lane.rate.start(now, entry)

    def rate(self, name: str) -> RateLimit:
        """The rate limit of a lane, made if need be. Whoever asks settles it."""
        rate = self.known_rate(name)
        if rate is None:
            lane = self.by_name.get(name)
            rate = self._make_rate(name, lane)
            if lane is None:
                self.alone[name] = rate
            else:
                lane.rate = rate
        return rate

    def known_rate(self, name: str) -> RateLimit | None:
        """The rate limit of a lane, if it has one."""
        lane = self.by_name.get(name)
        return self.alone.get(name) if lane is None else lane.rate

    def _make_rate(self, name: str, lane: Lane | None) -> RateLimit:
        self._rates += 1
        return RateLimit(self, name, lane, -self._rates)

    def adopt(self, before: Lanes) -> None:
        """Go on with the rate limits of lanes that are made anew. What may rest does until the timers have looked."""
        self.last_number, self._rates = before.last_number, before._rates
        known = [*before.alone.values(), *(lane.rate for lane in before.by_name.values() if lane.rate is not None)]
        for old in known:
            lane = self.by_name.get(old.name)
            rate = RateLimit(self, old.name, lane, old.id)
            rate.blocked, rate.starts = old.blocked, old.starts
            rate.interval, rate.max_in_flight = old.interval, old.max_in_flight
            if lane is None:
                self.alone[old.name] = rate
            else:
                lane.rate = rate
            rate.settle(-1)

    def see(self, limit: int) -> Iterator[tuple[str, int, int, float | None, float, int]]:
        """The first lanes by name: name, ready, taken, next start, interval and max_in_flight, as users see them."""
        named = (name for name, lane in self.by_name.items() if lane.taken or lane.rate is not None or lane.has_ready())
        for name in nsmallest(limit, chain(named, self.alone)):
            lane, rate = self.by_name.get(name), self.known_rate(name)
            ready, taken = (0, 0) if lane is None else (lane.ready(), lane.taken)
            resting, interval, most = NEVER, None, None
            if rate is not None:
                resting, interval, most = rate.due, rate.interval, rate.max_in_flight
            interval = self.interval if interval is None else interval
            most = self.max_in_flight if most is None else most
            yield name, ready, taken, None if resting == NEVER else resting / SECOND, interval / SECOND, most

    def count(self) -> tuple[int, int]:
        """How many lanes `see` would show, and how many of them rest. Cost: O(n)."""
        known = [lane.rate for lane in self.by_name.values() if lane.taken or lane.ready() or lane.rate is not None]
        rates = [*known, *self.alone.values()]
        return len(rates), sum(rate is not None and rate.due != NEVER for rate in rates)


class Lane:
    """One lane: how many of its tasks live, how many are taken, which one is on offer, what stands behind it."""

    __slots__ = ("behind", "head", "lanes", "limit", "living", "name", "rate", "taken")

    def __init__(self, lanes: Lanes) -> None:
        self.name = ""
        self.lanes: Final = lanes
        self.living = 0
        self.taken = 0
        #: How many may be taken now; 0 while the lane rests.
        self.limit = lanes.max_in_flight
        self.head: Entry | None = None
        self.behind: Ready | None = None
        self.rate: RateLimit | None = None

    def push(self, entry: Entry) -> None:
        """A task of the lane is ready: on offer if it is plainly the best one of a free lane, else behind.

        Where others stand behind a lane that has just become free, whoever is best among all of them is up to `offer`.
        """
        head = self.head
        if self.taken >= self.limit or (head.rank < entry.rank if head is not None else self.behind is not None):
            self._stand_behind(entry)
            return
        if head is not None:
            self.lanes.offers.discard(head)
            self._stand_behind(head)
        self.head = entry
        self.lanes.offers.push(entry)

    def settle(self) -> None:
        """One of its tasks has moved: whoever is next is on offer, and a rate limit that nobody needs any more is gone.

        Does nothing where nobody stands behind and there is no rate limit: whoever must be quick looks before.
        """
        if self.behind is not None and self.head is None and self.taken < self.limit:
            self.offer()
        if self.rate is not None:
            self.rate.leave_if_idle()

    def offer(self) -> None:
        """Put the best task that stands behind on offer. For a free lane that has none there."""
        if self.behind is not None:
            self.head = self.behind.pop()
            if self.head is None:
                self.behind = None
            else:
                self.lanes.offers.push(self.head)

    def withdraw(self) -> None:
        """What is on offer stands behind again."""
        head: Entry = self.head  # type: ignore[assignment]
        self.lanes.offers.discard(head)
        self.head = None
        self._stand_behind(head)

    def has_ready(self) -> bool:
        """Whether any of its tasks is ready."""
        return self.head is not None or (self.behind is not None and self.behind.count() > 0)

    def ready(self) -> int:
        """How many of its tasks are ready."""
        return (self.head is not None) + (0 if self.behind is None else self.behind.count())

    def _stand_behind(self, entry: Entry) -> None:
        if self.behind is None:
            self.behind = Ready(newest_first=self.lanes.newest_first, short=True)
        self.behind.push(entry)
        if self.rate is not None:
            self.rate.place()
