"""Tubes with partitions: their layout, their routes, and the faults of creation and drop."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

import tubes
import tubes.aio
from tests.contract.bench import eventually
from tests.support.internals import port_of
from tubes import InvalidOption, TubeBusy, TubeFull, TubeNotFound
from tubes.partitions import layout
from tubes.partitions.port import PartitionedPort
from tubes.testing import LocalServer, ManualClock
from tubes.worker import Worker

URLS = ["memory://", "server"]


@pytest.fixture(params=URLS)
def queue(request: pytest.FixtureRequest) -> Any:
    url = request.getfixturevalue("url") if request.param == "server" else request.param
    with tubes.connect(url) as queue:
        yield queue


# -- layout ------------------------------------------------------------------------------------------------------------


def test_slot_is_that_of_redis_cluster() -> None:
    assert layout.slot_of(b"123456789") == 0x31C3 % 16_384  # The check value of the specification.


@pytest.mark.parametrize("partitions", [1, 3, 64, 1000])
@pytest.mark.parametrize("namespace", ["", "team"])
def test_partitions_are_spread_evenly_over_the_slots(partitions: int, namespace: str) -> None:
    names = [layout.name_of("crawl", number, partitions, namespace) for number in range(partitions)]
    scope = f"{namespace}@" if namespace else ""
    slots = [layout.slot_of(f"{scope}{name}".encode()) for name in names]
    assert slots[0] == layout.slot_of(f"{scope}crawl".encode())
    for nodes in (3, 7, 64):
        shares = Counter(slot * nodes // 16_384 for slot in slots)
        assert max(shares.values()) <= -(-partitions // nodes) + 1


def test_ids_do_not_depend_on_the_number_of_partitions() -> None:
    assert layout.local_id(layout.global_id(123, 16_383)) == (16_383, 123)


def test_shares_of_limits_add_up() -> None:
    options = {"capacity": 100, "rate": 10.0, "keep_done_max": 7, "ttr": 5.0, "partitions": 3}
    shares = [layout.share(options, number, 3) for number in range(3)]
    assert [share["capacity"] for share in shares] == [34, 33, 33]
    assert sum(share["rate"] for share in shares) == pytest.approx(10)
    assert [share["keep_done_max"] for share in shares] == [3, 2, 2]
    assert all(share["ttr"] == 5.0 and "partitions" not in share for share in shares)


# -- routes ------------------------------------------------------------------------------------------------------------


def test_tasks_of_a_lane_are_in_one_partition(queue: tubes.Queue) -> None:
    tube = queue.create_tube("crawl", "utubettl", partitions=16)
    places = defaultdict(set)
    for number in range(200):
        task = tube.put(number, utube=f"host {number % 20}")
        places[task.utube].add(task.partition)
        assert task.id & 16_383 == task.partition
    assert all(len(found) == 1 for found in places.values())
    assert len(set().union(*places.values())) > 8
    again = queue.session().tube("crawl")
    assert again.partitions == 16
    assert {again.put("x", utube="host 3").partition} == places["host 3"]


def test_key_is_unique_without_lanes(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifottl", partitions=8)
    assert [tube.put(number, key="one").created_now for number in range(20)] == [True] + [False] * 19


def test_tasks_without_lane_and_key_are_spread(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifo", partitions=4)
    tube.put_many(range(40))
    assert Counter(task.partition for task in tube.select()) == {0: 10, 1: 10, 2: 10, 3: 10}


def test_methods_find_a_task_by_its_id_in_any_session(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifottl", partitions=4)
    ids = [task.id for task in tube.put_many(range(8))]
    other = queue.session().tube("mail")
    assert [other.peek(id).data for id in ids] == list(range(8))
    assert tube.delete_many([*ids[:2], 99]) == {ids[0]: True, ids[1]: True, 99: False}
    lease = tube.take(timeout=0)
    assert lease is not None
    assert lease.lease.tube == "mail"
    assert other.ack(str(lease.lease)).id == lease.id
    with pytest.raises(tubes.TaskNotFound, match=f"no task {ids[0]} in tube 'mail'"):
        tube.peek(ids[0])


def test_errors_of_a_task_name_the_tube_and_its_id(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifottl", partitions=4)
    tube.put_many(range(4))
    tasks = tube.take_many(4, timeout=0)
    tube.ack_many(tasks)
    with pytest.raises(tubes.TaskNotTaken, match=f"task {tasks[3].id} of tube 'mail'"):
        tube.ack(tasks[3].id)


# -- takes -------------------------------------------------------------------------------------------------------------


def test_busy_partition_does_not_starve_the_others(queue: tubes.Queue) -> None:
    tube = queue.create_tube("crawl", "utube", partitions=8, max_in_flight=1000)
    busy = tube.put_many([tubes.Item(0, utube="busy")] * 300)[0].partition
    others = {f"lane {number}": tube.put(1, utube=f"lane {number}").partition for number in range(20)}
    visits = 0
    left = {name for name, partition in others.items() if partition != busy}
    while left:
        task = tube.take(timeout=0)
        assert task is not None
        left.discard(str(task.utube))
        visits += 1
    assert visits <= 2 * 8 + 20


def test_loop_over_a_tube_visits_all_partitions(queue: tubes.Queue) -> None:
    tube = queue.create_tube("crawl", "utube", partitions=2)
    tube.put_many(tubes.Item(number, utube=f"lane {number}") for number in range(100))
    seen: Counter[int | None] = Counter()
    for task in tube:
        seen[task.partition] += 1
        tube.put(task.data, utube=task.utube)
        if seen.total() == 100:
            break
    assert min(seen[0], seen[1]) > 20


@pytest.mark.parametrize("in_thread", [True, False])
def test_handlers_use_their_task(queue: tubes.Queue, in_thread: bool) -> None:
    tube = queue.create_tube("jobs", "fifottl", partitions=3, keep_done=60)
    tasks = tube.put_many(range(12))
    seen: dict[int, Any] = {}

    def handle(task: tubes.Task) -> int:
        task.checkpoint(task.data)
        task.touch(5)
        seen[task.id] = task.peek().data
        return int(task.data * 2)

    async def handle_in_loop(task: tubes.AsyncTask) -> int:
        await task.checkpoint(task.data)
        seen[task.id] = (await task.peek()).data
        return int(task.data * 2)

    worker = Worker(queue, concurrency=4)
    worker.on(tube, handle if in_thread else handle_in_loop)
    worker.run(burst=True)
    assert seen == {task.id: task.data for task in tasks}
    assert [tube.result(task, timeout=0) for task in tasks] == [number * 2 for number in range(12)]


def test_drop_ends_a_wait_with_the_name_of_the_tube(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", partitions=3)
    errors: list[Any] = []

    def wait() -> None:
        try:
            tube.take(timeout=20)
        except TubeNotFound as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not tube.statistics().waiting:
        pass
    with queue.session() as other:
        other.tube("mail").drop(force=True)
    thread.join()
    assert errors[0].facts["name"] == "mail"


@pytest.mark.parametrize("calls", [1, 2])
def test_interrupted_take_holds_no_task(queue: tubes.Queue, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tube = queue.create_tube("mail", "fifo", partitions=3)
    tube.put_many(range(9))
    port: Any = port_of(tube)
    left, note = calls, port._looks.note_take

    def interrupt(*arguments: Any, **named: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt
        note(*arguments, **named)

    takes: list[Callable[[], object]] = [lambda: tube.take(timeout=0), lambda: tube.take_many(9, timeout=0)]
    monkeypatch.setattr(port._looks, "note_take", interrupt)
    with pytest.raises(KeyboardInterrupt):
        takes[calls - 1]()
    monkeypatch.undo()
    assert eventually(lambda: tube.statistics().tasks["taken"] == 0)
    assert len(tube.take_many(9, timeout=0)) == 9


def test_waiting_take_gets_a_task_of_any_partition(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifo", partitions=6)
    for number in range(12):
        got: list[Any] = []
        waiting = threading.Thread(target=lambda: got.append(tube.take(timeout=20)))  # noqa: B023
        waiting.start()
        while not tube.statistics().waiting:
            pass
        tube.put(number)
        waiting.join()
        assert got[0].data == number
        got[0].ack()


def test_threads_share_the_work_and_each_lane_has_one_task_in_flight(queue: tubes.Queue) -> None:
    tube = queue.create_tube("crawl", "utube", partitions=5)
    tube.put_many(tubes.Item(number, utube=f"host {number % 7}") for number in range(210))
    in_flight: Counter[str] = Counter()
    done: list[int] = []
    most: Counter[str] = Counter()
    lock = threading.Lock()

    def work() -> None:
        with queue.session() as session:
            mine = session.tube("crawl")
            while (task := mine.take(timeout=0.3)) is not None:
                lane = str(task.utube)
                with lock:
                    in_flight[lane] += 1
                    most[lane] = max(most[lane], in_flight[lane])
                    done.append(task.data)
                    in_flight[lane] -= 1
                task.ack()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(210))
    assert set(most.values()) == {1}
    order: dict[int, list[int]] = defaultdict(list)
    for number in done:
        order[number % 7].append(number)
    assert all(numbers == sorted(numbers) for numbers in order.values())


# -- limits ------------------------------------------------------------------------------------------------------------


def test_duplicate_key_in_a_batch_is_named_by_its_item(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifo", partitions=3)
    keys = [f"k{number}" for number in range(8)]
    tube.put("first", key=keys[5])
    with pytest.raises(tubes.DuplicateKey) as caught:
        tube.put_many((tubes.Item(key, key=key) for key in keys), on_duplicate="raise")
    assert (caught.value.facts["item"], caught.value.facts["key"]) == (5, keys[5])


def test_put_many_puts_nothing_if_one_partition_has_no_room(queue: tubes.Queue) -> None:
    tube = queue.create_tube("crawl", "utube", partitions=2, capacity=6)
    lanes: dict[int | None, str | None] = {}
    for number in count():
        task = tube.put("probe", utube=f"{number}")
        lanes.setdefault(task.partition, task.utube)
        task.delete()
        if len(lanes) == 2:
            break
    tube.put(0, utube=lanes[0])
    items = [tubes.Item(number, utube=lanes[0 if number < 4 else 1]) for number in range(1, 6)]
    with pytest.raises(TubeFull):
        tube.put_many(items)
    with pytest.raises(TubeFull):
        tube.put_many(items, timeout=1)
    assert [task.data for task in tube.select()] == [0]
    with pytest.raises(InvalidOption, match="must be at most 3 for partition 0"):
        tube.put_many([tubes.Item(number, utube=lanes[0]) for number in range(4)])


def test_batch_larger_than_a_partition_is_divided_whether_it_may_wait_or_not(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifo", partitions=2, capacity=6)
    for timeout in (0, 1):
        assert len(tube.put_many(range(5), timeout=timeout)) == 5
        with pytest.raises(TubeFull):
            tube.put_many(range(5), timeout=1)
        tube.truncate()


def test_capacity_and_a_slow_rate_do_not_disturb_batches(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifo", partitions=2, capacity=10, rate="1/day")
    assert len(tube.put_many(range(6))) == 6


def test_move_into_a_full_tube_repeats_no_task(queue: tubes.Queue) -> None:
    source = queue.create_tube("source", "fifo")
    target = queue.create_tube("target", "fifo", partitions=2, capacity=10)
    source.put_many(range(20))
    target.put("first")
    with pytest.raises(TubeFull):
        source.select().move_to(target)
    moved = [task.data for task in target.select() if task.data != "first"]
    left = [task.data for task in source.select()]
    assert sorted([*moved, *left]) == list(range(20))
    assert len(moved) == 9


def test_put_that_may_wait_uses_the_room_of_all_partitions(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifo", partitions=4, capacity=8)
    assert [tube.put(number, timeout=1) is not None for number in range(8)] == [True] * 8
    assert tube.put("more", timeout=0.01) is None
    waiting: list[Any] = []
    thread = threading.Thread(target=lambda: waiting.append(tube.put("late", timeout=20)))
    thread.start()
    while (task := tube.take(timeout=0)) is not None and thread.is_alive():
        task.ack()
    thread.join()
    assert waiting[0] is not None


@pytest.mark.parametrize("freed", range(3))
def test_waiting_put_gets_room_that_another_session_makes_in_any_partition(queue: tubes.Queue, freed: int) -> None:
    tube = queue.create_tube("mail", "fifo", partitions=3, capacity=3)
    tube.put_many(range(3))
    other = queue.session().tube("mail")
    with ThreadPoolExecutor() as threads:
        puts: list[Callable[[], object]] = [
            lambda: tube.put("late", timeout=60),
            lambda: tube.put_many(["late"], timeout=60),
        ]
        for put in puts:
            waiting = threads.submit(put)
            assert eventually(lambda: tube.statistics().waiting == 1)
            task = next(task for task in other.select() if task.partition == freed)
            other.delete(task)
            made: Any = waiting.result()
            assert (made[0] if isinstance(made, list) else made).partition == freed


def test_put_on_an_event_loop_gets_the_room_of_any_partition(url: str) -> None:
    async def main() -> None:
        async with tubes.aio.connect(url) as queue:
            tube = await queue.create_tube("mail", "fifo", partitions=3, capacity=3)
            for task in await tube.put_many(range(3)):
                waiting = asyncio.create_task(tube.put("late", timeout=60))
                await asyncio.sleep(0.1)
                await tube.delete(task)
                made = await waiting
                assert made is not None
                assert made.partition == task.partition
            assert await tube.put("more", timeout=0.2) is None

    asyncio.run(main())


def test_put_looks_at_all_partitions_before_its_timeout_ends_the_wait() -> None:
    clock = ManualClock()
    with tubes.connect(clock=clock) as queue, ThreadPoolExecutor() as threads:
        tube = queue.create_tube("mail", "fifo", partitions=3, capacity=3)
        for task in tube.put_many(range(3)):
            waiting = threads.submit(tube.put, "late", timeout=0.5)
            assert eventually(lambda: tube.statistics().waiting == 1)
            tube.delete(task)
            clock.advance(0.5)
            made = waiting.result()
            assert made is not None
            assert made.partition == task.partition
        waiting = threads.submit(tube.put, "late", timeout=0.5)
        assert eventually(lambda: tube.statistics().waiting == 1)
        clock.advance(0.5)
        assert waiting.result() is None


def test_tubes_share_a_rate_exactly() -> None:
    clock = ManualClock()
    with tubes.connect(clock=clock) as queue:
        tube = queue.create_tube("mail", "fifo", partitions=4, rate=2.0)
        tube.put_many(range(100))
        taken = 0
        for _ in range(100):
            while tube.take(timeout=0):
                taken += 1
            clock.advance(0.1)
        assert 20 <= taken <= 24  # Ten seconds, and the first task of each partition.


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"partitions": 0}, "must be from 1 to 16384"),
        ({"partitions": 20_000}, "must be from 1 to 16384"),
        ({"partitions": 8, "capacity": 7}, "must be at least 8, the number of partitions"),
    ],
)
def test_bad_number_of_partitions_is_refused(queue: tubes.Queue, options: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidOption, match=rule):
        queue.create_tube("mail", **options)
    assert queue.tubes() == []


def test_number_of_partitions_is_final(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", partitions=2)
    with pytest.raises(InvalidOption, match="cannot change from 2 after creation"):
        tube.alter(partitions=3)
    with pytest.raises(tubes.TubeExists):
        queue.create_tube("mail", partitions=3, if_not_exists=True)
    assert queue.create_tube("mail", partitions=2, if_not_exists=True).partitions == 2


def test_altered_options_reach_all_partitions(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", partitions=3, ttr=5)
    tube.put_many(range(3))
    tube.alter(ttr=9)
    queue.create_tube("mail", partitions=3, ttr=7, max_attempts=2, if_exists="update")
    assert {(task.ttr, task.max_attempts) for task in tube.put_many(range(9))} == {(7.0, 2)}


# -- the whole tube ----------------------------------------------------------------------------------------------------


def test_tube_is_listed_and_counted_once(queue: tubes.Queue) -> None:
    tube = queue.create_tube("crawl", "utube", partitions=4)
    tube.put_many(tubes.Item(number, utube=f"{number % 9}") for number in range(30))
    assert queue.tubes() == ["crawl"]
    (seen,) = queue.admin.overview(ages=True).values()
    assert seen.statistics.tasks == tube.statistics().tasks == queue.statistics("crawl").tasks
    assert (seen.statistics.tasks["ready"], seen.lanes) == (30, 9)
    assert seen.oldest_ready_age is not None
    assert [lane.name for lane in tube.lanes()] == [f"{number}" for number in range(9)]


def test_repair_looks_at_all_partitions(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("mail", "fifo", partitions=3)
        tube.put_many(range(6))
        assert queue.admin.check("mail") == []
        client: Any = valkey.client()
        with client:
            (ready,) = client.keys(f"{url.partition('prefix=')[2]}:tubes:{{mail#1.*:ready")
            client.delete(ready)
        assert [problem.repaired for problem in queue.admin.repair("mail")] != []
        assert queue.admin.check("mail") == []
        assert len(tube.take_many(10, timeout=0)) == 6


def test_drop_leaves_nothing(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("mail", partitions=4)
        tube.put_many(range(8))
        tube.drop()
        assert queue.tubes() == []
        client: Any = valkey.client()
        with client:
            keys = client.keys(f"{url.partition('prefix=')[2]}:tubes:*#*")
        assert keys == []
        with pytest.raises(TubeNotFound):
            tube.put("x")
        assert queue.create_tube("mail", partitions=4).statistics().tasks["total"] == 0


def test_busy_tube_is_not_dropped_in_part(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", partitions=4)
    tube.put_many(range(8))
    assert tube.take(timeout=0)
    with pytest.raises(TubeBusy, match="tube 'mail' cannot be dropped: 1 of its tasks"):
        tube.drop()
    assert tube.statistics().tasks["total"] == 8


@pytest.mark.parametrize("dropped", range(4))
def test_interrupted_drop_is_finished_by_the_next_caller(
    queue: tubes.Queue, dropped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = queue.create_tube("mail", partitions=3)
    tube.put_many(range(9))
    done = 0
    port: Any = port_of(tube)
    drop_part = port.connection.find_part

    def interrupt(name: str) -> Any:
        nonlocal done
        if done == dropped:
            raise KeyboardInterrupt
        done += 1
        return drop_part(name)

    monkeypatch.setattr(port.connection, "find_part", interrupt, raising=False)
    if dropped < 3:
        with pytest.raises(KeyboardInterrupt):
            tube.drop()
    else:
        tube.drop()
    monkeypatch.undo()
    with queue.session() as other:
        if dropped < 3:
            found = other.tube("mail")
            with pytest.raises(TubeNotFound, match="there is no tube 'mail'"):
                found.put("x")
        assert other.tubes() == []
        assert other.create_tube("mail", partitions=3).statistics().tasks["total"] == 0


def test_tube_dropped_elsewhere_is_not_created_again(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", partitions=16)
    tube.put("x", key="only one partition is open")
    with queue.session() as other:
        other.tube("mail").drop()
    for number in range(16):
        with pytest.raises(TubeNotFound):
            tube.put(number)
    assert isinstance(port_of(queue.create_tube("mail", partitions=16)), PartitionedPort)
    assert queue.statistics("mail").tasks["total"] == 0


def test_lost_manifest_costs_no_task_of_the_partitions(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url) as queue, tubes.connect(url, session_ttl=29) as other:
        queue.create_tube("mail", "fifo", partitions=3).put_many(range(6))
        tube = other.tube("mail")
        client: Any = valkey.client()
        with client:
            client.delete(*client.keys(f"{url.partition('prefix=')[2]}:tubes:{{mail}}*"))
        with pytest.raises(TubeNotFound, match="there is no tube 'mail'"):
            tube.take(timeout=0)
        assert queue.create_tube("mail", "fifo", partitions=3).statistics().tasks["ready"] == 6


def test_errors_name_the_tube_if_a_server_lost_the_partition(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("mail", "fifo", partitions=2)
        tube.put_many(range(4))
        held = tube.take_many(4, timeout=0)
        client: Any = valkey.client()
        with client:
            client.delete(*client.keys(f"{url.partition('prefix=')[2]}:tubes:{{mail#1.*"))
        for task in held:
            if task.partition == 1:
                with pytest.raises(tubes.TaskNotTaken, match="tube 'mail'") as caught:
                    task.ack()
                assert caught.value.facts["id"] == task.id


def test_partition_that_a_server_lost_is_created_again(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("mail", "fifo", partitions=2)
        tube.put_many(range(4))
        client: Any = valkey.client()
        with client:
            client.delete(*client.keys(f"{url.partition('prefix=')[2]}:tubes:{{mail#1.*"))
        assert sorted(task.data for task in iter(lambda: tube.take(timeout=0), None)) == [0, 2]
        assert [tube.put(number).partition for number in range(2)] in ([0, 1], [1, 0])
