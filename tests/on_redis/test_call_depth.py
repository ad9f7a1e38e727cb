"""The number of functions between a call and the socket."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from inspect import CO_GENERATOR
from types import CodeType, FrameType
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tubes.redis.transport.channel import ThreadChannel
from tubes.redis.waiting.wait_loop import WaitLoop

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
        for _ in range(2):  # At first the server may not have the library.
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


#: The functions between a take on an empty tube and the request that waits, and the files that they are in.
WAITING_TAKE = 19, 8


def test_waiting_take_reaches_its_request_through_few_functions(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path: dict[CodeType, None] = {}
    sent = threading.Event()

    def record(frame: FrameType, event: str, arg: object) -> None:
        """Record generators, and the stack of each send and of each message to the thread that waits."""
        code = frame.f_code
        is_generator = event == "call" and code.co_flags & CO_GENERATOR and code.co_name != "<genexpr>"
        is_send = event == "c_call" and getattr(arg, "__name__", "") in {"sendall", "put", "start_new_thread"}
        one: FrameType | None = frame
        while (is_generator or is_send) and not sent.is_set() and one is not None:
            if one.f_globals["__name__"].startswith("tubes"):
                path[one.f_code] = None
            one = None if is_generator else one.f_back
        if ThreadChannel.begin_wait.__code__ in path:
            sent.set()

    def run(loop: WaitLoop) -> None:
        sys.setprofile(record)
        serve_waiters(loop)

    serve_waiters = WaitLoop._run
    monkeypatch.setattr(WaitLoop, "_run", run)
    with tubes.connect(url) as queue:
        tube = queue.create_tube("mail", "fifottl")
        shared = tube._port.shared
        for _ in range(2):  # At first the server may not have the library.
            path.clear()
            sent.clear()
            sys.setprofile(record)
            try:
                tube.take(timeout=0.2)
            finally:
                sys.setprofile(None)
            assert sent.is_set()
            assert eventually(lambda: shared.queue.stale is None and not shared.wait_loop.is_running)
    functions = [code.co_qualname for code in path]
    files = {code.co_filename for code in path}
    assert len(functions) <= WAITING_TAKE[0], functions
    assert len(files) <= WAITING_TAKE[1], files
