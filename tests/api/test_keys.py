"""What is kept of keys that are remembered: not more than there are, and not for longer than somebody comes by."""

from __future__ import annotations

from typing import Any

import tubes
from tests.support.internals import port_of
from tubes.conformance.bench import eventually
from tubes.drivers.keys import Keys
from tubes.testing import LocalServer, ManualClock


def keys_of(tube: tubes.Tube) -> Keys:
    shared: Any = tube._port.shared
    keys: Keys = shared.engine._keys
    return keys


def test_reused_key_is_stored_once(queue: tubes.Queue) -> None:
    tube = queue.create_tube("seen", key_ttl=3600)
    for _ in range(1000):
        tube.delete(tube.put(1, key="k", on_duplicate="replace"))
    assert len(keys_of(tube)._ends) < 100


def test_expired_keys_are_free_and_forgotten_a_few_per_call(queue: tubes.Queue, clock: ManualClock) -> None:
    tube = queue.create_tube("seen", key_ttl=60)
    tube.delete_many(tube.put_many(tubes.Item(n, key=f"{n}") for n in range(1000)))
    clock.advance(60)
    kept = len(keys_of(tube)._gone)
    for number in range(20):
        assert tube.put(number, key=f"{999 - number}").created_now
        assert kept - 20 <= len(keys_of(tube)._gone) < kept
        kept = len(keys_of(tube)._gone)


def test_server_forgets_expired_keys_on_any_call(url: str, valkey: LocalServer) -> None:
    clock = ManualClock()
    with tubes.connect(url, clock=clock) as queue, valkey.client() as client:
        tube = queue.create_tube("seen", "fifottl", key_ttl=60)
        tube.delete_many(tube.put_many(tubes.Item(n, key=f"{n}") for n in range(150)))
        key = port_of(tube).shared.key
        tube.put("later", delay=60)
        tube.put("later still", delay=61)
        for left in (50, 0):
            clock.advance(60)
            tube.statistics()
            assert client.hlen(f"{key}:keys") == client.zcard(f"{key}:seen") == left


def test_server_forgets_expired_keys_while_a_session_is_alive(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url, session_ttl=0.5) as queue, valkey.client() as client:
        tube = queue.create_tube("seen", key_ttl=0.001)
        tube.delete_many(tube.put_many(tubes.Item(n, key=f"{n}") for n in range(150)))
        key = port_of(tube).shared.key
        assert eventually(lambda: client.exists(f"{key}:keys", f"{key}:seen") == 0)


def test_key_of_a_later_task_is_remembered_for_its_whole_time(queue: tubes.Queue, clock: ManualClock) -> None:
    tube = queue.create_tube("seen", key_ttl=60)
    tube.delete(tube.put("first", key="k"))
    clock.advance(30)
    tube.delete(tube.put("second", key="k", on_duplicate="replace"))
    clock.advance(30)
    assert not tube.put("third", key="k").created_now
    clock.advance(30)
    assert tube.put("fourth", key="k").created_now
