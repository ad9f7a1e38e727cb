"""The memory of remembered keys: it does not outgrow their number, and later calls free it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import tubes
from tests.contract.bench import eventually
from tests.support.internals import port_of
from tubes.drivers.keys import Keys, quick_digest, stable_digest
from tubes.redis.transport.channel import ThreadChannel
from tubes.testing import LocalServer, ManualClock


def keys_of(tube: tubes.Tube) -> Keys:
    shared: Any = tube._port.shared
    keys: Keys = shared.engine._keys
    return keys


def test_reused_key_is_stored_once(queue: tubes.Queue, url: str, valkey: LocalServer) -> None:
    with tubes.connect(url) as on_server, valkey.client() as client:
        for place in (queue, on_server):
            tube = place.create_tube("seen", key_ttl=3600)
            for _ in range(100):
                tube.delete(tube.put(1, key="k", on_duplicate="replace"))
        assert len(list(keys_of(queue.tube("seen")).all_known())) == 1
        assert list(map(len, client.hvals(f"{port_of(tube).shared.key}:known"))) == [21]


def test_expired_keys_are_free(queue: tubes.Queue, clock: ManualClock) -> None:
    tube = queue.create_tube("seen", key_ttl=60)
    tube.delete_many(tube.put_many(tubes.Item(n, key=f"{n}") for n in range(1000)))
    clock.advance(60)
    assert tube.put(0, key="999").created_now


def test_key_that_leaves_removes_the_expired_ones_of_its_bucket(queue: tubes.Queue, clock: ManualClock) -> None:
    tube = queue.create_tube("seen")
    keys, digest = keys_of(tube), quick_digest("k") % (1 << 16)
    clock.advance(60)
    now = port_of(tube).clock.micros()
    for key_ttl in (60, 0):
        for other, until in ((digest, now - 1), (digest | 1 << 16, now), (digest | 1 << 17, now + 1)):
            keys.remember(now - 2, other, 0, until)
        tube.delete(tube.put(1, key="k", key_ttl=key_ttl, on_duplicate="replace"))
        assert set(keys.all_known()) - {quick_digest("k")} == {digest | 1 << 17}


def test_known_keys_share_a_bucket_and_expire_in_their_own_order() -> None:
    keys = Keys(quick_digest)
    digests = [-number << 16 for number in range(50)]
    for number, digest in enumerate(digests):
        keys.remember(0, digest, number, 100 - number % 7 * 10)
    assert [keys.find_known(digest) for digest in digests] == [(n, 100 - n % 7 * 10) for n in range(50)]
    keys.remember(60, 0, 7, 200)
    assert {keys.find_known(digest) for digest in digests if keys.find_known(digest)} == {
        (7, 200), *((n, 100 - n % 7 * 10) for n in range(1, 50) if n % 7 < 4)
    }  # fmt: skip


def test_known_key_takes_at_most_60_bytes_in_memory() -> None:
    keys = Keys(quick_digest)
    tracemalloc.start()
    # Fill buckets as much as a million keys would.
    for number in range(4000):
        keys.remember(0, number % 256 | number << 16, number, number + 1)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 4000 * 60


def test_digests_of_a_folder_are_the_same_in_each_process() -> None:
    assert stable_digest("k") == -6029533338027043741
    assert stable_digest("\ud800") != stable_digest("k")


def test_known_key_takes_at_most_60_bytes_on_a_server(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url) as queue, valkey.client() as client:
        tube = queue.create_tube("seen", key_ttl=3600)
        key = port_of(tube).shared.key
        tube.delete_many(tube.put_many(tubes.Item(n, key="https://example.com/" * 5 + str(n)) for n in range(3000)))
        assert sum(client.memory_usage(f"{key}:{part}", samples=0) or 0 for part in ("keys", "known")) < 3000 * 60


def test_server_forgets_expired_keys_while_a_session_is_alive(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url, session_ttl=0.5) as queue, valkey.client() as client:
        tube = queue.create_tube("seen", key_ttl=0.001)
        tube.delete_many(tube.put_many(tubes.Item(n, key=f"{n}") for n in range(150)))
        key = port_of(tube).shared.key
        assert eventually(lambda: client.exists(f"{key}:keys", f"{key}:known") == 0)


def test_one_renewal_frees_hundreds_of_expired_keys(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url) as queue, valkey.client() as client:
        tube = queue.create_tube("seen", key_ttl=0.001)
        tube.delete_many(tube.put_many(tubes.Item(n, key=f"{n}") for n in range(300)))
        shared = port_of(tube).shared
        assert client.hlen(f"{shared.key}:known") > 200
        channel = ThreadChannel(shared.store.server, "b")
        shared.store._renew_tokens(channel, set())
        channel.close()
        assert client.hlen(f"{shared.key}:known") == 0


def test_key_of_a_later_task_is_remembered_for_its_whole_time(queue: tubes.Queue, clock: ManualClock) -> None:
    tube = queue.create_tube("seen", key_ttl=60)
    tube.delete(tube.put("first", key="k"))
    clock.advance(30)
    tube.delete(tube.put("second", key="k", on_duplicate="replace"))
    clock.advance(30)
    assert not tube.put("third", key="k").created_now
    clock.advance(30)
    assert tube.put("fourth", key="k").created_now
