"""Every error that tubes raises. The first line of an error's docstring is its message, without its full stop.

A call that raises one has changed nothing, except that after `ConnectionLost` it may have taken effect.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from inspect import getdoc
from typing import Any, Final, TypeAlias

# The maximum number of characters of a value in a message.
_LONGEST: Final = 500
# The maximum number of characters that an error, a log or a reason quotes from a task's data, which may be private.
_EXCERPT: Final = 80
# The maximum number of names that are compared with an unknown name.
_MOST_COMPARED: Final = 10_000
# Words of our pages and of other libraries, and the names that they stand for.
_SYNONYMS: Final = {
    "lane": "utube", "priority": "pri", "retries": "max_attempts", "max_retries": "max_attempts",
    "valkey": "redis", "valkeys": "rediss",
}  # fmt: skip
#: Named values of any type, such as the facts of an error, the members of a JSON object, or options.
Facts: TypeAlias = dict[str, Any]


class TubesError(Exception):
    """the queue could not do this."""

    def __init__(self, **facts: Any) -> None:
        self.facts: Facts = facts
        message = self._text(facts).format_map({name: _Value(value) for name, value in facts.items()})
        # The message may be followed by other text, and its last value may end with a full stop.
        if not message.endswith("..."):
            message = message.removesuffix(".")
        if "item" in facts:  # In a batch: its number, from 0.
            message = f"item {facts['item']}: {message}"
        elif "row" in facts:  # In a write from Spark: the position of the row, and its bad column.
            message = f"{facts['row']}: {message}"
        elif "moved" in facts:  # The id of a task that the other tube refused.
            message = f"task {facts['moved']} cannot move to tube {facts['to']!r}: {message}"
        super().__init__(message)

    @classmethod
    def _text(cls, facts: Facts) -> str:
        """Return the message with the names of facts in braces."""
        return (getdoc(cls) or "").partition("\n")[0].removesuffix(".")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.facts)


class _Value:
    """A value in a message: cut if it is long, and replaced by its type if its `repr` fails."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        # Exceptions may have no text.
        return cut(str, self._value) or (type(self._value).__name__ if isinstance(self._value, Exception) else "")

    def __repr__(self) -> str:
        return cut(repr, self._value)

    @property
    def brief(self) -> str:
        """The type and the beginning of the value: data may be long and private."""
        return f"{type(self._value).__name__} {cut(repr, self._value, _EXCERPT)}"


def cut(show: Callable[[object], str], value: object, longest: int = _LONGEST) -> str:
    """Convert a value to text of at most `longest` characters."""
    try:
        text = show(value[: longest + 1] if isinstance(value, (str, bytes)) else value)
    except Exception:  # Too many digits, nested too deeply, or an error in the user's __repr__.
        return f"<{type(value).__name__}>"
    return text if len(text) <= longest else text[:longest] + "..."


