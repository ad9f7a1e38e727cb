"""The tables of a run, for the terminal and README.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.peers.goals import WHATS, cycle_goals, leads
from benchmarks.peers.registry import SUBJECTS, Subject
from benchmarks.peers.results import BATCHES, BYTES, CPU_PUT, CPU_WORK, CYCLE, ONE, SEVERAL, WORK, Figures, Results
from benchmarks.shared.report import write_result

_README: Final = Path(__file__).parent / "README.md"


@dataclass(frozen=True)
class Sheet:
    """A table for both outputs; cells are plain text."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _micros(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:,.0f}"


def _ratio(value: float) -> str:
    return f"{value:.2g}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _rate(figures: Figures, measure: str) -> str:
    rate, ratio = figures.rate(measure), figures.ratio(measure)
    return "" if rate is None or ratio is None else f"{_ratio(ratio)} · {rate:,.0f}"


def sheets(results: Results) -> Iterator[Sheet]:
    """Yield all tables of a run that have rows."""
    for sheet in (_servers(results), _leads(results), _in_process(results), _about(results)):
        if sheet.rows:
            yield sheet


def _measured_figures(results: Results, *, inside: bool) -> Iterator[tuple[Subject, Figures]]:
    for subject in SUBJECTS:
        if subject.key in results.figures and (subject.server == "") == inside:
            yield subject, results.of(subject.key)


def _servers(results: Results) -> Sheet:
    columns = (
        "subject",
        "put",
        "50 puts at a time",
        "put in batches",
        "processed",
        "bytes",
        "wake-up p50 µs",
        "p99 µs",
        "server µs: put",
        "processed",
        "missing features",
    )
    rows: list[list[str]] = []
    for subject, figures in _measured_figures(results, inside=False):
        cells = [_rate(figures, measure) for measure in (ONE, SEVERAL, BATCHES, WORK)]
        cells += [_count(figures.cost(BYTES)), _micros(figures.latency(50)), _micros(figures.latency(99))]
        cells += [_micros(figures.cost(measure)) for measure in (CPU_PUT, CPU_WORK)]
        cells.append(subject.lacks)
        rows.append([subject.key, *(cells if figures.turns else ["not measured", *cells[1:]])])
    ping = results.yardsticks.get("PING")
    title = (
        f"On servers: rate relative to a raw PING ({_count(ping)} per second; more is better) · rate per second; "
        "less is better for bytes and µs"
    )
    return Sheet(title, columns, rows)


def _leads(results: Results) -> Sheet:
    found = list(leads(results))
    whats = [what for what in WHATS if any(lead.what == what for lead in found)]
    rows: list[list[str]] = []
    for peer in dict.fromkeys(lead.peer for lead in found):
        cells = {lead.what: lead for lead in found if lead.peer == peer}
        row = [peer]
        for what in whats:
            lead = cells.get(what)
            missed = "" if lead is None or lead.met is not False else f" < {lead.goal:g}"
            row.append("" if lead is None else f"{_ratio(lead.times)}{missed}")
        misses = [lead for lead in cells.values() if lead.met is False]
        goals = [lead for lead in cells.values() if lead.goal is not None]
        rows.append([*row, f"{len(goals) - len(misses)} of {len(goals)}"])
    title = "Speed of tubes relative to each peer (above 1: tubes is faster); < marks a missed goal"
    return Sheet(title, ("peer", *whats, "goals met"), rows)


def _in_process(results: Results) -> Sheet:
    goals = {key: (ratio, goal) for key, ratio, goal in cycle_goals(results)}
    rows: list[list[str]] = []
    for subject, figures in _measured_figures(results, inside=True):
        rate, ratio = figures.rate(CYCLE), figures.ratio(CYCLE)
        times, goal = goals.get(subject.key, (0.0, 0.0))
        rows.append(
            [
                subject.key,
                "" if ratio is None else _ratio(1 / ratio),
                _count(rate),
                f"{goal:g}: {'yes' if times <= goal else 'no'}" if goal else "",
                subject.lacks,
                _versions(figures),
            ]
        )
    title = "In one process: time per task relative to queue.Queue (less is better)"
    return Sheet(title, ("subject", "relative time", "per second", "goal, met", "missing features", "versions"), rows)


def _versions(figures: Figures) -> str:
    """Return the versions, or the reason why the subject was not measured."""
    found = ", ".join(f"{name} {version}" for name, version in figures.versions.items() if name != "hiredis")
    if not figures.turns:
        return f"not measured: {figures.why or 'the run was ended'}"
    return f"{found}; {figures.failures} turns failed: {figures.why}" if figures.failures else found


def _about(results: Results) -> Sheet:
    rows: list[list[str]] = []
    for subject, figures in _measured_figures(results, inside=False):
        if subject.family != "tubes" or subject.server == results.server:
            rows.append([subject.name, subject.worker, _versions(figures)])
    return Sheet("Workers and versions", ("subject", "worker", "versions"), rows)


def describe_run(results: Results) -> str:
    """Describe the run in a sentence."""
    servers = ", ".join(f"{name} {version}" for name, version in results.servers.items())
    rounds = max((len(figures.turns) for figures in results.figures.values()), default=0)
    return f"{rounds} rounds on {results.machine}; {servers}; peers on Redis used {results.server.title()}."


def show(results: Results, console: Console) -> None:
    """Print all tables."""
    for sheet in sheets(results):
        table = Table(title=sheet.title, title_justify="left")
        for number, column in enumerate(sheet.columns):
            words = number == 0 or column in ("worker", "missing features", "versions")
            table.add_column(column, justify="left" if words else "right", no_wrap=number == 0)
        for row in sheet.rows:
            style = "red" if any(" < " in cell or cell.endswith(": no") for cell in row) else None
            table.add_row(*row, style="cyan" if row[0].startswith("tubes") and style is None else style)
        console.print()
        console.print(table, markup=False)
    console.print(describe_run(results), markup=False)


def markdown(results: Results) -> str:
    """Return all tables for README.md."""
    lines = [describe_run(results), "", "![Rates relative to their yardsticks](plot.png)"]
    for sheet in sheets(results):
        lines += ["", f"{sheet.title}:", "", *_rows(sheet.columns, sheet.rows)]
    return "\n".join(lines)


def _rows(columns: tuple[str, ...], rows: Iterable[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for cells in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def write_readme(results: Results) -> None:
    """Write all tables into README.md, between the marks."""
    write_result(_README, "peers", markdown(results))
