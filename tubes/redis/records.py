"""Many tasks as they are now, without taking any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from tubes.drivers.entry import NOTHING_MORE
from tubes.errors import TubeNotFound
from tubes.redis import record
from tubes.redis.calls import Call, Flow
from tubes.redis.scripts import TURNS, script
from tubes.redis.wire import ErrorReply, error_of

if TYPE_CHECKING:
    from tubes.redis.port import Port
    from tubes.sync import Tube

#: Tasks that one script reads; ids that one looks for.
_READS: Final = 1_000
_IDS: Final = 5_000


class Row(NamedTuple):
    """A task: what is known of it, with its data as they are stored. Moments are microseconds since 1970."""

    id: int
    state: str
    data: bytes
    utube: str | None
    pri: int
    attempts: int
    reason: str | None
    key: str | None
    created: int
    due: int | None
    expires: int | None
    max_attempts: int | None


class Extent(NamedTuple):
    """How many tasks there are, the lowest id that may be there, and the next one to be given."""

    tasks: int
    lowest: int
    next: int


class Records:
    """Reads tasks by their ids. For threads; a script looks at 1,000 tasks, some µs each.

    >>> import tubes
    >>> from tubes.redis.records import Records
    >>> with tubes.connect("redis://localhost") as queue:
    ...     tube = queue.create_tube("mail", "utubettl")
    ...     tasks = tube.put("to ann", utube="ann"), tube.put("to bob", delay=5)
    ...     records = Records(tube)
    ...     [(row.id, row.state, row.utube, row.data) for row in records.between(0, records.extent().next)]
    [(0, 'r', 'ann', b'"to ann"'), (1, '~', None, b'"to bob"')]
    """

    def __init__(self, tube: Tube) -> None:
        self._port: Final[Port[Any]] = cast("Port[Any]", tube._port)

    def extent(self) -> Extent:
        """Where its tasks are."""
        reply = self._call("extent", parts=("tasks",))
        if reply is None:
            raise TubeNotFound(name=self._port.home.name)
        return Extent(*reply)

    def ids(self) -> list[int]:
        """The ids of the tasks that are there all the time that this takes, ascending, and of some that are not."""
        found: set[int] = set()
        cursor: Any = b"0"
        while True:
            cursor, some = self._call("ids", cursor, _IDS, parts=("tasks",))
            found.update(map(int, some.split()))
            if cursor == b"0":
                return sorted(found)

    def between(self, first: int, end: int) -> Iterator[Row]:
        """The tasks with ids from `first` to before `end`."""
        for start in range(first, end, _READS):
            count = min(_READS, end - start)
            yield from _rows(range(start, start + count), *self._read(start, count))

    def of(self, ids: Sequence[int]) -> Iterator[Row]:
        """The tasks with these ids that are there."""
        for start in range(0, len(ids), _READS):
            some = ids[start : start + _READS]
            yield from _rows(some, *self._read("", "", *some))

    def _read(self, *args: Any) -> Any:
        return self._call("records", *args, parts=("tasks", "taken", "due"))

    def _call(self, verb: str, *args: Any, parts: tuple[str, ...]) -> Any:
        return self._port.member.run(self._ask(verb, args, parts))

    def _ask(self, verb: str, args: tuple[Any, ...], parts: tuple[str, ...]) -> Flow[Any]:
        reply = yield Call(script(verb), self._port.home.key, args, parts=parts)
        if reply.__class__ is ErrorReply:
            raise error_of(reply, self._port.url)
        return reply


#: How a stored task begins: its flags in a byte, and the moment of its put.
_BEGIN: Final = Struct(">Q").unpack_from


def _rows(ids: Iterable[int], raws: list[bytes | None], scores: bytes, dues: bytes) -> Iterator[Row]:
    """What the script `records` answers."""
    takes, moments = scores.split() or repeat(b"-"), dues.split() or repeat(b"-")
    # Without `strict`: what there is nothing of is repeated.
    for id, raw, take, moment in zip(ids, raws, takes, moments):  # noqa: B905
        if raw is None:
            continue
        state, attempts = "r", 0
        due = None if moment == b"-" else int(moment)
        if take != b"-":
            state, attempts = "t", int(take) % TURNS
        (begin,) = _BEGIN(raw)
        flags = begin >> 56
        if not flags:
            yield Row(id, state, raw[8:], None, 0, attempts, None, None, begin, due, None, None)
            continue
        if take == b"-":
            state = "~" if flags & 1 else "!" if flags & 2 else "r"
            attempts = int.from_bytes(raw[8:11], "big") if flags & 4 else 0
        stored, at = record.read(id, raw)
        more = stored.more or NOTHING_MORE
        expires = None if stored.ttl is None else stored.created + stored.ttl
        yield Row(
            id, state, raw[at:], stored.utube, stored.pri, attempts, more.reason, more.key,
            stored.created, due, expires, more.max_attempts or None,
        )  # fmt: skip
