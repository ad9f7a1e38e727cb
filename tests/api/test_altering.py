"""Altering a tube while threads and event loops work: later calls use the new options."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import tubes
import tubes.aio
from tests.support.internals import port_of
from tubes.drivers.invariants import check_engine

if TYPE_CHECKING:
    from tubes.testing import LocalServer

#: The duration of a race of threads in seconds, and the number of alterations meanwhile.
SECONDS, ALTERS = 1.0, 12


@pytest.fixture(params=["memory", "valkey"])
def place(request: pytest.FixtureRequest) -> str:
    """Return the URL of tubes that several connections share."""
    if request.param == "memory":
        return f"memory://{uuid4().hex}"
    server: LocalServer = request.getfixturevalue("valkey")
    return f"{server.url}?prefix={uuid4().hex}"


class Versions:
    """Options as versions: each put must use the version at its start or a later one."""

    def __init__(self) -> None:
        #: The latest version whose alter has returned, and the latest one whose alter has begun.
        self.done = self.begun = 1
        self.wrong: list[tuple[int, int, int]] = []

    def options(self, version: int) -> dict[str, Any]:
        """Return options that all contain the version."""
        return {"max_attempts": version, "ttl": 1000 * version, "ttr": 1000 * version}

    def alter(self, tube: tubes.Tube) -> None:
        """Switch the tube to the next version."""
        self.begun += 1
        tube.alter(**self.options(self.begun))
        self.done = self.begun

    def check(self, task: Any, done: int) -> None:
        """Check the task of a put that began when this version was done."""
        version = task.max_attempts
        if not done <= version <= self.begun or (task.ttl, task.ttr) != (1000 * version, 1000 * version):
            self.wrong.append((done, version, self.begun))


def race(versions: Versions, tube: tubes.Tube, work: Any, threads: int) -> None:
    """Let threads work while the tube is altered again and again."""
    stop = threading.Event()
    with ThreadPoolExecutor(threads) as pool:
        working = [pool.submit(work, number, stop) for number in range(threads)]
        try:
            for _ in range(ALTERS):
                time.sleep(SECONDS / ALTERS)
                versions.alter(tube)
        finally:
            stop.set()
        for each in working:
            each.result()
    assert versions.wrong == []


@pytest.mark.sample(2)
@pytest.mark.parametrize("shares", [True, False], ids=["one session", "sessions"])
def test_put_after_alter_has_the_new_options(place: str, shares: bool) -> None:
    versions = Versions()
    with tubes.connect(place) as queue, tubes.connect(place) as other:
        tube = queue.create_tube("t", "fifottl", **versions.options(1))

        def work(number: int, stop: threading.Event) -> None:
            own = queue if shares else other.session()
            here = own.tube("t")
            for turn in itertools.count():
                if stop.is_set():
                    break
                done = versions.done
                if turn % 3 == 0:
                    for task in here.put_many([number, turn]):
                        versions.check(task, done)
                elif turn % 3 == 1:
                    versions.check(here.put(number, key=str(number), on_duplicate="replace"), done)
                else:
                    versions.check(here.put(number), done)
                here.ack_many(here.take_many(2, timeout=0))  # Other threads may have replaced some tasks.
            if not shares:
                own.close()

        race(versions, tube, work, 8)
        if place.startswith("memory"):
            check_engine(port_of(tube).shared.engine)
        statistics = tube.statistics()
        assert statistics.tasks["total"] == statistics.calls["put"] - statistics.tasks["done"]
        assert queue.admin.check("t") == []


def test_puts_of_event_loops_have_the_new_options(place: str) -> None:
    """Puts of one turn of the loop are sent together on a server."""
    versions = Versions()
    with tubes.connect(place) as queue:
        tube = queue.create_tube("t", "fifottl", **versions.options(1))

        async def main(stop: threading.Event) -> None:
            async with tubes.aio.connect(place) as mine:
                here = await mine.tube("t")

                async def one() -> None:
                    while not stop.is_set():
                        done = versions.done
                        task = await here.put("x")
                        versions.check(task, done)
                        for each in await here.take_many(1, timeout=0):
                            await each.ack()
                        await asyncio.sleep(0)

                await asyncio.gather(*(one() for _ in range(8)))

        race(versions, tube, lambda _, stop: asyncio.run(main(stop)), 2)
        statistics = tube.statistics()
        assert statistics.tasks["total"] == statistics.calls["put"] - statistics.tasks["done"]


def test_concurrent_alters_are_all_applied(place: str) -> None:
    names = ("max_attempts", "capacity", "pri")
    with tubes.connect(place) as queue:
        queue.create_tube("t", "fifottl")

        def alter(name: str) -> None:
            with queue.session() as own:
                for value in range(1, 21):
                    own.tube("t").alter(**{name: value})  # type: ignore[arg-type]

        with ThreadPoolExecutor() as pool:
            list(pool.map(alter, names))
        assert queue.tube("t").options == dict.fromkeys(names, 20)


def test_altered_max_in_flight_limits_busy_lanes(place: str) -> None:
    """No lane ever has more taken tasks than the largest limit set meanwhile."""
    taken: dict[str, int] = {}
    lock = threading.Lock()
    limit = most = 1
    wrong: list[tuple[int, int]] = []
    with tubes.connect(place) as queue:
        tube = queue.create_tube("t", "utube")
        for number in range(400):
            tube.put(number, utube=str(number % 5))
        stop = threading.Event()

        def work() -> None:
            with queue.session() as own:
                here = own.tube("t")
                while not stop.is_set() and (task := here.take(1)) is not None:
                    lane = str(task.utube)
                    with lock:
                        taken[lane] = taken.get(lane, 0) + 1
                        if taken[lane] > most:
                            wrong.append((taken[lane], most))
                    time.sleep(0.001)
                    with lock:
                        taken[lane] -= 1
                    task.ack()

        with ThreadPoolExecutor(8) as pool:
            working = [pool.submit(work) for _ in range(8)]
            for limit in (3, 1, 2, 4, 1):
                with lock:
                    most = max(most, limit)
                tube.alter(max_in_flight=limit)
                time.sleep(0.1)
            tube.alter(max_in_flight=8)
            most = 8
            for each in working:
                each.result()
            stop.set()
        assert wrong == []
        assert tube.statistics().tasks["total"] == 0
        assert queue.admin.check("t") == []


def updates() -> Iterator[dict[str, Any]]:
    yield {"ttr": 1.0}
    yield {"ttr": 2.0, "capacity": 5}


def test_concurrent_if_exists_updates_both_succeed(place: str) -> None:
    with tubes.connect(place) as queue:

        def start(options: dict[str, Any]) -> None:
            with queue.session() as own:
                for _ in range(10):
                    own.create_tube("t", "fifottl", if_exists="update", **options).put("x", timeout=0)

        with ThreadPoolExecutor() as pool:
            list(pool.map(start, updates()))
        assert queue.tube("t").options in list(updates())


def test_if_exists_update_creates_a_tube_dropped_meanwhile(place: str) -> None:
    with tubes.connect(place) as queue:
        stop = threading.Event()

        def drop() -> None:
            with queue.session() as own:
                while not stop.is_set():
                    own.create_tube("t", "fifottl", if_exists="keep").drop(force=True)

        with ThreadPoolExecutor() as pool:
            dropping = pool.submit(drop)
            try:
                for number in range(1, 30):
                    tube = queue.create_tube("t", "fifottl", if_exists="update", capacity=number)
                    assert tube.options in ({"capacity": number}, {})
            finally:
                stop.set()
            dropping.result()
