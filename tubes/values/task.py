"""Tasks as users see them: immutable snapshots. `tubes/sync` and `tubes/aio` add the methods of each API."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self

from typing_extensions import TypeVar

from tubes.drivers.entry import KEPT
from tubes.drivers.failures import Failure, failures_of, traceback_of
from tubes.drivers.moves import State
from tubes.drivers.options import RESERVED, SECOND, fraction
from tubes.drivers.timers import NEVER
from tubes.errors import CodecError, InvalidOption, TaskNotTaken, TubesError, cut
from tubes.values.codecs import decode, json_text, value_of_json

if TYPE_CHECKING:
    from tubes.drivers.done import Done
    from tubes.drivers.entry import Entry, Extras
    from tubes.values.codecs import Codec
    from tubes.values.lease import Lease


_log = logging.getLogger("tubes")
_BURIED = (
    "tube %r: a put with a key found the buried task %d, which stays buried: kick or delete it, or put with "
    "on_duplicate='replace'"
)
#: The type of a task's data. It is not checked at run time.
T = TypeVar("T", default=Any)
#: The type of the result of a handler of a tube's tasks.
R = TypeVar("R", default=Any)
# The maximal length of the data in the `repr` of a task.
_MAX_DATA: Final = 80
#: The names of the facts that `Task.checkpoint` stores: in the context of the task, as reserved names.
CHECKPOINT_NAMES: Final = ("saved", "progress", "note")
# The maximal size of a saved value in bytes, and the maximal length of a note.
_MAX_SAVED: Final = 65_536
MAX_NOTE: Final = 1000


def checkpoint_changes(saved: object, progress: object, note: object) -> dict[str, str]:
    """Check and encode the arguments of a checkpoint; None: unchanged."""
    changes: dict[str, str] = {}
    if saved is not None:
        changes["saved"] = text = json_text(saved)
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > _MAX_SAVED:
            rule = f"must be at most {_MAX_SAVED} bytes as JSON, but has {size}"
            raise InvalidOption(option="saved", value=saved, rule=rule)
    if progress is not None:
        changes["progress"] = str(fraction("progress", progress))
    if note is not None:
        if not isinstance(note, str) or len(note) > MAX_NOTE:
            rule = f"must be a string of at most {MAX_NOTE} characters"
            raise InvalidOption(option="note", value=note, rule=rule)
        changes["note"] = str.__str__(note)
    return changes


def reserved_names(facts: Mapping[str, str]) -> dict[str, str]:
    """Return these facts by their reserved names in a context."""
    return {RESERVED + name: words for name, words in facts.items()}


def _seconds(micros: int | None) -> float | None:
    return None if micros is None or micros == NEVER else micros / SECOND


class Record(Protocol):
    """The immutable part of a backend's task, which a `Task` shares instead of copying it."""

    id: int
    data: Any
    utube: str | None
    pri: int
    created: int


def own_context(context: dict[str, str] | None) -> dict[str, str]:
    """Return the names of a stored context that the caller has put."""
    return {name: words for name, words in context.items() if not name.startswith(RESERVED)} if context else {}


