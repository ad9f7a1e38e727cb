"""Races: another call runs between two steps of a call."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest

import tubes
from tests.contract.faces import Face
from tubes.drivers.invariants import check_engine
from tubes.memory.store import MemoryStore

#: The options of a put for a key that is in use.
WAYS: list[Literal["keep", "replace", "raise"]] = ["keep", "replace", "raise"]


def run_after(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, other: Callable[[], object]) -> None:
    """Run another call right after the next call of a method, before its caller continues."""
    method = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        result = method(*arguments)
        monkeypatch.setattr(owner, name, method)
        other()
        return result

    monkeypatch.setattr(owner, name, call)


def store_of(queue: tubes.Queue) -> MemoryStore:
    """Return the store of a queue in memory."""
    member: Any = queue._connection
    store: MemoryStore = member.store
    return store


def test_a_tube_that_is_dropped_while_it_is_looked_up_is_not_found(
    queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = queue.create_tube("t")
    with queue.session() as other:
        run_after(monkeypatch, store_of(queue), "find", tube.drop)
        with pytest.raises(tubes.TubeNotFound):
            other.tube("t")


@pytest.mark.parametrize("if_not_exists", [False, True])
def test_a_tube_that_is_dropped_while_it_is_created_is_created_again(
    queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch, if_not_exists: bool
) -> None:
    with queue.session() as other:
        run_after(monkeypatch, store_of(queue), "create", lambda: other.tube("t").drop())
        tube = queue.create_tube("t", if_not_exists=if_not_exists)
    tube.put("x")
    assert queue.tubes() == ["t"]
    assert queue.tube("t").take(0) is not None


def test_one_of_two_drivers_registered_under_one_name_is_refused(
    queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    oldest, newest = tubes.Driver("mine", order="id"), tubes.Driver("mine", order="-id")
    run_after(monkeypatch, store_of(queue).registry, "check_new", lambda: queue.admin.register_driver(oldest))
    with pytest.raises(tubes.DriverExists):
        queue.admin.register_driver(newest)
    assert queue.create_tube("t", "mine").driver == oldest


def test_statistics_omit_a_tube_dropped_meanwhile(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://vanishing-{face.name}-{os.getpid()}"
    with tubes.connect(url) as other, face.connect(url) as queue:
        for name in ("a", "b", "c"):
            other.create_tube(name)
        run_after(monkeypatch, getattr(queue, "inner", queue)._connection, "names", other.tube("b").drop)
        assert list(queue.statistics()) == ["a", "c"]


def test_threads_using_the_same_keys_keep_the_tube_consistent() -> None:
    """Each key has one task at most, and each put task is done, deleted or in the tube."""
    keys = [str(number) for number in range(8)]
    with tubes.connect() as queue:
        tube = queue.create_tube("t", "utubettl", backoff=[0], max_attempts=3, capacity=6)
        made: list[int] = []

        def work(seed: int) -> None:
            rng = random.Random(seed)
            with queue.session() as mine:
                here = mine.tube("t")
                for _ in range(300):
                    key, how = rng.choice(keys), rng.choice(WAYS)
                    with contextlib.suppress(tubes.TubesError):
                        task: Any = here.put(key, key=key, on_duplicate=how, utube=key, key_ttl=0.001, timeout=0)
                        if task is None:
                            tube.select("buried", limit=1).kick(attempts=1)
                        elif task.created_now:
                            made.append(task.id)
                        if task is not None:
                            here.update(task, data=[key], pri=rng.randrange(3))
                            here.update(task, ttl=rng.choice([0, 50]), delay=rng.choice([0, 0.001]))
                    with contextlib.suppress(tubes.TubesError):
                        if taken := here.take(0):
                            end = rng.choice(["ack", "release", "bury"])
                            getattr(taken, end)()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        port: Any = tube._port
        check_engine(port.shared.engine)
        statistics = tube.statistics()
        assert len(set(made)) == len(made) == statistics.calls["put"]
        assert statistics.tasks["total"] == len(made) - statistics.tasks["done"] <= 6
