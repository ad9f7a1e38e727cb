"""Batches with cut connections, killed processes and full servers: the whole batch is put or no task of it."""

from __future__ import annotations

import random
import subprocess
import time
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.ledger import Ledger
from tests.support.processes import python
from tests.support.proxy import Proxy
from tests.support.worker import Worker
from tubes import ServerFull, TubeFull
from tubes.redis.port import batch
from tubes.redis.transport.wire import Wire
from tubes.testing import LocalServer


def staged_keys(client: Any, prefix: str = "") -> list[Any]:
    """Return the keys of staged batches."""
    return list(client.keys(f"{prefix}*:staged:*"))


def items(name: object, count: int, driver: str, keyed: bool) -> list[tubes.Item]:
    def options(name: str) -> tubes.PutOptions:
        found: tubes.PutOptions = {"utube": name} if driver == "utubettl" else {}
        if keyed:
            found["key"] = name
        return found

    return [tubes.Item(f"{name}.{n}", **options(f"{name}.{n}")) for n in range(count)]


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("keyed", [False, True], ids=["", "keys"])
@pytest.mark.parametrize("driver", ["fifo", "utubettl"])
@pytest.mark.parametrize("stages", [False, True], ids=["one call", "staged"])
def test_batches_over_cut_connections_are_done_once(
    proxied_url: str,
    proxy: Proxy,
    ledger: Ledger,
    factor: int,
    driver: str,
    stages: bool,
    keyed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if stages:
        monkeypatch.setattr(batch, "PUTS", 5)
        monkeypatch.setattr(batch, "TAKES", 7)
        monkeypatch.setattr(batch, "IDS", 6)
    batches = (10 if stages else 30) * factor
    with tubes.connect(proxied_url) as queue:
        tube = queue.create_tube("load", driver)
        proxy.cuts = lambda request: random.random() < 0.2
        for number in range(batches):
            batch_items = items(number, 20, driver, keyed)
            for item, task in zip(batch_items, tube.put_many(batch_items), strict=True):
                assert task.data == item.data
                ledger.record_put(task.data, task.id)
            tasks = tube.take_many(15, timeout=0)
            assert len(tasks) == 15
            for task in tasks:
                ledger.record_take(task.id, task.attempts, task.data)
            released = tasks[::5]
            assert all(tube.release_many(released).values())
            acked = [task for task in tasks if task not in released]
            assert all(tube.ack_many(acked).values())
            for task in acked:
                ledger.record_done(task.id, task.attempts)
        proxy.cuts = lambda request: False
        assert proxy.count > 10
        assert tube.statistics().tasks["taken"] == 0
        calls = tube.statistics().calls
        assert [calls[name] for name in ("put", "take", "ack", "release")] == [n * batches for n in (20, 15, 12, 3)]
        ledger.check(tube)


def test_interrupted_take_many_gives_its_tasks_back(
    proxied_url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tubes.connect(proxied_url) as queue:
        known, tube = queue.create_tube("known"), queue.create_tube("load")
        known.put("hello")
        assert len(known.take_many(1)) == 1  # This loads the library.
        tube.put_many(range(10))
        inner = Wire.call
        calls = 0

        def once(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            reply = inner(*args, **options)
            if calls == 1:
                raise KeyboardInterrupt
            return reply

        monkeypatch.setattr(Wire, "call", once)
        with pytest.raises(KeyboardInterrupt):
            tube.take_many(4, timeout=0)
        assert eventually(lambda: tube.statistics().tasks["taken"] == 0)
        assert tube.statistics().calls["take"] == 0
        assert [(task.data, task.attempts) for task in tube.take_many(10, timeout=0)] == [(n, 1) for n in range(10)]


@pytest.mark.full
def test_process_killed_while_staging_a_batch_puts_no_part_of_it(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url) as queue, valkey.client() as client:
        tube = queue.create_tube("load")
        prefix = url.partition("prefix=")[2]
        for kill in range(5):
            worker = Worker(url, "batches")
            assert worker.read_line() == "ready"
            assert eventually(lambda: bool(staged_keys(client, prefix)))
            time.sleep(random.random() * 0.05)
            lines = worker.kill()
            whole = sum(line.startswith("put ") for line in lines)
            total = tube.statistics().tasks["total"]
            # The last batch may have been put without a reply.
            assert total % worker.BATCH == 0, kill
            assert total // worker.BATCH in (whole, whole + 1)
            assert all(0 < client.pttl(key) <= batch.STAY for key in staged_keys(client, prefix))
            tube.truncate()
        tube.drop()


#: A program that moves tasks back and forth until it is killed.
_MOVES = """
import sys, tubes
with tubes.connect(sys.argv[1]) as queue:
    here, there = queue.tube("here"), queue.tube("there")
    print("begins", flush=True)
    while True:
        here.select("ready").move_to(there)
        there.select("ready").move_to(here)
"""


@pytest.mark.full
def test_process_killed_while_moving_tasks_loses_no_task(url: str) -> None:
    with tubes.connect(url) as queue:
        here, there = queue.create_tube("here", "fifottl"), queue.create_tube("there", "fifottl")
        here.put_many(range(1000))
        for kills in range(1, 4):
            with python("-c", _MOVES, url, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "begins\n"
                moves = here.statistics().calls["put"]
                assert eventually(lambda: here.statistics().calls["put"] > moves)  # noqa: B023
                time.sleep(random.random() * 0.02)
                process.kill()
            data = [task.data for tube in (here, there) for task in tube.select(limit=10_000)]
            assert set(data) == set(range(1000)), kills
            assert len(data) <= 1000 + 250 * kills


@pytest.mark.parametrize("count", [10, 50_000], ids=["one call", "staged"])
def test_full_server_refuses_a_whole_batch_but_allows_other_calls(own_server: LocalServer, count: int) -> None:
    with tubes.connect(own_server.url) as queue, own_server.client() as client:
        tube = queue.create_tube("load")
        tube.put_many("x" * 100 for _ in range(1000))
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", used if count == 10 else used + 3_000_000)
        before = tube.statistics()
        with pytest.raises(ServerFull):
            tube.put_many(["y" * 100] * count)
        assert tube.statistics() == before
        assert eventually(lambda: not staged_keys(client))
        client.config_set("maxmemory", 1)
        tasks = tube.take_many(500, timeout=0)
        assert all(tube.release_many(tasks[:100]).values())
        assert all(tube.ack_many(tasks[100:]).values())
        assert all(tube.delete_many(task.id for task in tasks[:100]).values())
        assert tube.statistics().tasks["total"] == 500
        client.config_set("maxmemory", 0)
        assert len(tube.put_many(["y"] * count)) == count


def test_expired_staged_batch_is_staged_again(url: str, valkey: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "PUTS", 10)
    monkeypatch.setattr(batch, "STAY", 1)
    with tubes.connect(url) as queue:
        tube = queue.create_tube("load")
        stage, lost = batch._stage, 0

        def slow(port: Any, name: str, words: list[Any]) -> Any:
            nonlocal lost
            yield from stage(port, name, words)
            lost += 1
            if lost == 1:
                time.sleep(0.01)
            else:
                monkeypatch.setattr(batch, "STAY", 60_000)

        monkeypatch.setattr(batch, "_stage", slow)
        monkeypatch.setattr(batch, "STAY", 5)
        assert len(tube.put_many(range(8))) == 8
        monkeypatch.setattr(batch, "PUTS", 4)
        assert [task.data for task in tube.put_many(range(8))] == list(range(8))
        assert tube.statistics().calls["put"] == 16


def test_batch_without_room_leaves_no_staged_data(
    url: str, valkey: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "PUTS", 4)
    with tubes.connect(url) as queue, valkey.client() as client:
        tube = queue.create_tube("load", capacity=10)
        tube.put("first")
        prefix = url.partition("prefix=")[2]
        with pytest.raises(TubeFull):
            tube.put_many(range(10))
        assert eventually(lambda: not staged_keys(client, prefix))
        assert tube.put_many(range(10), timeout=0.2) == []
        assert tube.statistics().tasks["total"] == 1
        assert len(tube.put_many(range(9), timeout=5)) == 9
