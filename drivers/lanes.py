"""Lanes: of each one, at most so many tasks are taken at a time, and so often."""

from __future__ import annotations

from heapq import nsmallest
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from tubes.drivers.options import SECOND
from tubes.drivers.paces import Pace
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
        #: The paces of lanes that have no tasks.
        self.alone: Final[dict[str, Pace]] = {}
        self.last_number = 0
        self._paces = 0
        # The lane that was forgotten last: many lanes are made for one task each.
        self._spare: Lane | None = None

    def make(self, name: str) -> Lane:
        """A new lane."""
        lane = self._spare or Lane(self)
        self._spare = None
        lane.name = name
        self.by_name[name] = lane
        if self.alone and name in self.alone:
            pace = lane.pace = self.alone.pop(name)
            pace.lane = lane
            lane.limit = pace.limit
        return lane

    def forget(self, lane: Lane) -> None:
        """Leave nothing of a lane without tasks but its pace, if it has one."""
        del self.by_name[lane.name]
        lane.behind = None
        pace = lane.pace
        if pace is not None:
            self.alone[lane.name] = pace
            pace.lane = lane.pace = None
            lane.limit = self.max_in_flight
        self._spare = lane

    def number(self) -> int:
        """The number of a start, or of a place in the round."""
        self.last_number += 1
        return self.last_number

    def start(self, now: int, entry: Entry) -> None:
        """A task is about to be taken: its lane notes that, if anybody may ask."""
        lane: Lane = entry.lane  # type: ignore[assignment]
        if lane.pace is None:
            if not self.interval:
                return
            lane.pace = self._make_pace(lane.name, lane)
        lane.pace.start(now, entry)

    def pace(self, name: str) -> Pace:
        """The pace of a lane, made if need be. Whoever asks settles it."""
        pace = self.pace_known(name)
        if pace is None:
            lane = self.by_name.get(name)
            pace = self._make_pace(name, lane)
            if lane is None:
                self.alone[name] = pace
            else:
                lane.pace = pace
        return pace

    def pace_known(self, name: str) -> Pace | None:
        """The pace of a lane, if it has one."""
        lane = self.by_name.get(name)
        return self.alone.get(name) if lane is None else lane.pace

    def _make_pace(self, name: str, lane: Lane | None) -> Pace:
        self._paces += 1
        return Pace(self, name, lane, -self._paces)

    def adopt(self, before: Lanes) -> None:
        """Go on with the paces of lanes that are made anew. Those that may rest do, until the timers have looked."""
        self.last_number, self._paces = before.last_number, before._paces
        known = [*before.alone.values(), *(lane.pace for lane in before.by_name.values() if lane.pace is not None)]
        for old in known:
            lane = self.by_name.get(old.name)
            pace = Pace(self, old.name, lane, old.id)
            pace.blocked, pace.starts = old.blocked, old.starts
            pace.interval, pace.max_in_flight = old.interval, old.max_in_flight
            if lane is None:
                self.alone[old.name] = pace
            else:
                lane.pace = pace
            pace.settle(-1)

    def see(self, limit: int) -> Iterator[tuple[str, int, int, float | None, float, int]]:
        """The first lanes by name: name, ready, taken, next start, interval and max_in_flight, as users see them."""
        named = (name for name, lane in self.by_name.items() if lane.taken or lane.pace is not None or lane.has_ready())
        for name in nsmallest(limit, chain(named, self.alone)):
            lane, pace = self.by_name.get(name), self.pace_known(name)
            ready, taken = (0, 0) if lane is None else (lane.ready(), lane.taken)
            resting, interval, most = NEVER, None, None
            if pace is not None:
                resting, interval, most = pace.due, pace.interval, pace.max_in_flight
            interval = self.interval if interval is None else interval
            most = self.max_in_flight if most is None else most
            yield name, ready, taken, None if resting == NEVER else resting / SECOND, interval / SECOND, most

    def count(self) -> tuple[int, int]:
        """How many lanes `see` would show, and how many of them rest. Cost: O(n)."""
        known = [lane.pace for lane in self.by_name.values() if lane.taken or lane.ready() or lane.pace is not None]
        paces = [*known, *self.alone.values()]
        return len(paces), sum(pace is not None and pace.due != NEVER for pace in paces)


class Lane:
    """One lane: how many of its tasks live, how many are taken, which one is on offer, what stands behind it."""

    __slots__ = ("behind", "head", "lanes", "limit", "living", "name", "pace", "taken")

    def __init__(self, lanes: Lanes) -> None:
        self.name = ""
        self.lanes: Final = lanes
        self.living = 0
        self.taken = 0
        #: How many may be taken now; 0 while the lane rests.
        self.limit = lanes.max_in_flight
        self.head: Entry | None = None
        self.behind: Ready | None = None
        self.pace: Pace | None = None

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
        """One of its tasks has moved: whoever is next is on offer, and a pace that nobody needs any more is gone.

        Does nothing where nobody stands behind and there is no pace: whoever must be quick looks before.
        """
        if self.behind is not None and self.head is None and self.taken < self.limit:
            self.offer()
        if self.pace is not None:
            self.pace.leave_if_idle()

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
        if self.pace is not None:
            self.pace.place()
