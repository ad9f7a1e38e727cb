"""The two faces behind one: a suite that is written once runs on threads and on asyncio."""

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
    """How a suite reaches a queue. What it answers has the names of `Queue`, `Tube` and `Task`; it blocks."""

    name: str

    @property
    def connect(self) -> Callable[..., Any]:
        """A `Queue`, or what looks like one; takes what `tubes.connect` takes."""
        ...

    def begin(self, tube: Any, verb: str, *args: object, **options: object) -> Future[Any]:
        """Start a call, of a tube or a queue, that may wait; answers when it waits or has ended."""
        ...

    def close(self) -> None:
        """Stop what the face runs on."""
        ...


def _waiting(where: Any) -> int:
    """How many callers wait on a tube, or on all tubes of a queue."""
    found = where.statistics()
    return sum(each.waiting for each in found.values()) if hasattr(found, "values") else int(found.waiting)


def _until_waiting(where: object, before: int, future: Future[T]) -> Future[T]:
    while not future.done() and _waiting(where) == before:
        time.sleep(0.0002)
    return future


def _inner(argument: object) -> object:
    """An argument as the asyncio face takes it: a task or a tube, or a list of such."""
    if isinstance(argument, list):
        return [each.inner if isinstance(each, _Blocking) else each for each in cast("list[object]", argument)]
    return argument.inner if isinstance(argument, _Blocking) else argument


class SyncFace:
    """Threads."""

    name = "sync"
    connect = staticmethod(tubes.connect)

    def begin(self, tube: Any, verb: str, *args: object, **options: object) -> Future[Any]:
        future = Future[Any]()

        def call() -> None:
            try:
                future.set_result(getattr(tube, verb)(*args, **options))
            except BaseException as error:
                future.set_exception(error)

        before = _waiting(tube)
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

    def connect(self, url: Any = DEFAULT_URL, **options: Any) -> Any:
        return self.show(tubes.aio.connect(url, **options))

    def begin(self, tube: Any, verb: str, *args: object, **options: object) -> Future[Any]:
        before = _waiting(tube)
        call = getattr(_inner(tube), verb)(*map(_inner, args), **options)
        return _until_waiting(tube, before, self._submit(call))

    def run(self, call: Coroutine[object, None, object]) -> Any:
        """Await the call in the loop, and answer what it answers."""
        return self._submit(call).result()

    def show(self, answer: object) -> Any:
        """Make the methods of a queue, a tube or a task block; other answers pass as they are."""
        if hasattr(answer, "__aenter__") or hasattr(answer, "__aiter__"):
            return _Blocking(answer, self)
        if isinstance(answer, list):
            return [self.show(each) for each in cast("list[object]", answer)]
        return answer

    def _submit(self, call: Coroutine[object, None, object]) -> Future[Any]:
        async def shown() -> object:
            return self.show(await call)

        return asyncio.run_coroutine_threadsafe(shown(), self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Blocking:
    """An `AsyncQueue`, `AsyncTube` or `AsyncTask` whose methods block; it goes with `with` and `for`."""

    def __init__(self, inner: Any, face: AioFace) -> None:
        self.inner = inner
        self._face = face

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not inspect.ismethod(found):
            return found

        def call(*args: object, **options: object) -> object:
            answer = found(*map(_inner, args), **options)
            return self._face.run(answer) if inspect.iscoroutine(answer) else self._face.show(answer)

        return call

    def __enter__(self) -> object:
        return self._face.run(self.inner.__aenter__())

    def __exit__(self, *error: object) -> object:
        return self._face.run(self.inner.__aexit__(*error))

    def __iter__(self) -> Iterator[Any]:
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
