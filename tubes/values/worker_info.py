"""Workers that run, as `Queue.workers` returns them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

#: The tube in which workers describe themselves. `Queue.tubes` does not list it.
WORKERS: Final = "tubes.workers"
#: Seconds between two descriptions of a worker, and seconds after which the last one expires.
BEAT: Final = 5.0
FORGOTTEN: Final = 15.0
#: How many of its tasks a worker lists.
NAMED: Final = 100


@dataclass(frozen=True, slots=True)
class HandlerInfo:
    """A handler of a worker: its name, the tubes that it takes from, and how many tasks it works on at a time."""

    name: str
    tubes: tuple[str, ...]
    concurrency: int


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task that a worker holds. `since`: when it was taken, in seconds since the epoch."""

    tube: str
    id: int
    attempts: int
    since: float


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker that runs, as it has last described itself: one of `Queue.workers`.

    >>> WorkerInfo(id="7f3e", host="web1", pid=4711, started=1.7e9, acked=12).acked
    12
    """

    #: The uuid of its session.
    id: str
    host: str
    pid: int
    #: When it began to run: seconds since the epoch.
    started: float
    #: When it wrote this: seconds since the epoch.
    seen: float = 0.0
    handlers: tuple[HandlerInfo, ...] = ()
    #: How many tasks it holds, and the oldest of them, at most a hundred.
    in_hand: int = 0
    tasks: tuple[HeldTask, ...] = field(default=())
    #: What became of the tasks so far, as in the `Summary` of its run.
    acked: int = 0
    released: int = 0
    buried: int = 0
    lost: int = 0
    #: Whether it takes no more tasks, and ends when those it holds are finished.
    stopping: bool = False

    @property
    def concurrency(self) -> int:
        """How many tasks all its handlers together work on at a time."""
        return sum(handler.concurrency for handler in self.handlers)


def fields_of(info: WorkerInfo) -> dict[str, object]:
    """A description as it is stored."""
    return asdict(info)


def info_of(fields: Any, seen: float) -> WorkerInfo | None:
    """The stored description; None if it cannot be read, for example because another version wrote it."""
    try:
        known: dict[str, Any] = {name: fields[name] for name in WorkerInfo.__dataclass_fields__ if name in fields}
        handlers = tuple(
            HandlerInfo(str(one["name"]), tuple(map(str, one["tubes"])), int(one["concurrency"]))
            for one in known.get("handlers", ())
        )
        tasks = tuple(
            HeldTask(str(one["tube"]), int(one["id"]), int(one["attempts"]), float(one["since"]))
            for one in known.get("tasks", ())
        )
        known |= {"seen": seen, "handlers": handlers, "tasks": tasks}
        return WorkerInfo(**known)
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
