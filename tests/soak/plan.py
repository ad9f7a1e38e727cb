"""The tubes of a soak, and the rules that time makes for them."""

from __future__ import annotations

import random
import time
from typing import Any, Final, NamedTuple

#: Seconds to run. Some handlers are slower.
TTR: Final = 0.8
#: The lease of a worker's session. Some stand still for longer.
LEASE: Final = 1.0
#: How many tasks may wait in a tube before its producers rest.
BACKLOG: Final = 400
#: What clocks and calls may differ by, in seconds.
SLACK: Final = 0.05
_LANES: Final = 20
_PRIORITIES: Final = 4


class Plan(NamedTuple):
    """A tube."""

    driver: str
    options: dict[str, Any]
    #: Whether a listener hears of each change: what nobody hears goes other ways, which are short.
    is_heard: bool = True

    @property
    def is_timed(self) -> bool:
        return "ttl" in self.driver


#: By name. What is slow or late is so in those that are timed.
PLANS: Final = {
    "fifo": Plan("fifo", {}),
    "timed": Plan("fifottl", {"ttr": TTR}),
    "lanes": Plan("utube", {}),
    "timed-lanes": Plan("utubettl", {"ttr": TTR}),
    "unheard": Plan("fifo", {}, is_heard=False),
}


def task(plan: Plan, key: str, dice: random.Random) -> tuple[str, dict[str, Any]]:
    """The data and the options of a task; one that is delayed says in its data when it is due at the earliest."""
    options: dict[str, Any] = {}
    if "utube" in plan.driver:
        options["utube"] = f"lane-{dice.randrange(_LANES)}"
    if plan.is_timed:
        options["pri"] = dice.randrange(_PRIORITIES)
        if dice.random() < 0.1:
            options["delay"] = round(dice.random() * 0.4, 3)
            key += f"@{time.monotonic() + options['delay']:.4f}"
    return key, options


def is_early(data: str) -> bool:
    """Whether a task that is in hand now should not be."""
    _, _, due = data.partition("@")
    return bool(due) and time.monotonic() < float(due) - SLACK


def labour(plan: Plan, dice: random.Random) -> float:
    """Seconds that a handler takes: hardly any; now and then longer than the ttr."""
    if plan.is_timed and dice.random() < 0.002:
        return TTR * 1.25
    return dice.random() * 0.002
