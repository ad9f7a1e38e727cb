"""Results: seconds by place, subject, method and size, and their ratios to the smallest size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Subject:
    """A subject whose size grows: one row of the table and one panel of the plot."""

    #: `memory`, or a server.
    place: str
    name: str
    #: The unit of a size.
    unit: str = "waiting tasks"
    #: True if the time is that of the server alone, not of the whole call.
    by_server: bool = False

    def __str__(self) -> str:
        return f"{self.place}, {self.name}"


class Cell(NamedTuple):
    """A method at one size of a subject: median seconds per call, and the ratio to the smallest size."""

    seconds: float
    ratio: float


@dataclass
class Figures:
    """All figures of a run, in the order of measurement."""

    _rounds: dict[tuple[Subject, int, str], list[float]] = field(default_factory=dict[Any, list[float]])

    def record(self, subject: Subject, size: int, method: str, seconds: float) -> None:
        """Record the seconds per call of one round. The sizes of a subject are measured in turn."""
        self._rounds.setdefault((subject, size, method), []).append(seconds)

    def subjects(self) -> list[Subject]:
        return list(dict.fromkeys(subject for subject, _, _ in self._rounds))

    def sizes(self, subject: Subject) -> list[int]:
        return sorted({size for other, size, _ in self._rounds if other == subject})

    def methods(self, subject: Subject) -> list[str]:
        return list(dict.fromkeys(method for other, _, method in self._rounds if other == subject))

    def cell(self, subject: Subject, size: int, method: str) -> Cell:
        """Return the median of the rounds and of their ratios: the sizes of one round were measured close together."""
        ours = self._rounds[subject, size, method]
        smallest = self._rounds[subject, self.sizes(subject)[0], method]
        return Cell(median(ours), median(a / b for a, b in zip(ours, smallest, strict=True)))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield all figures for JSON."""
        for subject in self.subjects():
            for method in self.methods(subject):
                for size in self.sizes(subject):
                    cell = self.cell(subject, size, method)
                    yield {
                        "place": subject.place,
                        "subject": subject.name,
                        "method": method,
                        "size": size,
                        "unit": subject.unit,
                        "seconds": cell.seconds,
                        "ratio": cell.ratio,
                    }


def measure_interleaved(rounds: int, sizes: list[int], measure: Callable[[int], None]) -> None:
    """Measure each size in turn in each round, so that lasting noise affects all sizes equally."""
    for _ in range(rounds):
        for size in sizes:
            measure(size)
