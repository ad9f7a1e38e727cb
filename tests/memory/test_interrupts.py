"""A call that is interrupted at any moment takes full effect or none: no task is lost or stranded."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tubes
import tubes.aio
from tests.contract.bench import eventually
from tests.support.internals import port_of
from tests.support.taking import take_task
from tubes.drivers.invariants import check_engine

#: These drivers cover all features: the shortest path, capacity and times, lanes.
DRIVERS = ["fifo", "limfifottl", "utubettl"]
TASKS = 6
#: The number of runs per moment, each with other interrupts during the recovery.
RUNS = 2
# More moments than any call has.
MANY = 2000


def interrupt(method: Callable[[], object], *moments: int) -> int:
    """Run a call with KeyboardInterrupts; return how many were raised.

    Each is raised at the n-th possible moment after the previous one. An interrupt is possible when a Python function
    starts or a built-in one has returned, except in `logging`, whose lock would stay locked.
    """
    waits = list(moments)

    def watch(frame: Any, event: str, argument: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename != logging.__file__:
            waits[0] -= 1
            if waits[0] < 0:  # Python removes a profiler that raises: the next call of a function sets it again.
                del waits[0]
                raise KeyboardInterrupt

    def watch_again(frame: Any, event: str, argument: object) -> None:
        if waits and len(waits) < len(moments) and sys.getprofile() is None:
            sys.setprofile(watch)

    gc.disable()  # An interrupt of a finalizer is only logged.
    tracer, hook = sys.gettrace(), sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None
    try:
        if len(moments) > 1:
            sys.settrace(watch_again)
        sys.setprofile(watch)
        method()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
        sys.settrace(tracer)
        sys.unraisablehook = hook
        gc.enable()
    return len(moments) - len(waits)


def check(tube: tubes.Tube) -> dict[str, int]:
    """Check the indexes of the tube and return its counts."""
    check_engine(port_of(tube).shared.engine)
    return tube.statistics().tasks


def moments(driver: str, **options: Any) -> Iterator[tuple[int, tubes.Queue, tubes.Tube]]:
    """Yield, for every moment, a tube with some tasks, two of them in one lane."""
    options |= {"ttl": 1000, "ttr": 100} if "ttl" in driver else {}
    for moment in range(MANY):
        with tubes.connect(clock=tubes.testing.ManualClock()) as queue:
            tube = queue.create_tube("t", driver, **options)
            for number in range(TASKS):
                tube.put(number, **lane(driver, number))
            yield moment, queue, tube
    raise AssertionError("the call does not end")


def drain(tube: tubes.Tube) -> list[int]:
    """Take all available tasks and return their ids in order."""
    return [task.ack().data for task in iter(lambda: tube.take(0), None)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("driver", DRIVERS)
def test_interrupted_take_has_no_effect(driver: str) -> None:
    for moment, _, tube in moments(driver):
        if not interrupt(lambda tube=tube: tube.take(0), moment):  # type: ignore[misc]
            assert moment > 4
            return
        assert check(tube)["taken"] == 0
        assert tube.statistics().calls["take"] == 0
        task = take_task(tube)
        assert task.attempts == 1
        task.release()
        assert drain(tube) == list(range(TASKS))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "options", [{"interval": 9}, {"interval": 9, "max_in_flight": 2, "order": "round_robin"}], ids=str
)
def test_interrupted_take_does_not_start_the_interval_of_its_lane(options: dict[str, Any]) -> None:
    for moment, _, tube in moments("utube", **options):
        tube.lane("2").block(9)
        if not interrupt(lambda tube=tube: tube.take(0), moment):  # type: ignore[misc]
            return
        assert check(tube)["taken"] == 0
        assert [utube.next_start is None for utube in tube.lanes()] == [True, True, False]
        assert [task.data for task in iter(lambda tube=tube: tube.take(0), None)] == [0, 2]  # type: ignore[misc]
        tube.lane("0").configure(interval=0, max_in_flight=2)
        assert [task.data for task in iter(lambda tube=tube: tube.take(0), None)] == [1]  # type: ignore[misc]


@pytest.mark.full
def test_interrupted_move_leaves_each_task_in_one_tube() -> None:
    for moment, queue, tube in moments("utubettl"):
        other = queue.create_tube("other", "utubettl")
        over = not interrupt(lambda tube=tube, other=other: tube.select("ready").move_to(other), moment)  # type: ignore[misc]
        check(other)
        assert check(tube)["total"] == tube.select().count()
        assert sorted(task.data for task in [*tube.select(), *other.select()]) == [*range(TASKS)]
        if over:
            return


@pytest.mark.sample(1)
@pytest.mark.parametrize("end", ["ack", "delete", "cancel"])
def test_task_ended_by_an_interrupted_call_is_kept(end: str) -> None:
    for moment, _, tube in moments("fifottl", keep_done=60):
        for _ in range(2):
            tube.peek(5 - tube.statistics().kept).take().ack()  # type: ignore[union-attr]
        task = tube.take(0)
        if not interrupt(lambda tube=tube, task=task: getattr(tube, end)(task), moment):  # type: ignore[misc]
            return
        ended = check(tube)["total"] == TASKS - 3
        assert sorted(done.id for done in tube.select("done")) == ([0, 4, 5] if ended else [4, 5])


@pytest.mark.sample(1)
@pytest.mark.parametrize("lane", ["0", "new"])
def test_interrupted_block_or_configure_is_all_or_nothing(lane: str) -> None:
    acts: list[Callable[[tubes.Tube], object]] = [
        lambda tube: tube.lane(lane).block(5),
        lambda tube: tube.lane(lane).configure(interval=5, max_in_flight=3),
    ]
    for act in acts:
        for moment, _, tube in moments("utube"):
            if not interrupt(lambda tube=tube, act=act: act(tube), moment):  # type: ignore[misc]
                break
            check(tube)
            act(tube)
            assert tube.lanes()[lane == "new" and -1].name == lane
            tube.lane(lane).block(0)
            tube.lane(lane).configure(interval=None, max_in_flight=None)
            check(tube)
            assert drain(tube) == list(range(TASKS))
            assert tube.lanes() == []


@pytest.mark.sample(2)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("options", [{}, {"delay": 5}], ids=["ready", "delayed"])
def test_interrupted_put_has_full_effect_or_none(driver: str, options: dict[str, Any]) -> None:
    if options and "ttl" not in driver:
        pytest.skip(f"driver {driver!r} has no delay")
    for moment, _, tube in moments(driver):
        if not interrupt(lambda tube=tube: tube.put("x", **options), moment):  # type: ignore[misc]
            return
        added = check(tube)["total"] - TASKS
        assert tube.statistics().calls["put"] == TASKS + added
        assert tube.put("y").id >= TASKS
        tube._port.clock.advance(5)  # type: ignore[attr-defined]
        assert sorted(drain(tube), key=str) == [*range(TASKS), *["x"] * added, "y"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", DRIVERS)
def test_interrupted_put_many_has_no_effect(driver: str) -> None:
    for moment, _, tube in moments(driver):
        if not interrupt(lambda tube=tube: tube.put_many(["x", "y", "z"]), moment):  # type: ignore[misc]
            return
        assert check(tube)["total"] == TASKS
        assert tube.statistics().calls["put"] == TASKS
        assert tube.put("w").id >= TASKS
        assert drain(tube) == [*range(TASKS), "w"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", DRIVERS)
def test_interrupted_take_many_has_no_effect(driver: str) -> None:
    for moment, _, tube in moments(driver):
        if not interrupt(lambda tube=tube: tube.take_many(3, timeout=0), moment):  # type: ignore[misc]
            return
        assert check(tube)["taken"] == 0
        assert tube.statistics().calls["take"] == 0
        assert {task.attempts for task in tube.take_many(TASKS, timeout=0)} == {1}
        tube.admin.release_all()
        assert sorted(drain(tube)) == list(range(TASKS))


@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("method", ["ack_many", "release_many", "delete_many"])
def test_interrupted_batch_call_is_done_or_undone_for_each_task(driver: str, method: str) -> None:
    for moment, _, tube in moments(driver):
        tasks = tube.take_many(3, timeout=0)
        act = getattr(tube, method)
        if not interrupt(lambda act=act, tasks=tasks: act(tasks), moment):  # type: ignore[misc]
            return
        counts, calls = check(tube), tube.statistics().calls
        ended = calls["ack"] + calls["delete"]
        assert counts["total"] == TASKS - ended
        assert counts["taken"] == 3 - ended - calls["release"]
        tube.admin.release_all()
        left = [n for n in range(TASKS) if n not in [task.data for task in tasks][:ended]]
        assert drain(tube) == left


@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("method", ["ack", "release", "bury", "delete", "cancel", "touch", "release_all"])
def test_interrupted_call_of_a_holder_is_all_or_nothing(driver: str, method: str) -> None:
    if method in ("bury", "touch") and "ttl" not in driver:
        pytest.skip(f"driver {driver!r} has no {method}")
    for moment, _, tube in moments(driver):
        task = take_task(tube)
        act: dict[str, Callable[[], object]] = {
            "touch": lambda task=task: task.touch(5),  # type: ignore[misc]
            "release_all": tube.admin.release_all,
        }
        if not interrupt(act.get(method) or getattr(task, method), moment):
            return
        counts, calls = check(tube), tube.statistics().calls
        if method == "touch":
            view = tube.peek(task.id)
            assert (view.ttr, view.ttl) in ((100, 1000), (105, 1005))
        ended = calls["ack"] + calls["delete"]
        assert counts["total"] == TASKS - ended
        assert counts["taken"] == 1 - ended - calls["release"] - calls["bury"]
        tube.admin.release_all()
        tube.select("buried", limit=1).kick()
        assert drain(tube) == list(range(ended, TASKS))


@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("method", ["kick", "truncate"])
def test_interrupted_kick_or_truncate_leaves_each_task_in_one_state(driver: str, method: str) -> None:
    for moment, _, tube in moments(driver):
        for id in range(3):
            tube.bury(id)
        act = (lambda tube=tube: tube.select("buried", limit=3).kick()) if method == "kick" else tube.truncate
        if not interrupt(act, moment):
            return
        counts = check(tube)
        assert counts["ready"] + counts["buried"] == counts["total"]
        tube.select("buried", limit=3).kick()
        assert drain(tube) == ([] if method == "truncate" and not counts["total"] else list(range(TASKS)))


@pytest.mark.sample(1)
@pytest.mark.parametrize("seconds", [None, 5])
@pytest.mark.parametrize("method", ["pause", "resume"])
def test_interrupted_pause_or_resume_is_all_or_nothing(method: str, seconds: float | None) -> None:
    for moment, _, tube in moments("utube"):
        if method == "resume":
            tube.pause(seconds)
        over = not interrupt(lambda tube=tube: tube.pause(0 if method == "resume" else seconds), moment)  # type: ignore[misc]
        check(tube)
        if over:
            return
        assert tube.statistics().paused in (None, math.inf if seconds is None else seconds)
        assert (tube.take(0) is None) == (tube.statistics().paused is not None)
        tube.pause(0)
        tube.admin.release_all()
        assert drain(tube) == list(range(TASKS))


@pytest.mark.sample(2)
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_close_that_was_interrupted_can_be_repeated(driver: str) -> None:
    for moment, queue, tube in moments(driver):
        other = queue.session()
        mine = other.tube("t")
        held = mine.take(0), mine.take(0)
        assert None not in held
        ended = not interrupt(other.close, moment)
        check(tube)
        other.close()
        assert drain(tube) == list(range(TASKS))
        if ended:
            return


@pytest.mark.sample(2)
@pytest.mark.parametrize("driver", DRIVERS)
def test_interrupt_while_serving_a_waiter_loses_no_task_or_waiter(driver: str) -> None:
    url = f"memory://interrupted-{driver}-{os.getpid()}"
    loop = asyncio.new_event_loop()

    async def begin(tube: tubes.AsyncTube) -> asyncio.Task[tubes.AsyncTask | None]:
        taking = asyncio.create_task(tube.take())
        await asyncio.sleep(0)
        return taking

    async def finishes_soon(taking: asyncio.Task[tubes.AsyncTask | None]) -> bool:
        for _ in range(3):
            await asyncio.sleep(0)
        return taking.done()

    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", driver)
        theirs = loop.run_until_complete(tubes.aio.connect(url).tube("t"))
        for moment in range(MANY):
            taking = loop.run_until_complete(begin(theirs))
            over = not interrupt(lambda: tube.put("x"), moment)
            served = loop.run_until_complete(finishes_soon(taking))
            counts = check(tube)
            assert counts["total"] == counts["taken"] == served
            assert tube.statistics().waiting == 1 - served
            if not served:
                tube.put("y")
            task = loop.run_until_complete(taking)
            assert task is not None
            loop.run_until_complete(task.ack())
            if over:
                break
    loop.close()


#: The calls to interrupt more than once, with a taken task.
CALLS: dict[str, Callable[[tubes.Tube, tubes.Task, tubes.Tube], object]] = {
    "put": lambda tube, task, other: tube.put("x"),
    "put_many": lambda tube, task, other: tube.put_many(["x", "y"]),
    "take": lambda tube, task, other: tube.take(0),
    "take_many": lambda tube, task, other: tube.take_many(2, timeout=0),
    "ack": lambda tube, task, other: task.ack(),
    "release": lambda tube, task, other: task.release(),
    "kick": lambda tube, task, other: tube.select("buried", limit=2).kick(),
    "move_to": lambda tube, task, other: tube.select("ready").move_to(other),
    "drop": lambda tube, task, other: other.drop(),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", ["fifo", "limfifottl", "utubettl"])
@pytest.mark.parametrize("call", CALLS)
def test_interrupted_recovery_strands_no_task(driver: str, call: str) -> None:
    rng = random.Random(call)
    options: dict[str, Any] = {"interval": 9, "max_in_flight": 2} if "utube" in driver else {}
    recoveries = 0
    for run in range(MANY * RUNS):
        with tubes.connect(clock=tubes.testing.ManualClock()) as queue:
            tube, other = queue.create_tube("t", driver, **options), queue.create_tube("other", driver)
            for number in range(TASKS):
                tube.put(number, **lane(driver, number))
            tube.bury(TASKS - 1)
            task = take_task(tube)
            moments = (
                run // RUNS,
                *(rng.randrange(rng.choice([5, 30, 200])) for _ in range(rng.randrange(1, 4))),
            )
            hits = interrupt(lambda tube=tube, task=task, other=other: CALLS[call](tube, task, other), *moments)  # type: ignore[misc]
            if not hits:
                break
            recoveries += hits > 1
            counts = tube.statistics().tasks
            check(tube)
            assert tube.select("ready").count() == counts["ready"], moments
            assert counts["taken"] == tube.select("taken").count(), moments
            assert counts["taken"] <= 1, moments
            with contextlib.suppress(tubes.TubeNotFound):
                assert queue.tube("other").select().count() == check(other)["total"], moments
                other.select("ready").move_to(tube)
            tube.admin.release_all()
            tube.select("buried", limit=TASKS).kick()
            for name in ("0", "1", "2") if "utube" in driver else ():
                tube.lane(name).configure(interval=0, max_in_flight=9)
            data: list[Any] = drain(tube)
            acked = [0] if call == "ack" and 0 not in data else []
            added = [each for each in data if isinstance(each, str)]
            assert added in ([], {"put": ["x"], "put_many": ["x", "y"]}.get(call)), moments
            assert sorted(each for each in data + acked if each not in added) == list(range(TASKS)), moments
    assert recoveries or call == "ack"  # A plain ack runs no interruptible code after its change.


@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", ["fifo", "limfifottl"])
@pytest.mark.parametrize("call", ["take", "take_any", "put"])
def test_interrupts_of_a_waiting_call_lose_no_task_and_no_waiter(driver: str, call: str) -> None:
    rng = random.Random(call)
    with tubes.connect() as queue, ThreadPoolExecutor(1) as thread:
        tube, other = queue.create_tube("t", driver, capacity=1), queue.create_tube("other", driver)
        calls: dict[str, Callable[[], object]] = {
            "take": lambda: tube.take(0.002),
            "take_any": lambda: queue.take_any([other, tube], 0.002),
            "put": lambda: tube.put("x", timeout=0.002),
        }
        result: object = None

        def attempt() -> None:
            nonlocal result
            result = calls[call]()

        def unblock() -> None:
            drain(tube) if call == "put" else tube.put("x")

        for run in range(3 * 60):
            if call == "put":
                tube.put("full", timeout=0)
            result = None
            timer = threading.Timer(rng.choice([0.0, 0.001, 0.002]), unblock)
            timer.start()
            interrupt(attempt, run // 3, *(rng.randrange(rng.choice([3, 60])) for _ in range(2)))
            timer.join()
            if result and call != "put":
                tube.admin.release_all()
            assert eventually(lambda: tube.statistics().waiting == check(tube)["taken"] == 0), run
            left: list[Any] = drain(tube)
            assert left == ["x"] or (call == "put" and not left), run
            waiting = thread.submit(tube.take, 10)
            assert eventually(lambda: tube.statistics().waiting == 1), run
            tube.put("y")
            task = waiting.result(9)
            assert task is not None
            task.ack()


@pytest.mark.sample(1)
@pytest.mark.parametrize("call", ["take_many", "take_ttr", "take_any_ttr", "queue_take_many"])
@pytest.mark.parametrize("backend", ["memory", "file"])
def test_interrupted_wait_gives_back_all_that_it_took(tmp_path: Path, backend: str, call: str) -> None:
    url = f"memory://{tmp_path.name}" if backend == "memory" else f"file:{tmp_path}"
    with tubes.connect(url) as queue, tubes.connect(url) as elsewhere, ThreadPoolExecutor(1) as thread:
        tube = queue.create_tube("t", "fifottl")
        theirs = elsewhere.tube("t")
        calls: dict[str, Callable[[], object]] = {
            "take_many": lambda: tube.take_many(2),
            "take_ttr": lambda: tube.take(ttr=9),
            "take_any_ttr": lambda: queue.take_any([tube], ttr=9),
            "queue_take_many": lambda: queue.take_many([tube], 2),
        }
        for moment in range(MANY):
            over = threading.Event()

            def put_two(over: threading.Event = over) -> None:
                assert eventually(lambda: over.is_set() or theirs.statistics().waiting == 1)
                theirs.put_many([0, 1])

            putting = thread.submit(put_two)
            hits = interrupt(calls[call], moment)
            over.set()
            putting.result()
            if not hits:
                assert tube.statistics().tasks["taken"] > 0
                return
            assert eventually(lambda: tube.statistics().waiting == check(tube)["taken"] == 0), moment
            assert drain(tube) == [0, 1], moment


@pytest.mark.sample(1)
@pytest.mark.parametrize("backend", ["memory", "file"])
def test_interrupted_checkpoint_has_full_effect_or_none(tmp_path: Path, backend: str) -> None:
    for moment in range(MANY):
        url = f"memory://checkpoint-{moment}" if backend == "memory" else f"file:{tmp_path}/{moment}"
        clock = tubes.testing.ManualClock()
        with tubes.connect(url, clock=clock, codec="json") as queue:
            tube = queue.create_tube("t", "fifottl", ttl=5, ttr=5)
            tube.put(0)
            task = take_task(tube)
            task.checkpoint("before")
            clock.advance(1)
            hits = interrupt(lambda task=task: task.checkpoint("after", note="n"), moment)  # type: ignore[misc]
            check(tube)
            seen = tube.peek(0)
            assert (seen.saved, seen.note, seen.due, seen.expires) in (("before", None, 5, 5), ("after", "n", 6, 6))
        if backend == "file":
            with tubes.connect(url, clock=clock, codec="json") as queue:
                again = queue.tube("t").peek(0)
                assert (again.saved, again.note, again.expires) == (seen.saved, seen.note, seen.expires)
        if not hits:
            assert seen.note == "n"
            return
    raise AssertionError("the call does not end")


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}" if request.param == "memory" else f"file:{tmp_path}"


def interrupt_twice(
    url: str,
    driver: str,
    prepare: Callable[[tubes.Tube], Any],
    call: Callable[[tubes.Tube, Any], object],
    **options: Any,
) -> Iterator[tubes.Tube]:
    """Yield, for every moment of a call, a tube after an interrupt at this moment and another one soon after."""
    rng = random.Random(driver)
    with tubes.connect(url) as queue:
        for run in range(MANY * 2):
            tube = queue.create_tube("t", driver, **options)
            given = prepare(tube)
            later = rng.randrange(rng.choice([5, 30, 200]))
            hits = interrupt(lambda tube=tube, given=given: call(tube, given), run // 2, later)  # type: ignore[misc]
            tube.statistics()  # This call repairs the tube.
            yield tube
            tube.drop(force=True)
            if not hits:
                return
    raise AssertionError("this call has no end")


@pytest.mark.sample(1)
def test_interrupted_again_leaves_the_old_task_or_the_new_one(url: str) -> None:
    def prepare(tube: tubes.Tube) -> None:
        tube.put("x").delete()

    for tube in interrupt_twice(url, "fifottl", prepare, lambda tube, _: tube.kick(task=0), keep_done=60):
        check(tube)
        old, new = [*tube.select("done")], [*tube.select("ready")]
        assert [task.data for task in old + new] == ["x"]
        assert tube.statistics().calls["put"] == 1 + len(new)


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["release", "bury"])
def test_interrupted_move_with_a_priority_is_all_or_nothing(url: str, method: str) -> None:
    def prepare(tube: tubes.Tube) -> tubes.Task:
        tube.put_many([0, 1])
        return take_task(tube)

    for tube in interrupt_twice(url, "utubettl", prepare, lambda tube, task: getattr(tube, method)(task, pri=7)):
        check(tube)
        task = tube.peek(0)
        moved = tube.statistics().calls[method]
        assert (task.state == "taken", task.pri) == ((False, 7) if moved else (True, 0))


@pytest.mark.sample(1)
def test_interrupted_truncate_is_all_or_nothing(url: str) -> None:
    def prepare(tube: tubes.Tube) -> None:
        for key in "abc":
            tube.put(key, key=key, key_ttl=99)
        tube.delete(0)
        tube.peek(1).take()

    for tube in interrupt_twice(url, "fifottl", prepare, lambda tube, _: tube.truncate(), keep_done=60):
        check(tube)
        found = [tube.select().count(), tube.select("done").count()]
        assert found in ([2, 1], [0, 0])
        assert put_key(tube, "a") == ("new" if found == [0, 0] else "-")


def test_done_tasks_stay_in_the_folder_when_a_truncate_is_interrupted(tmp_path: Path) -> None:
    url, found = f"file:{tmp_path}", []
    for moment in (*range(20), MANY):
        with tubes.connect(url) as queue:
            tube = queue.create_tube("t", "fifottl", keep_done=60)
            tube.put("x").delete()
            interrupt(tube.truncate, moment)
            found.append(tube.select("done").count())
        with tubes.connect(url) as queue:
            tube = queue.tube("t")
            assert tube.select("done").count() == found[-1], moment
            tube.drop()
    assert set(found) == {0, 1}


@pytest.mark.sample(1)
def test_interrupted_move_to_another_session_is_all_or_nothing(url: str) -> None:
    with tubes.connect(url) as queue:
        uuid = queue.admin.identify()
        both = [queue.create_tube(name) for name in "ab"]
        for tube in both:
            tube.put("x")
        for run in range(MANY * 2):
            mine = tubes.connect(url)
            own = mine.admin.identify()
            held = [mine.tube(tube.name).take(0) for tube in both]
            hits = interrupt(lambda mine=mine: mine.admin.identify(uuid), run // 2, run % 2)  # type: ignore[misc]
            if mine.admin.identify() == own:
                assert [task is not None and task.release().state for task in held] == ["r", "r"]
            for tube in both:
                assert eventually(lambda tube=tube: tube.statistics().tasks["taken"] == 0)  # type: ignore[misc]
                task = take_task(mine.tube(tube.name))
                if mine.admin.identify() == uuid:
                    tube.release(task.id)
            mine.close()
            for tube in both:
                assert check(tube)["ready"] == 1
            if not hits:
                return
        raise AssertionError("this call has no end")


KEY_TTL = 50


def lane(driver: str, number: int) -> tubes.TaskOptions:
    """Return the lane of a task; two tasks share each lane."""
    return {"utube": str(number // 2)} if "utube" in driver else {}


def moments_with_keys(driver: str) -> Iterator[tuple[int, tubes.Queue, tubes.Tube]]:
    """Yield, for every moment, a tube whose tasks have keys that are remembered for a while."""
    for moment, queue, tube in moments(driver, key_ttl=KEY_TTL):
        for task in range(TASKS):
            tube.delete(task)
        for number in range(TASKS):
            tube.put(number, key=str(number), **lane(driver, number))
        yield moment, queue, tube


def put_key(tube: tubes.Tube, key: str) -> str:
    """Put a key and return the state of its existing task, `-` if the key is remembered, or `new`."""
    with contextlib.suppress(tubes.DuplicateKey):
        tube.put("mine", key=key, on_duplicate="raise")
        return "new"
    return tube.put("mine", key=key).state.letter


@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("key", ["0", "new"])
def test_interrupted_put_with_a_key_keeps_task_and_key_consistent(driver: str, key: str) -> None:
    for moment, _, tube in moments_with_keys(driver):
        if not interrupt(lambda tube=tube: tube.put("x", key=key), moment):  # type: ignore[misc]
            return
        is_put = check(tube)["total"] > TASKS
        assert put_key(tube, key) == ("new" if key == "new" and not is_put else "r")


@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("state", ["ready", "taken", "buried", "done"])
def test_interrupted_replace_is_all_or_nothing(driver: str, state: str) -> None:
    for moment, _, tube in moments_with_keys(driver):
        first = TASKS
        if state == "taken":
            tube.take(0)
        elif state == "buried":
            tube.bury(first)
        elif state == "done":
            tube.delete(first)
        before = tube.statistics()
        over = not interrupt(lambda tube=tube: tube.put("x", key="0", on_duplicate="replace"), moment)  # type: ignore[misc]
        counts, calls = check(tube), tube.statistics().calls
        tube.admin.release_all()
        tube.select("buried", limit=1).kick()
        data: list[Any] = drain(tube)
        done = "x" in data
        assert done or not over
        assert data.count(0) == (not done and state != "done")
        assert sorted(number for number in data if number not in ("x", 0)) == list(range(1, TASKS))
        assert counts["total"] == len(data)
        assert calls["put"] - before.calls["put"] == done
        assert calls["delete"] - before.calls["delete"] == (done and state != "done")
        if over:
            return


@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("method", ["put", "put_many"])
@pytest.mark.parametrize("state", ["ready", "taken", "buried"])
def test_interrupted_update_by_key_is_all_or_nothing(driver: str, method: str, state: str) -> None:
    for moment, _, tube in moments_with_keys(driver):
        if state == "taken":
            tube.take(0)
        elif state == "buried":
            tube.bury(TASKS)
        call: Any = (lambda tube=tube: tube.put("x", key="0", on_duplicate="update")) if method == "put" else (
            lambda tube=tube: tube.put_many(["x"], key="0", on_duplicate="update")
        )  # fmt: skip
        over = not interrupt(call, moment)
        assert check(tube)["total"] == TASKS
        assert tube.peek(TASKS).state == state
        done = tube.peek(TASKS).data == "x"
        assert done or not over
        tube.admin.release_all()
        tube.select("buried", limit=1).kick()
        assert sorted(map(str, drain(tube))) == sorted(map(str, ["x" if done else 0, *range(1, TASKS)]))
        if over:
            return


@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("method", ["ack", "delete", "cancel", "bury", "release"])
def test_interrupted_call_keeps_task_and_key_consistent(driver: str, method: str) -> None:
    for moment, _, tube in moments_with_keys(driver):
        task = take_task(tube)
        over = not interrupt(getattr(task, method), moment)
        is_removed = check(tube)["total"] < TASKS
        assert (put_key(tube, "0") == "-") == is_removed
        if is_removed:
            tube._port.clock.advance(KEY_TTL)  # type: ignore[attr-defined]
            assert put_key(tube, "0") == "new"
        check(tube)
        if over:
            return


CHANGES: dict[str, dict[str, Any]] = {
    "data": {"data": "x"},
    "place": {"data": "x", "pri": 3},
    "life": {"data": "x", "pri": 3, "ttl": 77},
    "delay": {"data": "x", "delay": 7},
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("state", ["ready", "taken", "buried"])
@pytest.mark.parametrize("changes", CHANGES)
def test_interrupted_update_is_all_or_nothing(driver: str, state: str, changes: str) -> None:
    changed = CHANGES[changes]
    if len(changed) > 1 and "ttl" not in driver:
        pytest.skip(f"driver {driver!r} has nothing but data")
    if (changes == "delay" and state != "ready") or (changes == "life" and state == "taken"):
        pytest.skip("this is refused")
    for moment, _, tube in moments(driver):
        held = tube.take(0) if state == "taken" else None
        if state == "buried":
            tube.bury(0)
        over = not interrupt(lambda tube=tube: tube.update(0, **changed), moment)  # type: ignore[misc]
        check(tube)
        found = tube.peek(0)
        done = found.data == "x"
        assert done or not over
        assert (found.pri == 3) == (done and "pri" in changed)
        assert (found.ttl == 77) == (done and "ttl" in changed)
        assert found.state == ("delayed" if done and "delay" in changed else state)
        if held is not None:
            assert held.ack().state == "done"
        tube.select("buried", limit=1).kick()
        check(tube)
        if over:
            return


@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", ["fifottl", "utubettl"])
@pytest.mark.parametrize("attempts", [1, 2])
def test_interrupted_release_with_backoff_is_all_or_nothing(driver: str, attempts: int) -> None:
    for moment, _, tube in moments(driver, backoff=[5], max_attempts=attempts):
        task = take_task(tube)
        over = not interrupt(task.release, moment)
        check(tube)
        found = tube.peek(0)
        calls = tube.statistics().calls
        assert found.state == ("t" if not calls["release"] else "!" if attempts == 1 else "~")
        assert (found.reason is not None) == (found.state == "buried")
        if over:
            return


@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", DRIVERS)
def test_interrupted_alter_is_all_or_nothing(driver: str) -> None:
    changes: dict[str, Any] = {"capacity": TASKS + 1, "max_attempts": 2}
    changes |= {"max_in_flight": 2, "interval": 7} if "utube" in driver else {}
    for moment, _, tube in moments(driver):
        before = dict(tube.options)
        if not interrupt(lambda tube=tube: tube.alter(**changes), moment):  # type: ignore[misc]
            assert moment > 5
            return
        check(tube)
        is_done = tube.options != before
        assert tube.options == (before | changes if is_done else before)
        lane: dict[str, Any] = {"utube": "x"} if "utube" in driver else {}
        task = tube.put("x", timeout=0, **lane)
        assert task is not None
        assert task.max_attempts == (2 if is_done else None)
        assert (tube.put("y", timeout=0) is None) == is_done
        if "utube" in driver:
            seen = {(utube.interval, utube.max_in_flight) for utube in tube.lanes()}
            assert seen == {(7.0, 2) if is_done else (0.0, 1)}
