"""A tube as monitors see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tubes.values.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Overview:
    """A tube at one moment: one of `Queue.overview`.

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     _ = queue.create_tube("mail").put("to ann")
    ...     mail = queue.overview()["mail"]
    ...     mail.driver, mail.statistics.tasks["ready"], mail.sessions
    ('fifo', 1, 1)
    """

    #: The name of its driver.
    driver: str
    statistics: Statistics
    #: The moment, by the clock of the queue: seconds since the epoch.
    at: float
    #: How many live sessions have opened the tube.
    sessions: int
    #: What the tube was given, as `Tube.options` shows it; None where the server's options cannot be read.
    options: dict[str, Any] | None
    #: How many lanes `Tube.utubes` lists, and how many of them cool down or are blocked.
    utubes: int = 0
    resting: int = 0
    #: How many seconds ago the first thing fell due that has not happened yet. On a server the next call of any program
    #: does it, so a large lag means that no program uses the tube. In memory always 0.
    due_lag: float = 0.0
    #: As `Tube.oldest_ready_age` returns it, if it was asked for.
    oldest_ready_age: float | None = None
