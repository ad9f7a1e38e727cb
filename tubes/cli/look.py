"""Commands that only read: tubes, namespaces, stats, peek, result, buried, lanes, workers."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from array import array
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Final

import typer
from rich.table import Table

import tubes as library
from tubes.cli.columns import Column, Grid
from tubes.cli.common import AsJson, Codec, Ids, Name, Url, Wanted, complete_tubes, open_queue, selecting
from tubes.cli.exits import Exit, Stop
from tubes.cli.show import (
    COLORS,
    console,
    failures_of,
    moment,
    pause_end_json,
    print_json,
    print_line,
    progress_of,
    result_of,
    short_span,
    span,
    task_json,
    tasks_table,
    text,
    words_of,
)
from tubes.errors import Facts, did_you_mean
from tubes.metrics.spans import Spans
from tubes.values.options import options_json
from tubes.values.timings import Durations
from tubes.values.worker_info import HeldTask, functions_of_no_worker

_COUNTED = ("ready", "taken", "delayed", "buried", "done")
#: Maximum of `stats --measure`, in seconds.
_MAX_MEASURE = 86_400
#: Edges of the histogram of due times in the statistics of a tube, in seconds from now.
_DUE_EDGES = (60.0, 3600.0)


def tubes(url: Url = None, as_json_: AsJson = False) -> None:
    """List the tubes.

    With --json it also lists the driver of each tube.
    """
    with open_queue(url, read_only=True) as queue:
        if as_json_:
            for name, seen in queue.admin.overview().items():
                print_json({"tube": name, "driver": seen.driver})
        else:
            for name in queue.tubes():
                print_line(name)


def namespaces(url: Url = None, as_json_: AsJson = False) -> None:
    """List the namespaces.

    With ?namespace=NAME in the URL, any command uses the tubes of that namespace.
    """
    with open_queue(url, read_only=True) as queue:
        for name in queue.admin.namespaces():
            if as_json_:
                print_json({"namespace": name})
            else:
                print_line(name)


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
            metavar="SECONDS",
            min=0,
            max=_MAX_MEASURE,
            help="Spend this time measuring how long tasks wait and how long workers hold them.",
        ),
    ] = None,
    url: Url = None,
    as_json_: AsJson = False,
) -> None:
    """Show statistics of tubes.

    Without a name it prints a line for each tube. With a name it prints all counters of this tube, and how long its
    tasks have waited and run during the last five minutes, as its workers report.
    """
    if name is None and measure is not None:
        raise Stop("--measure needs the name of a TUBE", Exit.USAGE)
    with open_queue(url, read_only=measure is None) as queue:
        times = {} if name is None or measure is None else _measure(queue.tube(name), measure)
        overviews = queue.admin.overview(ages=True)
        if name is not None:
            if name not in overviews:
                raise library.TubeNotFound(name=name, hint=did_you_mean(name, overviews))
            overviews = {name: overviews[name]}
        if as_json_:
            reported = _durations(queue)
            for tube, overview in overviews.items():
                own = {"durations": [dataclasses.asdict(one) for one in reported if one.tube == tube]}
                print_json(overview_json(tube, overview) | times | own)
        elif name is None:
            console().print(_tubes_table(overviews))
        else:
            due = queue.tube(name).admin.due_histogram(_DUE_EDGES)
            durations = [one for one in _durations(queue) if one.tube == name]
            console().print(_tube_table(overviews[name], due, times, durations))


class _Times:
    """Collects the seconds for which tasks wait and are held."""

    def __init__(self) -> None:
        self.waits: Final = array("d")
        self.holds: Final = array("d")

    def waited(self, tube: str, seconds: float) -> None:
        self.waits.append(seconds)

    def held(self, tube: str, seconds: float) -> None:
        self.holds.append(seconds)

    def buried(self, tube: str, reason: str | None) -> None:
        """Ignore a buried task."""


def _measure(tube: library.Tube, seconds: float) -> dict[str, dict[str, float | None]]:
    """Measure for `seconds` how long tasks wait until they are taken, and how long they are held."""
    times = _Times()
    tube.on_task_change(Spans(times, time.monotonic))
    time.sleep(seconds)
    tube.on_task_change(None)
    return {"waited": _summarize(times.waits), "held": _summarize(times.holds)}


def _durations(queue: library.Queue) -> list[Durations]:
    try:
        return queue.admin.durations()
    except library.TubesError:  # A folder has no workers, and this user may have no right to list them.
        return []


def _summarize(spans: array[float]) -> dict[str, float | None]:
    """Return count, sum, median, 99th percentile and maximum."""
    ordered = sorted(spans)

    def quantile(share: float) -> float | None:
        return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None

    quantiles = {"median": quantile(0.5), "p99": quantile(0.99), "max": quantile(1)}
    return {"count": len(ordered), "sum": sum(ordered), **quantiles}


def overview_json(name: str, overview: library.Overview) -> dict[str, object]:
    facts = dataclasses.asdict(overview)
    statistics = facts.pop("statistics")
    options = None if overview.options is None else options_json(overview.options)
    return {"tube": name, **facts, **statistics, "options": options, "paused": pause_end_json(statistics["paused"])}


def pause_of(overview: library.Overview) -> str:
    """Describe the pause of a tube with its remaining time, or return an empty string."""
    paused = overview.statistics.paused
    if paused is None:
        return ""
    return "paused" if paused == math.inf else f"paused {span(paused - overview.at)}"


_TUBES = (
    Column("tube", min_width=16),
    Column("driver", drop_order=5),
    Column("ready", right=True),
    Column("taken", right=True),
    Column("delayed", right=True, drop_order=7),
    Column("buried", right=True),
    Column("done", right=True, drop_order=4),
    Column("kept", right=True, drop_order=3),
    Column("oldest", right=True, drop_order=6),
    Column("waiting", right=True, drop_order=2),
    Column("sessions", right=True, drop_order=1),
    Column("overdue", right=True, drop_order=9),
    Column("", drop_order=8),
)


def _tubes_table(overviews: dict[str, library.Overview]) -> Grid:
    grid = Grid(_TUBES)
    for name, overview in overviews.items():
        tasks, kept = overview.statistics.tasks, overview.statistics.kept
        counts = [text(tasks[state], COLORS.get(state, "") if tasks[state] else "dim") for state in _COUNTED]
        counts.append(text(kept, "" if kept else "dim"))
        facts = (span(overview.oldest_ready_age), overview.statistics.waiting, overview.sessions)
        lag = text(span(overview.due_lag) if overview.due_lag >= 1 else "", "red")
        pause = text(pause_of(overview), "yellow")
        grid.add_row(text(name), text(overview.driver), *counts, *map(text, facts), lag, pause)
    return grid


def _tube_table(
    overview: library.Overview,
    due: list[int],
    times: dict[str, dict[str, float | None]],
    durations: list[Durations],
) -> object:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    statistics = overview.statistics
    for state in ("ready", "taken", "delayed", "buried", "total", "done"):
        table.add_row(text(state), text(statistics.tasks[state], COLORS.get(state, "")))
    table.add_row(text("kept"), text(statistics.kept))
    table.add_row(text("oldest ready"), text(span(overview.oldest_ready_age)))
    counts = f"{due[0]} within a minute, {due[1]} within an hour, {due[2]} later"
    table.add_row(text("due"), text(counts))
    if overview.due_lag >= 1:
        table.add_row(text("overdue"), text(f"{span(overview.due_lag)}: no client uses this tube", "red"))
    table.add_row(text("callers waiting"), text(statistics.waiting))
    table.add_row(text("sessions"), text(overview.sessions))
    if overview.lanes:
        table.add_row(text("lanes"), text(f"{overview.lanes}, {overview.throttled_lanes} in cooldown or blocked"))
    table.add_row(text("pause"), text(pause_of(overview) or "no", "yellow" if statistics.paused else ""))
    calls = "  ".join(f"{call} {count}" for call, count in statistics.calls.items() if count)
    table.add_row(text("calls"), text(calls))
    for what, spread in times.items():
        words = "  ".join(f"{name} {value:.3g}s" for name, value in spread.items() if name != "count" and value)
        table.add_row(text(what), text(f"{spread['count']} times  {words}"))
    for one in durations:
        for kind in ("wait", "run"):
            words = "  ".join(f"{q} {short_span(getattr(one, f'{kind}_{q}'))}" for q in ("p50", "p95", "p99"))
            table.add_row(text(kind if one.function is None else f"{kind} of {one.function}"), text(words))
    table.add_row(text("driver"), text(overview.driver))
    if overview.options is None:
        table.add_row(text("options"), text("cannot be read: see tubes check", "red"))
    else:
        options = (f"{name}={json.dumps(value)}" for name, value in options_json(overview.options).items())
        table.add_row(text("options"), text("  ".join(options)))
    return table


@selecting(limit=10, changes=False)
def peek(
    name: Name,
    ids: Ids = None,
    *,
    wanted: Wanted,
    url: Url = None,
    codec: Codec = None,
    as_json_: AsJson = False,
) -> None:
    """Show tasks by id, or the first selected tasks of a tube.

    The tasks are not taken. For tasks by id it also prints their last failures, and the traceback of the last one.
    """
    with open_queue(url, codec, read_only=True) as queue:
        tube = queue.tube(name)
        if ids:
            wanted.refuse_ids()
        filters: Facts = {"limit": 10} | wanted.filters
        found = [tube.peek(id) for id in ids] if ids else [*tube.select(**filters)]
        _show(found, as_json_=as_json_)
        for task in found if ids and not as_json_ else ():
            for line in failures_of(task, time.time()):
                console().print(text(line))
        if not found:
            raise wanted.nothing(tube)


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

    The task needs the option keep_done, set by its put or by the tube.
    """
    with open_queue(url, codec, read_only=True) as queue:
        found = queue.tube(name).result(id, timeout)
        known = result_of(lambda: found)
        if as_json_:
            print_json({"tube": name, "id": id, **known})
        else:
            print_line(words_of(known))


