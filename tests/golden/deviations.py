"""Where tubes differs from the original on purpose, and what a trace says once that is taken into account.

Every function here is one narrow normalisation: it turns what the original did into what tubes must do.
"""

from __future__ import annotations

from enum import Enum
from typing import Any


class Deviation(Enum):
    """A documented difference."""

    #: An option that the driver lacks is refused; the original ignores it.
    UNKNOWN_OPTION = "unknown option"
    #: A negative number is refused; the original takes it for 0, and a negative `kick` answers that number.
    NEGATIVE = "negative number"
    #: `touch` by 0 checks who asks, by nothing is refused; the original answers null without any check.
    IDLE_TOUCH = "idle touch"
    #: `calls.touch` counts once; the original counts twice, and once for a touch that is unsupported.
    TOUCH_ONCE = "touch counted once"
    #: The end of a delay is `delay` for all drivers; in utubettl the original says `delayed`.
    DELAY_NAME = "name of delay"
    #: The end of a ttl is one event, `ttl`, state `-`; the original has `delete`, then `ttl` without state.
    ONE_TTL_EVENT = "one ttl event"
    #: Listeners hear of changes only; the original also calls them with a lane's next task and no event.
    NO_NEIGHBOUR_EVENT = "no neighbour event"
    #: `if_not_exists` finds a tube only if driver and options agree; the original does not look at them.
    SAME_TUBE = "same tube"
    #: Waiting takes are served in order of arrival; the original serves the smallest timeout first.
    ARRIVAL = "order of arrival"
    #: A released task past its ttl is removed; in utubettl the original leaves it ready, never to be taken.
    NO_ZOMBIE = "no zombie"
    #: Who brings a task back past its ttl is told that it is gone; the original answers how it was a moment before.
    GONE_IS_TOLD = "gone is told"
    #: `truncate` leaves no owner behind; the original then refuses a drop, and an ack is `not_found`.
    TRUNCATE = "truncate frees"
    #: A waiting put ends with its connection; in the original it still goes in.
    NO_GHOST = "no ghost put"


#: What a trace that shows nothing odd may need.
USUAL = frozenset(
    {
        Deviation.UNKNOWN_OPTION,
        Deviation.NEGATIVE,
        Deviation.IDLE_TOUCH,
        Deviation.TOUCH_ONCE,
        Deviation.DELAY_NAME,
        Deviation.ONE_TTL_EVENT,
        Deviation.NO_NEIGHBOUR_EVENT,
        Deviation.SAME_TUBE,
        Deviation.GONE_IS_TOLD,
    }
)

#: What a trace with a quirk may need on top.
BY_QUIRK = {
    "waiter_order": Deviation.ARRIVAL,
    "utubettl_release_zombie": Deviation.NO_ZOMBIE,
    "truncate_leaves_taken": Deviation.TRUNCATE,
    "lim_ghost_put": Deviation.NO_GHOST,
    "kick_negative_returns_count": Deviation.NEGATIVE,
    "touch_counted": Deviation.TOUCH_ONCE,
    "events_detail": Deviation.ONE_TTL_EVENT,
}

_TIMED = frozenset({"pri", "ttl", "ttr", "delay"})
#: The options of put that the original's drivers heed.
PUT_OPTIONS = {
    "fifo": frozenset[str](),
    "fifottl": _TIMED,
    "limfifottl": _TIMED | {"timeout"},
    "utube": frozenset({"utube"}),
    "utubettl": _TIMED | {"utube"},
}
#: The options of tubes that they heed.
TUBE_OPTIONS = {
    "fifo": frozenset[str](),
    "fifottl": frozenset({"pri", "ttl", "ttr"}),
    "limfifottl": frozenset({"pri", "ttl", "ttr", "capacity"}),
    "utube": frozenset[str](),
    "utubettl": frozenset({"pri", "ttl", "ttr"}),
}


def negative(value: Any) -> bool:
    """Whether this is a number below 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0


def touch_once(calls: dict[str, int], unsupported: int) -> dict[str, int]:
    """Halve `touch`, after taking out what only counts as unsupported."""
    twice = calls["touch"] - unsupported
    assert twice % 2 == 0
    return calls | {"touch": twice // 2}


def delay_name(calls: dict[str, int]) -> dict[str, int]:
    """Count `delayed` as `delay`."""
    calls = dict(calls)
    delayed = calls.pop("delayed")
    assert calls["delay"] == 0
    return calls | {"delay": delayed}


def named_delay(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Call `delayed` `delay`."""
    return [event | {"event": "delay"} if event["event"] == "delayed" else event for event in events]


def one_ttl_event(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make `delete`, `ttl` without a state one `ttl` with state `-`."""
    merged: list[dict[str, Any]] = []
    for event in events:
        if event["event"] == "ttl" and event["task"]["state"] is None:
            gone = {"id": event["task"]["id"], "state": "-"}
            assert merged.pop() == {"task": gone, "event": "delete"}
            event = {"task": gone, "event": "ttl"}
        merged.append(event)
    return merged


def without_neighbours(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the calls without an event."""
    assert all(event["task"]["state"] == "r" for event in events if event["event"] is None)
    return [event for event in events if event["event"] is not None]


def gone_is_told(verb: str, told: Any, got: Any) -> bool:
    """Whether a task that came back from its taker was still told to be there."""
    states = {"release": "r", "bury": "!"}
    return verb in states and isinstance(got, dict) and told == got | {"state": states[verb]} and got["state"] == "-"


class Zombies:
    """Tasks that the original shows as ready for ever, since they were released and then outlived their ttl.

    `history` says which events tubes had for a task.
    """

    def __init__(self, history: dict[int, list[str]]) -> None:
        self._history = history
        self._gone: dict[int, str] = {}

    def walks(self, id: int) -> bool:
        """Whether the original still shows this task, which is gone from the tube."""
        return self._history.get(id, [])[-2:] == ["release", "ttl"] and id not in self._gone

    def seen(self, verb: str, id: int) -> str:
        """The state that the original shows when this verb meets a zombie; bury and delete end it."""
        if verb != "peek":
            self._gone[id] = verb
        return {"peek": "r", "bury": "!", "delete": "-"}[verb]

    def lay(self, told: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        """The statistics if all zombies had been removed by their ttl."""
        now = sum(self.walks(id) for id in self._history)
        ends = list(self._gone.values())
        tasks, calls = dict(told["tasks"]), dict(told["calls"])
        tasks["ready"] -= now
        tasks["total"] -= now
        tasks["done"] += now
        calls["ttl"] += now + ends.count("delete")
        calls["delete"] += now
        calls["bury"] -= ends.count("bury")
        return {"tasks": tasks, "calls": calls}
