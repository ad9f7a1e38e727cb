"""The plot of a run: rates relative to their yardsticks, on logarithmic scales."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.registry import SUBJECTS, Subject
from benchmarks.peers.results import BATCHES, CYCLE, ONE, SEVERAL, WORK, Results
from benchmarks.peers.table import describe_run
from benchmarks.shared.plots import save

_OURS: Final = "#0f766e"
_THEIRS: Final = "#a8a29e"
#: A bar: its name, its length, and True if it is tubes.
Bar = tuple[str, float, bool]


def _bars(results: Results, is_included: Callable[[Subject], bool], measure: str, note: str = "") -> list[Bar]:
    found: list[Bar] = []
    for subject in SUBJECTS:
        ratio = results.of(subject.key).ratio(measure)
        if ratio is not None and is_included(subject):
            ours = subject.family == "tubes"
            found.append((f"{subject.name}{note}", ratio, ours))
    return found


def panels(results: Results) -> list[tuple[str, list[Bar]]]:
    """Return the panels: a title and bars, longest first. Of tubes, only the ways on the server of the peers."""

    def on_server(subject: Subject) -> bool:
        return bool(subject.server) and (subject.family != "tubes" or subject.server == results.server)

    def is_in_process(subject: Subject) -> bool:
        return not subject.server

    puts = [
        *_bars(results, on_server, ONE),
        *_bars(results, on_server, SEVERAL, ", 50 at a time"),
        *_bars(results, on_server, BATCHES, ", batches of 100"),
    ]
    found = [
        ("Puts per second relative to a raw PING's (longer is faster)", puts),
        ("Tasks processed per second relative to a raw PING's (longer is faster)", _bars(results, on_server, WORK)),
        (
            "Tasks per second in one process relative to queue.Queue's (longer is faster)",
            _bars(results, is_in_process, CYCLE),
        ),
    ]
    return [(title, sorted(bars, key=lambda bar: -bar[1])) for title, bars in found if bars]


def draw(results: Results, path: Path) -> None:
    """Write the plot as a PNG."""
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("agg")
    matplotlib.rcParams.update({"font.size": 9})
    pyplot: Any = import_module("matplotlib.pyplot")
    drawn = panels(results)
    heights = [len(bars) + 3 for _, bars in drawn]
    figure, axes = pyplot.subplots(
        len(drawn), 1, figsize=(9, 0.21 * sum(heights)), height_ratios=heights, layout="constrained", squeeze=False
    )
    for axis, (title, bars) in zip(axes[:, 0], drawn, strict=True):
        names, lengths, ours = zip(*bars, strict=True)
        places = range(len(bars))
        axis.barh(places, lengths, color=[_OURS if is_ours else _THEIRS for is_ours in ours], height=0.72)
        axis.set_yticks(places, names)
        axis.invert_yaxis()
        axis.set_xscale("log")
        axis.margins(x=0.12, y=0.01)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.axvline(1, color="gray", linewidth=0.8, zorder=0)
        axis.set_title(title, loc="left", fontweight="bold")
        axis.set_xlabel("times the yardstick's rate", fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        for place, length in zip(places, lengths, strict=True):
            ends = {"textcoords": "offset points", "va": "center", "fontsize": 8}
            behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            axis.annotate(f"{length:.2g}", (length, place), (3, 0), bbox=behind, **ends)
    kinds = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in (_OURS, _THEIRS)]
    figure.legend(kinds, ["tubes", "peers"], loc="outside upper right", ncols=2, frameon=False)
    figure.supxlabel(f"Logarithmic scales. {describe_run(results)}", fontsize=7)
    save(figure, path)
    pyplot.close(figure)
