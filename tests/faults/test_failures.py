"""Attempts, keys and updates with killed workers, cut connections and full servers."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support import indexes
from tests.support.internals import port_of
from tests.support.proxy import Proxy
from tests.support.worker import Worker
from tubes import Driver, DuplicateKey, ServerFull, ServerRefused, TaskNotFound, TaskNotTaken, TubesError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.testing import LocalServer

#: The options of a put for a key that is in use.
WAYS: list[Literal["keep", "replace", "raise"]] = ["keep", "replace", "raise"]


def cut_sometimes(request: bytes) -> bool:
    return random.random() < 0.2


def run_in_threads(count: int, act: Callable[[int], None]) -> None:
    """Run a call in `count` threads and raise their errors."""
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(act, range(count)))


# -- attempts ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("mode", ["sync", "aio"])
def test_attempts_of_killed_workers_are_counted_and_limited(
    url: str, valkey: LocalServer, mode: str, factor: int
) -> None:
    attempts = 3
    with tubes.connect(url, session_ttl=31.0) as queue, valkey.client() as client:
        tube = queue.create_tube("load", max_attempts=attempts)
        takes: dict[int, list[int]] = defaultdict(list)

        def note(task: tubes.Task, event: str) -> None:
            if event == "take":
                takes[task.id].append(task.attempts)

        tube.on_task_change(note)
        count = 12 * factor
        tube.put_many(range(count))
        written: list[str] = []
        # Each worker is killed while it holds tasks.
        for _ in range(10 * factor):
            worker = Worker(url, mode)
            assert worker.read_line() == "ready"
            line = worker.read_line() if tube.statistics().tasks["ready"] else ""
            written += [line, *worker.kill()]
            if tube.statistics().tasks["ready"] == tube.statistics().tasks["taken"] == 0:
                break
        assert eventually(lambda: tube.statistics().tasks["taken"] == 0)
        indexes.check(client, tube)
        tasks = tube.statistics().tasks
        assert tasks["done"] + tasks["buried"] + tasks["ready"] == count
        for task in tube.select("buried"):
            assert (task.reason, task.attempts) == ("max_attempts: session", attempts)
        mark = tube.put("the last")
        mark.delete()
        assert eventually(lambda: tube.statistics().calls["take"] == sum(map(len, takes.values())))
        for id, seen in takes.items():
            assert seen == list(range(1, len(seen) + 1)), id
            assert len(seen) <= attempts
        printed = {tuple(map(int, line.split()[1:3])) for line in written if line.startswith("took")}
        assert printed <= {(id, turn) for id, seen in takes.items() for turn in seen}


@pytest.mark.full
def test_a_task_that_kills_its_worker_is_buried_after_its_last_attempt(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("load", max_attempts=2)
        task = tube.put("poison")
        for attempt in (1, 2):
            worker = Worker(url, "puppet")
            assert worker.read_line() == "ready"
            assert worker.send("take") == f"took {task.id} {attempt}"
            worker.kill()
            assert tube.peek(task).state == "taken"
            assert eventually(lambda: tube.peek(task).state != "taken")
        (buried,) = tube.select("buried")
        assert (buried.attempts, buried.reason) == (2, "max_attempts: session")
        assert tube.take(timeout=0) is None


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["fifo", "utubettl"])
def test_puts_with_keys_over_cut_connections_make_one_task_each(
    proxied_url: str, proxy: Proxy, valkey: LocalServer, driver: str, factor: int
) -> None:
    with tubes.connect(proxied_url) as queue, valkey.client() as client:
        tube = queue.create_tube("load", driver)
        proxy.cuts = cut_sometimes
        ids: dict[str, int] = {}
        for _ in range(150 * factor):
            key = str(random.randrange(40))
            how = random.choice(WAYS)
            if how == "raise" and key in ids:
                with pytest.raises(DuplicateKey, match=f"task {ids[key]}"):
                    tube.put(key, key=key, on_duplicate=how)
                continue
            task: Any = tube.put(key, key=key, on_duplicate=how)
            # The reply must be that of the first execution, even for a call that was sent again.
            assert task.created_now == (how == "replace" or key not in ids)
            assert task.created_now == (ids.get(key) != task.id)
            ids[key] = task.id
        proxy.cuts = lambda request: False
        assert proxy.count > 10
        assert tube.statistics().tasks["total"] == len(ids)
        assert {key: tube.put("x", key=key).id for key in ids} == ids
        indexes.check(client, tube)


def test_concurrent_puts_of_the_same_keys_make_one_task_each(url: str, valkey: LocalServer, factor: int) -> None:
    with tubes.connect(url, session_ttl=31.0) as queue, valkey.client() as client:
        tube = queue.create_tube("load", "utube")
        made: list[int] = []
        refused: list[int] = []

        def put(number: int) -> None:
            rng = random.Random(number)
            with tubes.connect(url, session_ttl=31.0) as mine:
                for _ in range(100 * factor):
                    key = str(rng.randrange(10))
                    how = rng.choice(WAYS)
                    try:
                        task: Any = mine.tube("load").put(key, key=key, on_duplicate=how, utube=key)
                    except DuplicateKey as duplicate:
                        refused.append(duplicate.facts["id"])
                        continue
                    if task.created_now:
                        made.append(task.id)

        run_in_threads(6, put)
        tasks, calls = tube.statistics().tasks, tube.statistics().calls
        assert len(set(made)) == len(made) == calls["put"]
        assert set(refused) <= set(made)
        assert tasks["total"] == 10
        assert calls["delete"] == len(made) - 10
        indexes.check(client, tube)
        taken = [tube.take(timeout=0) for _ in range(10)]
        assert sorted(task.key or "" for task in taken if task is not None) == sorted(map(str, range(10)))


def test_known_keys_are_stored_once_and_dropped_with_their_tube(url: str, valkey: LocalServer) -> None:
    clock = tubes.testing.ManualClock()
    with tubes.connect(url, clock=clock) as queue, valkey.client() as client:
        tube = queue.create_tube("load", "fifottl", key_ttl=5)
        key: Any = port_of(tube).shared.key
        for number in range(30):
            tube.put("x", key=str(number), ttl=50)
        for number in range(10):
            tube.put("y", key=str(number), on_duplicate="replace")
        while (task := tube.take(timeout=0)) is not None:
            task.ack()
        clock.advance(2)
        tube.put("z", key="3", on_duplicate="replace", key_ttl=0).delete()
        clock.advance(3)
        for number in range(30):
            tube.put("w", key=str(number), on_duplicate="raise").delete()
        # Each key has one record: a new one replaces the old one.
        assert client.exists(f"{key}:keys") == 0
        assert sum(map(len, client.hvals(f"{key}:known"))) == 30 * 21
        tube.drop()
        assert not client.keys(f"*{key}*")


# -- updates and other repeated requests -------------------------------------------------------------------------------


def test_changes_over_cut_connections_are_done_once(
    proxied_url: str, proxy: Proxy, valkey: LocalServer, factor: int
) -> None:
    with tubes.connect(proxied_url) as queue, valkey.client() as client:
        tube = queue.create_tube("load", "utubettl")
        events: list[str] = []
        tube.on_task_change(lambda task, event: events.append(event))
        task = tube.put("x", utube="a", max_attempts=1)
        proxy.cuts = cut_sometimes
        for number in range(40 * factor):
            assert tube.update(task, data=number, pri=number % 3).data == number
            mine: Any = tube.take(timeout=0)
            assert (mine.data, mine.attempts) == (number, number + 1)
            if number % 2:
                assert tube.bury(mine, f"because of {number}").reason == f"because of {number}"
            else:
                assert mine.release().reason == "max_attempts: release"
            kicked = tube.kick(task=task, attempts=1)
            assert (kicked.state, kicked.max_attempts) == ("r", number + 2)
        proxy.cuts = lambda request: False
        assert proxy.count > 10
        calls = tube.statistics().calls
        assert [calls[name] for name in ("take", "release", "bury", "kick")] == [n * factor for n in (40, 20, 40, 40)]
        assert eventually(lambda: events.count("update") == 40 * factor)
        indexes.check(client, tube)


@pytest.mark.full
def test_changes_survive_killed_connections_and_flushed_scripts(own_server: LocalServer, factor: int) -> None:
    with tubes.connect(own_server.url, session_ttl=31.0) as queue, own_server.client() as client:
        tube = queue.create_tube("load", "utubettl", backoff=[0, 0.01])
        for number in range(30):
            tube.put(number, key=str(number), utube=str(number % 5))
        stop = threading.Event()
        errors: list[BaseException] = []

        def change(seed: int) -> None:
            rng = random.Random(seed)
            with tubes.connect(own_server.url, session_ttl=31.0) as mine:
                tube = mine.tube("load")
                acts: list[Callable[[int], object]] = [
                    lambda id: tube.update(id, data=[id, "x" * rng.randrange(500)], pri=rng.randrange(3)),
                    lambda id: tube.bury(id, "y" * rng.randrange(1, 500)),
                    lambda id: tube.kick(task=id, attempts=2),
                    lambda id: tube.select("buried", limit=3).kick(),
                    lambda id: tube.put(id, key=str(id % 30), on_duplicate="replace"),
                    lambda id: (task := tube.take(timeout=0)) and task.release(),
                ]
                while not stop.is_set():
                    try:
                        rng.choice(acts)(rng.randrange(30))
                    except (TaskNotFound, TaskNotTaken):
                        continue
                    except BaseException as error:
                        errors.append(error)
                        return

        threads = [threading.Thread(target=change, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for round in range(60 * factor):
            if round % 2:
                client.script_flush()
            else:
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            time.sleep(0.01)
        stop.set()
        for thread in threads:
            thread.join()
        assert not errors, errors
        tube.admin.release_all()
        indexes.check(client, tube)
        tube.select("buried", limit=100).kick()
        assert tube.statistics().tasks["total"] == 30
        assert {tube.put("x", key=str(number)).created_now for number in range(30)} == {False}


# -- a full server -----------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", ["fifo", "fifottl", "utube", "utubettl"])
def test_full_server_refuses_puts_and_allows_all_other_calls(own_server: LocalServer, driver: str) -> None:
    with tubes.connect(own_server.url) as queue, own_server.client() as client:
        tube = queue.create_tube("load", driver, max_attempts=1)
        timed = "ttl" in driver
        for number in range(20):
            tube.put("x" * 100, key=str(number))
        tube.delete_many(tube.put_many(range(3000))[:500])
        tube.bury(1)
        if timed:
            tube.update(2, delay=500)
        taken: Any = tube.take(timeout=0)
        client.config_set("maxmemory", 1)
        before = tube.statistics()
        with pytest.raises(ServerFull):
            tube.put("more", key="new")
        with pytest.raises(ServerFull):
            tube.put_many([tubes.Item("more", key="new"), tubes.Item("more", key="3", on_duplicate="replace")])
        assert tube.statistics() == before
        indexes.check(client, tube)
        # A put is refused before it looks for its key.
        for on_duplicate in ("keep", "raise", "replace", "update"):
            with pytest.raises(ServerFull):
                tube.put("same", key="3", on_duplicate=on_duplicate)
        assert tube.admin.oldest_ready_age() is not None
        assert tube.admin.due_histogram([1]) == [0, int(timed)]
        assert [task.id for task in tube.select("buried")] == [1]
        # Calls that change a task succeed.
        for id in (taken.id, 1, 3):
            assert tube.update(id, data="z" * 5000).data == "z" * 5000
        if timed:
            assert tube.update(3, pri=7, ttl=90, delay=40).state == "delayed"
            assert tube.update(3, delay=0).state == "ready"
        assert tube.bury(4, "because " * 500).reason == "because " * 500
        assert tube.kick(task=4, attempts=5).max_attempts == 5
        assert tube.select("buried", limit=1).kick(attempts=2) == 1
        assert taken.release().reason == "max_attempts: release"
        indexes.check(client, tube)
        client.config_set("maxmemory", 0)
        assert tube.put("room again", key="new").created_now


def test_update_whose_rank_fails_changes_nothing(url: str, valkey: LocalServer) -> None:
    picky = Driver("picky", options={"pri"}, rank=lambda task: task.pri, rank_lua="pri < 10 and pri or nil")
    with tubes.connect(url) as queue, valkey.client() as client:
        tube = queue.create_tube("load", picky)
        first, second = tube.put("a", pri=1), tube.put("b", pri=2)
        tube.bury(second)
        for task in (first, second):
            with pytest.raises(ServerRefused):
                tube.update(task, data="c", pri=20)
            assert tube.peek(task).data == task.data
        indexes.check(client, tube)
        assert tube.take(timeout=0) is not None


def test_calls_on_a_dropped_tube_raise_tubes_errors(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("load")
        task: Any = tube.put("x", key="k")
        tube.drop()
        for act in (lambda: tube.put("y", key="k"), lambda: task.update(data="y"), lambda: tube.kick(task=task)):
            with pytest.raises(TubesError):
                act()
