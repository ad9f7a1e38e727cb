"""The tubes of a soak and their time limits."""

from __future__ import annotations

import random
import time
from typing import Any, Final, NamedTuple

#: The ttr in seconds; some handlers are slower.
TTR: Final = 0.8
#: The lease of a worker's session; some workers are stopped for longer.
LEASE: Final = 1.0
#: The number of waiting tasks at which producers pause.
BACKLOG: Final = 400
#: The tolerance of clocks and calls in seconds.
SLACK: Final = 0.05
_LANES: Final = 20
_PRIORITIES: Final = 4


class Plan(NamedTuple):
    """A tube."""

    driver: str
    options: dict[str, Any]
    #: True if a listener receives each change; without a listener, tubes uses shorter code paths.
    has_listener: bool = True

    @property
    def is_timed(self) -> bool:
        return "ttl" in self.driver


#: The tubes by name. Only timed tubes have slow handlers and delayed tasks.
PLANS: Final = {
    "fifo": Plan("fifo", {}),
    "timed": Plan("fifottl", {"ttr": TTR}),
    "lanes": Plan("utube", {}),
    "timed-lanes": Plan("utubettl", {"ttr": TTR}),
    "unwatched": Plan("fifo", {}, has_listener=False),
}


def task(plan: Plan, key: str, rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Return the data and the options of a task; the data of a delayed task contain its earliest due time."""
    options: dict[str, Any] = {}
    if "utube" in plan.driver:
        options["utube"] = f"lane-{rng.randrange(_LANES)}"
    if plan.is_timed:
        options["pri"] = rng.randrange(_PRIORITIES)
        if rng.random() < 0.1:
            options["delay"] = round(rng.random() * 0.4, 3)
            key += f"@{time.monotonic() + options['delay']:.4f}"
    return key, options


def is_early(data: str) -> bool:
    """Return True if a task taken now is not due yet."""
    _, _, due = data.partition("@")
    return bool(due) and time.monotonic() < float(due) - SLACK


def draw_work_time(plan: Plan, rng: random.Random) -> float:
    """Return the seconds of a handler: mostly near 0, sometimes longer than the ttr."""
    if plan.is_timed and rng.random() < 0.002:
        return TTR * 1.25
    return rng.random() * 0.002
