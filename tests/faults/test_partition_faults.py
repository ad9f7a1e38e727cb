"""A tube with partitions on a cluster under load, while slots move, and nodes and connections fail."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.cluster import Cluster
from tests.support.internals import port_of
from tests.support.ledger import Ledger
from tests.support.worker import Worker
from tubes import ConnectionLost, TaskNotTaken
from tubes.backend import looks
from tubes.drivers.options import SECOND
from tubes.partitions.layout import route

pytestmark = pytest.mark.full
PARTITIONS, PROCESSES = 12, 3
#: Two lanes of each partition.
LANES = [
    lane
    for number in range(PARTITIONS)
    for lane in [lane for lane in map("host {}".format, range(1000)) if route(lane, PARTITIONS) == number][:2]
]


class Load:
    """Threads that put, take and ack. Each has a queue of its own, whose settings make it a process of its own."""

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self.cluster, self.ledger = cluster, ledger
        self.url = f"{cluster.url}?prefix={uuid4().hex}"
        self.queue = tubes.connect(self.url, session_ttl=600)
        self.tube = self.queue.create_tube("load", "utubettl", partitions=PARTITIONS)
        port = port_of(self.tube)
        self.slots = [cluster.slot(port.connection.store.key(name)) for name in port._names]
        #: How many tasks of each lane were acked.
        self.done: dict[str, int] = defaultdict(int)
        self._held: dict[str, int] = defaultdict(int)
        self._lock = threading.Lock()
        self._is_over = {"put": threading.Event(), "take": threading.Event()}
        self._errors: list[BaseException] = []
        self._numbers: dict[str, int] = defaultdict(int)

    def owners(self) -> dict[str, int]:
        """Return the node of each lane."""
        return {lane: self.cluster.owner(self.slots[route(lane, PARTITIONS)]) for lane in LANES}

    def count_standing(self) -> int:
        """Return how many processes stand in the lines of all partitions."""
        port = port_of(self.tube)
        clients = [self.cluster.clients[self.cluster.owner(slot)] for slot in self.slots]
        keys = [f"{port.connection.store.key(name)}:line" for name in port._names]
        return sum(client.zcard(key) for client, key in zip(clients, keys, strict=True))

    def count(self) -> int:
        """Return the number of tasks."""
        return self.tube.statistics().tasks["total"]

    @contextmanager
    def run(self) -> Generator[None]:
        """Work in threads, then wait for the last task, and check the ledger."""
        owners = self.owners()
        threads = [
            threading.Thread(
                target=self._guard, args=(self._put, [lane for lane in LANES if owners[lane] == node], node)
            )
            for node in set(owners.values())
        ]
        threads += [threading.Thread(target=self._guard, args=(self._take, 10 + n // 2)) for n in range(2 * PROCESSES)]
        for thread in threads:
            thread.start()
        try:
            self.expect_progress()
            yield
            self.expect_progress()
            self._is_over["put"].set()
            while total := self.count():  # A backlog takes its time, but gets smaller.
                assert eventually(lambda before=total: self.count() < before), self.tube.statistics()  # type: ignore[misc]
        finally:
            for event in self._is_over.values():
                event.set()
            for thread in threads:
                thread.join()
            try:
                assert self._errors == []
                self.ledger.check(self.tube)
            finally:
                self.queue.close()

    def expect_progress(self, lanes: list[str] = LANES, tasks: int = 5) -> None:
        """Wait until these lanes have done some more tasks."""
        goals = {lane: self.done[lane] + tasks for lane in lanes}
        for _ in range(6):  # After a failure a caller may have slept for up to a second, or wait for its lost call.
            if eventually(lambda: bool(self._errors) or all(self.done[lane] >= goals[lane] for lane in lanes)):
                break
        late = [lane for lane in lanes if self.done[lane] < goals[lane]]
        assert (self._errors, late) == ([], []), (self._errors, late)

    def _guard(self, act: Callable[..., None], *args: Any) -> None:
        try:
            with tubes.connect(self.url, session_ttl=600 + args[-1]) as queue:
                act(queue.tube("load"), *args)
        except ConnectionLost:
            pass
        except BaseException as error:
            self._errors.append(error)

    def _put(self, tube: tubes.Tube, lanes: list[str], _: int) -> None:
        while not self._is_over["put"].is_set():
            lane = random.choice(lanes)
            self._numbers[lane] += 1
            key = f"{lane}/{self._numbers[lane]}"
            self.ledger.put(tube, key, utube=lane)
            time.sleep(0.002)

    def _take(self, tube: tubes.Tube, _: int) -> None:
        while not self._is_over["take"].is_set():
            try:
                task = tube.take(timeout=0.5)
            except ConnectionLost:
                continue
            if task is not None:
                self._handle(task)

    def _handle(self, task: tubes.Task) -> None:
        lane = task.data.partition("/")[0]
        with self._lock:
            self._held[lane] += 1
            assert self._held[lane] == 1, f"lane {lane!r} is in flight twice"
        self.ledger.record_take(task.id, task.attempts, task.data)
        time.sleep(random.random() * 0.003)
        with self._lock:
            self._held[lane] -= 1
        while not self._ack(task):
            pass  # The task stays taken until its node has got the ack.
        self.done[lane] += 1

    def _ack(self, task: tubes.Task) -> bool:
        mark = task.id, task.attempts
        try:
            task.ack()
        except ConnectionLost:
            self.ledger.record_unsure_acks({mark})
            return self._is_over["take"].is_set()
        except TaskNotTaken:
            assert task.attempts in self.ledger.maybe[task.id], f"{task} was lost"
            return True
        self.ledger.record_done(*mark)
        return True


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    settings: dict[str, Any] = {
        "appendfsync": "always",
        "cluster_require_full_coverage": "no",
        "repl_diskless_sync_delay": 0,
    }
    with Cluster(**settings) as cluster:
        yield cluster


@pytest.fixture
def load(cluster: Cluster, ledger: Ledger) -> Load:
    return Load(cluster, ledger)


# -- faults ------------------------------------------------------------------------------------------------------------


def move_slots(load: Load) -> None:
    for slot in load.slots:
        load.cluster.move(slot)
        time.sleep(0.05)


def add_node(load: Load) -> None:
    new = load.cluster.add()
    for slot in load.slots[::4]:
        load.cluster.move(slot, new)
    load.expect_progress()


def add_replica(cluster: Cluster, master: int) -> int:
    replica = cluster.add()
    assert eventually(lambda: cluster.id(master) in str(cluster.clients[replica].execute_command("CLUSTER", "NODES")))
    cluster.clients[replica].execute_command("CLUSTER", "REPLICATE", cluster.id(master))
    assert eventually(lambda: cluster.clients[replica].info("replication").get("master_link_status") == "up")
    return replica


def is_master(cluster: Cluster, number: int) -> bool:
    return bool(cluster.clients[number].info("replication")["role"] == "master")


def fail_over(load: Load) -> None:
    replica = add_replica(load.cluster, 1)
    load.expect_progress()
    load.cluster.clients[replica].execute_command("CLUSTER", "FAILOVER")
    assert eventually(lambda: is_master(load.cluster, replica))


def kill_master(load: Load) -> None:
    """Kill a master, whose replica has all data: no write is confirmed after the pause."""
    replica = add_replica(load.cluster, 1)
    load.expect_progress()
    client = load.cluster.clients[1]
    client.execute_command("CLIENT", "PAUSE", 5000, "WRITE")
    assert eventually(lambda: client.info("replication")["slave0"]["lag"] == 0)
    offset = client.info("replication")["master_repl_offset"]
    assert eventually(lambda: load.cluster.clients[replica].info("replication")["slave_repl_offset"] >= offset)
    load.cluster.servers[1].kill()
    assert eventually(lambda: is_master(load.cluster, replica))


def kill_node(load: Load) -> None:
    for number in range(3):
        load.cluster.servers[number].kill()
        load.cluster.servers[number].start()
        assert eventually(load.cluster.is_healthy)
        load.expect_progress(tasks=1)


def stop_node(load: Load) -> None:
    live_without(load, 3.0, signal.SIGSTOP)


def lose_node(load: Load) -> None:
    live_without(load, 15.0, signal.SIGKILL)


def live_without(load: Load, seconds: float, death: signal.Signals) -> None:
    """Let a node be dead for a while: the lanes on the others go on."""
    node = load.cluster.servers[1]
    living = [lane for lane, owner in load.owners().items() if owner != 1]
    end = time.monotonic() + seconds
    (node.kill if death is signal.SIGKILL else lambda: node.signal(death))()
    while time.monotonic() < end:
        load.expect_progress(living, tasks=1)
    (node.start if death is signal.SIGKILL else lambda: node.signal(signal.SIGCONT))()
    assert eventually(load.cluster.is_healthy)


def cut_connections(load: Load) -> None:
    for _ in range(20):
        for client in load.cluster.clients:
            for kind in ("normal", "pubsub"):
                client.execute_command("CLIENT", "KILL", "TYPE", kind)
        time.sleep(random.random() / 5)


FAULTS = [move_slots, add_node, fail_over, kill_master, kill_node, stop_node, lose_node, cut_connections]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_partitions_lose_no_task_and_share_no_lane(load: Load, fault: Callable[[Load], None]) -> None:
    with load.run():
        fault(load)


# -- processes that were woken -----------------------------------------------------------------------------------------


def test_others_take_the_tasks_for_which_a_stopped_process_was_woken(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "LOOK", 3 * SECOND)
    monkeypatch.setattr(looks, "HOME", 3 * SECOND)
    worker = Worker(load.url, "sync")
    try:
        assert worker.read_line() == "ready"
        assert eventually(lambda: load.count_standing() == PARTITIONS)
        worker.signal(signal.SIGSTOP)
        got: list[tubes.Task | None] = []
        taking = threading.Thread(target=lambda: got.extend(load.tube.take(timeout=30) for _ in range(PARTITIONS)))
        taking.start()
        assert eventually(lambda: load.count_standing() == 2 * PARTITIONS)
        for lane in LANES[::2]:
            load.ledger.put(load.tube, f"{lane}/0".replace(" ", "_"), utube=lane)
        taking.join()
        assert sorted(str(task.utube) for task in got if task is not None) == sorted(LANES[::2])
        for task in got:
            assert task is not None
            load.ledger.work(task)
    finally:
        load.ledger.read(worker.kill())
    load.ledger.check(load.tube)
    load.queue.close()
