"""Snapshots of tubes and folders for monitoring."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from tubes.values.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Overview:
    """A snapshot of a tube, as `QueueAdmin.overview` returns it.

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     _ = queue.create_tube("mail").put("to ann")
    ...     mail = queue.admin.overview()["mail"]
    ...     mail.driver, mail.statistics.tasks["ready"], mail.sessions
    ('fifottl', 1, 1)
    """

    #: The name of its driver.
    driver: str
    statistics: Statistics
    #: The time of the snapshot, by the clock of the queue: seconds since the epoch.
    at: float
    #: The number of live sessions that have opened the tube.
    sessions: int
    #: The options of the tube, as `Tube.options` returns them; None if the options on the server cannot be read.
    options: dict[str, Any] | None
    #: The number of lanes that `Tube.lanes` lists, and the number of lanes in cooldown or blocked, or, if lanes have a
    #: burst, without their full burst.
    lanes: int = 0
    throttled_lanes: int = 0
    #: The age in seconds of the oldest overdue change. On a server the next call of any program makes it, so that a
    #: large lag means that no program uses the tube. In memory always 0.
    due_lag: float = 0.0
    #: The result of `TubeAdmin.oldest_ready_age`, if it was requested.
    oldest_ready_age: float | None = None


@dataclass(frozen=True, slots=True)
class FolderUsage:
    """The disk usage of a store in a folder: `QueueAdmin.folder_usage`.

    >>> import tubes, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, tubes.connect(f"file:{folder}") as queue:
    ...     queue.admin.folder_usage.fsyncs
    0
    """

    #: The size of its files: tasks, log and reserve.
    bytes: int
    #: The time of the last checkpoint, which moves the log into the file of the tasks: seconds since the epoch.
    checkpoint: float
    #: With `sync=full`: how often this process has called fsync, and its total duration in seconds.
    fsyncs: int
    fsync_seconds: float


def exact_names(patterns: Collection[str]) -> list[str]:
    """Return the patterns as sorted names if none of them has a wildcard, else an empty list."""
    return sorted(set(patterns)) if set("".join(patterns)).isdisjoint("*?[") else []


def match_names(names: Iterable[str], patterns: Collection[str]) -> list[str]:
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
