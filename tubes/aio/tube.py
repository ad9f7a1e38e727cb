# Generated from tubes/sync/tube.py by .ci/make_aio.py (`make aio`): change that file, or the rules.
"""A tube: `AsyncTube`, and its `admin`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from types import CoroutineType, MappingProxyType
from typing import Any, Generic, Literal, overload

from typing_extensions import Unpack

from tubes import calls
from tubes.aio.lane import AsyncLane
from tubes.aio.selection import AsyncSelection
from tubes.aio.task import AsyncTask
from tubes.backend.interface import AsyncPort
from tubes.backend.listeners import LoopListener, callback_of
from tubes.backend.port import check_end, check_trace
from tubes.backend.selecting import check_filters
from tubes.backend.waiters import PART_EMPTY, TUBE_EMPTY, LoopWaiter, TaskEnd
from tubes.drivers.moves import State, check_states
from tubes.drivers.options import KEEP, NO_WAIT, Seconds, delay_of, integer, micros, seconds
from tubes.drivers.tube_options import as_arguments
from tubes.errors import (
    CallTimeout,
    InvalidOption,
    NothingReady,
    QueueClosed,
    QueueForked,
    TaskNotFound,
    TubeFull,
    TubesError,
)
from tubes.values.batch import Item, check_limit
from tubes.values.lane import LaneInfo
from tubes.values.options import PutOptions, TaskOptions, TubeOptions, put_options
from tubes.values.reasons import most_frequent
from tubes.values.statistics import Statistics
from tubes.values.task import ENDED, R, T, checkpoint_changes, log_buried, log_lost_take


class AsyncTube(Generic[T, R]):
    """One tube, as one session sees it. Safe to share between event loops.

    `AsyncTube[Mail]` gives type checkers the type of the data, and `AsyncTube[Mail, Reply]` also the type that a
    handler returns: `mails: tubes.AsyncTube[Mail] = queue.create_tube("mails")`. The default is `Any`. Types are not
    checked at run time.

    Methods accept a task as an `AsyncTask`, by its lease (`task.lease`, see `Lease`) or by its id. A taken `AsyncTask`
    is valid for one take: if its time to run has ended and the task was taken again, its methods raise `TaskNotTaken`.
    A lease is valid for one take as well, in every session and process: with a lease all methods, also `bury`,
    `update`, `delete` and `peek`, raise `TaskNotTaken` once the take has ended. An id means the take that the session
    holds now. If several clients share a session, as behind a service, use leases.

    Methods accept seconds as a number or as a `datetime.timedelta`.

    Every method raises `QueueClosed` once the queue is closed, `TubeNotFound` once the tube is dropped, and
    `InvalidOption` for bad arguments. A method that raises has changed nothing.
    """

    def __init__(self, port: AsyncPort[AsyncTask[T]]) -> None:
        self._port = port
        self.name = port.shared.name
        self.driver = port.shared.driver
        # The number of the partition that this tube is; None: it is a whole tube.
        self._part: int | None = None
        # The number of the last fair call of `take_any` that started with this tube.
        self._last_fair_call = 0

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that `create_tube` and `alter` have set; read-only. O(1).

        Only options that were set are included. The units are the same as in `create_tube`: times are seconds.
        `backoff` is a list of seconds if it has at most four delays and no jitter, otherwise a `Backoff` if there is an
        equal one. So `create_tube("copy", tube.driver, **tube.options)` creates a tube with the same behavior.

        On a server these are the options as of the last call on this tube in this process. If another process may have
        altered the tube since, `queue.tube(name)` reads them again.

        `Tube.options` shows an example.
        """
        return MappingProxyType(as_arguments(self._port.shared.options))

    @property
    def partitions(self) -> int | None:
        """The number of its partitions; None: it is one tube, on one node. O(1)."""
        count: int | None = self._port.shared.options.get("partitions")
        return count

    # -- putting -------------------------------------------------------------------------------------------------------

    @overload
    async def put(self, data: T, *, timeout: None = NO_WAIT, **options: Unpack[PutOptions]) -> AsyncTask[T]: ...
    @overload
    async def put(self, data: T, *, timeout: Seconds | None, **options: Unpack[PutOptions]) -> AsyncTask[T] | None: ...
    async def put(
        self,
        data: T,
        *,
        timeout: Seconds | None = NO_WAIT,
        utube: str | int | None = None,
        pri: int | None = None,
        ttl: Seconds | None = None,
        ttr: Seconds | None = None,
        delay: Seconds | None = None,
        **options: Any,
    ) -> AsyncTask[T] | None:
        """Add a task. O(1); O(log n) with many priorities.

        `options`, as far as the driver has them:
        `utube`: the lane, a string. Tasks without it share one lane; the first one in a tube logs a warning;
        `pri`: the priority, 0 (first) to 4294967295;
        `delay`: seconds until the task becomes ready; its ttl is extended by the same time;
        `at`: the time at which the task becomes ready, instead of `delay`: a `datetime` with a time zone, by the clock
        of the queue or the server; a time in the past means at once;
        `ttl`: seconds to live: afterwards a task that is not held is removed; 0: at once;
        `ttr`: seconds to run: afterwards a taken task is ready again;
        and for every driver:
        `max_attempts`: how often the task may be taken, 1 to 1048574. When the last attempt ends by release, by its ttr
        or with its session, the task is buried. None: the tube's value, by default no limit;
        `key`: a string. A tube has at most one task with this key, in any state. A buried task keeps its key until it
        is done after a kick, deleted or replaced. `on_duplicate` decides about a second put: `"keep"` returns the
        existing task (`task.created_now` is False), `"replace"` deletes it and puts the new one, `"update"` gives it
        the new data, as `update` does, and ignores all other options, `"raise"` raises `DuplicateKey`. With `"keep"`
        and `"update"` a buried task stays buried: `task.state` tells, and the first time in a tube logs a warning;
        `key_ttl`: seconds for which the key is remembered after its task has ended. During that time only
        `"replace"` adds a task; `"keep"` and `"update"` return a task with the id of the old one and the data of this
        put;
        `context`: a mapping of strings to strings that the task carries along with its data, such as trace ids;
        `keep_done`: seconds for which the done task is kept with its result; None: the tube's value, 0: not kept. See
        `result`, `select` and `kick`;
        `timeout`: seconds to wait for room, if the tube or the lane has a capacity; None: forever; 0: do not wait. On
        timeout nothing is put, and None is returned. Without `timeout` a put into a full tube or lane raises `TubeFull`
        at once.

        Raises `TubeFull`, `OptionNotSupported` for an option that the driver lacks, `InvalidOption` for `on_duplicate`
        or `key_ttl` without a key, and `CodecError` for data that the codec refuses.

        `Tube.put` shows an example.
        """
        # Frequent options are parameters: in a mapping they make a put in memory up to 40 % slower.
        if timeout is NO_WAIT:
            reply = self._port.put(data, options, utube, pri, ttl, ttr, delay)
            task = await reply if type(reply) is CoroutineType else reply
            if task is None:
                raise self._port.full_error(1)
            if options:
                log_buried(task)
            return task
        patience = None if timeout is None else micros("timeout", timeout)
        arguments = put_options(options, utube, pri, ttl, ttr, delay)
        if patience != 0:
            request = self._port.prepare(data, arguments)
            reached = await self._reach(request)
            waited: AsyncTask[T] | None
            if reached is None:
                waited = await LoopWaiter(self._port.clock, patience, request).wait(self._port)
            else:
                waited = reached[0]
            log_buried(waited)
            return waited
        try:
            reply = self._port.put(data, arguments)
            task = await reply if type(reply) is CoroutineType else reply
            log_buried(task)
            return task
        except TubeFull as full:
            if "utube" not in full.facts:
                raise
            return None

    @overload
    async def put_many(
        self,
        items: Iterable[T | Item[T]],
        *,
        timeout: Seconds | None = NO_WAIT,
        errors: Literal["raise"] = "raise",
        **options: Unpack[PutOptions],
    ) -> list[AsyncTask[T]]: ...
    @overload
    async def put_many(
        self,
        items: Iterable[T | Item[T]],
        *,
        timeout: Seconds | None = NO_WAIT,
        errors: Literal["raise", "return"],
        **options: Unpack[PutOptions],
    ) -> list[AsyncTask[T] | TubesError]: ...
    async def put_many(
        self,
        items: Iterable[T | Item[T]],
        *,
        timeout: Seconds | None = NO_WAIT,
        errors: str = "raise",
        **options: Unpack[PutOptions],
    ) -> list[AsyncTask[T]] | list[AsyncTask[T] | TubesError]:
        """Add many tasks at once, all or none, and return them in the order of the items. See `put`.

        `items`: data, or `tubes.Item(data, **options)` for an item with its own options. A string must be in a list,
        and an async iterable must be collected first. All items are checked and encoded before the first is put: an
        error names the number of its item.
        `options`: options for all items; an `Item` overrides them.
        `timeout`: seconds to wait until there is room for all, if the tube or a lane has a capacity; None: forever; 0:
        do not wait. On timeout nothing is put, and [] is returned. Without `timeout` a full tube or lane raises
        `TubeFull` at once, and so does a batch with more tasks for one lane than its capacity.
        `errors`: "return" puts the good items. For an item with bad options, or data that cannot be encoded, the list
        has the error in the place of the task. Keys are not checked before the put: with `on_duplicate="raise"` a key
        that exists still raises `DuplicateKey`, and nothing is put.

        On a server a few thousand tasks take one round trip; more are uploaded first, and put by one call at the end.

        Raises what `put` raises, and `InvalidOption` for more items than the tube's `capacity`.

        `Tube.put_many` shows an example.
        """
        patience = 0 if timeout is NO_WAIT else None if timeout is None else micros("timeout", timeout)
        batch = self._port.gather(items, options, errors)
        tasks: list[AsyncTask[T]] | None
        if patience != 0:
            tasks = await self._reach(batch)
            if tasks is None:
                tasks = await LoopWaiter(self._port.clock, patience, batch).wait(self._port)
        else:
            try:
                reply = self._port.put_many(batch)
                tasks = await reply if type(reply) is CoroutineType else reply
            except TubeFull as full:
                if timeout is NO_WAIT or "utube" not in full.facts:
                    raise
                tasks = None
        if tasks is None and timeout is NO_WAIT:
            raise self._port.full_error(batch.size)
        if tasks is not None and batch.has_keys:
            log_buried(*tasks)
        if tasks is not None and batch.errors:
            return batch.insert_errors(tasks)
        return tasks or []

    async def _reach(self, request: object) -> list[AsyncTask[T]] | None:
        """Prepare the wait of a put; return the tasks if it need not wait."""
        reply = self._port.reach(request)
        return await reply if type(reply) is CoroutineType else reply

    async def call(self, data: T, timeout: Seconds | None = None, **options: Unpack[TaskOptions]) -> R:
        """Put a task, wait until a `tubes.worker.Worker` has handled it, and return the result of its handler.

        `timeout`: seconds of real time to wait, for room and for the reply; None: forever.
        `options`: as for `put`, except `key`.

        The reply comes through a hidden tube of this connection. The first call creates it, which costs two more round
        trips. It is dropped after some seconds without a call, when the queue is closed, and on a server also if this
        process dies.

        Raises `CallFailed` with the handler's error after the last attempt; `max_attempts=1` allows only one. While the
        task may be tried again, the call waits. Raises `CallTimeout` on timeout: the task stays and may still run, but
        its reply is dropped; with a driver that has a ttl, `ttl=` removes a task that has not started by then. Raises
        `QueueClosed` when the queue is closed meanwhile, and `ConnectionLost` when a server has lost its last writes
        and the task with them.

        `Tube.call` shows an example.
        """
        result: R = await calls.call_async(self, data, timeout, options)
        return result

    # -- taking --------------------------------------------------------------------------------------------------------

    async def take(self, timeout: Seconds | None = None, *, ttr: Seconds | None = None) -> AsyncTask[T] | None:
        """Take the first available task. O(1), at most O(log n).

        `timeout`: seconds to wait; None: forever; 0: do not wait. Waiting calls are served in the order of arrival.
        Returns None on timeout.
        `ttr`: seconds to run for this take only; later takes use the task's own ttr. A task without a ttr keeps this
        one for later takes.

        Raises `OptionNotSupported` for a ttr if the driver has none.

        `Tube.take` shows an example.
        """
        if ttr is not None:
            tasks = await self.take_many(1, timeout, ttr=ttr)
            return tasks[0] if tasks else None
        if timeout.__class__ is int and timeout == 0:
            reply = self._port.take()
            return await reply if type(reply) is CoroutineType else reply
        patience = None if timeout is None else micros("timeout", timeout)
        port = self._port if patience == 0 else self._port.hot
        reply = port.take()
        task: AsyncTask[T] | None = await reply if type(reply) is CoroutineType else reply
        if task is None and patience != 0:
            task = await LoopWaiter(self._port.clock, patience).wait(self._port)
        return task

    async def take_many(
        self, limit: int, timeout: Seconds | None = None, *, ttr: Seconds | None = None
    ) -> list[AsyncTask[T]]:
        """Take all available tasks, up to `limit`, in the order of `take`.

        `limit`: from 1 to 100,000.
        `timeout`: seconds to wait for the first task, as for `take`. Returns [] on timeout.
        `ttr`: seconds to run for these takes, as for `take`.

        Limits of lanes apply. On a server a thousand tasks take one round trip.

        `Tube.take_many` shows an example.
        """
        count = check_limit(limit)
        patience = None if timeout is None else micros("timeout", timeout)
        span = None if ttr is None else micros("ttr", ttr)
        top_up = partial(AsyncTask._top_up, limit=count, span=span)
        tasks: list[AsyncTask[T]] = []
        port = self._port if patience == 0 else self._port.hot
        if patience == 0 or not self._port.knows_none:
            reply = port.take_many(count, span)
            tasks = await reply if type(reply) is CoroutineType else reply
        if not tasks and patience != 0:
            tasks = await LoopWaiter(self._port.clock, patience, span=span).wait(self._port, top_up) or []
        return tasks

    async def _first(self) -> tuple[int, int] | None:
        """Return the priority and the id of the first available task."""
        reply = self._port.first()
        return await reply if type(reply) is CoroutineType else reply

    @asynccontextmanager
    async def taking(
        self, timeout: Seconds | None = None, *, ttr: Seconds | None = None
    ) -> AsyncGenerator[AsyncTask[T]]:
        """Take a task for a `with` block. It is acked when the block ends, and released when the block raises.

        `timeout`, `ttr`: as for `take`. Raises `NothingReady` on timeout. If that is not an error for you, write
        `if task := await tube.take(5):` and then `async with task:`.

        `Tube.taking` shows an example.
        """
        task = await self.take(timeout, ttr=ttr)
        if task is None:
            raise NothingReady(tube=self.name, timeout=None if timeout is None else seconds("timeout", timeout))
        async with task:
            yield task

    async def __aiter__(self) -> AsyncGenerator[AsyncTask[T]]:
        """Take tasks until the queue is closed. Each task is acked when the loop asks for the next one.

        Raises `TubeNotFound` when the tube is dropped. If the loop ends by `break` or by an exception, its last task is
        released, unless the body has finished it (with asyncio a moment later, when the iterator is finalized). If a
        task was lost meanwhile, because its time to run has ended or the queue was closed, a warning is logged: ack a
        task yourself before you close the queue.
        """
        try:
            task = await self.take()
            while task is not None:
                try:
                    yield task
                except BaseException as error:
                    await task.__aexit__(type(error), error, None)
                    raise
                task = await self._ack_and_take(task) or await self.take()
        except QueueForked:
            raise
        except QueueClosed:
            return

    async def _ack_and_take(self, task: AsyncTask[T]) -> AsyncTask[T] | None:
        """Ack a task, unless it is finished already, and take the next one; return None if there is none."""
        if task._take in ENDED:
            return None
        try:
            reply = self._port.next(task)
            return await reply if type(reply) is CoroutineType else reply
        except QueueClosed as lost:
            log_lost_take(lost)
            raise

    async def join(self, timeout: Seconds | None = None) -> bool:
        """Wait until no task of this tube is ready, delayed or taken. Returns False on timeout.

        Delayed tasks count, however long their delay, and so do tasks in backoff. Buried tasks and puts that wait for
        room do not count. Other programs may put tasks before this call returns.

        `timeout`: seconds to wait; None: forever; 0: do not wait. It does not poll: the end of the last task wakes the
        caller, in any process. On a server the caller receives the tube's events meanwhile, as `on_task_change` does.
        `statistics().waiting` does not count it. If the tube is dropped meanwhile, it raises `TubeNotFound`. O(1).

        `Tube.join` shows an example.
        """
        patience = None if timeout is None else micros("timeout", timeout)
        reply = self._port.is_empty()
        is_empty: bool = await reply if type(reply) is CoroutineType else reply
        if is_empty or patience == 0:
            return is_empty
        ended: object = None
        deadline = None if patience is None else self._port.clock.micros() + patience
        while not is_empty:
            left = None if deadline is None else max(deadline - self._port.clock.micros(), 0)
            ended = await LoopWaiter(self._port.clock, left, TUBE_EMPTY).wait(self._port)
            if ended is not PART_EMPTY:
                return ended is not None
            reply = self._port.is_empty()
            is_empty = await reply if type(reply) is CoroutineType else reply
        return True

    # -- for the holder ------------------------------------------------------------------------------------------------

    async def ack(self, task: AsyncTask[T] | str | int, result: R | None = None) -> AsyncTask[T]:
        """Finish a task as done: it is removed, or kept for its `keep_done` seconds. O(1), O(log n) if kept.

        `result`: stored with a kept task, for `task.result` and `AsyncTube.result`; otherwise it is dropped.

        Raises `TaskNotTaken` unless this session holds the task, and `CodecError` for a result that cannot be encoded.

        `Tube.ack` shows an example.
        """
        if result is None:
            reply = self._port.ack(task)
            return await reply if type(reply) is CoroutineType else reply
        reply = self._port.ack_with(task, result)
        return await reply if type(reply) is CoroutineType else reply

    async def ack_many(self, tasks: Iterable[AsyncTask[T] | str | int]) -> dict[int, bool]:
        """Finish these tasks, each as `ack` does. Returns a dict by id, in their order: True if the task was acked.

        False means that this session does not hold the task, or not by this take. On a server a few thousand tasks take
        one round trip. Raises `InvalidOption` for a task of another tube.

        `Tube.ack_many` shows an example.
        """
        reply = self._port.ack_many(tasks)
        return await reply if type(reply) is CoroutineType else reply

    async def release_many(
        self, tasks: Iterable[AsyncTask[T] | str | int], delay: Seconds | None = None, *, at: datetime | None = None
    ) -> dict[int, bool]:
        """Give these tasks back, each as `release` does. Returns a dict by id: True if the task was released.

        Raises `OptionNotSupported` for a delay if the driver has none, `InvalidOption` for a task of another tube.

        `Tube.release_many` shows an example.
        """
        delay = delay_of(delay, at, self._port.connection.micros)
        reply = self._port.release_many(tasks, delay)
        return await reply if type(reply) is CoroutineType else reply

    async def release(
        self,
        task: AsyncTask[T] | str | int,
        delay: Seconds | None = None,
        *,
        at: datetime | None = None,
        reason: str | None = None,
        pri: int | None = None,
        data: T = KEEP,
        traceback: str | None = None,
        worker: str | None = None,
    ) -> AsyncTask[T]:
        """Give the task back. It returns to its place in the order, ahead of younger tasks. O(log n).

        `delay`: seconds until it is ready again; its ttl is extended by the same time. None: the tube's `backoff`, or
        at once if it has none. After its last attempt (`max_attempts`) the task is buried instead, with this `reason`
        or a standard one. `pri`, `data`: its new priority and data, as for `update`, in the same step.
        `traceback`, `worker`: texts that are stored with the reason for `task.failures` and `task.traceback`.

        Raises `TaskNotTaken` unless this session holds the task, `OptionNotSupported` for a delay or a priority if the
        driver has none.
        """
        delay = delay_of(delay, at, self._port.connection.micros)
        reply = self._port.release(task, delay, reason, pri, data, check_trace(traceback, worker))
        return await reply if type(reply) is CoroutineType else reply

    async def _decline(self, task: AsyncTask[T], delay: Seconds) -> AsyncTask[T]:
        """Give a task back for another worker: the attempt does not count, and the delay does not extend the ttl."""
        reply = self._port.decline(task, delay)
        return await reply if type(reply) is CoroutineType else reply

    async def touch(
        self, task: AsyncTask[T] | str | int, seconds: Seconds = KEEP, *, ttr: Seconds = KEEP
    ) -> AsyncTask[T]:
        """Give the holder of a task more time. O(log n).

        Without arguments the task's own time to run starts again.
        `seconds`: extend the task's ttr and ttl by these seconds, also for later takes; 0 changes nothing. Neither can
        end later than 200 years from now.
        `ttr`: instead of `seconds`: the remaining time to run of this take, in seconds from now. It may be shorter than
        before; with 0 the take ends at once, as if its ttr had ended. Later takes use the task's own ttr. It has no
        effect on a task without a ttr.

        Raises `TaskNotTaken` unless this session holds the task, `OptionNotSupported` if the driver has no ttr.

        `Tube.touch` shows an example.
        """
        if seconds is KEEP:
            reply = self._port.set_ttr(task, None if ttr is KEEP else micros("ttr", ttr))
            return await reply if type(reply) is CoroutineType else reply
        if ttr is not KEEP:
            raise InvalidOption(option="ttr", value=ttr, rule="cannot be combined with seconds")
        reply = self._port.touch(task, seconds)
        return await reply if type(reply) is CoroutineType else reply

    async def touch_many(self, tasks: Iterable[AsyncTask[T] | str | int], ttr: Seconds) -> dict[int, bool]:
        """Give these tasks at least `ttr` seconds to run from now on. Returns a dict by id: True if the task is held.

        Call it regularly to keep tasks while you work on them. It never shortens a time to run, and later takes use the
        task's own ttr. If the driver ends taken tasks by their ttl (`utubettl` does not), the ttl is extended as
        far as needed. A task without ttr needs no renewal. On a server a few thousand tasks take one round trip.
        O(log n) each.

        Raises `OptionNotSupported` if the driver has no ttr, `InvalidOption` for a task of another tube.

        `Tube.touch_many` shows an example.
        """
        reply = self._port.renew_many(tasks, ttr)
        return await reply if type(reply) is CoroutineType else reply

    async def _checkpoint(
        self,
        task: AsyncTask[T] | str | int,
        saved: object = None,
        progress: float | None = None,
        note: str | None = None,
    ) -> AsyncTask[T]:
        """Store facts of a held task, as `AsyncTask.checkpoint` does."""
        reply = self._port.checkpoint(task, checkpoint_changes(saved, progress, note))
        return await reply if type(reply) is CoroutineType else reply

    # -- done tasks that are kept --------------------------------------------------------------------------------------

    async def result(self, task: AsyncTask[T] | int, timeout: Seconds | None = None) -> R:
        """Wait until a task is done, and return its result: the value that a handler returned or passed to `ack`.

        `task`: a task with `keep_done`. Any program may wait, as long as the task is kept.
        `timeout`: seconds to wait; None: forever; 0: do not wait. It does not poll: the end of the task wakes the
        caller, in any process. On a server the caller receives the tube's events meanwhile, as for `join`.

        Raises `TaskNotFound` if the task does not exist or is no longer kept; `CallFailed` if it will have no result,
        because it was buried or deleted, or its ttl has ended; `CallTimeout` on timeout: the task stays and may still
        run; `InvalidOption` for a task without `keep_done`. O(1).

        `Tube.result` shows an example.
        """
        patience = None if timeout is None else micros("timeout", timeout)
        reply = self._port.peek(task)
        seen = await reply if type(reply) is CoroutineType else reply
        done = check_end(seen)
        in_time = patience != 0
        while done is None and in_time:
            id = seen.id
            seen = await LoopWaiter(self._port.clock, patience, TaskEnd(id)).wait(self._port)
            in_time = seen is not None
            if seen is None or seen is True:  # True: its record was not kept, or its event was lost.
                reply = self._port.peek(id)
                seen = await reply if type(reply) is CoroutineType else reply
            done = check_end(seen)
        if done is None:
            waited = seconds("timeout", timeout)
            raise CallTimeout(id=seen.id, tube=self.name, timeout=waited, state=str(seen.state))
        result: R = done.result
        return result

    # -- for everybody -------------------------------------------------------------------------------------------------

    async def bury(
        self,
        task: AsyncTask[T] | str | int,
        reason: str | None = None,
        *,
        pri: int | None = None,
        traceback: str | None = None,
        worker: str | None = None,
    ) -> AsyncTask[T]:
        """Bury a task in any state, also if another session holds it. It is not taken again until `kick`. O(log n).

        `reason`: stored as `task.reason`. `pri`: its new priority.
        `traceback`, `worker`: texts for `task.failures` and `task.traceback`.

        Its ttl keeps running, unless the tube has a `buried_ttl`. It keeps its key: puts with this key add no task
        until it is done after a kick, deleted, or replaced by a put with `on_duplicate="replace"`. Burying a buried
        task changes nothing. Raises `TaskNotFound` if the task does not exist.
        """
        reply = self._port.bury(task, reason, pri, check_trace(traceback, worker))
        return await reply if type(reply) is CoroutineType else reply

    @overload
    async def kick(self, count: int = 1) -> int: ...
    @overload
    async def kick(
        self, *, task: AsyncTask[T] | str | int, attempts: int | None = None, ttl: Seconds | None = None
    ) -> AsyncTask[T]: ...
    async def kick(
        self,
        count: int = 1,
        *,
        task: AsyncTask[T] | str | int = KEEP,
        attempts: int | None = None,
        ttl: Seconds | None = None,
    ) -> AsyncTask[T] | int:
        """Make up to `count` buried tasks ready, in their order, and return their number. O(log n) each.

        It is short for `select("buried", limit=count).kick()`; to choose the tasks see `select`.
        `task`: only this task, instead of a count; the result is the task. It may be buried or delayed; a ready or
        taken task stays unchanged. A kept done task is put again with its data and its options (lane, priority, ttl,
        ttr, key, context and so on) under a new id, with no attempts, and the old one is forgotten, in one step.
        `attempts`: further attempts of this task. Without it, a task that has used its last attempt gets one more.
        `ttl`: seconds to live from now on. `task.ttl` counts from the put, so it becomes the age plus these seconds.

        Raises `OptionNotSupported` for a ttl if the driver has none, and `TaskNotFound` if the task does not exist or
        is no longer kept. For a done task also `TubeFull`, and `DuplicateKey` if its key is in use or remembered; then
        the old task stays.

        `Tube.kick` shows an example.
        """
        if task is KEEP:
            most = integer("count", count)
            if attempts is not None or ttl is not None:
                option, value = ("ttl", ttl) if attempts is None else ("attempts", attempts)
                raise InvalidOption(option=option, value=value, rule="needs a task; for several tasks see Tube.select")
            buried = self.select(State.BURIED, limit=most)
            kicked: int = await buried.kick()
            return kicked
        try:
            reply = self._port.kick_task(task, attempts, ttl)
            return await reply if type(reply) is CoroutineType else reply
        except TaskNotFound:
            done = await self.peek(task)  # Raises if it is not kept, either.
            if done.state is not State.DONE:
                raise
        if attempts is not None or ttl is not None:
            option, value = ("ttl", ttl) if attempts is None else ("attempts", attempts)
            rule = "must be left out for a done task, which is put again as it was"
            raise InvalidOption(option=option, value=value, rule=rule)
        new: AsyncTask[T] = await self._put_again(done)
        return new

    async def _put_again(self, old: AsyncTask[T], new: tuple[T, Mapping[str, Any]] | None = None) -> AsyncTask[T]:
        reply = self._port.put_again(old, new)
        task = await reply if type(reply) is CoroutineType else reply
        if task is None:
            raise self._port.full_error(1)
        return task

    async def update(
        self,
        task: AsyncTask[T] | str | int,
        *,
        data: T = KEEP,
        pri: int = KEEP,
        delay: Seconds = KEEP,
        ttl: Seconds = KEEP,
        at: datetime | None = None,
    ) -> AsyncTask[T]:
        """Change a task in any state, also if another session holds it. All changes are made in one step. O(log n).

        `data`: its new data; the holder keeps the data that it got.
        `pri`: its new priority; the task moves to its new place.
        `delay`: seconds from now until a ready or delayed task is ready; 0: at once. Its ttl does not change.
        `at`: the time at which it is ready, instead of `delay`: a `datetime` with a time zone, as for `put`.
        `ttl`: seconds to live from now on, for a task that is not taken; 0 ends it.
        Without any change it is a `peek`.

        Raises `TaskNotFound` if the task does not exist, `OptionNotSupported` for an option that the driver lacks, and
        `InvalidOption` for the delay of a taken or buried task, and for the ttl of a taken one: use `touch`.

        `Tube.update` shows an example.
        """
        delay = delay_of(delay, at, self._port.connection.micros)
        changes = {"data": data, "pri": pri, "delay": delay, "ttl": ttl}
        reply = self._port.update(task, changes)
        return await reply if type(reply) is CoroutineType else reply

    async def peek(self, task: AsyncTask[T] | str | int) -> AsyncTask[T]:
        """Return the current state of a task without changing it. O(1).

        A done task is found as long as it is kept: `task.result`, `task.ended` and `task.why` tell its end.

        Raises `TaskNotFound` if the task does not exist.
        """
        reply = self._port.peek(task)
        return await reply if type(reply) is CoroutineType else reply

    async def delete(self, task: AsyncTask[T] | str | int, *, state: str | Iterable[str] | None = None) -> AsyncTask[T]:
        """Remove a task in any state, also if another session holds it. O(1).

        A task with `keep_done` is kept as a done task; a kept done task is forgotten.
        `state`: "ready", "taken", "buried", "delayed" or "done", or a list of them: remove the task only if it is in
        one of these states.

        Raises `TaskNotFound` if the task does not exist or is in another state.

        `Tube.delete` shows an example.
        """
        reply = self._port.delete(task, check_states(state))
        return await reply if type(reply) is CoroutineType else reply

    async def cancel(self, task: AsyncTask[T] | str | int, reason: str | None = None) -> AsyncTask[T]:
        """End a task in any state as cancelled, also if another session holds it. O(1).

        `reason`: stored as `task.reason`, if the task is kept.

        The task is removed, or kept for its `keep_done` seconds; `task.why` is "cancelled". If it was taken, it is kept
        for at least 60 seconds, and its holder is told at once: a worker cancels an async handler, and kills the
        process of a handler. A plain handler gets `TaskCancelled` at its next `AsyncTask.checkpoint`, and
        `task.cancelled` is True. The caller of `AsyncTube.call` gets `CallFailed`.

        Raises `TaskNotFound` if the task does not exist or is done.

        `Tube.cancel` shows an example.
        """
        reply = self._port.cancel(task, reason)
        ended = await reply if type(reply) is CoroutineType else reply
        await calls.tell_caller_async(ended)
        return ended

    async def delete_many(
        self, tasks: Iterable[AsyncTask[T] | str | int], *, state: str | Iterable[str] | None = None
    ) -> dict[int, bool]:
        """Remove these tasks, each as `delete` does. Returns a dict by id, in their order: True if it was removed.

        `state`: as for `delete`: a task in another state stays, and its value is False.

        `Tube.delete_many` shows an example.
        """
        reply = self._port.delete_many(tasks, check_states(state))
        return await reply if type(reply) is CoroutineType else reply

    async def truncate(self) -> None:
        """Remove all tasks at once, and the state of lanes. Ids and counts continue; listeners are not called. O(n).

        `select` removes some of them, each as `delete` does.

        `Tube.truncate` shows an example.
        """
        reply = self._port.truncate()
        if type(reply) is CoroutineType:
            await reply

    async def alter(self, **changes: Unpack[TubeOptions]) -> None:
        """Change options of the tube while it is used; None resets an option to its default.

        All changes are checked first and made in one step. Every put and take that starts after this call has returned
        uses them, in all sessions, threads and processes. Options that are left out keep their values.

        `ttl`, `ttr`, `pri`, `max_attempts`, `key_ttl`, `keep_done`: defaults for tasks that are put from now on. Tasks
        in the tube keep their own.
        `buried_ttl`: for tasks that are buried from now on. `keep_done_max`: for tasks that end from now on.
        `backoff`: for attempts that fail from now on. A task in backoff keeps its delay.
        `capacity`, `lane_capacity`: waiting puts get new room at once. A smaller one removes no task.
        `interval`, `jitter`, `max_in_flight`: for all lanes at once, except the limits that `configure` has set for a
        lane. A lane in cooldown follows the new interval, from its last take on. `interval_from`: for runs that end
        from now on.

        `rate`, `burst`: for all takes from now on. Without a rate there is no burst.

        The driver and `order` cannot change while the tube lives: create another tube, and let workers empty this one.

        O(1). Changes of the limits of lanes are O(n) of the lanes; the next calls do that first, some lanes each. The
        first `lane_capacity` of a tube on a server is O(n) of its tasks: the next calls count them first, some tasks
        each. Every process that uses the tube reads its options again at its next call.

        Raises `InvalidOption` and `OptionNotSupported` as `create_tube` does, and for options that cannot change.

        `Tube.alter` shows an example.
        """
        reply = self._port.alter(dict(changes))
        if type(reply) is CoroutineType:
            await reply

    async def pause(self, seconds: Seconds | None = None, *, extend: bool = False) -> None:
        """Stop takes from this tube for some seconds; None: until `pause(0)`. O(1).

        Takes in all sessions and processes find no task, and wait; `take_any` uses its other tubes. Producers can still
        put, holders can still ack or release, and ttl, ttr and delays keep running. Waiting calls are served as soon as
        the pause ends. Another `pause` sets a new end; 0 ends it at once. `extend`: True never shortens a pause, so the
        latest end of several workers counts, and a pause without an end stays. The pause belongs to the tube, not to
        the session that set it, and `truncate` keeps it. `statistics().paused` is its end.

        `Tube.pause` shows an example.
        """
        reply = self._port.pause(seconds, extend)
        if type(reply) is CoroutineType:
            await reply

    async def drop(self, *, force: bool = False) -> None:
        """Remove the tube and its tasks. O(n).

        Raises `TubeBusy` while tasks are taken or callers wait. `force`: remove the tube anyway; waiters and holders
        get `TubeNotFound`.
        """
        reply = self._port.drop(force)
        if type(reply) is CoroutineType:
            await reply

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def lane(self, name: str) -> AsyncLane:
        """Return a lane of this tube, by the value of the tasks' option `utube`. O(1), without a call of the store.

        A lane need not exist: it has no tasks then, and it can be blocked and configured in advance.

        Raises `OptionNotSupported` if the driver has no lanes, and `InvalidOption` for a bad name.

        `Tube.lane` shows an example.
        """
        return AsyncLane(self._port, name)

    async def lanes(self, limit: int = 1000) -> list[LaneInfo]:
        """Return up to `limit` lanes, sorted by name.

        The list has the lanes with ready or taken tasks, the lanes in cooldown or blocked, and the lanes with
        their own limits.

        O(n) of the lanes: for monitoring. Raises `OptionNotSupported` if the driver has no lanes.

        `Tube.lanes` shows an example.
        """
        reply = self._port.lanes(limit)
        return await reply if type(reply) is CoroutineType else reply

    # -- looking -------------------------------------------------------------------------------------------------------

    async def statistics(self) -> Statistics:
        """Return the counts of tasks by state and of calls. O(1), O(n) of the sessions."""
        reply = self._port.statistics()
        return await reply if type(reply) is CoroutineType else reply

    def select(
        self,
        state: State | str | None = None,
        *,
        reason: str | None = None,
        contains: str | bytes | None = None,
        function: str | None = None,
        lane: str | None = None,
        key: str | None = None,
        older_than: Seconds | None = None,
        attempts: int | None = None,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> AsyncSelection[T]:
        """Select tasks by these properties. `AsyncSelection` iterates over them, counts or changes them. O(1).

        `state`: "ready", "taken", "delayed", "buried" or "done". None: any state except done. Ready tasks are in the
        order of takes, delayed tasks in the order of the ends of their delays, buried tasks in the order of takes, kept
        done tasks from the last to be forgotten to the first. Taken tasks and tasks in any state are by id, and so are
        ready tasks in a tube with lanes.
        `reason`: buried tasks with this reason, or with this kind of reason, as `admin.reasons` lists them. With
        `state="done"`: tasks that had it when they ended.
        `contains`: a text or bytes in the encoded data, such as a part of their JSON, of at most 256 characters or
        bytes. In memory without a codec it is searched in their JSON, or in their `repr` if they have none.
        `function`: tasks that call the task function with this name: the member `task` of their data. In memory their
        data are decoded with the codec; on a server they must be JSON or MessagePack. Encoded data of more than 1 MiB
        do not match. O(n) of the size of the data, as for `contains`.
        `lane`, `key`: tasks in this lane, the task with this key.
        `older_than`: tasks that were put at least these seconds ago.
        `attempts`: tasks that were taken at least this often.
        `newest_first`: in the reverse order. Kept done tasks are in this order anyway.
        `limit`: at most this many tasks; None: all.

        Raises `InvalidOption` for bad arguments, `OptionNotSupported` for a lane if the driver has none.

        `Tube.select` shows an example.
        """
        driver = self.driver
        filters = check_filters(
            driver, state, reason, contains, function, lane, key, older_than, attempts, newest_first, limit
        )
        return AsyncSelection(self._port, filters)

    async def on_task_change(
        self, callback: Callable[[AsyncTask[T], str], object] | None
    ) -> Callable[[AsyncTask[T], str], object] | None:
        """Call `callback(task, event)` for every change in this tube, by any program; None removes the callback.

        Events: `put take release touch bury kick delete update ttl ttr delay cancel`; an ack is a `delete` as well. The
        callback is called after each change, in the order of the changes, one at a time, in the event loop that
        registered it: do long work elsewhere. Its errors are logged. Each `AsyncQueue` has one callback per tube, as
        long as the `AsyncQueue` lives. Returns the previous callback.

        `Tube.on_task_change` shows an example.
        """
        reply = self._port.listen(callback, LoopListener)
        before = await reply if type(reply) is CoroutineType else reply
        return callback_of(before)

    @property
    def admin(self) -> AsyncTubeAdmin[T]:
        """Rare administration: reasons of dead letters, ages, known keys, all taken tasks."""
        return AsyncTubeAdmin(self._port)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} ({self.driver.name}) of {self._port.url}>"


