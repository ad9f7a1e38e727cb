"""The face for asyncio: `connect`, `AsyncQueue` and `AsyncTube`. The same names as in `sync.py`, awaited.

What a method promises, costs and raises stands at its twin. Waiting never blocks the event loop, and a cancelled take
loses nothing. Threads and event loops may share one store: each wakes the other.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload
from uuid import UUID

from tubes import calls, connecting
from tubes.backend.clock import Clock
from tubes.backend.interface import ApiKind, AsyncConnection, AsyncPort
from tubes.backend.listeners import LoopListener, callback_of
from tubes.backend.take_any import AnyOf, in_turn, listed
from tubes.backend.waiters import LoopWaiter
from tubes.drivers.driver import Driver
from tubes.drivers.options import KEEP, micros
from tubes.errors import NothingReady, QueueClosed, QueueForked, TubeNotFound, TubesError
from tubes.values.batch import check_limit
from tubes.values.codecs import Codec
from tubes.values.lane import Utube
from tubes.values.overview import Overview
from tubes.values.problem import Problem
from tubes.values.statistics import Statistics
from tubes.values.task import FINISHED, TaskView, log_lost

if TYPE_CHECKING:
    import redis

    from tubes.sync import Queue


def connect(
    url: str | redis.Redis | redis.RedisCluster | Queue | AsyncQueue = "memory://",
    *,
    codec: str | Codec | None = None,
    clock: Clock | None = None,
    session_ttl: float = 30.0,
) -> AsyncQueue:
    """Connect to a queue from asyncio; see `tubes.connect`.

    >>> import asyncio, tubes.aio
    >>> async def main():
    ...     async with tubes.aio.connect() as queue:
    ...         tube = await queue.create_tube("mail")
    ...         await tube.put("hello")
    ...         async with tube.taking(timeout=0) as task:
    ...             print(task.data)
    >>> asyncio.run(main())
    hello
    """
    return AsyncQueue(connecting.connect(url, codec, clock, session_ttl, ApiKind(AsyncTask, AsyncTube, awaited=True)))


class AsyncQueue:
    """A session with a queue, for the tasks of one or several event loops: a `Queue` whose methods are awaited.

    As an `async with` it is closed at the end.
    """

    def __init__(self, connection: AsyncConnection[AsyncTask]) -> None:
        self._connection: Any = connection

    async def create_tube(
        self,
        name: str,
        driver: str | Driver = "fifo",
        *,
        if_not_exists: bool = False,
        temporary: bool = False,
        **options: Any,
    ) -> AsyncTube:
        """Create a tube. See `Queue.create_tube`."""
        port = await _answer(self._connection.create(name, driver, if_not_exists, temporary, options))
        tube: AsyncTube = port.tube
        return tube

    async def tube(self, name: str) -> AsyncTube:
        """The tube of this name. See `Queue.tube`."""
        port = await _answer(self._connection.find(name))
        tube: AsyncTube = port.tube
        return tube

    async def tubes(self) -> list[str]:
        """The names of all tubes, sorted. See `Queue.tubes`."""
        names: list[str] = await _answer(self._connection.names())
        return names

    @overload
    async def statistics(self, name: str) -> Statistics: ...
    @overload
    async def statistics(self, name: None = None) -> dict[str, Statistics]: ...
    async def statistics(self, name: str | None = None) -> Statistics | dict[str, Statistics]:
        """The `Statistics` of one tube, or without a name those of all by name. See `Queue.statistics`."""
        if name is not None:
            return await (await self.tube(name)).statistics()
        found: dict[str, Statistics] = {}
        for name in await self.tubes():
            with suppress(TubeNotFound):  # It was dropped meanwhile.
                found[name] = await self.statistics(name)
        return found

    async def overview(self, *, ages: bool = False) -> dict[str, Overview]:
        """All tubes by name, at a glance: for monitors. See `Queue.overview`."""
        found: dict[str, Overview] = await _answer(self._connection.overview(ages))
        return found

    async def check(self, name: str) -> list[Problem]:
        """What is wrong with a tube: what its keys on the server say that cannot be; [] if nothing is.

        See `Queue.check`.
        """
        found: list[Problem] = await _answer(self._connection.examine(name, False))
        return found

    async def repair(self, name: str) -> list[Problem]:
        """Mend what is wrong with a tube; answers what that was, as `check`. See `Queue.repair`."""
        found: list[Problem] = await _answer(self._connection.examine(name, True))
        return found

    async def take_any(
        self, tubes: Iterable[AsyncTube | str], timeout: float | None = None, *, fair: bool = False
    ) -> AsyncTask | None:
        """Take the first task that may be taken from any of several tubes. See `Queue.take_any`."""
        patience = None if timeout is None else micros("timeout", timeout)
        named = listed(tubes, fair, AsyncTube, self._connection)
        found = [await _answer(self._connection.find(one)) if isinstance(one, str) else one._port for one in named]
        ports = in_turn(found, fair)
        for port in ports:
            ready: AsyncTask | None = await _answer(port.take())
            if ready is not None:
                return ready
        task: AsyncTask | None = None
        if patience != 0:
            task = await LoopWaiter(ports[0].clock, patience).wait(AnyOf(ports))
        return task

    async def session(self) -> AsyncQueue:
        """Another session on the same queue; it is closed by itself. See `Queue.session`."""
        return AsyncQueue(self._connection.sibling())

    async def identify(self, uuid: str | UUID | None = None) -> str:
        """The uuid of this session; with a uuid, join that session first. See `Queue.identify`."""
        known: str = await _answer(self._connection.identify(uuid))
        return known

    async def register_driver(self, driver: Driver) -> None:
        """Let tubes be created with a driver of your own. See `Queue.register_driver`."""
        self._connection.register(driver)

    async def detach(self) -> None:
        """Close the connection, but let its session live on for `session_ttl`: `identify(uuid)` can go on with it.

        See `Queue.detach`.
        """
        await _answer(self._connection.close(lost=True))

    async def close(self) -> None:
        """End the session: its tasks are released at once, its waiting callers get `QueueClosed`. See `Queue.close`."""
        await _answer(self._connection.close())

    @property
    def closed(self) -> bool:
        """Whether `close` or `detach` was called."""
        return self._connection.closed is not None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncQueue {self._connection.url}{' closed' if self.closed else ''}>"


class AsyncTube:
    """One tube, as one session sees it: a `Tube` whose methods are awaited."""

    def __init__(self, port: AsyncPort[AsyncTask]) -> None:
        self._port: Any = port
        self.name = port.shared.name
        self.driver = port.shared.driver
        self._awaited = port.awaited
        # In which fair call of `take_any` it was the first.
        self._first_in = 0

    # -- putting -------------------------------------------------------------------------------------------------------

    @overload
    async def put(self, data: Any, *, timeout: float, **options: Any) -> AsyncTask | None: ...
    @overload
    async def put(self, data: Any, **options: Any) -> AsyncTask: ...
    async def put(self, data: Any, **options: Any) -> AsyncTask | None:
        """Add a task. See `Tube.put`."""
        if options and options.get("timeout"):
            waiter = LoopWaiter(self._port.clock, *self._port.request(data, options))
            return await waiter.wait(self._port)  # type: ignore[no-any-return]
        answer = self._port.put(data, options)
        task: AsyncTask | None = await answer if self._awaited else answer
        return task

    async def put_many(self, items: Iterable[Any], **options: Any) -> list[AsyncTask]:
        """Add many tasks at once, all or none; answers them in the order of the items. See `Tube.put_many`."""
        batch = self._port.gather(items, options)
        tasks: list[AsyncTask] | None
        if batch.timeout:
            tasks = await LoopWaiter(self._port.clock, batch.timeout, batch).wait(self._port)
        else:
            tasks = await _answer(self._port.put_many(batch))
        return tasks or []

    async def call(self, data: Any, timeout: float | None = None, **options: Any) -> Any:
        """Put a task, wait until a `tubes.worker.Worker` has handled it, and answer what its handler has returned.

        See `Tube.call`.
        """
        return await calls.call_async(self, data, timeout, options)

    # -- taking --------------------------------------------------------------------------------------------------------

    async def take(self, timeout: float | None = None) -> AsyncTask | None:
        """Take the first task that may be taken. See `Tube.take`."""
        patience = None if timeout is None else micros("timeout", timeout)
        answer = self._port.take()
        task: AsyncTask | None = await answer if self._awaited else answer
        if task is None and patience != 0:
            task = await LoopWaiter(self._port.clock, patience).wait(self._port)
        return task

    async def take_many(self, limit: int, timeout: float | None = None) -> list[AsyncTask]:
        """Take as many tasks as there are, up to `limit`, in the order in which `take` would. See `Tube.take_many`."""
        count = check_limit(limit)
        patience = None if timeout is None else micros("timeout", timeout)
        tasks: list[AsyncTask] = await _answer(self._port.take_many(count))
        if not tasks and patience != 0:
            first = await LoopWaiter(self._port.clock, patience).wait(self._port)
            if first is not None:
                tasks = await _answer(self._port.top_up(first, count))
        return tasks

    @asynccontextmanager
    async def taking(self, timeout: float | None = None) -> AsyncGenerator[AsyncTask]:
        """Take a task for a block: acked when the block ends, released when it raises. See `Tube.taking`."""
        task = await self.take(timeout)
        if task is None:
            raise NothingReady(tube=self.name, timeout=timeout)
        async with task:
            yield task

    async def __aiter__(self) -> AsyncGenerator[AsyncTask]:
        """Take tasks until the queue is closed. See `Tube.__iter__`."""
        try:
            task = await self.take()
            while task is not None:
                try:
                    yield task
                except BaseException as error:
                    await task.__aexit__(type(error), error, None)
                    raise
                task = await self._after(task) or await self.take()
        except QueueForked:
            raise
        except QueueClosed:
            return

    async def _after(self, task: AsyncTask) -> AsyncTask | None:
        """Ack a task and take the next one; None if there is none. See `Tube._after`."""
        if task._turn == FINISHED:
            return None
        try:
            answer = self._port.next(task)
            following: AsyncTask | None = await answer if self._awaited else answer
        except QueueClosed as lost:
            log_lost(lost)
            raise
        return following

    # -- what the taker does -------------------------------------------------------------------------------------------

    async def ack(self, task: AsyncTask | int) -> AsyncTask:
        """The work is done: the task is gone. See `Tube.ack`."""
        answer = self._port.ack(task)
        after: AsyncTask = await answer if self._awaited else answer
        return after

    async def ack_many(self, tasks: Iterable[AsyncTask | int]) -> dict[int, bool]:
        """The work on these tasks is done: as `ack` for each. See `Tube.ack_many`."""
        done: dict[int, bool] = await _answer(self._port.ack_many(tasks))
        return done

    async def release_many(self, tasks: Iterable[AsyncTask | int], delay: float | None = None) -> dict[int, bool]:
        """Give these tasks back: as `release` for each. See `Tube.release_many`."""
        done: dict[int, bool] = await _answer(self._port.release_many(tasks, delay))
        return done

    async def release(
        self, task: AsyncTask | int, delay: float | None = None, *, reason: str | None = None
    ) -> AsyncTask:
        """Give the task back to its own place in the order, ahead of younger ones. See `Tube.release`."""
        answer = self._port.release(task, delay, reason)
        after: AsyncTask = await answer if self._awaited else answer
        return after

    async def touch(self, task: AsyncTask | int, seconds: float) -> AsyncTask:
        """Get so much more time to run; the task's ttl and ttr grow by it for good. See `Tube.touch`."""
        answer = self._port.touch(task, seconds)
        after: AsyncTask = await answer if self._awaited else answer
        return after

    # -- what anybody may do -------------------------------------------------------------------------------------------

    async def bury(self, task: AsyncTask | int, reason: str | None = None) -> AsyncTask:
        """Put a task aside, whatever its state and whoever has it, until `kick`. See `Tube.bury`."""
        answer = self._port.bury(task, reason)
        after: AsyncTask = await answer if self._awaited else answer
        return after

    async def kick(self, count: int = 1, *, attempts: int | None = None, ttl: float | None = None) -> int:
        """Make up to so many buried tasks ready, in the order of their places; answers how many. See `Tube.kick`."""
        kicked: int = await _answer(self._port.kick(count, attempts, ttl))
        return kicked

    async def kick_task(
        self, task: AsyncTask | int, *, attempts: int | None = None, ttl: float | None = None
    ) -> AsyncTask:
        """Make one buried task ready; one that is not buried stays as it is. See `Tube.kick_task`."""
        after: AsyncTask = await _answer(self._port.kick_task(task, attempts, ttl))
        return after

    async def buried(self, limit: int = 100) -> list[AsyncTask]:
        """The buried tasks, dead letters: up to so many, by their ids. See `Tube.buried`."""
        found: list[AsyncTask] = await _answer(self._port.buried(limit))
        return found

    async def update(
        self, task: AsyncTask | int, *, data: Any = KEEP, pri: int = KEEP, delay: float = KEEP, ttl: float = KEEP
    ) -> AsyncTask:
        """Change a task, whatever its state and whoever has it. See `Tube.update`."""
        changes = {"data": data, "pri": pri, "delay": delay, "ttl": ttl}
        after: AsyncTask = await _answer(self._port.update(task, changes))
        return after

    async def peek(self, task: AsyncTask | int) -> AsyncTask:
        """The task as it is now; changes nothing. See `Tube.peek`."""
        answer = self._port.peek(task)
        after: AsyncTask = await answer if self._awaited else answer
        return after

    async def delete(self, task: AsyncTask | int) -> AsyncTask:
        """Remove a task, whatever its state and whoever has it. See `Tube.delete`."""
        answer = self._port.delete(task)
        after: AsyncTask = await answer if self._awaited else answer
        return after

    async def renew_many(self, tasks: Iterable[AsyncTask | int], seconds: float) -> dict[int, bool]:
        """Let these tasks have at least so many seconds to run from now on. See `Tube.renew_many`."""
        done: dict[int, bool] = await _answer(self._port.renew_many(tasks, seconds))
        return done

    async def delete_many(self, tasks: Iterable[AsyncTask | int]) -> dict[int, bool]:
        """Remove these tasks: as `delete` for each. See `Tube.delete_many`."""
        done: dict[int, bool] = await _answer(self._port.delete_many(tasks))
        return done

    async def release_all(self) -> None:
        """Release all taken tasks, whoever has them. See `Tube.release_all`."""
        await _answer(self._port.release_all())

    async def truncate(self) -> None:
        """Remove all tasks, and what lanes remember; ids and counts go on, listeners hear nothing.

        See `Tube.truncate`.
        """
        await _answer(self._port.truncate())

    async def pause(self, seconds: float | None = None) -> None:
        """Let nobody take from this tube for so many seconds; None: until `resume`. See `Tube.pause`."""
        await _answer(self._port.pause(seconds))

    async def resume(self) -> None:
        """End a pause; callers that wait are served. See `Tube.resume`."""
        await _answer(self._port.resume())

    async def drop(self, *, force: bool = False) -> None:
        """Remove the tube and what is in it. See `Tube.drop`."""
        await _answer(self._port.drop(force))

    # -- lanes ---------------------------------------------------------------------------------------------------------

    async def block(self, utube: str, seconds: float) -> None:
        """Let no task of a lane start for so many seconds: a host has answered 429, with Retry-After.

        See `Tube.block`.
        """
        await _answer(self._port.block(utube, seconds))

    async def configure(self, utube: str, *, interval: float | None = KEEP, max_in_flight: int | None = KEEP) -> None:
        """Let a lane have limits of its own, instead of the tube's. See `Tube.configure`."""
        await _answer(self._port.configure(utube, interval, max_in_flight))

    async def utubes(self, limit: int = 1000) -> list[Utube]:
        """The lanes, sorted by name, up to so many. See `Tube.utubes`."""
        found: list[Utube] = await _answer(self._port.utubes(limit))
        return found

    # -- looking -------------------------------------------------------------------------------------------------------

    async def statistics(self) -> Statistics:
        """How many tasks there are by state, and what was done so far. See `Tube.statistics`."""
        counted: Statistics = await _answer(self._port.statistics())
        return counted

    async def tasks(self, start: int = 0, limit: int = 1000) -> list[AsyncTask]:
        """The tasks there are, whatever their state, in the order of their ids: up to so many, from id `start` on.

        See `Tube.tasks`.
        """
        found: list[AsyncTask] = await _answer(self._port.tasks(start, limit))
        return found

    async def oldest_ready_age(self) -> float | None:
        """Seconds since the put of the oldest ready task, the one with the smallest id; None if there is none.

        See `Tube.oldest_ready_age`.
        """
        age: float | None = await _answer(self._port.oldest_ready_age())
        return age

    async def due_histogram(self, edges: Iterable[float]) -> list[int]:
        """How many tasks move by themselves (delay, ttr or ttl over), by how soon. See `Tube.due_histogram`."""
        counts: list[int] = await _answer(self._port.due_histogram(edges))
        return counts

    async def on_task_change(
        self, callback: Callable[[AsyncTask, str], object] | None
    ) -> Callable[[AsyncTask, str], object] | None:
        """Have `callback(task, event)` called for every change in this tube, whoever makes it; None: no more.

        See `Tube.on_task_change`.
        """
        before = await _answer(self._port.listen(callback, LoopListener))
        return callback_of(before)

    def __repr__(self) -> str:
        return f"<AsyncTube {self.name!r} ({self.driver.name}) of {self._port.url}>"


