"""The user's view of a lane, and the check of its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tubes.drivers.options import INTERVAL_FROM, KEEP, integer, lane, micros, positive

if TYPE_CHECKING:
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
    #: The end of the block that `Lane.block` has set, in seconds since the epoch; None: the lane is not blocked.
    blocked_until: float | None
    #: The reason of the block, if one was given.
    blocked_reason: str | None


def lane_of(driver: Driver, utube: object) -> str:
    """Check the name of a lane. Raises if the driver has no lanes."""
    if driver.lane is None:
        raise driver.make_lanes_error()
    return lane(driver.lane, utube)


def check_lane_limits(
    interval: object, max_in_flight: object, interval_from: object, capacity: object
) -> dict[str, Any]:
    """Check the limits of a lane and convert them to microseconds; None: use the limit of the tube."""
    changes: dict[str, Any] = {}
    if interval is not KEEP:
        changes["interval"] = None if interval is None else micros("interval", interval)
    if max_in_flight is not KEEP:
        changes["max_in_flight"] = None if max_in_flight is None else positive("max_in_flight", max_in_flight)
    if interval_from is not KEEP:
        changes["interval_from"] = None if interval_from is None else INTERVAL_FROM("interval_from", interval_from)
    if capacity is not KEEP:
        changes["capacity"] = None if capacity is None else integer("capacity", capacity)
    return changes
