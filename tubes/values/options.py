"""The options of tasks and tubes as callers give them, for editors and type checkers.

`drivers/options.py` and `drivers/tube_options.py` check the values. None counts as not given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict

from tubes.drivers.backoff import Backoff
from tubes.drivers.options import Seconds


class TaskOptions(TypedDict, total=False):
    """The options of `Tube.call`, as far as the driver of the tube has them.

    A function that forwards them takes `**options: Unpack[tubes.TaskOptions]`.
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
    """How often the task may be taken, 1 to 1048574. When the last attempt fails, the task is buried."""
    context: Mapping[str, str] | None
    """Strings that the task carries beside its data, such as trace ids."""
    keep_done: Seconds | None
    """Seconds for which the task is kept after its end, with its result; 0: not at all."""


class PutOptions(TaskOptions, total=False):
    """The options of `Tube.put`, `Tube.put_many` and `Item`.

    >>> import tubes
    >>> urgent: tubes.PutOptions = {"pri": 0, "ttl": 60}
    >>> with tubes.connect() as queue:
    ...     queue.create_tube("mail", "fifottl").put("to ann", **urgent).ttl
    60.0
    """

    key: str | None
    """A unique key: a tube has at most one task with it."""
    on_duplicate: Literal["keep", "replace", "raise"] | None
    """What a put does if a task has its key: keep and return that task (the default), replace it, or raise."""
    key_ttl: Seconds | None
    """Seconds for which the key is remembered after its task is gone."""


def put_options(
    options: Mapping[str, Any], utube: Any = None, pri: Any = None, ttl: Any = None, ttr: Any = None, delay: Any = None
) -> Mapping[str, Any]:
    """All options of a put in one mapping: those that `Tube.put` has parameters for, and the others."""
    if utube is pri is ttl is ttr is delay is None:
        return options
    given = {"ttl": ttl, "ttr": ttr, "delay": delay, "pri": pri, "utube": utube}
    return {**{option: value for option, value in given.items() if value is not None}, **options}


class TubeOptions(TypedDict, total=False):
    """The options of `Queue.create_tube`, as far as its driver has them."""

    pri: int | None
    """The priority of tasks that are put without one."""
    ttl: Seconds | None
    """The time to live of tasks that are put without one, in seconds."""
    ttr: Seconds | None
    """The time to run of tasks that are put without one, in seconds; the ttl if it is left out."""
    capacity: int | None
    """How many tasks the tube has room for; 0: no limit."""
    max_attempts: int | None
    """How often tasks that are put without `max_attempts` may be taken."""
    key_ttl: Seconds | None
    """Seconds for which keys are remembered, for tasks that are put without `key_ttl`."""
    buried_ttl: Seconds | None
    """Seconds for which a task lives once it is buried; math.inf: for ever. Its own ttl goes on if it is left out."""
    keep_done: Seconds | None
    """Seconds for which tasks that are put without `keep_done` are kept after their ends; 0: not at all."""
    keep_done_max: int | None
    """How many done tasks are kept at most: those that would be forgotten first go."""
    backoff: Backoff | Iterable[Seconds] | None
    """How long a task waits after a failed attempt: a list of seconds, or a `Backoff`."""
    lane_capacity: int | None
    """How many tasks each lane has room for; 0: no limit."""
    max_in_flight: int | None
    """How many tasks of one lane may be taken at a time; 1 if it is left out."""
    interval: Seconds | None
    """Seconds from one take in a lane to the next, or from the end of a run."""
    interval_from: Literal["take", "ack"] | None
    """From where an interval counts: the last take (the default), or the end of the last run as well."""
    jitter: float | None
    """The fraction, 0 to 1, by which an interval may be longer, at random."""
    order: Literal["fifo", "round_robin"] | None
    """Which lane comes first: the one with the first task, or the one whose last take is longest ago."""
