"""Tubes and folders as monitors see them."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

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


@dataclass(frozen=True, slots=True)
class FolderUsage:
    """What a store in a folder uses of its disk: `Queue.folder_usage`.

    >>> import tubes, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, tubes.connect(f"file:{folder}") as queue:
    ...     queue.folder_usage.fsyncs
    0
    """

    #: How large its files are: the tasks, the log and the reserve.
    bytes: int
    #: When the log was last folded into the file of the tasks: seconds since the epoch.
    checkpoint: float
    #: With `sync=full`: how often this process has waited for the disk, and for how many seconds.
    fsyncs: int
    fsync_seconds: float


def exact_names(patterns: Collection[str]) -> list[str]:
    """Return the patterns as sorted names if none of them has a wildcard, else an empty list."""
    return sorted(set(patterns)) if set("".join(patterns)).isdisjoint("*?[") else []


def matching(names: Iterable[str], patterns: Collection[str]) -> list[str]:
    """Return the names that match one of the patterns."""
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
