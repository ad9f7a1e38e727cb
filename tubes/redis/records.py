"""Many tasks as they are now, without taking any."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from operator import itemgetter
from struct import unpack
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from tubes.drivers.entry import NOTHING_MORE
from tubes.errors import TubeNotFound
from tubes.redis import record
from tubes.redis.scripts import TURNS

if TYPE_CHECKING:
    from tubes.redis.calls import Flow
    from tubes.redis.port import Port
    from tubes.sync import Tube

#: Tasks that one call reads; ids that one looks for.
_READS: Final = 2_000
#: How many the first one reads, and bytes that one is to read: large data are not known before.
_FIRST: Final = 2
_BYTES: Final = 500_000
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


class Same(NamedTuple):
    """A column that has one value for all tasks."""

    value: Any


class Part:
    """Some tasks, by columns: the fields of `Row`."""

    __slots__ = ("columns", "size")

    def __init__(self, size: int, columns: Mapping[str, Sequence[Any] | Same]) -> None:
        self.size: Final = size
        self.columns: Final = columns

    def values(self, name: str) -> Sequence[Any]:
        """A column, written out."""
        column = self.columns[name]
        return [column.value] * self.size if isinstance(column, Same) else column

    def having(self, name: str, values: Container[Any]) -> Part:
        """Those whose field is among these."""
        column = self.columns.get(name)
        if isinstance(column, Same):
            return self if column.value in values else Part(0, _EMPTY)
        return self.where([value in values for value in self.values(name)])

    def where(self, keep: Sequence[bool]) -> Part:
        """Those for which this is true."""
        return self if all(keep) else Part(sum(keep), self._where(keep))

    def _where(self, keep: Sequence[bool]) -> dict[str, Sequence[Any] | Same]:
        return {
            name: column if isinstance(column, Same) else list(compress(column, keep))
            for name, column in self.columns.items()
        }

    def rows(self) -> list[Row]:
        """The same one by one."""
        return [Row(*row) for row in zip(*(self.values(name) for name in Row._fields), strict=True)]


class Plain(Part):
    """Tasks without options, of which nothing is stored but the moment of the put, in `HEAD` bytes, and the data.

    Millions of them are read as they are stored, in `raws`, and looked at all together.
    """

    HEAD: Final = 8

    __slots__ = ("raws",)

    def __init__(self, raws: Sequence[bytes], columns: Mapping[str, Sequence[Any] | Same]) -> None:
        super().__init__(len(raws), columns)
        self.raws: Final = raws

    def values(self, name: str) -> Sequence[Any]:
        """A column, written out."""
        if name == "data":
            return [raw[self.HEAD :] for raw in self.raws]
        if name == "created":
            return unpack(f">{self.size}Q", b"".join([raw[: self.HEAD] for raw in self.raws]))
        return super().values(name)

    def where(self, keep: Sequence[bool]) -> Part:
        """Those for which this is true."""
        return self if all(keep) else Plain(list(compress(self.raws, keep)), self._where(keep))


class Extent(NamedTuple):
    """How many tasks there are, the lowest id that may be there, and the next one to be given."""

    tasks: int
    lowest: int
    next: int


class Records:
    """Reads tasks by their ids. For threads; a call looks at 2,000 tasks, each about a µs of the server's.

    >>> import tubes
    >>> from tubes.redis.records import Records
    >>> with tubes.connect("redis://localhost") as queue:
    ...     tube = queue.create_tube("mail", "utubettl")
    ...     tasks = tube.put("to ann", utube="ann"), tube.put("to bob", delay=5)
    ...     records = Records(tube)
    ...     (part,) = records.between(0, records.extent().next)
    ...     [(row.id, row.state, row.utube, row.data) for row in part.rows()]
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

    def between(self, first: int, end: int) -> Iterator[Part]:
        """The tasks with ids from `first` to before `end`."""
        count = _FIRST
        while first < end:
            count = min(count, end - first)
            part = self._read(range(first, first + count))
            yield part
            first, count = first + count, _next(part, count)

    def of(self, ids: Sequence[int]) -> Iterator[Part]:
        """The tasks with these ids that are there."""
        start, count = 0, _FIRST
        while start < len(ids):
            part = self._read(ids[start : start + count])
            yield part
            start, count = start + count, _next(part, count)

    def _read(self, ids: Sequence[int]) -> Part:
        first, last = ids[0], ids[-1]
        together = last - first == len(ids) - 1 and (isinstance(ids, range) or ids == list(range(first, last + 1)))
        told = (first, len(ids)) if together else ("", "", *ids)
        stored = ("HMGET", f"{self._port.home.key}:tasks", *ids)
        return _part(ids, *self._run(self._port.look(stored, "scores", *told, parts=("tasks", "taken", "due"))))

    def _call(self, verb: str, *args: Any, parts: tuple[str, ...]) -> Any:
        return self._run(self._port.ask_alone(verb, *args, parts=parts))

    def _run(self, flow: Flow[Any]) -> Any:
        return self._port.member.run(flow)


