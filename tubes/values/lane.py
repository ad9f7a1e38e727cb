"""The user's view of a lane, and the check of its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tubes.drivers.options import INTERVAL_FROM, KEEP, burst, integer, interval_of_rate, lane, micros, positive, weight
from tubes.errors import Facts, InvalidOption

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tubes.drivers.driver import Driver


class LaneInfo(NamedTuple):
    """A snapshot of a lane, as `Tube.lanes` and `Lane.info` return it.

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     tube = queue.create_tube("crawl", "utube", interval=2)
    ...     _ = tube.put("/", utube="example.com")
    ...     [(lane.name, lane.ready, lane.interval) for lane in tube.lanes()]
    [('example.com', 1, 2.0)]
    """

    #: The name. Tasks without a lane share the lane `nil`.
    name: str
    #: The number of its ready tasks, including tasks that wait until the lane is free.
    ready: int
    taken: int
    #: If the lane is in cooldown or blocked: when its next task may be taken, in seconds since the epoch. None: now.
    next_start: float | None
    #: Seconds from one take to the next, or from the end of a run; 0: no interval.
    interval: float
    max_in_flight: int
    #: The largest number of tasks, in any state; 0: unlimited.
    capacity: int
    #: The number of takes that may start at once after an idle time; 1 if the interval counts from the end of a run.
    burst: int
    #: The number of takes per round in a tube with `order="round_robin"`; 1 unless `Lane.configure` has set it.
    weight: int
    #: The end of the block that `Lane.block` has set, in seconds since the epoch; None: the lane is not blocked.
    blocked_until: float | None
    #: The reason of the block, if one was given.
    blocked_reason: str | None
    #: When the ready task that is taken next was put, in seconds since the epoch; None: no task is ready.
    waiting_since: float | None


def lane_of(driver: Driver, utube: object) -> str:
    """Check the name of a lane. Raises if the driver has no lanes."""
    if driver.lane is None:
        raise driver.make_lanes_error()
    return lane(driver.lane, utube)


_LIMITS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "interval": micros,
    "max_in_flight": positive,
    "interval_from": INTERVAL_FROM,
    "capacity": integer,
    "rate": lambda option, value: interval_of_rate(option, value) or 0,
    "burst": burst,
    "weight": weight,
}


def check_lane_limits(limits: Mapping[str, object], order: object) -> Facts:
    """Check the limits of a lane and convert them to microseconds; None: use the limit of the tube.

    `order`: the order of the tube's lanes.
    """
    changes: dict[str, object] = {
        limit: None if value is None else _LIMITS[limit](limit, value)
        for limit, value in limits.items()
        if value is not KEEP
    }
    if "rate" in changes:
        if "interval" in changes:
            raise InvalidOption(option="rate", value=limits["rate"], rule="must be left out if an interval is given")
        changes["interval"] = changes.pop("rate")
    if changes.get("weight") is not None and order != "round_robin":
        raise InvalidOption(option="weight", value=limits["weight"], rule='needs a tube with order="round_robin"')
    return changes
