"""A cluster with a dead node: what concerns all tubes goes on without it, and names what is missing."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest

import tubes
from tests.contract.bench import eventually
from tests.contract.faces import AioFace, SyncFace
from tests.support.cluster import Cluster
from tubes.redis.transport import attempt, server, wire
from tubes.redis.transport.health import NodeHealth

if TYPE_CHECKING:
    from tubes.redis.connection import RedisConnection

FACES = pytest.mark.parametrize("face", [SyncFace, AioFace], ids=lambda face: face.name)
DEATHS = pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP], ids=lambda death: death.name)
NAMES = ("tube0", "tube1", "tube2", "tube3", "tube4")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(cluster_require_full_coverage="no") as cluster:
        yield cluster


class Node:
    """A node that dies."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.death = signal.SIGSTOP

    def die(self, death: signal.Signals) -> None:
        self.death = death
        if death is signal.SIGSTOP:
            self.cluster.servers[self.number].signal(death)
        else:
            self.cluster.servers[self.number].kill()

    def revive(self) -> None:
        node = self.cluster.servers[self.number]
        if self.death is signal.SIGSTOP:
            node.signal(signal.SIGCONT)
        else:
            node.start()
        assert eventually(self.cluster.is_healthy)


class Half(Node):
    """Tubes on all nodes of a cluster, of which one dies: the node of the names of tubes, or another one."""

    def __init__(self, cluster: Cluster, queue: Any, *, of_names: bool) -> None:
        store = cast("RedisConnection", queue._connection).store
        owners = {name: cluster.owner(cluster.slot(store.key(name))) for name in NAMES}
        names_owner = cluster.owner(cluster.slot(f"{store.prefix}:names"))
        super().__init__(cluster, next(owner for owner in owners.values() if (owner == names_owner) == of_names))
        self.dead = [name for name in NAMES if owners[name] == self.number]
        self.living = [name for name in NAMES if owners[name] != self.number]
        assert self.dead
        assert self.living


@FACES
@DEATHS
@pytest.mark.parametrize("of_names", [False, True], ids=["tubes", "names"])
def test_calls_on_all_tubes_go_on_without_a_dead_node(
    cluster: Cluster,
    face: type[Any],
    death: signal.Signals,
    of_names: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"{cluster.url}?prefix={uuid4().hex}"
    there = face()
    with tubes.connect(url) as first, there.connect(url) as queue, ThreadPoolExecutor() as threads:
        for name in NAMES:
            first.create_tube(name)
        assert first.tubes() == list(NAMES)
        half = Half(cluster, first, of_names=of_names)
        near, far = half.living[0], half.living[-1]
        assert queue.tubes() == list(NAMES)
        half.die(death)
        try:
            assert queue.tubes() == half.living
            assert [name for name in half.dead if f"'{name}' (its node does not reply)" not in caplog.text] == []
            assert list(queue.admin.overview()) == half.living
            first.tube(far).put("there")
            for order in ("tubes", "pri"):
                task = queue.take_any([*half.dead, *half.living], timeout=60, order=order)
                assert (task.tube, task.data) == (far, "there")
                task.release()
            waiting = threads.submit(queue.take_any, [*half.dead, near], timeout=60)
            first.tube(near).put("later")
            assert waiting.result(60).data == "later"
            assert queue.take_any([*half.dead, near], timeout=0) is None
            assert queue.take_any([*half.dead, near], timeout=0.01) is None
            with monkeypatch.context() as patch:
                patch.setattr(attempt, "PATIENCE", 0.5)
                patch.setattr(wire, "REPLY_TIMEOUT", 0.5)
                patch.setitem(server._SETTINGS, "socket_timeout", 0.5)
                with pytest.raises(tubes.ConnectionLost), tubes.connect(url) as other:
                    other.tube(half.dead[0])
            waiting = threads.submit(queue.take_any, [half.dead[0], near], timeout=60)
        finally:
            half.revive()
        first.tube(half.dead[0]).put("back")
        assert waiting.result(60).data == "back"
        assert eventually(lambda: queue.tubes() == list(NAMES))
    there.close()


@FACES
@DEATHS
def test_connect_succeeds_if_a_node_is_dead(cluster: Cluster, face: type[Any], death: signal.Signals) -> None:
    every_node = ",".join(f"127.0.0.1:{port}" for port in cluster.ports)
    there = face()
    for number in range(3):
        node = Node(cluster, number)
        node.die(death)
        try:
            with there.connect(f"redis+cluster://{every_node}?prefix={uuid4().hex}") as queue:
                assert not queue.closed
        finally:
            node.revive()
    there.close()


def test_thread_that_looks_for_a_dead_node_ends_with_the_queue(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "PATIENCE", 0.5)
    running: list[str] = []
    started = threading.Event()
    probe = NodeHealth._probe

    def record(health: NodeHealth, key: str, node: str) -> None:
        running.append(node)
        started.set()
        probe(health, key, node)
        running.remove(node)

    monkeypatch.setattr(NodeHealth, "_probe", record)
    queue = tubes.connect(f"{cluster.url}?prefix={uuid4().hex}")
    for name in NAMES:
        queue.create_tube(name)
    half = Half(cluster, queue, of_names=False)
    half.die(signal.SIGKILL)
    try:
        assert eventually(lambda: bool(queue.tubes()) and started.is_set())
        with suppress(tubes.ConnectionLost):
            queue.close()
        assert eventually(lambda: not running)
    finally:
        half.revive()


@FACES
def test_node_that_was_dead_long_ago_is_asked_again(cluster: Cluster, face: type[Any]) -> None:
    there = face()
    with there.connect(f"{cluster.url}?prefix={uuid4().hex}") as queue:
        for name in NAMES:
            queue.create_tube(name)
        known = cast("RedisConnection", queue._connection).store.server.dead
        known.update({f"127.0.0.1:{port}": time.monotonic() - 3600 for port in cluster.ports})
        assert queue.tubes() == list(NAMES)
    there.close()
