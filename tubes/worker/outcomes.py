"""The exceptions that a handler may raise, and the verdict on its task that follows from them."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from traceback import format_exception
from types import EllipsisType, TracebackType
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from tubes.drivers.failures import MAX_TRACEBACK
from tubes.drivers.options import Seconds, micros, seconds
from tubes.errors import InvalidOption, cut, excerpt
from tubes.values.task import FINISHED, TaskView
from tubes.values.task_data import function_of
from tubes.worker.logs import TaskName, log

#: Longest reason, in characters.
_MAX_REASON: Final = 500
#: Longest name of a function in a log and in a list.
MAX_NAME: Final = 200
#: Names that a log line shows as they are.
_PLAIN_NAME: Final = re.compile(r"[\w.:-]{1,80}", re.ASCII)
#: The reason of a task that is buried after a `Retry` without a reason.
_RETRY_REASON: Final = "max_attempts: retry"


class Retry(Exception):
    """Raised by a handler to try the task again later.

    `delay`: seconds until the next attempt; None: the tube's backoff. With a driver without delays the task is ready at
    once.
    `reason`: stored with the task if this was its last attempt and it is buried.
    `counts`: False: do not count this attempt, for example because the other side was too busy. `attempts` is restored,
    and the task is never buried.
    `pause`: True: pause the tube until then, as after a 429: no worker takes another task of it before. The latest end
    of several pauses counts. It needs a `delay`.

    >>> raise Retry(delay=30)
    Traceback (most recent call last):
    tubes.worker.outcomes.Retry: again in 30 s
    """

    delay: Seconds | None = None
    counts: bool = True
    pause: bool = False

    def __init__(
        self, delay: Seconds | None = None, reason: str | None = None, *, counts: bool = True, pause: bool = False
    ) -> None:
        if pause and delay is None:
            raise InvalidOption(option="pause", value=pause, rule="needs a delay, such as Retry(delay=30, pause=True)")
        retry_in = "again" if delay is None else f"again in {seconds('delay', delay)} s"
        super().__init__(reason or retry_in)
        self.delay, self.reason, self.counts, self.pause = delay, reason, counts, pause

    def __reduce__(self) -> tuple[object, ...]:
        # The message is not an argument of __init__, and the error may be pickled by another process.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[Retry], args: tuple[object, ...], facts: dict[str, object]) -> Retry:
    error: Retry = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class Bury(Exception):
    """Raised by a handler to bury the task with this reason. It is not tried again until it is kicked.

    >>> raise Bury("no such address")
    Traceback (most recent call last):
    tubes.worker.outcomes.Bury: no such address
    """

    def __init__(self, reason: str = "buried by its handler") -> None:
        super().__init__(reason)


class Interrupted(BaseException):
    """Raised by `Task.checkpoint` in a handler whose worker is shutting down. Do not catch it, except to clean up.

    The worker gives the task back without counting the attempt, and the next worker continues at the checkpoint. It is
    a `BaseException`, so that `except Exception` in a handler does not catch it.

    >>> raise Interrupted
    Traceback (most recent call last):
    tubes.worker.outcomes.Interrupted: the worker is shutting down
    """

    def __init__(self) -> None:
        super().__init__("the worker is shutting down")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), ()


#: How an attempt ended.
Outcome: TypeAlias = Literal["acked", "released", "buried", "lost", "cancelled"]


class Verdict(NamedTuple):
    """How to finish a task after its handler has ended, and what to reply to a caller."""

    #: The method of the tube to call. "decline": release the task without counting the attempt.
    method: Literal["ack", "release", "bury", "decline"]
    #: The reason, unless the task is acked.
    reason: str | None = None
    #: The delay of a release in seconds; None: the tube's backoff.
    delay: Seconds | None = None
    #: The handler's error; None if it returned, or raised `Retry` or `Bury`.
    error: BaseException | None = None
    #: The return value of the handler.
    result: object = None
    #: True if the handler was cancelled, by itself or from outside.
    is_cancelled: bool = False
    #: True if the verdict was already logged.
    is_logged: bool = False
    #: True if the handler stopped at a checkpoint because its worker is shutting down.
    is_interrupted: bool = False
    #: True if the tube is paused for `delay` first.
    pauses: bool = False

    def is_last(self, task: TaskView) -> bool:
        if self.method == "decline":
            return False
        return self.method != "release" or (task.max_attempts is not None and task.attempts >= task.max_attempts)

    def reason_for(self, task: TaskView) -> str | None:
        """Return the reason of a release; None for a plain `Retry`, which is no error unless it is the last attempt."""
        return None if self.reason == _RETRY_REASON and not self.is_last(task) else self.reason

    def leaves_result(self, task: TaskView) -> bool:
        """Return True if the task is done and is kept with a result."""
        return self.method == "ack" and self.result is not None and task.keep_done is not None

    def is_endless(self, task: TaskView) -> bool:
        """Return True if the task is released without a delay and without a limit of attempts."""
        if self.method not in ("release", "decline") or task._take == FINISHED:
            return False
        is_delayed = bool(self.delay) and "delay" in task._tube.driver.options
        is_limited = self.method == "release" and task.max_attempts is not None
        return not is_delayed and not is_limited


#: The verdict on a task whose worker shuts down before its handler has ended.
DECLINED: Final = Verdict("decline", delay=0, is_logged=True)


def verdict_of(error: BaseException) -> Verdict:
    """Return the verdict for an error of a handler."""
    if is_interruption(error):
        return Verdict("decline", "the worker is shutting down", 0, is_interrupted=True)
    if isinstance(error, Retry):
        delay = error.delay
        try:
            if delay is not None:
                micros("delay", delay)
        except InvalidOption as wrong:  # A program may assign any `delay`.
            return Verdict("release", reason_of(wrong), error=wrong)
        has_reason = type(error) is not Retry or getattr(error, "reason", None) is not None
        reason = reason_of(error) if has_reason else _RETRY_REASON
        if not error.counts:
            return Verdict("decline", reason, 0 if delay is None else delay, pauses=error.pause)
        return Verdict("release", reason, delay, pauses=error.pause)
    if isinstance(error, Bury):
        return Verdict("bury", _message_of(error) or "buried by its handler")
    return Verdict("release", reason_of(error), error=error)


def is_interruption(error: BaseException) -> bool:
    """Return True for an `Interrupted`, even if a task group has wrapped it."""
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).split(Interrupted)[1] is None
    return isinstance(error, Interrupted)


def log_verdict(
    task: TaskView, verdict: Verdict, outcome: Outcome | Literal["deferred"], retry_in: float | None = None
) -> None:
    """Log the outcome of a handler that raised an error. `retry_in`: seconds until the next attempt.

    The line does not contain the task's data, which may be confidential.
    """
    if verdict.method == "ack" or verdict.is_logged or (verdict.reason is None and verdict.error is None):
        return
    is_endless = task.max_attempts is None
    attempt = f"attempt {task.attempts}" + ("" if is_endless else f" of {task.max_attempts}")
    then = {
        "buried": "is buried",
        "lost": "was lost meanwhile",
        "released": f"retries in {retry_in:g} s" if retry_in else "retries at once",
        "deferred": "retries after this burst",
    }.get(outcome, outcome)
    level, trace = logging.WARNING, None
    if verdict.error is not None:
        event = "failed"
        level = logging.ERROR if outcome == "buried" else logging.WARNING
        # The last attempt shows the traceback. Without a limit of attempts the first one does.
        shows_trace = level == logging.ERROR or (is_endless and task.attempts == 1) or log.isEnabledFor(logging.DEBUG)
        trace = trace_of(verdict.error) if shows_trace and not _is_of_worker(verdict.error) else None
    elif verdict.is_interrupted:
        event, level = "stopped at a checkpoint", logging.INFO
    elif verdict.method == "bury":
        event = "was given up by its handler"
    elif outcome == "buried":
        event = "has no attempts left"
    else:
        event = "was sent back by its handler"
        level = logging.INFO if outcome in ("released", "deferred") else logging.WARNING
    if verdict.pauses and outcome != "lost":
        then += ", its tube is paused until then"
    reason = "" if verdict.reason in (None, _RETRY_REASON) else f": {one_line(str(verdict.reason))}"
    log.log(level, "%s %s, %s, %s%s", name_of(task), event, attempt, then, reason, exc_info=trace)


def reason_of(error: BaseException) -> str:
    """Describe an error in one line: `ValueError: no such address`."""
    name, message = type(error).__name__, _message_of(error)
    return f"{name}: {message}" if message else name


def one_line(reason: str) -> str:
    """Return a reason as a log line shows it, which another program may have chosen."""
    return " ".join(cut(str, reason, _MAX_REASON).split())


def _message_of(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:  # An error in the __str__ of a user's class.
        return ""
    return message if len(message) <= _MAX_REASON else message[:_MAX_REASON] + "..."


def name_of(task: TaskView, function: str | EllipsisType | None = ...) -> TaskName:
    """Return the name of a task for a log line, without its data but for the name of the function that it calls.

    `function`: this name, if the caller knows it; otherwise the data is decoded.
    """
    if function is ...:
        function = called_by(task)
    short = "" if function is None else f" ({function if _PLAIN_NAME.fullmatch(function) else excerpt(function)})"
    name = TaskName(f"task {task.id} of tube {task.tube!r}{short}")
    name.fields = {
        "tube": task.tube,
        "task": task.id,
        "attempt": task.attempts,
        "context": task.context,
        "function": function,
    }
    return name


def called_by(task: TaskView) -> str | None:
    """Return the name of the function that a task calls; None if it calls none, or if its data cannot be decoded."""
    try:
        name = function_of(task.data)
        return None if name is None else name[:MAX_NAME]
    except BaseException:  # A codec of the user, or its data, may raise anything.
        return None


def _is_of_worker(error: BaseException) -> bool:
    """Return True if the worker raised this error itself, as at a timeout: its traceback is useless."""
    return error.__cause__ is None and not hasattr(error, "__notes__") and _trace_of_handler(error) is None


def _trace_of_handler(error: BaseException) -> TracebackType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    return trace


def trace_of(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return the `exc_info` of a handler's error, without the frames of the worker that called the handler."""
    return type(error), error, _trace_of_handler(error) or error.__traceback__


