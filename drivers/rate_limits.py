"""The rate limit of a lane: its last takes, its cooldown, its block, and its own limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from tubes.drivers.chance import apply_jitter
from tubes.drivers.timers import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tubes.drivers.entry import Entry
    from tubes.drivers.timers import Timers


class Start(NamedTuple):
    """A take of one of the lane's tasks: its id and attempts, and the lane's place in the round (`number`).

    The interval counts from `at`: the time of the take, or with interval_from="ack" of the last end of a run since.
    It is earlier by one interval for each take that remains of a burst (GCRA), so a change of the burst adds no takes.
    A lane without a take has only `at` and `number`. While a lane with a weight keeps its place for more takes of its
    turn, the fraction of `number` counts its takes, in parts of `TURN`.
    """

    at: int
    id: int
    attempts: int
    number: float


#: A power of two above the largest weight, so that floats hold each part exactly.
TURN: Final = 128


#: Before any time that is earlier by a burst.
_LONG_AGO: Final = -(1 << 80)
_NO_START: Final = Start(_LONG_AGO, -1, 0, 0)
_NO_LIMITS: Final = (None, None, None, None, None, None)


class LimitedLane(Protocol):
    """The part of `lanes.Lane` that its rate limit uses."""

    taken: int
    limit: int
    head: Entry | None
    rate: RateLimit | None

    def adjust(self) -> None: ...
    def withdraw(self) -> None: ...


class RateLimits:
    """The part that the rate limits of a tube share: its default limits, its timers, and the counter of starts."""

    def __init__(self, options: Mapping[str, Any], timers: Timers[Any]) -> None:
        self.timers: Final = timers
        self.alter(options)
        #: Rate limits of lanes without tasks, by name.
        self.alone: Final[dict[str, RateLimit]] = {}
        #: The last number of a start or of a place in the round.
        self.last_number = 0
        self.last_id = 0

    def alter(self, options: Mapping[str, Any]) -> None:
        """Set the default limits from the options of the tube."""
        self.max_in_flight: int = options.get("max_in_flight", 1)
        self.interval: int = options.get("interval", 0)
        self.jitter: float = options.get("jitter", 0.0)
        self.interval_from: str = options.get("interval_from", "take")
        self.burst: int = options.get("lane_burst", 1)
        self.capacity: int = options.get("lane_capacity", 0)

    @property
    def limits(self) -> tuple[int, int, float, int, str]:
        """The default limits that affect the cooldown."""
        return self.max_in_flight, self.interval, self.jitter, self.burst, self.interval_from

    def next_number(self) -> int:
        """Return a new number for a start or a place in the round."""
        self.last_number += 1
        return self.last_number

    def make(self, name: str, lane: LimitedLane | None) -> RateLimit:
        """Make the rate limit of a lane."""
        self.last_id -= 1
        rate = RateLimit(self, name, self.last_id)
        self.bind(rate, lane)
        return rate

    def bind(self, rate: RateLimit, lane: LimitedLane | None) -> None:
        """Bind a rate limit to its lane; None: the lane has no tasks."""
        rate.shared, rate.lane, rate.queued = self, lane, NEVER
        if lane is None:
            self.alone[rate.name] = rate
        else:
            lane.rate = rate


class RateLimit:
    """The starts and limits of a lane. Most lanes of most tubes need no such object.

    While the lane is in cooldown or blocked, this object is an item of the timers, as a task is: `due` is the time of
    its next start. Such a lane has no task on offer, so takes never see it. A free lane without its full burst is an
    item, too: it is not forgotten before `due`, when the burst is full.
    """

    __slots__ = (
        "blocked", "capacity", "due", "id", "interval", "interval_from", "is_free", "lane", "max_in_flight", "name",
        "own_burst", "queued", "reason", "shared", "starts", "weight",
    )  # fmt: skip

    def __init__(self, shared: RateLimits, name: str, id: int) -> None:
        self.shared = shared
        self.name: Final = name
        #: None if the lane has no tasks.
        self.lane: LimitedLane | None = None
        #: Negative, unlike the ids of tasks.
        self.id: Final = id
        self.due = self.queued = NEVER
        #: False during a cooldown or block.
        self.is_free = True
        #: The end of the block: no start before this time.
        self.blocked = 0
        #: The reason of the block.
        self.reason: str | None = None
        # The lane's own limits; None: the tube's.
        self.interval: int | None = None
        self.max_in_flight: int | None = None
        self.interval_from: str | None = None
        self.capacity: int | None = None
        self.own_burst: int | None = None
        #: The number of its takes per round; None: 1.
        self.weight: int | None = None
        #: The last start, and the one before it, which counts again when the last one is undone.
        self.starts = (_NO_START, _NO_START)

    @property
    def own_limits(self) -> tuple[int | None, int | None, str | None, int | None, int | None, int | None]:
        """Interval, max_in_flight, interval_from, capacity, burst and weight of the lane; None: the tube's."""
        return self.interval, self.max_in_flight, self.interval_from, self.capacity, self.own_burst, self.weight

    @property
    def limit(self) -> int:
        """The number of the lane's tasks that may be taken at a time."""
        if not self.is_free:
            return 0
        return self.shared.max_in_flight if self.max_in_flight is None else self.max_in_flight

    @property
    def burst(self) -> int:
        """The number of takes that may start at once after an idle time; 1 with interval_from="ack"."""
        if (self.interval_from or self.shared.interval_from) == "ack":
            return 1
        return self.own_burst or self.shared.burst

    @property
    def _interval(self) -> int:
        return self.shared.interval if self.interval is None else self.interval

    @property
    def _lead(self) -> int:
        """The time in which the burst fills up from its first take on."""
        if self.own_burst is None and self.shared.burst == 1:  # The usual case, at each start.
            return 0
        return (self.burst - 1) * self._interval

    def _end_of_interval(self) -> int:
        last, shared = self.starts[0], self.shared
        interval = shared.interval if self.interval is None else self.interval
        if shared.jitter:
            interval = apply_jitter(interval, shared.jitter, 0, last.id, last.attempts)
        return last.at + interval

    def full_at(self) -> int:
        """Return the time at which the burst is full again."""
        return self._end_of_interval() + self._lead

    def next_start(self) -> int:
        """Return the time of the lane's next start; if it is in the past, the lane may start now."""
        return max(self.blocked, self._end_of_interval())

    def start(self, now: int, entry: Entry) -> None:
        """Record that a task of the lane is about to be taken, and start the cooldown."""
        shared = self.shared
        number: float
        if self.weight is None:
            shared.last_number = number = shared.last_number + 1
        else:
            number = self._next_place(self.weight)
        facts = max(now - self._lead, self._end_of_interval()), entry.id, entry.attempts, number
        # `Start(…)` takes three times as long.
        self.starts = (tuple.__new__(Start, facts), self.starts[0])  # pyright: ignore[reportUnknownMemberType]
        self._cool_down(now)

    def end_run(self, now: int) -> None:
        """Restart the cooldown."""
        last, before = self.starts
        self.starts = last._replace(at=now), before._replace(at=now)
        self.apply(now)

    def undo_start(self, now: int, entry: Entry) -> None:
        """Undo the record of a take, unless the lane has started again since."""
        last, before = self.starts
        if (last.id, last.attempts) == (entry.id, entry.attempts):
            if self.lane is not None and self.lane.head is not None:
                self.lane.withdraw()  # The lane may get another place in the round.
            # The starts before it still count in a burst: assume that they came evenly.
            earlier = _NO_START._replace(at=before.at - self._interval) if self._lead else _NO_START
            self.starts = (before, earlier)
            self.apply(now)

    def block(self, now: int, until: int, reason: str | None = None) -> None:
        """Let no task start before `until`; 0 ends the block."""
        self.blocked, self.reason = until, reason
        self.apply(now)

    def configure(self, now: int, changes: Mapping[str, Any]) -> None:
        """Set the lane's own limits; None returns to the tube's."""
        self.interval = changes.get("interval", self.interval)
        self.max_in_flight = changes.get("max_in_flight", self.max_in_flight)
        self.interval_from = changes.get("interval_from", self.interval_from)
        self.capacity = changes.get("capacity", self.capacity)
        self.own_burst = changes.get("burst", self.own_burst)
        self.weight = changes.get("weight", self.weight)
        self.apply(now)

    def _next_place(self, weight: int) -> float:
        """Return the place after a take: the same one, until the lane has had `weight` takes in this turn."""
        number = self.starts[0].number
        keeps = number > 0 and number % 1 * TURN + 1 < weight
        return number + 1 / TURN if keeps else self.shared.next_number()

    def place(self) -> float:
        """Return its place in the round: of its last start, or of the time at which it got a ready task."""
        last, before = self.starts
        if not last.number:
            last = last._replace(number=self.shared.next_number())
            self.starts = (last, before)
        return last.number

    def apply(self, now: int) -> None:
        """Apply the limit: start the cooldown and withdraw the lane's first task, or offer it."""
        self._cool_down(now)
        if self.lane is not None:
            self.lane.adjust()
        self.forget_if_idle()

    def forget_if_idle(self) -> None:
        """Forget the starts of a free lane without ready tasks, and its rate limit unless it was configured."""
        lane = self.lane
        if self.due != NEVER or (lane is not None and (lane.taken or lane.head is not None)):
            return
        self.starts, self.reason = (_NO_START, _NO_START), None
        if self.own_limits == _NO_LIMITS:
            if lane is not None:
                lane.rate = None
            else:
                del self.shared.alone[self.name]

    def _cool_down(self, now: int) -> None:
        """Stop starts until the next one is allowed."""
        last, before = self.starts
        # A start in the future means that the clock was set back.
        if 0 <= now < last.at:
            self.starts = (last._replace(at=now), before)
        end = self._end_of_interval()
        moment = end if end > self.blocked else self.blocked
        self.is_free = is_free = moment <= now
        if is_free:
            # A block that has ended must not return when the clock is set back.
            self.blocked, moment = 0, end + self._lead
        self.due = due = moment if moment > now else NEVER
        if due != self.queued:
            self.shared.timers.watch(self)
        if self.lane is not None:
            self.lane.limit = self.limit if is_free else 0
