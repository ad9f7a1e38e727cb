"""The fast paths in memory, compared with the general ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import tubes
from tests.support.internals import port_of
from tubes import TubesError
from tubes.drivers.invariants import check_engine
from tubes.memory.calls import CallPort
from tubes.memory.quick import QuickPort
from tubes.testing import ManualClock


def facts(result: Any) -> Any:
    """Return the comparable attributes of a result."""
    if not isinstance(result, tubes.Task):
        return result
    names = ("id", "state", "data", "attempts", "key", "reason", "created", "due", "ttl", "max_attempts", "created_now")
    return {name: getattr(result, name) for name in names}


def outcome(act: Callable[[], Any]) -> tuple[Any, Any]:
    """Return a result with its comparable attributes, or the text of an error."""
    try:
        result = act()
    except TubesError as error:
        return None, f"{type(error).__name__}: {error}"
    return result, facts(result)


class Side:
    """A tube and its taken tasks."""

    def __init__(self, *, short: bool) -> None:
        self.queue = tubes.connect(clock=ManualClock())
        self.tube = self.queue.create_tube("t")
        port: Any = self.tube._port
        assert isinstance(self.tube._port, QuickPort)
        if not short:
            port.__class__ = CallPort
        self.taken: list[tubes.Task] = []
        self.events: list[tuple[str, int]] = []

    def record(self, task: tubes.Task, event: str) -> None:
        self.events.append((event, task.id))

    def do(self, what: str, number: int) -> Any:
        """Make one call; `number` selects a taken task or an id."""
        tube, taken = self.tube, self.taken
        task: Any = taken[number % len(taken)] if taken else number
        acts: dict[str, Callable[[], Any]] = {
            "put": lambda: tube.put(number),
            "put with a key": lambda: tube.put(
                number, key=str(number % 3), on_duplicate=("keep", "replace", "update")[number // 3 % 3]
            ),
            "put with a limit": lambda: tube.put(number, max_attempts=1),
            "take": lambda: tube.take(timeout=0),
            "ack": lambda: tube.ack(task),
            "ack by id": lambda: tube.ack(number),
            "release": lambda: tube.release(task),
            "bury": lambda: tube.bury(number),
            "kick": lambda: tube.select("buried", limit=number % 3).kick(),
            "delete": lambda: tube.delete(number),
            "truncate": tube.truncate,
            "pause": lambda: tube.pause(number % 4 or None),
            "resume": lambda: tube.pause(0),
            "listen": lambda: tube.on_task_change(self.record if number % 2 else None) and None,
            "count": lambda: (tube.statistics().tasks, tube.statistics().calls),
        }
        result, known = outcome(acts[what])
        if what == "take" and result is not None:
            taken.append(result)
        check_engine(port_of(tube).shared.engine)
        return known


@pytest.mark.parametrize("seed", range(20))
def test_short_and_long_paths_behave_alike(seed: int) -> None:
    rng = random.Random(seed)
    often = ["put", "take", "ack"] * 8
    rarely = [
        "put with a key", "put with a limit", "ack by id", "release", "bury", "kick", "delete", "truncate", "pause",
        "resume", "resume", "listen", "count",
    ]  # fmt: skip
    short, long = Side(short=True), Side(short=False)
    for _ in range(300):
        what, number = rng.choice(often + rarely), rng.randrange(40)
        assert short.do(what, number) == long.do(what, number), what
    assert short.events == long.events
    assert short.do("count", 0) == long.do("count", 0)


SPANS: list[Any] = [0, 60, 0.5, 100 * 365 * 86400, 10**10, -1, True, "1", None]


PUT_OPTIONS: list[dict[str, Any]] = [
    *({option: value} for option in ("ttl", "ttr", "delay") for value in SPANS),
    *({"pri": value} for value in (0, 7, 2**32 - 1, 2**32, -1, True, 1.0)),
    *({"utube": value} for value in ("a", "", 1, True, b"a", None)),
    {"ttl": 60, "ttr": 10, "delay": 5, "pri": 3, "utube": "a"},
    {"ttl": 60, "key": "k"},
    {"colour": 1},
]


@pytest.mark.parametrize("driver", ["fifo", "fifottl", "utube", "utubettl"])
def test_put_and_put_many_read_options_alike(driver: str, subtests: pytest.Subtests) -> None:
    def add(put: Callable[[tubes.Tube], tubes.Task | None]) -> Any:
        tube = tubes.connect(clock=ManualClock()).create_tube("t", driver)
        try:
            task = put(tube)
        except TubesError as error:
            return type(error), error.facts | {"item": None}
        assert task is not None
        check_engine(port_of(tube).shared.engine)
        return facts(task), task.utube, task.pri, task.ttr, task.expires, tube.take(0) is None

    for options in PUT_OPTIONS:
        with subtests.test(repr(options)):
            one = add(lambda tube, options=options: tube.put("x", **options))  # type: ignore[misc]
            assert one == add(lambda tube, options=options: tube.put_many(["x"], **options)[0])  # type: ignore[misc]
            assert one == add(lambda tube, options=options: tube.put_many([tubes.Item("x", **options)])[0])  # type: ignore[misc]