def traceback_of(error: BaseException) -> str | None:
    """Return the end of the traceback of a handler's error; None for an error of the worker.

    An error in another process has its traceback there as a note.
    """
    if _is_of_worker(error):
        return None
    try:
        return "".join(format_exception(type(error), error, _trace_of_handler(error))).rstrip()[-MAX_TRACEBACK:]
    except Exception:  # An error in a method of a user's class.
        return None


#: The grace period ended first: handlers were cut off, and their tasks released.
CUT_OFF: Final = 3
#: A second signal, or `stop(now=True)`, ended the run at once.
AT_ONCE: Final = 4


@dataclass
class Summary:
    """The result of a run of a worker: how many tasks ended in each way, and how the run ended.

    >>> Summary(acked=3)
    Summary(acked=3, released=0, buried=0, lost=0, cancelled=0, cut_off=0, exit_code=0)
    """

    #: Tasks whose handlers returned.
    acked: int = 0
    #: Tasks whose handlers failed, or raised `Retry`.
    released: int = 0
    #: Tasks buried after their last attempt, by `Bury`, or because their data cannot be decoded.
    buried: int = 0
    #: Tasks that the worker no longer held when their handlers ended: they were deleted, or another worker took them.
    lost: int = 0
    #: Tasks that were cancelled while their handlers ran: see `Tube.cancel`.
    cancelled: int = 0
    #: Tasks released because the worker ended before their handlers.
    cut_off: int = 0
    #: 0: all tasks were finished; 3: the grace period ended first; 4: ended at once.
    exit_code: int = 0

    def as_text(self) -> str:
        """Return the counts in one line: `3 acked, 0 released, 0 buried, 0 lost, 0 cancelled, 0 cut off`."""
        names = ("acked", "released", "buried", "lost", "cancelled", "cut_off")
        return ", ".join(f"{getattr(self, name)} {name.replace('_', ' ')}" for name in names)