def _show(found: list[library.Task], *, as_json_: bool, reasons: bool = False) -> None:
    if as_json_:
        for task in found:
            print_json(task_json(task))
    elif found:
        console().print(tasks_table(found, reasons=reasons))


@selecting(unwanted=("state",), limit=100, changes=False)
def buried(
    name: Name,
    *,
    wanted: Wanted,
    url: Url = None,
    codec: Codec = None,
    as_json_: AsJson = False,
) -> None:
    """List the buried tasks and their reasons.

    They are listed in the order in which `kick` takes them. The last lines count all buried tasks by the kind of their
    reason, or with options that select tasks the listed ones by reason.
    """
    with open_queue(url, codec, read_only=True) as queue:
        tube = queue.tube(name)
        filters: Facts = {"limit": 100} | wanted.filters
        found = [*tube.select("buried", **filters)]
        _show(found, as_json_=as_json_, reasons=True)
        if not as_json_ and found:
            _count_reasons(tube, found, filters)
        if wanted.filters and not found:
            raise wanted.nothing(tube)


def _count_reasons(tube: library.Tube, found: list[library.Task], filters: Facts) -> None:
    """Print the number of tasks for each reason: of all buried tasks, or of the listed ones if there are filters."""
    others = {name: value for name, value in filters.items() if name not in ("limit", "newest_first")}
    if others:
        reasons = Counter(task.reason or "none" for task in found)
        total = len(found) if len(found) < filters["limit"] else tube.select("buried", **others).count()
    else:
        reasons = Counter(tube.admin.reasons())
        total = sum(reasons.values())
    if total > len(found):
        console().print(text(f"{len(found)} of {total} are listed"))
    which = "them" if others or total <= len(found) else str(total)
    for reason, count in reasons.most_common():
        console().print(text(f"{count} of {which}: {'no reason' if reason == 'none' else reason}"))


