"""The options of tasks and tubes as callers give them, for editors and type checkers.

`drivers/options.py` and `drivers/tube_options.py` check the values. None has the same effect as a missing option.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict

from tubes.drivers.backoff import Backoff
from tubes.drivers.options import Seconds


class TaskOptions(TypedDict, total=False):
    """The options of `Tube.call`. A driver may support only some of them.

    A function that forwards them takes `**options: Unpack[tubes.TaskOptions]`.
    """

    pri: int | None
    """The priority, 0 (first) to 4294967295."""
    utube: str | int | None
    """The lane."""
    delay: Seconds | None
    """Seconds until the task becomes ready."""
    at: datetime | None
    """The time at which the task becomes ready, instead of a delay: a datetime with a time zone."""
    ttl: Seconds | None
    """Time to live in seconds: after it, an untaken task is removed."""
    ttr: Seconds | None
    """Time to run in seconds: after it, a taken task becomes ready again."""
    max_attempts: int | None
    """The maximum number of takes, 1 to 1048574. When the last attempt fails, the task is buried."""
    context: Mapping[str, str] | None
    """Strings that the task carries in addition to its data, such as trace ids."""
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
    """A unique key: a tube has at most one task with this key."""
    on_duplicate: Literal["keep", "replace", "update", "raise"] | None
    """If a task has the same key: keep and return that task (the default), replace it, give it the data, or raise."""
    key_ttl: Seconds | None
    """Seconds for which the key is remembered after its task is gone."""


def put_options(
    options: Mapping[str, object],
    utube: object = None,
    pri: object = None,
    ttl: object = None,
    ttr: object = None,
    delay: object = None,
) -> Mapping[str, Any]:
    """Return all options of a put in one mapping: the parameters of `Tube.put`, and the others."""
    if utube is pri is ttl is ttr is delay is None:
        return options
    named = {"ttl": ttl, "ttr": ttr, "delay": delay, "pri": pri, "utube": utube}
    return {**{option: value for option, value in named.items() if value is not None}, **options}


def options_json(options: Mapping[str, object]) -> dict[str, object]:
    """Return the options of a tube as JSON: infinity as "inf", a backoff as an object."""
    return {
        name: "inf" if value == math.inf else dataclasses.asdict(value) if isinstance(value, Backoff) else value
        for name, value in options.items()
    }


class TubeOptions(TypedDict, total=False):
    """The options of `Queue.create_tube`. A driver may support only some of them."""

    pri: int | None
    """The priority of tasks that are put without one."""
    ttl: Seconds | None
    """The time to live of tasks that are put without one, in seconds."""
    ttr: Seconds | None
    """The time to run of tasks that are put without one, in seconds. Default: the ttl."""
    capacity: int | None
    """The largest number of tasks; 0: unlimited."""
    max_attempts: int | None
    """How often tasks that are put without `max_attempts` may be taken."""
    key_ttl: Seconds | None
    """Seconds for which keys are remembered, for tasks that are put without `key_ttl`."""
    buried_ttl: Seconds | None
    """Time to live in seconds of buried tasks; math.inf: for ever. Default: the ttl of the task continues."""
    keep_done: Seconds | None
    """Seconds for which tasks that are put without `keep_done` are kept after their ends; 0: not at all."""
    keep_done_max: int | None
    """The largest number of kept done tasks: beyond it, the task that would expire first is removed."""
    backoff: Backoff | Iterable[Seconds] | None
    """The delays after failed attempts: a list of seconds, or a `Backoff`."""
    lane_capacity: int | None
    """The largest number of tasks of each lane; 0: unlimited."""
    max_in_flight: int | None
    """The maximum number of tasks of one lane that are taken at a time. Default: 1."""
    interval: Seconds | None
    """Seconds from one take in a lane to the next, or from the end of a run."""
    lane_rate: float | str | None
    """Another spelling of `interval`: a number of takes per second, or a text such as "10/s"."""
    lane_burst: int | None
    """With an interval: how many takes of a lane may start at once after an idle time. Default: 1."""
    interval_from: Literal["take", "ack"] | None
    """The start of an interval: a take (the default), or "ack": again when the run ends."""
    jitter: float | None
    """Each interval is lengthened at random by up to this fraction, 0 to 1."""
    order: Literal["fifo", "round_robin"] | None
    """The order of the lanes: by their first tasks, or by the time since their last takes, longest first."""
    rate: float | str | None
    """The largest rate of takes: a number of takes per second, or a text such as "500/min"."""
    burst: int | None
    """With a rate: how many takes may start at once after an idle time. Default: 1."""
    partitions: int | None
    """The number of tubes, 1 to 16384, that hold its tasks, spread over the nodes of a cluster. Default: one tube."""
