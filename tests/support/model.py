"""A second, minimal implementation of the rules of a tube: it scans a list of tasks.

It shares nothing with the engine: no indexes, timers or table of moves. A tube must return the same results as this
model. Time is in whole microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tubes import (
    Driver,
    InvalidOption,
    LaneInfo,
    OptionNotSupported,
    QueueClosed,
    SessionNotFound,
    TaskNotFound,
    TaskNotTaken,
    TubeBusy,
    TubeFull,
    TubeNotFound,
)
from tubes.drivers.chance import apply_jitter
from tubes.drivers.options import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = ("put", "take", "ack", "release", "touch", "bury", "kick", "delete", "delay", "ttl", "ttr")
STATES = ("ready", "taken", "buried", "delayed")


class Refused(Exception):
    """The tube must raise this error."""

    def __init__(self, kind: type[Exception]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


class View(NamedTuple):
    """A task as returned by a call."""

    id: int
    state: str
    data: Any
    utube: str | None
    pri: int
    attempts: int
    created: int
    ttl: int | None
    ttr: int | None
    due: int | None
    expires: int | None
    #: The numbers of releases (None: done), timeouts, burials and kicks.
    calls: tuple[int | None, ...]


class Kept(NamedTuple):
    """A kept done task."""

    until: int
    id: int
    view: View
    ended: int
    why: str
    result: Any


class Ref(NamedTuple):
    """The content of a `Task` argument: the tube, the task and, if it was taken, the number of the take."""

    id: int
    tube: int
    take: int | None
    is_lease: bool = False


@dataclass(eq=False)
class Session:
    """The owner of taken tasks."""

    connections: int = 1
    ends_at: int | None = None


@dataclass(eq=False)
class Connection:
    """A connection, which has one session at a time."""

    session: Session = field(default_factory=Session)


@dataclass(eq=False)
class Waiter:
    """A waiting call: a take, a put with these options, or a batch."""

    connection: Connection
    deadline: int | None
    put: tuple[Any, dict[str, Any]] | list[tuple[Any, dict[str, Any]]] | None = None
    results: list[Any] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return the number of tasks of the put."""
        return len(self.put) if isinstance(self.put, list) else 1


@dataclass(eq=False)
class RateLimit:
    """The state of a lane without its tasks."""

    interval: int | None = None
    max_in_flight: int | None = None
    interval_from: str | None = None
    capacity: int | None = None
    burst: int | None = None
    weight: int | None = None
    blocked: int = 0
    reason: str | None = None
    #: The start of its interval (its last start or the end of a run), with the task and the take of that start.
    start: tuple[int, int, int] | None = None
    #: Its place in the round; 0 if it has none.
    number: int = 0
    #: Its takes at this place.
    takes: int = 0
    #: True if its starts are recorded although the tube has no limits.
    is_recorded: bool = False

    @property
    def has_own_limits(self) -> bool:
        """Return True if the lane itself has limits."""
        limits = (self.interval, self.max_in_flight, self.interval_from, self.capacity, self.burst, self.weight)
        return limits != (None,) * 6


@dataclass(eq=False)
class Task:
    """A task."""

    id: int
    data: Any
    utube: str | None
    pri: int
    created: int
    ttl: int | None
    ttr: int | None
    dead: int | None
    state: str = "ready"
    #: The end of its delay or of its time to run.
    until: int | None = None
    owner: Session | None = None
    attempts: int = 0
    keep_done: int = 0
    calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("release", "ttr", "bury", "kick"), 0))


