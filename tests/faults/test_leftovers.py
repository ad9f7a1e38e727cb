"""Keys that tubes, sessions and processes leave on a server after their end."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import redis

import tubes
from tests.contract.bench import eventually
from tests.support.internals import port_of
from tests.support.worker import Worker
from tubes.redis.options_version import OptionsVersion
from tubes.testing import ManualClock

if TYPE_CHECKING:
    from tubes.testing import LocalServer

OPTIONS: dict[str, dict[str, Any]] = {
    "fifo": {},
    "fifottl": {"ttl": 50, "ttr": 20, "pri": 3},
    "limfifottl": {"ttl": 50, "delay": 0},
    "utube": {"utube": "lane"},
    "utubettl": {"utube": "lane", "ttl": 50, "pri": 1},
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("driver", OPTIONS)
def test_emptied_tube_has_few_keys_and_dropped_tube_has_no_keys(valkey: LocalServer, driver: str) -> None:
    prefix = uuid4().hex
    with tubes.connect(f"{valkey.url}?prefix={prefix}") as queue, valkey.client() as client:

        def keys() -> set[Any]:
            return set(client.keys(f"{prefix}*"))

        tube = queue.create_tube("load", driver)
        new = keys()
        for _ in range(2):
            for number in range(50):
                tube.put(number, **OPTIONS[driver])
            for number in range(50):
                task = tube.take(timeout=0)
                assert task is not None
                if number % 5 == 0:
                    task.bury()
                elif number % 5 == 1:
                    task.release()
                else:
                    task.ack()
            tube.select("buried", limit=50).kick()
            assert len(keys()) > len(new)
            while (task := tube.take(timeout=0)) is not None:
                task.ack()
            assert keys() == new
        tube.put("last")
        tube.drop()
        assert keys() == set()


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("driver", ["utube", "utubettl"])
def test_lanes_with_cooldowns_blocks_and_limits_leave_no_keys(valkey: LocalServer, driver: str) -> None:
    prefix, clock = uuid4().hex, ManualClock()
    with tubes.connect(f"{valkey.url}?prefix={prefix}", clock=clock) as queue, valkey.client() as client:

        def keys() -> set[Any]:
            return set(client.keys(f"{prefix}*"))

        tube = queue.create_tube("load", driver, interval=5, jitter=0.5, order="round_robin", max_in_flight=2)
        new = keys()
        for _ in range(3):
            for number in range(50):
                tube.put(number, utube=str(number % 20))
            tube.lane("1").block(30)
            tube.lane("nobody").block(30)
            tube.lane("2").configure(interval=1, max_in_flight=5)
            tube.lane("nobody else").configure(interval=1)
            for _ in range(8):
                while (task := tube.take(timeout=0)) is not None:
                    task.ack()
                clock.advance(8)
            assert [utube.name for utube in tube.lanes()] == ["2", "nobody else"]
            tube.lane("2").configure(interval=None)
            tube.lane("2").configure(max_in_flight=None)
            tube.lane("nobody else").configure(interval=None, max_in_flight=None)
            assert keys() == new
        tube.lane("3").block(5)
        tube.truncate()
        assert keys() == new
        tube.lane("3").block(5)
        tube.drop()
        assert keys() == set()


def test_a_session_that_has_ended_leaves_nothing_in_its_tubes(url: str, valkey: LocalServer) -> None:
    async def work() -> None:
        async with tubes.aio.connect(url) as queue:
            first, second = await queue.tube("first"), await queue.tube("second")
            for _ in range(3):
                await asyncio.gather(
                    *(call for tube in (first, second) for call in (tube.statistics(), tube.put(1), tube.put(2)))
                )
                for tube in (first, second):
                    tasks = await asyncio.gather(*(tube.take(timeout=1) for _ in range(2)))
                    await asyncio.gather(*(task.ack() for task in tasks if task is not None))

    with tubes.connect(url) as queue, valkey.client() as client:
        made = [queue.create_tube(name) for name in ("first", "second")]
        asyncio.run(work())
        before = [client.hlen(port_of(tube).shared.key) for tube in made]
        asyncio.run(work())
        assert [client.hlen(port_of(tube).shared.key) for tube in made] == before


@pytest.mark.full
def test_killed_processes_that_waited_leave_nothing_behind(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url) as queue, valkey.client() as client:
        tube = queue.create_tube("load")
        key: Any = port_of(tube).shared.key
        worker = Worker(url, "sync")
        assert worker.read_line() == "ready"
        assert eventually(lambda: client.hlen(f"{key}:waiting") == 1)
        worker.kill()
        # Long after its last call.
        process = client.hkeys(f"{key}:waiting")[0]
        client.hset(f"{key}:waiting", process, "1 1")

        def is_forgotten() -> bool:
            tube.statistics()
            return bool(client.hlen(f"{key}:waiting") == 0)

        assert eventually(is_forgotten)


@pytest.mark.full
def test_session_reopened_after_its_lease_expired_can_ack(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url) as queue, valkey.client() as client:
        tube = queue.create_tube("load")
        tube.put("job")
        port: Any = tube._port
        # Its lease is over, but no client has noticed yet.
        client.zadd(f"{port.shared.key}:leases", {port.session[1]: 1})
        client.hset(port.shared.key, "soonest", 1)
        queue.tube("load")
        task = tube.take(timeout=0)
        queue.tube("load")
        assert task is not None
        assert task.ack().state == "done"


@pytest.mark.full
def test_a_client_is_kept_for_as_long_as_its_store(valkey: LocalServer) -> None:
    client = valkey.client()
    alive = weakref.ref(client)
    with tubes.connect(client) as queue:
        del client
        gc.collect()
        assert alive() is not None
        assert queue.tubes() is not None


@pytest.mark.sample(2)
@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}, {"socket_timeout": 0.01}])
def test_custom_client_settings_do_not_interfere(valkey: LocalServer, options: dict[str, Any]) -> None:
    client: Any = redis.Redis(unix_socket_path=str(valkey.socket), **options)
    name = uuid4().hex
    events: list[str] = []
    with client, tubes.connect(client) as queue:
        tube = queue.create_tube(name)
        tube.on_task_change(lambda task, event: events.append(event))
        assert tube.take(timeout=0.05) is None
        tube.put({"a": 1})
        task = tube.take(timeout=0)
        assert task is not None
        assert task.data == {"a": 1}
        task.ack()
        assert eventually(lambda: events == ["put", "take", "delete"])
        tube.drop()


def test_queue_closes_while_one_of_its_tubes_vanishes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tubes.connect(url, session_ttl=31.0) as other:
        queue = tubes.connect(url)
        tasks = [queue.create_tube(name).put("job") for name in ("gone", "load")]
        assert all(queue.tube(task.tube).take(timeout=0) for task in tasks)
        lost = port_of(queue.tube("gone")).shared
        function = OptionsVersion.function

        def drop_and_run(version: OptionsVersion, method: str) -> Any:
            lost.handle_drop()  # Like the thread that renews the leases.
            return function(version, method)

        monkeypatch.setattr(OptionsVersion, "function", drop_and_run)
        queue.close()
        monkeypatch.undo()
        assert other.tube("load").statistics().tasks["ready"] == 1
