"""The plot of a soak: throughput and memory over time, with the faults."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.soak.report import Part

#: The window in seconds for tasks per second, for a readable line.
_WINDOW: Final = 5


def draw(parts: list[Part], path: Path) -> None:
    """Write the plot in the format of the file name. Needs matplotlib (extra `bench`)."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(7.5 * len(parts), 9), layout="constrained")
    panels = figure.subplots(3, len(parts), squeeze=False, height_ratios=(3, 3, 2))
    for number, part in enumerate(parts):
        rate, memory, trouble = (row[number] for row in panels)
        rate.set_title(f"{part.name}: {'good' if part.is_good else 'BAD'}")
        puts = _rates(part, [sample.put for sample in part.samples])
        dones = _rates(part, [sample.done for sample in part.samples])
        for what, points in (("put", puts), ("done", dones)):
            rate.plot([when for when, _ in points], [each for _, each in points], label=what)
        rate.set_ylabel("tasks per second")
        for what in part.samples[-1].memory if part.samples else ():
            sizes = [sample.memory[what] / 2**20 for sample in part.samples]
            memory.plot([sample.when for sample in part.samples], sizes, label=what)
        memory.set_ylabel("memory in MiB")
        for axes in (rate, memory):
            axes.margins(y=0.1)
            axes.set_ylim(0, axes.get_ylim()[1])
            axes.legend(loc="lower right" if axes is rate else "center right")
            axes.set_xlabel("seconds")
        kinds = sorted({what for _, what in part.troubles}, reverse=True)
        times = [[when for when, other in part.troubles if other == kind] for kind in kinds]
        trouble.set_visible(bool(times))
        trouble.eventplot(times or [[]], linelengths=0.7, linewidths=1, colors="C3")
        trouble.set_yticks(range(len(kinds)), kinds)
        trouble.set_xlabel("seconds")
        for axes in (rate, memory, trouble):
            axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def _rates(part: Part, counts: list[int]) -> list[tuple[float, float]]:
    """Return the tasks per second of each window."""
    points: list[tuple[float, int]] = [(0.0, 0)]
    for sample, number in zip(part.samples, counts, strict=True):
        if sample.when - points[-1][0] >= _WINDOW or sample is part.samples[-1]:
            points.append((sample.when, number))
    return [((one[0] + two[0]) / 2, (two[1] - one[1]) / (two[0] - one[0])) for one, two in pairwise(points)]
