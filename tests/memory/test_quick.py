"""The fast paths in memory, compared with the general ones."""

from __future__ import annotations

import ast
import inspect
import random
import re
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import tubes
from tests.support.internals import port_of
from tubes import TubesError
from tubes.drivers.invariants import check_engine
from tubes.memory.calls import CallPort
from tubes.memory.lock import Lock
from tubes.memory.port import MemoryPort
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
        self.tube = self.queue.create_tube("t", "fifo")
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


#: Words of the lines that belong to the critical section of a method, rather than to its work.
SECTION = re.compile(
    r"\b(acquire|waits|let_in|held|wait|break|return$|try|busy|repair|closed_error|serve|_is_awaited|_after_parts|continue"
    r"|end_section|except|recover|raise|finally|token|events|notify_listeners)\b"
)


def section(method: Any) -> str:
    """Return the lines of a method that make it a critical section."""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    assert isinstance(function, ast.FunctionDef)
    lines = "\n".join(map(ast.unparse, function.body[1:])).splitlines()  # The first one is the docstring.
    return "".join(f"{line.strip()}\n" for line in lines if SECTION.search(line))


def replace(text: str, differences: dict[str, str]) -> str:
    for old, new in differences.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


DUE = "if engine.timers.soonest <= now and shared.serve(now):\n"
END = "if (end_section := shared.end_section) is not None:\nend_section(now)\n"
CHECK = re.compile(r".*\(.*engine\.listener or .*engine\.uses_time or .*engine\.busy or self\.closed_error\).*\n")
CLOCK = {"end_section(now or self._micros())": "end_section(now)"}


def test_written_out_methods_have_the_critical_section_of_the_general_one() -> None:
    acquire = section(Lock.acquire).replace("self.", "lock.").replace("return\n", "break\n")
    repeat = "return self._after_parts(lambda: self._do(act, then))\n"
    general = replace(section(MemoryPort._do), {"lock.acquire()\n": acquire, "= 0\nbreak\n": "= 0\n"})
    timed, put_again = DUE.replace("if ", "if engine.uses_time and "), "partial(self._put_if_room, request)"
    long = {
        MemoryPort.put: {timed: DUE, f"return self._after_parts({put_again})\n": repeat},
        MemoryPort.take: {**CLOCK, "return self._after_parts(self.take)\n": repeat},
        MemoryPort.ack: {**CLOCK, "return self._after_parts(lambda: self.ack(task))\n": repeat},
    }
    for method, differences in long.items():
        assert replace(section(method), differences) == general

    # The short methods have one check instead, and leave all other cases to the long ones.
    refuse = "if self.closed_error is not None:\nraise self.closed_error()\n"
    wait = f"{DUE}engine.busy = 0\nif self._is_awaited:\n{repeat}continue\n"
    notify = "if shared.events:\nshared.notify_listeners()\n"
    general = replace(general, {"if engine.busy:\nshared.repair()\n": "CHECK\n", refuse: "", wait: "", notify: ""})
    unless = " and (not (line[0] is entry and shared.take_waiters and self._hand_over(line, now)))"
    short = {
        QuickPort.put: {unless: ""},
        QuickPort.take: {"engine.busy = take = ": "engine.busy = ", "engine.busy = 0\n": f"{END}engine.busy = 0\n"},
        QuickPort.ack: {"engine.busy = 0\n": f"{END}engine.busy = 0\n"},
    }
    for method, differences in short.items():
        assert CHECK.sub("CHECK\n", replace(section(method), differences)) == general
