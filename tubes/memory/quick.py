"""The verbs of every program's inner loop where tasks are plain: without the engine's questions, as was measured.

Plain: ids and data and nothing else, no lanes, places or times, while nobody waits or listens. Each verb does what its
like in `port.py` does, in the same order, so that what an interrupt leaves half done is put in order as there; where
anything is in the way it goes there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tubes.drivers.entry import Entry
from tubes.drivers.moves import State
from tubes.memory.port import Port
from tubes.task import SETTLED, F, snapshot

if TYPE_CHECKING:
    from tubes.drivers.entry import Hold
    from tubes.memory.home import Home
    from tubes.memory.session import Member

_READY, _TAKEN, _DONE = State.READY, State.TAKEN, State.DONE


class QuickPort(Port[F]):
    """A port with short ways."""

    def __init__(self, member: Member, home: Home, hold: Hold) -> None:
        super().__init__(member, home, hold)
        self._plain: Final = home.engine.plain and self.codec is None

    def put(self, data: Any, options: dict[str, Any]) -> F | None:
        """Add a task; None if there is no room."""
        if options or not self._plain:
            return super().put(data, options)
        home = self.home
        engine = self._engine
        task: F | None = None
        id = -1
        try:
            with self._store.lock:
                try:
                    if not (home.watched or engine.ticking or self.gone):
                        id = engine.next_id
                        entry = Entry()
                        entry.id = entry.rank = id
                        entry.data = data
                        entry.created = self._micros()
                        entry.pri = entry.line = entry.attempts = entry.turn = 0
                        entry.utube = entry.lane = entry.hold = entry.index = entry.more = None
                        engine.next_id = id + 1
                        entry.state = _READY
                        engine.tasks[id] = entry
                        engine._put.uses += 1
                        engine._offers.push(entry)
                        task = snapshot(self.kind, self.tube, entry, False)
                except BaseException as error:
                    home.recover(error, id=id)
                    raise
            return super().put(data, options) if task is None else task
        except BaseException:
            if task is not None:
                self._retract(task, is_put=True)
            raise

    def take(self) -> F | None:
        """The first task that may be taken; None if there is none."""
        if not self._plain:
            return super().take()
        home = self.home
        engine = self._engine
        task: F | None = None
        turn = 0
        try:
            with self._store.lock:
                try:
                    if not (home.watched or engine.ticking or self.gone):
                        turn = engine.next_turn
                        entry = engine._pop()
                        if entry is None:
                            return None
                        entry.turn = turn
                        engine.next_turn = turn + 1
                        entry.attempts += 1
                        entry.state = _TAKEN
                        engine._take.uses += 1
                        entry.hold = self.hold
                        self.hold[entry.id] = entry
                        task = snapshot(self.kind, self.tube, entry, False)
                except BaseException as error:
                    home.recover(error, turn=turn)
                    raise
            return super().take() if task is None else task
        except BaseException:
            if task is not None:
                self._retract(task, is_put=False)
            raise

    def ack(self, task: Any) -> F:
        """A held task is done."""
        home = self.home
        engine = self._engine
        if self._plain and task.__class__ is self.kind:
            with self._store.lock:
                try:
                    entry: Any = task._record
                    hold = self.hold
                    if (
                        entry.hold is hold
                        and entry.turn == task._turn
                        and entry.more is None
                        and not (home.watched or engine.ticking or self.gone)
                    ):
                        id = entry.id
                        del hold[id]
                        entry.hold = None
                        entry.state = _DONE
                        engine._ack.uses += 1
                        del engine.tasks[id]
                        done = snapshot(self.kind, self.tube, entry, False)
                        task._turn = SETTLED
                        return done
                except BaseException as error:
                    home.recover(error)
                    raise
        return super().ack(task)
