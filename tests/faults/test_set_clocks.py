"""Clocks that are set forward or back while tubes are in use: a manual clock on both backends, and a server's clock."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.servers import free_port
from tests.support.stepping import SteppingClock
from tests.support.taking import take_task
from tubes import Driver
from tubes.drivers.options import LONGEST, MAX_SECONDS, SECOND
from tubes.redis.library.functions import FUNCTIONS
from tubes.redis.transport.script_call import ScriptCall
from tubes.testing import LocalServer

if TYPE_CHECKING:
    from tubes import Queue
    from tubes.drivers import Ranked

HOUR = 3600
#: The start of the clock, more than it is ever set back.
START = 100_000


def by_age(task: Ranked) -> float:
    return task.created


TIMED: dict[str, str | Driver] = {
    "fifottl": "fifottl",
    "limfifottl": "limfifottl",
    "utubettl": "utubettl",
    "spared": Driver("spared", options={"ttl", "ttr", "delay"}, ttl_spares_taken=True, order="-id"),
    "by age": Driver("by_age", options={"ttl", "ttr", "delay"}, rank=by_age, rank_lua="created"),
}


@pytest.fixture
def stepping() -> SteppingClock:
    return SteppingClock(START)


@pytest.fixture(params=["memory", "server"])
def stepped_queue(request: pytest.FixtureRequest, url: str, stepping: SteppingClock) -> Iterator[Queue]:
    """Open a queue with a clock that the test sets."""
    with tubes.connect("memory://" if request.param == "memory" else url, clock=stepping) as queue:
        yield queue


# -- a clock that is set back ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", TIMED)
def test_new_ttl_counts_from_the_put_time_after_the_clock_is_set_back(
    stepped_queue: Queue, stepping: SteppingClock, driver: str
) -> None:
    tube = stepped_queue.create_tube("load", TIMED[driver])
    updated, kicked, kicked_too = (tube.put(number, ttl=HOUR) for number in range(3))
    tube.bury(kicked)
    tube.bury(kicked_too)
    stepping.set_back(HOUR)
    assert tube.admin.oldest_ready_age() == 0
    found = [tube.update(updated, ttl=5), tube.kick(task=kicked, ttl=5)]
    assert tube.select("buried", limit=1).kick(ttl=5) == 1
    found.append(tube.peek(kicked_too))
    assert [(task.ttl, task.due, task.expires) for task in found] == [(5, START + 5, START + 5)] * 3
    stepping.advance(HOUR + 4)
    assert tube.statistics().tasks["ready"] == 3
    stepping.advance(1)
    assert tube.statistics().tasks["total"] == 0


@pytest.mark.parametrize("driver", TIMED)
def test_new_delays_and_ttrs_are_correct_after_the_clock_is_set_back(
    stepped_queue: Queue, stepping: SteppingClock, driver: str
) -> None:
    tube = stepped_queue.create_tube("load", TIMED[driver])
    lane: dict[str, Any] = {} if tube.driver.lane is None else {tube.driver.lane: "another"}
    tube.put("old", delay=60)
    tube.put("old too")
    stepping.set_back(HOUR)
    old = take_task(tube)
    assert old.data == "old too"
    old.release(delay=2)
    put = tube.put("new", ttr=3, delay=1, **lane)
    assert put is not None
    assert put.due == START - HOUR + 1
    stepping.advance(1)
    new = take_task(tube)
    assert new.data == "new"
    tube.touch_many([new], 5)
    stepping.advance(4)
    assert [task.data for task in tube.take_many(5, timeout=0)] == ["old too"]
    stepping.advance(1)
    assert [task.data for task in tube.take_many(5, timeout=0)] == ["new"]
    # Earlier deadlines are delayed by as much as the clock was set back.
    stepping.advance(HOUR + 60 - 7)
    assert tube.peek(0).state.letter == "~"
    stepping.advance(1)
    assert tube.peek(0).state.letter == "r"


def test_pause_ends_later_when_the_clock_is_set_back(stepped_queue: Queue, stepping: SteppingClock) -> None:
    tube = stepped_queue.create_tube("load")
    tube.put("job")
    tube.pause(60)
    stepping.set_back(HOUR)
    assert tube.take(timeout=0) is None
    stepping.advance(HOUR + 60)
    assert tube.take(timeout=0) is not None


def test_lane_cooldown_ignores_starts_in_the_future(stepped_queue: Queue, stepping: SteppingClock) -> None:
    tube = stepped_queue.create_tube("load", "utube", interval=10, max_in_flight=2)
    for number in range(3):
        tube.put(number, utube="host")
    take_task(tube)
    stepping.set_back(HOUR)
    assert tube.take(timeout=0) is None
    # Any call that uses the lane detects this.
    tube.lane("host").configure(max_in_flight=3)
    assert [lane.next_start for lane in tube.lanes()] == [START - HOUR + 10]
    stepping.advance(10)
    assert tube.take(timeout=0) is not None


def test_ended_block_of_a_lane_does_not_return_when_the_clock_is_set_back(
    stepped_queue: Queue, stepping: SteppingClock
) -> None:
    tube = stepped_queue.create_tube("load", "utube", max_in_flight=2)
    for number in range(2):
        tube.put(number, utube="host")
    tube.lane("host").block(60)
    stepping.advance(60)
    assert tube.take(timeout=0) is not None
    stepping.set_back(HOUR)
    # This call computes the next start of the lane.
    tube.lane("host").configure(max_in_flight=3)
    assert tube.lane("host").info().blocked_until is None
    assert tube.take(timeout=0) is not None


# -- deadlines at the maximum ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", TIMED)
def test_touch_never_extends_beyond_the_longest_span(
    stepped_queue: Queue, stepping: SteppingClock, driver: str
) -> None:
    tube = stepped_queue.create_tube("load", TIMED[driver])
    lane: dict[str, Any] = {} if tube.driver.lane is None else {tube.driver.lane: "another"}
    tube.put("mortal", ttl=MAX_SECONDS, ttr=MAX_SECONDS)
    tube.put("immortal", ttr=MAX_SECONDS, **lane)
    longest = LONGEST / SECOND
    taken = [tube.take(timeout=0) for _ in range(2)]
    for task in taken:
        assert task is not None
        for _ in range(30):
            stepping.advance(1)
            task.touch(MAX_SECONDS)
        touched = tube.peek(task)
        assert touched.due == stepping.now() + longest
        assert touched.ttr == longest
        assert touched.ttl in (None, stepping.now() - START + longest)
        # The task is as usable as any other one.
        tube.touch_many([task], MAX_SECONDS)
        task.release(delay=MAX_SECONDS)
        released = tube.peek(task)
        assert released.due == stepping.now() + MAX_SECONDS
        assert released.expires in (None, stepping.now() + longest)
        assert tube.delete(task).id == task.id


# -- a server's clock that was set back: its records lie in the future -------------------------------------------------


def move_ahead(client: Any, key: str, seconds: float) -> None:
    """Move all records of sessions, listeners and waiters into the future, as if the clock had been set back."""
    for token, ends in client.zrange(f"{key}:leases", 0, -1, withscores=True):
        client.zadd(f"{key}:leases", {token: ends + seconds * SECOND})
    for field in ("soonest", "listening"):
        if (until := client.hget(key, field)) is not None:
            client.hset(key, field, int(float(until)) + int(seconds * SECOND))
    for process, about in client.hgetall(f"{key}:waiting").items():
        words = about.split()
        client.hset(f"{key}:waiting", process, b" ".join([*words[:-1], b"%d" % (int(words[-1]) + seconds * SECOND)]))


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ["beat", "open"])
def test_tasks_of_a_dead_process_come_back_after_the_clock_is_set_back(valkey: LocalServer, url: str, how: str) -> None:
    with tubes.connect(url, session_ttl=1.2) as lost, valkey.client() as client:
        tube = lost.create_tube("load")
        tube.put("job")
        assert tube.take(timeout=0) is not None
        port: Any = tube._port
        key = port.shared.key
        if how == "beat":
            with tubes.connect(url, session_ttl=1.3) as other:
                others = other.tube("load")
                lost.admin.detach()
                move_ahead(client, key, HOUR)
                task = others.take(timeout=60)
        else:
            lost.admin.detach()
            move_ahead(client, key, HOUR)
            with tubes.connect(url, session_ttl=1.3) as other:
                task = other.tube("load").take(timeout=60)
        assert task is not None
        assert task.attempts == 2


def test_dead_waiters_from_before_the_clock_was_set_back_do_not_count(valkey: LocalServer, url: str) -> None:
    with tubes.connect(url) as queue, valkey.client() as client:
        tube = queue.create_tube("load")
        port: Any = tube._port
        now = int(client.time()[0])
        client.hset(f"{port.shared.key}:waiting", mapping={"living": f"2 {(now + 9) * SECOND}"})
        assert tube.statistics().waiting == 2
        with pytest.raises(tubes.TubeBusy):
            tube.drop()
        client.hset(f"{port.shared.key}:waiting", mapping={"living": f"2 {(now + HOUR) * SECOND}"})
        assert tube.statistics().waiting == 0
        tube.drop()


def test_a_shared_session_does_not_outlive_its_lease(valkey: LocalServer, url: str) -> None:
    with tubes.connect(url, session_ttl=1.2) as queue, valkey.client() as client:
        queue.create_tube("load")
        uuid = queue.admin.identify()
        (key,) = [key for key in client.keys(f"*{uuid.replace('-', '')}*") if client.type(key) == b"hash"]
        client.hincrby(key, "ends", HOUR * SECOND)

        def seconds_left() -> float:
            seconds, micros = client.time()
            return float(client.hget(key, "ends") or 0) / SECOND - float(seconds) - float(micros) / SECOND

        assert eventually(lambda: seconds_left() < 5)


def test_write_sealed_before_the_clock_was_set_back_is_found(valkey: LocalServer, url: str) -> None:
    with tubes.connect(url) as queue, valkey.client() as client:
        port: Any = queue.create_tube("load")._port
        key, now = port.shared.key, int(client.time()[0])
        for number, ago in enumerate((10, -HOUR)):
            client.zadd(f"{key}:sealed", {f"writer {number}": now - ago})
            client.hset(f"{key}:written:writer {number}", mapping={"number": 1, "chunks": "none"})
        found = port.connection.store.run_now(_ask(key))
        assert found == [b"writer 1", b"1", b"none"]


def _ask(key: str) -> Any:
    return (yield ScriptCall(FUNCTIONS["write_others"], key, (60,)))


# -- a server's clock that is set, while it runs -----------------------------------------------------------------------

LIBRARIES = [
    path
    for folder in ("/usr/lib", "/usr/local/lib")
    for path in sorted(Path(folder).glob("**/faketime/libfaketimeMT.so.1"))
]


class SetServer:
    """A separate server whose clock can be set."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._file = folder / "clock"
        self.set(0)
        with patch.context() as given:
            # Only the server gets these variables.
            given.setenv("LD_PRELOAD", str(LIBRARIES[0]))
            given.setenv("FAKETIME_TIMESTAMP_FILE", str(self._file))
            given.setenv("FAKETIME_NO_CACHE", "1")
            given.setenv("DONT_FAKE_MONOTONIC", "1")
            self.server = LocalServer()

    def set(self, seconds: int) -> None:
        """Set the clock `seconds` ahead of the real time."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}")
        os.replace(new, self._file)

    def calls(self) -> int:
        """Return the number of function calls and waits of the server."""
        with self.server.client() as client:
            stats = client.info("commandstats")
            return sum(stats[name]["calls"] for name in ("cmdstat_fcall", "cmdstat_bzpopmin") if name in stats)


@pytest.fixture
def faked_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SetServer]:
    if not LIBRARIES:
        pytest.skip("libfaketime is not installed")
    made = SetServer(tmp_path, monkeypatch)
    with made.server:
        yield made


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
def test_waiter_gets_its_task_when_the_servers_clock_is_set(faked_server: SetServer, step: int) -> None:
    """It also sends hardly more requests than before."""
    with (
        tubes.connect(faked_server.server.url) as queue,
        tubes.connect(faked_server.server.url, session_ttl=31.0) as other,
    ):
        tube, others = queue.create_tube("load", "fifottl"), other.tube("load")
        with ThreadPoolExecutor() as pool:
            future = pool.submit(tube.take, timeout=60)
            assert eventually(lambda: others.statistics().waiting == 1)
            faked_server.set(step)
            before = faked_server.calls()
            others.put("job", delay=3)
            task = future.result()
            assert faked_server.calls() - before < 40
        assert task is not None
        assert task.data == "job"


def test_blocking_wait_restarts_when_the_servers_clock_is_set_back(faked_server: SetServer) -> None:
    """Each wait ends after five seconds at most."""
    with tubes.connect(faked_server.server.url, session_ttl=1.5) as queue, faked_server.server.client() as client:
        tube = queue.create_tube("load")

        def blocking_calls() -> int:
            return int(client.info("commandstats").get("cmdstat_bzpopmin", {"calls": 0})["calls"])

        with ThreadPoolExecutor() as pool:
            future = pool.submit(tube.take, timeout=60)
            assert eventually(lambda: blocking_calls() == 1)
            faked_server.set(-HOUR)
            assert eventually(lambda: blocking_calls() > 1)
            tube.put("job")
            assert future.result() is not None


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
def test_event_loop_continues_when_the_clock_of_a_server_is_set(faked_server: SetServer, step: int) -> None:
    async def main() -> tuple[int, int]:
        async with tubes.aio.connect(faked_server.server.url) as queue:
            tube = await queue.create_tube("load", "utubettl")
            future = asyncio.create_task(tube.take(timeout=60))
            await asyncio.sleep(0.2)
            faked_server.set(step)
            before = await asyncio.to_thread(faked_server.calls)
            await tube.put("job", delay=3)
            task = await future
            assert task is not None
            await task.ack()
            assert await tube.take(timeout=0.2) is None
            return before, await asyncio.to_thread(faked_server.calls)

    before, after = asyncio.run(main())
    assert after - before < 40


def test_tasks_become_due_at_once_when_the_clock_is_set_ahead(faked_server: SetServer) -> None:
    with tubes.connect(faked_server.server.url, session_ttl=1.5) as queue:
        tube = queue.create_tube("load", "utubettl", interval=600)
        tube.put("delayed", delay=600)
        tube.put("first", utube="a")
        tube.put("second", utube="a")
        assert tube.put("mortal", ttl=600).expires is not None
        task = take_task(tube)
        tube.pause(600)
        faked_server.set(HOUR)
        found = [tube.take(timeout=30) for _ in range(2)]
        assert [task.data for task in found if task is not None] == ["delayed", "first"]
        assert tube.statistics().tasks["total"] == 3
        # The lease of the session is over too.
        with pytest.raises(tubes.TaskNotTaken):
            task.ack()


def test_lane_cooldowns_do_not_grow_when_the_clock_is_set_back(faked_server: SetServer) -> None:
    with tubes.connect(faked_server.server.url, session_ttl=1.5) as queue:
        tube = queue.create_tube("load", "utube", interval=2)
        for number in range(600):
            tube.put(number, utube=str(number // 2))
        assert len(tube.take_many(600, timeout=0)) == 300
        tube.admin.release_all()
        faked_server.set(-HOUR)
        for _ in range(3):
            assert tube.take(timeout=30) is not None


def test_waits_for_a_token_do_not_grow_when_the_clock_is_set_back(faked_server: SetServer) -> None:
    with tubes.connect(faked_server.server.url, session_ttl=1.5) as queue, ThreadPoolExecutor() as pool:
        tube = queue.create_tube("load", rate=1)
        for number in range(3):
            tube.put(number)
        assert tube.take(timeout=30) is not None
        future = pool.submit(tube.take, timeout=60)
        assert eventually(lambda: tube.statistics().waiting == 1)
        faked_server.set(-HOUR)
        assert future.result() is not None
        faked_server.set(-2 * HOUR)
        assert tube.take(timeout=30) is not None


def test_tasks_of_a_promoted_replica_survive_a_clock_that_is_behind(faked_server: SetServer) -> None:
    faked_server.set(-HOUR)
    port = free_port()
    with (
        LocalServer(port=port) as lost,
        faked_server.server.client() as replica,
        tubes.connect(lost.url, session_ttl=1.2) as queue,
    ):
        tube = queue.create_tube("load", "fifottl")
        for number in range(3):
            tube.put(number, ttl=HOUR)
        assert tube.take(timeout=0) is not None
        replica.replicaof("127.0.0.1", str(port))
        assert eventually(lambda: replica.info("replication").get("master_link_status") == "up")
        assert eventually(lambda: replica.zcard("tubes:{load}:taken") == 1)
        queue.admin.detach()
        replica.replicaof("NO", "ONE")
        with tubes.connect(faked_server.server.url, session_ttl=1.2) as others:
            tube = others.tube("load")
            assert tube.admin.oldest_ready_age() == 0
            assert tube.update(2, ttl=60).ttl == 60
            # One task returns from the dead session.
            tasks = [task.ack() for _ in range(3) if (task := tube.take(timeout=60)) is not None]
            assert sorted((task.id, task.attempts) for task in tasks) == [(0, 2), (1, 1), (2, 1)]
