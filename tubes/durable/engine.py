"""The engine of a tube with a journal: it notes its changes for the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from typing_extensions import override

from tubes.drivers.engine import Engine
from tubes.drivers.keys import stable_digest
from tubes.drivers.moves import State
from tubes.drivers.options import KEEP

if TYPE_CHECKING:
    from tubes.drivers.driver import Driver
    from tubes.drivers.engine import _Step
    from tubes.drivers.entry import Entry, Hold
    from tubes.drivers.lanes import Lanes
    from tubes.durable.folder import Reserve

#: Bits of the column `moved`: the moves that a task has made in the current epoch.
PUT, TAKE, ACK = 1, 2, 4


class Deferred:
    """Unwritten changes that were made by time or by the end of a session.

    They need not be written, because a restart repeats them. So they wait while the disk is full, unless a call changes
    the same task.
    """

    def __init__(self) -> None:
        #: The tasks that have moved.
        self.tasks: Final[dict[int, Entry]] = {}
        #: The done tasks that were added or forgotten.
        self.done: Final[set[int]] = set()
        #: The moves by task, and the number of moves by kind.
        self._steps: Final[dict[int, list[_Step]]] = {}
        self._uses: Final[Counter[_Step]] = Counter()

    def count(self, id: int, step: _Step) -> None:
        self._steps.setdefault(id, []).append(step)
        self._uses[step] += 1

    def count_uses(self, written: Iterable[int]) -> Counter[_Step]:
        """Return the number of moves by kind, except moves of the `written` tasks."""
        if not self.tasks:
            return Counter()
        return self._uses - Counter(step for id in written for step in self._steps.get(id, ()))

    def forget(self, tasks: Iterable[int], done: Iterable[int]) -> None:
        if self.tasks:
            self._uses.subtract(step for id in tasks for step in self._steps.pop(id, ()))
            for id in tasks:
                self.tasks.pop(id, None)
        self.done.difference_update(done)

    def clear(self) -> None:
        for noted in (self.tasks, self.done, self._steps, self._uses):
            noted.clear()


class JournaledEngine(Engine):
    """An engine that notes its changes until `Journal` has written them.

    It notes a task before it moves the task, so that the journal writes the task even if an interrupt ends the move
    halfway. New tasks are known by their ids.
    """

    __slots__ = (
        "_noted", "born", "deferred", "dirty", "dirty_done", "facts_changed", "has_extras", "keys",
        "keys_outlive_tasks", "moves", "previous_holds", "rates", "reserve", "truncated",
    )  # fmt: skip

    key_digest = staticmethod(stable_digest)

    def __init__(self, name: str, driver: Driver, options: Mapping[str, object] | None = None) -> None:
        #: A random number in leases, which distinguishes this tube from others of its name.
        self.born = uuid4().int >> 64
        #: Tasks that calls have changed since the last commit, by id.
        self.dirty: Final[dict[int, Entry]] = {}
        #: Other changes, which may be written later.
        self.deferred: Final = Deferred()
        # The mapping to which `_move` adds the task: `dirty`, or the tasks of `deferred`.
        self._noted = self.dirty
        #: Holds and take numbers at the last commit of changed tasks that were taken then.
        self.previous_holds: Final[dict[int, tuple[Hold, int]]] = {}
        #: Done tasks that were added or removed since the last commit.
        self.dirty_done: Final[set[int]] = set()
        #: Moves (`PUT`, `TAKE`, `ACK`) in the current epoch, by task.
        self.moves: Final[dict[int, int]] = {}
        #: True if a change requires writing the facts of the tube, because rows of tasks do not contain it.
        self.facts_changed = True
        #: The digests of keys, and the lanes, whose rows may have to change.
        self.keys: Final[set[int]] = set()
        self.rates: Final[set[str]] = set()
        #: True if a key may outlive its task.
        self.keys_outlive_tasks = False
        #: True after a truncate.
        self.truncated = False
        #: True if the rows of its tasks need all columns.
        self.has_extras = bool(driver.lane)
        #: The reserve of disk space.
        self.reserve: Reserve | None = None
        super().__init__(name, driver, options)
        # Every change needs its time.
        self.uses_time = True
        self.has_extras = self.has_extras or self._ranks

    @override
    def _move(self, entry: Entry, step: _Step, hold: Hold | None = None) -> None:
        id = entry.id
        if entry.hold is not None:
            self.previous_holds.setdefault(id, (entry.hold, entry.take))
        self._noted[id] = entry
        if step is self._take:
            self.moves[id] = self.moves.get(id, 0) | TAKE
        elif step is self._ack:
            self.moves[id] = self.moves.get(id, 0) | ACK
        elif self._noted is not self.dirty:
            self.deferred.count(id, step)
        elif step is not self._put:
            self.facts_changed = True
        extras = entry.extras
        if extras is not None and extras.key is not None and self._noted is self.dirty:
            self.note_key(extras.key, extras.key_ttl)
        super()._move(entry, step, hold)

    @contextmanager
    def _defer_changes(self) -> Generator[None]:
        """Note changes in the block as deferred."""
        self._noted, self.done.changed = self.deferred.tasks, self.deferred.done
        try:
            yield
        finally:
            self._stop_deferring()

    def _stop_deferring(self) -> None:
        self._noted, self.done.changed = self.dirty, self.dirty_done

    @override
    def expire(self, now: int) -> bool:
        with self._defer_changes():
            return super().expire(now)

    @override
    def close_hold(self, now: int, hold: Hold, ids: Iterable[int] | None = None) -> bool:
        with self._defer_changes():
            return super().close_hold(now, hold, ids)

    def count_rows(self) -> int:
        """Return the number of rows of tasks after the next commit."""
        if self.truncated:
            return len(self.tasks)
        return len(self.tasks) + sum(id not in self.tasks and id not in self.dirty for id in self.deferred.tasks)

    def merge_deferred(self) -> None:
        """Move a deferred change to the changes of calls if a call has changed the same task."""
        deferred = self.deferred
        if not (deferred.tasks or deferred.done):
            return
        self.note([deferred.tasks[id] for id in deferred.tasks.keys() & (self.dirty.keys() | self.dirty_done)])
        self.dirty_done.update(deferred.done & self.dirty.keys())

    @override
    def add(self, *task: Any, **options: Any) -> Entry:
        self.check_room()
        return super().add(*task, **options)

    @override
    def check_ranks(self, now: int, tasks: Iterable[tuple[object, Mapping[str, object]]]) -> None:
        self.check_room()
        super().check_ranks(now, tasks)

    def check_room(self) -> None:
        """Raise `StoreFull` if the disk was full and still is."""
        if self.reserve is not None and self.reserve.missing:
            self.reserve.restore()

    @override
    def update(self, now: int, entry: Entry, data: object = KEEP, *changes: Any, **others: Any) -> Entry:
        if data is not KEEP:
            self.check_room()
        return super().update(now, entry, data, *changes, **others)

    @override
    def checkpoint(self, now: int, entry: Entry, changes: Mapping[str, str]) -> None:
        if changes:
            self.check_room()
        super().checkpoint(now, entry, changes)

    @override
    def begin_move(self, entry: Entry, pri: int | None, data: object = KEEP) -> Entry:
        if data is not KEEP:
            self.check_room()
        return super().begin_move(entry, pri, data)

    @override
    def ack(self, now: int, entry: Entry, result: Any = None) -> None:
        if entry.extras is not None and entry.extras.keep_done and self.reserve is not None and self.reserve.missing:
            self.reserve.check_optional()
        super().ack(now, entry, result)

    def note_key(self, key: str, ttl: int) -> None:
        """Note a key whose task is added or removed."""
        self.keys_outlive_tasks = self.keys_outlive_tasks or ttl > 0
        if self.keys_outlive_tasks:
            self.facts_changed = True
            self.keys.add(stable_digest(key))

    @override
    def note(self, entries: Iterable[Entry]) -> None:
        self.facts_changed = True
        self.dirty.update((entry.id, entry) for entry in entries)
        for entry in entries:
            if entry.hold is not None:
                self.previous_holds.setdefault(entry.id, (entry.hold, entry.take))
            if entry.extras is not None and entry.extras.key is not None:
                self.note_key(entry.extras.key, entry.extras.key_ttl)

    def note_everything(self) -> None:
        """Note all tasks, keys and lanes. A completed truncate leaves none, but an interrupt or a later put may."""
        self.dirty.update(self.tasks)
        self.dirty_done.update(done.id for done in self.done.all())
        self.keys.update(self._keys.all_known())
        if self.driver.lane:
            self.rates.update(self.lanes.by_name, self.lanes.rates.alone)

    @override
    def alter(self, now: int, options: Mapping[str, object]) -> None:
        self.facts_changed = True
        super().alter(now, options)

    @override
    def truncate(self) -> object:
        self.facts_changed = self.truncated = True
        self.previous_holds.update(self.get_written_holds())
        return super().truncate()

    def get_written_holds(self) -> dict[int, tuple[Hold, int]]:
        """Return holds and take numbers by task at the last commit. Tasks in `deferred` are not held."""
        holds = self._holds.values()
        held = {id: (hold, entry.take) for hold in holds for id, entry in hold.items() if id not in self.dirty}
        return {id: by for id, by in (held | self.previous_holds).items() if id not in self.deferred.tasks}

    def clear_tasks(self) -> None:
        """Remove all tasks, before the tasks in the file are read."""
        super().truncate()
        self.pending_replacement = self.pending_end = self.pending_move = None

    def restore_holds(self, held: Mapping[int, tuple[Hold, int]]) -> None:
        """Restore holds and take numbers of tasks. The caller rebuilds the indexes."""
        for number, (hold, take) in held.items():
            entry = self.tasks.get(number)
            if entry is not None and entry.state is State.TAKEN:
                entry.hold, entry.take = hold, take
                self._holds[id(hold)] = hold

    def clear_notes(self) -> None:
        """Clear the notes after a commit, except deferred changes."""
        self.deferred.forget(self.dirty, self.dirty_done)
        for noted in (self.dirty, self.previous_holds, self.moves, self.keys, self.rates, self.dirty_done):
            noted.clear()
        self.facts_changed = self.truncated = False

    @override
    def forget_key(self, now: int, key: str) -> bool:
        self.note_key(key, 0)
        return super().forget_key(now, key)

    @override
    def block(self, now: int, name: str, span: int, *, extend: bool = False, reason: str | None = None) -> None:
        self.facts_changed = True
        self.rates.add(name)
        super().block(now, name, span, extend=extend, reason=reason)

    @override
    def configure(self, now: int, name: str, changes: Mapping[str, object]) -> None:
        self.facts_changed = True
        self.rates.add(name)
        super().configure(now, name, changes)

    @override
    def _clear_indexes(self, before: Lanes | None = None) -> None:
        self._stop_deferring()  # An interrupt may have ended `_defer_changes`.
        super()._clear_indexes(before)

    @override
    def _apply_pause(self) -> None:
        # This also runs while indexes are rebuilt: then some of the noted moves may not have happened.
        self.facts_changed = self.facts_changed or self._noted is self.dirty
        super()._apply_pause()
