"""Lanes: groups of tasks with a limit of taken tasks and a rate limit each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tubes.drivers.options import SECOND
from tubes.drivers.ready import Ready
from tubes.drivers.timers import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, TypeAlias

    from tubes.drivers.entry import Entry, Index
    from tubes.drivers.rate_limits import RateLimit, RateLimits

    #: The fields of `LaneInfo`.
    LaneFields: TypeAlias = tuple[
        str, int, int, float | None, float, int, int, int, int, float | None, str | None, float | None
    ]


class Lanes:
    """The lanes of a tube. The first ready task of every free lane is on offer; the others wait in their lane.

    A take looks only at the tasks on offer, so waiting tasks of lanes that are busy or in cooldown cost it nothing.
    """

    def __init__(self, offers: Index, rates: RateLimits, before: Lanes | None = None, *, newest_first: bool) -> None:
        self.offers: Final = offers
        #: After a rebuild, the old lanes until `adopt` has taken over their rate limits.
        self.before = before
        self.rates: Final = rates
        self.newest_first: Final = newest_first
        self.by_name: Final[dict[str, Lane]] = {}
        #: The last removed lane, for reuse, since many lanes have only one task.
        self.spare: Lane | None = None
        #: While changed limits are applied, this object is an item of the timers. Its id is smaller than all others.
        self.id: Final = -NEVER - 2
        self.due = self.queued = NEVER
        # The names of lanes to which changed limits are to be applied.
        self._altered: Iterator[str] = iter(())

    def make(self, name: str) -> Lane:
        """Make a lane, or reuse the spare one, and attach its stored rate limit."""
        lane = self.spare or Lane(self)
        self.spare = None
        lane.name = name
        self.by_name[name] = lane
        if self.rates.alone and name in self.rates.alone:
            rate = lane.rate = self.rates.alone.pop(name)
            rate.lane = lane
            lane.limit = rate.limit
        return lane

    def rate(self, name: str) -> RateLimit:
        """Find or make the rate limit of a lane. The caller must change it: an unchanged one is never forgotten."""
        return self.known_rate(name) or self.rates.make(name, self.by_name.get(name))

    def known_rate(self, name: str) -> RateLimit | None:
        """Find the rate limit of a lane, if it has one."""
        lane = self.by_name.get(name)
        return self.rates.alone.get(name) if lane is None else lane.rate

    def capacity(self, name: str) -> int:
        """Return the maximum number of tasks of a lane; 0: no limit."""
        rate = self.known_rate(name)
        return self.rates.capacity if rate is None or rate.capacity is None else rate.capacity

    def adopt(self) -> None:
        """Take over the rate limits of `before`. Their cooldowns go on until the timers run next."""
        before = self.before
        if before is None:
            return
        rates, old = self.rates, before.rates
        rates.last_number, rates.last_id = old.last_number, old.last_id
        for rate in (*old.alone.values(), *(lane.rate for lane in before.by_name.values() if lane.rate is not None)):
            rates.bind(rate, self.by_name.get(rate.name))
            rate.apply(-1)

    def alter(self, options: Mapping[str, Any]) -> None:
        """Set the limits in the options of the tube. If they have changed, `apply_next` is due for each lane."""
        rates, before = self.rates, self.rates.limits
        rates.alter(options)
        if rates.limits != before:
            self._altered = iter(self.names())
            self.due = 0
            self.spare = None

    def apply_next(self, now: int) -> None:
        """Apply limits that have changed to the next lane."""
        name = next(self._altered, None)
        if name is None:
            self.due = NEVER
        elif (rate := self.known_rate(name)) is not None:
            rate.apply(now)
        elif (lane := self.by_name.get(name)) is not None:
            lane.limit = self.rates.max_in_flight
            lane.adjust()

    def names(self) -> list[str]:
        """Return the names of all lanes, some perhaps twice."""
        return [*self.by_name, *self.rates.alone]

    def is_listed(self, name: str) -> bool:
        """Return True if a lane has ready or taken tasks, or a rate limit."""
        lane = self.by_name.get(name)
        if lane is None:
            return name in self.rates.alone
        return lane.taken > 0 or lane.rate is not None or lane.has_ready()

    def show(self, now: int, name: str) -> LaneFields:
        """Return the fields of `LaneInfo` for a lane. Cost: O(1)."""
        lane, rate = self.by_name.get(name), self.known_rate(name)
        ready, taken = (0, 0) if lane is None else (lane.ready(), lane.taken)
        start, interval, most, weight, until, reason = None, None, None, 1, None, None
        burst = self.rates.burst if self.rates.interval_from == "take" else 1
        if rate is not None:
            start = None if rate.is_free else rate.due / SECOND
            interval, most, burst, weight = rate.interval, rate.max_in_flight, rate.burst, rate.weight or 1
            if rate.blocked > now:
                until, reason = rate.blocked / SECOND, rate.reason
        interval = self.rates.interval if interval is None else interval
        most = self.rates.max_in_flight if most is None else most
        first = None if lane is None else lane.first()
        since = None if first is None else first.created / SECOND
        limits = interval / SECOND, most, self.capacity(name), burst, weight
        return name, ready, taken, start, *limits, until, reason, since

    def is_throttled(self, name: str) -> bool:
        """Return True if a lane is in cooldown, blocked or without its full burst."""
        rate = self.known_rate(name)
        return rate is not None and rate.due != NEVER


class Lane:
    """One lane: its counts, the task on offer (`head`), and the ready tasks that wait (`waiting`)."""

    __slots__ = ("head", "lanes", "limit", "living", "name", "rate", "taken", "waiting")

    def __init__(self, lanes: Lanes) -> None:
        self.name = ""
        self.lanes: Final = lanes
        self.living = 0
        self.taken = 0
        #: The number of tasks that may be taken now; 0 while the lane is in cooldown or blocked.
        self.limit = lanes.rates.max_in_flight
        self.head: Entry | None = None
        self.waiting: Ready | None = None
        self.rate: RateLimit | None = None

    def push(self, entry: Entry) -> None:
        """Put a ready task on offer if it is certainly the first task of a free lane; otherwise let it wait.

        If tasks wait in a lane that has just become free, `offer` finds the first of them.
        """
        head, waiting = self.head, self.waiting
        if self.taken >= self.limit or (head.rank < entry.rank if head is not None else waiting is not None):
            if waiting is None or self.rate is not None:
                self._push_behind(entry)
            else:
                waiting.push(entry)
            return
        if head is not None:
            self.lanes.offers.discard(head)
            self._push_behind(head)
        self.head = entry
        self.lanes.offers.push(entry)

    def place(self) -> float:
        rate = self.rate or self.lanes.rates.make(self.name, self)
        return rate.starts[0].number or rate.place()

    def start(self, now: int, entry: Entry) -> None:
        """Record that a task is about to be taken, if the lane has a rate limit."""
        rate = self.rate
        if rate is None and self.lanes.rates.interval:
            rate = self.lanes.rates.make(self.name, self)
        if rate is not None:
            rate.start(now, entry)

    def end_run(self, now: int) -> None:
        """Restart the cooldown at the end of a run, before its task moves, if the interval counts from the end."""
        rate, rates = self.rate, self.lanes.rates
        if ((rate and rate.interval_from) or rates.interval_from) == "ack":
            if rate is None and rates.interval:
                rate = rates.make(self.name, self)
            if rate is not None:
                rate.end_run(now)

    def undo_start(self, now: int, entry: Entry) -> None:
        """Undo the record of a take."""
        if self.rate is not None:
            self.rate.undo_start(now, entry)

    def offer_next(self) -> None:
        """Put the next task on offer after another one has moved, and remove an unneeded rate limit.

        It has no effect if no task waits and there is no rate limit: the engine checks that before the call.
        """
        if self.waiting is not None and self.head is None and self.taken < self.limit:
            self.offer()
        if self.rate is not None:
            self.rate.forget_if_idle()

    def forget(self) -> None:
        """Remove a lane without tasks, except its rate limit."""
        lanes, rate = self.lanes, self.rate
        del lanes.by_name[self.name]
        self.waiting = None
        if rate is not None:
            lanes.rates.alone[self.name] = rate
            rate.lane = self.rate = None
            self.limit = lanes.rates.max_in_flight
        lanes.spare = self

    def offer(self) -> None:
        """Put the first waiting task on offer. For a free lane without a task on offer."""
        if self.waiting is not None:
            self.head = self.waiting.pop()
            if self.head is None:
                self.waiting = None
            else:
                self.lanes.offers.push(self.head)

    def adjust(self) -> None:
        """Put the first task on offer if one more may be taken, and otherwise withdraw the offer."""
        if self.head is not None and self.taken >= self.limit:
            self.withdraw()
        elif self.head is None and self.taken < self.limit:
            self.offer()

    def withdraw(self) -> None:
        """Withdraw the task on offer; it waits in its lane again."""
        head: Entry = self.head  # type: ignore[assignment]
        self.lanes.offers.discard(head)
        self.head = None
        self._push_behind(head)

    def has_ready(self) -> bool:
        return self.head is not None or (self.waiting is not None and self.waiting.count() > 0)

    def first(self) -> Entry | None:
        """Return the ready task that is taken next."""
        return self.head if self.head is not None or self.waiting is None else self.waiting.first()

    def ready(self) -> int:
        return (self.head is not None) + (0 if self.waiting is None else self.waiting.count())

    def _push_behind(self, entry: Entry) -> None:
        if self.waiting is None:
            self.waiting = Ready(newest_first=self.lanes.newest_first, short=True)
        self.waiting.push(entry)
        if self.rate is not None:
            self.place()
