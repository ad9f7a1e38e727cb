"""A lane of a tube: its limits and its block."""

from __future__ import annotations

from typing import Literal

from tubes.backend.interface import Port
from tubes.drivers.options import KEEP, Seconds
from tubes.values.lane import LaneInfo, lane_of


class Lane:
    """One lane of a tube: `Tube.lane`. Its tasks are the tasks with its name as their option `utube`."""

    def __init__(self, port: Port, name: str) -> None:
        self._port = port
        self.name = lane_of(port.shared.driver, name)

    def info(self) -> LaneInfo:
        """Return the lane's tasks, limits, next start and block. O(log n).

        A lane that `Tube.lanes` does not list has no tasks, and the limits of the tube.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     lane = queue.create_tube("crawl", "utube", interval=2).lane("example.com")
        ...     lane.block(30, reason="429")
        ...     info = lane.info()
        ...     info.ready, info.interval, info.blocked_until is not None, info.blocked_reason
        (0, 2.0, True, '429')
        """
        return self._port.lane_info(self.name)

    def block(self, seconds: Seconds, *, extend: bool = False, reason: str | None = None) -> None:
        """Stop takes from this lane for some seconds, for example after a 429 with Retry-After. O(log n).

        The block ends by itself, and waiting calls are served at once. Another block replaces it. Taken tasks stay
        taken. A lane without tasks can be blocked, too.

        `extend`: True never shortens a block: the latest end counts, whichever process set it. `reason`: a short text,
        which `info` returns until the block ends or another block replaces it.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("crawl", "utube")
        ...     _ = tube.put("/", utube="example.com")
        ...     tube.lane("example.com").block(30)
        ...     tube.take(timeout=0) is None
        True
        """
        self._port.block(self.name, seconds, extend, reason)

    def unblock(self) -> None:
        """End a block and serve waiting calls. A cooldown goes on. Without a block it has no effect. O(log n)."""
        self._port.block(self.name, 0, False, None)

    def configure(
        self,
        *,
        interval: Seconds | None = KEEP,
        max_in_flight: int | None = KEEP,
        interval_from: Literal["take", "ack"] | None = KEEP,
        capacity: int | None = KEEP,
        rate: float | str | None = KEEP,
        burst: int | None = KEEP,
        weight: int | None = KEEP,
    ) -> None:
        """Set limits for this lane, in place of the tube's. O(log n).

        `interval`: seconds from one take to the next, 0: none; `rate`: the same as takes per second, or as a text such
        as "10/s"; `burst`: how many takes may start at once after an idle time, from 1; `max_in_flight`: how many of
        its tasks may be taken at a time, from 1; `interval_from`: "take", or "ack", if the interval must also pass
        after each run has ended; `capacity`: the maximum number of its tasks, in any state, as for `capacity` of a
        tube; 0: no limit; `weight`: the number of its takes per round, from 1 to 100, in a tube with
        `order="round_robin"`; they come one after the other, as far as its other limits allow. None: the tube's value,
        or the weight 1. A limit that is left out keeps its value.

        New limits apply at once: the interval runs from the last take of the lane, a larger burst adds no takes, and
        if more of its tasks are taken than allowed, the next take waits until they are fewer. A lane without ready or
        taken tasks and without a cooldown has no last take. A new `interval_from` applies to runs that end from now on,
        a new `weight` from the lane's next turn.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("crawl", "utube", interval=1)
        ...     tube.lane("example.com").configure(interval=10)
        ...     tube.lanes()[0].interval
        10.0
        """
        limits = {
            "interval": interval,
            "max_in_flight": max_in_flight,
            "interval_from": interval_from,
            "capacity": capacity,
            "rate": rate,
            "burst": burst,
            "weight": weight,
        }
        self._port.configure(self.name, limits)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._port.tube!r}>"
