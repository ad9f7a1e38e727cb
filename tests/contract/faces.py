"""One blocking interface to both faces, so that the same suite runs on threads and on asyncio."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import tubes
from tubes.backend.url import DEFAULT_URL

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator


T = TypeVar("T")


class Face(Protocol):
    """The way in which a suite calls a queue: blocking objects with the methods of `Queue`, `Tube` and `Task`."""

    name: str

    @property
    def connect(self) -> Callable[..., Any]:
        """Return a `Queue` or an object like it; accept the arguments of `tubes.connect`."""
        ...

    def begin(self, tube: object, method: str, *args: object, **options: object) -> Future[Any]:
        """Start a call of a tube or a queue that may wait; return when it waits or has ended."""
        ...

    def close(self) -> None:
        """Stop the event loop or threads of this face."""
        ...


def _count_waiting(target: Any) -> int:
    """Return the number of callers that wait on a tube, or on all tubes of a queue."""
    found = target.statistics()
    return sum(each.waiting for each in found.values()) if hasattr(found, "values") else int(found.waiting)


def _await_waiting(target: object, before: int, future: Future[T]) -> Future[T]:
    while not future.done() and _count_waiting(target) == before:
        time.sleep(0.0002)
    return future


def _unwrap(argument: object) -> object:
    """Unwrap an argument for the asyncio face: a task, a tube, or a list of them."""
    if isinstance(argument, list):
        return [each.inner if isinstance(each, _Blocking) else each for each in cast("list[object]", argument)]
    return argument.inner if isinstance(argument, _Blocking) else argument


class SyncFace:
    """Threads."""

    name = "sync"
    connect = staticmethod(tubes.connect)

    def begin(self, tube: object, method: str, *args: object, **options: object) -> Future[object]:
        future = Future[object]()

        def call() -> None:
            try:
                future.set_result(getattr(tube, method)(*args, **options))
            except BaseException as error:
                future.set_exception(error)

        before = _count_waiting(tube)
        threading.Thread(target=call, daemon=True).start()
        return _await_waiting(tube, before, future)

    def close(self) -> None: ...


class AioFace:
    """asyncio: a loop in a separate thread runs every call."""

    name = "aio"

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def connect(self, url: Any = DEFAULT_URL, **options: Any) -> Any:
        return self.wrap(tubes.aio.connect(url, **options))

    def begin(self, tube: Any, method: str, *args: object, **options: object) -> Future[object]:
        before = _count_waiting(tube)
        call = getattr(_unwrap(tube), method)(*map(_unwrap, args), **options)
        return _await_waiting(tube, before, self._submit(call))

    def run(self, call: Coroutine[object, None, object]) -> object:
        """Await the call in the loop and return its result."""
        return self._submit(call).result()

    def wrap(self, result: object) -> object:
        """Wrap an object of the API for asyncio so that its methods block; return other values unchanged."""
        if type(result).__module__.startswith("tubes.aio.") or hasattr(result, "__aenter__"):
            return _Blocking(result, self)
        if isinstance(result, list):
            return [self.wrap(each) for each in cast("list[object]", result)]
        return result

    def _submit(self, call: Coroutine[object, None, object]) -> Future[object]:
        async def wrapped() -> object:
            return self.wrap(await call)

        return asyncio.run_coroutine_threadsafe(wrapped(), self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Blocking:
    """An `AsyncQueue`, `AsyncTube` or `AsyncTask` whose methods block; it supports `with` and `for`."""

    def __init__(self, inner: Any, face: AioFace) -> None:
        self.inner = inner
        self._face = face

    def __getattr__(self, name: str) -> object:
        found = getattr(self.inner, name)
        if not inspect.ismethod(found):
            return self._face.wrap(found)

        def call(*args: object, **options: object) -> object:
            result = found(*map(_unwrap, args), **{name: _unwrap(value) for name, value in options.items()})
            return self._face.run(result) if inspect.iscoroutine(result) else self._face.wrap(result)

        return call

    def __enter__(self) -> object:
        return self._face.run(self.inner.__aenter__())

    def __exit__(self, *error: object) -> object:
        return self._face.run(self.inner.__aexit__(*error))

    def __iter__(self) -> Iterator[object]:
        tasks = self.inner.__aiter__()

        async def step() -> object:
            return await anext(tasks, None)

        try:
            while (task := self._face.run(step())) is not None:
                yield task
        finally:
            self._face.run(tasks.aclose())

    def __eq__(self, other: object) -> bool:
        return bool(self.inner == (other.inner if isinstance(other, _Blocking) else other))

    def __hash__(self) -> int:
        return hash(self.inner)

    def __repr__(self) -> str:
        return repr(self.inner)
