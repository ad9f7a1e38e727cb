"""The two faces behind one: a suite that is written once runs on threads and on asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Protocol

import tubes
from tubes.aio import AsyncQueue, AsyncTube


class Face(Protocol):
    """How a suite reaches a queue."""

    name: str

    def connect(self, url: str, **options: Any) -> Any:
        """A `Queue`, or what looks like one."""
        ...

    def begin(self, tube: Any, verb: str, *args: Any, **options: Any) -> Future[Any]:
        """Start a call that may wait; answers when it waits or has ended."""
        ...

    def close(self) -> None:
        """Stop what the face runs on."""
        ...


def _until_waiting(tube: Any, before: int, future: Future[Any]) -> Future[Any]:
    while not future.done() and tube.statistics().waiting == before:
        time.sleep(0.0005)
    return future


class SyncFace:
    """Threads."""

    name = "sync"

    def connect(self, url: str, **options: Any) -> tubes.Queue:
        return tubes.connect(url, **options)

    def begin(self, tube: Any, verb: str, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def call() -> None:
            try:
                future.set_result(getattr(tube, verb)(*args, **options))
            except BaseException as error:
                future.set_exception(error)

        before = tube.statistics().waiting
        threading.Thread(target=call, daemon=True).start()
        return _until_waiting(tube, before, future)

    def close(self) -> None: ...


class AioFace:
    """asyncio: a loop in a thread of its own, to which every call goes."""

    name = "aio"

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def connect(self, url: str, **options: Any) -> Any:
        return _Blocking(tubes.aio.connect(url, **options), self)

    def begin(self, tube: Any, verb: str, *args: Any, **options: Any) -> Future[Any]:
        before = tube.statistics().waiting
        inner: Any = tube.inner
        return _until_waiting(tube, before, self.submit(getattr(inner, verb)(*args, **options)))

    def submit(self, call: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Blocking:
    """An `AsyncQueue`, `AsyncTube` or `AsyncTask` whose methods block."""

    def __init__(self, inner: Any, face: AioFace) -> None:
        self.inner = inner
        self._face = face

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            args = tuple(arg.inner if isinstance(arg, _Blocking) else arg for arg in args)
            answer = self._face.submit(found(*args, **options)).result()
            return _Blocking(answer, self._face) if isinstance(answer, (AsyncQueue, AsyncTube)) else answer

        return call

    def __enter__(self) -> _Blocking:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
