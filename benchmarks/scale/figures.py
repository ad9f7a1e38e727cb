"""What was measured: seconds by place, subject, verb and size, and their ratios to the smallest size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Subject:
    """What grows: one row of the table and one panel of the plot."""

    #: `memory`, or a server.
    place: str
    name: str
    #: What a size counts.
    unit: str = "waiting tasks"
    #: Whether time is the server's own, not that of the whole call.
    by_server: bool = False

    def __str__(self) -> str:
        return f"{self.place}, {self.name}"


class Cell(NamedTuple):
    """A verb of a subject at one size: median seconds per call, and the ratio to the smallest size."""

    seconds: float
    ratio: float


@dataclass
class Figures:
    """All that a run has measured, in the order in which it was."""

    _rounds: dict[tuple[Subject, int, str], list[float]] = field(default_factory=dict[Any, list[float]])

    def note(self, subject: Subject, size: int, verb: str, seconds: float) -> None:
        """One round: seconds per call. The sizes of a subject have their rounds in turn."""
        self._rounds.setdefault((subject, size, verb), []).append(seconds)

    def subjects(self) -> list[Subject]:
        return list(dict.fromkeys(subject for subject, _, _ in self._rounds))

    def sizes(self, subject: Subject) -> list[int]:
        return sorted({size for other, size, _ in self._rounds if other == subject})

    def verbs(self, subject: Subject) -> list[str]:
        return list(dict.fromkeys(verb for other, _, verb in self._rounds if other == subject))

    def cell(self, subject: Subject, size: int, verb: str) -> Cell:
        """The median over the rounds, and that of the ratios: sizes of one round were measured within a moment."""
        ours = self._rounds[subject, size, verb]
        smallest = self._rounds[subject, self.sizes(subject)[0], verb]
        return Cell(median(ours), median(a / b for a, b in zip(ours, smallest, strict=True)))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Everything, for programs."""
        for subject in self.subjects():
            for verb in self.verbs(subject):
                for size in self.sizes(subject):
                    cell = self.cell(subject, size, verb)
                    yield {
                        "place": subject.place,
                        "subject": subject.name,
                        "verb": verb,
                        "size": size,
                        "unit": subject.unit,
                        "seconds": cell.seconds,
                        "ratio": cell.ratio,
                    }


def interleaved(rounds: int, sizes: list[int], measure: Callable[[int], None]) -> None:
    """Measure each size in turn, so many times over: noise that lasts meets them alike."""
    for _ in range(rounds):
        for size in sizes:
            measure(size)
