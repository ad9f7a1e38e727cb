"""The outcome of a handler: what it may raise, and what that means for its task."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from tubes.drivers.options import Seconds, micros, seconds
from tubes.values.task import FINISHED, TaskView
from tubes.worker.logs import TaskName, log

#: Characters of a reason.
_LONGEST: Final = 500


class Retry(Exception):
    """Raised by a handler: try the task again later.

    `delay`: seconds until then; None: the tube's backoff. With a driver without delays it is ready at once.
    `reason`: why. It is kept if this was the last attempt, after which the task is buried.
    `counts`: whether this was an attempt. False: `attempts` is as before it, and the task is not buried, as where the
    other side was only too busy.

    >>> raise Retry(delay=30)
    Traceback (most recent call last):
    tubes.worker.outcomes.Retry: again in 30 s
    """

    delay: Seconds | None = None

    counts: bool = True

    def __init__(self, delay: Seconds | None = None, reason: str | None = None, *, counts: bool = True) -> None:
        again = "again" if delay is None else f"again in {seconds('delay', delay)} s"
        super().__init__(reason or again)
        self.delay, self.reason, self.counts = delay, reason, counts

    def __reduce__(self) -> tuple[object, ...]:
        # Its message is no argument of it, and it may come from another process.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[Retry], args: tuple[object, ...], facts: dict[str, object]) -> Retry:
    error: Retry = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class Bury(Exception):
    """Raised by a handler: bury the task with this reason. It is not tried again until somebody kicks it.

    >>> raise Bury("no such address")
    Traceback (most recent call last):
    tubes.worker.outcomes.Bury: no such address
    """

    def __init__(self, reason: str = "buried by its handler") -> None:
        super().__init__(reason)


#: The end of an attempt.
Outcome: TypeAlias = Literal["acked", "released", "buried", "lost"]


class Verdict(NamedTuple):
    """What the end of a handler means for its task, and for a caller."""

    #: The method to call.
    #: "decline": the task is given back, and the attempt does not count.
    verb: Literal["ack", "release", "bury", "decline"]
    #: Why, if it is not an ack.
    reason: str | None = None
    #: Seconds of a release; None: the tube's backoff.
    delay: Seconds | None = None
    #: The handler's error; None: it has returned, or raised `Retry` or `Bury`.
    error: BaseException | None = None
    #: What the handler has returned.
    result: object = None
    #: Whether the handler was cancelled, by itself or from outside.
    is_cancelled: bool = False
    #: Whether it is logged already.
    is_logged: bool = False

    def is_last(self, task: TaskView) -> bool:
        """Whether this is the last attempt."""
        if self.verb == "decline":
            return False
        return self.verb != "release" or (task.max_attempts is not None and task.attempts >= task.max_attempts)

    def leaves_result(self, task: TaskView) -> bool:
        """Whether the task is done, and is kept with a result."""
        return self.verb == "ack" and self.result is not None and task.keep_done is not None

    def is_endless(self, task: TaskView) -> bool:
        """Whether the task is given back without a delay of its own, and without a limit of attempts."""
        if self.verb not in ("release", "decline") or task._take == FINISHED:
            return False
        later = bool(self.delay) and "delay" in task._tube.driver.options
        limited = self.verb == "release" and task.max_attempts is not None
        return not later and not limited


def verdict_of(error: BaseException) -> Verdict:
    """The verdict for an error of a handler."""
    kind = type(error)  # `isinstance` believes what an error says about its class.
    if issubclass(kind, Retry):
        try:
            delay: Any = error.delay  # type: ignore[attr-defined]
            if delay is not None:
                micros("delay", delay)
        except Exception as wrong:  # A class of the user's own.
            return Verdict("release", reason_of(wrong), error=wrong)
        if getattr(error, "counts", True) is False:
            return Verdict("decline", reason_of(error), 0 if delay is None else delay)
        said_why = kind is not Retry or getattr(error, "reason", None) is not None
        return Verdict("release", reason_of(error) if said_why else "max_attempts: retry", delay)
    if issubclass(kind, Bury):
        return Verdict("bury", _shown(error) or "buried by its handler")
    return Verdict("release", reason_of(error), error=error)


def log_verdict(
    task: TaskView, verdict: Verdict, outcome: Outcome | Literal["aside"], again: float | None = None
) -> None:
    """Log the outcome of a handler that has not returned. `again`: seconds until the task comes again.

    Without the task's data, which may be confidential.
    """
    if verdict.verb == "ack" or verdict.is_logged or (verdict.reason is None and verdict.error is None):
        return
    attempt = task.attempts if task.max_attempts is None else f"{task.attempts}/{task.max_attempts}"
    then = {
        "buried": "buried",
        "lost": "but this worker did not hold it any more",
        "released": "again at once" if not again else f"again in {again:g} s",
        "aside": "again after this burst",
    }.get(outcome, outcome)
    if verdict.error is not None:
        level, what = logging.WARNING if outcome in ("released", "aside") else logging.ERROR, "failed"
    elif verdict.verb == "bury":
        level, what = logging.WARNING, "was given up by its handler"
    elif outcome == "buried":
        level, what = logging.WARNING, "has no attempt left"
    else:
        level, what = logging.INFO if outcome in ("released", "aside") else logging.WARNING, "asked for another attempt"
    trace = None if verdict.error is None or _is_of_worker(verdict.error) else trace_of(verdict.error)
    why = "" if verdict.reason is None else f": {verdict.reason}"
    log.log(level, "%s %s (attempt %s), %s%s", name_of(task), what, attempt, then, why, exc_info=trace)


#: What an error has, whatever its class calls so.
_trace_of: Final[Callable[[BaseException], TracebackType | None]] = BaseException.__dict__["__traceback__"].__get__
_cause_of: Final[Callable[[BaseException], BaseException | None]] = BaseException.__dict__["__cause__"].__get__
_dict_of: Final[Callable[[BaseException], dict[str, object]]] = BaseException.__dict__["__dict__"].__get__
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


def name_of(task: TaskView) -> TaskName:
    """A task in a log: without its data."""
    name = TaskName(f"task {task.id} of tube {task.tube!r}")
    name.fields = {"tube": task.tube, "task": task.id, "attempt": task.attempts, "context": task.context}
    return name


def _is_of_worker(error: BaseException) -> bool:
    """Whether the worker has made this error, as when a handler takes too long: its traceback tells nothing."""
    if _cause_of(error) is not None or "__notes__" in _dict_of(error):
        return False
    trace = _trace_of(error)
    while trace is not None:
        if trace.tb_frame.f_globals.get("__package__") != __package__:
            return False
        trace = trace.tb_next
    return True


def trace_of(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """An error as its handler has raised it, for a log: without the frames of who has called that."""
    whole = _trace_of(error)
    trace = whole
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    return type(error), error, trace or whole
