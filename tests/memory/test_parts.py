"""Long calls in memory and in a folder work in parts, between which other tasks of the event loop run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tubes
from tubes.aio import AsyncSelection
from tubes.testing import ManualClock

#: The number of tasks, and the maximum number that one part looks at.
TASKS, PART = 6000, 1000


async def first(selection: AsyncSelection[int]) -> int | None:
    return next(iter([task.id async for task in selection]), None)


async def reasons(tube: tubes.AsyncTube) -> object:
    await tube.select("delayed").bury("late: 1")
    return await steps_during(tube.admin.reasons())


async def newest_delayed(tube: tubes.AsyncTube) -> object:
    return await steps_during(first(tube.select("delayed", newest_first=True, limit=1)))


async def newest_ready(tube: tubes.AsyncTube) -> object:
    await tube.select("delayed").kick()
    return await steps_during(first(tube.select("ready", newest_first=True, limit=1)))


async def steps_during(call: Awaitable[object]) -> tuple[object, int]:
    """Return the result of a call, and the number of steps of another task meanwhile."""
    steps = count()

    async def work() -> None:
        while True:
            next(steps)
            await asyncio.sleep(0)

    worker = asyncio.create_task(work())
    result = await call
    worker.cancel()
    return result, next(steps)


@pytest.mark.parametrize("url", ["memory://", "file:FOLDER", "file:FOLDER?sync=full"])
@pytest.mark.parametrize(
    ("act", "expected"), [(reasons, {"late": TASKS}), (newest_delayed, TASKS - 1), (newest_ready, TASKS - 1)]
)
def test_other_tasks_of_the_loop_run_between_parts(
    act: Callable[[tubes.AsyncTube], Awaitable[tuple[object, int]]], expected: object, url: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with tubes.aio.connect(url.replace("FOLDER", str(tmp_path / "queue")), clock=ManualClock()) as queue:
            tube = await queue.create_tube("mail", "fifottl")
            await tube.put_many([tubes.Item(number, delay=60) for number in range(TASKS)])
            result, steps = await act(tube)
            assert result == expected
            assert steps >= TASKS // PART

    asyncio.run(main())


async def take_and_wait(tube: tubes.AsyncTube, task: tubes.AsyncTask) -> object:
    async with asyncio.timeout(30):
        return await tube.take(60)


#: Calls that meet much due work.
FIRST_CALLS: dict[str, Callable[[tubes.AsyncTube, tubes.AsyncTask], Awaitable[object]]] = {
    "put": lambda tube, task: tube.put("new"),
    "put with a priority": lambda tube, task: tube.put("new", pri=2, ttl=2.5, key="a"),
    "put_many": lambda tube, task: tube.put_many(["new"]),
    "take": lambda tube, task: tube.take(0),
    "take and wait": take_and_wait,
    "take_many": lambda tube, task: tube.take_many(1, timeout=0),
    "ack": lambda tube, task: tube.ack(task),
    "ack_many": lambda tube, task: tube.ack_many([task]),
    "next": lambda tube, task: tube._ack_and_take(task),
    "release": lambda tube, task: tube.release(task),
    "checkpoint": lambda tube, task: task.checkpoint("half"),
    "peek": lambda tube, task: tube.peek(task.id),
    "statistics": lambda tube, task: tube.statistics(),
    "release_all": lambda tube, task: tube.admin.release_all(),
    "lanes": lambda tube, task: tube.lanes(),
    "alter": lambda tube, task: tube.alter(max_in_flight=7),
    "truncate": lambda tube, task: tube.truncate(),
    "pause": lambda tube, task: tube.pause(7),
    "block": lambda tube, task: tube.lane("a").block(7),
    "configure": lambda tube, task: tube.lane("a").configure(interval=7),
    "forget_key": lambda tube, task: tube.admin.forget_key("a"),
    "kick": lambda tube, task: tube.kick(1),
    "drop": lambda tube, task: tube.drop(force=True),
    "listen": lambda tube, task: tube.on_task_change(None),
}


@pytest.mark.parametrize("url", ["memory://", "file:FOLDER"])
@pytest.mark.parametrize("call", FIRST_CALLS)
def test_event_loop_runs_while_due_tasks_move(call: str, url: str, tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with tubes.aio.connect(url.replace("FOLDER", str(tmp_path / "queue")), clock=clock) as queue:
            tube = await queue.create_tube("mail", "utubettl")
            await (await tube.put("bad", utube="a")).bury()
            await tube.put("held", utube="a")
            task = await tube.take()
            assert task is not None
            await tube.put_many([tubes.Item(number, delay=60, utube=str(number)) for number in range(TASKS)])
            port: Any = tube._port
            engine = port.shared.engine
            clock.advance(60)
            _, steps = await steps_during(FIRST_CALLS[call](tube, task))
            assert engine.counts()["delayed"] == 0
            assert steps >= TASKS // PART

    asyncio.run(main())


def test_waiter_gets_a_task_behind_many_due_ones_of_the_same_call() -> None:
    async def main() -> None:
        async with tubes.aio.connect("memory://", clock=ManualClock()) as queue:
            tube = await queue.create_tube("mail", "fifottl")
            waiting = asyncio.create_task(tube.take())
            await asyncio.sleep(0)
            await tube.put_many([*(tubes.Item(number, ttl=0) for number in range(TASKS)), tubes.Item("last")])
            async with asyncio.timeout(30):
                task = await waiting
            assert task is not None
            assert task.data == "last"

    asyncio.run(main())


def test_abandoned_task_is_released_while_many_are_due() -> None:
    async def main() -> None:
        clock = ManualClock()
        async with tubes.aio.connect("memory://", clock=clock) as queue:
            tube = await queue.create_tube("mail", "fifottl")
            await tube.put("held")
            task = await tube.take()
            await tube.put_many([tubes.Item(number, delay=60) for number in range(TASKS)])
            clock.advance(60)
            port: Any = tube._port
            port.release_later(task)
            async with asyncio.timeout(30):
                while (await tube.statistics()).tasks["ready"] <= TASKS:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)

    asyncio.run(main())


def hold_many(tube: tubes.Tube) -> None:
    while tube.take_many(1000, timeout=0):
        pass


def close_session(tube: tubes.Tube, other: tubes.Queue) -> None:
    other.close()


#: Calls that work in parts, the driver of their tube, and True if another session holds all its tasks.
CALLS: dict[str, tuple[str, bool, Callable[[tubes.Tube, tubes.Queue], object]]] = {
    "close": ("fifottl", True, close_session),
    "release_all": ("fifottl", True, lambda tube, other: tube.admin.release_all()),
    "oldest_ready_age": ("fifottl", True, lambda tube, other: tube.admin.oldest_ready_age()),
    "due_histogram": ("fifottl", True, lambda tube, other: tube.admin.due_histogram([1, 2])),
    "overview of ages": ("fifottl", True, lambda tube, other: other.admin.overview(ages=True)),
    "overview of lanes": ("utube", False, lambda tube, other: other.admin.overview()),
    "lanes": ("utube", False, lambda tube, other: tube.lanes(1_000_000)),
    "first of many priorities": ("fifottl", False, lambda tube, other: [*tube.select("ready", limit=1)]),
    "first lanes": ("utube", False, lambda tube, other: tube.lanes(1)),
    "alter": ("utube", False, lambda tube, other: tube.alter(max_in_flight=2)),
}


def longest_section(url: str, call: str, size: int) -> int:
    """Return the largest number of lines that run in one critical section of a call, with this number of tasks."""
    driver, takes, act = CALLS[call]
    with tubes.connect(url, clock=ManualClock()) as queue, queue.session() as other:
        tube = queue.create_tube("mail", driver)
        options: list[tubes.TaskOptions] = [
            {"utube": f"lane {n}"} if driver == "utube" else {"pri": 0 if takes else n} for n in range(size)
        ]
        tube.put_many([tubes.Item(n, **each) for n, each in enumerate(options)])
        if takes:
            hold_many(other.tube("mail"))
        port: Any = tube._port
        lock, lines, longest = port._lock, 0, 0

        def watch(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal lines, longest
            if event == "line":
                lines = lines + 1 if lock.locked() else 0
                longest = max(longest, lines)
            return watch

        tracer = sys.gettrace()
        sys.settrace(watch)
        try:
            act(tube, other)
        finally:
            sys.settrace(tracer)
        return longest


@pytest.mark.parametrize("url", ["memory://", "file:FOLDER"])
@pytest.mark.parametrize("call", CALLS)
def test_longest_critical_section_does_not_depend_on_the_number_of_tasks(call: str, url: str, tmp_path: Path) -> None:
    few, many = (longest_section(url.replace("FOLDER", str(tmp_path / str(size))), call, size) for size in (2000, 6000))
    assert many < 1.2 * few


@pytest.mark.parametrize(("state", "options"), [("delayed", {"delay": 60}), ("ready", {})])
def test_work_of_a_selection_is_linear(state: Any, options: dict[str, Any]) -> None:
    def lines_of_count(size: int) -> int:
        lines = 0

        def watch(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal lines
            lines += 1
            return watch

        with tubes.connect(clock=ManualClock()) as queue:
            tube = queue.create_tube("mail", "fifottl")
            # So many priorities that the tasks are in a heap.
            tube.put_many([tubes.Item(n, pri=n % 500, **options) for n in range(size)])
            tracer = sys.gettrace()
            sys.settrace(watch)
            try:
                assert tube.select(state).count() == size
            finally:
                sys.settrace(tracer)
        return lines

    assert lines_of_count(16_000) < 5 * lines_of_count(4000)


def test_truncate_frees_tasks_without_the_lock() -> None:
    class Data:
        def __del__(self) -> None:
            locked.append(port._lock.locked())

    locked: list[bool] = []
    with tubes.connect() as queue:
        tube = queue.create_tube("mail")
        port: Any = tube._port
        for _ in range(3):
            tube.put(Data())
        hold_many(tube)
        tube.truncate()
        assert locked == [False] * 3


def test_task_of_a_closing_session_cannot_be_acked() -> None:
    async def main() -> None:
        async with tubes.aio.connect("memory://", clock=ManualClock()) as queue:
            tube = await queue.create_tube("mail", "fifottl")
            await tube.put_many(range(TASKS))
            other = await queue.session()
            leases = [task.lease for task in await (await other.tube("mail")).take_many(TASKS)]
            closing = asyncio.create_task(other.close())
            await asyncio.sleep(0)
            assert 0 < (await tube.statistics()).tasks["taken"] < TASKS
            with pytest.raises(tubes.TaskNotTaken):
                await tube.ack(leases[-1])
            await closing
            assert (await tube.statistics()).tasks["ready"] == TASKS

    asyncio.run(main())
