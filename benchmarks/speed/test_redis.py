"""Calls on a server, compared with a bare PING, a bare BLPOP, and the same calls with few tasks.

The client and the server share one core if the system allows it: their cores affect a round trip more than anything
else. PING goes over a raw socket, with a prepared request and an unparsed reply.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median, quantiles
from typing import Any

import pytest

import tubes
import tubes.aio
from benchmarks.speed.conftest import FULL, Scale
from benchmarks.speed.table import Comparison, Results, Side
from tubes.testing import LocalServer, server_program

SECTION = "redis"
DATA = b"x" * 100
#: The ttl and ttr of tasks in seconds; neither ends during a measurement.
TTL, TTR = 3600, 600
#: Limits of server microseconds per single call, by driver and method, and the number of lanes.
MICROSECONDS = {"fifo": {"put": 11, "take": 13, "ack": 10}, "utubettl": {"put": 14, "take": 15, "ack": 14}}
MANY_LANES, MANY_LANES_LIMIT = 300_000, 27
#: Limits for batches of 1,000 tasks in separate lanes: server microseconds per task, and the client's whole time.
BATCH = 1000
BATCH_MICROSECONDS = {"put_many": 5, "take_many": 4, "ack_many": 2.5}
BATCH_WALL = 10
#: Limits of bytes per waiting task.
BYTES = {("fifo", "redis"): 300, ("fifo", "valkey"): 255, ("utubettl", "redis"): 420, ("utubettl", "valkey"): 340}
UTUBES = 100
LANES = 1000


def options(driver: str, number: int) -> dict[str, Any]:
    return {"ttl": TTL, "utube": f"host-{number % UTUBES}"} if driver == "utubettl" else {}


class Stage:
    """A server on the same core, a session and a raw socket."""

    def __init__(self, program: str) -> None:
        self.server = LocalServer(program)
        self.cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
        if self.cores:
            core = {max(self.cores)}
            os.sched_setaffinity(0, core)
            os.sched_setaffinity(self.server.pid, core)
        self.client: Any = self.server.client()
        self.queue = tubes.connect(self.server.url, codec="raw")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(self.server.socket))

    def close(self) -> None:
        self.queue.close()
        self.socket.close()
        self.client.close()
        self.server.close()
        if self.cores:
            os.sched_setaffinity(0, self.cores)

    def ping(self, count: int) -> None:
        for _ in range(count):
            self.socket.sendall(b"*1\r\n$4\r\nPING\r\n")
            self.socket.recv(64)

    def server_seconds(self, act: Callable[[], object], count: int) -> float:
        """Return the server's seconds in scripts, divided by `count`."""
        self.client.config_resetstat()
        act()
        scripts: dict[str, float] = self.client.info("commandstats")["cmdstat_evalsha"]
        return scripts["usec"] / 1e6 / count


