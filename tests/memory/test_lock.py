"""The memory backend relies on its own lock, not on the interpreter's: threads may switch anywhere."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tubes
from tests.support.internals import port_of
from tubes.backend.selecting import encoded_data
from tubes.drivers import Driver
from tubes.drivers.engine import Engine
from tubes.drivers.invariants import check_engine
from tubes.drivers.timers import Timers
from tubes.testing import ManualClock

WORKERS, ROUNDS = 4, 300
#: A driver with all features: lanes, deadlines, priorities, keys.
EVERYTHING = Driver("all", options={"ttl", "ttr", "delay", "pri", "utube"}, order="pri", lane="utube")


class NoLock:
    """A replacement of the store's lock that excludes no thread."""

    def acquire(self, *_: object, **__: object) -> bool:
        return True

    __enter__ = acquire

    def release(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def _threads_that_take_turns_all_the_time() -> Iterator[None]:
    """Switch threads as often as possible if the interpreter has a global lock."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def use_in_threads(lock: Any = None, driver: str | Driver = EVERYTHING) -> list[str]:
    """Use one tube in several threads at once (put, take, ack, release, bury, kick, peek) and return all errors.

    `lock`: a replacement of the store's own lock.
    """
    queue = tubes.connect()
    tube: Any = queue.create_tube("t", driver, max_attempts=1000)
    if lock is not None:
        tube._port._store.keep_out(lock)
    held: Counter[int] = Counter()
    acked: Counter[int] = Counter()
    wrong: list[str] = []
    start = threading.Barrier(WORKERS)

    def work(number: int) -> None:
        start.wait()
        try:
            for turn in range(ROUNDS):
                options = {"utube": str(turn % 7), "pri": turn % 3, "ttl": 3600, "ttr": 600} if tube.driver.lane else {}
                tube.put((number, turn), key=f"{number} {turn}", **options)
                task = tube.take(timeout=0)
                if task is None:  # All lanes are busy.
                    continue
                held[task.id] += 1
                if held[task.id] != 1:
                    wrong.append(f"task {task.id} is held twice")
                held[task.id] -= 1
                if turn % 5 == 0:
                    task.release()
                elif turn % 5 == 1:
                    task.bury()
                    tube.select("buried", limit=2).kick()
                else:
                    task.ack()
                    acked[number] += 1
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if any(thread.is_alive() for thread in threads):
        return ["a thread hangs"]
    try:
        tube.select("buried", limit=WORKERS * ROUNDS).kick()
        while tasks := tube.take_many(1000, timeout=0):
            acked[-1] += sum(tube.ack_many(tasks).values())
        statistics = tube.statistics()
        check_engine(tube._port.shared.engine)
        queue.close()
    except Exception as error:
        return [*wrong, f"{type(error).__name__}: {error}"]
    total = WORKERS * ROUNDS
    if acked.total() != total or statistics.tasks["done"] != total or statistics.calls["put"] != total:
        wrong.append(f"{total} tasks were put, {acked.total()} acked: {statistics}")
    return wrong


@pytest.mark.parametrize("driver", ["fifo", EVERYTHING], ids=["fifo", "all"])
def test_concurrent_threads_do_no_harm(driver: str | Driver) -> None:
    for _ in range(3):
        assert use_in_threads(driver=driver) == []


def test_concurrent_threads_do_harm_without_the_lock() -> None:
    """This shows that the test above can detect harm on this interpreter."""
    assert any(use_in_threads(NoLock()) for _ in range(20))


def test_thread_waits_while_another_one_has_the_lock() -> None:
    with tubes.connect() as queue:
        tube = queue.create_tube("t")
        lock = queue._connection.store.lock  # type: ignore[attr-defined]
        lock.acquire()
        putting = threading.Thread(target=tube.put, args=("x",))
        putting.start()
        while lock.waits < 1010:  # The thread retries, and sleeps when this takes long.
            time.sleep(0.001)
        assert putting.is_alive()
        assert lock.locked()
        lock.token[0] = True
        putting.join()
        assert not lock.locked()
        assert tube.statistics().tasks["ready"] == 1


def test_thread_gets_its_turn_among_busy_threads() -> None:
    """Each busy thread enters at most this many times per turn of the waiting thread."""
    turns, most = 50, 100_000
    with tubes.connect() as queue:
        tube = queue.create_tube("t")
        entered = [0] * WORKERS
        stop = threading.Event()

        def work(number: int) -> None:
            while not stop.is_set() and entered[number] < most:
                tube.put(number)
                with tube.taking():
                    entered[number] += 3

        threads = [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
        for thread in threads:
            thread.start()
        for _ in range(turns):
            tube.statistics()
        stop.set()
        for thread in threads:
            thread.join()
        assert max(entered) < most


def test_section_searches_about_a_megabyte_of_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    sections: list[int] = [0]

    def encode(data: object) -> bytes:
        sections[-1] += 1
        return encoded_data(data)

    monkeypatch.setattr("tubes.memory.selecting.encoded_data", encode)
    with tubes.connect() as queue:
        tube = queue.create_tube("t")
        tube.put_many([{"html": "x" * 600_000}] * 6)
        port = port_of(tube)
        select = port.select

        def select_part(*args: Any) -> Any:
            sections.append(0)
            return select(*args)

        monkeypatch.setattr(port, "select", select_part)
        assert tube.select("ready", contains="y").count() == 0
    assert (max(sections), sum(sections)) == (2, 6)


#: Due tasks, lanes and others that a section handles at most.
PART = 500
#: More than two parts.
DUE = 1200


class Sections:
    """Counts what each critical section of a store takes from its timers, and the steps to find it."""

    def __init__(self, tube: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts = [0]
        lock, pop = tube._port._store.lock, Timers.pop

        def acquire() -> bool:
            held: bool = lock.token.pop(0, False)
            if held:
                self.counts.append(0)
            return held

        def count(timers: Timers[Any], now: int) -> Any:
            self.counts[-1] += 1
            return pop(timers, now)

        lock.attempts = iter(acquire, None)
        monkeypatch.setattr(Timers, "pop", count)


def put_delayed(tube: tubes.Tube) -> None:
    tube.put_many(["x"] * DUE, delay=9)


def put_mortal(tube: tubes.Tube) -> None:
    tube.put_many(["x"] * DUE, ttl=9)
    tube.put("x")


def take_for_a_while(tube: tubes.Tube) -> None:
    tube.put_many(["x"] * DUE, ttr=9)
    assert len(tube.take_many(DUE)) == DUE


def block_lanes(tube: tubes.Tube) -> None:
    for number in range(DUE):
        tube.put("x", utube=str(number))
        tube.lane(str(number)).block(9)


CALLS: dict[str, Callable[[tubes.Queue, tubes.Tube], object]] = {
    "take": lambda queue, tube: tube.take(timeout=0),
    "put": lambda queue, tube: tube.put("x"),
    "ack": lambda queue, tube: suppressed(tube.ack, 0),
    "peek": lambda queue, tube: suppressed(tube.peek, 0),
    "statistics": lambda queue, tube: tube.statistics(),
    "overview": lambda queue, tube: queue.admin.overview(),
    "move": lambda queue, tube: queue.tube("other").select("ready").move_to(tube),
    "close": lambda queue, tube: queue.close(),
}


def suppressed(call: Callable[[int], object], id: int) -> None:
    with suppress(tubes.TubesError):
        call(id)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("fill", [put_delayed, put_mortal, take_for_a_while, block_lanes])
@pytest.mark.parametrize("scheme", ["memory", "file"])
@pytest.mark.sample(20)
def test_call_handles_all_that_is_due_in_short_sections(
    scheme: str, fill: Callable[[tubes.Tube], None], call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    with tubes.connect("memory://" if scheme == "memory" else f"file:{tmp_path}", clock=clock) as queue:
        tube = queue.create_tube("t", EVERYTHING if fill is block_lanes else "fifottl")
        engine: Engine = port_of(tube).shared.engine
        queue.create_tube("other").put("x")
        fill(tube)
        clock.advance(9)
        sections = Sections(tube, monkeypatch)
        CALLS[call](queue, tube)
        assert max(sections.counts) == PART
        assert sum(sections.counts) >= DUE
        expected = {"put_mortal": 1}.get(fill.__name__, DUE) + (call in ("put", "move")) - (call == "take")
        assert engine.counts()["ready"] == expected
        check_engine(engine)


@pytest.mark.parametrize("fill", [put_delayed, take_for_a_while, block_lanes])
@pytest.mark.parametrize("scheme", ["memory", "file"])
@pytest.mark.sample(2)
def test_clock_handles_all_that_is_due_in_short_sections(
    scheme: str, fill: Callable[[tubes.Tube], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    with tubes.connect("memory://" if scheme == "memory" else f"file:{tmp_path}", clock=clock) as queue:
        tube = queue.create_tube("t", EVERYTHING if fill is block_lanes else "fifottl")
        engine: Engine = port_of(tube).shared.engine
        fill(tube)
        sections = Sections(tube, monkeypatch)
        with ThreadPoolExecutor() as pool:
            waiting = [pool.submit(tube.take, timeout=timeout) for timeout in (9, 10)]
            while tube.statistics().waiting < len(waiting):
                time.sleep(0.001)
            clock.advance(9)
            found = [each.result(60) for each in waiting]
        assert all(found)
        assert max(sections.counts) == PART
        assert engine.counts()["ready"] == DUE - len(found)