class Model:
    """A tube and its sessions."""

    def __init__(self, driver: Driver, options: dict[str, Any], lease: int) -> None:
        self.driver = driver
        self.options = options
        self.lease = lease
        self.now = 0
        self.sessions: list[Session] = []
        self.generation = 0
        self.start()

    def start(self) -> None:
        """Reset to a new tube without tasks and counts."""
        self.generation += 1
        self.next_id = 0
        self.tasks: list[Task] = []
        self.done: list[Kept] = []
        self.rate_limits: dict[str, RateLimit] = {}
        self.number = 0
        self.calls: dict[str, int] = dict.fromkeys(CALLS, 0)
        self.waiting_takes: list[Waiter] = []
        self.waiting_puts: list[Waiter] = []
        self.events: list[tuple[str, View]] = []
        #: True while takes are paused, and the end of the pause (None: no end).
        self.paused = False
        self.paused_until: int | None = None

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def place(self, task: Task) -> Any:
        """Return the place in the order; small places come first."""
        if self.driver.rank is not None:
            return self.driver.rank(task), task.id
        places: dict[str, Callable[[Task], tuple[int, ...]]] = {
            "id": lambda task: (task.id,),
            "-id": lambda task: (-task.id,),
            "pri": lambda task: (task.pri, task.id),
            "-pri,-id": lambda task: (-task.pri, -task.id),
        }
        return places[self.driver.order](task)

    def kept_tasks(self) -> list[Kept]:
        """Return the kept done tasks in list order."""
        return [each for each in sorted(self.done, reverse=True) if each.until > self.now]

    def forget_done(self, ref: int | Ref) -> View | None:
        """Forget the done task of this reference, if it is kept."""
        kept = self.find_done(ref)
        if kept is not None:
            self.done.remove(kept)
        return kept and kept.view

    def find_done(self, ref: int | Ref) -> Kept | None:
        """Return the done task of this reference, if it is kept."""
        if isinstance(ref, Ref) and (ref.is_lease or ref.tube != self.generation):
            return None
        id = ref.id if isinstance(ref, Ref) else ref
        return next((each for each in self.kept_tasks() if each.id == id), None)

    def peek(self, ref: int | Ref) -> View:
        """Peek."""
        kept = self.find_done(ref)
        return self.show(self.found(ref)) if kept is None else kept.view

    def list_ids(self, state: str) -> list[int]:
        """Return the ids of the tasks in a state, in list order."""

        def key(task: Task) -> Any:
            if state == "delayed":
                return task.until, task.id
            return task.id if state == "taken" or (state == "ready" and self.driver.lane) else self.place(task)

        return [task.id for task in sorted((each for each in self.tasks if each.state == state), key=key)]

    def lane(self, task: Task) -> str | None:
        """Return the lane of a task; tasks without one share the lane `nil`."""
        if self.driver.lane is None:
            return None
        return "nil" if task.utube is None else task.utube

    def rate_limit(self, name: str) -> RateLimit:
        """Return the rate limit of a lane; a new one has no limits."""
        return self.rate_limits.setdefault(name, RateLimit())

    def limits(self, rate_limit: RateLimit) -> tuple[int, int]:
        """Return interval and max_in_flight."""
        interval, most = self.options.get("interval", 0), self.options.get("max_in_flight", 1)
        return (
            interval if rate_limit.interval is None else rate_limit.interval,
            most if rate_limit.max_in_flight is None else rate_limit.max_in_flight,
        )

    def next_start(self, name: str) -> int:
        """Return the moment of the next start of a lane."""
        rate_limit = self.rate_limits.get(name, RateLimit())
        return max(rate_limit.blocked, self.full_at(rate_limit) - self.lead(rate_limit))

    def burst(self, rate_limit: RateLimit) -> int:
        """Return the number of takes that may start at once."""
        if (rate_limit.interval_from or self.options.get("interval_from")) == "ack":
            return 1
        return rate_limit.burst or self.options.get("lane_burst") or 1

    def lead(self, rate_limit: RateLimit) -> int:
        """Return how far a start may lie before the time of its take."""
        return (self.burst(rate_limit) - 1) * self.limits(rate_limit)[0]

    def full_at(self, rate_limit: RateLimit) -> int:
        """Return the moment at which the burst of a lane is full."""
        interval, _ = self.limits(rate_limit)
        if rate_limit.start is None or not interval:
            return 0
        at, id, attempts = rate_limit.start
        return at + self.lead(rate_limit) + apply_jitter(interval, self.options.get("jitter", 0), 0, id, attempts)

    def states(self, name: str) -> list[str]:
        """Return the states of a lane's tasks."""
        return [task.state for task in self.tasks if self.lane(task) == name]

    def forget(self) -> None:
        """Forget the last start of lanes that may start and have no ready or taken task."""
        for name, rate_limit in list(self.rate_limits.items()):
            is_full = max(self.next_start(name), self.full_at(rate_limit)) <= self.now
            if is_full and not {"ready", "taken"} & set(self.states(name)):
                rate_limit.start, rate_limit.number, rate_limit.takes = None, 0, 0
                if not rate_limit.has_own_limits:
                    del self.rate_limits[name]

    def due(self, task: Task) -> int | None:
        """Return the next moment at which the task changes by time."""
        if task.state == "done":
            return None
        if task.state == "delayed":
            return task.until
        if task.state == "taken":
            ends = [task.until] if self.driver.ttl_spares_taken else [task.until, task.dead]
            return min((end for end in ends if end is not None), default=None)
        return task.dead

    def show(self, task: Task) -> View:
        """Return the current visible state of the task."""
        return View(
            task.id, task.state, task.data, task.utube, task.pri, task.attempts, task.created,
            task.ttl, task.ttr, self.due(task), task.dead,
            (None if task.state == "done" else task.calls["release"], *list(task.calls.values())[1:]),
        )  # fmt: skip

    def refer(self, view: View) -> Ref:
        """Return the reference of a returned task as an argument."""
        return Ref(view.id, self.generation, view.attempts if view.state == "taken" else None)

    def find_alive(self, ref: int | Ref) -> Task | None:
        """Return the task of this reference, if it exists."""
        if isinstance(ref, Ref) and ref.tube != self.generation:
            if ref.is_lease:
                raise Refused(InvalidOption)
            return None
        id = ref.id if isinstance(ref, Ref) else ref
        return next((task for task in self.tasks if task.id == id), None)

    def find_held(self, connection: Connection, ref: int | Ref) -> Task:
        """Return the task of this reference, if this connection's session holds it by that take."""
        task = self.find_alive(ref)
        if isinstance(ref, Ref) and ref.is_lease:
            return self.found(ref)
        if task is None or task.state != "taken" or task.owner is not connection.session:
            raise Refused(TaskNotTaken)
        if isinstance(ref, Ref) and ref.take not in (None, task.attempts):
            raise Refused(TaskNotTaken)
        return task

    def found(self, ref: int | Ref) -> Task:
        """Return the task of this reference; for a lease, only if its take still holds it."""
        task = self.find_alive(ref)
        if isinstance(ref, Ref) and ref.is_lease:
            if task is None or task.state != "taken" or task.attempts != ref.take:
                raise Refused(TaskNotTaken)
            return task
        if task is None:
            raise Refused(TaskNotFound)
        return task

    def change(
        self,
        task: Task,
        state: str,
        event: str,
        *calls: str,
        until: int | None = None,
        result: Any = None,
        why: str | None = None,
    ) -> None:
        """Move a task."""
        if task.state == "taken" and state != "taken":
            self.end_run(self.lane(task))
        task.state = state
        task.until = until
        if state != "taken":
            task.owner = None
        if state == "done":
            self.tasks.remove(task)
            if task.keep_done:
                until = self.now + task.keep_done
                self.done.append(Kept(until, task.id, self.show(task), self.now, why or calls[0], result))
                self.done.sort()
                most = self.options.get("keep_done_max")
                del self.done[: max(len(self.done) - most, 0) if most else 0]
        self.forget()
        name = self.lane(task)
        if state == "ready" and name is not None and not self.rate_limit(name).number:
            self.number += 1
            self.rate_limit(name).number = self.number
        for call in calls:
            self.calls[call] += 1
            if call in task.calls:
                task.calls[call] += 1
        self.events.append((event, self.show(task)))

    # -- time ----------------------------------------------------------------------------------------------------------

    def advance(self, span: int) -> None:
        """Let time pass, from one event to the next."""
        until = self.now + span
        while True:
            moments = [self.due(task) for task in self.tasks]
            moments += [waiter.deadline for waiter in (*self.waiting_takes, *self.waiting_puts)]
            moments += [session.ends_at for session in self.sessions]
            moments.append(self.paused_until)
            moments += [moment for name in self.rate_limits if (moment := self.next_start(name)) > self.now]
            now = min((moment for moment in moments if moment is not None and moment <= until), default=None)
            if now is None:
                self.now = until
                return
            self.now = max(self.now, now)
            self.catch_up()
            for session in [each for each in self.sessions if each.ends_at == self.now]:
                self.end(session)
            for line in (self.waiting_takes, self.waiting_puts):
                for waiter in [each for each in line if each.deadline == self.now]:
                    line.remove(waiter)
                    waiter.results.append([] if isinstance(waiter.put, list) else None)
            self.catch_up()

    def expire(self) -> bool:
        """Apply all due events in order of their moments and then of ids; return True if any was due."""
        self.forget()
        happened = False
        if self.paused_until is not None and self.paused_until <= self.now:
            self.paused, self.paused_until = False, None
        while True:
            dues = [(due, task.id, task) for task in self.tasks if (due := self.due(task)) is not None]
            due, _, task = min(dues, default=(self.now + 1, 0, None))
            if task is None or due > self.now:
                return happened
            happened = True
            if task.state == "delayed":
                self.change(task, "ready", "delay", "delay")
            elif task.state == "taken":
                self.change(task, "ready", "ttr", "ttr")
            else:
                self.change(task, "done", "ttl", "ttl", "delete")

    def catch_up(self) -> None:
        """Apply all due events, then serve waiting puts, then waiting takes."""
        self.expire()
        again = True
        while again:
            while (waiter := self.next_put()) is not None:
                self.waiting_puts.remove(waiter)
                put: Any = waiter.put
                many = isinstance(put, list)
                waiter.results.append([self.add(*each) for each in put] if many else self.add(*put))
            self.expire()
            while self.waiting_takes and (task := self.first()) is not None:
                waiter = self.waiting_takes.pop(0)
                waiter.results.append(self.give(task, waiter.connection))
            again = self.expire() or self.next_put() is not None

    # -- calls ---------------------------------------------------------------------------------------------------------

    def room(self, count: int = 1) -> bool:
        """Return True if there is room for `count` more tasks."""
        capacity = self.options.get("capacity", 0)
        return not capacity or len(self.tasks) + count <= capacity

    def capacity(self, name: str) -> int:
        """Return the capacity of a lane; 0: unlimited."""
        own = self.rate_limits.get(name, RateLimit()).capacity
        limit: int = self.options.get("lane_capacity", 0) if own is None else own
        return limit

    def lanes_of(self, puts: list[tuple[Any, dict[str, Any]]]) -> list[str]:
        """Return the lane of each put."""
        names = [options.get(self.driver.lane) for _, options in puts] if self.driver.lane else []
        return ["nil" if name is None else name for name in names]

    def full_lane(self, puts: list[tuple[Any, dict[str, Any]]]) -> str | None:
        """Return the first lane without room for all these puts."""
        names = self.lanes_of(puts)
        for name, most in {name: self.capacity(name) for name in names}.items():
            if most and len(self.states(name)) + names.count(name) > most:
                return name
        return None

    def next_put(self) -> Waiter | None:
        """Return the first waiting put that has room; puts into full lanes do not block others."""
        full: set[str] = set()
        for waiter in self.waiting_puts:
            put: Any = waiter.put
            puts = put if isinstance(put, list) else [put]
            if not full.isdisjoint(self.lanes_of(puts)):
                continue
            if not self.room(waiter.size):
                return None
            if (name := self.full_lane(puts)) is None:
                return waiter
            full.add(name)
        return None

    def put(self, data: Any, options: dict[str, Any]) -> View | None:
        """Put without waiting for room."""
        if not options.keys() <= (self.driver.options - {"capacity"}) | {"timeout", "keep_done"}:
            raise Refused(OptionNotSupported)
        if not self.room() or self.full_lane([(data, options)]) is not None:
            if "timeout" not in options:
                raise Refused(TubeFull)
            return None
        view = self.add(data, options)
        self.catch_up()
        return view

    def add(self, data: Any, options: dict[str, Any]) -> View:
        """Add a new task, for which there is room."""
        defaults = {name: value for name, value in self.options.items() if name in ("pri", "ttl", "ttr", "keep_done")}
        if "ttr" in self.driver.options:
            defaults.setdefault("ttr", defaults.get("ttl"))
        given = {**defaults, **{name: value for name, value in options.items() if value is not None}}
        delay, ttl = given.get("delay", 0), given.get("ttl")
        ttl = None if ttl is None else ttl + delay
        dead = None if ttl is None else self.now + ttl
        utube = given.get(self.driver.lane or "")
        task = Task(self.next_id, data, utube, given.get("pri", 0), self.now, ttl, given.get("ttr"), dead)
        task.keep_done = given.get("keep_done", 0)
        self.next_id += 1
        self.tasks.append(task)
        self.change(task, "delayed" if delay else "ready", "put", "put", until=self.now + delay if delay else None)
        return self.show(task)

    def first(self) -> Task | None:
        """Return the first task that may be taken."""
        if self.paused:
            return None
        free = [task for task in self.tasks if task.state == "ready" and self.is_free(self.lane(task))]
        if self.options.get("order") == "round_robin" and free:
            first = min((self.lane(task) for task in free), key=lambda name: self.rate_limits[name or ""].number)
            free = [task for task in free if self.lane(task) == first]
        return min(free, key=self.place, default=None)

    def is_free(self, name: str | None) -> bool:
        """Return True if a task of this lane may be taken."""
        if name is None:
            return True
        _, most = self.limits(self.rate_limits.get(name, RateLimit()))
        return self.states(name).count("taken") < most and self.next_start(name) <= self.now

    def give(self, task: Task, connection: Connection) -> View:
        """Give the task to this connection."""
        task.attempts += 1
        task.owner = connection.session
        name = self.lane(task)
        if name is not None:
            rate_limit = self.rate_limit(name)
            rate_limit.takes += 1
            if rate_limit.takes >= (rate_limit.weight or 1):
                self.number += 1
                rate_limit.number, rate_limit.takes = self.number, 0
            if rate_limit.is_recorded or self.options.get("interval") or self.options.get("order") == "round_robin":
                at = max(self.now, self.full_at(rate_limit)) - self.lead(rate_limit)
                rate_limit.start = (at, task.id, task.attempts)
        self.change(task, "taken", "take", "take", until=None if task.ttr is None else self.now + task.ttr)
        return self.show(task)

    def end_run(self, name: str | None) -> None:
        """Record the end of a run in this lane."""
        if name is None:
            return
        rate_limit = self.rate_limit(name)
        noted = rate_limit.is_recorded or self.options.get("interval") or self.options.get("order") == "round_robin"
        if noted and (rate_limit.interval_from or self.options.get("interval_from")) == "ack":
            _, id, attempts = rate_limit.start or (0, -1, 0)
            rate_limit.start = (self.now, id, attempts)

    def take(self, connection: Connection) -> View | None:
        """Take without waiting."""
        task = self.first()
        if task is None:
            return None
        view = self.give(task, connection)
        self.catch_up()
        return view

    def wait(self, connection: Connection, timeout: int | None, put: Any = None) -> Waiter:
        """Take or put, and wait if necessary."""
        waiter = Waiter(connection, None if timeout is None else self.now + timeout, put)
        (self.waiting_takes if put is None else self.waiting_puts).append(waiter)
        self.catch_up()
        return waiter

    def ack(self, connection: Connection, ref: int | Ref, result: Any) -> View:
        """Ack."""
        task = self.find_held(connection, ref)
        self.change(task, "done", "delete", "ack", result=result)
        return self.mark_finished(task)

    def release(self, connection: Connection, ref: int | Ref, delay: int | None) -> View:
        """Release."""
        task = self.find_held(connection, ref)
        if delay is not None and "delay" not in self.driver.options:
            raise Refused(OptionNotSupported)
        self.release_unfailed(task, delay)
        return self.mark_finished(task)

    def release_unfailed(self, task: Task, delay: int | None) -> None:
        """Release a held task."""
        if delay:
            self.prolong(task, delay)
            self.change(task, "delayed", "release", "release", until=self.now + delay)
        else:
            self.change(task, "ready", "release", "release")

    def put_many(self, items: list[tuple[Any, dict[str, Any]]]) -> list[View]:
        """Put all tasks or none."""
        capacity = self.options.get("capacity", 0)
        if capacity and len(items) > capacity:
            raise Refused(InvalidOption)
        if not self.room(len(items)) or self.full_lane(items) is not None:
            raise Refused(TubeFull)
        views = [self.add(*item) for item in items]
        self.catch_up()
        return views

    def take_many(self, connection: Connection, limit: int) -> list[View]:
        """Take up to `limit` tasks without waiting."""
        views: list[View] = []
        while len(views) < limit and (task := self.first()) is not None:
            views.append(self.give(task, connection))
        self.catch_up()
        return views

    def ack_many(self, connection: Connection, refs: list[int | Ref]) -> dict[int, bool]:
        """Ack the held tasks."""
        return self.for_each(refs, lambda ref: self.change(self.find_held(connection, ref), "done", "delete", "ack"))

    def release_many(self, connection: Connection, refs: list[int | Ref], delay: int | None) -> dict[int, bool]:
        """Release the held tasks."""
        if delay is not None and "delay" not in self.driver.options:
            raise Refused(OptionNotSupported)
        return self.for_each(refs, lambda ref: self.release_unfailed(self.find_held(connection, ref), delay))

    def delete_many(self, refs: list[int | Ref]) -> dict[int, bool]:
        """Delete the existing tasks."""
        return self.for_each(refs, self.remove)

    def remove(self, ref: int | Ref) -> Task | None:
        """Remove a task or forget a done one; return the task if it was alive."""
        if self.forget_done(ref) is not None:
            return None
        task = self.found(ref)
        self.change(task, "done", "delete", "delete")
        return task

    def for_each(self, refs: list[int | Ref], act: Callable[[int | Ref], object]) -> dict[int, bool]:
        """Run a call for each of these tasks; only the first reference to a task counts."""
        if any(isinstance(ref, Ref) and ref.is_lease and ref.tube != self.generation for ref in refs):
            raise Refused(InvalidOption)
        done: dict[int, bool] = {}
        for ref in refs:
            id = ref.id if isinstance(ref, Ref) else ref
            if id in done:
                continue
            try:
                act(ref)
            except Refused:
                done[id] = False
            else:
                done[id] = True
        self.catch_up()
        return done

    def touch(self, connection: Connection, ref: int | Ref, span: int) -> View:
        """Touch."""
        task = self.find_held(connection, ref)
        if "ttr" not in self.driver.options:
            raise Refused(OptionNotSupported)
        if span:
            self.prolong(task, span)
            task.ttr = None if task.ttr is None else task.ttr + span
            until = None if task.until is None else task.until + span
            self.change(task, "taken", "touch", "touch", until=until)
        return self.mark_finished(task)

    @staticmethod
    def prolong(task: Task, span: int) -> None:
        """Prolong a life."""
        if task.ttl is not None and task.dead is not None:
            task.ttl += span
            task.dead += span

    def bury(self, ref: int | Ref) -> View:
        """Bury."""
        task = self.found(ref)
        if task.state != "buried":
            self.change(task, "buried", "bury", "bury")
        return self.mark_finished(task)

    def delete(self, ref: int | Ref) -> View:
        """Delete."""
        kept = self.forget_done(ref)
        if kept is not None:
            return kept
        task = self.found(ref)
        self.change(task, "done", "delete", "delete")
        return self.mark_finished(task)

    def cancel(self, ref: int | Ref) -> View:
        """Cancel."""
        task = self.found(ref)
        if task.state == "taken":
            task.keep_done = max(task.keep_done or 0, 60_000_000)
        self.change(task, "done", "cancel", "delete", why="cancelled")
        return self.mark_finished(task)

    def mark_finished(self, task: Task) -> View:
        """Return the task right after its call, done if its ttl is over, before any consequence."""
        self.expire()
        view = self.show(task)
        self.catch_up()
        return view

    def kick(self, count: int) -> int:
        """Kick."""
        kicked = sorted((task for task in self.tasks if task.state == "buried"), key=self.place)[:count]
        for task in kicked:
            self.change(task, "ready", "kick", "kick")
        self.catch_up()
        return len(kicked)

    def release_all(self, owner: Session | None = None) -> None:
        """Release the tasks of one session or of all, in order of ids."""
        for task in [each for each in self.tasks if each.state == "taken"]:
            if owner is None or task.owner is owner:
                self.change(task, "ready", "release", "release")
        self.catch_up()

    def block(self, name: str, span: int, extend: bool, reason: str | None) -> None:
        """Block."""
        rate_limit = self.rate_limit(name)
        until = self.now + span if span else 0
        if not extend or until >= rate_limit.blocked:
            rate_limit.blocked, rate_limit.reason = until, reason
        rate_limit.is_recorded = rate_limit.is_recorded or span > 0
        self.catch_up()

    def configure(self, name: str, changes: dict[str, Any]) -> None:
        """Configure."""
        if changes.get("weight") is not None and self.options.get("order") != "round_robin":
            raise Refused(InvalidOption)
        rate_limit = self.rate_limit(name)
        for limit, value in changes.items():
            setattr(rate_limit, limit, value)
            rate_limit.is_recorded = rate_limit.is_recorded or value is not None
        self.catch_up()

    def lanes(self) -> list[LaneInfo]:
        """Return all lanes as users see them."""
        lanes: list[LaneInfo] = []
        for name in sorted({*self.rate_limits, *(self.lane(task) or "" for task in self.tasks)}):
            rate_limit = self.rate_limits.get(name, RateLimit())
            is_full = max(self.next_start(name), self.full_at(rate_limit)) <= self.now
            if {"ready", "taken"} & set(self.states(name)) or not is_full or rate_limit.has_own_limits:
                lanes.append(self.lane_info(name))
        return lanes

    def lane_info(self, name: str) -> LaneInfo:
        """Return one lane as users see it."""
        states, moment, rate_limit = self.states(name), self.next_start(name), self.rate_limits.get(name, RateLimit())
        interval, most = self.limits(rate_limit)
        is_blocked = rate_limit.blocked > self.now
        ready = [task for task in self.tasks if self.lane(task) == name and task.state == "ready"]
        return LaneInfo(
            name,
            states.count("ready"),
            states.count("taken"),
            moment / SECOND if moment > self.now else None,
            interval / SECOND,
            most,
            self.capacity(name),
            self.burst(rate_limit),
            rate_limit.weight or 1,
            rate_limit.blocked / SECOND if is_blocked else None,
            rate_limit.reason if is_blocked else None,
            min(ready, key=self.place).created / SECOND if ready else None,
        )

    def truncate(self) -> None:
        """Truncate."""
        self.tasks.clear()
        self.done.clear()
        self.rate_limits.clear()
        self.catch_up()

    def pause(self, span: int | None) -> None:
        """Pause."""
        self.paused, self.paused_until = True, None if span is None else self.now + span
        self.catch_up()

    def resume(self) -> None:
        """End a pause."""
        self.paused, self.paused_until = False, None
        self.catch_up()

    def drop(self, force: bool) -> None:
        """Drop the tube and create it again."""
        waiting = [*self.waiting_takes, *self.waiting_puts]
        if not force and (waiting or any(task.state == "taken" for task in self.tasks)):
            raise Refused(TubeBusy)
        for waiter in waiting:
            waiter.results.append(TubeNotFound)
        self.start()

    def statistics(self) -> tuple[dict[str, int], dict[str, int], int]:
        """Return all counts."""
        states = [task.state for task in self.tasks]
        counts = {name: states.count(name) for name in STATES}
        counts["total"] = len(states)
        counts["done"] = self.calls["ack"] + self.calls["delete"]
        return counts, dict(self.calls), len(self.waiting_takes) + len(self.waiting_puts)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def connect(self) -> Connection:
        """Open a connection with a new session."""
        connection = Connection()
        self.sessions.append(connection.session)
        return connection

    def close(self, connection: Connection, *, lost: bool) -> None:
        """Close or detach."""
        for line in (self.waiting_takes, self.waiting_puts):
            for waiter in [each for each in line if each.connection is connection]:
                line.remove(waiter)
                waiter.results.append(QueueClosed)
        self.catch_up()
        self.leave(connection.session, lost=lost)

    def identify(self, connection: Connection, session: Session) -> None:
        """Join a session."""
        if session not in self.sessions:
            raise Refused(SessionNotFound)
        if session is connection.session:
            return
        old, connection.session = connection.session, session
        session.connections += 1
        session.ends_at = None
        self.leave(old, lost=False)

    def leave(self, session: Session, *, lost: bool) -> None:
        """Remove a connection from a session."""
        session.connections -= 1
        if not session.connections:
            if lost:
                session.ends_at = self.now + self.lease
            else:
                self.end(session)

    def end(self, session: Session) -> None:
        """End the session."""
        self.sessions.remove(session)
        self.release_all(session)
