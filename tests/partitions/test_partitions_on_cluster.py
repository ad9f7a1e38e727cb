"""A tube with partitions on a cluster of three nodes: its tasks are on all of them, and it goes on if one dies."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

import tubes
import tubes.aio
from tests.contract.bench import eventually
from tests.support import rights
from tests.support.cluster import Cluster
from tests.support.internals import port_of
from tubes.partitions.layout import route

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(cluster_require_full_coverage="no") as cluster:
        yield cluster


@pytest.fixture
def queue(cluster: Cluster) -> Iterator[tubes.Queue]:
    with tubes.connect(f"{cluster.url}?prefix={uuid4().hex}") as queue:
        yield queue


def owners(cluster: Cluster, tube: tubes.Tube) -> dict[int, int]:
    """Return the node of each partition."""
    port = port_of(tube)
    store = port.connection.store
    return {number: cluster.owner(cluster.slot(store.key(name))) for number, name in enumerate(port._names)}


def test_partitions_are_spread_over_the_nodes(cluster: Cluster, queue: tubes.Queue) -> None:
    tube = queue.create_tube("crawl", "utubettl", partitions=12)
    assert Counter(owners(cluster, tube).values()) == {0: 4, 1: 4, 2: 4}
    tube.put_many(tubes.Item(number, utube=f"host {number % 30}") for number in range(90))
    assert tube.statistics().tasks["ready"] == queue.admin.overview()["crawl"].statistics.tasks["ready"] == 90
    done = []
    while task := tube.take(timeout=0):
        done.append(task.data)
        task.ack()
    assert sorted(done) == list(range(90))
    with ThreadPoolExecutor() as threads:
        for number in range(6):
            waiting = threads.submit(tube.take, 20)
            assert eventually(lambda: tube.statistics().waiting == 1)
            tube.put(number, utube=f"host {number}")
            task = waiting.result()
            assert task is not None
            assert task.data == number
            task.ack()
    tube.drop()
    assert queue.tubes() == []


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP], ids=lambda death: death.name)
def test_living_partitions_go_on_without_a_dead_node(
    cluster: Cluster, queue: tubes.Queue, death: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    tube = queue.create_tube("mail", "fifo", partitions=6)
    tube.put_many(range(6))
    nodes = owners(cluster, tube)
    manifest = cluster.owner(cluster.slot(port_of(tube).connection.store.key("mail")))
    dead = next(node for node in range(3) if node != manifest)
    living = {number for number, node in nodes.items() if node != dead}
    (cluster.servers[dead].kill if death is signal.SIGKILL else lambda: cluster.servers[dead].signal(death))()
    try:
        first = tube.take(timeout=0)  # This call finds out.
        assert first is not None
        first.release()
        assert {task.partition for task in tube.take_many(10, timeout=0)} == living
        assert {tube.put(number).partition for number in range(12)} == living
        assert tube.statistics().tasks["total"] == len(living) + 12
        assert len([*tube.select("ready")]) == 12
        assert (
            caplog.text.count(f"tube 'mail': the node of partitions {sorted(set(nodes) - living)} does not reply") == 1
        )
        while (task := tube.take(timeout=0)) is not None:
            task.ack()
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(tube.take, 60)
            tube.put("late")
            found = waiting.result()
            assert found is not None
            assert found.data == "late"
    finally:
        if death is signal.SIGKILL:
            cluster.servers[dead].start()
        else:
            cluster.servers[dead].signal(signal.SIGCONT)
        assert eventually(cluster.is_healthy)


@contextmanager
def stopped_with_a_task(cluster: Cluster, tube: tubes.Tube, other: Any) -> Generator[None]:
    """Stop the node of the only task. The process of `other` does not know it yet."""
    node = owners(cluster, tube)[tube.put("late").partition or 0]
    cluster.servers[node].signal(signal.SIGSTOP)
    try:
        health = port_of(other).connection.store.health
        health._living.update(dict.fromkeys(health._living, float("inf")))
        yield
    finally:
        cluster.servers[node].signal(signal.SIGCONT)
        assert eventually(cluster.is_healthy)


def counts(tube: tubes.Tube) -> tuple[int, int]:
    """Return the numbers of ready and of taken tasks."""
    tasks = tube.statistics().tasks
    return tasks["ready"], tasks["taken"]


def test_take_that_a_stopped_node_runs_later_is_undone(cluster: Cluster, queue: tubes.Queue) -> None:
    tube = queue.create_tube("late", "fifottl", partitions=3, ttr=600)
    assert tube.take_many(3, timeout=0) == []
    with stopped_with_a_task(cluster, tube, tube):
        assert tube.take(timeout=0) is None
    assert eventually(lambda: counts(tube) == (1, 0))


def test_take_of_asyncio_that_a_stopped_node_runs_later_is_undone(cluster: Cluster, queue: tubes.Queue) -> None:
    async def take() -> None:
        async with tubes.aio.connect(port_of(tube).url) as other:
            late = await other.tube("late")
            assert await late.take_many(3, timeout=0) == []
            with stopped_with_a_task(cluster, tube, late):
                assert await late.take(timeout=0) is None
            assert await asyncio.to_thread(eventually, lambda: counts(tube) == (1, 0))

    tube = queue.create_tube("late", "fifottl", partitions=3, ttr=600)
    asyncio.run(take())


@pytest.fixture
def dead(cluster: Cluster, queue: tubes.Queue) -> Iterator[tuple[tubes.Tube, set[int]]]:
    """Kill a node that has neither the manifest nor the names; return a tube and its living partitions."""
    tube = queue.create_tube("crawl", "fifo", partitions=12)
    tube.put_many(range(24))
    store = port_of(tube).connection.store
    kept = {cluster.owner(cluster.slot(key)) for key in (store.key("crawl"), f"{store.prefix}:names")}
    node = next(node for node in range(3) if node not in kept)
    living = {number for number, owner in owners(cluster, tube).items() if owner != node}
    cluster.servers[node].kill()
    store.health._living.clear()  # Otherwise the first call may use a reply of just now.
    yield tube, living
    cluster.servers[node].start()
    assert eventually(cluster.is_healthy)


def test_no_call_waits_for_a_put_of_another_thread_to_a_dead_node(dead: tuple[tubes.Tube, set[int]]) -> None:
    tube, living = dead
    key = next(key for key in map(str, range(99)) if route(key, 12) not in living)
    with ThreadPoolExecutor() as threads:
        putting = threads.submit(tube.put, "lost", key=key)
        for timeout in (0, 5, 0, 5):
            task = tube.take(timeout=timeout)
            assert task is not None
            task.ack()
        assert tube.put("free").partition in living
        assert tube.statistics().tasks["ready"] == 2 * len(living) - 3
        assert not putting.done()
        with pytest.raises(tubes.ConnectionLost):
            putting.result()


def test_puts_are_spread_over_the_living_partitions(dead: tuple[tubes.Tube, set[int]]) -> None:
    tube, living = dead
    counts = Counter(tube.put(number).partition for number in range(240))
    assert set(counts) == living
    assert max(counts.values()) < 60


def test_closed_queue_releases_its_tasks_on_living_nodes(
    cluster: Cluster, queue: tubes.Queue, dead: tuple[tubes.Tube, set[int]]
) -> None:
    tube, living = dead
    with tubes.connect(port_of(tube).url) as other:
        assert len(other.tube("crawl").take_many(24, timeout=0)) == 2 * len(living)
    assert tube.statistics().tasks["ready"] == 2 * len(living)


def test_documented_rights_suffice_on_a_cluster(cluster: Cluster, queue: tubes.Queue) -> None:
    queue.create_tube("crawl", "utubettl", partitions=3)
    words = [*rights.documented_rights()["worker"], "+cluster|slots", "+command"]
    words = [word.replace("tubes:*", "*") for word in words]
    for client in cluster.clients:
        client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", *words)
        client.execute_command("ACL", "LOG", "RESET")
    url = port_of(queue.tube("crawl")).url.replace("://", "://worker:secret@")
    with tubes.connect(url) as other, ThreadPoolExecutor() as threads:
        tube = other.tube("crawl")
        waiting = threads.submit(tube.take, 20)
        assert eventually(lambda: tube.statistics().waiting == 1)
        queue.tube("crawl").put(1, utube="example.com")
        task = waiting.result()
        assert task is not None
        task.ack()
    assert [client.execute_command("ACL", "LOG") for client in cluster.clients] == [[], [], []]
