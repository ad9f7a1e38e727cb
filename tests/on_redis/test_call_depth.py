"""The number of functions between a call and the socket."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import CO_GENERATOR
from types import FrameType
from typing import Any

import pytest

import tubes

Act = Callable[[tubes.Task], object]

CALLS: dict[str, tuple[int, Act]] = {
    "put": (4, lambda task: task._tube.put("hello")),
    "take": (4, lambda task: task._tube.take(0)),
    "ack": (5, tubes.Task.ack),
    "release": (6, tubes.Task.release),
    "release with options": (6, lambda task: task._tube.release(task, 1, reason="why")),
    "bury": (6, tubes.Task.bury),
    "delete": (6, tubes.Task.delete),
    "update": (6, lambda task: task.update(data="other")),
    "kick of a task": (6, tubes.Task.kick),
    "release_all": (5, lambda task: task._tube.admin.release_all()),
    "touch": (6, lambda task: task.touch(1)),
    "checkpoint": (7, lambda task: task.checkpoint({"page": 7}, progress=0.5)),
    "peek": (6, tubes.Task.peek),
}


class Spy:
    """A socket that records the functions that lead to a request."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self.paths: list[list[str]] = []
        self._generators: dict[FrameType, None] = {}

    def record_generator(self, frame: FrameType, event: str, arg: object) -> None:
        """Record generators too: one that has yielded a call is part of the path, although it is not on the stack."""
        if event == "call" and frame.f_code.co_flags & CO_GENERATOR:
            self._generators[frame] = None

    def sendall(self, data: bytes) -> None:
        frame: FrameType | None = sys._getframe(1)
        path: dict[FrameType, None] = {}
        while frame is not None and frame.f_globals["__name__"].startswith("tubes"):
            path[frame] = None
            frame = frame.f_back
        self.paths.append([one.f_code.co_qualname for one in path | self._generators])
        self._sock.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@pytest.mark.parametrize("method", CALLS)
def test_call_reaches_the_socket_through_few_functions(url: str, method: str) -> None:
    limit, act = CALLS[method]
    spies: list[Spy] = []
    with tubes.connect(url) as queue:
        tube = queue.create_tube("mail", "fifottl")
        for _ in range(2):  # At first the server requests the script.
            tube.put("hello")
            task = tube.take(0)
            assert task is not None
            wire: Any = tube._port._channel._only  # type: ignore[attr-defined]
            wire._sock = spy = Spy(wire._sock)
            spies.append(spy)
            sys.setprofile(spy.record_generator)
            try:
                act(task)
            finally:
                sys.setprofile(None)
                wire._sock = spy._sock
    paths = spies[-1].paths
    assert len(paths) == 1
    assert len(paths[0]) <= limit, paths
