"""Descriptions of running workers, as `QueueAdmin.workers` returns them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tubes.drivers.options import integer
from tubes.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tubes.values.task import TaskView

#: The tube of these descriptions. `Queue.tubes` does not list it.
WORKERS: Final = "tubes.workers"
#: Seconds between two heartbeats of a worker, and seconds after which the last one expires.
HEARTBEAT: Final = 5.0
HEARTBEAT_TTL: Final = 15.0
#: The maximal number of tasks that a worker lists.
MAX_LISTED_TASKS: Final = 100
#: The maximal numbers of schedules and of functions that a worker lists.
MAX_LISTED_SCHEDULES: Final = 500
MAX_LISTED_FUNCTIONS: Final = 500
#: The range of valid times, in seconds since the epoch: about the years 70 to 9998, which every time zone can show.
_EARLIEST: Final = -60_000_000_000
_LATEST: Final = 253_370_000_000


@dataclass(frozen=True, slots=True)
class HandlerInfo:
    """A handler of a worker: its name, its tubes, and the maximal number of tasks at a time.

    `functions`: the names of the task functions of the tube, at most 500; empty for a handler of tasks.
    `is_shared`: the number is that of all shared handlers of the worker together.
    """

    name: str
    tubes: tuple[str, ...]
    concurrency: int
    functions: tuple[str, ...] = ()
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task that a worker holds.

    `since`: the time of the take, in seconds since the epoch. `function`: the name of the function that it calls; None
    for other tasks.
    """

    tube: str
    id: int
    attempts: int
    since: float
    function: str | None = None


@dataclass(frozen=True, slots=True)
class UnknownFunction:
    """A function that a task has called during the last minute, and that a worker does not have."""

    tube: str
    name: str


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule of a worker: the name of its function, its tube, and a text such as `every 60 s` or `0 9 * * *`.

    `next`: the time of the next occurrence, in seconds since the epoch. `last`, `last_result`: the time of the last
    occurrence that this worker handled, and how its task ended, such as `acked`; None: it has handled none.
    """

    name: str
    tube: str
    schedule: str
    next: float
    last: float | None = None
    last_result: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A running worker, as described by its last heartbeat: `QueueAdmin.workers` returns a list of them.

    >>> WorkerInfo(id="7f3e", host="web1", pid=4711, started=1.7e9, acked=12).acked
    12
    """

    #: The uuid of its session.
    id: str
    host: str
    pid: int
    #: When it started: seconds since the epoch.
    started: float
    #: The time of the last heartbeat: seconds since the epoch.
    seen: float = 0.0
    handlers: tuple[HandlerInfo, ...] = ()
    #: The number of tasks that it holds.
    in_hand: int = 0
    #: The tasks that it has held longest, at most 100.
    tasks: tuple[HeldTask, ...] = field(default=())
    #: The results of its tasks so far, as in the `Summary` of its run.
    acked: int = 0
    released: int = 0
    buried: int = 0
    lost: int = 0
    #: True if it is stopping: it takes no tasks, and ends when all tasks that it holds are finished.
    stopping: bool = False
    #: Its schedules, at most 500.
    schedules: tuple[ScheduleInfo, ...] = ()
    #: The functions that tasks have called during the last minute and that it does not have, at most 500. See
    #: `functions_of_no_worker`.
    unknown: tuple[UnknownFunction, ...] = ()

    @property
    def concurrency(self) -> int:
        """The maximal number of tasks that all its handlers together work on at a time."""
        own = sum(handler.concurrency for handler in self.handlers if not handler.is_shared)
        return own + max((handler.concurrency for handler in self.handlers if handler.is_shared), default=0)


def functions_of_no_worker(workers: Iterable[WorkerInfo]) -> list[UnknownFunction]:
    """Return the functions that tasks wait for and that none of these workers has, such as misspelt names.

    >>> one = WorkerInfo("1", "web1", 7, 0.0, unknown=(UnknownFunction("tasks", "a"), UnknownFunction("tasks", "b")))
    >>> two = WorkerInfo("2", "web2", 7, 0.0, handlers=(HandlerInfo("a", ("tasks",), 1, ("a",)),))
    >>> functions_of_no_worker([one, two])
    [UnknownFunction(tube='tasks', name='b')]
    """
    found: dict[tuple[str, str], UnknownFunction] = {}
    known: set[tuple[str, str]] = set()
    for worker in workers:
        found.update({(each.tube, each.name): each for each in worker.unknown})
        known.update((tube, name) for one in worker.handlers for tube in one.tubes for name in one.functions)
    return [each for place, each in sorted(found.items()) if place not in known]


def infos_of(tasks: Iterable[TaskView]) -> list[WorkerInfo]:
    """Return the descriptions in these tasks, without unreadable ones."""
    found: list[WorkerInfo] = []
    for task in tasks:
        with suppress(CodecError):
            if (info := info_of(task.data, task.created)) is not None:
                found.append(info)
    return found


def info_of(fields: Any, seen: float) -> WorkerInfo | None:
    """Return a stored description; None if it is unreadable, for example because another version wrote it."""
    try:
        return WorkerInfo(
            id=_text(fields["id"]),
            host=_text(fields["host"]),
            pid=integer("pid", fields["pid"]),
            started=_time(fields["started"]),
            seen=seen,
            handlers=tuple(
                HandlerInfo(
                    _text(one["name"]),
                    tuple(map(_text, one["tubes"])),
                    integer("concurrency", one["concurrency"]),
                    tuple(map(_text, one.get("functions", ()))),
                    one.get("is_shared", False) is True,
                )
                for one in fields.get("handlers", ())
            ),
            tasks=tuple(
                HeldTask(
                    _text(one["tube"]),
                    integer("id", one["id"]),
                    integer("attempts", one["attempts"]),
                    _time(one["since"]),
                    None if one.get("function") is None else _text(one["function"]),
                )
                for one in fields.get("tasks", ())
            ),
            stopping=fields.get("stopping", False) is True,
            schedules=tuple(
                ScheduleInfo(
                    _text(one["name"]),
                    _text(one["tube"]),
                    _text(one["schedule"]),
                    _time(one["next"]),
                    None if one["last"] is None else _time(one["last"]),
                    None if one["last_result"] is None else _text(one["last_result"]),
                )
                for one in fields.get("schedules", ())
            ),
            unknown=tuple(UnknownFunction(_text(one["tube"]), _text(one["name"])) for one in fields.get("unknown", ())),
            **{name: integer(name, fields.get(name, 0)) for name in ("in_hand", "acked", "released", "buried", "lost")},
        )
    except (TypeError, ValueError, KeyError, AttributeError):
        return None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # Raises ValueError for a text that cannot be shown.
    return value


def _time(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError
    if not _EARLIEST <= value <= _LATEST:
        raise ValueError
    return float(value)
