"""Commands that look and change nothing: tubes, namespaces, stats, peek, buried, utubes, workers."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from array import array
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer
from rich.table import Table

import tubes as library
from tubes.cli.columns import Column, Grid
from tubes.cli.common import AsJson, Codec, Ids, Name, OfState, Url, complete_tubes, connected
from tubes.cli.exits import Exit, Stop
from tubes.cli.show import (
    COLORS,
    as_json,
    console,
    line,
    moment,
    options_json,
    result_of,
    span,
    task_json,
    tasks_table,
    text,
    until,
    words_of,
)
from tubes.metrics.spans import Spans

_COUNTED = ("ready", "taken", "delayed", "buried", "done")
#: The longest time for which `stats` measures.
_LONGEST = 86_400
#: Within so many seconds tasks move by themselves, in the statistics of a tube.
_SOON = (60.0, 3600.0)


def tubes(url: Url = None, as_json_: AsJson = False) -> None:
    """List the tubes.

    With --json each tube has its driver, too.
    """
    with connected(url, looks=True) as queue:
        if as_json_:
            for name, seen in queue.overview().items():
                as_json({"tube": name, "driver": seen.driver})
        else:
            for name in queue.tubes():
                line(name)


def namespaces(url: Url = None, as_json_: AsJson = False) -> None:
    """List the namespaces.

    A URL with ?namespace=NAME names the tubes of one of them, for all commands.
    """
    with connected(url, looks=True) as queue:
        for name in queue.namespaces():
            if as_json_:
                as_json({"namespace": name})
            else:
                line(name)


def stats(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="TUBE",
            help="The name of a tube. Default: all tubes.",
            show_default=False,
            autocompletion=complete_tubes,
        ),
    ] = None,
    measure: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0, max=_LONGEST, help="Measure so long how long tasks of TUBE wait and are held."
        ),
    ] = None,
    url: Url = None,
    as_json_: AsJson = False,
) -> None:
    """Show what is in the tubes.

    Without a name it prints a line for each tube. With a name it prints all that is counted in this tube.
    """
    if name is None and measure is not None:
        raise Stop("--measure needs the name of a TUBE", Exit.USAGE)
    with connected(url, looks=measure is None) as queue:
        times = {} if name is None or measure is None else _measured(queue.tube(name), measure)
        seen = queue.overview(ages=True)
        if name is not None:
            if name not in seen:
                raise library.TubeNotFound(name=name)
            seen = {name: seen[name]}
        if as_json_:
            for one, about in seen.items():
                as_json(overview_json(one, about) | times)
        elif name is None:
            console().print(_many(seen))
        else:
            due = queue.tube(name).due_histogram(_SOON)
            console().print(_one(seen[name], due, times))


class _Times:
    """Seconds for which tasks have waited and were held, while somebody listens."""

    def __init__(self) -> None:
        self.waits: Final = array("d")
        self.holds: Final = array("d")

    def waited(self, tube: str, seconds: float) -> None:
        """A task was ready for so long."""
        self.waits.append(seconds)

    def held(self, tube: str, seconds: float) -> None:
        """A task was taken for so long."""
        self.holds.append(seconds)

    def buried(self, tube: str, reason: str | None) -> None:
        """A task was buried."""


def _measured(tube: library.Tube, seconds: float) -> dict[str, dict[str, float | None]]:
    """How long tasks wait until they are taken, and are held then: of those that do so in these seconds."""
    times = _Times()
    tube.on_task_change(Spans(times, time.monotonic))
    time.sleep(seconds)
    tube.on_task_change(None)
    return {"waited": _spread(times.waits), "held": _spread(times.holds)}


def _spread(spans: array[float]) -> dict[str, float | None]:
    """How many they are, their sum, and how they are spread."""
    ordered = sorted(spans)

    def at(share: float) -> float | None:
        return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None

    return {"count": len(ordered), "sum": sum(ordered), "median": at(0.5), "p99": at(0.99), "max": at(1)}


def overview_json(name: str, seen: library.Overview) -> dict[str, object]:
    """A tube at a glance, for JSON."""
    facts = dataclasses.asdict(seen)
    counted = facts.pop("statistics")
    options = None if seen.options is None else options_json(seen.options)
    return {"tube": name, **facts, **counted, "options": options, "paused": until(counted["paused"])}


def pause_of(seen: library.Overview) -> str:
    """For how long a tube pauses."""
    paused = seen.statistics.paused
    if paused is None:
        return ""
    return "paused" if paused == math.inf else f"paused {span(paused - seen.at)}"


_TUBES = (
    Column("tube", least=16),
    Column("driver", leaves=5),
    Column("ready", right=True),
    Column("taken", right=True),
    Column("delayed", right=True, leaves=7),
    Column("buried", right=True),
    Column("done", right=True, leaves=4),
    Column("kept", right=True, leaves=3),
    Column("oldest", right=True, leaves=6),
    Column("waiting", right=True, leaves=2),
    Column("sessions", right=True, leaves=1),
    Column("late", right=True, leaves=9),
    Column("", leaves=8),
)


def _many(seen: dict[str, library.Overview]) -> Grid:
    made = Grid(_TUBES)
    for name, one in seen.items():
        tasks = one.statistics.tasks
        counts = [text(tasks[state], COLORS.get(state, "") if tasks[state] else "dim") for state in _COUNTED]
        counts.append(text(one.statistics.kept, "" if one.statistics.kept else "dim"))
        late = text(span(one.due_lag) if one.due_lag >= 1 else "", "red")
        others = (span(one.oldest_ready_age), one.statistics.waiting, one.sessions)
        made.add_row(text(name), text(one.driver), *counts, *map(text, others), late, text(pause_of(one), "yellow"))
    return made


def _one(seen: library.Overview, due: list[int], times: dict[str, dict[str, float | None]]) -> Any:
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    counted = seen.statistics
    for state in ("ready", "taken", "delayed", "buried", "total", "done"):
        made.add_row(text(state), text(counted.tasks[state], COLORS.get(state, "")))
    made.add_row(text("kept"), text(counted.kept))
    made.add_row(text("oldest ready"), text(span(seen.oldest_ready_age)))
    soon = f"{due[0]} within a minute, {due[1]} within an hour, {due[2]} later"
    made.add_row(text("moves by itself"), text(soon))
    if seen.due_lag >= 1:
        made.add_row(text("late"), text(f"{span(seen.due_lag)}: nobody works here", "red"))
    made.add_row(text("callers waiting"), text(counted.waiting))
    made.add_row(text("sessions"), text(seen.sessions))
    if seen.utubes:
        made.add_row(text("utubes"), text(f"{seen.utubes}, of which {seen.resting} rest"))
    made.add_row(text("pause"), text(pause_of(seen) or "no", "yellow" if counted.paused else ""))
    made.add_row(text("calls"), text("  ".join(f"{call} {count}" for call, count in counted.calls.items() if count)))
    for what, spread in times.items():
        words = "  ".join(f"{name} {value:.3g}s" for name, value in spread.items() if name != "count" and value)
        made.add_row(text(what), text(f"{spread['count']} times  {words}"))
    made.add_row(text("driver"), text(seen.driver))
    if seen.options is None:
        made.add_row(text("options"), text("cannot be read: see tubes check", "red"))
    else:
        given = (f"{name}={json.dumps(value)}" for name, value in options_json(seen.options).items())
        made.add_row(text("options"), text("  ".join(given)))
    return made


def peek(
    name: Name,
    ids: Ids = None,
    state: OfState = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The largest number of tasks, without ids.")] = 10,
    url: Url = None,
    codec: Codec = None,
    as_json_: AsJson = False,
) -> None:
    """Show tasks by id, or the first ones.

    It takes nothing.
    """
    if state is not None and state not in map(str, library.State):
        raise Stop(f"--state {state!r}: must be ready, taken, buried, delayed or done", Exit.USAGE)
    with connected(url, codec, looks=True) as queue:
        tube = queue.tube(name)
        found = [tube.peek(id) for id in ids] if ids else tube.tasks(limit=limit, state=state)
        _show(found, as_json_=as_json_)
        if not found:
            raise Stop(f"tube {name!r} has no such tasks", Exit.NOTHING)


def result(
    name: Name,
    id: Annotated[int, typer.Argument(metavar="ID", help="The id of the task.", show_default=False)],
    timeout: Annotated[
        float | None, typer.Option("--timeout", "-t", help="Seconds to wait until it is done.", show_default="forever")
    ] = None,
    url: Url = None,
    codec: Codec = None,
    as_json_: AsJson = False,
) -> None:
    """Wait until a task is done, and print its result.

    The task has keep_done, of its tube or its put.
    """
    with connected(url, codec, looks=True) as queue:
        found = queue.tube(name).result(id, timeout)
        known = result_of(lambda: found)
        if as_json_:
            as_json({"tube": name, "id": id, **known})
        else:
            line(words_of(known))


def _show(found: list[library.Task], *, as_json_: bool, reasons: bool = False) -> None:
    if as_json_:
        for task in found:
            as_json(task_json(task))
    elif found:
        console().print(tasks_table(found, reasons=reasons))


def buried(
    name: Name,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The largest number of tasks.")] = 100,
    url: Url = None,
    codec: Codec = None,
    as_json_: AsJson = False,
) -> None:
    """List the buried tasks and the reasons.

    They come in the order in which kick takes them. The last lines count the tasks shown for each reason.
    """
    with connected(url, codec, looks=True) as queue:
        found = queue.tube(name).buried(limit)
        _show(found, as_json_=as_json_, reasons=True)
        if not as_json_ and found:
            for reason, count in Counter(task.reason for task in found).most_common():
                console().print(text(f"{count} of them: {reason or 'no reason'}"))


def utubes(
    name: Name,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The largest number of lanes.")] = 20,
    url: Url = None,
    as_json_: AsJson = False,
) -> None:
    """List the lanes of a tube, the busiest first.

    It reads all lanes: O(n).
    """
    with connected(url, looks=True) as queue:
        seen = queue.overview().get(name)
        if seen is None:
            raise library.TubeNotFound(name=name)
        for made in [busiest(queue.tube(name).utubes(max(seen.utubes, 1) + 1000), limit)]:
            if as_json_:
                for lane in made:
                    as_json(lane._asdict())
            elif made:
                console().print(lanes_table(made, seen.at))
            else:
                raise Stop(f"tube {name!r} has no lanes now", Exit.NOTHING)


def busiest(found: list[library.Utube], limit: int) -> list[library.Utube]:
    """The lanes with the most tasks."""
    return sorted(found, key=lambda lane: (-lane.ready - lane.taken, lane.name))[:limit]


_LANES = (
    Column("utube", least=16),
    Column("ready", right=True),
    Column("taken", right=True),
    Column("next start", leaves=2),
    Column("interval", leaves=1),
)


def lanes_table(found: list[library.Utube], now: float) -> Grid:
    """Lanes, one a row."""
    made = Grid(_LANES)
    for lane in found:
        facts = (lane.ready, f"{lane.taken}/{lane.max_in_flight}", moment(lane.next_start, now))
        made.add_row(text(lane.name), *map(text, facts), text(span(lane.interval) if lane.interval else ""))
    return made


_WORKERS = (
    Column("host", least=8),
    Column("pid", right=True),
    Column("up", right=True, leaves=4),
    Column("tubes", least=12),
    Column("in hand", right=True),
    Column("acked", right=True, leaves=3),
    Column("released", right=True, leaves=2),
    Column("buried", right=True, leaves=1),
    Column("oldest task", leaves=5),
    Column("", leaves=6),
)


def workers(url: Url = None, as_json_: AsJson = False) -> None:
    """List the running workers and what they work on.

    A worker that has died is listed for up to fifteen seconds. With --json each worker has all its tasks in hand.
    """
    with connected(url, looks=True) as queue:
        found = queue.workers()
    if as_json_:
        for worker in found:
            as_json(dataclasses.asdict(worker))
    elif found:
        console().print(_workers(found, time.time()))
    if not found:
        raise Stop("no worker runs", Exit.NOTHING)


def _workers(found: list[library.WorkerInfo], now: float) -> Grid:
    made = Grid(_WORKERS)
    for worker in found:
        names = ", ".join(name for handler in worker.handlers for name in handler.tubes)
        oldest = worker.tasks[0] if worker.tasks else None
        task = "" if oldest is None else f"{oldest.tube} {oldest.id}, for {span(now - oldest.since)}"
        counts = (f"{worker.in_hand}/{worker.concurrency}", worker.acked, worker.released, worker.buried)
        facts = (worker.host, worker.pid, span(now - worker.started), names, *counts, task)
        made.add_row(*map(text, facts), text("stopping" if worker.stopping else "", "yellow"))
    return made


COMMANDS: tuple[Callable[..., None], ...] = (tubes, namespaces, stats, peek, result, buried, utubes, workers)
