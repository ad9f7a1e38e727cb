"""The engine of a tube with a journal: it notes what it touches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from typing_extensions import override

from tubes.drivers.engine import Engine

if TYPE_CHECKING:
    from tubes.drivers.driver import Driver
    from tubes.drivers.engine import _Step
    from tubes.drivers.entry import Entry, Hold
    from tubes.durable.folder import Reserve

#: The moves of a task of which its row says whether they are counted already.
PUT, TAKE, ACK = 1, 2, 4


class JournaledEngine(Engine):
    """An engine that notes what its methods touch, until `Journal` has written it.

    A task is noted before it moves: whatever interrupts the move, the journal looks at the task again. New tasks are
    known by their ids.
    """

    __slots__ = (
        "absolute", "born", "done_changed", "keys", "moves", "rates", "remembers", "reserve", "rich", "touched",
        "truncated",
    )  # fmt: skip

    def __init__(self, name: str, driver: Driver, options: Mapping[str, Any] | None = None) -> None:
        #: Leases of other tubes of this name have another number.
        self.born = uuid4().int >> 64
        #: The tasks that moved since the last commit, by id.
        self.touched: Final[dict[int, Entry]] = {}
        #: The done tasks that were added or forgotten since then.
        self.done_changed: Final[set[int]] = set()
        #: Which moves the rows of tasks say: of these tasks all since the facts of the tube were written.
        self.moves: Final[dict[int, int]] = {}
        #: Whether something has changed that the rows of tasks do not say.
        self.absolute = True
        #: The keys and lanes that may be remembered otherwise than before.
        self.keys: Final[set[str]] = set()
        self.rates: Final[set[str]] = set()
        #: Whether a key may be remembered after its task has gone.
        self.remembers = False
        #: Whether all tasks were removed at once.
        self.truncated = False
        #: Whether the state of its tasks has more than that of plain ones.
        self.rich = bool(driver.lane)
        #: The room that puts must leave.
        self.reserve: Reserve | None = None
        super().__init__(name, driver, options)
        self.done.changed = self.done_changed
        # All that happens has a time.
        self.ticking = True
        self.rich = self.rich or self._ranks

    @override
    def _move(self, entry: Entry, step: _Step, hold: Hold | None = None) -> None:
        id = entry.id
        self.touched[id] = entry
        if step is self._take:
            self.moves[id] = self.moves.get(id, 0) | TAKE
        elif step is self._ack:
            self.moves[id] = self.moves.get(id, 0) | ACK
        elif step is not self._put:
            self.absolute = True
        more = entry.more
        if more is not None and more.key is not None:
            self.note_key(more.key, more.key_ttl)
        super()._move(entry, step, hold)

    @override
    def add(self, *task: Any, **options: Any) -> Entry:
        self._need_room()
        return super().add(*task, **options)

    @override
    def check_ranks(self, now: int, tasks: Iterable[tuple[Any, Mapping[str, Any]]]) -> None:
        self._need_room()
        super().check_ranks(now, tasks)

    def _need_room(self) -> None:
        """Raise `StoreFull` if the disk was full, and is so still."""
        if self.reserve is not None and self.reserve.missing:
            self.reserve.need()

    def note_key(self, key: str, ttl: int) -> None:
        """Note a key whose task comes or goes."""
        self.remembers = self.remembers or ttl > 0
        if self.remembers:
            self.absolute = True
            self.keys.add(key)

    @override
    def note(self, entries: Iterable[Entry]) -> None:
        self.absolute = True
        self.touched.update((entry.id, entry) for entry in entries)
        for entry in entries:
            if entry.more is not None and entry.more.key is not None:
                self.note_key(entry.more.key, entry.more.key_ttl)

    def note_all(self) -> None:
        """Note all that is there: after a truncate nothing, unless that was broken off or a task came after it."""
        self.touched.update(self.tasks)
        self.keys.update(self._keys._gone)
        if self.driver.lane:
            self.rates.update(self.lanes.by_name, self.lanes.rates.alone)

    @override
    def alter(self, now: int, options: Mapping[str, Any]) -> None:
        self.absolute = True
        super().alter(now, options)

    @override
    def truncate(self) -> None:
        self.absolute = self.truncated = True
        super().truncate()

    @override
    def block(self, now: int, name: str, span: int) -> None:
        self.absolute = True
        self.rates.add(name)
        super().block(now, name, span)

    @override
    def configure(self, now: int, name: str, changes: Mapping[str, int | None]) -> None:
        self.absolute = True
        self.rates.add(name)
        super().configure(now, name, changes)

    @override
    def _apply_pause(self) -> None:
        # Also when the indexes are made again: moves that were noted may not have happened.
        self.absolute = True
        super()._apply_pause()