def excerpt(value: object) -> str:
    """Return the beginning of a value from a task's data, for a log or a reason."""
    return cut(repr, value, _EXCERPT)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message, `; did you mean 'mail'?`; an empty text if no known name is similar."""
    from difflib import get_close_matches

    compared = {other.lower(): other for other in [*known][:_MOST_COMPARED]}
    name = name.lower()
    found = get_close_matches(_SYNONYMS.get(name, name), compared, 1, 0.7)
    return f"; did you mean {compared[found[0]]!r}?" if found else ""


def _rebuild(kind: type[TubesError], facts: dict[str, object]) -> TubesError:
    return kind(**facts)


class TubeNotFound(TubesError, LookupError):
    """there is no tube {name!r}: create it with create_tube, or see whether it was dropped."""

    @classmethod
    def _text(cls, facts: Facts) -> str:
        return "there is no tube {name!r}{hint}" if facts.get("hint") else super()._text(facts)


class TubeExists(TubesError):
    """tube {name!r} exists already: {why}."""


class TubeBusy(TubesError):
    """tube {name!r} cannot be dropped: {taken} of its tasks are taken and {waiting} callers wait on it."""


class DriverNotFound(TubesError, LookupError):
    """there is no driver {name!r}: the known ones are {known}."""

    @classmethod
    def _text(cls, facts: Facts) -> str:
        if "problem" in facts:  # The tube exists, but the function `rank` of its driver is not stored with it.
            return "the driver {name!r} of this tube {problem}: call register_driver first"
        return super()._text(facts)


class DriverExists(TubesError):
    """another driver is registered under the name {name!r}."""


class SessionNotFound(TubesError, LookupError):
    """there is no session {uuid}: it never existed, or it has ended and its tasks were released."""


class QueueClosed(TubesError):
    """this queue is closed: {why}."""


class QueueForked(QueueClosed):
    """this queue belongs to process {parent}: process {child} is a fork of it and must call connect() itself."""


class TaskNotFound(TubesError, LookupError):
    """there is no task {id} in tube {tube!r}: it never existed, or it is done."""

    @classmethod
    def _text(cls, facts: Facts) -> str:
        return "task {id} of tube {tube!r} is not {states}" if "states" in facts else super()._text(facts)


class TaskNotTaken(TubesError):
    """this session does not hold task {id} of tube {tube!r}: it did not take the task, or has lost it since."""

    @classmethod
    def _text(cls, facts: Facts) -> str:
        if "leased" not in facts:
            return super()._text(facts)
        why = "its time to run or its session ended, or the task was released, buried or removed"
        return f"the lease of task {{id}} of tube {{tube!r}} is over: {why}; only a new take gives a new lease"


class TaskCancelled(TaskNotTaken):
    """task {id} of tube {tube!r} was cancelled: {reason}."""

    @classmethod
    def _text(cls, facts: Facts) -> str:
        return "task {id} of tube {tube!r} was cancelled" + (": {reason}" if facts.get("reason") else "")


class DuplicateKey(TubesError):
    """key {key!r} of tube {tube!r} is in use by task {id}, which exists or is still remembered."""


class StreamFenced(TubesError):
    """another reader has opened stream {stream!r} of tube {tube!r} since, and continues it."""


class SparkTooOld(TubesError, NotImplementedError):
    """{what} needs Spark {needed} or newer, and this is Spark {version}."""


class NothingReady(TubesError):
    """no task of tube {tube!r} became ready within {timeout} s."""


class TubeFull(TubesError):
    """tube {tube!r} is full: it has no room for {tasks} more, its capacity is {capacity}."""

    @classmethod
    def _text(cls, facts: Facts) -> str:
        if "max_waiting" in facts:
            return "the token may have {max_waiting} waiting tasks in tube {tube!r}, and this put adds {tasks}"
        return f"lane {{utube!r}} of {super()._text(facts)}" if "utube" in facts else super()._text(facts)


class WriteAborted(TubesError):
    """write {write!r} to tube {tube!r} was aborted: {why}."""


class CallFailed(TubesError):
    """the handler of task {id} of tube {tube!r} failed: {why}."""

    @classmethod
    def _text(cls, facts: Facts) -> str:
        return "task {id} of tube {tube!r} has no result: {why}" if "state" in facts else super()._text(facts)


class CallTimeout(TubesError, TimeoutError):
    """no reply to task {id} of tube {tube!r} within {timeout} s: the task stays in the tube, and may still run."""

    @classmethod
    def _text(cls, facts: Facts) -> str:
        text = "task {id} of tube {tube!r} is not done after {timeout} s: it is {state}"
        return text if "state" in facts else super()._text(facts)


class OptionNotSupported(TubesError, ValueError):
    """driver {driver!r} has no {what}: {why}."""


class InvalidOption(TubesError, ValueError):
    """{option}={value!r}: {rule}."""


class CodecError(TubesError, ValueError):
    """codec {codec!r} cannot {action} {value.brief}: {why}."""


class ExtraMissing(TubesError, ModuleNotFoundError):
    """{what} needs {module}: pip install 'tubes-queue[{extra}]'."""


@contextmanager
def needs(what: str, extra: str) -> Generator[None]:
    """Wrap imports of an optional package: raise `ExtraMissing` if its extra is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "tubes").partition(".")[0]
        if isinstance(error, ExtraMissing) or package == "tubes":
            raise
        missing = ExtraMissing(what=what, module=package, extra=extra)
        missing.name, missing.path = error.name, error.path
        raise missing from error


class ConnectionLost(TubesError, ConnectionError):
    """there is no connection to {url}: {why}."""


class Unreadable(TubesError):
    """the server's data for {what} cannot be read: {why}."""


class StoreBusy(TubesError):
    """process {pid} has {url} open, and only one process may; ?mode=read reads it at the same time."""


class StoreReadOnly(TubesError):
    """{url} is open with mode=read: it shows the state at connect, without workers, and cannot change or wait."""


class StoreFull(TubesError):
    """the disk of {url} is full: nothing was changed, and tasks can still be taken and acked."""

    @classmethod
    def _text(cls, facts: Facts) -> str:
        text = "a task of {url} may have at most {limit} bytes, encoded with its options: nothing was changed"
        return text if "limit" in facts else super()._text(facts)


class StoreFailed(TubesError):
    """{url} cannot be used: {why}."""


class ServerFull(TubesError):
    """{url} has no memory left: it has reached its maxmemory, and nothing was changed."""


class ServerRefused(TubesError):
    """{url} refused: {why}."""
