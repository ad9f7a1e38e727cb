"""The methods of inner loops for plain tasks, inlined because measurements showed that it pays.

Plain tasks have only an id and data: no lane, priority or times, and the tube has no listener. Each method makes the
same steps as its namesake in `port.py`, in the same order, so that an interrupt is repaired in the same way. In all
other cases it calls that namesake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tubes.drivers.entry import Entry
from tubes.drivers.moves import State
from tubes.memory.calls import CallPort
from tubes.values.task import FINISHED, NO_TIMES, F

if TYPE_CHECKING:
    from collections import deque

    from tubes.backend.interface import Options
    from tubes.drivers.entry import Hold
    from tubes.memory.port import PortConnection
    from tubes.memory.shared_tube import MemoryTube

_READY, _TAKEN, _DONE = State.READY, State.TAKEN, State.DONE


def make_port(connection: PortConnection, shared: MemoryTube, hold: Hold) -> CallPort:
    """Make the port of a connection on a tube: a quick one if the tube has plain tasks."""
    if shared.engine.plain and connection.store.codec is None:
        return QuickPort(connection, shared, hold)
    return CallPort(connection, shared, hold)


class QuickPort(CallPort[F]):
    """The port of a tube with plain tasks whose data is stored unchanged."""

    def put(
        self,
        data: object,
        options: Options,
        utube: object = None,
        pri: object = None,
        ttl: object = None,
        ttr: object = None,
        delay: object = None,
    ) -> F | None:
        """Add a task; return None if there is no room."""
        if options or utube is not None or pri is not None or ttl is not None or ttr is not None or delay is not None:
            return super().put(data, options, utube, pri, ttl, ttr, delay)
        shared = self.shared
        engine = self._engine
        lock = self._lock
        task: F | None = None
        if lock.waits:
            lock.let_in()
        for held in lock.attempts:
            if held:
                break
            lock.wait()
        try:
            offers: Any = engine._offers
            line = offers._lines.get(0)
            if line is not None and not (engine.listener or engine.uses_time or engine.busy or self.closed_error):
                engine.busy = engine.next_take
                id = engine.next_id
                entry = Entry()
                entry.id = entry.rank = id
                entry.data = data
                entry.created = now = self._micros()
                entry.attempts = entry.take = 0
                entry.hold = entry.extras = None
                engine.next_id = id + 1
                entry.state = _READY
                engine.tasks[id] = entry
                engine._put.uses += 1
                entry.index = offers
                line.append(entry)
                made = self.kind()
                made._tube = self.tube
                made._record = entry
                made._state = _READY
                made._attempts = made._take = 0
                made._extras = None
                made._times = NO_TIMES
                task = made
                if (end_section := shared.end_section) is not None and not (
                    line[0] is entry and shared.take_waiters and self._hand_over(line, now)
                ):
                    end_section(now)
                engine.busy = 0
        except BaseException as error:
            shared.recover(error)
            raise
        finally:
            lock.token[0] = True
        return super().put(data, options) if task is None else task

    def _hand_over(self, line: deque[Entry], now: int) -> bool:
        """Give the only ready task to the first waiter; return False if `serve` is needed."""
        shared = self.shared
        engine = self._engine
        take_waiters = shared.take_waiters
        waiter = next(iter(take_waiters))
        if engine.pause._is_paused or shared.empty_waiters or shared.is_late(waiter, now):
            return False
        owner = waiter.owner
        take = engine.next_take
        entry = line.popleft()
        entry.index = None
        entry.take = take
        engine.next_take = take + 1
        entry.attempts += 1
        entry.state = _TAKEN
        engine._take.uses += 1
        entry.hold = hold = owner.hold
        hold[entry.id] = entry
        made = owner.kind()
        made._tube = owner.tube
        made._record = entry
        made._state = _TAKEN
        made._attempts = entry.attempts
        made._extras = entry.extras
        made._times = NO_TIMES
        made._take = take
        waiter.result = made
        engine.busy = take + 1
        is_awake = shared.wake_waiter(waiter)
        if not is_awake:
            engine.undo_take(now, entry)
        del take_waiters[waiter]
        owner.waiters.discard(waiter)
        return is_awake

    def take(self) -> F | None:
        """Take the first available task; return None if there is none."""
        shared = self.shared
        engine = self._engine
        lock = self._lock
        task: F | None = None
        is_empty = False
        if lock.waits:
            lock.let_in()
        for held in lock.attempts:
            if held:
                break
            lock.wait()
        try:
            offers: Any = engine._offers
            line = offers._lines.get(0)
            is_clear = not (
                offers._back
                or engine.listener
                or engine.uses_time
                or engine.pause._is_paused
                or engine.busy
                or self.closed_error
            )
            if is_clear and not line:
                is_empty = True
            elif is_clear and line[0].index is offers:
                engine.busy = take = engine.next_take
                entry = line.popleft()
                entry.index = None
                entry.take = take
                engine.next_take = take + 1
                entry.attempts = attempts = entry.attempts + 1
                entry.state = _TAKEN
                engine._take.uses += 1
                entry.hold = hold = self.hold
                hold[entry.id] = entry
                made = self.kind()
                made._tube = self.tube
                made._record = entry
                made._state = _TAKEN
                made._attempts = attempts
                made._extras = entry.extras
                made._times = NO_TIMES
                made._take = take
                task = made
                engine.busy = 0
        except BaseException as error:
            shared.recover(error)
            raise
        finally:
            lock.token[0] = True
        return super().take() if task is None and not is_empty else task

    def ack(self, task: Any) -> F:
        """End a held task as done."""
        hold = self.hold
        is_task = task.__class__ is self.kind
        entry: Any = task._record if is_task else hold.get(task) if task.__class__ is int else None
        if entry is None:
            return super().ack(task)
        shared = self.shared
        engine = self._engine
        lock = self._lock
        done: F | None = None
        if lock.waits:
            lock.let_in()
        for held in lock.attempts:
            if held:
                break
            lock.wait()
        try:
            if (
                entry.hold is hold
                and (not is_task or entry.take == task._take)
                and ((more := entry.extras) is None or (more.key is None and not more.keep_done))
                and not (
                    engine.listener or shared.empty_waiters or engine.uses_time or engine.busy or self.closed_error
                )
            ):
                engine.busy = engine.next_take
                id = entry.id
                del hold[id]
                entry.hold = None
                entry.state = _DONE
                engine._ack.uses += 1
                del engine.tasks[id]
                made = self.kind()
                made._tube = self.tube
                made._record = entry
                made._state = _DONE
                made._attempts = entry.attempts
                made._extras = more
                made._times = NO_TIMES
                made._take = entry.take
                if is_task:
                    task._take = FINISHED
                done = made
                engine.busy = 0
        except BaseException as error:
            shared.recover(error)
            raise
        finally:
            lock.token[0] = True
        return super().ack(task) if done is None else done
