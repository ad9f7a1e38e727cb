"""What a handler raises, what that means, and what becomes of its task."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeAlias

from tubes.drivers.options import Seconds, micros, seconds
from tubes.values.task import FINISHED, TaskView

#: Characters of a reason.
_LONGEST: Final = 500


class Retry(Exception):
    """Raised by a handler: not now. The task goes back, and comes again.

    `delay`: in so many seconds; None: as the tube's backoff says. A driver without delays has it ready at once.
    `reason`: why; it is kept if that was the task's last attempt, by which it is buried.

    >>> raise Retry(delay=30)
    Traceback (most recent call last):
    tubes.worker.outcomes.Retry: again in 30 s
    """

    delay: Seconds | None = None

    def __init__(self, delay: Seconds | None = None, reason: str | None = None) -> None:
        again = "again" if delay is None else f"again in {seconds('delay', delay)} s"
        super().__init__(reason or again)
        self.delay = delay


class Bury(Exception):
    """Raised by a handler: never. The task is buried, for somebody to look at, with this reason.

    >>> raise Bury("no such address")
    Traceback (most recent call last):
    tubes.worker.outcomes.Bury: no such address
    """

    def __init__(self, reason: str = "buried by its handler") -> None:
        super().__init__(reason)


#: What became of a task.
Outcome: TypeAlias = Literal["acked", "released", "buried", "lost"]


class Verdict(NamedTuple):
    """What the end of a handler means: what is to be done with its task, and what a caller is told."""

    #: What is to be done.
    verb: Literal["ack", "release", "bury"]
    #: Why, if it is not an ack.
    reason: str | None = None
    #: Seconds of a release; None: as the tube's backoff says.
    delay: Seconds | None = None
    #: The handler's error; None: it has returned, or asked for this.
    error: BaseException | None = None
    #: What the handler has returned.
    result: object = None
    #: Whether the handler was cancelled, by itself or from outside.
    is_cancelled: bool = False

    def is_last(self, task: TaskView) -> bool:
        """Whether nobody will try again."""
        return self.verb != "release" or (task.max_attempts is not None and task.attempts >= task.max_attempts)

    def is_endless(self, task: TaskView) -> bool:
        """Whether a task goes back, at once as far as its handler has asked for, and for any number of times."""
        later = bool(self.delay) and "delay" in task._tube.driver.options
        return self.verb == "release" and not later and task.max_attempts is None and task._take != FINISHED


def verdict_of(error: BaseException) -> Verdict:
    """What an error of a handler means."""
    kind = type(error)  # `isinstance` believes what an error says of its class.
    if issubclass(kind, Retry):
        try:
            delay: Any = error.delay  # type: ignore[attr-defined]
            if delay is not None:
                micros("delay", delay)
        except Exception as wrong:  # A class of the user's own.
            return Verdict("release", reason_of(wrong), error=wrong)
        return Verdict("release", reason_of(error), delay)
    if issubclass(kind, Bury):
        return Verdict("bury", _shown(error) or "buried by its handler")
    return Verdict("release", reason_of(error), error=error)


#: The name of a class, whatever its own class says.
_name_of: Final[Any] = type.__dict__["__name__"].__get__


def reason_of(error: BaseException) -> str:
    """An error in a line: `ValueError: no such address`."""
    name, said = _name_of(type(error)), _shown(error)
    return f"{name}: {said}" if said else name


def _shown(error: BaseException) -> str:
    try:
        said = str.__str__(str(error))
    except BaseException:  # Its own __str__ fails, in whatever way.
        return ""
    return said if len(said) <= _LONGEST else said[:_LONGEST] + "..."