class AsyncTubeAdmin(Generic[T]):
    """Rare administration of a tube: `AsyncTube.admin`."""

    def __init__(self, port: AsyncPort[AsyncTask[T]]) -> None:
        self._port = port

    async def reasons(self) -> dict[str, int]:
        """Count the buried tasks by the kind of their reason, the most frequent first. O(n) of the buried tasks.

        The kind of a reason is the text before its first colon, so `ValueError: no such address: x@y` counts as
        `ValueError`; reasons like `max_attempts: ttr` stay whole, and "none" counts tasks without a reason. On a server
        a script looks at 250 tasks, and their data stays there.

        `TubeAdmin.reasons` shows an example.
        """
        reply = self._port.reasons()
        found = await reply if type(reply) is CoroutineType else reply
        return most_frequent(found)

    async def oldest_ready_age(self) -> float | None:
        """Return the age in seconds of the oldest ready task, by its id; None if no task is ready.

        The age includes the time for which it was delayed or taken. It is the first sign of a growing backlog. O(n) of
        the older tasks that are not ready.
        """
        reply = self._port.oldest_ready_age()
        return await reply if type(reply) is CoroutineType else reply

    async def due_histogram(self, edges: Iterable[Seconds]) -> list[int]:
        """Count tasks by the time until their delay, ttr or ttl ends.

        `edges`: seconds from now, ascending. Returns one number more than there are edges: the tasks that are due
        before the first edge, from the first to before the second, …, from the last on. O(n); on a server O(log n) for
        each edge.

        `TubeAdmin.due_histogram` shows an example.
        """
        reply = self._port.due_histogram(edges)
        return await reply if type(reply) is CoroutineType else reply

    async def forget_key(self, key: str) -> bool:
        """Forget a key that `key_ttl` remembers after its task has ended. Returns True if it was remembered. O(log n).

        The next put with this key adds a task. The key of a task in the tube stays, and the call returns False.

        `TubeAdmin.forget_key` shows an example.
        """
        reply = self._port.forget_key(key)
        return await reply if type(reply) is CoroutineType else reply

    async def release_all(self) -> None:
        """Release the taken tasks of all sessions, in parts: others may take tasks meanwhile. O(n log n) of them."""
        reply = self._port.release_all()
        if type(reply) is CoroutineType:
            await reply
