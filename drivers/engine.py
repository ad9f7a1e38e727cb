"""The machine in memory: the tasks of one tube, for any driver.

The engine has no clock, no lock and does no I/O. Time is the argument `now`, in microseconds. Callers first call
`expire(now)` until it returns False, so that all tasks that are due by then have moved. All state changes go through
`Engine._move`, by the table `MOVES`; `add` and the quick methods of the memory backend inline its steps. After an
interrupt `rebuild_indexes` derives everything else from the states of the tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from sortedcontainers import SortedDict

from tubes.drivers.bucket import TokenBucket
from tubes.drivers.done import Done, DoneTasks
from tubes.drivers.driver import Driver
from tubes.drivers.entry import (
    BURIED,
    BURIED_WHILE_HELD,
    KEPT,
    KICKED,
    NO_EXTRAS,
    REPLACED,
    TIMED_OUT,
    Entry,
    Extras,
    FullEntry,
    Hold,
    Loss,
)
from tubes.drivers.failures import NO_TRACE, Trace, add_failure
from tubes.drivers.keys import Keys, quick_digest
from tubes.drivers.lanes import Lanes
from tubes.drivers.moves import CALLS, MOVES, Move, State
from tubes.drivers.options import (
    CANCELLED_KEPT,
    EXTRA_OPTIONS,
    KEEP,
    LONGEST,
    MAX_WAITING,
    NO_LANE,
    compute_delay,
)
from tubes.drivers.pause import Pause
from tubes.drivers.rate_limits import RateLimit, RateLimits
from tubes.drivers.ready import Ready
from tubes.drivers.round_robin import RoundRobin
from tubes.drivers.timers import NEVER, SLOT, Timers
from tubes.errors import DuplicateKey, InvalidOption, TaskCancelled, TaskNotFound, TaskNotTaken, TubeFull

_READY, _TAKEN, _BURIED, _DELAYED, _DONE = State.READY, State.TAKEN, State.BURIED, State.DELAYED, State.DONE

#: The maximum number of due tasks, lanes and others that one call of `expire` moves, and of steps to find them.
DUE_PART: Final = 500
#: Interned `Extras` that have only counters, by their counters, and the maximum number of them.
_INTERNED: Final = {counter: Extras(counters=counter) for counter in (TIMED_OUT, KICKED)}
_SHARED: Final = 1000
_LIMITS: Final = (RateLimit, TokenBucket)


def _pop_nothing() -> None:
    """Stand in for `pop` of the tasks on offer while the tube is paused or its bucket is empty: return None."""


class _Step:
    """A row of the table `MOVES`, with a count of its uses."""

    __slots__ = ("event", "to", "uses")

    def __init__(self, move: Move) -> None:
        self.to: Final = move.to
        self.event: Final = move.event
        self.uses = 0


class Engine:
    """The tasks of one tube, and the methods on them.

    `find` and `get_held` return an entry, or raise `TaskNotFound` or `TaskNotTaken`; most other methods take an entry.
    Every move calls `listener`, if set, with the entry and the name of the event.

    One class, because all methods change the same indexes: calls between objects would slow all of them down.
    """

    # Slots save memory, and access to them is faster than to a dict.
    __slots__ = (
        "_ack",
        "_buried",
        "_buried_ttl",
        "_delayed",
        "_done_most",
        "_ends_taken",
        "_extras",
        "_holds",
        "_hook",
        "_is_round_robin",
        "_key_ttl",
        "_keys",
        "_lanes",
        "_min_due",
        "_offers",
        "_pop",
        "_pri",
        "_put",
        "_put_delayed",
        "_ranks",
        "_ranks_all",
        "_retry_delays",
        "_signs",
        "_steps",
        "_take",
        "_ttl",
        "_ttr",
        "bucket",
        "busy",
        "capacity",
        "done",
        "driver",
        "has_bounded_lanes",
        "has_deadlines",
        "has_rate_limits",
        "has_times",
        "is_bounded",
        "lane_option",
        "listener",
        "name",
        "next_id",
        "next_take",
        "on_end",
        "options",
        "pause",
        "pending_end",
        "pending_move",
        "pending_replacement",
        "plain",
        "tasks",
        "timers",
        "uses_time",
    )  # fmt: skip

    #: Makes the digest of a known key.
    key_digest: ClassVar[staticmethod[[str], int]] = staticmethod(quick_digest)

    def __init__(self, name: str, driver: Driver, options: Mapping[str, Any] | None = None) -> None:
        options = options or {}
        self.name: Final = name
        self.driver: Final = driver
        #: While a critical section changes the tube: the number of its first take, otherwise 0. A caller that finds it
        #: set repairs the tube first, because a section was interrupted: see `MemoryTube.repair`.
        self.busy = 0
        self.listener: Callable[[Entry, str], None] | None = None
        self._steps: Final = {name: {was: _Step(move) for was, move in rows.items()} for name, rows in MOVES.items()}
        # The steps of inner loops.
        self._put: Final = self._steps["put"][None]
        self._put_delayed: Final = self._steps["put_delayed"][None]
        self._take: Final = self._steps["take"][_READY]
        self._ack: Final = self._steps["ack"][_TAKEN]
        # By identity, since holds are dicts, and two empty dicts are equal.
        self._holds: Final[dict[int, Hold]] = {}
        #: True if the driver has ttl, ttr or delay.
        self.has_times: Final = not driver.options.isdisjoint({"ttl", "ttr", "delay"})
        self._keys = Keys(self.key_digest)
        self._signs: Final = driver.signs
        self._hook: Final = driver.rank
        # True if the rank of a task is not just its id.
        self._ranks: Final = driver.signs != (0, 1) or driver.rank is not None or "pri" in driver.options
        self._ends_taken: Final = not driver.ttl_spares_taken
        #: The option that names the lane of a put; None if the driver has no lanes.
        self.lane_option: Final[Any] = driver.lane
        self._is_round_robin: Final = options.get("order") == "round_robin"
        #: True once a task has had a ttl, ttr or delay.
        self.has_deadlines = False
        #: True if the tube or a lane may have a rate limit.
        self.has_rate_limits = self._is_round_robin
        #: True if a lane may have a capacity.
        self.has_bounded_lanes = False
        #: True once any task or option depends on time, or a plain tube was altered; until then `now` may be 0.
        self.uses_time = False
        has_limits = any(options.get(name, 0) > 0 for name in ("max_attempts", "capacity", "keep_done", "rate"))
        #: True if tasks have only an id and data and are taken in the order of puts, unless the tube is altered.
        self.plain: Final = not (self.has_times or self._ranks or driver.lane or has_limits)
        self.bucket: Final = TokenBucket(self._apply_pause)
        #: The options as `Driver.check_tube` returns them; `alter` changes them.
        self.options = options
        self.read_options()
        #: The kept done tasks.
        self.done = DoneTasks()
        #: While a kept task ends: the task and its record.
        self.pending_end: tuple[Entry, Done] | None = None
        #: Called with the id of a task that has ended or was buried, and its record if it is kept.
        self.on_end: Callable[[int, Done | None], object] | None = None
        #: While a put replaces a task: the old task, the new task, and the step that adds it.
        self.pending_replacement: tuple[Entry, Entry, _Step] | None = None
        #: While a task moves with a new priority or data: the task and its copy.
        self.pending_move: tuple[Entry, Entry] | None = None
        #: The id of the next put, and the number of the next take.
        self.next_id = 0
        self.next_take = 1
        # Lower bound for due times: set when a task is released after its ttl has expired.
        self._min_due = 0
        self.pause: Final = Pause(self._apply_pause)
        # Removes the first available task from its index and returns it.
        self._pop: Callable[[], Entry | None]
        self.tasks: dict[int, Entry] = {}
        self._clear_indexes()

    def read_options(self) -> None:
        """Set the attributes that depend on options."""
        options = self.options
        self._pri: int = options.get("pri", 0)
        self._ttl: int | None = options.get("ttl")
        self._ttr: int | None = options.get("ttr", self._ttl) if "ttr" in self.driver.options else None
        self._retry_delays = options.get("backoff")
        # The defaults of rare fields.
        most, keep_done = options.get("max_attempts", 0), options.get("keep_done", 0)
        self._extras = Extras(max_attempts=most, keep_done=keep_done) if most or keep_done else None
        self._done_most: int = options.get("keep_done_max", 0)
        self._key_ttl: int = options.get("key_ttl", 0)
        #: The lifetime of a task from its burial; None: its ttl continues.
        self._buried_ttl: int | None = options.get("buried_ttl")
        #: The maximum number of tasks; 0: no limit.
        self.capacity: int = options.get("capacity", 0)
        self.has_bounded_lanes = self.has_bounded_lanes or options.get("lane_capacity", 0) > 0
        #: True if a put may be refused for lack of room.
        self.is_bounded: bool = self.capacity > 0 or self.has_bounded_lanes
        # True if the rank of a task is not just its id even if its put has no priority.
        self._ranks_all = self._signs[1] < 0 or self._hook is not None or self._pri > 0
        self.has_deadlines = self.has_deadlines or self._ttl is not None or self._ttr is not None
        self.bucket.configure(options.get("rate", 0), options.get("burst", 1))
        self.has_rate_limits = self.has_rate_limits or self.bucket.interval > 0 or options.get("interval", 0) > 0
        no_more_plain = self.plain and (self._extras is not None or self.capacity > 0)
        self.uses_time = self.uses_time or self.has_deadlines or self.has_rate_limits or no_more_plain or keep_done > 0

    def alter(self, now: int, options: Mapping[str, Any]) -> None:
        """Change the options of the tube. Existing tasks keep their own. Cost: O(1).

        The next calls of `expire` apply limits that have changed to the lanes.
        """
        # After this line the change is complete: `rebuild_indexes` repairs an interrupt below.
        self.options = options
        self.read_options()
        self.bucket.apply(now)
        if self._lanes is not None:
            self._lanes.alter(options)
            self.timers.watch(self._lanes)
            self.uses_time = self.uses_time or self._lanes.due != NEVER

    def trim_done(self) -> bool:
        """Forget some of the done tasks beyond the tube's maximum; return True if more remain."""
        is_over = self._done_most > 0 and self.done.trim(self._done_most)
        self.timers.watch(self.done)
        return is_over

    def _clear_indexes(self, before: Lanes | None = None) -> None:
        newest_first = self._signs[1] < 0
        self.timers: Timers[Entry | RateLimit | Pause | TokenBucket | DoneTasks | Lanes] = Timers()
        self._delayed = 0
        self._offers: Ready | RoundRobin = RoundRobin() if self._is_round_robin else Ready(newest_first=newest_first)
        rates = RateLimits(self.options, self.timers)
        lanes = Lanes(self._offers, rates, before, newest_first=newest_first)
        self._lanes = lanes if self.driver.lane else None
        self._buried: SortedDict[Any, Entry] = SortedDict()
        self.pause.queued = NEVER
        self.bucket.restore()
        self._apply_pause()
        self.done.rebuild()
        self.timers.watch(self.done)

    def _apply_pause(self) -> None:
        """Apply the pause and the bucket to takes, and let the timers end them."""
        self.timers.watch(self.pause)
        self.timers.watch(self.bucket)
        if self.pause.due != NEVER:
            self.uses_time = True
        # Other takes need no check.
        stops = self.pause.until is not None or self.bucket.due != NEVER
        self._pop = _pop_nothing if stops else self._offers.pop

    # -- the only place that changes states ------------------------------------------------------------------------

    def _go(self, entry: Entry, name: str, hold: Hold | None = None) -> None:
        """Move a task by the name of a move. Raises `KeyError` if the table has no such move."""
        self._move(entry, self._steps[name][entry.state], hold)

    def _move(self, entry: Entry, step: _Step, hold: Hold | None = None) -> None:
        """Move a task by a row of the table. `hold`: the hold that it gets, if it becomes taken."""
        was, to, lane = entry.state, step.to, entry.lane
        # Leave the old state.
        if was is _READY:
            if entry.index is not None:
                entry.index.discard(entry)
        elif was is _TAKEN:
            del entry.hold[entry.id]  # type: ignore[union-attr]
            entry.hold = None
        elif was is _BURIED:
            del self._buried[entry.rank]
        elif was is not None:
            self._delayed -= 1
        if lane is not None:
            if lane.head is entry:
                lane.head = None
            if to is _TAKEN:
                lane.taken += 1
            if was is _TAKEN:
                lane.taken -= 1
        # Enter the new state. This line comes first: `rebuild_indexes` relies on it.
        entry.state = to
        step.uses += 1
        if to is _READY:
            if lane is None:
                self._offers.push(entry)
            else:
                lane.push(entry)
        elif to is _TAKEN:
            entry.hold = hold
            hold[entry.id] = entry  # type: ignore[index]
        elif to is _DONE:
            del self.tasks[entry.id]
        elif to is _BURIED:
            self._buried[entry.rank] = entry
        else:
            self._delayed += 1
        # Set the deadline.
        if self.has_deadlines:
            if to is _TAKEN:
                due = entry.until
                if self._ends_taken and entry.dead < due:
                    due = entry.dead
            elif to is _DONE:
                due = NEVER
            else:
                due = entry.until if to is _DELAYED else entry.dead
            entry.due = due
            if due < entry.queued:
                self.timers.add(entry, due)
            elif to is _DONE and entry.queued != NEVER:
                self.timers.remove(entry)
        # Offer the next task of the lane.
        if lane is not None:
            if lane.head is None and lane.taken < lane.limit and (lane.waiting is not None or lane.rate is not None):
                lane.offer_next()
            if to is _DONE:
                lane.living -= 1
                if not lane.living:
                    lane.forget()
        # Notify.
        if self.listener is not None:
            self.listener(entry, step.event)

    def note(self, entries: Iterable[Entry]) -> None:
        """Record tasks that have moved without `_move`. For the engine of a folder, which journals them."""

    # -- time --------------------------------------------------------------------------------------------------------

    def expire(self, now: int) -> bool:
        """Move tasks that are due by now, in order, and end pauses and waits for rate limits. True: more are due.

        Each move counts from its own deadline, however late this call is, and so do a following backoff and `key_ttl`.
        """
        at = 0
        for _ in range(DUE_PART):
            if self.timers.soonest > now:
                return False
            if (entry := self.timers.pop(now)) is None:
                continue
            at = min(max(at, self._min_due, entry.due), now)
            if isinstance(entry, _LIMITS):
                entry.apply(at)
            elif isinstance(entry, Pause):
                entry.end()
            elif isinstance(entry, DoneTasks):
                entry.expire(now)
                self.timers.watch(entry)
            elif isinstance(entry, Lanes):
                entry.apply_next(now)
                self.timers.watch(entry)
            elif entry.state is _DELAYED:
                self._go(entry, "delay")
            elif entry.state is _TAKEN:
                self._time_out(at, entry)
            else:
                self._end(at, entry, "ttl")
        return self.timers.soonest <= now

    def _time_out(self, at: int, entry: Entry) -> None:
        """End an attempt whose ttr, or the ttl of its task, has expired."""
        self._note(entry, TIMED_OUT)
        if self.has_rate_limits:
            self._end_run(at, entry)
        if self._ends_taken and entry.dead <= entry.until:
            self._go(entry, "ttr")  # Its ttl ends it right afterwards.
        elif self._is_last(entry):
            if not self._ends_taken:
                self._note_late(at, entry)
            self._bury(at, entry, "ttr_last", BURIED, "max_attempts: ttr")
        elif self._retry_delays is not None:
            self._delay(at, entry, self._retry_delays.compute(entry.id, entry.attempts))
            self._go(entry, "ttr_delayed")
        else:
            if not self._ends_taken:
                self._note_late(at, entry)
            self._go(entry, "ttr")

    def _note_late(self, now: int, entry: Entry) -> None:
        """Record that a task is released after its ttl has expired: its end by the ttl counts from now."""
        if self.has_deadlines and entry.dead < now:
            self._min_due = now

    # -- methods -----------------------------------------------------------------------------------------------------

    def open_hold(self) -> Hold:
        """Make a hold for the tasks that one session takes."""
        hold = Hold()
        self._holds[id(hold)] = hold
        return hold

    def close_hold(self, now: int, hold: Hold, ids: Iterable[int] | None = None) -> bool:
        """Release the tasks of an ended session, all or those among `ids`, in order; return True if it has more."""
        for number in sorted(hold) if ids is None else ids:
            if number in hold:
                self.release(now, hold[number], why="session")
        if not hold:
            self._holds.pop(id(hold), None)
        return bool(hold)

    @property
    def taken(self) -> int:
        """The number of taken tasks. Cost: O(sessions)."""
        return sum(map(len, self._holds.values()))

    def admits(self, now: int, options: Mapping[str, Any]) -> bool:
        """Return True if a put has room, or needs none because its key is in use or remembered.

        Raises `TubeFull` if only its lane is full.
        """
        if not self.has_room(1):
            found = self._keys.find(now, options["key"]) if "key" in options else None
            if found is None or not (isinstance(found, Entry) or options.get("on_duplicate") != "replace"):
                return False
        self.check_lanes(now, ((None, options),))
        return True

    def has_room(self, count: int) -> bool:
        """Return True if there is room for `count` more tasks."""
        return not self.capacity or len(self.tasks) + count <= self.capacity

    def check_lanes(self, now: int, tasks: Iterable[tuple[Any, Mapping[str, Any]]]) -> None:
        """Raise `TubeFull` if these puts would exceed the capacity of a lane. Cost: O(n) of the puts."""
        if not self.has_bounded_lanes:
            return
        needed: dict[str, int] = defaultdict(int)
        made: dict[str, str] = {}
        for _, options in tasks:
            name, key = options.get(self.lane_option), options.get("key")
            name = NO_LANE if name is None else name
            if key is not None:
                found = made[key] if key in made else self._keys.find(now, key)
                if found is not None and options.get("on_duplicate", "keep") != "replace":
                    continue
                # The replaced task makes room in its own lane.
                if not isinstance(found, int) and found is not None:
                    needed[found if isinstance(found, str) else found.lane.name] -= 1  # type: ignore[union-attr]
                made[key] = name
            needed[name] += 1
        for name, count in needed.items():
            capacity, lane = self.lanes.capacity(name), self.lanes.by_name.get(name)
            if count > 0 and 0 < capacity < count + (0 if lane is None else lane.living):
                raise TubeFull(tube=self.name, utube=name, tasks=count, capacity=capacity)

    def check_waiting(self, now: int, tasks: Iterable[tuple[Any, Mapping[str, Any]]], most: int) -> None:
        """Raise `TubeFull` if these puts would make more than `most` tasks ready or delayed. Cost: O(sessions)."""
        needed = self.count_new(now, tasks, among=(_READY, _DELAYED))
        if needed and len(self.tasks) - self.taken - len(self._buried) + needed > most:
            raise TubeFull(tube=self.name, tasks=needed, max_waiting=most)

    def count_new(
        self, now: int, tasks: Iterable[tuple[Any, Mapping[str, Any]]], among: Collection[State] = tuple(State)
    ) -> int:
        """Return by how much these puts would increase the number of tasks in the states `among`.

        Raises `DuplicateKey` if one of the puts would raise it.
        """
        needed, next_id = 0, self.next_id
        made: dict[str, int] = {}
        for number, (_, options) in enumerate(tasks):
            key = options.get("key")
            found = None if key is None else made.get(key, self._keys.find(now, key))
            if found is not None and key is not None:
                on_duplicate = options.get("on_duplicate", "keep")
                if on_duplicate == "raise":
                    id = found.id if isinstance(found, Entry) else found
                    raise DuplicateKey(key=key, tube=self.name, id=id, item=number)
                if on_duplicate != "replace":
                    continue
            # The replaced task makes room.
            if key not in made and not (isinstance(found, Entry) and found.state in among):
                needed += 1
            if key is not None:
                made[key] = next_id
            next_id += 1
        return needed

    def check_ranks(self, now: int, tasks: Iterable[tuple[Any, Mapping[str, Any]]]) -> None:
        """Raise the error of a `rank` hook for one of these tasks, before the first of them is put."""
        if self._hook is not None:
            for id, (data, options) in enumerate(tasks, self.next_id):
                entry = FullEntry()
                entry.id, entry.data, entry.created = id, data, now
                entry.pri = options.get("pri", self._pri)
                self._rank(entry)

    def put(self, now: int, data: Any, options: Mapping[str, Any]) -> Entry:
        """Add a task; options as `Driver.check_put` returns them. Cost: O(1), O(log n) out of order.

        If another task keeps its key, it returns a copy of that task, which is not in the tube.
        """
        if not options:
            return self.add(now, data, None, None, None, 0, None)
        if "key" in options:
            kept = self._find_kept(now, data, options)
            if kept is not None:
                return kept
        if MAX_WAITING in options:
            self.check_waiting(now, [(data, options)], options[MAX_WAITING])
        get = options.get
        delay = compute_delay(options["at"], now) if "at" in options else get("delay", 0)
        extras = self._extras if EXTRA_OPTIONS.isdisjoint(options) else self.extras_of(options)
        return self.add(now, data, get("pri"), get("ttl"), get("ttr"), delay, get(self.lane_option), extras)

    def add(
        self,
        now: int,
        data: Any,
        pri: int | None,
        ttl: int | None,
        ttr: int | None,
        delay: int,
        name: str | None,
        extras: Extras | None = None,
    ) -> Entry:
        """Add a task. None: the tube's value. `name`: the name of its lane; `extras`: its rare fields.

        The usual case inlines the steps of `_move`: a put with options takes 6 % less time.
        """
        id = self.next_id
        entry = FullEntry()
        entry.id = id
        entry.data = data
        entry.created = now
        entry.attempts = entry.take = 0
        entry.state = entry.hold = entry.index = None
        entry.extras = extras = extras or self._extras
        entry.utube = name
        due = NEVER
        if self.has_times:
            entry.until = entry.queued = NEVER
            if ttl is None:
                ttl = self._ttl
            if ttl is not None:
                if delay:
                    ttl += delay
                due = now + ttl
            entry.ttl = ttl
            entry.dead = entry.due = due
            if ttr is None:
                ttr = self._ttr
            entry.ttr = ttr
            if delay:
                entry.until = now + delay
            if ttl is not None or ttr is not None or delay:
                self.has_deadlines = self.uses_time = True
        if pri is None:
            pri = self._pri
        entry.pri = pri
        if not (pri or self._ranks_all):
            entry.rank = id
            entry.line = 0
        elif self._hook is None:
            by_pri, by_id = self._signs
            entry.line = line = pri * by_pri
            entry.rank = (line << 64) + id * by_id
        else:
            self._rank(entry)
        # Nothing has changed up to here, in case the hook raises.
        self.next_id = id + 1
        lanes, lane = self._lanes, None
        if lanes is not None:
            if name is None:
                name = NO_LANE
            lane = lanes.by_name.get(name) or lanes.make(name)
            lane.living += 1
        entry.lane = lane
        self.tasks[id] = entry
        if delay or self.listener is not None or (extras is not None and extras.key is not None):
            self._enter(entry, self._put_delayed if delay else self._put)
            return entry
        entry.state = _READY
        self._put.uses += 1
        if lane is None:
            offers: Any = self._offers  # A tube without lanes has a `Ready`.
            line = offers._lines.get(entry.line)
            if line is None:
                offers.push(entry)
            else:
                entry.index = offers
                line.append(entry)
        else:
            lane.push(entry)
        if due != NEVER:
            # Most deadlines share a slot with others. A deadline before the horizon goes to the heap.
            start = due & SLOT
            slot = self.timers._slots.get(start)
            if slot:
                entry.queued = start
                slot.add(entry)
            else:
                self.timers.add(entry, due)
        if lane is not None and lane.head is None and lane.taken < lane.limit:
            lane.offer_next()
        return entry

    def _enter(self, entry: Entry, step: _Step) -> None:
        """Add a new task to the tube. If it replaces the task with its key, that task is deleted first."""
        extras = entry.extras
        if extras is None or extras.key is None:
            self._move(entry, step)
            return
        if extras.key_ttl:  # From now on acks need the time.
            self.uses_time = True
        if extras.key_effect == REPLACED:
            replaced = self._keys.living[extras.key]
            self.tell_holder(replaced, "delete")
            self.pending_replacement = replaced, entry, step
            self._note_end(entry.created, replaced, "delete")
            if self.has_rate_limits:
                self._end_run(entry.created, replaced)
            self._go(replaced, "delete")
        self._keys.living[extras.key] = entry
        self._move(entry, step)
        if extras.key_effect == REPLACED:
            self.pending_replacement = None
            self.keep()

    def _find_kept(self, now: int, data: Any, options: Mapping[str, Any]) -> Entry | None:
        """Return a copy of the task that keeps the key of a put, or None if the put adds a task.

        With `on_duplicate="update"` the task first gets the data of the put.
        """
        key = options["key"]
        found = self._keys.find(now, key)
        if found is None:
            return None
        on_duplicate = options.get("on_duplicate", "keep")
        if on_duplicate == "raise":
            raise DuplicateKey(key=key, tube=self.name, id=found.id if isinstance(found, Entry) else found)
        if on_duplicate == "replace":
            return None
        if on_duplicate == "update" and isinstance(found, Entry):
            found = self.update(now, found, data)
        if isinstance(found, Entry):
            kept = found.copy()
            kept.hold = kept.index = None  # Only the tube's own entry has a hold and an index.
        else:
            kept = FullEntry()
            kept.id, kept.data, kept.state, kept.hold = found, data, _DONE, None
            kept.utube, kept.pri = options.get(self.lane_option), options.get("pri", self._pri)
            kept.created, kept.attempts, kept.take = now, 0, 0
            kept.ttl = kept.ttr = None
            kept.due = kept.dead = NEVER
        kept.extras = (kept.extras if isinstance(found, Entry) and kept.extras else Extras(key=key))._replace(
            key_effect=KEPT
        )
        return kept

    def extras_of(self, options: Mapping[str, Any]) -> Extras:
        """Return the rare fields of a put."""
        get, usual = options.get, self._extras or NO_EXTRAS
        key = get("key")
        key_ttl = get("key_ttl", self._key_ttl) if key is not None else 0
        key_effect = REPLACED if key in self._keys.living else ""
        keep_done = get("keep_done", usual.keep_done)
        if keep_done:  # From now on acks need the time.
            self.uses_time = True
        most, context = get("max_attempts", usual.max_attempts), get("context")
        facts: tuple[Any, ...] = key, key_ttl, most, None, key_effect, context, keep_done, 0
        return tuple.__new__(Extras, facts)  # pyright: ignore[reportUnknownMemberType]

    def _leave_key(self, now: int, entry: Entry, *, remember: bool = True) -> None:
        if entry.extras is not None:
            self._keys.leave(now, entry, remember=remember)

    def _set(self, entry: Entry, **facts: Any) -> None:
        entry.extras = (entry.extras or NO_EXTRAS)._replace(**facts)

    @staticmethod
    def _note(entry: Entry, counter: int) -> None:
        """Count an event of a task, and remove the reason of its burial."""
        extras = entry.extras
        counters = counter if extras is None else extras.counters + counter
        if extras is None or _INTERNED.get(extras.counters) is extras:
            interned = _INTERNED.get(counters)
            if interned is None:
                interned = Extras(counters=counters)
                if len(_INTERNED) < _SHARED:
                    _INTERNED[counters] = interned
            entry.extras = interned
        else:
            # This is three times as fast as `_replace`.
            key, key_ttl, most, _, key_effect, context, keep_done, _ = extras or NO_EXTRAS
            facts: tuple[Any, ...] = key, key_ttl, most, None, key_effect, context, keep_done, counters
            entry.extras = tuple.__new__(Extras, facts)  # pyright: ignore[reportUnknownMemberType]

    def _is_last(self, entry: Entry) -> bool:
        return entry.extras is not None and 0 < entry.extras.max_attempts <= entry.attempts

    def _rank(self, entry: Entry) -> None:
        """Set the rank of an entry whose rank is not just its id."""
        if self._hook is None:
            entry.line = line = entry.pri * self._signs[0]
            entry.rank = (line << 64) + entry.id * self._signs[1]
            return
        rank = self._hook(entry)
        if not isinstance(rank, (int, float)) or rank != rank:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(
                option="rank",
                value=rank,
                rule=f"must be a number: the rank function of driver {self.driver.name!r} returned it",
            )
        entry.rank = (rank, entry.id)
        entry.line = None

    def take(self, now: int, hold: Hold, ttr: int | None = None) -> Entry | None:
        """Take the first available task, with this ttr or its own; return None if there is none. At most O(log n)."""
        if self.bucket.interval:
            self.bucket.apply(now)  # The clock may have been set back.
        entry = self._pop()
        if ttr is not None and entry is not None:
            self._start(now, entry, hold, ttr)
        elif entry is not None:
            entry.take = take = self.next_take
            self.next_take = take + 1
            entry.attempts += 1
            if self.has_deadlines:
                entry.until = NEVER if entry.ttr is None else now + entry.ttr
            if self.has_rate_limits:
                self._record_start(now, entry)
            self._move(entry, self._take, hold)
        return entry

    def take_task(self, now: int, hold: Hold, entry: Entry, ttr: int | None) -> bool:
        """Take this task out of turn; return False if it may not be taken now. Cost: O(log n)."""
        lane: Any = entry.lane
        if self.bucket.interval:
            self.bucket.apply(now)
        if entry.state is not _READY or self._pop is _pop_nothing or (lane and lane.taken >= lane.limit):
            return False
        # Withdraw the lane's offer first: the start may change the place of the lane.
        if lane and lane.head is not None and lane.head is not entry:
            lane.withdraw()
        entry.index.discard(entry)  # type: ignore[union-attr]
        self._start(now, entry, hold, ttr)
        return True

    def _start(self, now: int, entry: Entry, hold: Hold, ttr: int | None) -> None:
        """Take a task with this ttr; None: its own ttr. A task without a ttr keeps this one."""
        if ttr is not None:
            self.has_deadlines = self.uses_time = True
            if entry.ttr is None:
                entry.ttr = ttr
        entry.take = self.next_take
        self.next_take += 1
        entry.attempts += 1
        if self.has_deadlines:
            span = entry.ttr if ttr is None else ttr
            entry.until = NEVER if span is None else now + span
        if self.has_rate_limits:
            self._record_start(now, entry)
        self._move(entry, self._take, hold)

    def _record_start(self, now: int, entry: Entry) -> None:
        """Record a take in the rate limits of the tube and of its lane, before the task moves."""
        if self.bucket.interval:
            self.bucket.start(now, entry.take)
        if entry.lane is not None:
            entry.lane.start(now, entry)

    def first(self, now: int) -> Entry | None:
        """Return the first available task without taking it. Cost: O(log n)."""
        if self.bucket.interval:
            self.bucket.apply(now)
        entry = self._pop()
        if entry is not None:
            self._offers.push(entry)
        return entry

    def get_held(self, hold: Hold, id: int, take: int = 0) -> Entry:
        """Return a task of this hold, held by this take if given; raise `TaskNotTaken` otherwise."""
        entry = hold.get(id)
        if entry is None or (take and entry.take != take):
            raise TaskNotTaken(id=id, tube=self.name)
        return entry

    def find_leased(self, id: int, take: int) -> Entry | None:
        """Return a task if it is still held by this take, in any session; None otherwise."""
        entry = self.tasks.get(id)
        hold = None if entry is None or entry.take != take else entry.hold
        return None if hold is None or hold.is_ended else entry

    def get_leased(self, id: int, take: int) -> Entry:
        """Return a task if it is still held by this take, in any session; raise `TaskNotTaken` otherwise."""
        entry = self.find_leased(id, take)
        if entry is None:
            raise TaskNotTaken(id=id, tube=self.name, leased=True)
        return entry

    def ack(self, now: int, entry: Entry, result: Any = None) -> None:
        """End a held task as done."""
        extras = entry.extras
        if extras is not None and extras.keep_done:
            self._end(now, entry, "ack", result)
            return
        if self.has_rate_limits and entry.lane is not None:
            entry.lane.end_run(now)
        self._move(entry, self._ack)
        if extras is not None and extras.key is not None:
            self._keys.leave(now, entry)

    def _end(self, now: int, entry: Entry, why: str, result: Any = None) -> None:
        """End a task: release its key, and keep its record if it has `keep_done`."""
        if self.has_rate_limits:
            self._end_run(now, entry)
        if entry.extras is None:
            self._go(entry, why)
        else:
            self._note_end(now, entry, why, result)
            self._go(entry, why)
            self._leave_key(now, entry)
            self.keep()

    @staticmethod
    def _end_run(now: int, entry: Entry) -> None:
        """Record the end of a run in the lane of a taken task, before the task moves. For tubes with rate limits."""
        if entry.state is _TAKEN and entry.lane is not None:
            entry.lane.end_run(now)

    def _note_end(self, now: int, entry: Entry, why: str, result: Any = None) -> None:
        """Make the record of a task with `keep_done`, before it ends."""
        if entry.extras is not None and entry.extras.keep_done:
            self.pending_end = entry, Done.of(entry, now, why, result, entry.extras.keep_done)

    def keep(self) -> None:
        """Store the record that `_note_end` has made, if any, after the task has ended."""
        if self.pending_end is not None:
            _, done = self.pending_end
            self.done.add(done, self._done_most)
            self.timers.watch(self.done)
            self.pending_end = None
            if self.on_end is not None:
                self.on_end(done.id, done)

    def find_done(self, now: int, id: int) -> Done:
        """Return a kept done task; raise `TaskNotFound` otherwise."""
        done = self.done.find(now, id)
        if done is None:
            raise TaskNotFound(id=id, tube=self.name)
        return done

    def check_cancelled(self, now: int, id: int, put: int | None) -> None:
        """Raise `TaskCancelled` if this task was cancelled and is kept. `put`: the moment of its put, if known."""
        done = self.done.find(now, id)
        if done is not None and done.why == "cancelled" and put in (None, done.created):
            raise TaskCancelled(id=id, tube=self.name, reason=None if done.extras is None else done.extras.reason)

    def release(
        self,
        now: int,
        entry: Entry,
        delay: int | None = 0,
        why: str = "release",
        reason: str | None = None,
        trace: Trace = NO_TRACE,
    ) -> None:
        """Give a held task back to its place, now or after a delay; bury it if this was its last attempt.

        A delay extends its ttl; None: the tube's backoff. `why`: the event that ended the attempt.
        `reason`: stored with its failures, and as the reason of its burial if it is buried.
        """
        if self.has_rate_limits:
            self._end_run(now, entry)
        if self._is_last(entry):
            if not self._ends_taken:
                self._note_late(now, entry)
            self._bury(now, entry, "release_last", BURIED, reason or f"max_attempts: {why}", trace)
            return
        if reason is not None:
            context = None if entry.extras is None else entry.extras.context
            self._set(entry, context=add_failure(context, now, entry.attempts, reason, trace))
        if delay is None:
            delay = 0 if self._retry_delays is None else self._retry_delays.compute(entry.id, entry.attempts)
        if delay:
            self._delay(now, entry, delay)
            self._go(entry, "release_delayed")
            return
        if not self._ends_taken:
            self._note_late(now, entry)
        self._go(entry, "release")

    def decline(self, now: int, entry: Entry, delay: int) -> None:
        """Give a held task back without counting the attempt.

        A delay does not extend its ttl, so a task that all workers decline ends by its ttl.
        """
        if self.has_rate_limits:
            self._end_run(now, entry)
            self.bucket.undo_start(now, entry.take)
        entry.attempts -= 1
        if delay:
            self.has_deadlines = self.uses_time = True
            entry.until = now + delay
            self._go(entry, "decline_delayed")
            return
        if not self._ends_taken:
            self._note_late(now, entry)
        self._go(entry, "decline")

    def _delay(self, now: int, entry: Entry, delay: int) -> None:
        """Set the end of a delay that is about to start, and extend the ttl by it."""
        self.has_deadlines = self.uses_time = True
        entry.until = now + delay
        self._prolong(now, entry, delay)

    def undo_take(self, now: int, entry: Entry) -> None:
        """Undo a take whose caller did not get the task.

        An interrupted call may be repeated: the number of the take is negative once its attempt is undone. The take may
        have got a number without moving the task yet.
        """
        if entry.take > 0:
            if entry.lane is not None:
                entry.lane.undo_start(now, entry)
            self.bucket.undo_start(now, entry.take)
            entry.attempts -= 1
            entry.take = -entry.take
        if entry.state is _TAKEN:
            if not self._ends_taken:
                self._note_late(now, entry)
            self._go(entry, "undo_take")

    def undo_put(self, now: int, entry: Entry) -> None:
        """Undo a put whose caller did not get its result.

        A put that has replaced another task is not undone, since that task no longer exists.
        """
        if entry.extras is None or entry.extras.key_effect != REPLACED:
            self._leave_key(now, entry, remember=False)
            self._go(entry, "undo_put")

    def touch(self, now: int, entry: Entry, span: int) -> None:
        """Extend the ttr and the ttl of a held task, now and for later takes."""
        if not span:
            return
        self._prolong(now, entry, span)  # First, so that no interrupt comes before the next call.
        if (ttr := entry.ttr) is not None:
            ttr += span
            entry.ttr = ttr if ttr < LONGEST else LONGEST
        if (until := entry.until) != NEVER:
            until += span
            entry.until = until if until - now < LONGEST else now + LONGEST
        self._go(entry, "touch", entry.hold)

    def set_ttr(self, now: int, entry: Entry, span: int | None) -> None:
        """End the current take `span` from now; None: its ttr from now."""
        if entry.ttr is not None:
            entry.until = now + (entry.ttr if span is None else span)
            self._go(entry, "touch", entry.hold)

    def renew(self, now: int, entry: Entry, span: int) -> None:
        """Give a held task at least `span` to run from now on.

        If the driver ends taken tasks by their ttl, the ttl is extended as far as needed. Later takes do not change.
        """
        ends = now + span
        if entry.until < ends or (self._ends_taken and entry.dead < ends):
            self._extend(now, entry, ends)
            self._go(entry, "touch", entry.hold)

    def checkpoint(self, now: int, entry: Entry, changes: Mapping[str, str]) -> None:
        """Store facts of a held task in its context, and give it at least its own ttr from now on, as `renew` does."""
        extras = entry.extras
        if changes:
            extras = extras or NO_EXTRAS
            extras = extras._replace(context={**(extras.context or {}), **changes})
        self.note([entry])
        if self.has_times and entry.ttr is not None:
            self._extend(now, entry, now + entry.ttr)
        entry.extras = extras  # No interrupt comes between the last line of `_prolong` and this one.
        self._go(entry, "touch", entry.hold)

    def _extend(self, now: int, entry: Entry, ends: int) -> None:
        """Move the end of the ttr, and of a ttl that ends taken tasks, to `ends` at the earliest."""
        if self._ends_taken and entry.dead < ends:
            self._prolong(now, entry, ends - entry.dead)
        if entry.until < ends:
            entry.until = ends

    @staticmethod
    def _prolong(now: int, entry: Entry, span: int) -> None:
        """Extend the ttl, at most to `LONGEST` from now."""
        if entry.ttl is not None:
            dead = entry.dead + span
            entry.dead = dead = dead if dead - now < LONGEST else now + LONGEST
            entry.ttl = dead - entry.created

    def find(self, id: int) -> Entry:
        """Return a task in any state; raise `TaskNotFound` otherwise."""
        try:
            return self.tasks[id]
        except KeyError:
            raise TaskNotFound(id=id, tube=self.name) from None

    def bury(
        self, now: int, entry: Entry, reason: str | None = None, by: Hold | None = None, trace: Trace = NO_TRACE
    ) -> None:
        """Bury a task; a buried task does not change. `by`: the tasks of the session that buries it."""
        if entry.state is not _BURIED:
            self.tell_holder(entry, "bury", by=by)
            if self.has_rate_limits:
                self._end_run(now, entry)
            counter = BURIED
            if entry.state is _TAKEN:
                counter = BURIED_WHILE_HELD
                if not self._ends_taken:
                    self._note_late(now, entry)
            self._bury(now, entry, "bury", counter, reason, trace)

    def _bury(
        self, now: int, entry: Entry, move: str, counter: int, reason: str | None, trace: Trace = NO_TRACE
    ) -> None:
        """Bury a task, with the tube's `buried_ttl`."""
        extras = entry.extras or NO_EXTRAS
        entry.extras = extras._replace(
            reason=reason,
            context=add_failure(extras.context, now, entry.attempts, reason, trace),
            counters=extras.counters + counter,
        )
        if self._buried_ttl is not None:
            if self._buried_ttl == NEVER:
                entry.ttl, entry.dead = None, NEVER
            else:
                self._live(now, entry, self._buried_ttl)
        self._move(entry, self._steps[move][entry.state])
        if self.on_end is not None:
            self.on_end(entry.id, None)

    def kick_task(self, now: int, entry: Entry, attempts: int | None = None, ttl: int | None = None) -> None:
        """Make a buried or delayed task ready, with these further attempts and ttl. Other tasks do not change."""
        if entry.state is not _BURIED and entry.state is not _DELAYED:
            return
        if attempts is not None:
            self._set(entry, max_attempts=entry.attempts + attempts)
        self._note(entry, KICKED)
        if ttl is not None:
            self._live(now, entry, ttl)
        self._go(entry, "kick")

    def _live(self, now: int, entry: Entry, ttl: int) -> None:
        """Set the end of the ttl: `ttl` from now, or from the put if the clock was set back before it."""
        self.has_deadlines = self.uses_time = True
        entry.ttl = max(now - entry.created, 0) + ttl
        entry.dead = entry.created + entry.ttl

    def delete(self, now: int, task: Entry | Done, by: Hold | None = None) -> None:
        """Remove a task in any state; forget a done task. `by`: the tasks of the session that removes it."""
        if isinstance(task, Done):
            self.done.remove(task.id)
        else:
            self.tell_holder(task, "delete", by=by)
            self._end(now, task, "delete")

    def cancel(self, now: int, entry: Entry, reason: str | None = None) -> Done:
        """End a task as cancelled; return its record. A task that was taken is kept for a while."""
        span = entry.extras.keep_done if entry.extras is not None else 0
        if entry.state is _TAKEN:
            span = max(span, CANCELLED_KEPT)
            self.uses_time = True
        done = Done.of(entry, now, "cancelled", None, span)
        done.extras = (entry.extras or NO_EXTRAS)._replace(reason=reason)
        if self.has_rate_limits:
            self._end_run(now, entry)
        self.tell_holder(entry, "cancel", reason)
        if span:
            self.pending_end = entry, done
        entry.extras = done.extras  # For listeners.
        self._go(entry, "cancel")
        self._leave_key(now, entry)
        self.keep()
        return done

    def move_out(self, now: int, entry: Entry) -> None:
        """Remove a task that has moved to another tube: its record is not kept, and its key is free."""
        if self.has_rate_limits:
            self._end_run(now, entry)
        self._go(entry, "delete")
        self._leave_key(now, entry, remember=False)
        if self.on_end is not None:
            self.on_end(entry.id, None)

    def update(
        self,
        now: int,
        entry: Entry,
        data: Any = KEEP,
        pri: int | None = None,
        delay: int | None = None,
        ttl: int | None = None,
    ) -> Entry:
        """Change a task in any state; return its new entry.

        Snapshots that were made before keep the old entry.
        """
        if (delay is not None and entry.state not in (_READY, _DELAYED)) or (ttl is not None and entry.state is _TAKEN):
            changes = {"ttl": ttl} if delay is None else {"delay": delay}
            raise self.driver.make_update_error(changes, entry.state)  # type: ignore[arg-type]
        new = entry.copy()
        if data is not KEEP:
            new.data = data
        if pri is not None and self._ranks:
            new.pri = pri
            self._rank(new)
        if ttl is not None:
            self._live(now, new, ttl)
        if delay:
            self.has_deadlines = self.uses_time = True
            new.until = now + delay
        self._swap(entry, new)
        if delay is not None and (delay or new.state is _DELAYED):
            self._go(new, "update_delayed" if delay else "update_ready")
        else:
            self._go(new, "update", new.hold)
        # The change is complete with the next line. An earlier interrupt leaves the task unchanged.
        self.tasks[entry.id] = new
        entry.hold = None
        return new

    def begin_move(self, entry: Entry, pri: int | None, data: Any = KEEP) -> Entry:
        """Replace a task by a copy with another priority or data, which the caller moves next. A buried task stays.

        The caller calls `end_move` at the end. After an interrupt, if the copy has not moved, `rebuild_indexes`
        restores the task.
        """
        if entry.state is _BURIED:
            return entry
        new = entry.copy()
        if data is not KEEP:
            new.data = data
        if pri is not None:
            new.pri = pri
            if self._ranks:
                self._rank(new)
        self.pending_move = entry, new
        self._swap(entry, new)
        if new.hold is not None:
            new.hold[new.id] = new
        self.tasks[entry.id] = new
        return new

    def end_move(self) -> None:
        """Complete `begin_move`: keep the copy if it has moved, and restore the task otherwise."""
        if self.pending_move is not None:
            old, new = self.pending_move
            if new.state is old.state:
                self.tasks[old.id] = old
            else:
                old.hold = None
            self.pending_move = None

    def _swap(self, entry: Entry, new: Entry) -> None:
        """Replace an entry by a copy. The copy is in no ready index until its next move."""
        new.index = None
        if entry.index is not None:
            entry.index.discard(entry)
        if entry.lane is not None and entry.lane.head is entry:
            entry.lane.head = None
        if entry.state is _BURIED:
            del self._buried[entry.rank]
            self._buried[new.rank] = new
        if self.has_times and entry.queued != NEVER:
            self.timers.remove(entry)
            new.queued = NEVER
        if new.extras is not None and new.extras.key is not None:
            self._keys.living[new.extras.key] = new

    def release_taken(self, now: int, id: int, end: int, by: Hold) -> None:
        """Release a task if a take before number `end` still holds it. `by`: the tasks of the releasing session."""
        entry = self.tasks.get(id)
        if entry is not None and entry.state is _TAKEN and entry.take < end:
            self.tell_holder(entry, "release", by=by)
            self.release(now, entry)

    @staticmethod
    def tell_holder(entry: Entry, event: str, reason: str | None = None, by: Hold | None = None) -> None:
        """Tell the session that holds a task that it loses the task, unless it does that itself (`by`)."""
        hold = entry.hold
        if hold is not None and hold is not by and hold.on_loss is not None:
            hold.on_loss(Loss(entry.id, entry.take, event, reason))

    def tell_all_holders(self) -> None:
        """Tell all sessions that they may have lost their tasks."""
        for hold in self._holds.values():
            if hold.on_loss is not None:
                hold.on_loss(None)

    def truncate(self) -> object:
        """Remove all tasks, including kept done tasks. Listeners are not called; counts and ids continue.

        Cost: O(n) of the taken tasks. To free what it returns is O(n): the caller first releases its lock.
        """
        removed = self.tasks, self._keys, self.done, self._buried, self._offers, self._lanes, self.timers
        keys, done = Keys(self.key_digest), DoneTasks()
        # One assignment: after an interrupt below, `rebuild_indexes` does the rest.
        self.tasks, self._keys, self.done = {}, keys, done
        for hold in self._holds.values():
            for entry in hold.values():
                entry.hold = None
            hold.clear()
        self._clear_indexes()
        self.tell_all_holders()
        return removed

    def forget_key(self, now: int, key: str) -> bool:
        """Forget a known key; return whether it was known. Cost: O(log n)."""
        return self._keys.forget(now, key)

    # -- lanes -----------------------------------------------------------------------------------------------------

    def block(self, now: int, name: str, span: int, *, extend: bool = False, reason: str | None = None) -> None:
        """Let no task of a lane start for `span`; 0 ends the block. Cost: O(log n).

        `extend`: keep a block that ends later, and its reason.
        """
        lanes = self.lanes
        rate = lanes.rate(name) if span else lanes.known_rate(name)
        if rate is not None:
            self.has_rate_limits = self.uses_time = True
            until = now + span if span else 0
            if extend and until < rate.blocked:
                until, reason = rate.blocked, rate.reason
            rate.block(now, until, reason)

    def configure(self, now: int, name: str, changes: Mapping[str, Any]) -> None:
        """Set limits of one lane; None: the tube's. Cost: O(log n)."""
        lanes = self.lanes
        rate = lanes.rate(name) if set(changes.values()) - {None} else lanes.known_rate(name)
        if rate is not None:
            self.has_rate_limits = self.uses_time = True
            self.has_bounded_lanes = self.has_bounded_lanes or "capacity" in changes
            self.is_bounded = self.is_bounded or self.has_bounded_lanes
            rate.configure(now, changes)

    @property
    def lanes(self) -> Lanes:
        """The lanes; raises `OptionNotSupported` if the driver has none."""
        if self._lanes is None:
            raise self.driver.make_lanes_error()
        return self._lanes

    # -- looking ---------------------------------------------------------------------------------------------------

    def calls(self) -> dict[str, int]:
        """Count the calls of each kind. Cost: O(1)."""
        totals = dict.fromkeys(CALLS, 0)
        for name, rows in MOVES.items():
            for was, move in rows.items():
                for call in move.counts:
                    totals[call] += move.by * self._steps[name][was].uses
        return totals

    def has_key(self, now: int, key: str) -> bool:
        """Return True if a task in the tube has this key, or the key is remembered. Cost: O(1)."""
        return self._keys.find(now, key) is not None

    def living_with(self, key: str) -> Entry | None:
        """Return the task in the tube with this key. Cost: O(1)."""
        return self._keys.living.get(key)

    @property
    def holds(self) -> Collection[Hold]:
        return self._holds.values()

    def ids(self) -> Sequence[int]:
        """Return the ids of all tasks, perhaps with others between them."""
        first = next(iter(self.tasks), self.next_id)
        # A range is free; a list costs some nanoseconds per task.
        return [*self.tasks] if self.next_id - first > 4 * len(self.tasks) else range(first, self.next_id)

    @property
    def is_empty(self) -> bool:
        """True if no task is ready, delayed or taken. Cost: O(1)."""
        return len(self.tasks) == len(self._buried)

    def counts(self) -> dict[str, int]:
        """Count tasks by state. Cost: O(sessions)."""
        calls = self.calls()
        total = len(self.tasks)
        taken = self.taken
        buried = len(self._buried)
        return {
            "ready": total - taken - buried - self._delayed,
            "taken": taken,
            "buried": buried,
            "delayed": self._delayed,
            "done": calls["ack"] + calls["delete"],
            "total": total,
        }