@pytest.fixture(scope="module", params=["valkey", "redis"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    if server_program(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    stage = Stage(request.param)
    yield stage
    stage.close()


def name_of(stage: Stage) -> str:
    return "valkey" if "valkey" in str(stage.server.program) else "redis"


def seconds(act: Callable[[int], object], count: int) -> float:
    """Return the seconds per operation."""
    start = time.perf_counter()
    act(count)
    return (time.perf_counter() - start) / count


def test_round_trips(stage: Stage, scale: Scale, results: Results) -> None:
    tube = stage.queue.create_tube("trips")

    def put(count: int) -> None:
        for _ in range(count):
            tube.put(DATA)

    def take_and_ack(count: int) -> None:
        for _ in range(count):
            task = tube.take(timeout=0)
            assert task is not None
            tube.ack(task)

    def iterate(count: int) -> None:
        for task in tube:
            count -= 1
            if not count:
                task.ack()
                return

    runner = asyncio.Runner()
    awaited = tubes.aio.connect(stage.server.url, codec="raw")
    there = runner.run(awaited.tube("trips"))

    async def put_from_many(count: int) -> None:
        async def put_some() -> None:
            for _ in range(count // 50):
                await there.put(DATA)

        await asyncio.gather(*(put_some() for _ in range(50)))

    def put_with_asyncio(count: int) -> None:
        runner.run(put_from_many(count))

    measured = [
        ("put", put, 1 / 0.45),
        ("take + ack", take_and_ack, 1 / 0.22),
        ("a loop over the tube, per task", iterate, 1 / 0.42),
        ("put by asyncio, 50 at a time", put_with_asyncio, 1 / 1.5),
    ]
    count = scale.operations
    put(3 * count * scale.passes)
    put_with_asyncio(count)
    for _ in range(scale.passes):
        for what, act, goal in measured:
            comparison = Comparison(SECTION, f"{name_of(stage)}: {what}", "PING", goal=round(goal, 2))
            results.compare(comparison, "yardstick", seconds(stage.ping, count))
            results.compare(comparison, "ours", seconds(act, count))
    runner.run(awaited.close())
    runner.close()
    tube.drop(force=True)


def test_batches(stage: Stage, scale: Scale, results: Results) -> None:
    """Measure tasks per second in batches of 100."""
    tube = stage.queue.create_tube("batches")
    batch = [DATA] * 100

    def put(count: int) -> None:
        for _ in range(count // 100):
            tube.put_many(batch)

    def take_and_ack(count: int) -> None:
        for _ in range(count // 100):
            tasks = tube.take_many(100, timeout=0)
            assert len(tasks) == 100
            tube.ack_many(tasks)

    count = 10 * scale.operations
    put(count)
    for _ in range(scale.passes):
        for what, act, goal in (("put_many", put, 1 / 7), ("take_many + ack_many", take_and_ack, 1 / 3)):
            name = f"{name_of(stage)}: {what} of 100, per task"
            comparison = Comparison(SECTION, name, "PING", goal=round(goal, 3))
            results.compare(comparison, "yardstick", seconds(stage.ping, scale.operations))
            results.compare(comparison, "ours", seconds(act, count))
    tube.drop(force=True)


@pytest.mark.parametrize("driver", MICROSECONDS)
def test_server_time(stage: Stage, scale: Scale, results: Results, driver: str) -> None:
    """Make one call at a time. Each task of utubettl has a ttr and a separate lane among a thousand."""
    given: tubes.TubeOptions = {} if driver == "fifo" else {"ttr": TTR}
    tube = stage.queue.create_tube("times", driver, **given)
    where = f"{name_of(stage)}: server time, {driver}{'' if driver == 'fifo' else f' with {LANES:,} utubes'}"
    calls(stage, tube, LANES, f"{where}:", MICROSECONDS[driver], scale, results)
    tube.drop()


def test_server_time_of_many_lanes(stage: Stage, scale: Scale, results: Results) -> None:
    tube = stage.queue.create_tube("lanes", "utubettl", ttr=TTR)
    lanes = MANY_LANES * scale.sizes[-1] // FULL.sizes[-1]
    for first in range(0, lanes, BATCH):
        tube.put_many(tubes.Item(DATA, utube=f"host-{number}") for number in range(first, first + BATCH))
    where = f"{name_of(stage)}: server time, utubettl with {lanes:,} utubes:"
    calls(stage, tube, lanes, where, dict.fromkeys(MICROSECONDS["utubettl"], MANY_LANES_LIMIT), scale, results)
    tube.drop()


def calls(
    stage: Stage, tube: tubes.Tube, lanes: int, where: str, limits: dict[str, int], scale: Scale, results: Results
) -> None:
    """Record the server's time per call, one call at a time."""
    count = min(scale.operations, lanes)
    tasks: list[tubes.Task] = []
    step = lanes // count

    def put() -> None:
        for number in range(0, count * step, step):
            given: tubes.PutOptions = {"utube": f"host-{number}"} if tube.driver.lane else {}
            tube.put(DATA, **given)

    def take() -> None:
        for _ in range(count):
            task = tube.take(timeout=0)
            assert task is not None
            tasks.append(task)

    def ack() -> None:
        for task in tasks:
            tube.ack(task)
        tasks.clear()

    for _ in range(scale.passes):
        for what, act in (("put", put), ("take", take), ("ack", ack)):
            comparison = Comparison(SECTION, f"{where} {what}", "limit", goal=1)
            results.compare(comparison, "yardstick", limits[what] / 1e6)
            results.compare(comparison, "ours", stage.server_seconds(act, count))


def test_server_time_of_batches(stage: Stage, scale: Scale, results: Results) -> None:
    """Measure a thousand tasks, each in a separate lane."""
    tube = stage.queue.create_tube("batches", "utubettl", ttr=TTR)
    items = [tubes.Item(DATA, utube=f"host-{number}") for number in range(BATCH)]
    tasks: list[tubes.Task] = []
    acts: dict[str, Callable[[], object]] = {
        "put_many": lambda: tube.put_many(items),
        "take_many": lambda: tasks.extend(tube.take_many(BATCH, timeout=0)),
        "ack_many": lambda: tube.ack_many(tasks),
    }
    for _ in range(scale.passes * scale.rounds):
        for what, act in acts.items():
            name = f"{name_of(stage)}: server time, {what} of {BATCH:,}, a utube each, per task"
            comparison = Comparison(SECTION, name, "limit", goal=1)
            results.compare(comparison, "yardstick", BATCH_MICROSECONDS[what] / 1e6)
            results.compare(comparison, "ours", stage.server_seconds(act, BATCH))
        assert len(tasks) == BATCH
        tasks.clear()
        wall = Comparison(SECTION, f"{name_of(stage)}: put_many of {BATCH:,}, a utube each, per task", "limit", goal=1)
        results.compare(wall, "yardstick", BATCH_WALL / 1e6)
        results.compare(wall, "ours", seconds(lambda _: acts["put_many"](), 1) / BATCH)
        tube.truncate()
    tube.drop()


@pytest.mark.parametrize("driver", MICROSECONDS)
def test_bytes(stage: Stage, scale: Scale, results: Results, driver: str) -> None:
    tube = stage.queue.create_tube("bytes", driver)
    before = stage.client.info("memory")["used_memory"]
    for number in range(scale.memory_tasks):
        tube.put(DATA, **options(driver, number))
    after = stage.client.info("memory")["used_memory"]
    tube.drop()
    server = name_of(stage)
    what = f"{server}: a waiting task, {driver}"
    comparison = Comparison(SECTION, what, "limit", goal=1, unit="bytes")
    results.compare(comparison, "ours", (after - before) / scale.memory_tasks)
    results.compare(comparison, "yardstick", BYTES[driver, server])


@pytest.mark.parametrize("driver", MICROSECONDS)
def test_size(stage: Stage, scale: Scale, results: Results, driver: str) -> None:
    """Measure the server's time for put, take and ack with many waiting tasks; of 10 utubes, 9 have a taken task."""
    few, many = scale.sizes[0], scale.sizes[-1]
    sizes: dict[int, tubes.Tube] = {}
    for size in (few, many):
        tube = sizes[size] = stage.queue.create_tube(f"size-{size}", driver)

        async def fill(name: str = tube.name, size: int = size) -> None:
            async with tubes.aio.connect(stage.server.url, codec="raw") as queue:
                there = await queue.tube(name)

                async def put_some(first: int) -> None:
                    for number in range(first, size, 100):
                        given: tubes.PutOptions = {}
                        if driver != "fifo":
                            given = {"ttl": TTL, "utube": str(number % 10)}
                        await there.put(DATA, **given)

                await asyncio.gather(*(put_some(first) for first in range(100)))

        asyncio.run(fill())
        for number in range(0 if driver == "fifo" else 9):
            task = tube.take(timeout=0)
            assert task is not None
            assert task.utube == str(number)
    count = scale.operations // 2
    options: tubes.PutOptions = {} if driver == "fifo" else {"ttl": TTL, "utube": "9"}

    def run_cycles(tube: tubes.Tube) -> None:
        for _ in range(count):
            tube.put(DATA, **options)
            task = tube.take(timeout=0)
            assert task is not None
            tube.ack(task)

    busy = "" if driver == "fifo" else ", 9 of 10 utubes busy"
    what = f"{name_of(stage)}: server time, {driver} with {many:,} waiting{busy}"
    comparison = Comparison(SECTION, what, f"{few:,} waiting", goal=1.5)
    for _ in range(scale.passes):
        for size, tube in sizes.items():
            spent = stage.server_seconds(lambda tube=tube: run_cycles(tube), 3 * count)  # type: ignore[misc]
            results.compare(comparison, "ours" if size == many else "yardstick", spent)
    for tube in sizes.values():
        tube.drop(force=True)


SLEEPER = """
import sys, time
url, what, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("awake", flush=True)
if what == "tube":
    import tubes
    with tubes.connect(url, codec="raw") as queue:
        tube = queue.tube("wake")
        for _ in range(count):
            task = tube.take(30)
            print(time.monotonic_ns() - int(task.data), flush=True)
            task.ack()
else:
    from tubes.redis.transport.server import locate
    from tubes.redis.transport.wire import Wire, pack
    wire = Wire(locate(url)[0], "")
    for _ in range(count):
        _, sent = wire.call(pack("BLPOP", "wake", 30))
        print(time.monotonic_ns() - int(sent), flush=True)
"""


def test_wake_up(stage: Stage, scale: Scale, results: Results) -> None:
    """Compare a put to a blocked take in another process with an RPUSH to a blocked BLPOP."""
    if stage.cores:
        os.sched_setaffinity(0, stage.cores)
        os.sched_setaffinity(stage.server.pid, stage.cores)
    tube = stage.queue.create_tube("wake")
    count = 200

    def push() -> None:
        stage.client.rpush("wake", time.monotonic_ns())

    def put() -> None:
        tube.put(b"%d" % time.monotonic_ns())

    for _ in range(scale.passes):
        for what, send in (("list", push), ("tube", put)):
            command = [sys.executable, "-c", SLEEPER, stage.server.url, what, str(count)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sleeper:
                assert sleeper.stdout is not None
                sleeper.stdout.readline()
                time.sleep(0.5)
                times: list[float] = []
                for _ in range(count):
                    send()
                    times.append(int(sleeper.stdout.readline()) / 1e9)
                    time.sleep(0.002)
            side: Side = "ours" if what == "tube" else "yardstick"
            name = f"{name_of(stage)}: put to blocked take in another process"
            results.compare(Comparison(SECTION, f"{name}, p50", "BLPOP", goal=1.5), side, median(times))
            results.compare(Comparison(SECTION, f"{name}, p99", "BLPOP", goal=2), side, quantiles(times, n=100)[98])
    tube.drop(force=True)
