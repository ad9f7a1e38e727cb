"""Profile each call: bytecodes by function in Python, and the commands of its script on a server.

    python -m benchmarks.profile [--driver utubettl]

The number of bytecodes is the same in every run, even on a busy machine; microseconds of commands are not.
`docs/performance.md` describes the findings.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

import tubes
from tubes.testing import LocalServer

ROOT = Path(__file__).parent.parent.parent
#: Profiled calls; the same number of earlier calls fill caches.
CALLS = 200
WARM = 50


class Call(NamedTuple):
    """A profiled call, and its preparation, which is not profiled."""

    name: str
    act: Callable[[Any], Any]
    before: Callable[[], Any] = lambda: None


def calls_of(tube: tubes.Tube) -> list[Call]:
    """Return the calls for each task: put, take and ack. In tubes with lanes each task has a separate lane."""
    numbers = count()

    def put(_: Any = None) -> Any:
        return tube.put("x", utube=f"{next(numbers)}") if tube.driver.lane else tube.put("x")

    def take(_: Any = None) -> Any:
        return tube.take(timeout=0)

    def ack(task: Any) -> Any:
        return tube.ack(task)

    for _ in range(2 * (WARM + CALLS)):
        put()
    return [Call("put", put), Call("take", take), Call("ack", ack, take)]


def count_bytecodes(call: Call) -> Counter[str]:
    """Count the bytecodes of a call by function; other packages are counted under their names."""
    found: Counter[str] = Counter()

    def count_in_frame(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            found[_name_of(frame)] += 1
        return count_in_frame

    def count_entered(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count_in_frame

    for number in range(WARM + CALLS):
        made = call.before()
        if number >= WARM:
            sys.settrace(count_entered)
        try:
            call.act(made)
        finally:
            sys.settrace(None)
    # Do not count the bytecodes of this module.
    return Counter({name: times for name, times in found.items() if not name.startswith("benchmarks")})


def _name_of(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    if path.is_relative_to(ROOT):
        return f"{'.'.join(path.relative_to(ROOT).with_suffix('').parts)} {frame.f_code.co_qualname}"
    return str(frame.f_globals.get("__name__", "?"))


def commands(client: Any, call: Call) -> dict[str, tuple[float, float]]:
    """Return how often a call runs each command on the server, and its microseconds; `evalsha` includes all others."""
    made = [call.before() for _ in range(WARM + CALLS)]
    for one in made[:WARM]:
        call.act(one)
    client.config_resetstat()
    for one in made[WARM:]:
        call.act(one)
    stats: dict[str, Any] = client.info("commandstats")
    found = {name.removeprefix("cmdstat_"): (one["calls"] / CALLS, one["usec"] / CALLS) for name, one in stats.items()}
    return {name: each for name, each in found.items() if name not in ("config|resetstat", "info")}


def show_bytecodes(title: str, call: Call, most: int = 8) -> None:
    """Print a table of the functions with the most bytecodes."""
    found = count_bytecodes(call)
    table = Table(title=f"{title}, {call.name}: {found.total() / CALLS:,.0f} bytecodes per call", title_justify="left")
    table.add_column("function", min_width=60)
    table.add_column("per call", justify="right")
    for name, times in found.most_common(most):
        table.add_row(name, f"{times / CALLS:,.0f}")
    Console().print(table)


def show_commands(title: str, client: Any, call: Call) -> None:
    """Print a table of the commands of a script."""
    found = commands(client, call)
    whole = found.pop("evalsha", (0.0, 0.0))[1]
    table = Table(title=f"{title}, {call.name}: {whole:.1f} µs of the server per call", title_justify="left")
    table.add_column("command", min_width=48)
    for name in ("per call", "µs"):
        table.add_column(name, justify="right")
    for name, (calls, micros) in sorted(found.items(), key=lambda one: -one[1][1]):
        table.add_row(name, f"{calls:.1f}", f"{micros:.1f}")
    table.add_row("Lua, and the call", "", f"{whole - sum(micros for _, micros in found.values()):.1f}")
    Console().print(table)


def main() -> None:
    """Print the profiles."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--driver", default="fifo", choices=("fifo", "fifottl", "utube", "utubettl"))
    driver: str = parser.parse_args().driver
    with LocalServer() as server:
        for place, url in (("in memory", "memory://"), ("the client of a server", server.url)):
            with tubes.connect(url) as queue:
                for call in calls_of(queue.create_tube("profiled", driver)):
                    show_bytecodes(f"{driver}, {place}", call)
        with tubes.connect(server.url) as queue, server.client() as client:
            for call in calls_of(queue.create_tube("measured", driver)):
                show_commands(f"{driver}, the server", client, call)


if __name__ == "__main__":
    main()
