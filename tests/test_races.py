"""Calls that meet at a bad moment: the other one comes between two steps of the first."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

import tubes
from tubes.conformance.faces import Face
from tubes.memory.store import MemoryStore


def meet(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, other: Callable[[], object]) -> None:
    """Have the next call of a method followed by something else, before its caller goes on."""
    method = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        answer = method(*arguments)
        monkeypatch.setattr(owner, name, method)
        other()
        return answer

    monkeypatch.setattr(owner, name, call)


def store_of(queue: tubes.Queue) -> MemoryStore:
    """What is behind a queue in memory."""
    member: Any = queue._member
    store: MemoryStore = member.store
    return store


def test_a_tube_that_is_dropped_while_it_is_looked_up_is_not_found(
    queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = queue.create_tube("t")
    with queue.session() as other:
        meet(monkeypatch, store_of(queue), "find", tube.drop)
        with pytest.raises(tubes.TubeNotFound):
            other.tube("t")


@pytest.mark.parametrize("if_not_exists", [False, True])
def test_a_tube_that_is_dropped_while_it_is_created_is_created_again(
    queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch, if_not_exists: bool
) -> None:
    with queue.session() as other:
        meet(monkeypatch, store_of(queue), "create", lambda: other.tube("t").drop())
        tube = queue.create_tube("t", if_not_exists=if_not_exists)
    tube.put("x")
    assert queue.tubes() == ["t"]
    assert queue.tube("t").take(0) is not None


def test_of_two_drivers_that_are_registered_at_a_time_under_one_name_one_is_refused(
    queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    oldest, newest = tubes.Driver("mine", order="id"), tubes.Driver("mine", order="-id")
    meet(monkeypatch, store_of(queue).registry, "admit", lambda: queue.register_driver(oldest))
    with pytest.raises(tubes.DriverExists):
        queue.register_driver(newest)
    assert queue.create_tube("t", "mine").driver == oldest


def test_statistics_of_all_tubes_leave_out_one_that_is_dropped_meanwhile(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://vanishing-{face.name}-{os.getpid()}"
    with tubes.connect(url) as other, face.connect(url) as queue:
        for name in ("a", "b", "c"):
            other.create_tube(name)
        meet(monkeypatch, getattr(queue, "inner", queue)._member, "names", other.tube("b").drop)
        assert list(queue.statistics()) == ["a", "c"]
