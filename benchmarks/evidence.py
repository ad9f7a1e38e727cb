"""Run the benchmarks of docs/evidence.md one after the other, and write the page: `python -m benchmarks.evidence`."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from math import inf
from typing import Any, Final

from matplotlib.figure import Figure

from benchmarks.chaos.systems import SYSTEMS
from benchmarks.peers.processes import ROOT
from benchmarks.shared.plots import save
from benchmarks.shared.report import Row, tables, write_result

#: The benchmarks: their modules, and seconds after which they are stopped.
PARTS: Final = {
    "chaos": ("benchmarks.chaos", 720),
    "fairness": ("benchmarks.fairness", 300),
    "precision": ("benchmarks.precision", 300),
    "latency": ("benchmarks.latency", 420),
    "crawl": ("benchmarks.crawl.spiders", 1200),
}
#: Names and bars of a plot.
Bars = dict[str, dict[str, float]]


def measure(name: str) -> bool:
    """Run a benchmark, which keeps its results; return False if it failed or was stopped."""
    module, limit = PARTS[name]
    print(f"== {name}, at most {limit} seconds", flush=True)
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", module], cwd=ROOT, start_new_session=True)
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        status = -signal.SIGKILL
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    print(f"== {name}: {'failed' if status else 'done'} after {time.monotonic() - began:.0f} seconds", flush=True)
    return not status


def read(name: str) -> dict[str, Any]:
    """Return the stored results of a benchmark; no rows if it has not run."""
    file = ROOT / "benchmarks" / name / "result.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"rows": []}
    return found


def draw(name: str, title: str, bars: Bars) -> str:
    """Write a plot, and return the Markdown that shows it."""
    series = list(next(iter(bars.values())))
    figure: Any = Figure(figsize=(9, 1 + 0.12 * len(bars) * (len(series) + 1)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(series)
    for number, what in enumerate(series):
        places = [place + (number + 0.5) * height - 0.4 for place in range(len(bars))]
        drawn = axes.barh(places, [row.get(what, 0) for row in bars.values()], height, label=what)
        axes.bar_label(drawn, fmt="{:,.4g}", padding=2, fontsize=7)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=1)
    axes.margins(x=0.1, y=0.01)
    axes.set_title(f"{title}, less is better", loc="left", fontsize=10)
    axes.legend(loc="lower right", fontsize=8)
    save(figure, ROOT / "docs" / "_static" / f"evidence-{name}.png")
    return f"![{title}](_static/evidence-{name}.png)"


def show_faults(rows: list[Row]) -> str:
    """Return a table of the systems by fault, the reasons for its gaps, and a plot."""
    table: dict[str, Row] = {}
    gaps: list[str] = []
    for row in rows:
        shown = "n/a"
        if "lost" in row:
            shown = f"{row['lost']} / {row['unexplained']} / {_seconds(row):.1f}"
        elif not (why := row.get("why") or row["error"]).startswith("does not apply"):
            shown = "?"
            gaps += [f"- {row['system']}, {row['fault']}: {' '.join(why.split())}"]
        table.setdefault(row["system"], {"system": row["system"]})[row["fault"]] = shown
    plot = draw("faults", "Tasks over all faults", totals(rows))
    settings: list[Row] = [{"system": system.name, "settings": system.settings} for system in SYSTEMS]
    return "\n".join([tables([*table.values()]), "", *gaps, *[""] * bool(gaps), plot, "", tables(settings)])


def show_latency(rows: list[Row]) -> str:
    """Return the tables, and a plot of p99."""
    bars: Bars = {}
    for row in rows:
        if "load" in row:
            bars.setdefault(row["subject"], {})[f"at {row['load']} of the capacity"] = row["p99 ms"]
    return f"{tables(rows)}\n\n{draw('latency', 'p99 of the time from put to handler in ms', bars)}"


def show_crawls(rows: list[Row]) -> str:
    """Return the table, and a plot of what should not happen."""
    bars: Bars = {
        f"{row['crawl']}, {row['interval']}": {
            "requests too early": float(row["short"].split("/")[1]),
            "pages fetched twice": float(row["twice"]),
            "lost pages": float(row["lost"]),
        }
        for row in rows
    }
    return f"{tables(rows)}\n\n{draw('crawl', 'Impolite and useless requests', bars)}"


def totals(rows: list[Row]) -> Bars:
    """Return the lost tasks, and those done twice without an explanation, over all faults, by system."""
    found: Bars = {}
    for row in rows:
        if "lost" in row:
            total = found.setdefault(row["system"], {"lost": 0, "done twice without an explanation": 0})
            total["lost"] += row["lost"]
            total["done twice without an explanation"] += row["unexplained"]
    return found


def summarize(rows: list[Row]) -> str:
    """Return the line of the README: our lost and repeated tasks over all faults."""
    ours = [row for row in rows if "lost" in row and _is_ours(row["system"])]
    put, lost, twice = (sum(row[what] for row in ours) for what in ("put", "lost", "unexplained"))
    text = "how many tasks faults cost, beside peers: not measured yet."
    if ours:
        text = f"under faults tubes lost {lost:,} of {put:,} tasks, and did {twice:,} twice that no fault explains."
    return f"[Evidence](docs/evidence.md): {text}"


def find_better_peers(chaos: list[Row], latency: list[Row], crawls: list[Row]) -> str:
    """Return the figures in which a peer is better than tubes. Under faults peers are compared with `tubes, server`."""
    cases: dict[str, dict[str, float]] = {}
    for row in chaos:
        if "lost" in row and (row["system"] == "tubes, server" or not _is_ours(row["system"])):
            figures = {
                "lost": row["lost"],
                "done twice": row["twice"],
                "done twice without an explanation": row["unexplained"],
                "puts refused": row["refused"],
            }
            if not row["lost"]:
                figures["seconds until it goes on"] = round(_seconds(row), 1)
            for what, value in figures.items():
                cases.setdefault(f"{row['fault']}, {what}", {})[row["system"]] = value
    for row in latency:
        for what in ("p50 ms", "p99 ms", "p99.9 ms") if "load" in row else ():
            cases.setdefault(f"{what} at {row['load']} of the capacity", {})[row["subject"]] = row[what]
    for row in crawls:
        name, _, processes = row["crawl"].partition(" x ")
        figures = {"processor time": float(row["cpu"].split(",")[0]), "time": 1000 / float(row["requests/s"])}
        for what, value in figures.items():
            case = f"{what} in ms per request, {row['interval']}, processes: {processes}"
            cases.setdefault(case, {})[name] = value
    lines: list[str] = []
    for case, values in cases.items():
        ours = min((value for name, value in values.items() if _is_ours(name)), default=-inf)
        if better := [f"{name} {value:,.3g}" for name, value in values.items() if value < ours]:
            lines.append(f"- {case}: {', '.join(better)}; tubes {ours:,.3g}")
    return "\n".join(lines) or "No figure."


def write_page() -> None:
    """Write the results into the page and the README."""
    results = {name: read(name) for name in PARTS}
    page = ROOT / "docs" / "evidence.md"
    shows = {"chaos": show_faults, "latency": show_latency, "crawl": show_crawls}
    for name, result in results.items():
        text = "Not measured yet."
        if rows := result["rows"]:
            versions = [f"{what} {version}" for what, version in result.get("versions", {}).items()]
            about = ", ".join([f"Measured on {result['date']}: {result['machine']}", *versions])
            text = f"{about}.\n\n{shows.get(name, tables)(rows)}"
        write_result(page, name, text)
    chaos, latency, crawls = (results[name]["rows"] for name in shows)
    write_result(page, "better", find_better_peers(chaos, latency, crawls))
    readme = ROOT / "README.md"
    readme.write_text(re.sub(r"^\[Evidence\].*", summarize(chaos), readme.read_text(), flags=re.MULTILINE))


def main() -> None:
    """Run the benchmarks, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__)
    parser.add_argument("-k", metavar="PART", default="", help="run only benchmarks whose names contain this")
    parser.add_argument("--again", action="store_true", help="run none: write the page from the kept results")
    args = parser.parse_args()
    done = [measure(name) for name in PARTS if args.k in name and not args.again]
    write_page()
    sys.exit(not all(done))


def _is_ours(name: str) -> bool:
    return name.startswith("tubes")


def _seconds(row: Row) -> float:
    return inf if row["resumed"] is None else float(row["resumed"])


if __name__ == "__main__":
    main()
