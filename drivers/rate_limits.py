"""The rate limit of a lane: its last takes, how long it cools down, and its own limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from tubes.drivers.chance import varied
from tubes.drivers.timers import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tubes.drivers.entry import Entry
    from tubes.drivers.timers import Timers


class Start(NamedTuple):
    """A take of one of the lane's tasks: the task, its take number, and the lane's place in the round.

    `at`: from when the interval counts: the take, or the last end of a run since then with interval_from="ack".
    For a lane without a take only the place counts, and `at`.
    """

    at: int
    id: int
    attempts: int
    number: int


_NO_START: Final = Start(-1, -1, 0, 0)
_NO_LIMITS: Final = (None, None, None, None)


class LimitedLane(Protocol):
    """The lane, as its rate limit needs it: see `lanes.Lane`."""

    taken: int
    limit: int
    head: Entry | None
    rate: RateLimit | None

    def adjust(self) -> None: ...
    def withdraw(self) -> None: ...


class RateLimits:
    """What the rate limits of a tube share: its limits for each lane, its timers, and the numbers of starts."""

    def __init__(self, options: Mapping[str, Any], timers: Timers[Any]) -> None:
        self.timers: Final = timers
        self.alter(options)
        #: Those of lanes that have no tasks.
        self.alone: Final[dict[str, RateLimit]] = {}
        #: The number of the last start, or of the last place in the round.
        self.last_number = 0
        self.last_id = 0

    def alter(self, options: Mapping[str, Any]) -> None:
        """Ask of each lane what a tube with these options does."""
        self.max_in_flight: int = options.get("max_in_flight", 1)
        self.interval: int = options.get("interval", 0)
        self.jitter: float = options.get("jitter", 0.0)
        self.interval_from: str = options.get("interval_from", "take")
        self.capacity: int = options.get("lane_capacity", 0)

    @property
    def asked(self) -> tuple[int, int, float]:
        """What the tube asks of each lane."""
        return self.max_in_flight, self.interval, self.jitter

    def next_number(self) -> int:
        """Number a start, or a place in the round."""
        self.last_number += 1
        return self.last_number

    def make(self, name: str, lane: LimitedLane | None) -> RateLimit:
        """Make the rate limit of a lane."""
        self.last_id -= 1
        rate = RateLimit(self, name, self.last_id)
        self.bind(rate, lane)
        return rate

    def bind(self, rate: RateLimit, lane: LimitedLane | None) -> None:
        """Give a rate limit to its lane; None: that has no tasks."""
        rate.shared, rate.lane, rate.queued = self, lane, NEVER
        if lane is None:
            self.alone[rate.name] = rate
        else:
            lane.rate = rate


class RateLimit:
    """The state of a lane besides its tasks. Most lanes of most tubes have none.

    While the lane cools down, this is in the timers like a task: `due` is the moment of its next start. A lane that
    cools down has no task on offer, so takes never see it.
    """

    __slots__ = (
        "blocked", "capacity", "due", "id", "interval", "interval_from", "lane", "max_in_flight", "name", "queued",
        "shared", "starts",
    )  # fmt: skip

    def __init__(self, shared: RateLimits, name: str, id: int) -> None:
        self.shared = shared
        self.name: Final = name
        #: None: it has no tasks.
        self.lane: LimitedLane | None = None
        #: Below zero: no task's.
        self.id: Final = id
        self.due = self.queued = NEVER
        #: No start before this moment.
        self.blocked = 0
        # Instead of the tube's; None: the tube's.
        self.interval: int | None = None
        self.max_in_flight: int | None = None
        self.interval_from: str | None = None
        self.capacity: int | None = None
        #: The last start and the one before, to which the lane goes back when the last one is undone.
        self.starts = (_NO_START, _NO_START)

    @property
    def own_limits(self) -> tuple[int | None, int | None, str | None, int | None]:
        """Interval, max_in_flight, interval_from and capacity of the lane; None: the tube's."""
        return self.interval, self.max_in_flight, self.interval_from, self.capacity

    @property
    def limit(self) -> int:
        """How many of the lane's tasks may be taken at a time."""
        if self.due != NEVER:
            return 0
        return self.shared.max_in_flight if self.max_in_flight is None else self.max_in_flight

    def next_start(self) -> int:
        """When the lane may start again; a moment that has passed: now."""
        interval = self.shared.interval if self.interval is None else self.interval
        last = self.starts[0]
        if last.at < 0:
            return self.blocked
        span = varied(interval, self.shared.jitter, 0, last.id, last.attempts) if interval else 0
        return max(self.blocked, last.at + span)

    def start(self, now: int, entry: Entry) -> None:
        """Note that a task of the lane is about to be taken, and cool down."""
        start = Start(now, entry.id, entry.attempts, self.shared.next_number())
        self.starts = (start, self.starts[0])
        self._rest(now)

    def end_run(self, now: int) -> None:
        """Cool down again at the end of a run, before its task moves, if the interval counts from there."""
        if (self.interval_from or self.shared.interval_from) == "ack":
            last, before = self.starts
            self.starts = last._replace(at=now), before._replace(at=now)
            self.apply(now)

    def undo_start(self, now: int, entry: Entry) -> None:
        """Bring the lane back to where it was before this take, unless it has started since."""
        last, before = self.starts
        if (last.id, last.attempts) == (entry.id, entry.attempts):
            if self.lane is not None and self.lane.head is not None:
                self.lane.withdraw()  # It may get another place in the round.
            self.starts = (before, _NO_START)
            self.apply(now)

    def block(self, now: int, until: int) -> None:
        """Let no task start before this moment; 0 ends that."""
        self.blocked = until
        self.apply(now)

    def configure(self, now: int, changes: Mapping[str, Any]) -> None:
        """Give the lane limits instead of the tube's; None: the tube's again."""
        self.interval = changes.get("interval", self.interval)
        self.max_in_flight = changes.get("max_in_flight", self.max_in_flight)
        self.interval_from = changes.get("interval_from", self.interval_from)
        self.capacity = changes.get("capacity", self.capacity)
        self.apply(now)

    def place(self) -> int:
        """Find its place in the round: that of its last start, or of when it got something that can be taken."""
        last, before = self.starts
        if not last.number:
            last = last._replace(number=self.shared.next_number())
            self.starts = (last, before)
        return last.number

    def apply(self, now: int) -> None:
        """Apply the limit: cool down and withdraw the lane's first task, or offer it."""
        self._rest(now)
        if self.lane is not None:
            self.lane.adjust()
        self.forget_if_idle()

    def forget_if_idle(self) -> None:
        """Forget the starts of a free lane without ready tasks, and its rate limit, unless that was configured."""
        lane = self.lane
        if self.due != NEVER or (lane is not None and (lane.taken or lane.head is not None)):
            return
        self.starts = (_NO_START, _NO_START)
        if self.own_limits == _NO_LIMITS:
            if lane is not None:
                lane.rate = None
            else:
                del self.shared.alone[self.name]

    def _rest(self, now: int) -> None:
        """Cool down until the next start, if that is not now."""
        last, before = self.starts
        # If its last start lies ahead, the clock was set back.
        if 0 <= now < last.at:
            self.starts = (last._replace(at=now), before)
        moment = self.next_start()
        self.due = moment if moment > now else NEVER
        self.shared.timers.watch(self)
        if self.lane is not None:
            self.lane.limit = self.limit
