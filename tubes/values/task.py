"""What users see of a task: frozen facts. Its verbs stand with those of its tube, in `tubes/sync.py` and `aio.py`."""

from __future__ import annotations

import logging
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self

from typing_extensions import TypeVar

from tubes.drivers.entry import KEPT
from tubes.drivers.moves import State
from tubes.drivers.options import RESERVED, SECOND
from tubes.drivers.timers import NEVER
from tubes.errors import CodecError, TaskNotTaken, TubesError, cut
from tubes.values.codecs import decode

if TYPE_CHECKING:
    from tubes.drivers.done import Done
    from tubes.drivers.entry import Entry, More
    from tubes.values.codecs import Codec
    from tubes.values.lease import Lease


_log = logging.getLogger("tubes")
#: The type of a task's data. Nothing checks it when a program runs.
T = TypeVar("T", default=Any)
#: The type of what a handler of a tube's tasks returns.
R = TypeVar("R", default=Any)
# Characters of data in what `repr` says of a task.
_SHOWN: Final = 80


def _seconds(micros: int | None) -> float | None:
    return None if micros is None or micros == NEVER else micros / SECOND


class Record(Protocol):
    """What a backend keeps of a task and a `Task` shares with it: what never changes while the record lives."""

    id: int
    data: Any
    utube: str | None
    pri: int
    created: int