class TaskView(Generic[T]):
    """A snapshot of a task at the time of the call that returned it. It does not change later."""

    __slots__ = (
        "_attempts",
        "_extras",
        "_record",
        "_state",
        "_take",
        "_times",
        "_tube",
    )

    _tube: Any
    _record: Record
    _state: State
    _attempts: int
    _extras: Extras | None
    _times: tuple[int | None, int | None, int | None, int | None]  # ttl, ttr, due, dead
    # The number of the take; or `FINISHED` after the caller has ended it through this object, or `CANCELLED` once a
    # worker knows that the task was cancelled.
    _take: int

    @property
    def id(self) -> int:
        """The number of the task in its tube. Numbers increase and are never reused."""
        return self._record.id

    @property
    def partition(self) -> int | None:
        """The number of its partition, in a tube with the option `partitions`; otherwise None."""
        number: int | None = self._tube._part
        return number

    @property
    def state(self) -> State:
        """The state when the call returned: `"ready"`, `"taken"`, `"done"`, `"buried"` or `"delayed"`."""
        return self._state

    @property
    def data(self) -> T:
        """The data of the task. Raises `CodecError` if it cannot be decoded; all other attributes remain usable."""
        codec: Codec | None = self._tube._port.codec
        data: T = self._record.data if codec is None else decode(codec, self._record.data)
        return data

    @property
    def utube(self) -> str | None:
        """The lane; None if the task was put without one, or the driver has no lanes."""
        return self._record.utube

    @property
    def pri(self) -> int:
        """The priority: 0 comes first."""
        return self._record.pri

    @property
    def attempts(self) -> int:
        """The number of takes of the task, including this one."""
        return self._attempts

    @property
    def calls(self) -> dict[str, int]:
        """The number of each of these changes of the task: `release ttr bury kick`.

        `Statistics.calls` has the same names. `ttr` counts takes that were ended by the ttr. `release` includes
        releases by the end of a session, but not tasks that a worker declined. The last attempt of a done task counts
        under none of them.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail")
        ...     _ = tube.put("to ann")
        ...     _ = tube.take().release()
        ...     _ = tube.take().bury("no such address")
        ...     _ = tube.kick()
        ...     tube.peek(0).calls
        {'release': 1, 'ttr': 0, 'bury': 1, 'kick': 1}
        """
        counters = 0 if self._extras is None else self._extras.counters
        timeouts, kicks, buries, by_holder = (counters >> bits & 0xFFFFFFFF for bits in (0, 32, 64, 96))
        ended = self._attempts - (self._state is State.TAKEN or self._state is State.DONE)
        return {"release": max(ended - timeouts - by_holder, 0), "ttr": timeouts, "bury": buries, "kick": kicks}

    @property
    def max_attempts(self) -> int | None:
        """The maximum number of takes: the task is buried when the last attempt fails. None: no limit."""
        return None if self._extras is None else self._extras.max_attempts or None

    @property
    def reason(self) -> str | None:
        """The reason why the task is buried or was cancelled; None: no reason was given."""
        return None if self._extras is None else self._extras.reason

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The last five failures, the last one at the end: releases with a reason, and burials.

        An attempt fails here if it is released with a `reason`, as workers do; a `ttr` that ends is a failure only if
        it buries the task. They survive `kick` and moves to other tubes. A done task keeps them, too, but starts
        without them if it is put again.

        >>> import tubes
        >>> with tubes.connect(clock=tubes.testing.ManualClock(1.7e9)) as queue:
        ...     tube = queue.create_tube("mail", max_attempts=2)
        ...     _ = tube.put("to ann")
        ...     _ = tube.take().release(reason="timeout", worker="web1:4711")
        ...     _ = tube.take().release()
        ...     for failure in tube.peek(0).failures:
        ...         print(failure.attempt, failure.worker, failure.error)
        1 web1:4711 timeout
        2 None max_attempts: release
        """
        return failures_of(None if self._extras is None else self._extras.context)

    @property
    def traceback(self) -> str | None:
        """The traceback of the last failure, at most its last 4096 bytes; None: it is unknown. See `failures`."""
        return traceback_of(None if self._extras is None else self._extras.context)

    @property
    def buried_at(self) -> float | None:
        """The time at which the task was buried, in seconds since the epoch; None: it is not, or `repair` buried it."""
        failures = self.failures if self._state is State.BURIED else ()
        return failures[-1].time if failures else None

    @property
    def keep_done(self) -> float | None:
        """The time for which the task is kept after its end, in seconds; None: it is not kept."""
        return None if self._extras is None or not self._extras.keep_done else self._extras.keep_done / SECOND

    @property
    def result(self) -> Any:
        """The result of a done task, which its holder gave to `ack`; None: it has no result, or is not done.

        `peek`, `select` and listeners return tasks with their results; `Tube.result` waits for the result. Raises
        `CodecError` if it cannot be decoded.
        """
        codec: Codec | None = self._tube._port.codec
        result = getattr(self._record, "result", None)
        return result if codec is None or result is None else decode(codec, result)

    @property
    def ended(self) -> float | None:
        """The time at which the task ended, in seconds since the epoch; None: it is not done, or not kept."""
        return _seconds(getattr(self._record, "ended", None))

    @property
    def why(self) -> str | None:
        """How the task ended: "ack", "delete", "ttl" or "cancelled"; None: it is not done, or not kept."""
        why: str | None = getattr(self._record, "why", None)
        return why

    @property
    def cancelled(self) -> bool:
        """True if the task was cancelled, see `Tube.cancel`. In a handler it becomes True once its worker knows."""
        return self._take == CANCELLED or self.why == "cancelled"

    @property
    def key(self) -> str | None:
        """The unique key: no other task in the tube has the same key while this one exists. None: no key."""
        return None if self._extras is None else self._extras.key

    @property
    def context(self) -> dict[str, str]:
        """Strings that the task carries in addition to its data, such as trace ids: a copy, {} without a context.

        It may be passed to the put of another task: it does not include the address for the reply of a `call`.
        """
        return own_context(None if self._extras is None else self._extras.context)

    def _fact(self, name: str) -> str | None:
        context = None if self._extras is None else self._extras.context
        return context.get(RESERVED + name) if context else None

    @property
    def saved(self) -> Any:
        """The value that a holder saved with `Task.checkpoint` for the next attempt: a copy; None: nothing is saved."""
        text = self._fact("saved")
        return None if text is None else value_of_json(text)

    @property
    def progress(self) -> float | None:
        """The progress of the task, from 0 to 1, by its last `Task.checkpoint`; None: it is unknown."""
        text = self._fact("progress")
        return None if text is None else float(text)

    @property
    def note(self) -> str | None:
        """The note of the last `Task.checkpoint` that had one; None: there is none."""
        return self._fact("note")

    @property
    def created_now(self) -> bool:
        """False if a put found a task with the same key and returned it, instead of adding a new one."""
        return self._extras is None or self._extras.key_effect != KEPT

    @property
    def created(self) -> float:
        """The time of the put: seconds since the epoch, by the clock of the queue."""
        return self._record.created / SECOND

    @property
    def ttl(self) -> float | None:
        """The time to live, in seconds from the put, including the time added by delays and touches; None: for ever."""
        return _seconds(self._times[0])

    @property
    def ttr(self) -> float | None:
        """The time to run, in seconds from the take; None: unlimited."""
        return _seconds(self._times[1])

    @property
    def due(self) -> float | None:
        """The time at which the task's delay, ttr or ttl ends next: seconds since the epoch; None: never."""
        return _seconds(self._times[2])

    @property
    def expires(self) -> float | None:
        """The time at which the ttl ends: seconds since the epoch; None: never."""
        return _seconds(self._times[3])

    @property
    def tube(self) -> str:
        """The name of the task's tube."""
        name: str = self._tube.name
        return name

    @property
    def lease(self) -> Lease:
        """This take as text, with which other sessions and processes may ack the task: see `Lease`.

        It needs no call to the server. Raises `TaskNotTaken` if the task was not taken, or this object has ended its
        take.
        """
        self._check_taken()
        if self._take in ENDED:
            raise TaskNotTaken(id=self.id, tube=self.tube)
        lease: Lease = self._tube._port.lease_of(self)
        return lease

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a task belongs to its session and cannot be pickled: send its data, or its id")

    def _check_taken(self) -> None:
        if self._state is not State.TAKEN:
            raise TaskNotTaken(id=self.id, tube=self.tube)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskView):
            return NotImplemented
        return _key(self) == _key(other)

    def __hash__(self) -> int:
        return hash(self._record.id)

    def __repr__(self) -> str:
        try:
            data = self.data
        except CodecError:
            data = self._record.data
        parts = [
            f"id={self.id}",
            f"state='{self._state}'",
            f"data={cut(repr, data, _MAX_DATA)}",
            f"tube={self.tube!r}",
        ]
        parts += [
            f"{name}={value!r}"
            for name in ("utube", "pri", "attempts", "key", "context", "reason")
            if (value := getattr(self, name))
        ]
        return f"{type(self).__name__}({', '.join(parts)})"


