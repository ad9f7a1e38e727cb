"""The ack of a whole chunk has the same effects as an ack that looks at each of its tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

import tubes
from tests.contract.bench import eventually
from tests.spark.test_streams import LEASE, Harness, take, take_of
from tests.support.internals import port_of
from tubes.testing import LocalServer, ManualClock

SIZE = 8
#: The task to which something happens: the first one, which other consumers take first.
ONE = 0


class Scene:
    """A tube, and a stream that has taken a chunk of its tasks."""

    def __init__(self, url: str, driver: str, case: Case) -> None:
        self.clock = ManualClock()
        self._harness = Harness(url, self.clock)
        self.queue = self._harness.other
        self.tube = self._harness.tube(driver, 0, **case.options)
        self.tube.put_many(tubes.Item(number, **case.item(number)) for number in range(SIZE + 2))
        self.stream = self._harness.open()
        self.chunks = self.stream.take(1, SIZE)
        self._events: list[tuple[int, str]] = []
        self._listens = False

    def lose_lease(self) -> None:
        self._harness.crash(self.stream, LEASE + 1)
        self.stream = self._harness.open()

    def skip(self) -> None:
        self.stream.claim.skip(self.tube, [(ONE, take_of(self.chunks, ONE))])

    def listen(self) -> None:
        self._listens = True
        self.tube.on_task_change(lambda task, event: self._events.append((task.id, event)))

    def look_at_each(self, client: Any) -> None:
        """Record the take of each task, as for a chunk of several takes."""
        key = f"{port_of(self.tube).shared.key}:stream:s"
        ids, attempts, takes = client.hget(key, "1.0").split(b":")
        if b" " not in takes:
            client.hset(key, "1.0", b":".join([ids, attempts, b" ".join([takes] * len(ids.split()))]))

    def effects(self) -> dict[str, Any]:
        """Ack the batch, and return all that others see of it."""
        acked = self.stream.ack(1)
        last = (self.tube.put("last").id, "put")
        assert not self._listens or eventually(lambda: last in self._events)
        before = self._events[: self._events.index(last)] if self._listens else []
        statistics = self.tube.statistics()
        return {
            "acked": acked,
            "events": before,
            "again": self.stream.ack(1),
            "tasks": statistics.tasks,
            "calls": statistics.calls,
            "left": sorted((task.id, task.state, task.attempts, task.data, task.key) for task in self.tube.select()),
            "done": sorted((task.id, task.why, task.attempts) for task in self.tube.select("done")),
            "put again": self.tube.put("again", key="key 1", on_duplicate="keep").id,
            "batches": (self.stream.first, self.stream.last),
            "next": [chunk.ids for chunk in self.stream.take(2, 5)],
            "problems": self.queue.admin.check("t"),
        }


class Case(NamedTuple):
    """What happens to the chunk before its ack, and the number of acked tasks."""

    acked: int
    act: Callable[[Scene], object] = lambda scene: None
    options: Mapping[str, Any] = MappingProxyType({})
    item: Callable[[int], dict[str, Any]] = lambda number: {}
    drivers: tuple[str, ...] = ("fifo", "fifottl")


def steal(scene: Scene) -> None:
    scene.tube.select("taken", limit=1).release()
    take(scene.tube)


def lose(*acts: Callable[[Scene], object]) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        scene.lose_lease()
        for act in acts:
            act(scene)

    return change


def skip_then(act: Callable[[Scene], object]) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        act(scene)
        scene.skip()

    return change


def listen_and_cancel(scene: Scene) -> None:
    scene.listen()
    scene.tube.cancel(ONE)


def bury(scene: Scene) -> None:
    scene.tube.bury(ONE)


def kick(scene: Scene) -> None:
    bury(scene)
    scene.tube.select("buried").kick()


def move(scene: Scene) -> None:
    assert scene.tube.select("ready", limit=1).move_to(scene.queue.create_tube("there")) == 1


def retake(scene: Scene) -> None:
    take(scene.tube)
    scene.stream.retake(1)


def take_others(scene: Scene) -> None:
    take(scene.tube)
    scene.stream.take(2, 1)


CASES: dict[str, Case] = {
    "nothing": Case(SIZE),
    "others are taken": Case(SIZE, take_others),
    "released": Case(SIZE, lambda scene: scene.tube.select("taken", limit=1).release()),
    "all released": Case(SIZE, lambda scene: scene.tube.admin.release_all()),
    "acked": Case(SIZE - 1, lambda scene: scene.stream.tube.ack(ONE)),
    "acked with a result": Case(
        SIZE - 1, lambda scene: scene.stream.tube.ack(ONE, result="done"), item=lambda _: {"keep_done": 60}
    ),
    "cancelled": Case(SIZE - 1, lambda scene: scene.tube.cancel(ONE)),
    "deleted": Case(SIZE - 1, lambda scene: scene.tube.delete(ONE)),
    "buried": Case(SIZE - 1, bury),
    "buried and kicked": Case(SIZE - 1, kick),
    "lease lost, one moved": Case(SIZE - 1, lose(move)),
    "updated": Case(SIZE, lambda scene: scene.tube.update(ONE, data="new")),
    "expired": Case(
        SIZE - 1,
        lambda scene: scene.clock.advance(LEASE - 1),
        item=lambda number: {"ttl": 20} if number == ONE else {},
        drivers=("fifottl",),
    ),
    "not yet expired": Case(SIZE, item=lambda number: {"ttl": 20 + number}, drivers=("fifottl",)),
    "touched": Case(
        SIZE, lambda scene: scene.stream.tube.touch(ONE, 5), item=lambda _: {"ttl": 20, "ttr": 10}, drivers=("fifottl",)
    ),
    "ttr restarted": Case(
        SIZE, lambda scene: scene.stream.tube.touch(ONE, ttr=5), item=lambda _: {"ttr": 10}, drivers=("fifottl",)
    ),
    "taken by another consumer": Case(SIZE - 1, steal),
    "lease lost": Case(SIZE, lose()),
    "lease lost, one taken": Case(SIZE - 1, lose(lambda scene: take(scene.tube))),
    "lease lost, all taken again": Case(SIZE, lose(lambda scene: scene.stream.retake(1))),
    "lease lost, the others taken again": Case(SIZE - 1, lose(retake)),
    "skipped": Case(SIZE, skip_then(lambda scene: None)),
    "skipped and kicked": Case(SIZE - 1, skip_then(kick)),
    "skipped and lost": Case(SIZE - 1, skip_then(lambda scene: scene.lose_lease())),
    "done tasks kept": Case(SIZE, options={"keep_done": 60}),
    "a done task kept": Case(SIZE, item=lambda number: {"keep_done": 60} if number == ONE else {}),
    "a key": Case(SIZE, item=lambda number: {"key": f"key {number}"} if number == 1 else {}),
    "a remembered key": Case(SIZE, item=lambda number: {"key": "key 1", "key_ttl": 60} if number == 1 else {}),
    "a listener": Case(SIZE, Scene.listen),
    "a listener and a cancelled task": Case(SIZE - 1, listen_and_cancel),
    "a rate": Case(SIZE, options={"rate": "10/min", "burst": 10}),
    "a capacity": Case(SIZE, options={"capacity": 20}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "name"), [(driver, name) for name, case in CASES.items() for driver in case.drivers]
)
def test_ack_at_once_has_effects_of_single_acks(url: str, valkey: LocalServer, driver: str, name: str) -> None:
    case = CASES[name]
    one, other = (Scene(f"{url}{suffix}", driver, case) for suffix in "ab")
    for scene in (one, other):
        case.act(scene)
    other.look_at_each(valkey.client())
    effects = one.effects()
    assert effects == other.effects()
    assert (effects["acked"], effects["problems"]) == (case.acked, [])


@pytest.mark.parametrize("driver", ["fifo", "fifottl"])
def test_unchanged_chunk_is_acked_without_looking_at_its_tasks(url: str, valkey: LocalServer, driver: str) -> None:
    scene, client = Scene(url, driver, Case(SIZE)), valkey.client()
    client.config_resetstat()
    assert scene.stream.ack(1) == SIZE
    commands = client.info("commandstats")
    assert "cmdstat_zremrangebyscore" in commands
    assert not {"cmdstat_zmscore", "cmdstat_zrem"} & commands.keys()