class TaskView(Generic[T]):
    """What is known of a task at the moment of the call that answered it. Nothing here changes later."""

    __slots__ = (
        "_attempts",
        "_more",
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
    _more: More | None
    _times: tuple[int | None, int | None, int | None, int | None]  # ttl, ttr, due, dead
    # Which take of the task this is, and `FINISHED` once the caller has dealt with it through this object.
    _take: int

    @property
    def id(self) -> int:
        """The number of the task in its tube. Numbers only grow; none is given twice."""
        return self._record.id

    @property
    def state(self) -> State:
        """Where the task stood when the call returned: `"ready"`, `"taken"`, `"done"`, `"buried"` or `"delayed"`."""
        return self._state

    @property
    def data(self) -> T:
        """What was put. Raises `CodecError` if it cannot be decoded; the task itself is in order then."""
        codec: Codec | None = self._tube._port.codec
        data: T = self._record.data if codec is None else decode(codec, self._record.data)
        return data

    @property
    def utube(self) -> str | None:
        """The task's lane; None if it was put without one, or the driver has no lanes."""
        return self._record.utube

    @property
    def pri(self) -> int:
        """The priority: 0 comes first."""
        return self._record.pri

    @property
    def attempts(self) -> int:
        """How often the task was taken, this take included."""
        return self._attempts

    @property
    def calls(self) -> dict[str, int]:
        """How often this has happened to the task, by the names of `Statistics.calls`: `release ttr bury kick`.

        `ttr` counts timeouts: takes that were ended by the ttr. A release by the end of a session counts, a task that a
        worker left to others does not. Of a task that is done the last attempt counts as ended by that.

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
        past = 0 if self._more is None else self._more.past
        timeouts, kicks, buries, by_holder = (past >> bits & 0xFFFFFFFF for bits in (0, 32, 64, 96))
        ended = self._attempts - (self._state is State.TAKEN or self._state is State.DONE)
        return {"release": max(ended - timeouts - by_holder, 0), "ttr": timeouts, "bury": buries, "kick": kicks}

    @property
    def max_attempts(self) -> int | None:
        """How often the task may be taken: when the last attempt fails it is buried. None: any number of times."""
        return None if self._more is None else self._more.max_attempts or None

    @property
    def reason(self) -> str | None:
        """Why the task is buried; None if nobody said so, or it is not."""
        return None if self._more is None else self._more.reason

    @property
    def keep_done(self) -> float | None:
        """For how many seconds the task is kept after its end; None: not at all."""
        return None if self._more is None or not self._more.keep_done else self._more.keep_done / SECOND

    @property
    def result(self) -> Any:
        """What the holder of a done task said when it acked it; None: nothing, or the task is not done.

        `peek` and `tasks` find it, and listeners hear it; `Tube.result` waits for it. Raises `CodecError` if it cannot
        be decoded.
        """
        codec: Codec | None = self._tube._port.codec
        result = getattr(self._record, "result", None)
        return result if codec is None or result is None else decode(codec, result)

    @property
    def ended(self) -> float | None:
        """When a done task that is kept ended: seconds since the epoch; None: it is not done, or not kept."""
        return _seconds(getattr(self._record, "ended", None))

    @property
    def why(self) -> str | None:
        """How a done task that is kept ended: "ack", "delete" or "ttl"; None: it is not done, or not kept."""
        why: str | None = getattr(self._record, "why", None)
        return why

    @property
    def key(self) -> str | None:
        """The key: while the task lives there is no other one of its key in the tube. None: it has none."""
        return None if self._more is None else self._more.key

    @property
    def context(self) -> dict[str, str]:
        """What travels with the task besides its data, trace ids for example: a copy; empty if it was put without.

        It may be handed on to another task; who is to hear of this one (`call`) is no part of it.
        """
        context = None if self._more is None else self._more.context
        return {name: words for name, words in context.items() if not name.startswith(RESERVED)} if context else {}

    @property
    def created_now(self) -> bool:
        """False if a put found a task of this key, and answered that one instead of adding another."""
        return self._more is None or self._more.met != KEPT

    @property
    def created(self) -> float:
        """When the task was put: seconds since the epoch, by the clock of the queue."""
        return self._record.created / SECOND

    @property
    def ttl(self) -> float | None:
        """The time to live in seconds since it was put, with what delays and touches added to it; None: for ever."""
        return _seconds(self._times[0])

    @property
    def ttr(self) -> float | None:
        """The time to run in seconds, that a worker has from its take; None: as long as it likes."""
        return _seconds(self._times[1])

    @property
    def due(self) -> float | None:
        """When the task moves next by itself (delay, ttr or ttl over): seconds since the epoch; None: never."""
        return _seconds(self._times[2])

    @property
    def expires(self) -> float | None:
        """When the ttl runs out: seconds since the epoch; None: never."""
        return _seconds(self._times[3])

    @property
    def tube(self) -> str:
        """The name of the task's tube."""
        name: str = self._tube.name
        return name

    @property
    def lease(self) -> Lease:
        """The hold of this take as text, by which other sessions and processes may ack the task: see `Lease`.

        It costs no call. Raises `TaskNotTaken` if the task was not taken, or this object has ended its take.
        """
        self._check_taken()
        if self._take == FINISHED:
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
        shown = [f"id={self.id}", f"state='{self._state}'", f"data={cut(repr, data, _SHOWN)}", f"tube={self.tube!r}"]
        shown += [
            f"{name}={value!r}"
            for name in ("utube", "pri", "attempts", "key", "context", "reason")
            if (value := getattr(self, name))
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


_key = attrgetter(
    "tube", "id", "_state", "_attempts", "_more", "_record.data", "utube", "pri", "_record.created", "_times"
)

F = TypeVar("F", bound=TaskView[Any])


NO_TIMES = (None, None, None, None)

FINISHED: Final = -1


class Origin(Protocol):
    """Where a task comes from: the tube that its verbs go to."""

    @property
    def name(self) -> str: ...


def snapshot(kind: type[F], tube: Origin, entry: Entry | Done, timed: bool) -> F:
    """The entry as it is now. In every verb's path: hence no __init__, and plain stores."""
    task = kind()
    task._tube = tube
    task._record = entry
    task._state = entry.state  # type: ignore[assignment]
    task._attempts = entry.attempts
    task._more = entry.more
    task._times = (entry.ttl, entry.ttr, entry.due, entry.dead) if timed else NO_TIMES
    task._take = entry.take
    return task


def of_other_api(kind: type[F], tube: Origin, task: TaskView) -> F:
    """Make a copy of a task, of the same take, for the tube of the other API."""
    other = kind()
    for slot in TaskView.__slots__:
        setattr(other, slot, getattr(task, slot))
    other._tube = tube
    return other


def log_lost(error: TubesError) -> None:
    """A loop over a tube came back for the next task, and its last one was not its own any more."""
    _log.warning("a task was finished too late, and may be done twice: %s", error)