class AsyncTask(TaskView):
    """A task of an `AsyncTube`: as `Task`, with verbs to be awaited and `async with`."""

    __slots__ = ()
    _tube: AsyncTube

    async def ack(self) -> AsyncTask:
        """The work is done. See `Tube.ack`."""
        return await self._tube.ack(self)

    async def release(self, delay: float | None = None, *, reason: str | None = None) -> AsyncTask:
        """Give the task back. See `Tube.release`."""
        return await self._tube.release(self, delay=delay, reason=reason)

    async def touch(self, seconds: float) -> AsyncTask:
        """Get more time to work. See `Tube.touch`."""
        return await self._tube.touch(self, seconds)

    async def bury(self, reason: str | None = None) -> AsyncTask:
        """Put the task aside. See `Tube.bury`."""
        return await self._tube.bury(self, reason)

    async def kick(self, *, attempts: int | None = None, ttl: float | None = None) -> AsyncTask:
        """Make the task ready, if it is buried. See `Tube.kick_task`."""
        return await self._tube.kick_task(self, attempts=attempts, ttl=ttl)

    async def update(self, *, data: Any = KEEP, pri: int = KEEP, delay: float = KEEP, ttl: float = KEEP) -> AsyncTask:
        """Change the task. See `Tube.update`."""
        return await self._tube.update(self, data=data, pri=pri, delay=delay, ttl=ttl)

    async def delete(self) -> AsyncTask:
        """Remove the task. See `Tube.delete`."""
        return await self._tube.delete(self)

    async def peek(self) -> AsyncTask:
        """The task as it is now. See `Tube.peek`."""
        return await self._tube.peek(self)

    async def __aenter__(self) -> AsyncTask:
        self._check_taken()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._turn == FINISHED:
            return
        if kind is None:
            await self.ack()
            return
        if kind is GeneratorExit:
            self._tube._port.release_later(self)
            return
        with suppress(TubesError):  # The block's own error matters more; what was not released is lost already.
            if issubclass(kind, Exception):
                await self.release()
            else:  # It was cancelled: the task has not failed.
                answer = self._tube._port.release_unfailed(self)
                await answer if self._tube._awaited else answer


async def _answer(answer: Any) -> Any:
    """The answer of a backend, which is there at once or to be awaited."""
    return await answer if inspect.isawaitable(answer) else answer
