"""The work of a call is bounded at any size, counted in commands and bytes, not in time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import tubes
from tests.support.indexes import Indexes
from tests.support.internals import port_of
from tests.support.taking import take_task
from tubes import Driver, Item, TubeBusy
from tubes.redis.library.functions import BYTES
from tubes.redis.sessions import store
from tubes.redis.transport.channel import ThreadChannel
from tubes.spark.server.streams import Stream
from tubes.testing import LocalServer, ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The maximum number of commands per function: a few thousand take a few milliseconds.
MOST = 5_000
_LARGE = 200_000


@pytest.fixture
def client(server: LocalServer) -> Iterator[Any]:
    with server.client() as client:
        yield client


@pytest.fixture
def queue(server: LocalServer, client: Any) -> Iterator[tubes.Queue]:
    with tubes.connect(server.url, codec="raw") as queue:
        yield queue


def work(client: Any, act: Callable[[], object]) -> tuple[int, float]:
    """Return how many functions a method calls, and the commands per function."""
    client.config_resetstat()
    act()
    stats = client.info("commandstats")
    scripts = sum(int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("fcall",))
    return scripts, sum(int(about["calls"]) for about in stats.values()) / scripts


def crowd(client: Any, tube: tubes.Tube, count: int, seconds: float = 9) -> None:
    """Register waiting processes on the server, for `seconds`."""
    until = f"{(time.time() + seconds) * 1e6:.0f}"
    key = f"{port_of(tube).shared.key}:waiting"
    client.hset(key, mapping={uuid4().hex: f"1 {until}" for _ in range(count)})


# -- stale ids ---------------------------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["fifo", "lifo"])
def test_each_call_removes_some_stale_ids(client: Any, queue: tubes.Queue, kind: str) -> None:
    tube = queue.create_tube("load", kind if kind == "fifo" else Driver("lifo", order="-id"))
    ids = [task.id for task in tube.put_many([b"x"] * 12_000)]
    kept = [id for id in ids if id % 5 == 0]
    deleted = [id for id in ids if id % 5]
    for first in range(0, len(deleted), 200):
        _, commands = work(client, lambda first=first: tube.delete_many(deleted[first : first + 200]))  # type: ignore[misc]
        assert commands < MOST
    Indexes(client, tube).check()
    for _ in range(50):
        _, commands = work(client, tube.pause)
        assert commands < 2_000
    Indexes(client, tube).check()
    tube.pause(0)
    stale = client.llen("tubes:{load}:ready") + client.zcard("tubes:{load}:back") - len(kept)
    assert stale < 2 * len(kept) + 1_000
    later = [task.id for task in tube.put_many([b"x"] * 10)]
    order = kept + later if kind == "fifo" else [*reversed(kept + later)]
    assert [task.id for task in tube.take_many(3_000)] == order
    Indexes(client, tube).check()


def test_buried_task_is_not_taken_although_its_id_stays_in_the_list(queue: tubes.Queue) -> None:
    tube = queue.create_tube("load")
    first, second, *_ = tube.put_many([b"x"] * 150)
    tube.bury(first)
    assert take_task(tube).id == second.id


@pytest.mark.full
def test_take_many_skips_a_bounded_number_of_stale_ids(client: Any, queue: tubes.Queue) -> None:
    tube = queue.create_tube("load")
    ids = [task.id for task in tube.put_many([b"x"] * 14_000)]
    kept = [id for id in ids if id % 500 == 0 or id > 8_000]
    for first in range(0, 8_000, 2_000):
        tube.delete_many([id for id in ids[first : first + 2_000] if id % 500])
    taken: list[int] = []
    _, commands = work(client, lambda: taken.extend(task.id for task in tube.take_many(16)))
    assert taken == kept[:16]
    assert commands < MOST
    Indexes(client, tube).check()


# -- waiters -----------------------------------------------------------------------------------------------------------


def test_calls_examine_a_bounded_number_of_waiting_processes(client: Any, queue: tubes.Queue) -> None:
    tube: Any = queue.create_tube("load")
    assert tube.statistics().waiting == 0
    crowd(client, tube, 700, 18)
    assert tube.statistics().waiting == queue.admin.overview()["load"].statistics.waiting == 700
    crowd(client, tube, 19_300, 18)
    reply = tube._port.connection.run(tube._port.run_script("statistics"))
    assert len(reply[4]) == 2_001
    assert tube.statistics().waiting == 20_000
    assert queue.admin.overview()["load"].statistics.waiting == 20_000
    with queue.session() as other:
        other.tube("load").put(b"x")
        _, commands = work(client, other.close)
    assert commands < 300


def test_drop_checks_for_waiters_in_parts(client: Any, queue: tubes.Queue) -> None:
    tube = queue.create_tube("load")
    crowd(client, tube, 6_000, -1)
    crowd(client, tube, 1)
    with pytest.raises(TubeBusy):
        tube.drop()
    client.delete("tubes:{load}:waiting")
    crowd(client, tube, 6_000, -1)
    scripts, commands = work(client, tube.drop)
    assert scripts > 5
    assert commands < 100
    assert client.keys("tubes:{load}*") == []


def test_a_drop_wakes_a_bounded_number_of_processes(client: Any, queue: tubes.Queue) -> None:
    tube = queue.create_tube("load")
    crowd(client, tube, 20_000)
    _, commands = work(client, lambda: tube.drop(force=True))
    assert commands < MOST


def test_puts_waiting_for_room_are_found_by_their_size(client: Any, queue: tubes.Queue) -> None:
    tube: Any = queue.create_tube("load", capacity=100)
    tube.put_many([b"x"] * 100)
    port = tube._port

    def wait(size: int, process: str) -> None:
        assert port.connection.run(port.run_script("put_many", (size, "", 0, 100, 1, process))) is None

    for number in range(2_000):
        wait(5, f"many {number}")
    room = "tubes:{load}:room"
    _, commands = work(client, tube.take(timeout=0).ack)
    assert commands < 50
    assert not client.exists(room)
    wait(2, "one")
    _, commands = work(client, tube.take(timeout=0).ack)
    assert commands < 50
    assert client.exists(room)
    client.delete(room)
    # A time further ahead than any client sets is from before the clock was set back.
    client.hset("tubes:{load}:waiting", "one:room", f"0 2 {(time.time() + 3600) * 1e6:.0f}")
    tube.statistics()
    assert not client.exists(room)
    client.zadd("tubes:{load}:wanting", {"one": 2})
    # First this waiter expires, then all others. They are removed in parts, and the last marker finds no waiter.
    client.hset("tubes:{load}:waiting", "one:room", "0 2 1")
    for _ in range(3):
        tube.take(timeout=0).ack()
    assert client.exists(room)
    assert client.zrange("tubes:{load}:wanting", 0, 0, withscores=True)[0][1] == 5
    client.hdel("tubes:{load}:waiting", *(f"many {number}:room" for number in range(2_000)))
    for _ in range(25):
        client.delete(room)
        _, commands = work(client, tube.statistics)
        assert commands < 500
    assert not client.exists(room, "tubes:{load}:wanting")


# -- replies -----------------------------------------------------------------------------------------------------------

_DRIVERS = ("fifo", "fifottl", "utube", "utubettl")


def large(queue: tubes.Queue, driver: str, count: int) -> tuple[Any, list[int]]:
    """Create a tube with large tasks, in separate lanes if the driver has lanes; return it with their ids."""
    tube: Any = queue.create_tube("load", driver)
    lanes = tube.driver.lane is not None
    return tube, [tube.put(b"x" * _LARGE, **({"utube": str(n)} if lanes else {})).id for n in range(count)]


@pytest.mark.parametrize("driver", _DRIVERS)
def test_replies_have_bounded_size(client: Any, queue: tubes.Queue, driver: str) -> None:
    tube, ids = large(queue, driver, 90)
    tube.put(b"the last", **({"utube": "last"} if tube.driver.lane else {}))
    reply = tube._port.connection.run(tube._port.run_script("take_many", (1000,)))
    assert BYTES <= sum(map(len, reply[-1])) <= BYTES + 21 * _LARGE
    assert reply[3] == b"1"
    Indexes(client, tube).check()
    tube.admin.release_all()
    assert [task.id for task in tube.take_many(90)] == ids
    remaining = tube.take_many(90)
    assert [task.data for task in remaining] == [b"the last"]
    remaining[0].ack()
    for id in ids:
        tube.bury(id)
    seen, *replies = tube._port.connection.run(tube._port.run_script("peek_many", ("!", "", "", *ids)))
    assert seen == len(replies)
    assert BYTES <= sum(map(len, replies)) <= BYTES + 2 * _LARGE
    assert [task.id for task in tube.select("buried", limit=90)] == ids
    client.config_resetstat()
    assert tube.admin.oldest_ready_age() is None
    assert client.info("commandstats")["cmdstat_fcall"]["calls"] >= 90 * _LARGE // BYTES


@pytest.mark.parametrize("driver", _DRIVERS)
@pytest.mark.parametrize("state", ["ready", "taken", "buried"])
def test_script_searches_a_bounded_number_of_bytes(client: Any, queue: tubes.Queue, driver: str, state: str) -> None:
    tube, _ = large(queue, driver, 24)
    if state == "taken":
        tube.take_many(24)
    elif state == "buried":
        tube.select("ready").bury()
    client.config_resetstat()
    assert tube.select(state, contains=b"x" * 255 + b"y").count() == 0
    # To search a byte costs up to eight times as much as to read it.
    assert client.info("commandstats")["cmdstat_fcall"]["calls"] >= 24 * _LARGE * 8 // (BYTES + 8 * _LARGE)


def test_tasks_that_exceed_a_reply_keep_their_order(queue: tubes.Queue) -> None:
    tube, ids = large(queue, "fifo", 60)
    back = tube.take_many(30)
    tube.release_many(back[::2])
    expected = [task.id for task in back[::2]] + ids[30:]
    assert [task.id for task in tube.take_many(60)] == expected


def test_returned_tasks_that_exceed_a_reply_keep_their_order(queue: tubes.Queue) -> None:
    tube, ids = large(queue, "fifo", 30)
    tube.release_many(tube.take_many(30))
    # More tasks were returned than this call pops, and a reply has room for fewer than it pops.
    assert [task.id for task in tube.take_many(25)] == ids[:25]
    assert [task.id for task in tube.take_many(25)] == ids[25:]


@pytest.mark.parametrize("driver", ["fifo", "utubettl"])
def test_existing_tasks_of_keys_are_returned_in_parts(queue: tubes.Queue, driver: str) -> None:
    tube: Any = queue.create_tube("load", driver)
    lane: tubes.TaskOptions = {"utube": "a"} if tube.driver.lane else {}
    ids = [tube.put(b"%d" % n * _LARGE, key=str(n), **lane).id for n in range(50)]
    sizes: list[int] = []
    port = tube._port
    run_script = port.run_script

    def run_and_measure(method: str, *args: Any, **options: Any) -> Any:
        reply = yield from run_script(method, *args, **options)
        sizes.append(sum(len(part) for part in reply if part.__class__ is bytes))
        return reply

    port.run_script = run_and_measure
    found = tube.put_many([Item(b"new", key=str(n), **lane) for n in range(51)])
    assert [task.id for task in found[:50]] == ids
    assert [task.data for task in found[:50]] == [b"%d" % n * _LARGE for n in range(50)]
    assert [task.created_now for task in found] == [False] * 50 + [True]
    assert found[50].data == b"new"
    assert max(sizes) < BYTES + 3 * _LARGE
    assert len(sizes) > 1


# -- many tasks at once ------------------------------------------------------------------------------------------------


@pytest.mark.sample(6)
@pytest.mark.parametrize("driver", _DRIVERS)
def test_operations_on_many_tasks_run_in_parts(client: Any, queue: tubes.Queue, driver: str) -> None:
    tube: Any = queue.create_tube("load", driver)
    lanes = tube.driver.lane is not None
    items: list[Any] = [Item(b"x", utube=str(n)) if lanes else b"x" for n in range(1_500)]
    ids = [task.id for task in tube.put_many(items)]
    taken: list[Any] = []

    def check(act: Callable[[], object]) -> None:
        _, commands = work(client, act)
        assert commands < 2_500

    check(lambda: taken.extend(tube.take_many(1_500)))
    assert [task.id for task in taken] == ids
    check(lambda: tube.release_many(taken))
    taken = tube.take_many(1_500)
    check(lambda: tube.admin.release_all())
    assert tube.statistics().tasks["ready"] == 1_500
    other = queue.session()
    assert len(other.tube("load").take_many(1_500)) == 1_500
    check(other.close)
    assert tube.statistics().tasks["ready"] == 1_500
    for id in ids[:600]:
        tube.bury(id)
    check(lambda: [*tube.select("buried", limit=600)])
    check(lambda: tube.select("buried", limit=600).kick())
    check(lambda: [*tube.select(limit=1_500)])
    check(lambda: [*tube.select("ready", limit=1_500)])
    check(lambda: tube.select("ready", limit=500).move_to(queue.create_tube("other", driver)))
    check(lambda: queue.tube("other").select("ready").move_to(tube))
    taken = tube.take_many(1_500)
    assert len(taken) == 1_500
    check(lambda: tube.ack_many(taken[:800]))
    check(lambda: tube.delete_many(taken[800:]))
    assert tube.statistics().tasks["total"] == 0


@pytest.mark.parametrize("driver", ["fifottl", "utubettl"])
def test_calls_handle_a_bounded_number_of_bytes(client: Any, server: LocalServer, driver: str) -> None:
    """Twenty tasks of 1 MB need several calls of each method, and each task is handled once."""
    clock = tubes.testing.ManualClock()
    with tubes.connect(server.url, codec="raw", clock=clock) as queue:
        tube: Any = queue.create_tube("load", driver, keep_done=60)
        lanes = tube.driver.lane is not None

        def fill(**options: Any) -> list[int]:
            data = b"x" * 1_000_000
            each = ({**options, "utube": str(n)} if lanes else options for n in range(20))
            return [tube.put(data, **some).id for some in each]

        def check(act: Callable[[], object], **states: int) -> None:
            before = tube.statistics().calls
            scripts, _ = work(client, act)
            assert scripts >= 5
            tasks, calls = tube.statistics().tasks, tube.statistics().calls
            assert {state: tasks[state] for state in ("ready", "taken", "delayed") if tasks[state]} == states
            assert sum(calls.values()) - sum(before.values()) <= 40
            Indexes(client, tube).check()

        def pass_time() -> None:
            clock.advance(5)
            tube.statistics()

        ids = fill(ttl=100)
        all_true = dict.fromkeys(ids, True)
        results: list[Any] = []
        taken = tube.take_many(20)
        check(lambda: results.append(tube.touch_many(taken, 200)), taken=20)
        check(lambda: results.append(tube.release_many(taken)), ready=20)
        assert [task.id for task in tube.take_many(20)] == ids
        check(lambda: tube.admin.release_all(), ready=20)
        other = queue.session()
        assert len(other.tube("load").take_many(20)) == 20
        check(other.close, ready=20)
        taken = tube.take_many(20)
        port = tube._port
        words = [word for task in taken for word in (task.id, task._take)]
        check(lambda: port.connection.run(port.undo("undo_take", *words)), ready=20)
        taken = tube.take_many(20)
        check(lambda: results.append(tube.ack_many(taken)))
        check(lambda: results.append(tube.delete_many([*all_true])))
        assert results == [all_true] * 4
        fill(delay=5, ttl=5)
        check(pass_time, ready=20)
        check(pass_time)
        fill()
        check(lambda: results.append(tube.select("ready")._evict([*tube.select("ready")])))
        assert results[-1] == [True] * 20
        fill()
        if lanes:
            check(lambda: [tube.alter(lane_capacity=30), tube.statistics()], ready=20)
        check(lambda: results.append(queue.admin.check("load")), ready=20)
        assert results[-1] == []
        stream = Stream.open(queue.session(), "load", "nightly")
        assert sum(len(chunk.ids) for chunk in stream.take(1, 20)) == 20
        check(lambda: results.append(stream.ack(1)))
        assert results[-1] == 20


@pytest.mark.parametrize("driver", ["fifo", "utubettl"])
def test_stream_batch_is_taken_completely_in_parts(client: Any, queue: tubes.Queue, driver: str) -> None:
    tube: Any = queue.create_tube("load", driver)
    lanes = tube.driver.lane is not None
    ids = [task.id for task in tube.put_many([Item(b"x", utube=str(n)) if lanes else b"x" for n in range(1_250)])]
    stream = Stream.open(queue.session(), "load", "nightly")
    found: list[int] = []
    _, commands = work(client, lambda: found.extend(id for chunk in stream.take(1, 1_250) for id in chunk.ids))
    assert found == ids
    assert commands < 2_000
    assert stream.ack(1) == 1_250


@pytest.mark.parametrize("driver", ["fifo", "utubettl"])
def test_takes_are_undone_in_parts(client: Any, queue: tubes.Queue, driver: str) -> None:
    tube: Any = queue.create_tube("load", driver)
    lanes = tube.driver.lane is not None
    tube.put_many([Item(b"x", utube=str(n)) if lanes else b"x" for n in range(600)])
    taken = tube.take_many(600)
    port = tube._port
    words = [word for task in taken for word in (task.id, task._take)]
    scripts, _ = work(client, lambda: port.connection.run(port.undo("undo_take", *words)))
    assert scripts >= 12
    assert [task.attempts for task in tube.take_many(600)] == [1] * 600


@pytest.mark.parametrize("driver", ["fifottl", "utubettl"])
def test_due_tasks_are_processed_in_parts(client: Any, server: LocalServer, driver: str) -> None:
    clock = tubes.testing.ManualClock()
    with tubes.connect(server.url, clock=clock) as queue:
        tube = queue.create_tube("load", driver)
        lanes = tube.driver.lane is not None
        tube.put_many([Item(n, delay=5, utube=str(n)) if lanes else Item(n, delay=5) for n in range(2_000)])

        def pass_time() -> None:
            clock.advance(5)
            assert tube.statistics().tasks["ready"] == 2_000

        scripts, commands = work(client, pass_time)
        assert scripts >= 10
        assert commands < MOST


def test_many_cooldowns_end_in_few_calls(client: Any, server: LocalServer) -> None:
    clock = tubes.testing.ManualClock()
    with tubes.connect(server.url, clock=clock) as queue:
        tube = queue.create_tube("load", "utubettl")
        tube.put_many([Item(n, utube=str(n)) for n in range(2_000)])
        for n in range(2_000):
            tube.lane(str(n)).block(5)
        clock.advance(5)
        scripts, commands = work(client, lambda: tube.take(timeout=0))
        assert scripts <= 6
        assert commands < MOST
        Indexes(client, tube).check()


@pytest.mark.parametrize(("size", "most"), [(1, 41), (3, 14), (20, 3)])
def test_page_of_a_polite_crawl_costs_few_commands(client: Any, server: LocalServer, size: int, most: int) -> None:
    clock = ManualClock(1_000_000)
    with tubes.connect(server.url, clock=clock) as queue:
        tube = queue.create_tube("crawl", "utubettl", interval=1, order="round_robin", key_ttl=3600, max_attempts=5)

        def crawl(first: int) -> None:
            for batch in range(first, first + 10 * size, size):
                if size == 1:
                    tube.put(batch, key=f"{batch}", utube=f"{batch % 50}")
                    tube.take(timeout=0).ack()  # type: ignore[union-attr]
                else:
                    tube.put_many(Item(n, key=f"{n}", utube=f"{n % 50}") for n in range(batch, batch + size))
                    assert len(tube.ack_many(tube.take_many(size, timeout=0))) == size
                clock.advance(1)

        crawl(0)
        calls, commands = work(client, lambda: crawl(10 * size))
        assert calls * commands <= most * 10 * size


def test_checkpoint_takes_one_round_trip(client: Any, queue: tubes.Queue) -> None:
    tube = queue.create_tube("load", "fifottl", ttl=60, ttr=5)
    tube.put(b"x", context={str(n): "" for n in range(100)})
    with tube.taking(0) as task:
        task.checkpoint("before")
        scripts, commands = work(client, lambda: task.checkpoint({"page": 7}, progress=0.5, note="n"))
        assert scripts == 1
        assert commands < 20


def test_acked_task_has_no_due_time(client: Any, queue: tubes.Queue) -> None:
    tube = queue.create_tube("load", "fifottl")
    tube.put(b"x", ttl=60, ttr=60)
    assert client.zcard("tubes:{load}:due") == 1
    tube.take(timeout=0).ack()  # type: ignore[union-attr]
    assert client.zcard("tubes:{load}:due") == 0


def test_due_tasks_cost_no_other_call(client: Any, server: LocalServer) -> None:
    clock = tubes.testing.ManualClock()
    with tubes.connect(server.url, clock=clock) as queue:
        tube = queue.create_tube("load", "utubettl")
        spent: list[int] = []
        for _ in range(2):  # The server may not have the library at first.
            for act in (lambda: tube.put("x"), lambda: tube.take(timeout=0)):
                tube.put("late", delay=5)
                clock.advance(5)
                spent.append(work(client, act)[0])
        assert spent[-2:] == [1, 1]
        assert tube.statistics().tasks == {**tube.statistics().tasks, "delayed": 0, "total": 6}


# -- many tubes, many sessions -----------------------------------------------------------------------------------------


def test_many_names_are_read_page_by_page(client: Any, queue: tubes.Queue) -> None:
    made = [f"tube-{number}" for number in range(30)]
    for name in made:
        queue.create_tube(name)
    client.sadd("tubes:names", *(f"gone-{number}" for number in range(5_000)))
    found: list[str] = []
    scripts, commands = work(client, lambda: found.extend(queue.tubes()))
    assert found == sorted(made)
    assert 6 <= scripts <= 40
    assert commands < 2_000
    _, commands = work(client, lambda: found.extend(queue.admin.overview()))
    assert sorted(found[len(made) :]) == sorted(made)
    assert commands < 600


def test_leases_are_renewed_some_at_a_time(client: Any, queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_SESSIONS_PER_CALL", 2)
    tube: Any = queue.create_tube("load")
    sessions = [queue.session() for _ in range(4)]
    for session in sessions:
        session.tube("load")
    leases = "tubes:{load}:leases"
    before = dict(client.zrange(leases, 0, -1, withscores=True))
    assert len(before) == 5
    process_store = tube._port.shared.store
    channel = ThreadChannel(process_store.server, "b")
    process_store._renew_tokens(channel, set())  # This loads the library.
    scripts, _ = work(client, lambda: process_store._renew_tokens(channel, set()))
    channel.close()
    assert scripts == 3
    after = dict(client.zrange(leases, 0, -1, withscores=True))
    assert after.keys() == before.keys()
    assert all(after[token] > ends for token, ends in before.items())
    for session in sessions:
        session.close()
