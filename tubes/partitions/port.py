"""A port on a partitioned tube: it calls the ports of its partitions.

**How it works.** `create_tube(name, driver, partitions=P)` creates an ordinary tube without tasks, the *manifest*: it
has the driver, the options and P. Each partition is a tube of the library with the same driver, which `layout` names.
The first call that needs it creates it from the manifest, so a creation cannot stop half-way. A drop pauses the
manifest for ever, which marks it; then it drops the partitions, and last the manifest. If that is interrupted, the next
call of any program on the tube finishes it.

A task belongs to its partition: `task._tube` is a tube with the name of the whole tube, whose port is this one, and
`task._tube._part` tells the partition. `task.id` has the partition in its lowest bits; the record of a task, and what
the backends see, has the id in the partition. The methods here route by the task, its lease or its id, by the lane or
the key of a put, or call all partitions.

A take asks the partitions in the order of `Looks`, those that probably have a task first; a take that may not wait has
asked all of them before it returns None. A caller that waits on a server sleeps until a partition wakes it
(`Sleepers`); in memory it is in the line of each partition (`AnyOf`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from inspect import isawaitable
from itertools import count
from operator import methodcaller
from random import sample
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from tubes.backend.flow import run, run_async
from tubes.backend.looks import Looks
from tubes.backend.selecting import Scan
from tubes.backend.take_any import AnyOf
from tubes.backend.waiters import PART_EMPTY, TUBE_EMPTY, TaskEnd
from tubes.drivers.options import NO_LANE
from tubes.drivers.options import lane as lane_name
from tubes.drivers.tube_options import as_arguments
from tubes.errors import (
    ConnectionLost,
    DuplicateKey,
    InvalidOption,
    TaskNotFound,
    TaskNotTaken,
    TubeBusy,
    TubeFull,
    TubeNotFound,
    TubesError,
)
from tubes.partitions.layout import global_id, local_id, name_of, part_of, route, share
from tubes.partitions.waiting import AnyRoom, Forward, HotPort
from tubes.values.batch import Batch, tasks_by_id
from tubes.values.lane import LaneInfo
from tubes.values.lease import Lease
from tubes.values.overview import Overview
from tubes.values.statistics import Statistics
from tubes.values.task import TaskView, log_lost_take

if TYPE_CHECKING:
    from tubes.backend.interface import Options, Port, Wrap
    from tubes.backend.listeners import Listener
    from tubes.backend.selecting import Filters, Seen
    from tubes.backend.waiters import Waiter
    from tubes.drivers.entry import Loss
    from tubes.values.codecs import Codec

T = TypeVar("T")
_log: Final = logging.getLogger("tubes")


class Together(NamedTuple):
    """A step that makes several calls, on an event loop side by side."""

    calls: list[Callable[[], Any]]


#: A step is a function that calls a port, or `Together`.
Flow: TypeAlias = Generator[Any, Any, T]


@cache
def _kind_of(kind: type[TaskView]) -> type[TaskView]:
    """Return the class of tasks in partitions, whose ids are those of the whole tube."""

    def id(self: TaskView) -> int:
        return global_id(self._record.id, self._tube._part)

    return type(kind.__name__, (kind,), {"__slots__": (), "__doc__": kind.__doc__, "id": property(id)})


def partitioned_port(port: Any) -> Any:
    """Return the port of the whole tube: for a manifest its `PartitionedPort`, otherwise the port itself."""
    if not port.shared.options.get("partitions"):
        return port
    if port.partitioned is None:
        port.partitioned = PartitionedPort(port)
    return port.partitioned


class PartitionedPort:
    """The port of one connection on a partitioned tube. One class: each method is a call of the API."""

    def __init__(self, manifest: Port[Any]) -> None:
        self._manifest: Final[Port[Any]] = manifest.tube._port
        self.connection: Final[Any] = manifest.connection
        self.shared: Final[Any] = manifest.shared
        self.url: Final = manifest.url
        self.clock: Final = manifest.clock
        self.name: Final[str] = manifest.shared.name
        self.born: Final[int] = getattr(manifest, "born")  # noqa: B009
        self.tube: Final = type(manifest.tube)(self)
        self.kind: Final[Any] = _kind_of(manifest.kind)
        self.count: Final[int] = manifest.shared.options["partitions"]
        self._awaited: Final[bool] = self.connection.awaited
        self._names: Final = [
            name_of(self.name, number, self.count, self.connection.namespace) for number in range(self.count)
        ]
        self._is_temporary: Final[bool] = getattr(manifest.shared, "temporary", False)
        self._ports: Final[dict[int, Any]] = {}
        self._codec: Codec | None = None
        self._on_loss: Callable[[Loss | None], object] | None = None
        self._turns: Final = count()
        self._puts: Final = count()
        # The waiting callers of this process on a server; None: they wait in the line of each partition.
        self._sleepers: Final[Any] = self.connection.sleepers(self.name, self.born, self._names)
        self._looks: Final[Looks] = Looks(self.count) if self._sleepers is None else self._sleepers.looks
        #: The takes that may wait.
        self.hot: Final[Any] = self if self._sleepers is None else HotPort(self)
        #: By the ids of the requests of puts that are about to wait: the partition, and whether any other would do.
        self._waiting_places: Final[dict[int, tuple[int, bool]]] = {}
        #: The partitions whose nodes replied at the last take.
        self._living_numbers: list[int] = [*range(self.count)]
        #: The partitions whose nodes did not reply at the last call of all of them.
        self._missing: list[int] = []
        #: A partition that had tasks at the last look.
        self._busy = 0

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _run(self, flow: Flow[T]) -> Any:
        if self._awaited:
            return run_async(flow, _ask_async)
        return run(flow, _ask)

    def _open(self, number: int) -> Flow[Any]:
        """Return the port of a partition. Create the partition if needed."""
        port = self._ports.get(number)
        if port is not None:
            return port
        options = share(as_arguments(self.shared.options), number, self.count)
        arguments = self._names[number], self.shared.driver, self._is_temporary, options
        port = yield partial(self.connection.open_part, *arguments)
        # Only then, or a partition would outlive a tube that is dropped meanwhile. Without the node of the manifest no
        # tube can be dropped.
        if (yield partial(self.connection.is_reachable, self.name)):
            yield from self._check_manifest(port)
        if port.tube._part is None:
            port.kind = _kind_of(port.kind)
            port.tube._part, port.tube.name = number, self.name
        port.tube._port = self
        if self._codec is not None:
            port.use_codec(self._codec)
        if self._on_loss is not None:
            port.on_loss(self._wrap_loss(number))
        return self._ports.setdefault(number, port)

    def _check_manifest(self, part: Any) -> Flow[None]:
        """Raise `TubeNotFound` if the tube is dropped. `part`: the port of a partition that may be new."""
        try:
            is_marked = (yield self._manifest.statistics).paused is not None
        except TubeNotFound:
            # A server that has lost the manifest may still have tasks.
            if (yield part.statistics).tasks["total"] == 0:
                yield partial(part.drop, True)
            self._end_waits()
            raise TubeNotFound(name=self.name) from None
        if is_marked:
            yield from self._drop_parts()
            raise TubeNotFound(name=self.name)

    def _call(self, number: int, method: str, *args: Any) -> Flow[Any]:
        """Call a method of a partition, and describe errors as those of the whole tube."""
        for _ in range(2):
            port = yield from self._open(number)
            try:
                return (yield partial(getattr(port, method), *args))
            except TubeNotFound:
                # A server has lost the partition, or the tube is being dropped.
                self._ports.pop(number, None)
            except TubesError as error:
                raise self._as_whole(error, number) from error.__cause__
        raise TubeNotFound(name=self.name)

    def _as_whole(self, error: TubesError, number: int) -> TubesError:
        """Return the error of a partition as one of the whole tube."""
        facts = dict(error.facts)
        for what, fact in error.facts.items():
            if isinstance(fact, str):
                facts[what] = fact.replace(self._names[number], self.name)
        if isinstance(facts.get("id"), int):
            facts["id"] = global_id(facts["id"], number)
        return type(error)(**facts)

    def _all(self, method: str, *args: Any) -> Flow[list[Any]]:
        """Call a method of all partitions, side by side."""
        return (yield from self._each_of(range(self.count), method, args))

    def _living(self, method: str, *args: Any) -> Flow[list[Any]]:
        """Call a method of the partitions whose node replies, and log the others."""
        return (yield from self._each_of((yield from self._known_living()), method, args))

    def _each_of(self, numbers: Iterable[int], method: str, args: tuple[Any, ...]) -> Flow[list[Any]]:
        for number in numbers:
            yield from self._open(number)
        found: list[Any] = yield Together([partial(self._to, number, method, *args) for number in numbers])
        return found

    def _known_living(self) -> Flow[list[int]]:
        """Return the partitions whose node replies, and log the others."""
        numbers = yield from self._reachable(range(self.count))
        missing = sorted({*range(self.count)}.difference(numbers))
        if missing and missing != self._missing:
            _log.warning("tube %r: the node of partitions %s does not reply", self.name, missing)
        self._missing = missing
        return numbers

    def _reachable(self, numbers: Iterable[int]) -> Flow[list[int]]:
        """Return the partitions whose node replies; all if none does."""
        by_name = {self._names[number]: number for number in numbers}
        names = yield partial(self.connection.reachable, [*by_name])
        return [by_name[name] for name in names]

    def _to(self, number: int, method: str, *args: Any) -> Any:
        return self._run(self._call(number, method, *args))

    # -- routes --------------------------------------------------------------------------------------------------------

    def _find(self, task: Any, error: type[TubesError] = TaskNotFound) -> tuple[int, Any]:
        """Return the partition of a task, a lease or an id, and what its port needs."""
        if isinstance(task, TaskView):
            view: TaskView[Any] = task  # pyright: ignore[reportUnknownVariableType]
            number: int | None = view._tube._part
            if view._tube.name != self.name:
                self._manifest.resolve_task(view)  # type: ignore[attr-defined]
            if number is None or number >= self.count:  # A task of an earlier tube of this name.
                raise error(id=view.id, tube=self.name)
            return number, view
        if isinstance(task, str):
            lease = task if isinstance(task, Lease) else Lease(task)
            if lease.tube != self.name:
                self._manifest.read_lease(lease)  # type: ignore[attr-defined]
            number, local = local_id(lease.id)
            if number >= self.count:
                raise error(id=lease.id, tube=self.name)
            return number, Lease.of(self.name, local, lease.born, lease.number, lease.session, lease.take)
        id = int(self._manifest.resolve_task(task)[0])  # type: ignore[attr-defined]
        number, local = local_id(id)
        if number >= self.count:
            raise error(id=id, tube=self.name)
        return number, local

    def _place(self, options: Options, utube: object = None) -> int:
        """Return the partition of a put: by its lane, or else by its key, or else the next one."""
        lane = self.shared.driver.lane
        if lane is not None:
            found = utube if utube is not None else options.get(lane, options.get("utube"))
            return self._place_of_lane(None if found is None else lane_name(lane, found))
        key = options.get("key")
        return route(str(key), self.count) if key is not None else next(self._puts) % self.count

    def _place_of_lane(self, lane: object) -> int:
        return route(NO_LANE if lane is None else str(lane), self.count)

    # -- what a port knows ---------------------------------------------------------------------------------------------

    @property
    def knows_none(self) -> bool:
        """True if the caller can wait at once: it asks the partitions then."""
        self.connection.check()
        return self._sleepers is not None and not self._looks.has_hot()

    @property
    def closed_error(self) -> Callable[[], TubesError] | None:
        return self._manifest.closed_error  # type: ignore[attr-defined, no-any-return]

    @property
    def codec(self) -> Codec | None:
        return self._manifest.codec

    def use_codec(self, codec: Codec) -> PartitionedPort:
        self._manifest.use_codec(codec)
        self._codec = codec
        for port in self._ports.values():
            port.use_codec(codec)
        return self

    def gather(self, items: object, options: Options, errors: object = "raise") -> Batch:
        return self._manifest.gather(items, options, errors)

    def prepare(self, data: object, options: Options) -> Any:
        return self._manifest.prepare(data, options)

    def full_error(self, tasks: int) -> TubeFull:
        return self._manifest.full_error(tasks)

    # -- puts ----------------------------------------------------------------------------------------------------------

    def put(self, data: object, options: Options, utube: object = None, *more: object) -> Any:
        return self._run(self._put(data, options, utube, *more))

    def _put(self, data: object, options: Options, utube: object, *more: object) -> Flow[Any]:
        if not self._is_free(options):
            return (yield from self._call(self._place(options, utube), "put", data, options, utube, *more))
        # The next partition, or any other that replies and has room.
        first, *others = self._turn()
        if (yield partial(self.connection.is_reachable, self._names[first])):
            task = yield from self._call(first, "put", data, options, utube, *more)
            if task is not None or not others:
                return task
        living = yield from self._reachable(others or [first])
        for number in sample(living, len(living)):
            task = yield from self._call(number, "put", data, options, utube, *more)
            if task is not None:
                return task
        return None

    def put_many(self, batch: Batch) -> Any:
        return self._run(self._put_many(batch))

    def _put_many(self, batch: Batch) -> Flow[list[Any] | None]:
        """Put the part of a batch for each partition, all or none of it.

        If one has no room, nothing is put. If one is filled meanwhile, raise `TubeFull` with its number.
        """
        living = yield from self._reachable(range(self.count))
        parts, places = self._split(batch, living)
        capacity = self.shared.options.get("capacity")
        if capacity:
            for number, part in parts.items():
                room = part_of(capacity, number, self.count)
                if part.is_too_large(room):
                    rule = f"must be at most {room} for partition {number}: that is its share of the tube's capacity"
                    raise InvalidOption(option="items", value=part.size, rule=rule)
                found = yield from self._call(number, "statistics")
                if not part.has_keys and found.tasks["total"] + part.size > room:
                    return None
        full: list[int] = []
        made: dict[int, Any] = {}
        lane_full: TubeFull | None = None
        for number, part in parts.items():
            try:
                tasks = yield from self._call(number, "put_many", part)
            except TubeFull as error:
                lane_full, tasks = error, None
            except DuplicateKey as error:
                items = [item for item, place in enumerate(places) if place == number]
                raise DuplicateKey(**{**error.facts, "item": items[error.facts["item"]]}) from None
            if tasks is None:
                full.append(number)
            else:
                made[number] = iter(tasks)
        if not full:
            return [next(made[number]) for number in places]
        if not made:
            if lane_full is not None:
                raise lane_full
            return None
        size = sum(parts[number].size for number in full)
        facts = {} if lane_full is None else lane_full.facts
        raise TubeFull(**{"capacity": capacity, **facts, "tube": self.name, "tasks": size, "partitions": full})

    def _split(self, batch: Batch, living: list[int]) -> tuple[dict[int, Batch], list[int]]:
        """Return the part of a batch for each partition, and the partition of each item."""
        places: list[int] = []
        runs: dict[int, list[tuple[Options, list[Any]]]] = {}
        for options, many in batch.runs:
            fixed = None if self._is_free(options) else self._place(options)
            for data in many:
                number = living[next(self._puts) % len(living)] if fixed is None else fixed
                places.append(number)
                mine = runs.setdefault(number, [])
                if not mine or mine[-1][0] is not options:
                    mine.append((options, []))
                mine[-1][1].append(data)
        return {number: Batch(mine) for number, mine in runs.items()}, places

    def _is_free(self, options: Options) -> bool:
        """Return True if a put may go to any partition."""
        return self.shared.driver.lane is None and "key" not in options

    def put_again(self, task: object, new: tuple[object, Options] | None = None) -> Any:
        return self._by_task("put_again", task, new)

    def reach(self, request: object) -> Any:
        """Open the partition in which a put waits for room.

        A batch for several partitions does not wait: put it at once, return its tasks, or raise `TubeFull`.
        """
        return self._run(self._reach(request))

    def _reach(self, request: Any) -> Flow[list[Any] | None]:
        batch = request if isinstance(request, Batch) else Batch([(request[1], [request[0]])])
        runs = [options for options, _ in batch.runs]
        places = {self._place(options) for options in runs if not self._is_free(options)}
        room = self.shared.options.get("capacity", 0) // self.count
        if len(places) > 1 or (any(map(self._is_free, runs)) if places else batch.is_too_large(room)):
            tasks = yield from self._put_many(batch)
            if tasks is None:
                raise self.full_error(batch.size)
            return tasks
        number, is_free = next(iter(places), 0), not places
        if is_free:
            for number in (yield from self._reachable(self._turn())):
                made: list[Any] | None = yield from self._call(number, "put_many", batch)
                if made is not None:
                    return made
        yield from self._open(number)
        self._waiting_places[id(request)] = number, is_free
        return None

    def reach_again(self, request: object) -> Any:
        """Put what may go to any partition, and waits in one of them, into the first one that has room."""
        return self._run(self._reach_again(request))

    def _reach_again(self, request: object) -> Flow[Any]:
        made = yield from self._reach(request)
        return made if made is None or isinstance(request, Batch) else made[0]

    def _turn(self) -> list[int]:
        """Return all partitions, beginning with the next one."""
        first = next(self._puts)
        return [(first + turn) % self.count for turn in range(self.count)]

    # -- takes ---------------------------------------------------------------------------------------------------------

    def take(self) -> Any:
        if self._awaited:
            return run_async(self._take_async("take"), _ask_async)
        return self._take_here(lambda port: port.take())

    def take_many(self, limit: int, span: int | None = None) -> Any:
        if self._awaited:
            return run_async(self._take_async("take_many", limit, span), _ask_async)
        tasks: list[Any] = []
        self._take_here(lambda port: port.take_many(limit - len(tasks), span), tasks, limit)
        return tasks

    def ask(self, waiter: Waiter) -> Any:
        """Ask the partitions until one has a task for a caller that was woken, or this process stands in all lines."""
        return self.ask_all(waiter, waiter.span)

    def ask_all(self, waiter: Waiter | None, span: int | None) -> Any:
        """Ask the partitions as `ask` does; `waiter`: None if the caller did not sleep."""
        if self._awaited:
            return run_async(self._ask_async(waiter, span), _ask_async)
        return self._ask_here(waiter, span)

    def _ask_here(self, waiter: Waiter | None, span: int | None) -> Any:
        sleepers, number, task = self._sleepers, None, None
        try:
            try:
                sleepers.begin(waiter)
                while task is None and (found := sleepers.next()) is not None:
                    number = found[0]
                    if found[1] or self._run(self._replies(number)):
                        task = self._take_from(number, partial(_take_standing, sleepers, found, span))
            finally:
                sleepers.end(number)
            return task
        except BaseException:
            if task is not None:
                self.release_later(task)
            raise

    def _ask_async(self, waiter: Waiter | None, span: int | None) -> Flow[Any]:
        sleepers, number, task = self._sleepers, None, None
        try:
            sleepers.begin(waiter)
            while task is None and (found := sleepers.next()) is not None:
                number = found[0]
                if found[1] or (yield from self._replies(number)):
                    task = yield from self._take_flow(number, partial(_take_standing, sleepers, found, span))
        finally:
            sleepers.end(number)
        return task

    def has_more(self, task: Any) -> bool:
        """Return True if the partition of a task probably has more tasks."""
        return self._looks.is_hot(task._tube._part)

    def take_more(self, task: Any, limit: int, span: int | None) -> Any:
        """Take more tasks from the partition of a task; none if its node has died meanwhile."""
        return self._run(self._take_more(task._tube._part, limit, span))

    def _take_more(self, number: int, limit: int, span: int | None) -> Flow[list[Any]]:
        tasks: list[Any] = []
        with suppress(ConnectionLost):
            tasks = yield from self._call(number, "take_many", limit, span)
        return tasks

    def _replies(self, number: int) -> Flow[bool]:
        """Return True if the node of a partition replies."""
        is_alive = bool((yield partial(self.connection.is_reachable, self._names[number])))
        if not is_alive:
            self._sleepers.note_failure(number)
        return is_alive

    def _take_here(self, take: Callable[[Any], Any], tasks: list[Any] | None = None, limit: int = 0) -> Any:
        """Take in this thread: return a task, or add up to `limit` tasks to `tasks`. An interrupted call holds none."""
        taken: list[Any] = [] if tasks is None else tasks
        task: Any = None
        try:
            for number in self._run(self._living_order()):
                task = self._take_from(number, take)
                self._looks.note_take(number, found=bool(task))
                if tasks is None and task is not None:
                    return task
                taken += task or ()
                task = None
                if tasks is not None and len(taken) >= limit:
                    break
        except BaseException:
            taken += task if isinstance(task, list) else [task] if task is not None else ()
            while taken:  # Repeated after another interrupt.
                with suppress(KeyboardInterrupt):
                    self.release_later(taken[-1])
                    del taken[-1]
            raise
        return None

    def _take_from(self, number: int, take: Callable[[Any], Any]) -> Any:
        """Take from a partition in this thread; return None if its node is dead.

        There is no step after the take of the port in which an interrupt could lose the task.
        """
        port = self._ports.get(number)
        try:
            return take(port if port is not None else self._run(self._open(number)))
        except TubeNotFound:
            self._ports.pop(number, None)
            return take(self._run(self._open(number)))
        except ConnectionLost:
            if not self._run(self._has_died(number)):
                raise
            return None
        except TubesError as error:
            raise self._as_whole(error, number) from error.__cause__

    def _take_flow(self, number: int, take: Callable[[Any], Any]) -> Flow[Any]:
        """Take from a partition on an event loop; return None if its node is dead."""
        port = yield from self._open(number)
        try:
            return (yield partial(take, port))
        except TubeNotFound:
            self._ports.pop(number, None)
        except ConnectionLost:
            if not (yield from self._has_died(number)):
                raise
            return None
        except TubesError as error:
            raise self._as_whole(error, number) from error.__cause__
        port = yield from self._open(number)
        return (yield partial(take, port))

    def _take_async(self, method: str, limit: int = 1, span: int | None = None) -> Flow[Any]:
        tasks: list[Any] = []
        try:
            for number in (yield from self._living_order()):
                arguments = (limit - len(tasks), span) if method == "take_many" else ()
                found = yield from self._take_flow(number, methodcaller(method, *arguments))
                self._looks.note_take(number, found=bool(found))
                if method == "take" and found is not None:
                    return found
                tasks += found or ()
                if len(tasks) >= limit:
                    break
        except BaseException:
            for task in tasks:
                self.release_later(task)
            raise
        return tasks if method == "take_many" else None

    def _living_order(self) -> Flow[list[int]]:
        self._living_numbers = yield from self._reachable(self._looks.order())
        return self._living_numbers

    def _has_died(self, number: int) -> Flow[bool]:
        """Return True if the node of a partition does not reply."""
        self._living_numbers = yield from self._reachable(range(self.count))
        is_dead = number not in self._living_numbers
        if is_dead and self._sleepers is not None:
            self._sleepers.note_failure(number)
        return is_dead

    def first(self) -> Any:
        return self._run(self._first())

    def _first(self) -> Flow[tuple[int, int] | None]:
        found = yield from self._all("first")
        places = [(place[0], global_id(place[1], number)) for number, place in enumerate(found) if place is not None]
        return min(places, default=None)

    # -- calls about one task ------------------------------------------------------------------------------------------

    def _by_task(self, method: str, task: object, *args: Any) -> Any:
        number, known = self._find(task)
        return self._to(number, method, known, *args)

    def _by_holder(self, method: str, task: object, *args: Any) -> Any:
        number, known = self._find(task, TaskNotTaken)
        return self._to(number, method, known, *args)

    def take_task(self, task: object, span: int | None) -> Any:
        return self._by_task("take_task", task, span)

    def ack(self, task: object) -> Any:
        return self._by_holder("ack", task)

    def ack_with(self, task: object, result: object) -> Any:
        return self._by_holder("ack_with", task, result)

    def next(self, task: Any) -> Any:
        return self._run(self._next(task))

    def _next(self, task: Any) -> Flow[Any]:
        """Ack a task and take the next one of its partition. Every second call only acks: others get their turn."""
        number, known = self._find(task, TaskNotTaken)
        if self.count > 1 and next(self._turns) % 2:
            try:
                yield from self._call(number, "ack", known)
            except TaskNotTaken as lost:
                log_lost_take(lost)
            return None
        return (yield from self._call(number, "next", known))

    def part(self, number: int) -> Any:
        """Return the tube of a partition: for threads."""
        return self._run(self._open(number)).tube

    def port_of(self, task: Any) -> Any:
        """Return the port of the partition of a task that this port has put."""
        return self._ports[task._tube._part]

    def release(self, task: object, *args: Any) -> Any:
        return self._by_holder("release", task, *args)

    def release_unfailed(self, task: object) -> Any:
        return self._by_holder("release_unfailed", task)

    def decline(self, task: object, delay: object) -> Any:
        return self._by_holder("decline", task, delay)

    def touch(self, task: object, seconds: object) -> Any:
        return self._by_holder("touch", task, seconds)

    def set_ttr(self, task: object, span: int | None) -> Any:
        return self._by_holder("set_ttr", task, span)

    def checkpoint(self, task: object, changes: Mapping[str, str]) -> Any:
        return self._by_holder("checkpoint", task, changes)

    def bury(self, task: object, *args: Any) -> Any:
        return self._by_task("bury", task, *args)

    def update(self, task: object, changes: Options) -> Any:
        return self._by_task("update", task, changes)

    def delete(self, task: object, *args: Any) -> Any:
        return self._by_task("delete", task, *args)

    def cancel(self, task: object, reason: str | None) -> Any:
        return self._by_task("cancel", task, reason)

    def peek(self, task: object) -> Any:
        return self._by_task("peek", task)

    def kick_task(self, task: object, attempts: int | None, ttl: object) -> Any:
        return self._by_task("kick_task", task, attempts, ttl)

    def release_later(self, task: Any) -> None:
        port = self._ports.get(task._tube._part)
        if port is not None:
            port.release_later(task)

    def lease_of(self, task: Any) -> Lease:
        number = task._tube._part
        lease = self._ports[number].lease_of(task)
        return Lease.of(self.name, task.id, lease.born, lease.number, lease.session, lease.take)

    def on_loss(self, callback: Callable[[Loss | None], object] | None) -> None:
        self._on_loss = callback
        for number, port in self._ports.items():
            port.on_loss(None if callback is None else self._wrap_loss(number))
        if callback is not None and not self._ports:
            callback(None)

    def _wrap_loss(self, number: int) -> Callable[[Loss | None], object]:
        def wrapped(loss: Loss | None) -> object:
            callback = self._on_loss
            if callback is None:
                return None
            return callback(None if loss is None else loss._replace(id=global_id(loss.id, number)))

        return wrapped

    # -- calls about several tasks -------------------------------------------------------------------------------------

    def _by_tasks(self, method: str, tasks: object, *args: Any) -> Any:
        return self._run(self._call_by_tasks(method, tasks, *args))

    def _call_by_tasks(self, method: str, tasks: Any, *args: Any) -> Flow[dict[int, bool]]:
        references = tasks_by_id(tasks, self._refer)
        done = dict.fromkeys(references, False)
        parts: dict[int, list[Any]] = {}
        for id, (_, _, known) in references.items():
            if known is not None:
                parts.setdefault(local_id(id)[0], []).append(known)
        steps = [partial(self._to, number, method, mine, *args) for number, mine in parts.items()]
        for number, found in zip(parts, (yield Together([*steps])), strict=True):
            done |= {global_id(id, number): is_done for id, is_done in found.items()}
        return done

    def _refer(self, task: object) -> tuple[int, int, Any]:
        """Return the id of a task in the whole tube, and what the port of its partition needs; None: no such task."""
        try:
            number, known = self._find(task)
        except TaskNotFound as missing:
            return missing.facts["id"], 0, None
        local = known if isinstance(known, int) else known.id if isinstance(known, Lease) else known._record.id
        return global_id(local, number), 0, known

    def ack_many(self, tasks: object) -> Any:
        return self._by_tasks("ack_many", tasks)

    def release_many(self, tasks: object, delay: object) -> Any:
        return self._by_tasks("release_many", tasks, delay)

    def renew_many(self, tasks: object, seconds: object) -> Any:
        return self._by_tasks("renew_many", tasks, seconds)

    def delete_many(self, tasks: object, *args: Any) -> Any:
        return self._by_tasks("delete_many", tasks, *args)

    def _in_order(self, method: str, numbers: list[int], items: list[Any], *args: Any) -> Flow[list[bool]]:
        """Call a method with a list of items in each partition, and return the results in the order of the items."""
        parts: dict[int, list[Any]] = {}
        for number, item in zip(numbers, items, strict=True):
            parts.setdefault(number, []).append(item)
        ordered = list(parts.items())
        replies = yield Together(
            [partial(self._to, number, method, *args[:1], mine, *args[1:]) for number, mine in ordered]
        )
        found = {number: iter(reply) for (number, _), reply in zip(ordered, replies, strict=True)}
        return [next(found[number]) for number in numbers]

    def evict(self, tasks: list[Any]) -> Any:
        return self._run(self._in_order("evict", [task._tube._part for task in tasks], tasks))

    def change_seen(self, act: str, seen: list[Seen], arguments: tuple[object, ...]) -> Any:
        places = [local_id(one[0]) for one in seen]
        items = [(id, *one[1:]) for (_, id), one in zip(places, seen, strict=True)]
        return self._run(self._in_order("change_seen", [number for number, _ in places], items, act, arguments))

    def relay_limit(self, target: object) -> int:
        return 0

    def select(self, filters: Filters, scan: Scan, most: int, with_data: bool) -> Any:
        return self._run(self._select(filters, scan, most, with_data))

    def _select(self, filters: Filters, scan: Scan, most: int, with_data: bool) -> Flow[list[Any]]:
        """Return the next part of a scan, which goes through one partition after the other."""
        if scan.cursor is None:
            number, after = (0, None) if scan.after is None else local_id(scan.after)
            scan.cursor = number, Scan(filters, after)
        number, inner = scan.cursor
        if filters.lane is not None:
            number = self._place_of_lane(filters.lane)
        found: list[Any] = []
        if number in (yield from self._known_living()):
            found = yield from self._call(number, "select", filters, inner, most, with_data)
        else:
            inner.ended = True
        if inner.ended:
            scan.cursor = number + 1, Scan(filters)
            scan.ended = filters.lane is not None or number + 1 == self.count
        return found if with_data else [(global_id(one[0], number), *one[1:]) for one in found]

    # -- calls about the whole tube ------------------------------------------------------------------------------------

    def statistics(self) -> Any:
        return self._run(self._statistics())

    def _statistics(self) -> Flow[Statistics]:
        found = sum_of((yield from self._living("statistics")), self._sleepers is None)
        if self._sleepers is not None:
            found = replace(found, waiting=found.waiting + self._sleepers.count())
        return found

    def reasons(self) -> Any:
        return self._run(self._reasons())

    def _reasons(self) -> Flow[Mapping[str, int]]:
        found: Counter[str] = Counter()
        for reasons in (yield from self._living("reasons")):
            found.update(reasons)
        return found

    def oldest_ready_age(self) -> Any:
        return self._run(self._oldest_ready_age())

    def _oldest_ready_age(self) -> Flow[float | None]:
        ages = yield from self._living("oldest_ready_age")
        return max((age for age in ages if age is not None), default=None)

    def due_histogram(self, edges: Iterable[Any]) -> Any:
        return self._run(self._due_histogram(edges))

    def _due_histogram(self, edges: Iterable[Any]) -> Flow[list[int]]:
        if hasattr(edges, "__iter__"):  # Otherwise a partition refuses them.
            edges = [*edges]
        found = yield from self._living("due_histogram", edges)
        return [sum(column) for column in zip(*found, strict=True)]

    def is_empty(self) -> Any:
        return self._run(self._is_empty())

    def _is_empty(self) -> Flow[bool]:
        found = yield from self._all("is_empty")
        if all(found):
            return True
        self._busy = found.index(False)
        return False

    def forget_key(self, key: object) -> Any:
        return self._run(self._forget_key(key))

    def _forget_key(self, key: object) -> Flow[bool]:
        return any((yield from self._all("forget_key", key)))

    def release_all(self) -> Any:
        return self._run(self._each("release_all"))

    def truncate(self) -> Any:
        return self._run(self._each("truncate"))

    def pause(self, seconds: object, extend: bool) -> Any:
        return self._run(self._each("pause", seconds, extend))

    def _each(self, method: str, *args: Any) -> Flow[None]:
        yield from self._all(method, *args)

    def update_parts(self) -> Any:
        """Give all partitions the options of the manifest, and reset their other options."""
        return self._run(self._alter_parts(self.shared.driver.fill(as_arguments(self.shared.options))))

    def alter(self, changes: Options) -> Any:
        return self._run(self._alter(dict(changes)))

    def _alter(self, changes: dict[str, Any]) -> Flow[None]:
        # A partition that is created meanwhile has the new options already.
        yield partial(self._manifest.alter, changes)
        yield from self._alter_parts(changes)

    def _alter_parts(self, changes: dict[str, Any]) -> Flow[None]:
        for number in range(self.count):
            yield from self._call(number, "alter", share(changes, number, self.count))

    def drop(self, force: bool) -> Any:
        return self._run(self._drop(force))

    def _drop(self, force: bool) -> Flow[None]:
        if not force:
            found = yield from self._statistics()
            if found.tasks["taken"] or found.waiting:
                raise TubeBusy(name=self.name, taken=found.tasks["taken"], waiting=found.waiting)
        yield partial(self._manifest.pause, None, False)
        yield from self._drop_parts()

    def _drop_parts(self) -> Flow[None]:
        """Drop all partitions, then the manifest, which is marked."""
        for number in range(self.count):
            self._ports.pop(number, None)
            with suppress(TubeNotFound):
                port = yield partial(self.connection.find_part, self._names[number])
                yield partial(port.drop, True)
        with suppress(TubeNotFound):
            yield partial(self._manifest.drop, True)
        self._end_waits()

    def _end_waits(self) -> None:
        """End the waits for tasks of a dropped tube."""
        if self._sleepers is not None:
            self._sleepers.close(lambda: TubeNotFound(name=self.name))

    def lanes(self, limit: int, should_stop: Callable[[], bool] = lambda: False) -> Any:
        return self._run(self._lanes(limit, should_stop))

    def _lanes(self, limit: int, should_stop: Callable[[], bool]) -> Flow[list[LaneInfo]]:
        found = yield from self._living("lanes", limit, should_stop)
        return sorted((lane for lanes in found for lane in lanes), key=lambda lane: lane.name)[:limit]

    def lane_info(self, lane: object) -> Any:
        return self._to(self._place_of_lane(lane), "lane_info", lane)

    def block(self, lane: object, *args: Any) -> Any:
        return self._to(self._place_of_lane(lane), "block", lane, *args)

    def configure(self, lane: object, limits: Options) -> Any:
        return self._to(self._place_of_lane(lane), "configure", lane, limits)

    def listen(self, callback: object, wrap: Wrap | None = None) -> Any:
        return self._run(self._listen(callback, wrap))

    def _listen(self, callback: object, wrap: Wrap | None) -> Flow[Listener | None]:
        found: list[Listener | None] = yield from self._all("listen", callback, wrap)
        return found[0]

    # -- waiting -------------------------------------------------------------------------------------------------------

    def enlist(self, waiter: Waiter) -> None:
        """Put a waiter for a task in the line of each partition, and any other one in the line of its partition."""
        request = waiter.request
        if request is None and self._sleepers is not None:
            waiter.owner = self
            if waiter.timeout is not None and waiter.deadline is None:
                waiter.deadline = self.clock.micros() + waiter.timeout
            self._sleepers.enlist(waiter)
        elif request is None:
            ports = [self._ports.get(number) for number in self._living_numbers]
            if None in ports:  # The tube is being dropped.
                raise TubeNotFound(name=self.name)
            line: Any = AnyOf([port for port in ports if port is not None])
            waiter.owner = line
            line.enlist(waiter)
        elif request is TUBE_EMPTY:
            Forward(waiter, TUBE_EMPTY, PART_EMPTY).enlist(self._ports[self._busy])
        elif isinstance(request, TaskEnd):
            number, local = local_id(request.id)
            Forward(waiter, TaskEnd(local)).enlist(self._ports[number])
        else:
            number, is_free = self._waiting_places.pop(id(request))
            port = self._ports.get(number)
            if port is None:
                raise TubeNotFound(name=self.name)
            if is_free and self.count > 1:
                AnyRoom(waiter, self).enlist(port)
            else:
                port.enlist(waiter)

    def withdraw(self, waiter: Waiter, *, undo: bool) -> object:
        line = self._sleepers if waiter.owner is self else waiter.owner
        result = None if line is None else line.withdraw(waiter, undo=undo)
        names = {name: number for number, name in enumerate(self._names)}
        if isinstance(result, TubesError) and result.facts.get("name") in names:
            return self._as_whole(result, names[result.facts["name"]])
        return result

    def must_keep_waiting(self, waiter: Waiter) -> bool:
        return waiter.owner is not self and bool(waiter.owner.must_keep_waiting(waiter))

    def dismiss(self, error: Callable[[], TubesError]) -> None:
        """End the waits of a queue that is closed."""
        if self._sleepers is not None:
            self._sleepers.dismiss(self, error)

    def abandon(self, waiter: Waiter) -> None:
        if waiter.owner is self:
            self._sleepers.abandon(waiter)
        elif waiter.owner is not None:
            waiter.owner.abandon(waiter)


def _take_standing(sleepers: Any, found: tuple[int, bool], span: int | None, port: Any) -> Any:
    number, was_woken = found
    return port.take_standing(sleepers.callers(number), was_woken, span, partial(sleepers.note, number))


def parts_of(tube: str, seen: Overview, namespace: str) -> list[str]:
    """Return the names of the partitions of a tube, by the overview of its manifest."""
    count = (seen.options or {}).get("partitions", 0)
    return [name_of(tube, number, count, namespace) for number in range(count)]


def sum_overviews(manifest: Overview, found: list[Overview], joins_all_lines: bool) -> Overview:
    """Return the overview of a partitioned tube."""
    if not found:  # Nobody has used its partitions yet.
        return manifest
    ages = [one.oldest_ready_age for one in found if one.oldest_ready_age is not None]
    total = sum_of([one.statistics for one in found], joins_all_lines)
    return replace(
        manifest,
        statistics=replace(total, waiting=total.waiting + manifest.statistics.waiting),  # Those of this process.
        sessions=max(manifest.sessions, *(one.sessions for one in found)),
        lanes=sum(one.lanes for one in found),
        throttled_lanes=sum(one.throttled_lanes for one in found),
        due_lag=max(one.due_lag for one in found),
        oldest_ready_age=max(ages, default=None),
    )


def sum_of(found: list[Statistics], joins_all_lines: bool) -> Statistics:
    """Return the counts of all partitions. `joins_all_lines`: each waiting caller is counted in every partition."""
    tasks, calls = Counter[str](), Counter[str]()
    for one in found:
        tasks.update(one.tasks)
        calls.update(one.calls)
    waiting, kept = (max if joins_all_lines else sum)(one.waiting for one in found), sum(one.kept for one in found)
    return Statistics(dict(tasks), dict(calls), waiting, found[0].paused, kept)


def find_tube(queue: Any, name: str) -> Any:
    """Return a tube without partitions, or by a name such as `crawl#2` a tube with the tasks of one partition only.

    The partition is created if needed. Raises `TubeNotFound`, also if the name tells too little or too much.
    """
    tube_name, _, number = name.partition("#")
    tube = queue.tube(tube_name)
    if (int(number) if number else -1) not in (range(tube.partitions) if tube.partitions else (-1,)):
        raise TubeNotFound(name=name)
    if number:
        port: PartitionedPort = tube._port
        port.part(int(number))
        stored = name_of(tube_name, int(number), port.count, port.connection.namespace)
        tube = type(tube)(port.connection.find_part(stored))
        tube.name = name
    return tube


def place_of(tube: Any, options: Options) -> int | None:
    """Return the partition of a put with checked options; None: any."""
    port: PartitionedPort = tube._port
    return None if port._is_free(options) else port._place(options)


def _ask(step: Any) -> Any:
    return [call() for call in step.calls] if isinstance(step, Together) else step()


async def _ask_async(step: Any) -> Any:
    if isinstance(step, Together):
        return await asyncio.gather(*map(_ask_async, step.calls))
    result = step()
    return await result if isawaitable(result) else result
