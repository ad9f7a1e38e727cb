"""Intended differences from the original, and how they change the expected results of a trace.

Every function is one narrow normalisation from the behaviour of the original to that of tubes.
"""

from __future__ import annotations

from enum import Enum
from typing import Any


class Deviation(Enum):
    """A documented difference."""

    #: An option that the driver lacks is refused; the original ignores it.
    UNKNOWN_OPTION = "unknown option"
    #: A negative number is refused; the original treats it as 0, and a negative `kick` returns the number.
    NEGATIVE = "negative number"
    #: `touch` by 0 checks the holder, without a number is refused; the original returns null without any check.
    IDLE_TOUCH = "idle touch"
    #: `calls.touch` counts once; the original counts twice, and once for an unsupported touch.
    TOUCH_ONCE = "touch counted once"
    #: The end of a delay is `delay` for all drivers; the original uses `delayed` in utubettl.
    DELAY_NAME = "name of delay"
    #: The end of a ttl is one event, `ttl`, state `-`; the original has `delete`, then `ttl` without state.
    ONE_TTL_EVENT = "one ttl event"
    #: Listeners get changes only; the original also calls them with the next task of a lane and no event.
    NO_NEIGHBOUR_EVENT = "no neighbour event"
    #: `if_not_exists` finds a tube only if driver and options agree; the original ignores them.
    SAME_TUBE = "same tube"
    #: Waiting takes are served in order of arrival; the original serves the smallest timeout first.
    ARRIVAL = "order of arrival"
    #: A released task past its ttl is removed; in utubettl the original leaves it ready but never hands it out.
    NO_ZOMBIE = "no zombie"
    #: Returning a task past its ttl returns it as done; the original returns its previous state.
    REPORTS_DONE = "reports done"
    #: `truncate` removes the holders; the original then refuses a drop, and an ack is `not_found`.
    TRUNCATE = "truncate frees"
    #: A waiting put ends with its connection; the original still puts it.
    NO_GHOST = "no ghost put"


#: The deviations that a trace without quirks may need.
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
        Deviation.REPORTS_DONE,
    }
)

#: The deviations that a trace with a quirk may need in addition.
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
#: The options of put that the drivers of the original use.
PUT_OPTIONS = {
    "fifo": frozenset[str](),
    "fifottl": _TIMED,
    "limfifottl": _TIMED | {"timeout"},
    "utube": frozenset({"utube"}),
    "utubettl": _TIMED | {"utube"},
}
#: The options of tubes that they use.
TUBE_OPTIONS = {
    "fifo": frozenset[str](),
    "fifottl": frozenset({"pri", "ttl", "ttr"}),
    "limfifottl": frozenset({"pri", "ttl", "ttr", "capacity"}),
    "utube": frozenset[str](),
    "utubettl": frozenset({"pri", "ttl", "ttr"}),
}


def negative(value: Any) -> bool:
    """Return True if this is a number below 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0


def touch_once(calls: dict[str, int], unsupported: int) -> dict[str, int]:
    """Halve `touch`, after subtracting unsupported touches."""
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
    """Rename `delayed` to `delay`."""
    return [event | {"event": "delay"} if event["event"] == "delayed" else event for event in events]


def one_ttl_event(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace `delete` and `ttl` without a state by one `ttl` with state `-`."""
    merged: list[dict[str, Any]] = []
    for event in events:
        if event["event"] == "ttl" and event["task"]["state"] is None:
            gone = {"id": event["task"]["id"], "state": "-"}
            assert merged.pop() == {"task": gone, "event": "delete"}
            event = {"task": gone, "event": "ttl"}
        merged.append(event)
    return merged


def without_neighbours(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove the calls without an event."""
    assert all(event["task"]["state"] == "r" for event in events if event["event"] is None)
    return [event for event in events if event["event"] is not None]


def reports_done(verb: str, recorded: Any, got: Any) -> bool:
    """Return True if the original reported a returned task as existing and tubes as done."""
    states = {"release": "r", "bury": "!"}
    return (
        verb in states and isinstance(got, dict) and recorded == got | {"state": states[verb]} and got["state"] == "-"
    )


class Zombies:
    """Tasks that the original shows as ready forever, because they were released and then outlived their ttl.

    `history`: the events of each task in tubes.
    """

    def __init__(self, history: dict[int, list[str]]) -> None:
        self._history = history
        self._gone: dict[int, str] = {}

    def is_shown(self, id: int) -> bool:
        """Return True if the original still shows this task, which tubes has removed."""
        return self._history.get(id, [])[-2:] == ["release", "ttl"] and id not in self._gone

    def seen(self, verb: str, id: int) -> str:
        """Return the state that the original shows for a zombie in this call; bury and delete end it."""
        if verb != "peek":
            self._gone[id] = verb
        return {"peek": "r", "bury": "!", "delete": "-"}[verb]

    def without_zombies(self, recorded: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        """Return the statistics as if the ttl had removed all zombies."""
        now = sum(self.is_shown(id) for id in self._history)
        ends = list(self._gone.values())
        tasks, calls = dict(recorded["tasks"]), dict(recorded["calls"])
        tasks["ready"] -= now
        tasks["total"] -= now
        tasks["done"] += now
        calls["ttl"] += now + ends.count("delete")
        calls["delete"] += now
        calls["bury"] -= ends.count("bury")
        return {"tasks": tasks, "calls": calls}