def lanes(
    name: Name,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The maximum number of lanes.")] = 20,
    url: Url = None,
    as_json_: AsJson = False,
) -> None:
    """List the lanes of a tube, the busiest first.

    The command reads all lanes of the tube: O(n).
    """
    with open_queue(url, read_only=True) as queue:
        overviews = queue.admin.overview()
        if (overview := overviews.get(name)) is None:
            raise library.TubeNotFound(name=name, hint=did_you_mean(name, overviews))
        found = busiest(queue.tube(name).lanes(max(overview.lanes, 1) + 1000), limit)
        if as_json_:
            for lane in found:
                print_json(lane._asdict())
        elif found:
            console().print(lanes_table(found, overview.at))
        else:
            raise Stop(f"tube {name!r} has no lanes now", Exit.NOTHING)


def busiest(lanes: list[library.LaneInfo], limit: int) -> list[library.LaneInfo]:
    return sorted(lanes, key=lambda lane: (-lane.ready - lane.taken, lane.name))[:limit]


_LANES = (
    Column("lane", min_width=16),
    Column("ready", right=True),
    Column("taken", right=True),
    Column("waits", right=True, drop_order=4),
    Column("next start", drop_order=3),
    Column("interval", drop_order=1),
    Column("blocked", drop_order=2),
)


