"""Behaviour that depends on the server's own time: prepared requests, and the loop over a tube."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.contract.faces import Face
from tests.support.internals import port_of
from tests.support.taking import take_task
from tubes import TaskNotTaken, TubeNotFound
from tubes.drivers.options import SECOND
from tubes.redis.waiting import emptiness
from tubes.testing import LocalServer

PUTS: dict[str, list[dict[str, Any]]] = {
    "fifo": [{}, {}],
    "fifottl": [{}, {"ttl": 900}, {"ttr": 60, "pri": 7}, {"delay": 900}, {"ttl": 900, "ttr": 60, "delay": 0, "pri": 1}],
    "limfifottl": [{}, {"pri": 2}],
    "utube": [{}, {"utube": "ä" * 200}, {"utube": "b"}],
    "utubettl": [{"utube": "a"}, {"utube": "a", "pri": 1, "ttl": 900, "ttr": 60}, {"delay": 900, "utube": "c"}],
}


def strip_times(task: Any) -> tuple[Any, ...]:
    """Return a task without its times."""
    return task.id, task.state.letter, task.data, task.utube, task.pri, task.attempts, task.ttl, task.ttr


def story(queue: Any, driver: str) -> list[Any]:
    """Run a fixed sequence of calls on a tube of this driver and return the results."""
    tube = queue.create_tube("t", driver)
    results: list[Any] = [strip_times(tube.put([number], **options)) for number, options in enumerate(PUTS[driver])]
    while (task := tube.take(0)) is not None:
        results += [strip_times(task), strip_times(task.ack())]
        with pytest.raises(TaskNotTaken):
            task.ack()
        with pytest.raises(TaskNotTaken):
            tube.ack(task.id)
    results.append(tube.statistics().tasks)
    return results


@pytest.mark.parametrize("driver", PUTS)
def test_server_and_memory_return_the_same_to_threads(url: str, driver: str) -> None:
    with tubes.connect(url) as queue, tubes.connect(codec="json") as model:
        assert story(queue, driver) == story(model, driver)


@pytest.mark.parametrize("driver", PUTS)
def test_put_and_take_return_the_same_task_as_peek(url: str, driver: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", driver)
        for number, options in enumerate(PUTS[driver]):
            put = tube.put({"number": number}, **options)
            assert put is not None
            assert put == tube.peek(put)
        taken = take_task(tube)
        assert taken == tube.peek(taken)


def test_waiter_is_served_when_the_cooldown_of_a_lane_ends(url: str) -> None:
    """The waiter has a separate store like another process: it learns of the cooldown only from the server."""
    with tubes.connect(url) as queue, tubes.connect(url) as other:
        tube = queue.create_tube("t", "utube", interval=0.4)
        for number in range(3):
            tube.put(number, utube="a")
        starts: list[float] = []
        worker = other.tube("t")
        for number in range(3):
            task = take_task(worker, 9)
            assert task.data == number
            starts.append(time.monotonic())
            task.ack()
        assert all(0.39 < after - before < 2 for before, after in pairwise(starts))
        tube.put(3, utube="a")
        tube.lane("a").block(60)
        with ThreadPoolExecutor() as pool:
            waits = pool.submit(worker.take, 9)
            while tube.statistics().waiting == 0:
                time.sleep(0.01)
            tube.lane("a").configure(interval=0)
            tube.lane("a").block(0.3)
            assert waits.result() is not None


def test_a_tube_that_was_dropped_is_not_found(url: str) -> None:
    with tubes.connect(url) as queue, queue.session() as other:
        tube = queue.create_tube("t")
        tube.put(1)
        there = other.tube("t")
        tube.drop()
        for call in (lambda: there.put(2), lambda: there.take(0), lambda: there.take(1), there.statistics):
            with pytest.raises(TubeNotFound):
                call()
        queue.create_tube("t").put(3)
        with pytest.raises(TubeNotFound):
            there.take(0)


def test_loop_over_a_tube_takes_and_acks_all_tasks(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        for number in range(20):
            tube.put(number)
        seen: list[int] = []
        for task in tube:
            seen.append(task.data)
            if len(seen) == 20:
                task.ack()
                break
        assert seen == list(range(20))
        assert tube.statistics().calls["ack"] == 20


def test_loop_logs_a_lost_task_and_continues(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        tube.put(0)
        tube.put(1)
        seen: list[int] = []
        for task in tube:
            seen.append(task.data)
            if len(seen) == 1:
                tube.admin.release_all()
            if len(seen) == 3:
                task.bury()
                break
        assert seen == [0, 0, 1]
        assert "a task was finished too late" in caplog.text


def test_loop_waits_for_further_tasks(url: str) -> None:
    with tubes.connect(url) as queue, queue.session() as other:
        tube = queue.create_tube("t")
        seen: list[int] = []

        def work() -> None:
            for task in tube:
                seen.append(task.data)
                if task.data == 2:
                    task.ack()
                    return

        worker = threading.Thread(target=work)
        worker.start()
        for number in range(3):
            other.tube("t").put(number)
        worker.join(20)
        assert seen == [0, 1, 2]


def test_an_asyncio_loop_over_a_tube_takes_all(url: str) -> None:
    async def work() -> list[int]:
        seen: list[int] = []
        async with tubes.aio.connect(url) as queue:
            tube = await queue.create_tube("t")
            await asyncio.gather(*(tube.put(number) for number in range(50)))
            async for task in tube:
                seen.append(task.data)
                if len(seen) == 50:
                    await task.ack()
                    break
            counted = await tube.statistics()
            assert counted.calls["ack"] == 50
        return seen

    assert sorted(asyncio.run(work())) == list(range(50))


def test_waiters_receive_tasks_whose_delay_or_ttr_ends(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", "fifottl")
        tube.put("later", delay=0.05)
        assert take_task(tube, 10).data == "later"
        put = tube.put("runs out", ttr=0.05)
        first = tube.take(0)
        again = tube.take(10)
        assert first is not None
        assert again is not None
        assert (first.id, again.id, again.attempts) == (put.id, put.id, 2)


def test_shared_session_lives_as_long_as_its_longest_lease(url: str) -> None:
    with tubes.connect(url, session_ttl=60) as first, tubes.connect(url) as desk:
        tube = first.create_tube("t")
        tube.put("x")
        uuid = first.admin.identify()
        task = take_task(tube)
        first.admin.detach()
        with tubes.connect(url, session_ttl=1) as second:
            second.admin.identify(uuid)
            second.tube("t")
            second.admin.detach()
        time.sleep(1.3)
        assert desk.tube("t").statistics().tasks["taken"] == 1
        with tubes.connect(url, session_ttl=60) as third:
            third.admin.identify(uuid)
            third.tube("t").ack(task.id)


@pytest.mark.parametrize("end", ["ack", "bury", "truncate", "ttl", "drop"])
def test_join_is_woken_by_other_processes_and_by_time(
    url: str, face: Face, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A different lease creates a separate store, like that of another process."""
    monkeypatch.setattr(emptiness, "_LONGEST", 3600 * SECOND)  # The waiters must be notified, because they hardly poll.
    with face.connect(url) as queue, tubes.connect(url, session_ttl=31.0) as other:
        tube = queue.create_tube("t", "fifottl")
        its = other.tube("t")
        tasks = its.put_many([1, 2, 3], ttl=1 if end == "ttl" else 900)
        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(tube.join, 60) for _ in range(3)]
            assert eventually(lambda: len(port_of(tube).shared.emptiness.waiters()) == 3)
            time.sleep(0.2)  # They have subscribed.
            assert not any(call.done() for call in calls)
            if end == "ack":
                for task in its.take_many(3, 0):
                    task.ack()
            elif end == "bury":
                for task in tasks:
                    its.bury(task)
            elif end in ("truncate", "drop"):
                getattr(its, end)()
            if end == "drop":
                assert all(isinstance(call.exception(10), TubeNotFound) for call in calls)
            else:
                assert [call.result(10) for call in calls] == [True] * 3
        assert eventually(lambda: not port_of(tube).shared.subscription.listening)