_NOTHING: Final = Same(None)
#: What a task has that has no options, and is not due by itself.
_PLAIN: Final[dict[str, Sequence[Any] | Same]] = {
    **dict.fromkeys(("utube", "reason", "key", "due", "expires", "max_attempts"), _NOTHING),
    "pri": Same(0),
}


def _next(part: Part, count: int) -> int:
    """How many tasks to read next, after this many, of which these are there."""
    raws = part.raws if isinstance(part, Plain) else part.values("data")
    size = sum(map(len, raws))
    return max(1, min(_READS, count * 10, _BYTES * part.size // size if size else _READS))


def _part(ids: Sequence[int], raws: list[bytes | None], known: tuple[bytes, bytes]) -> Part:
    """What the server answers."""
    takes, moments = known[0].split(), known[1].split()
    if None in raws:
        there = [raw is not None for raw in raws]
        ids = list(compress(ids, there))
        takes, moments = (words if len(words) <= 1 else list(compress(words, there)) for words in (takes, moments))
    found = [raw for raw in raws if raw is not None]
    # Most tubes have many tasks that are alike: nothing is said of each then.
    alike = len(takes) <= 1 and moments in ([], [b"-"])
    if not found or not alike or any(map(_flags, found)):
        rows = list(_rows(ids, found, takes, moments))
        return Part(len(rows), dict(zip(Row._fields, zip(*rows, strict=True), strict=True)) if rows else _EMPTY)
    taken = bool(takes) and takes[0] != b"-"
    attempts = int(takes[0]) % TURNS if taken else 0
    return Plain(found, {**_PLAIN, "id": ids, "state": Same("t" if taken else "r"), "attempts": Same(attempts)})


_flags: Final = itemgetter(0)
_EMPTY: Final[dict[str, Sequence[Any] | Same]] = dict.fromkeys(Row._fields, ())


def _rows(ids: Iterable[int], raws: list[bytes], takes: list[bytes], moments: list[bytes]) -> Iterator[Row]:
    """The same one by one."""
    each = (words if len(words) > 1 else (words or [b"-"]) * len(raws) for words in (takes, moments))
    for id, raw, take, moment in zip(ids, raws, *each, strict=True):
        stored, at = record.read(id, raw)
        flags = raw[0]
        if take != b"-":
            state, attempts = "t", int(take) % TURNS
        else:
            state = "~" if flags & 1 else "!" if flags & 2 else "r"
            attempts = int.from_bytes(raw[8:11], "big") if flags & 4 else 0
        more = stored.more or NOTHING_MORE
        due = None if moment == b"-" else int(moment)
        expires = None if stored.ttl is None else stored.created + stored.ttl
        yield Row(
            id, state, raw[at:], stored.utube, stored.pri, attempts, more.reason, more.key,
            stored.created, due, expires, more.max_attempts or None,
        )  # fmt: skip
