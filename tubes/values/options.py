"""The options of tasks and tubes as callers give them, for editors and type checkers.

They say what is checked when it is given: `drivers/options.py` and `drivers/tube_options.py` do that. None counts as
not given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal, TypedDict

from tubes.drivers.backoff import Backoff
from tubes.drivers.options import Seconds


class TaskOptions(TypedDict, total=False):
    """What a task may have, as far as the driver of its tube knows it: the options of `Tube.call`.

    A function that passes them on takes `**options: Unpack[tubes.TaskOptions]`.
    """

    pri: int | None
    """The priority, 0 (first) to 4294967295."""
    utube: str | int | None
    """The lane."""
    delay: Seconds | None
    """Seconds until the task becomes ready."""
    at: datetime | None
    """When the task becomes ready, instead of a delay: a datetime with a time zone."""
    ttl: Seconds | None
    """Time to live in seconds: then a task that nobody has taken is removed."""
    ttr: Seconds | None
    """Time to run in seconds: then a taken task is ready again."""
    max_attempts: int | None
    """How often the task may be taken, 1 to 1048574: it is buried when the last attempt fails."""
    context: Mapping[str, str] | None
    """Strings that travel with the task, for trace ids and the like."""


class PutOptions(TaskOptions, total=False):
    """What one task may be put with: the options of `Tube.put`, of `Tube.put_many` and of an `Item`.

    >>> import tubes
    >>> urgent: tubes.PutOptions = {"pri": 0, "ttl": 60}
    >>> with tubes.connect() as queue:
    ...     queue.create_tube("mail", "fifottl").put("to ann", **urgent).ttl
    60.0
    """

    key: str | None
    """While a task of this key lives, the tube has no other one of it."""
    on_duplicate: Literal["keep", "replace", "raise"] | None
    """What a put does that finds a task of its key: returns that task (the default), replaces it, or raises."""
    key_ttl: Seconds | None
    """Seconds for which the key is remembered after its task is gone."""


class TubeOptions(TypedDict, total=False):
    """What a tube may have, as far as its driver knows it: the options of `Queue.create_tube`."""

    pri: int | None
    """The priority of tasks that are put without one."""
    ttl: Seconds | None
    """The time to live of tasks that are put without one, in seconds."""
    ttr: Seconds | None
    """The time to run of tasks that are put without one, in seconds; the ttl if it is left out."""
    capacity: int | None
    """How many tasks the tube has room for; 0: any number."""
    max_attempts: int | None
    """How often tasks that are put without it may be taken."""
    key_ttl: Seconds | None
    """Seconds for which the keys of tasks that are put without it are remembered."""
    backoff: Backoff | Iterable[Seconds] | None
    """How long a task waits after an attempt that failed: the seconds after each attempt, or how they grow."""
    max_in_flight: int | None
    """How many tasks of one lane may be taken at a time; 1 if it is left out."""
    interval: Seconds | None
    """Seconds from one start in a lane to the next."""
    jitter: float | None
    """By up to which fraction, 0 to 1, an interval is longer."""
    order: Literal["fifo", "round_robin"] | None
    """Which lane comes first: the one with the oldest task, or the one that has waited longest since its last start."""