def test_join_waits_for_puts_that_wait_for_room(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tubes.connect(url) as queue, ThreadPoolExecutor(2) as pool:
        tube = queue.create_tube("t", capacity=1)
        shared = port_of(tube).shared
        first = tube.put(1)
        may_be_served = threading.Event()
        serve = shared.serving._serve_put
        monkeypatch.setattr(shared.serving, "_serve_put", lambda full: (may_be_served.wait(60), serve(full))[1])
        put = pool.submit(tube.put, 2, timeout=60)
        assert eventually(lambda: len(shared.queue.put_waiters) == 1)
        call = pool.submit(tube.join, 60)
        assert eventually(lambda: shared.emptiness.waiting)
        tube.delete(first)
        time.sleep(0.5)  # The waiter has checked the tube, which is empty.
        assert not call.done()
        may_be_served.set()
        second = put.result(60)
        assert second is not None
        tube.delete(second)
        assert call.result(60)


def test_join_survives_a_lost_event(url: str, valkey: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emptiness, "_LONGEST", 300_000)
    with tubes.connect(url) as queue, tubes.connect(url, session_ttl=31.0) as other, ThreadPoolExecutor(1) as pool:
        tube = queue.create_tube("t")
        task = tube.put(1)
        call = pool.submit(tube.join, 60)
        shared = port_of(tube).shared
        assert eventually(lambda: shared.subscription._stop is not None)
        monkeypatch.setattr(shared.subscription, "_handle", lambda message: None)
        other.tube("t").delete(task.id)
        assert call.result(10)


class SkewedClock(tubes.SystemClock):
    """A clock that is wrong by an hour."""

    def micros(self) -> int:
        return super().micros() - 3_600_000_000


def test_times_are_relative_to_the_servers_clock(url: str, face: Face) -> None:
    with face.connect(url, clock=SkewedClock()) as queue:
        tube = queue.create_tube("t", "fifottl")
        at = datetime.now(UTC) + timedelta(seconds=60)
        assert abs(tube.put(1, at=at).due - at.timestamp()) < 5
        tube.put_many([2])
        assert abs(tube.release(tube.take(0), at=at).due - at.timestamp()) < 5
        assert tube.put(3, at=at - timedelta(seconds=120)).state == "ready"


def test_expired_done_tasks_leave_no_keys(url: str, valkey: LocalServer) -> None:
    client: Any = valkey.client()
    with tubes.connect(url) as queue, tubes.connect(url) as other:
        tube, theirs = queue.create_tube("t"), other.tube("t")
        theirs.put(1)
        task = theirs.take(0)
        # The tube now keeps done tasks; the other session learns this at its next call.
        kept = tube.put(2, keep_done=0.4)
        assert tube.options == {}
        assert queue.create_tube("t", if_not_exists=True).name == "t"
        for each in (task, theirs.take(0)):
            assert each is not None
            theirs.ack(each, "done")
        assert tube.result(kept, 10) == "done"
        key = port_of(tube).shared.key
        names = [f"{key}:done", f"{key}:ended"]
        assert [client.hlen(names[0]), client.zcard(names[1])] == [1, 1]
        assert all(0 < client.pttl(name) <= 2000 for name in names)
        assert eventually(lambda: not client.exists(*names))
        assert tube.statistics().kept == 0
        assert queue.admin.check("t") == []


def test_ack_many_splits_large_batches(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", keep_done=60)
        tube.put_many(range(600))
        assert all(tube.ack_many(tube.take_many(600)).values())
        ids = [task.id for task in tube.select("done")]
        # Tasks that end at the same moment are ordered by id.
        assert sorted(ids) == list(range(600))
        tube.alter(keep_done_max=10)
        assert [task.id for task in tube.select("done")] == ids[:10]
        assert queue.admin.check("t") == []


def test_one_thread_renews_the_sessions_of_all_namespaces(url: str, valkey: LocalServer) -> None:
    def ends_of(name: str) -> list[float]:
        return [ends for _, ends in client.zrange(f"{prefix}:tubes:{name}:leases", 0, -1, withscores=True)]

    # Other tests may have left threads that are about to end.
    others = {thread for thread in threading.enumerate() if thread.name == "tubes-leases"}
    client: Any = valkey.client()
    prefix = url.rpartition("prefix=")[2]
    home = tubes.connect(url, session_ttl=0.3)
    with home.namespace("team") as team, home.namespace("shop") as shop:
        for queue in (home, team, shop):
            queue.create_tube("mail")
        (mine,) = {thread for thread in threading.enumerate() if thread.name == "tubes-leases"} - others
        home.close()
        before = {name: ends_of(name) for name in ("{team@mail}", "{shop@mail}")}
        assert eventually(lambda: all(ends_of(name) > ends for name, ends in before.items()))
    mine.join(10)
    assert not mine.is_alive()