_key = attrgetter(
    "tube", "id", "_state", "_attempts", "_extras", "_record.data", "utube", "pri", "_record.created", "_times"
)

F = TypeVar("F", bound=TaskView, default=Any)


NO_TIMES = (None, None, None, None)

#: Values of `_take` after the take has ended: the caller has ended it, or the task was cancelled.
FINISHED: Final = -1
CANCELLED: Final = -2
ENDED: Final = (FINISHED, CANCELLED)


class Origin(Protocol):
    """The tube of a task, which its methods use."""

    @property
    def name(self) -> str: ...


def snapshot(kind: type[F], tube: Origin, entry: Entry | Done, has_deadlines: bool) -> F:
    """Return a snapshot of an entry. Every call runs this, so it avoids `__init__`."""
    task = kind()
    task._tube = tube
    task._record = entry
    task._state = entry.state  # type: ignore[assignment]
    task._attempts = entry.attempts
    task._extras = entry.extras
    task._times = (entry.ttl, entry.ttr, entry.due, entry.dead) if has_deadlines else NO_TIMES
    task._take = entry.take
    return task


def copy_to_api(kind: type[F], tube: Origin, task: TaskView) -> F:
    """Copy a task, with the same take, to the tube of the other API."""
    other = kind()
    for slot in TaskView.__slots__:
        setattr(other, slot, getattr(task, slot))
    other._tube = tube
    return other


def log_lost_take(error: TubesError) -> None:
    """Log that a loop over a tube could not ack its last task, because it did not hold it any more."""
    _log.warning("a task was finished too late and may be done twice: %s", error)


def log_buried(*tasks: TaskView | None) -> None:
    """Log a warning if a put returned a buried task, found by its key, once for each tube and process."""
    for task in tasks:
        if task is not None and task._state is State.BURIED and not task._tube._port.shared.has_warned_of_buried:
            task._tube._port.shared.has_warned_of_buried = True
            _log.warning(_BURIED, task._tube.name, task.id)