def lanes_table(lanes: list[library.LaneInfo], now: float) -> Grid:
    grid = Grid(_LANES)
    for lane in lanes:
        waits = span(None if lane.waiting_since is None else now - lane.waiting_since)
        is_due = lane.next_start is not None and lane.next_start <= now
        next_start = "now" if is_due else moment(lane.next_start, now)
        facts = (lane.ready, f"{lane.taken}/{lane.max_in_flight}", waits, next_start)
        grid.add_row(
            text(lane.name),
            *map(text, facts),
            text(span(lane.interval) if lane.interval else ""),
            text("" if lane.blocked_until is None else lane.blocked_reason or "yes", "yellow"),
        )
    return grid


_WORKERS = (
    Column("host", min_width=8),
    Column("pid", right=True),
    Column("up", right=True, drop_order=4),
    Column("tubes", min_width=12),
    Column("in hand", right=True),
    Column("acked", right=True, drop_order=3),
    Column("released", right=True, drop_order=2),
    Column("buried", right=True, drop_order=1),
    Column("oldest task", drop_order=5),
    Column("", drop_order=6),
)


def workers(url: Url = None, as_json_: AsJson = False) -> None:
    """List the running workers and their tasks.

    A dead worker stays listed for up to fifteen seconds. With --json all tasks of each worker are listed. The progress
    of a task is that of its last checkpoint. Functions that tasks call and that no running worker has are named below
    the table.
    """
    with open_queue(url, read_only=True) as queue:
        found = queue.admin.workers()
        if as_json_:
            for worker in found:
                tasks = [dataclasses.asdict(held) | _checkpoint(queue, held) for held in worker.tasks]
                print_json(dataclasses.asdict(worker) | {"tasks": tasks})
        elif found:
            oldest = [worker.tasks[0] if worker.tasks else None for worker in found]
            steps = [progress_of(**_checkpoint(queue, held)) if held else "" for held in oldest]
            console().print(_workers(found, steps, time.time()))
            for unknown in functions_of_no_worker(found):
                line = f"no running worker has the function {unknown.name!r}, which tasks of tube {unknown.tube!r} call"
                console().print(text(line, "red"))
    if not found:
        raise Stop("no worker runs", Exit.NOTHING)


def _checkpoint(queue: library.Queue, held: HeldTask) -> Facts:
    """Return the progress and the note of a task that a worker holds."""
    try:
        task = queue.tube(held.tube).peek(held.id)
    except library.TubesError:  # It has ended, or this user must not read it.
        return {"progress": None, "note": None}
    return {"progress": task.progress, "note": task.note}


def _workers(found: list[library.WorkerInfo], steps: list[str], now: float) -> Grid:
    grid = Grid(_WORKERS)
    for worker, step in zip(found, steps, strict=True):
        names = ", ".join(
            f"{name} ({', '.join(handler.functions)})" if handler.functions else name
            for handler in worker.handlers
            for name in handler.tubes
        )
        oldest = worker.tasks[0] if worker.tasks else None
        task = ""
        if oldest is not None:
            function = f" ({oldest.function})" if oldest.function is not None else ""
            task = f"{oldest.tube} {oldest.id}{function}, for {span(now - oldest.since)}  {step}".rstrip()
        counts = (f"{worker.in_hand}/{worker.concurrency}", worker.acked, worker.released, worker.buried)
        facts = (worker.host, worker.pid, span(now - worker.started), names, *counts, task)
        grid.add_row(*map(text, facts), text("stopping" if worker.stopping else "", "yellow"))
    return grid


COMMANDS: tuple[Callable[..., None], ...] = (tubes, namespaces, stats, peek, result, buried, lanes, workers)
