"""A lane as users see it, and the limits that they may set for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tubes.drivers.options import INTERVAL_FROM, KEEP, lane, micros, positive, whole

if TYPE_CHECKING:
    from tubes.drivers.driver import Driver


class Utube(NamedTuple):
    """A lane at one moment: one of `Tube.utubes`.

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     tube = queue.create_tube("crawl", "utube", interval=2)
    ...     _ = tube.put("/", utube="example.com")
    ...     tube.utubes()
    [Utube(name='example.com', ready=1, taken=0, next_start=None, interval=2.0, max_in_flight=1, capacity=0)]
    """

    #: Tasks without a lane share the one called `nil`.
    name: str
    #: How many of its tasks are ready, including those that wait for the lane.
    ready: int
    taken: int
    #: When its next task may be taken, in seconds since the epoch, if it cools down or is blocked. None: now.
    next_start: float | None
    #: Seconds from one take to the next, or from the end of a run; 0: no interval.
    interval: float
    max_in_flight: int
    #: How many tasks have room, in whatever state; 0: no limit.
    capacity: int


def lane_of(driver: Driver, utube: object) -> str:
    """The name of a lane, checked."""
    if driver.lane is None:
        raise driver.lacks_lanes()
    return lane(driver.lane, utube)


def changes_of(interval: object, max_in_flight: object, interval_from: object, capacity: object) -> dict[str, Any]:
    """The limits of a lane, checked and in the machine's units; None: the tube's."""
    changes: dict[str, Any] = {}
    if interval is not KEEP:
        changes["interval"] = None if interval is None else micros("interval", interval)
    if max_in_flight is not KEEP:
        changes["max_in_flight"] = None if max_in_flight is None else positive("max_in_flight", max_in_flight)
    if interval_from is not KEEP:
        changes["interval_from"] = None if interval_from is None else INTERVAL_FROM("interval_from", interval_from)
    if capacity is not KEEP:
        changes["capacity"] = None if capacity is None else whole("capacity", capacity)
    return changes
